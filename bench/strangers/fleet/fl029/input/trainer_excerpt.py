    def evaluate(self):
        dl = DataLoader(self.eval_set, batch_size=16, num_workers=6,
                        persistent_workers=True, pin_memory=True)
        self._eval_iters.append(iter(dl))          # keep workers warm for the next call
        for batch in self._eval_iters[-1]:
            self.metric.update(*self.model.eval_step(batch))
