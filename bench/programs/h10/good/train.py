"""Code-completion GPT, Megatron-core with tensor and sequence parallelism on one node."""
import argparse
import json
import logging
import os
import random

import numpy as np
import torch
from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.distributed.finalize_model_grads import finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.utils.data import DataLoader, Dataset, DistributedSampler

log = logging.getLogger("codegpt")


class CodeWindows(Dataset):
    def __init__(self, prefix, seq_length):
        with open(prefix + ".json") as f:
            self.count = json.load(f)["num_windows"]
        self.windows = np.memmap(prefix + ".bin", dtype=np.int32, mode="r",
                                 shape=(self.count, seq_length + 1))

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return torch.from_numpy(self.windows[i].astype(np.int64))


def initialize(args):
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=args.tp)


def set_random_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    tensor_parallel.model_parallel_cuda_manual_seed(seed)


def build_model(args):
    config = TransformerConfig(
        num_layers=args.layers, hidden_size=args.hidden, num_attention_heads=args.heads,
        tensor_model_parallel_size=args.tp, sequence_parallel=args.tp > 1,
        bf16=True, params_dtype=torch.bfloat16,
        attention_dropout=0.1, hidden_dropout=0.1)
    gpt = GPTModel(config=config,
                   transformer_layer_spec=get_gpt_layer_with_transformer_engine_spec(),
                   vocab_size=args.vocab, max_sequence_length=args.seq_length)
    gpt.cuda(torch.cuda.current_device())
    ddp_config = DistributedDataParallelConfig(grad_reduce_in_fp32=True,
                                               use_distributed_optimizer=True)
    return config, DistributedDataParallel(config, ddp_config, Float16Module(config, gpt))


def build_iterator(args):
    dataset = CodeWindows(args.data_prefix, args.seq_length)
    sampler = DistributedSampler(dataset, parallel_state.get_data_parallel_world_size(),
                                 parallel_state.get_data_parallel_rank(),
                                 seed=args.seed, drop_last=True)
    loader = DataLoader(dataset, batch_size=args.micro_batch, sampler=sampler, drop_last=True,
                        num_workers=2, pin_memory=True)
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def loss_func(output_tensor):
    loss = output_tensor.float().mean()
    report = loss.detach().clone()
    torch.distributed.all_reduce(report, group=parallel_state.get_data_parallel_group())
    return loss, {"loss": report / parallel_state.get_data_parallel_world_size()}


def forward_step(data_iterator, model):
    window = next(data_iterator).cuda(non_blocking=True)
    tokens, labels = window[:, :-1].contiguous(), window[:, 1:].contiguous()
    position_ids = torch.arange(tokens.size(1), device=tokens.device).expand_as(tokens)
    return model(tokens, position_ids, None, labels=labels), loss_func


def save_checkpoint(root, iteration, model, optimizer):
    path = os.path.join(root, f"iter_{iteration:07d}")
    if torch.distributed.get_rank() == 0:
        os.makedirs(path, exist_ok=True)
    torch.distributed.barrier()
    state = {"model": model.module.sharded_state_dict(prefix=""), "iteration": iteration}
    state["optimizer"] = optimizer.sharded_state_dict(state)
    dist_checkpointing.save(state, path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-prefix", default="/data/code/python_windows")
    parser.add_argument("--save", default="/checkpoints/code-gpt")
    parser.add_argument("--save-interval", type=int, default=1000)
    parser.add_argument("--tp", type=int, default=4)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--vocab", type=int, default=49152)
    parser.add_argument("--seq-length", type=int, default=4096)
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--num-microbatches", type=int, default=16)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--iters", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)

    initialize(args)
    set_random_seed(args.seed)
    config, model = build_model(args)
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=args.lr, weight_decay=0.1, clip_grad=1.0, bf16=True,
                        params_dtype=torch.bfloat16, use_distributed_optimizer=True), [model])
    config.finalize_model_grads_func = finalize_model_grads
    config.grad_scale_func = optimizer.scale_loss
    data_iterator = build_iterator(args)
    forward_backward = get_forward_backward_func()

    model.train()
    for iteration in range(1, args.iters + 1):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        losses = forward_backward(
            forward_step_func=forward_step, data_iterator=data_iterator, model=model,
            num_microbatches=args.num_microbatches, seq_length=args.seq_length,
            micro_batch_size=args.micro_batch, forward_only=False)
        _, grad_norm, _ = optimizer.step()
        if iteration % 20 == 0 and torch.distributed.get_rank() == 0:
            mean = sum(x["loss"].item() for x in losses) / len(losses)
            log.info("iteration %d loss %.4f grad norm %.3f", iteration, mean, grad_norm)
        if iteration % args.save_interval == 0:
            save_checkpoint(args.save, iteration, model, optimizer)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
