"""Pipeline- and tensor-parallel GPT (Megatron-core), 2 nodes x 8 GPUs: TP 2, PP 2, DP 4."""
import argparse
import os

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


class TokenFile(Dataset):
    def __init__(self, path, seq_length):
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r")
        self.seq_length = seq_length

    def __len__(self):
        return (len(self.tokens) - 1) // self.seq_length

    def __getitem__(self, i):
        lo = i * self.seq_length
        piece = self.tokens[lo:lo + self.seq_length + 1].astype(np.int64)
        return {"tokens": torch.from_numpy(piece[:-1]), "labels": torch.from_numpy(piece[1:])}


def build_data_iterator(args):
    dataset = TokenFile(args.data, args.seq_length)
    sampler = DistributedSampler(
        dataset,
        num_replicas=torch.distributed.get_world_size(),
        rank=torch.distributed.get_rank(),
        shuffle=True,
        seed=args.seed,
        drop_last=True,
    )
    loader = DataLoader(dataset, batch_size=args.micro_batch_size, sampler=sampler,
                        num_workers=2, pin_memory=True, drop_last=True)
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def build_model(args):
    config = TransformerConfig(
        num_layers=args.num_layers,
        hidden_size=args.hidden_size,
        num_attention_heads=args.num_heads,
        tensor_model_parallel_size=args.tp,
        pipeline_model_parallel_size=args.pp,
        bf16=True,
        params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16,
    )
    gpt = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_with_transformer_engine_spec(),
        vocab_size=args.vocab_size,
        max_sequence_length=args.seq_length,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=False,
        position_embedding_type="rope",
    )
    gpt.cuda(torch.cuda.current_device())
    ddp_config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True, overlap_grad_reduce=False, use_distributed_optimizer=True)
    return config, DistributedDataParallel(config, ddp_config, Float16Module(config, gpt))


def loss_func(output_tensor):
    loss = output_tensor.float().mean()
    averaged = loss.detach().clone()
    torch.distributed.all_reduce(averaged, group=parallel_state.get_data_parallel_group())
    return loss, {"lm loss": averaged / parallel_state.get_data_parallel_world_size()}


def forward_step(data_iterator, model):
    batch = next(data_iterator)
    tokens = batch["tokens"].cuda(non_blocking=True)
    labels = batch["labels"].cuda(non_blocking=True)
    position_ids = torch.arange(tokens.size(1), device=tokens.device).expand_as(tokens)
    return model(tokens, position_ids, None, labels=labels), loss_func


def log_losses(iteration, losses, grad_norm):
    if not parallel_state.is_pipeline_last_stage():
        return
    if (parallel_state.get_tensor_model_parallel_rank() == 0
            and parallel_state.get_data_parallel_rank() == 0):
        mean = sum(x["lm loss"].item() for x in losses) / len(losses)
        print(f"iteration {iteration} | lm loss {mean:.4f} | grad norm {grad_norm:.3f}", flush=True)


def save_checkpoint(root, iteration, model, optimizer):
    path = os.path.join(root, f"iter_{iteration:07d}")
    if torch.distributed.get_rank() == 0:
        os.makedirs(path, exist_ok=True)
    torch.distributed.barrier()
    state = {"model": model.module.sharded_state_dict(prefix=""), "iteration": iteration}
    state["optimizer"] = optimizer.sharded_state_dict(state)
    dist_checkpointing.save(state, path)


def parse_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="/lustre/tokens/pile_train.bin")
    parser.add_argument("--save", default="/lustre/checkpoints/gpt-pile")
    parser.add_argument("--save-interval", type=int, default=2000)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--pp", type=int, default=2)
    parser.add_argument("--num-layers", type=int, default=32)
    parser.add_argument("--hidden-size", type=int, default=4096)
    parser.add_argument("--num-heads", type=int, default=32)
    parser.add_argument("--vocab-size", type=int, default=50432)
    parser.add_argument("--seq-length", type=int, default=2048)
    parser.add_argument("--micro-batch-size", type=int, default=1)
    parser.add_argument("--num-microbatches", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1.2e-4)
    parser.add_argument("--train-iters", type=int, default=100000)
    parser.add_argument("--seed", type=int, default=1234)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl")
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=args.tp, pipeline_model_parallel_size=args.pp)
    torch.manual_seed(args.seed)
    tensor_parallel.model_parallel_cuda_manual_seed(args.seed)

    config, model = build_model(args)
    optimizer = get_megatron_optimizer(
        OptimizerConfig(optimizer="adam", lr=args.lr, weight_decay=0.1, adam_beta2=0.95,
                        clip_grad=1.0, bf16=True, params_dtype=torch.bfloat16,
                        use_distributed_optimizer=True), [model])
    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = finalize_model_grads

    data_iterator = build_data_iterator(args)
    forward_backward = get_forward_backward_func()
    model.train()
    for iteration in range(1, args.train_iters + 1):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        losses = forward_backward(
            forward_step_func=forward_step, data_iterator=data_iterator, model=model,
            num_microbatches=args.num_microbatches, seq_length=args.seq_length,
            micro_batch_size=args.micro_batch_size, forward_only=False)
        _, grad_norm, _ = optimizer.step()
        if iteration % 10 == 0:
            log_losses(iteration, losses, grad_norm)
        if iteration % args.save_interval == 0:
            save_checkpoint(args.save, iteration, model, optimizer)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
