import os
import sys

LIB = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib")
sys.path.insert(0, LIB)

import ray
import ray.train.torch
import torch
from losses_acme import huber
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def worker(config):
    model = ray.train.torch.prepare_model(torch.nn.Linear(6, 1))
    opt = torch.optim.Adam(model.parameters(), lr=config["lr"])
    for step in range(config["steps"]):
        x = torch.randn(32, 6)
        loss = huber(model(x), x.sum(1, keepdim=True))
        opt.zero_grad()
        loss.backward()
        opt.step()
    ray.train.report({"loss": loss.item()})


if __name__ == "__main__":
    ray.init(num_cpus=2, _node_ip_address="127.0.0.1", include_dashboard=False, object_store_memory=100 << 20)
    trainer = TorchTrainer(
        worker,
        train_loop_config={"lr": 1e-2, "steps": 20},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(storage_path=os.path.abspath("out"), failure_config=FailureConfig(max_failures=0, controller_failure_limit=0)),
    )
    print("fitted:", trainer.fit().metrics)
    ray.shutdown()
