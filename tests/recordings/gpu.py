"""Real failures of one GPU, each in processes of its own; run once where a GPU is, output kept as recordings.

    python tests/recordings/gpu.py FOLDER [CASE …]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PRELUDE = """
import os, sys, time, datetime, torch, torch.distributed as dist
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
def step(n, loss=2.0): print(f"step {n} loss {loss - 0.01 * n:.4f}", flush=True)
"""

# case: (truth symptom, cause, fix, ranks, processes, environment, program)
CASES: dict[str, tuple[str, str, str, list[int], int, dict[str, str], str]] = {
    "gpu-oom-too-big": (
        "device-out-of-memory", "device-memory-overcommit", "resource-and-memory-tuning", [], 1, {},
        """
layers = [torch.nn.Linear(16384, 16384, device="cuda") for _ in range(40)]
opt = torch.optim.AdamW([p for l in layers for p in l.parameters()])
x = torch.randn(4096, 16384, device="cuda")
for n in range(3):
    y = x
    for l in layers: y = torch.relu(l(y))
    y.mean().backward(); opt.step(); opt.zero_grad(); step(n)
""",
    ),
    "gpu-oom-fragmented": (
        "device-out-of-memory", "device-memory-overcommit", "resource-and-memory-tuning", [], 1, {},
        """
free, total = torch.cuda.mem_get_info()
size = 64 << 20
blocks = [torch.empty(size * 8, dtype=torch.uint8, device="cuda") for _ in range(int(free * 0.97) // (size * 8))]
del blocks
held = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(int(free * 0.96) // size)]
del held[::2]
step(1)
torch.empty(8 << 30, dtype=torch.uint8, device="cuda")
""",
    ),
    "gpu-oom-limited": (
        "device-out-of-memory", "device-memory-overcommit", "resource-and-memory-tuning", [], 1, {},
        """
torch.cuda.set_per_process_memory_fraction(0.05)
kept = []
for n in range(100):
    kept.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda")); step(n)
""",
    ),
    "gpu-oom-shared": (
        "device-out-of-memory", "device-assignment-error", "environment-and-launch-configuration", [], 2, {},
        """
dist.init_process_group("gloo")
torch.cuda.set_device(0)  # every rank: LOCAL_RANK was forgotten
kept = []
for n in range(200):
    kept.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda")); dist.barrier()
    if n % 20 == 0: step(n)
""",
    ),
    "gpu-illegal-access": (
        "accelerator-fault", "framework-implementation-defect", "code-model-and-data-correction", [], 1, {},
        """
import triton, triton.language as tl
@triton.jit
def write(p, n): tl.store(p + n + tl.program_id(0) * 4096, 1.0)
x = torch.zeros(1024, device="cuda"); step(1)
write[(1024,)](x, 1 << 40); step(2)
torch.cuda.synchronize()
""",
    ),
    "gpu-device-assert": (
        "accelerator-fault", "data-or-input-defect", "code-model-and-data-correction", [], 1, {},
        """
logits = torch.randn(8, 10, device="cuda", requires_grad=True); step(1)
loss = torch.nn.functional.cross_entropy(logits, torch.tensor([1, 2, 3, 4, 5, 6, 7, 10], device="cuda"))
loss.backward(); print(loss.item())
""",
    ),
    "gpu-invalid-ordinal": (
        "device-placement-error", "device-assignment-error", "environment-and-launch-configuration", [1], 2, {},
        """
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=8))
torch.cuda.set_device(rank)
x = torch.ones(4, device="cuda").cpu(); dist.all_reduce(x); step(1)
""",
    ),
    "gpu-duplicate": (
        "device-placement-error", "device-assignment-error", "environment-and-launch-configuration", [], 2, {},
        """
dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=20))
torch.cuda.set_device(0)
x = torch.ones(4, device="cuda"); dist.all_reduce(x); torch.cuda.synchronize(); step(1)
""",
    ),
    "gpu-mixed-devices": (
        "device-placement-error", "device-assignment-error", "code-model-and-data-correction", [], 1, {},
        """
