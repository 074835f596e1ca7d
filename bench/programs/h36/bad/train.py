import argparse
import os
from functools import partial
from pathlib import Path

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
from megatron.core.transformer.transformer_config import TransformerConfig


class ProteinSequences(Dataset):
    def __init__(self, path):
        self.ids = torch.load(path, map_location="cpu")

    def __len__(self):
        return self.ids.size(0)

    def __getitem__(self, i):
        return self.ids[i].long()


def initialize_distributed(tp, seed):
    parallel_state.destroy_model_parallel()
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    torch.distributed.init_process_group(backend="nccl")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=tp,
                                             pipeline_model_parallel_size=1)
    torch.manual_seed(seed)
    torch.cuda.manual_seed(seed)


def model_provider(args):
    config = TransformerConfig(
        num_layers=args.num_layers, hidden_size=args.hidden_size,
        num_attention_heads=args.num_heads, tensor_model_parallel_size=args.tp,
        hidden_dropout=0.1, attention_dropout=0.1, params_dtype=torch.float32)
    return config, GPTModel(config=config, transformer_layer_spec=get_gpt_layer_local_spec(),
                            vocab_size=args.vocab_size, max_sequence_length=args.seq_length)


def data_iterator(args):
    data = ProteinSequences(args.train_file)
    sampler = DistributedSampler(data, num_replicas=parallel_state.get_data_parallel_world_size(),
                                 rank=parallel_state.get_data_parallel_rank(), shuffle=True)
    loader = DataLoader(data, batch_size=args.micro_batch_size, sampler=sampler, drop_last=True)
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def loss_func(output_tensor):
    loss = output_tensor.float().mean()
    return loss, {"lm loss": loss.detach()}


def forward_step(iterator, model, attention_mask):
    ids = next(iterator).cuda()
    tokens, labels = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    positions = torch.arange(tokens.size(1), device=tokens.device).unsqueeze(0).expand_as(tokens)
    return model(tokens, positions, attention_mask, labels=labels), loss_func


def save(net, directory, step):
    path = Path(directory) / f"step_{step:07d}"
    if torch.distributed.get_rank() == 0:
        path.mkdir(parents=True)
    torch.distributed.barrier()
    dist_checkpointing.save(net.sharded_state_dict(prefix=""), str(path))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--train-file", default="/data/uniref/train_513.pt")
    parser.add_argument("--save-dir", default="/checkpoints/protein-gpt")
    parser.add_argument("--save-every", type=int, default=2000)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--num-layers", type=int, default=16)
    parser.add_argument("--hidden-size", type=int, default=1024)
    parser.add_argument("--num-heads", type=int, default=16)
    parser.add_argument("--vocab-size", type=int, default=128)
    parser.add_argument("--seq-length", type=int, default=512)
    parser.add_argument("--micro-batch-size", type=int, default=16)
    parser.add_argument("--num-microbatches", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10000)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=123)
    args = parser.parse_args()

    initialize_distributed(args.tp, args.seed)
    config, net = model_provider(args)
    net.cuda()
    model = DistributedDataParallel(config=config, module=net,
                                    ddp_config=DistributedDataParallelConfig())
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=args.lr, min_lr=args.lr, clip_grad=1.0,
                        params_dtype=torch.float32), [model])
    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = finalize_model_grads

    mask = torch.ones(1, 1, args.seq_length, args.seq_length, device="cuda").tril().logical_not()
    forward_backward_func = get_forward_backward_func()
    iterator = data_iterator(args)
    model.train()
    for step in range(1, args.steps + 1):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        reduced = forward_backward_func(
            forward_step_func=partial(forward_step, attention_mask=mask), data_iterator=iterator,
            model=model, num_microbatches=args.num_microbatches, seq_length=args.seq_length,
            micro_batch_size=args.micro_batch_size, forward_only=False)
        optimizer.step()
        if step % 100 == 0 and torch.distributed.get_rank() == 0:
            mean = torch.stack([r["lm loss"] for r in reduced]).mean().item()
            print(f"step {step}: loss on first replica {mean:.4f}", flush=True)
        if step % args.save_every == 0:
            save(net, args.save_dir, step)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
