"""Llama-style 1B model, Colossal-AI HybridParallelPlugin (tensor parallel 2, ZeRO-1 over the rest)."""
import argparse

import colossalai
import torch
import torch.distributed as dist
import yaml
from colossalai.booster import Booster
from colossalai.booster.plugin import HybridParallelPlugin
from colossalai.cluster import DistCoordinator
from colossalai.lazy import LazyInitContext
from colossalai.nn.lr_scheduler import CosineAnnealingWarmupLR
from colossalai.nn.optimizer import HybridAdam
from colossalai.utils import get_current_device
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM


class InstructionWindows(Dataset):
    def __init__(self, path):
        data = torch.load(path, mmap=True, weights_only=True)
        self.input_ids, self.labels = data["input_ids"], data["labels"]

    def __len__(self):
        return self.input_ids.size(0)

    def __getitem__(self, i):
        ids = self.input_ids[i].long()
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "labels": self.labels[i].long(),
        }


def build_plugin(cfg):
    return HybridParallelPlugin(
        tp_size=cfg["tp_size"],
        pp_size=1,
        zero_stage=1,
        precision="bf16",
        max_norm=cfg["grad_clip"],
    )


def reduce_loss(loss, plugin):
    value = loss.detach().float().clone()
    dist.all_reduce(value, group=plugin.dp_group)
    return (value / plugin.dp_size).item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default="config.yaml")
    with open(parser.parse_args().config) as f:
        cfg = yaml.safe_load(f)

    colossalai.launch_from_torch(seed=cfg["seed"])
    coordinator = DistCoordinator()
    plugin = build_plugin(cfg)
    booster = Booster(plugin=plugin)

    dataset = InstructionWindows(cfg["data"])
    loader = plugin.prepare_dataloader(dataset, batch_size=cfg["batch_size"], shuffle=True,
                                       drop_last=True, num_workers=2, pin_memory=True,
                                       seed=cfg["seed"])

    with LazyInitContext(default_device=get_current_device()):
        model = LlamaForCausalLM(LlamaConfig(**cfg["model"]))
    model.gradient_checkpointing_enable()

    optimizer = HybridAdam(model.parameters(), lr=cfg["lr"], betas=(0.9, 0.95),
                           weight_decay=cfg["weight_decay"])
    total_steps = cfg["epochs"] * len(loader)
    lr_scheduler = CosineAnnealingWarmupLR(
        optimizer,
        total_steps=total_steps,
        warmup_steps=int(cfg["warmup_ratio"] * total_steps),
        eta_min=0.1 * cfg["lr"],
    )
    coordinator.print_on_master(f"{len(dataset)} windows, {total_steps} optimizer steps")
    model, optimizer, _, loader, lr_scheduler = booster.boost(
        model, optimizer, dataloader=loader, lr_scheduler=lr_scheduler)

    step = 0
    for epoch in range(cfg["epochs"]):
        model.train()
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            batch = {k: v.cuda(non_blocking=True) for k, v in batch.items()}
            loss = model(**batch).loss
            booster.backward(loss, optimizer)
            optimizer.step()
            optimizer.zero_grad()
            lr_scheduler.step()
            step += 1
            if step % cfg["log_every"] == 0:
                mean = reduce_loss(loss, plugin)
                coordinator.print_on_master(
                    f"epoch {epoch} step {step} loss {mean:.4f} "
                    f"lr {lr_scheduler.get_last_lr()[0]:.3e}")
        path = f"{cfg['save_dir']}/epoch_{epoch}"
        booster.save_model(model, f"{path}/model", shard=True)
        booster.save_optimizer(optimizer, f"{path}/optimizer", shard=True)
        booster.save_lr_scheduler(lr_scheduler, f"{path}/lr_scheduler")
        coordinator.block_all()


if __name__ == "__main__":
    main()
