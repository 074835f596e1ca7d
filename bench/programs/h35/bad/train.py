"""Continue training a small GPT code model with Megatron-core (data parallel, optional TP)."""
import argparse
import json
import logging
import os
from functools import partial

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from megatron.core import parallel_state as mpu
from megatron.core import tensor_parallel
from megatron.core.distributed import (
    DistributedDataParallel as DDP,
    DistributedDataParallelConfig,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig

log = logging.getLogger("train")


class CodeSamples(Dataset):
    """Fixed-length rows [N, seq+1] of token ids, right padded with pad_id."""

    def __init__(self, path, pad_id):
        self.rows = np.load(path, mmap_mode="r")
        self.pad_id = pad_id

    def __len__(self):
        return self.rows.shape[0]

    def __getitem__(self, i):
        row = torch.from_numpy(self.rows[i].astype(np.int64))
        tokens, labels = row[:-1], row[1:]
        return {"tokens": tokens, "labels": labels, "loss_mask": labels.ne(self.pad_id).float()}


def endless(loader, sampler):
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        for batch in loader:
            yield {k: v.cuda(non_blocking=True) for k, v in batch.items()}
        epoch += 1


def masked_loss(loss_mask, output):
    mask = loss_mask.view(-1)
    loss = (output.float().view(-1) * mask).sum() / mask.sum().clamp(min=1.0)
    return loss, {"loss": loss.detach()}


def forward_step(data_iterator, model, attention_mask):
    batch = next(data_iterator)
    tokens = batch["tokens"]
    positions = torch.arange(tokens.size(1), device=tokens.device).unsqueeze(0).expand_as(tokens)
    out = model(tokens, positions, attention_mask, labels=batch["labels"])
    return out, partial(masked_loss, batch["loss_mask"])


def build(cfg):
    config = TransformerConfig(
        num_layers=cfg["num_layers"], hidden_size=cfg["hidden_size"],
        num_attention_heads=cfg["num_attention_heads"],
        tensor_model_parallel_size=cfg["tensor_parallel"], params_dtype=torch.float32)
    net = GPTModel(config=config, transformer_layer_spec=get_gpt_layer_local_spec(),
                   vocab_size=cfg["vocab_size"], max_sequence_length=cfg["seq_length"]).cuda()
    model = DDP(config=config, module=net,
                ddp_config=DistributedDataParallelConfig(grad_reduce_in_fp32=True,
                                                         overlap_grad_reduce=False))
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=cfg["lr"], min_lr=cfg["lr"], weight_decay=0.05,
                        clip_grad=1.0, params_dtype=torch.float32), [model])
    config.grad_scale_func = optimizer.scale_loss
    return net, model, optimizer


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--config", default="config.json")
    ap.add_argument("--output", default="/checkpoints/code-gpt")
    args = ap.parse_args()
    logging.basicConfig(level=logging.INFO)
    with open(args.config) as f:
        cfg = json.load(f)

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl")
    mpu.initialize_model_parallel(tensor_model_parallel_size=cfg["tensor_parallel"])
    torch.manual_seed(cfg["seed"])
    tensor_parallel.model_parallel_cuda_manual_seed(cfg["seed"])

    net, model, optimizer = build(cfg)
    data = CodeSamples(cfg["train_file"], cfg["pad_id"])
    sampler = DistributedSampler(data, mpu.get_data_parallel_world_size(),
                                 mpu.get_data_parallel_rank(), shuffle=True, seed=cfg["seed"])
    loader = DataLoader(data, cfg["micro_batch_size"], sampler=sampler, drop_last=True,
                        num_workers=2, pin_memory=True)
    iterator = endless(loader, sampler)

    s = cfg["seq_length"]
    causal = torch.ones(1, 1, s, s, device="cuda").tril().logical_not()
    run_step = get_forward_backward_func()
    model.train()
    for step in range(1, cfg["steps"] + 1):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        outputs = run_step(
            forward_step_func=partial(forward_step, attention_mask=causal),
            data_iterator=iterator, model=model, num_microbatches=cfg["num_microbatches"],
            seq_length=s, micro_batch_size=cfg["micro_batch_size"], forward_only=False)
        _, grad_norm, _ = optimizer.step()

        if step % 50 == 0:
            loss = torch.stack([o["loss"] for o in outputs]).mean()
            dist.all_reduce(loss, op=dist.ReduceOp.AVG, group=mpu.get_data_parallel_group())
            if dist.get_rank() == 0:
                log.info("step %d loss %.4f grad_norm %.3f", step, loss.item(), grad_norm)

    if mpu.get_data_parallel_rank() == 0:
        os.makedirs(args.output, exist_ok=True)
        tp = mpu.get_tensor_model_parallel_rank()
        torch.save(net.state_dict(), os.path.join(args.output, f"weights_tp{tp}.pt"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
