import logging
import os
import time
from pathlib import Path

import torch

FOLDER = Path("out/cache")
log = logging.getLogger("cache")


class Lock:
    def __init__(self, path):
        self.path = path

    def __enter__(self):
        waited = 0
        while True:
            try:
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL))
                return self
            except FileExistsError:
                if waited % 5 == 0:
                    log.info("waiting for %s", self.path)
                waited += 1
                time.sleep(1)

    def __exit__(self, *_):
        self.path.unlink()


def prepare():
    FOLDER.mkdir(parents=True, exist_ok=True)
    with Lock(FOLDER / "prepare.lock"):
        if not (FOLDER / "rows.pt").exists():
            torch.save(torch.randn(960, 15, generator=torch.Generator().manual_seed(0)), FOLDER / "rows.pt")


def rows():
    return torch.load(FOLDER / "rows.pt")
