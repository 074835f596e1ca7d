"""GPT pretraining on Megatron-core with tensor and data parallelism."""
import argparse
import os
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from megatron.core import dist_checkpointing, parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig


class TokenDataset(Dataset):
    def __init__(self, path, seq_length):
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r")
        self.seq_length = seq_length

    def __len__(self):
        return (len(self.tokens) - 1) // self.seq_length

    def __getitem__(self, i):
        start = i * self.seq_length
        chunk = self.tokens[start:start + self.seq_length + 1].astype(np.int64)
        return torch.from_numpy(chunk)


def setup(args):
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=args.tp,
                                             pipeline_model_parallel_size=1)
    torch.manual_seed(args.seed)
    model_parallel_cuda_manual_seed(args.seed)


def build_model(args):
    config = TransformerConfig(
        num_layers=args.layers, hidden_size=args.hidden, num_attention_heads=args.heads,
        tensor_model_parallel_size=args.tp, bf16=True, params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16)
    gpt = GPTModel(config=config, transformer_layer_spec=get_gpt_layer_local_spec(),
                   vocab_size=args.vocab, max_sequence_length=args.seq_length).cuda()
    ddp_config = DistributedDataParallelConfig(grad_reduce_in_fp32=True)
    model = DistributedDataParallel(config=config, ddp_config=ddp_config,
                                    module=Float16Module(config, gpt))
    return config, gpt, model


def batches(args):
    data = TokenDataset(args.data, args.seq_length)
    sampler = DistributedSampler(data, shuffle=True, seed=args.seed, drop_last=True)
    loader = DataLoader(data, batch_size=args.micro_batch, sampler=sampler, num_workers=2,
                        pin_memory=True, drop_last=True)
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def loss_func(output):
    loss = output.float().mean()
    return loss, {"lm loss": loss.detach()}


def forward_step(data_iterator, model, mask, position_ids):
    chunk = next(data_iterator).cuda(non_blocking=True)
    tokens, labels = chunk[:, :-1].contiguous(), chunk[:, 1:].contiguous()
    output = model(tokens, position_ids.expand_as(tokens), mask, labels=labels)
    return output, loss_func


def save_weights(gpt, path):
    path = Path(path)
    if torch.distributed.get_rank() == 0:
        path.mkdir(parents=True)
    torch.distributed.barrier()
    dist_checkpointing.save(gpt.sharded_state_dict(prefix=""), str(path))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--data", default="/data/corpus/train.bin")
    p.add_argument("--out", default="/checkpoints/gpt-tp/final")
    p.add_argument("--tp", type=int, default=4)
    p.add_argument("--layers", type=int, default=24)
    p.add_argument("--hidden", type=int, default=2048)
    p.add_argument("--heads", type=int, default=16)
    p.add_argument("--vocab", type=int, default=50304)
    p.add_argument("--seq-length", type=int, default=1024)
    p.add_argument("--micro-batch", type=int, default=4)
    p.add_argument("--num-microbatches", type=int, default=8)
    p.add_argument("--iters", type=int, default=20000)
    p.add_argument("--lr", type=float, default=2e-4)
    p.add_argument("--seed", type=int, default=1234)
    args = p.parse_args()

    setup(args)
    config, gpt, model = build_model(args)
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=args.lr, min_lr=args.lr / 10, weight_decay=0.1, bf16=True,
                        params_dtype=torch.bfloat16, clip_grad=1.0), [model])
    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = finalize_model_grads

    mask = ~torch.tril(torch.ones(1, 1, args.seq_length, args.seq_length, device="cuda")).bool()
    positions = torch.arange(args.seq_length, device="cuda").unsqueeze(0)
    step = partial(forward_step, mask=mask, position_ids=positions)
    forward_backward = get_forward_backward_func()
    data_iterator = batches(args)

    model.train()
    for it in range(args.iters):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        losses = forward_backward(
            forward_step_func=step, data_iterator=data_iterator, model=model,
            num_microbatches=args.num_microbatches, seq_length=args.seq_length,
            micro_batch_size=args.micro_batch, forward_only=False)
        ok, grad_norm, _ = optimizer.step()
        if it % 20 == 0:
            loss = torch.stack([x["lm loss"] for x in losses]).mean()
            torch.distributed.all_reduce(loss, op=torch.distributed.ReduceOp.AVG,
                                         group=parallel_state.get_data_parallel_group())
            if torch.distributed.get_rank() == 0:
                print(f"iter {it} loss {loss.item():.4f} grad norm {grad_norm:.3f}", flush=True)

    save_weights(gpt, args.out)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
