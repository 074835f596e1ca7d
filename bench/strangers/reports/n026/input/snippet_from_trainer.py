        loss = self.model(**batch).loss
        loss.backward()
        self.opt.step(); self.opt.zero_grad(set_to_none=True)
        if self.rank == 0:
            self.history.append(loss)           # for running mean
            if step % 250 == 0:
                log(step, loss.item(), torch.stack(self.history).mean().item())
