"""GPT pre-training loop on Megatron-core: bf16, distributed optimizer, tensor parallel 4."""
import argparse
import os
import time

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


class Documents(Dataset):
    """Fixed windows of a flat token file; position 0 of every window is the BOS token."""

    def __init__(self, path, seq_length):
        self.tokens = np.load(path, mmap_mode="r")
        self.seq_length = seq_length

    def __len__(self):
        return len(self.tokens) // (self.seq_length + 1)

    def __getitem__(self, index):
        span = self.seq_length + 1
        window = np.asarray(self.tokens[index * span:(index + 1) * span], dtype=np.int64)
        return torch.from_numpy(window)


def init_parallel(args):
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group(backend="nccl")
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=args.tensor_parallel, pipeline_model_parallel_size=1)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    tensor_parallel.model_parallel_cuda_manual_seed(args.seed)


def get_model(args):
    config = TransformerConfig(
        num_layers=24, hidden_size=2048, num_attention_heads=16, ffn_hidden_size=8192,
        tensor_model_parallel_size=args.tensor_parallel, sequence_parallel=True,
        bf16=True, params_dtype=torch.bfloat16, pipeline_dtype=torch.bfloat16,
        attention_dropout=0.0, hidden_dropout=0.0)
    gpt = GPTModel(
        config=config, transformer_layer_spec=get_gpt_layer_with_transformer_engine_spec(),
        vocab_size=args.vocab_size, max_sequence_length=args.seq_length,
        position_embedding_type="rope", share_embeddings_and_output_weights=False)
    gpt.cuda(torch.cuda.current_device())
    model = DistributedDataParallel(
        config,
        DistributedDataParallelConfig(grad_reduce_in_fp32=True, overlap_grad_reduce=False,
                                      use_distributed_optimizer=True),
        Float16Module(config, gpt))
    return config, model


def get_data_iterator(args):
    dataset = Documents(args.data_path, args.seq_length)
    sampler = DistributedSampler(
        dataset, num_replicas=parallel_state.get_data_parallel_world_size(),
        rank=parallel_state.get_data_parallel_rank(), seed=args.seed, drop_last=True)
    loader = DataLoader(dataset, batch_size=args.micro_batch, sampler=sampler,
                        num_workers=4, pin_memory=True, drop_last=True)
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def loss_func(output_tensor):
    loss = output_tensor.float().mean()
    averaged = loss.detach().clone()
    torch.distributed.all_reduce(averaged, group=parallel_state.get_data_parallel_group())
    return loss, {"loss": averaged / parallel_state.get_data_parallel_world_size()}


def forward_step(data_iterator, model):
    window = next(data_iterator).cuda(non_blocking=True)
    tokens, labels = window[:, :-1].contiguous(), window[:, 1:].contiguous()
    positions = torch.arange(tokens.size(1), device=tokens.device).unsqueeze(0).expand_as(tokens)
    return model(tokens, positions, None, labels=labels), loss_func


def train_step(args, model, optimizer, data_iterator):
    optimizer.zero_grad()
    per_dp = args.global_batch // parallel_state.get_data_parallel_world_size()
    losses = get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=data_iterator,
        model=[model],
        num_microbatches=per_dp // args.micro_batch,
        seq_length=args.seq_length,
        micro_batch_size=args.micro_batch,
        forward_only=False,
    )
    _, grad_norm, _ = optimizer.step()
    return torch.stack([x["loss"] for x in losses]).mean().item(), grad_norm


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
    parser.add_argument("--data-path", default="/lustre/tokens/c4_en.npy")
    parser.add_argument("--save", default="/lustre/checkpoints/gpt-c4")
    parser.add_argument("--save-interval", type=int, default=1000)
    parser.add_argument("--tensor-parallel", type=int, default=4)
    parser.add_argument("--vocab-size", type=int, default=32000)
    parser.add_argument("--seq-length", type=int, default=2048)
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--global-batch", type=int, default=256)
    parser.add_argument("--lr", type=float, default=2e-4)
    parser.add_argument("--iters", type=int, default=50000)
    parser.add_argument("--seed", type=int, default=42)
    args = parser.parse_args()

    init_parallel(args)
    config, model = get_model(args)
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam", lr=args.lr, weight_decay=0.1, adam_beta2=0.95, clip_grad=1.0,
            bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=True),
        [model])
    config.finalize_model_grads_func = finalize_model_grads
    config.grad_scale_func = optimizer.scale_loss

    data_iterator = get_data_iterator(args)
    model.train()
    started = time.time()
    for iteration in range(1, args.iters + 1):
        loss, grad_norm = train_step(args, model, optimizer, data_iterator)
        if iteration % 10 == 0 and torch.distributed.get_rank() == 0:
            print(f"iter {iteration} loss {loss:.4f} grad_norm {grad_norm:.3f} "
                  f"{(time.time() - started) / iteration:.2f} s/iter", flush=True)
        if iteration % args.save_interval == 0:
            save_checkpoint(args.save, iteration, model, optimizer)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
