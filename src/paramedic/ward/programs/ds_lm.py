"""Train a small language model with DeepSpeed; how, is said in ds_config.json."""

from __future__ import annotations

import argparse
import json
import logging
import time
from datetime import timedelta

import deepspeed
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

VOCABULARY, CONTEXT = 64, 16
log = logging.getLogger("train")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class LanguageModel(nn.Module):
    def __init__(self, width: int = 32, depth: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens[:, :-1])
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).float().flatten(0, 1), tokens[:, 1:].flatten())


def texts(count: int) -> TensorDataset:
    rows = [torch.randint(VOCABULARY, (count, 1), generator=torch.Generator().manual_seed(7))]
    for _ in range(CONTEXT):
        rows.append((5 * rows[-1] + 3) % VOCABULARY)
    return TensorDataset(torch.cat(rows, dim=1))


def batches(engine: deepspeed.DeepSpeedEngine) -> DataLoader:
    """This rank's share of the texts, in micro batches."""
    world, rank = dist.get_world_size(), dist.get_rank()
    data = texts(64 * world)
    sampler = DistributedSampler(data, world, rank, seed=1)
    return DataLoader(data, batch_size=engine.train_micro_batch_size_per_gpu(), sampler=sampler, drop_last=True)


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default="ds_config.json")
    parser.add_argument("--local_rank", type=int, default=-1, help="given by the deepspeed launcher")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--timeout", type=float, default=90.0, help="seconds that a collective may take")
    return parser


def start(args: argparse.Namespace) -> int:
    """Join the other ranks; this one's number."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    deepspeed.init_distributed(dist_backend="gloo", timeout=timedelta(seconds=args.timeout))
    log.info("rank %d of %d", dist.get_rank(), dist.get_world_size())
    torch.manual_seed(0)
    return dist.get_rank()


def finish(**result: float) -> None:
    if dist.get_rank() == 0:
        with open("result.json", "w") as file:
            json.dump({"world_size": dist.get_world_size(), **result}, file)
    dist.barrier()
    log.info("rank %d training finished", dist.get_rank())
    dist.destroy_process_group()


def main() -> None:
    parser = options()
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between steps")
    parser.add_argument("--torch-optimizer", action="store_true", help="AdamW of PyTorch, whatever the config says")
    parser.add_argument("--checkpoints", default="checkpoints")
    parser.add_argument("--save-every", type=int, default=0)
    parser.add_argument("--no-latest", action="store_true", help="do not let the file `latest` point to what is saved")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--tag", help="the checkpoint to resume from; the latest one unless given")
    args = parser.parse_args()

    rank = start(args)
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3) if args.torch_optimizer else None
    engine, optimizer, _, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), optimizer=optimizer, config=args.config
    )
    loader = batches(engine)
    step = 0
    if args.resume:
        _, state = engine.load_checkpoint(args.checkpoints, tag=args.tag)
        step = state["step"] if state else 0
        log.info("rank %d starts at step %d", rank, step)
    first, last = step, step + args.steps
    while step < last:
        for (tokens,) in loader:
            began = time.perf_counter()
            loss = engine(tokens)
            engine.backward(loss)
            complete = engine.is_gradient_accumulation_boundary()
            engine.step()
            if not complete:
                continue
            step += 1
            log.info("rank %d step %d loss %.4f %.0f ms", rank, step, loss.item(), 1000 * (time.perf_counter() - began))
            if args.save_every and step % args.save_every == 0:
                engine.save_checkpoint(args.checkpoints, client_state={"step": step}, save_latest=not args.no_latest)
            time.sleep(args.pause)
            if step == last:
                break
    finish(first_step=first, last_step=last, loss=loss.item())


if __name__ == "__main__":
    main()
