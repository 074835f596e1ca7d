import os

os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29872"}

import deepspeed
import torch
from common import answer
from deepspeed.launcher.runner import fetch_hostfile
from deepspeed.runtime.config import DeepSpeedConfig


def start(name, value):
    if "hostfile" in name:
        hosts = fetch_hostfile(value)
        if not hosts:
            raise RuntimeError("no host was read")
        return
    config = DeepSpeedConfig(value)
    if config.optimizer_name or config.scheduler_name:
        if not torch.distributed.is_initialized():
            deepspeed.init_distributed("gloo")
        given = dict(config._param_dict)
        if "optimizer" in given:
            given["optimizer"] = {**given["optimizer"], "params": {"lr": 0.1, **given["optimizer"].get("params", {})}}
            if given["optimizer"]["type"].lower() in ("adam", "adamw"):
                given["optimizer"]["params"]["torch_adam"] = True
        else:
            given["optimizer"] = {"type": "Adam", "params": {"lr": 0.1, "torch_adam": True}}
        model = torch.nn.Linear(4, 4)
        deepspeed.initialize(model=model, model_parameters=model.parameters(), config=given)


answer(start)
