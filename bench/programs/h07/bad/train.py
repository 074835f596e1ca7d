"""Small GPT trained with Megatron-core, tensor parallel inside a node, fp32."""
import argparse
import logging
import os

import numpy as np
import torch
from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.distributed.finalize_model_grads import finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.utils.data import DataLoader, Dataset, DistributedSampler

log = logging.getLogger(__name__)


class PackedTokens(Dataset):
    def __init__(self, path, seq_length):
        self.data = np.memmap(path, dtype=np.uint16, mode="r")
        self.seq_length = seq_length

    def __len__(self):
        return (len(self.data) - 1) // self.seq_length

    def __getitem__(self, i):
        start = i * self.seq_length
        chunk = torch.from_numpy(self.data[start:start + self.seq_length + 1].astype(np.int64))
        return {"tokens": chunk[:-1], "labels": chunk[1:]}


def batches(args):
    dataset = PackedTokens(args.data, args.seq_length)
    sampler = DistributedSampler(
        dataset,
        num_replicas=parallel_state.get_data_parallel_world_size(),
        rank=parallel_state.get_data_parallel_rank(),
        shuffle=True, seed=args.seed, drop_last=True)
    loader = DataLoader(dataset, batch_size=args.micro_batch_size, sampler=sampler,
                        drop_last=True, num_workers=2, pin_memory=True)
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def loss_func(output_tensor):
    loss = output_tensor.float().mean()
    reported = loss.detach().clone()
    torch.distributed.all_reduce(reported, group=parallel_state.get_data_parallel_group())
    reported /= parallel_state.get_data_parallel_world_size()
    return loss, {"lm loss": reported}


def forward_step(data_iterator, model):
    batch = next(data_iterator)
    tokens = batch["tokens"].cuda(non_blocking=True)
    labels = batch["labels"].cuda(non_blocking=True)
    position_ids = torch.arange(tokens.size(1), device=tokens.device).expand_as(tokens)
    output = model(tokens, position_ids, None, labels=labels)
    return output, loss_func


def build_model(args):
    config = TransformerConfig(
        num_layers=args.num_layers, hidden_size=args.hidden_size,
        num_attention_heads=args.num_heads,
        tensor_model_parallel_size=args.tp, pipeline_model_parallel_size=1,
        finalize_model_grads_func=finalize_model_grads)
    model = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_with_transformer_engine_spec(),
        vocab_size=args.vocab_size, max_sequence_length=args.seq_length).cuda()
    ddp_config = DistributedDataParallelConfig(grad_reduce_in_fp32=True, overlap_grad_reduce=False,
                                               use_distributed_optimizer=False)
    return DistributedDataParallel(config, ddp_config, model)


def save(args, model, iteration):
    path = os.path.join(args.save, f"iter_{iteration:07d}")
    if torch.distributed.get_rank() == 0:
        os.makedirs(path, exist_ok=True)
    torch.distributed.barrier()
    dist_checkpointing.save(model.module.sharded_state_dict(prefix=""), path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="/data/openwebtext/train.bin")
    parser.add_argument("--save", default="/checkpoints/gpt-small")
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--num-layers", type=int, default=12)
    parser.add_argument("--hidden-size", type=int, default=768)
    parser.add_argument("--num-heads", type=int, default=12)
    parser.add_argument("--vocab-size", type=int, default=50304)
    parser.add_argument("--seq-length", type=int, default=1024)
    parser.add_argument("--micro-batch-size", type=int, default=8)
    parser.add_argument("--num-microbatches", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--train-iters", type=int, default=20000)
    parser.add_argument("--save-interval", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1234)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO)

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=args.tp)
    torch.manual_seed(args.seed)
    tensor_parallel.model_parallel_cuda_manual_seed(args.seed)

    model = build_model(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
    data_iterator = batches(args)
    forward_backward = get_forward_backward_func()

    model.train()
    for iteration in range(1, args.train_iters + 1):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        losses = forward_backward(
            forward_step_func=forward_step, data_iterator=data_iterator, model=model,
            num_microbatches=args.num_microbatches, seq_length=args.seq_length,
            micro_batch_size=args.micro_batch_size, forward_only=False)
        optimizer.step()
        if iteration % 50 == 0 and torch.distributed.get_rank() == 0:
            mean = sum(x["lm loss"].item() for x in losses) / len(losses)
            log.info("iteration %d lm loss %.4f", iteration, mean)
        if iteration % args.save_interval == 0:
            save(args, model, iteration)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
