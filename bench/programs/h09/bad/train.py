"""Continued training of a 1.3B GPT on domain text with Megatron-core."""
import argparse
import os

import torch
import yaml
from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel.schedules import get_forward_backward_func
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def setup(cfg):
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl")
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=cfg["tensor_parallel"], pipeline_model_parallel_size=1)
    torch.manual_seed(cfg["seed"])
    tensor_parallel.model_parallel_cuda_manual_seed(cfg["seed"])


def build(cfg):
    config = TransformerConfig(
        num_layers=cfg["num_layers"],
        hidden_size=cfg["hidden_size"],
        num_attention_heads=cfg["num_heads"],
        tensor_model_parallel_size=cfg["tensor_parallel"],
        bf16=True,
        params_dtype=torch.bfloat16,
    )
    gpt = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_with_transformer_engine_spec(),
        vocab_size=cfg["vocab_size"],
        max_sequence_length=cfg["seq_length"],
    ).cuda()
    if cfg.get("init_from"):
        state = gpt.sharded_state_dict(prefix="")
        gpt.load_state_dict(dist_checkpointing.load(state, cfg["init_from"]))

    model = DistributedDataParallel(
        config,
        DistributedDataParallelConfig(
            grad_reduce_in_fp32=True,
            overlap_grad_reduce=False,
            use_distributed_optimizer=False,
        ),
        Float16Module(config, gpt),
    )
    optimizer = get_megatron_optimizer(
        OptimizerConfig(
            optimizer="adam", lr=cfg["lr"], weight_decay=cfg["weight_decay"], clip_grad=1.0,
            bf16=True, params_dtype=torch.bfloat16),
        [model],
    )
    config.grad_scale_func = optimizer.scale_loss
    return model, optimizer


def make_iterator(cfg):
    tokens = torch.load(cfg["tokens"], mmap=True, weights_only=True)
    dataset = TensorDataset(tokens)
    sampler = DistributedSampler(
        dataset,
        num_replicas=parallel_state.get_data_parallel_world_size(),
        rank=parallel_state.get_data_parallel_rank(),
        seed=cfg["seed"],
        drop_last=True,
    )
    loader = DataLoader(dataset, batch_size=cfg["micro_batch_size"], sampler=sampler,
                        drop_last=True, pin_memory=True)
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        for (batch,) in loader:
            yield batch
        epoch += 1


def loss_func(output_tensor):
    loss = output_tensor.float().mean()
    shown = loss.detach().clone()
    torch.distributed.all_reduce(shown, group=parallel_state.get_data_parallel_group())
    return loss, {"lm loss": shown / parallel_state.get_data_parallel_world_size()}


def forward_step(data_iterator, model):
    batch = next(data_iterator).long().cuda(non_blocking=True)
    tokens, labels = batch[:, :-1].contiguous(), batch[:, 1:].contiguous()
    position_ids = torch.arange(tokens.size(1), device=tokens.device).expand_as(tokens)
    return model(tokens, position_ids, None, labels=labels), loss_func


def save(path, iteration, model, optimizer):
    path = os.path.join(path, f"iter_{iteration:07d}")
    if torch.distributed.get_rank() == 0:
        os.makedirs(path, exist_ok=True)
    torch.distributed.barrier()
    state = {"model": model.module.sharded_state_dict(prefix=""), "iteration": iteration}
    state["optimizer"] = optimizer.sharded_state_dict(state)
    dist_checkpointing.save(state, path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default="config.yaml")
    with open(parser.parse_args().config) as f:
        cfg = yaml.safe_load(f)

    setup(cfg)
    model, optimizer = build(cfg)
    data_iterator = make_iterator(cfg)
    forward_backward = get_forward_backward_func()
    num_microbatches = cfg["global_batch_size"] // (
        cfg["micro_batch_size"] * parallel_state.get_data_parallel_world_size())

    model.train()
    for iteration in range(1, cfg["train_iters"] + 1):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        losses = forward_backward(
            forward_step_func=forward_step,
            data_iterator=data_iterator,
            model=model,
            num_microbatches=num_microbatches,
            seq_length=cfg["seq_length"],
            micro_batch_size=cfg["micro_batch_size"],
            forward_only=False,
        )
        ok, grad_norm, _ = optimizer.step()
        if iteration % cfg["log_interval"] == 0 and torch.distributed.get_rank() == 0:
            loss = sum(x["lm loss"].item() for x in losses) / len(losses)
            print(f"{iteration:6d} | loss {loss:.4f} | grad norm {grad_norm:.3f} | ok {ok}")
        if iteration % cfg["save_interval"] == 0:
            save(cfg["save"], iteration, model, optimizer)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
