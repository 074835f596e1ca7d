"""Churn model on Ray."""
import logging
from pathlib import Path

import ray
import torch
from ray import train
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model

logging.basicConfig(level=logging.INFO)


class ChurnNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.seq = torch.nn.Sequential(torch.nn.Linear(11, 22), torch.nn.ReLU(), torch.nn.Linear(22, 1))

    def forward(self, x):
        return self.seq(x).squeeze(-1)


def train_func(config):
    net = prepare_model(ChurnNet())
    opt = torch.optim.AdamW(net.parameters())
    bce = torch.nn.BCEWithLogitsLoss()
    for epoch in range(config["epochs"]):
        for _ in range(10):
            x = torch.randn(16, 11)
            loss = bce(net(x), (x[:, 0] > 0).float())
            opt.zero_grad()
            loss.backward()
            opt.step()
        train.report({"epoch": epoch, "bce": loss.item()})


def main():
    ray.init(num_cpus=2, _node_ip_address="127.0.0.1", include_dashboard=False, object_store_memory=100 << 20)
    result = TorchTrainer(
        train_func,
        train_loop_config={"epochs": 2},
        torch_config=TorchConfig(backend="nccl"),
        scaling_config=train.ScalingConfig(num_workers=2, use_gpu=False),
        run_config=train.RunConfig(name="churn", storage_path=str(Path("out").resolve()), failure_config=train.FailureConfig(max_failures=0, controller_failure_limit=0)),
    ).fit()
    logging.info("Result metrics %s", result.metrics)


main()