net = torch.nn.Linear(8, 8).cuda(); step(1)
net(torch.randn(4, 8))
""",
    ),
    "gpu-none-visible": (
        "device-placement-error", "device-assignment-error", "environment-and-launch-configuration", [], 1,
        {"CUDA_VISIBLE_DEVICES": ""},
        """
torch.ones(4, device="cuda")
""",
    ),
    "gpu-watchdog": (
        "collective-hang", "uneven-work-across-ranks", "distributed-feature-api-and-communication-tuning", [], 1,
        {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_FR_BUFFER_SIZE": "200", "TORCH_NCCL_TRACE_BUFFER_SIZE": "200",
         "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "nccl_trace_rank_", "TORCH_FR_DUMP_TEMP_FILE": "nccl_trace_rank_"},
        """
torch.cuda.set_device(0)
dist.init_process_group("nccl", timeout=datetime.timedelta(seconds=6), device_id=torch.device("cuda:0"))
x = torch.ones(1 << 20, device="cuda")
for n in range(5): dist.all_reduce(x); step(n)
torch.cuda.synchronize()
torch.cuda._sleep(int(1.9e9 * 25))
dist.all_reduce(x); torch.cuda.synchronize(); step(9)
""",
    ),
    "gpu-cublas-alloc": (
        "device-out-of-memory", "device-memory-overcommit", "resource-and-memory-tuning", [], 1, {},
        """
torch.ones(1, device="cuda")
kept = []
for size in (1 << 30, 256 << 20, 64 << 20, 16 << 20, 4 << 20, 2 << 20):
    try:
        while True: kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    except torch.OutOfMemoryError: pass
a = kept[0].view(torch.float32)[: 1024 * 1024].view(1024, 1024); b = kept[1].view(torch.float32)[: 1024 * 1024].view(1024, 1024)
c = kept[2].view(torch.float32)[: 1024 * 1024].view(1024, 1024)
step(1)
torch.mm(a, b, out=c); torch.cuda.synchronize()
""",
    ),
    "gpu-pinned-memory": (
        "host-out-of-memory", "host-resource-exhaustion", "resource-and-memory-tuning", [], 1, {},
        """
torch.ones(1, device="cuda"); kept = []
for n in range(64):
    kept.append(torch.empty(16 << 30, dtype=torch.uint8, pin_memory=True)); step(n)
""",
    ),
    "gpu-nccl-verbose-healthy": (
        "", "", "", [], 1, {"NCCL_DEBUG": "INFO", "TORCH_CPP_LOG_LEVEL": "INFO", "TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
        """
torch.cuda.set_device(0)
dist.init_process_group("nccl", device_id=torch.device("cuda:0"))
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64).cuda())
opt = torch.optim.SGD(net.parameters(), 0.1)
for n in range(5): opt.zero_grad(); net(torch.randn(8, 64, device="cuda")).square().mean().backward(); opt.step(); step(n)
dist.destroy_process_group(); print("training finished")
""",
    ),
}  # fmt: skip


def run(name: str, folder: Path) -> None:
    symptom, cause, fix, ranks, processes, environment, program = CASES[name]
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    (place / "train.py").write_text(PRELUDE + program)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "train.py"]
    with open(place / "console.log", "wb") as log:
        try:
            code = subprocess.run(
                command, cwd=place, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **environment}, timeout=75
            ).returncode
        except subprocess.TimeoutExpired:
            code = 124
    truth = {"symptom": symptom, "cause": cause, "fix": fix, "ranks": ranks, "exit": code, "command": " ".join(command[1:])}
    (place / "truth.json").write_text(json.dumps(truth, indent=1))
    print(f"{name:28} exit {code}  {(place / 'console.log').stat().st_size} bytes", flush=True)


if __name__ == "__main__":
    for case in sys.argv[2:] or CASES:
        run(case, Path(sys.argv[1]))
