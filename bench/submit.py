"""What `paramedic submit` costs on this machine against bare torchrun: seconds until the ranks run, and a step's time.

    python bench/submit.py [--rounds 5]

Paired and interleaved; medians of the differences with a 95 % interval by bootstrap. On a machine with as many ranks as cores a step's
wall time says more about the machine than about us, so its processor time is measured, too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROGRAM = """
import json, os, sys, time
began = time.time()
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(3))))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
x = torch.randn(128, 1024)
times = []
for step in range(250):
    if step == 50:
        used = time.process_time()
    start = time.perf_counter()
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    times.append(time.perf_counter() - start)
if dist.get_rank() == 0:
    with open(os.environ["MEASURED"], "w") as file:
        json.dump({"began": began, "steps": times[50:], "processor": (time.process_time() - used) / 200}, file)
dist.destroy_process_group()
"""


def measured(command: list[str], folder: Path, name: str) -> tuple[float, float, float]:
    """Seconds until rank 0's first line, the median of its steps in milliseconds, and their processor time."""
    target = folder / f"{name}.json"
    jobs = str(folder / "jobs")
    environment = {
        **os.environ, "MEASURED": str(target), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src"), "PARAMEDIC_JOBS": jobs,
    }  # fmt: skip
    start = time.time()
    subprocess.run(
        command, check=True, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    said = json.loads(target.read_text())
    return said["began"] - start, statistics.median(said["steps"]) * 1e3, said["processor"] * 1e3


def interval(differences: list[float]) -> tuple[float, float]:
    chance = random.Random(7)
    found = sorted(statistics.median(chance.choices(differences, k=len(differences))) for _ in range(2000))
    return found[50], found[1949]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "train.py").write_text(PROGRAM)
        bare = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
        ours = [sys.executable, "-m", "paramedic", "submit", "--wait", "--ranks", "2", "--", sys.executable, "train.py"]
        starts, steps, used = [], [], []
        for number in range(rounds):
            order = [("bare", bare), ("ours", ours)]
            found = {name: measured(command, folder, f"{name}-{number}") for name, command in order[:: (-1) ** number]}
            starts.append(found["ours"][0] - found["bare"][0])
            steps.append((found["ours"][1] / found["bare"][1] - 1) * 100)
            used.append((found["ours"][2] / found["bare"][2] - 1) * 100)
            print(
                f"round {number + 1}: ranks after {found['bare'][0]:.2f} s bare, {found['ours'][0]:.2f} s submitted; "
                f"step {found['bare'][1]:.2f} ms, {found['ours'][1]:.2f} ms; "
                f"processor {found['bare'][2]:.2f} ms, {found['ours'][2]:.2f} ms",
                flush=True,
            )
    for what, values, unit in (("start-up", starts, "s"), ("step, wall", steps, "%"), ("step, processor", used, "%")):
        low, high = interval(values)
        print(f"{what}: {statistics.median(values):+.2f} {unit} (95 %: {low:+.2f} to {high:+.2f})")


if __name__ == "__main__":
    main()
