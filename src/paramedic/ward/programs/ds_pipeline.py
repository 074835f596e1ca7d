"""Train a small language model as a pipeline of layers."""

from __future__ import annotations

import deepspeed
import torch
import torch.nn.functional as F
from deepspeed.pipe import PipelineModule
from ds_lm import CONTEXT, VOCABULARY, Block, finish, log, options, start, texts
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def loss_of(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def main() -> None:
    parser = options()
    parser.add_argument("--stages", type=int, default=2)
    args = parser.parse_args()
    rank = start(args)
    layers = [nn.Embedding(VOCABULARY, 32), Block(32), Block(32), nn.Linear(32, VOCABULARY)]
    model = PipelineModule(layers=layers, num_stages=args.stages, loss_fn=loss_of, partition_method="uniform")
    engine, _, _, _ = deepspeed.initialize(
        model=model, model_parameters=[p for p in model.parameters() if p.requires_grad], config=args.config
    )
    (tokens,) = texts(512).tensors
    data = TensorDataset(tokens[:, :CONTEXT], tokens[:, 1:])
    loader = iter(DataLoader(data, batch_size=engine.train_micro_batch_size_per_gpu()))
    for step in range(1, args.steps + 1):
        loss = engine.train_batch(data_iter=loader)
        log.info("rank %d step %d loss %.4f", rank, step, loss.item())
    finish(loss=loss.item())


if __name__ == "__main__":
    main()
