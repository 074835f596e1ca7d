"""What watching costs: in one real training under `paramedic run`, blocks of steps with the agent at work and with it
paused follow each other; the ratio of neighbours, with its interval. The same training bare must give the same loss.

python bench/watching.py                       four gloo ranks on the processor
python bench/watching.py --device cuda         one NCCL rank on the GPU
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).parent / "watching" / "job.py"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--ranks", type=int, default=0, help="default: 4, on a GPU 1")
    parser.add_argument("--blocks", type=int, default=80)
    parser.add_argument("--steps", type=int, default=25, help="in a block")
    args = parser.parse_args()
    ranks = args.ranks or (1 if args.device == "cuda" else 4)
    watched, bare = (run(yes, args.device, ranks, args.blocks, args.steps) for yes in (True, False))
    times = watched["times_ms"]
    # A block is compared with the mean of its two neighbours: a drift of the machine falls out.
    logs = [
        math.log(times[at] / ((times[at - 1] + times[at + 1]) / 2)) * (1 if at % 2 == 0 else -1)
        for at in range(1, len(times) - 1)
    ]
    mean, half = statistics.mean(logs), 2.0 * statistics.stdev(logs) / math.sqrt(len(logs) / 2)
    same = watched["loss"] == bare["loss"]
    print(
        f"{args.device}, {ranks} ranks, {len(times)} blocks of {args.steps} steps of {statistics.median(times):.2f} ms: "
        f"watching costs {math.expm1(mean):+.2%} (95 %: {math.expm1(mean - half):+.2%} to {math.expm1(mean + half):+.2%}); "
        f"loss {'the same bare, bit for bit' if same else 'DIFFERS from bare'}; switched off: {watched['off'] or 'nothing'}; "
        f"{platform.machine()}, {os.cpu_count()} cores"
    )
    return 0 if same else 1


def run(watched: bool, device: str, ranks: int, blocks: int, steps: int) -> dict[str, Any]:
    job = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), str(PROGRAM)]
    env = {**os.environ, "DEVICE": device, "BLOCKS": str(blocks), "STEPS": str(steps), "OMP_NUM_THREADS": "1"}
    env["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    with tempfile.TemporaryDirectory() as folder:
        start = [sys.executable, "-m", "paramedic", "run", "--quiet", "--dir", f"{folder}/d", "--"] if watched else []
        done = subprocess.run([*start, *job], capture_output=True, text=True, check=False, env=env, timeout=500)
    line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT ")), "")
    if done.returncode or not line:
        raise SystemExit(f"the job failed with {done.returncode}:\n{done.stderr[-2000:]}")
    return dict(json.loads(line.partition(" ")[2]))


if __name__ == "__main__":
    sys.exit(main())
