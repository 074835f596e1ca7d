"""Pretrain a tiny GPT with Megatron-Core. Runs on CPU with gloo, too, for smoke tests."""

import argparse
import logging
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.num_microbatches_calculator import get_num_microbatches, init_num_microbatches_calculator
from megatron.core.tensor_parallel.random import initialize_rng_tracker
from megatron.core.transformer.transformer_config import TransformerConfig

log = logging.getLogger("pretrain")


def arguments(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--tensor-model-parallel-size", type=int, default=1)
    parser.add_argument("--pipeline-model-parallel-size", type=int, default=1)
    parser.add_argument("--context-parallel-size", type=int, default=1)
    parser.add_argument("--sequence-parallel", action="store_true")
    parser.add_argument("--num-layers", type=int, default=2)
    parser.add_argument("--hidden-size", type=int, default=32)
    parser.add_argument("--num-attention-heads", type=int, default=4)
    parser.add_argument("--vocab-size", type=int, default=128)
    parser.add_argument("--seq-length", type=int, default=16)
    parser.add_argument("--micro-batch-size", type=int, default=2)
    parser.add_argument("--global-batch-size", type=int, default=8)
    parser.add_argument("--train-iters", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--overlap-grad-reduce", action="store_true")
    parser.add_argument("--distributed-timeout-minutes", type=float, default=2)
    parser.add_argument("--save")
    parser.add_argument("--load")
    return parser.parse_args(argv)


def initialize(args):
    logging.basicConfig(level=logging.INFO, format=f"[rank {os.environ['RANK']}] %(message)s")
    if not torch.cuda.is_available():  # Megatron asks for the current GPU wherever it allocates
        torch.cuda.current_device = lambda: torch.device("cpu")
        torch.cuda.synchronize = lambda device=None: None
    dist.init_process_group("gloo", timeout=timedelta(minutes=args.distributed_timeout_minutes))
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=args.tensor_model_parallel_size,
        pipeline_model_parallel_size=args.pipeline_model_parallel_size,
        context_parallel_size=args.context_parallel_size,
        distributed_timeout_minutes=args.distributed_timeout_minutes,
    )
    initialize_rng_tracker(inference_rng_tracker=True)
    torch.manual_seed(1234)
    replicas = parallel_state.get_data_parallel_world_size()
    init_num_microbatches_calculator(dist.get_rank(), None, args.global_batch_size, args.micro_batch_size, replicas)


def transformer_config(args):
    return TransformerConfig(
        num_layers=args.num_layers,
        hidden_size=args.hidden_size,
        num_attention_heads=args.num_attention_heads,
        tensor_model_parallel_size=args.tensor_model_parallel_size,
        pipeline_model_parallel_size=args.pipeline_model_parallel_size,
        context_parallel_size=args.context_parallel_size,
        sequence_parallel=args.sequence_parallel,
        pipeline_dtype=torch.float32,
        use_cpu_initialization=not torch.cuda.is_available(),
        gradient_accumulation_fusion=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )


def build_model(args, kind=GPTModel):
    config = transformer_config(args)
    model = kind(
        config=config,
        transformer_layer_spec=get_gpt_layer_local_spec(),
        vocab_size=args.vocab_size,
        max_sequence_length=args.seq_length,
    )
    settings = DistributedDataParallelConfig(
        check_for_nan_in_grad=True, overlap_grad_reduce=args.overlap_grad_reduce, bucket_size=10_000
    )
    return DistributedDataParallel(config, settings, model)


def batches(args, replica):
    """Endless micro-batches of counting sequences: tokens, positions, attention mask, labels."""
    generator = torch.Generator().manual_seed(1000 + replica)
    position = torch.arange(args.seq_length).expand(args.micro_batch_size, -1)
    mask = torch.tril(torch.ones(1, 1, args.seq_length, args.seq_length)) < 0.5
    while True:
        first = torch.randint(args.vocab_size // 2, (args.micro_batch_size, 1), generator=generator)
        text = (first + torch.arange(args.seq_length + 1)) % args.vocab_size
        yield text[:, :-1], position, mask, text[:, 1:]


def train_step(model, optimizer, data):
    model.zero_grad_buffer()
    total, steps = 0.0, get_num_microbatches()
    for _ in range(steps):
        tokens, position, mask, labels = next(data)
        loss = model(tokens, position, mask, labels=labels).mean() / steps
        loss.backward()
        total += loss.item()
    finalize_model_grads([model])
    update(model, optimizer)
    return total


def update(model, optimizer):
    for parameter in model.parameters():
        parameter.grad = parameter.main_grad
    optimizer.step()


def report(iteration, args, loss):
    log.info(
        "iteration %d/%d | consumed samples: %d | lm loss: %.6f",
        iteration,
        args.train_iters,
        iteration * args.global_batch_size,
        loss,
    )


def finish():
    dist.barrier()
    if dist.get_rank() == 0:
        log.info("training finished")
    dist.destroy_process_group()


def main():
    args = arguments()
    initialize(args)
    model = build_model(args)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    data = batches(args, parallel_state.get_data_parallel_rank())
    for iteration in range(1, args.train_iters + 1):
        report(iteration, args, train_step(model, optimizer, data))
    finish()


if __name__ == "__main__":
    main()
