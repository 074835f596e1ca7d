import os

os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29871"}

import torch.distributed as dist
from common import answer

dist.init_process_group("gloo")

from colossalai.booster import plugin as plugins


def start(name, value):
    getattr(plugins, value.pop("class"))(**value)


answer(start)
