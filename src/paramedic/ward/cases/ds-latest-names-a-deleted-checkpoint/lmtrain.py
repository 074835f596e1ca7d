import argparse

import deepspeed
import torch


def parse():
    a = argparse.ArgumentParser()
    a.add_argument("--until", type=int)
    a.add_argument("--resume", action="store_true")
    a.add_argument("--local_rank", type=int)
    return a.parse_args()


class Run:
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": {"torch_adam": True, "lr": 1e-3}},
        "zero_optimization": {"stage": 1},
    }

    def __init__(self, args):
        self.args = args
        deepspeed.init_distributed("gloo")
        net = torch.nn.Sequential(torch.nn.Embedding(64, 16), torch.nn.Linear(16, 64))
        self.engine, *_ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=self.config)
        self.step = 0

    def load(self):
        path, client = self.engine.load_checkpoint("ckpt")
        self.step = client["step"]
        print(f"[{self.engine.global_rank}] resumed at {self.step} from {path}", flush=True)

    def train(self):
        while self.step < self.args.until:
            ids = torch.randint(64, (4, 9))
            logits = self.engine(ids[:, :-1])
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            self.engine.backward(loss)
            self.engine.step()
            self.step += 1
            if self.step % 4 == 0:
                self.engine.save_checkpoint("ckpt", client_state={"step": self.step})
        print(f"[{self.engine.global_rank}] stopped after {self.step}", flush=True)


if __name__ == "__main__":
    run = Run(parse())
    if run.args.resume:
        run.load()
    run.train()
