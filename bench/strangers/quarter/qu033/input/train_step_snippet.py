            try:
                loss = self.model(batch).loss
                loss.backward()
            except torch.OutOfMemoryError as e:
                log.warning("step=%d OutOfMemoryError: %s -> batch skipped (bucket %s)", step, short(e), batch.bucket)
                self.opt.zero_grad(set_to_none=True)
                torch.cuda.empty_cache()
                continue
            self.opt.step()
