"""Measures the cases on a real GPU and writes the truth as JSON. Runs where torch and transformers are: Python 3.12.

  python3 bench/memory/measure.py --out truth.json [--jobs 3] [--seconds 540] [--events events]

Each case runs in a process of its own: three steps, the peaks reset after the second. `--needs` then adds `need_bytes`, the least
memory with which the whole job runs: it is started over with an empty allocator and ever other limits, by bisection. What is
there already is kept, so a run that was cut off goes on. The version of `transformers` stands in the result; the estimate
must use the same, or one that runs the model as that one did: `later` in `truth.json` holds the cases that a newer one runs otherwise
(`cases.shown`). `--events` also keeps every allocation of one more step, to find where an estimate parts from it.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import gzip
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from cases import CASES, OUT_OF_MEMORY, Case

STEPS = 3
TRIALS = 6
FRACTIONS = (1.05, 0.97, 0.9)
"""Of the least memory with which it ran: with how much the step is tried again, in a fresh process."""
MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=os.path.join(os.environ.get("OUT", "."), "truth.json"))
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--events")
    parser.add_argument("--needs", action="store_true")
    parser.add_argument("--one")
    parser.add_argument("--limit", type=int, default=0)
    args = parser.parse_args()
    if args.one:
        case = next(case for case in CASES if case.id == args.one)
        print(json.dumps(least(case, args.limit) if args.needs else one(case, args.limit, args.events)))
        return
    out, end = Path(args.out), time.monotonic() + args.seconds
    found = json.loads(out.read_text()) if out.exists() else {"cases": {}, "limited": []}
    if args.events:
        Path(args.events).mkdir(parents=True, exist_ok=True)

    def measure(id: str) -> None:
        if time.monotonic() < end:
            found["cases"][id] = started(id, 0, args.events)
            out.write_text(json.dumps(found, indent=1))

    def squeeze(task: tuple[str, float]) -> None:
        id, fraction = task
        limit = int(found["cases"][id]["need_bytes"] * fraction)
        if time.monotonic() < end:
            result = started(id, limit)
            ran = "peak_allocated_bytes" in result
            found["limited"].append({"id": id, "limit_bytes": limit, "ran": ran, "said": result.get("error")})
            out.write_text(json.dumps(found, indent=1))

    def need(id: str) -> None:
        if time.monotonic() < end:
            found["cases"][id].update(started(id, found["cases"][id]["peak_reserved_bytes"], needs=True))
            out.write_text(json.dumps(found, indent=1))

    _each(measure, [case.id for case in CASES if case.id not in found["cases"]], args.jobs)
    _each(measure, [id for id, result in found["cases"].items() if "out of memory" in result.get("error", "")], 1)
    alone = [case.id for case in CASES if case.flags.get("world_size", 1) == 1]
    if args.needs:
        _each(need, [id for id in alone if "need_bytes" not in found["cases"].get(id, {"need_bytes": 0})], args.jobs)
    done = {row["id"] for row in found["limited"]}
    again = [id for id in OUT_OF_MEMORY if id not in done and "need_bytes" in found["cases"].get(id, {})]
    _each(squeeze, [(id, fraction) for id in again for fraction in FRACTIONS], args.jobs)


def _each(do: Callable[[Any], None], tasks: list[Any], jobs: int) -> None:
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(do, tasks))


def started(id: str, limit: int, events: str | None = None, needs: bool = False) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", id, "--limit", str(limit), *(["--events", events] if events else [])]
    command += ["--needs"] if needs else []
    case = next(case for case in CASES if case.id == id)
    env = dict(os.environ)
    if case.flags.get("alloc_conf"):
        env["PYTORCH_ALLOC_CONF"] = case.flags["alloc_conf"]
    ranks = case.flags.get("world_size", 1)
    if ranks > 1:
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        command = [sys.executable, *torchrun, *command[1:]]
    pipe = subprocess.PIPE
    child = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env, start_new_session=True)
    try:
        printed, errors = child.communicate(timeout=150)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)  # torchrun's ranks, too: they hold memory
        child.communicate()
        return {"error": "no result after 150 s"}
    lines = [line for line in printed.splitlines() if line.startswith("{")]
    if not lines:
        said = [line for line in errors.splitlines() if "Error" in line]
        result = {"error": (said or [errors[-300:]])[-1][:400]}
        print(errors[-3000:], flush=True)
        if events and "SystemError" in result["error"]:  # keeping events and checkpointed dropout do not go together
            return started(id, limit)
    else:
        result = json.loads(lines[0])
    print(id, limit or "", result, flush=True)
    return result


class Trainer:
    """One case, ready to step."""

    def __init__(self, case: Case, torch: Any, made: tuple[Any, Any, Any]) -> None:
        self.torch, self.flags = torch, case.flags
        model, config, dtype = made
        self.model = model.to("cuda")
        self.batch = batch_of(model, config, self.flags, dtype, torch)
        self.parameters = sum(p.numel() for p in self.model.parameters())
        if self.flags.get("strategy") == "ddp":
            view = self.flags.get("bucket_view", False)
            parallel = torch.nn.parallel.DistributedDataParallel
            self.model = parallel(self.model, device_ids=[0], gradient_as_bucket_view=view)
        elif self.flags.get("strategy") == "fsdp2":
            shard(self.model, self.flags["world_size"], torch)
        self.optimizer = optimizer_of(self.flags["optimizer"], self.model, torch)

    def step(self) -> None:
        for _ in range(self.flags.get("accumulation", 1)):
            with autocast(self.flags, self.torch):
                loss = self.model(**self.batch).loss
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def one(case: Case, limit: int, events: str | None) -> dict[str, Any]:
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    cuda, ranks = torch.cuda, case.flags.get("world_size", 1)
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
    if limit:
        cuda.set_per_process_memory_fraction(limit / cuda.get_device_properties(0).total_memory)
    torch.zeros(1, device="cuda")
    context = device_bytes() - cuda.memory_reserved()
    trainer = Trainer(case, torch, built(case, torch, transformers))
    first: dict[str, int] = {}
    for step in range(STEPS):
        if step == STEPS - 1:
            cuda.reset_peak_memory_stats()
        trainer.step()
        if step == 0:
            first = {
                "first_allocated_bytes": cuda.max_memory_allocated(),
                "first_reserved_bytes": cuda.max_memory_reserved(),
            }
    cuda.synchronize()
    found = first | {
        "peak_allocated_bytes": cuda.max_memory_allocated(),
        "peak_reserved_bytes": cuda.max_memory_reserved(),
        "outside_bytes": device_bytes() - cuda.memory_reserved(),
        "context_bytes": context,
        "parameters": trainer.parameters,
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "cudnn": torch.backends.cudnn.version(),
        },
        "gpu": cuda.get_device_name(),
    }
    if limit:
        return found
    if events:
        keep_events(trainer, torch, Path(events, f"{case.id}.json.gz"))
    return found


def least(case: Case, reserved: int) -> dict[str, int]:
    """The least memory with which the job runs from its start, as near as `TRIALS` halvings come."""
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    torch.set_num_threads(2)
    with torch.device("cuda"):
        model, config, dtype = built(case, torch, transformers)
    model = model.to("cpu")
    empty(torch)
    low, high = int(reserved * 0.7), int(reserved * 1.02)
    for _ in range(TRIALS):
        middle = (low + high) // 2
        low, high = (low, middle) if runs(case, (model, config, dtype), middle, torch) else (middle, high)
    return {"need_bytes": high}


def runs(case: Case, made: tuple[Any, Any, Any], limit: int, torch: Any) -> bool:
    torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
    try:
        train(case, made, torch)
        ran = True
    except (RuntimeError, SystemError):  # checkpointed regions end with the latter
        ran = False
    empty(torch)
    return ran


def train(case: Case, made: tuple[Any, Any, Any], torch: Any) -> None:
    model, config, dtype = made
    trainer = Trainer(case, torch, (copy.deepcopy(model), config, dtype))
    for _ in range(STEPS):
        trainer.step()
    torch.cuda.synchronize()


def empty(torch: Any) -> None:
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()


def device_bytes() -> int:
    """What this process holds on the card, as the driver counts it."""
    command = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    for line in subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines():
        pid, _, used = line.partition(",")
        if pid.strip() == str(os.getpid()) and used.strip().isdigit():
            return int(used) * MIB
    torch: Any = importlib.import_module("torch")
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def keep_events(trainer: Trainer, torch: Any, path: Path) -> None:
    """(bytes, place) for an allocation, (-bytes, place) for its end; of one steady step, in order."""
    memory, rank = torch.cuda.memory, torch.distributed.is_initialized() and torch.distributed.get_rank()
    memory._record_memory_history(max_entries=1_000_000, stacks="python")
    trainer.step()
    torch.cuda.synchronize()
    traces = memory._snapshot()["device_traces"][0]
    memory._record_memory_history(enabled=None)
    places: dict[str, int] = {}
    kept = []
    for entry in traces:
        sign = {"alloc": 1, "free_completed": -1}.get(entry["action"])
        if sign:
            frames = [
                f"{f['filename'].rpartition('site-packages/')[2]}:{f['line']} {f['name']}" for f in entry["frames"][:4]
            ]
            place = places.setdefault(" < ".join(frames), len(places))
            kept.append((sign * entry["size"], entry["addr"], entry["stream"], place))
    if not rank:
        path.write_bytes(gzip.compress(json.dumps({"places": list(places), "events": kept}).encode()))


def shard(model: Any, ranks: int, torch: Any) -> None:
    """The same policy as the estimate's: each repeated layer, then the rest."""
    fsdp: Any = importlib.import_module("torch.distributed.fsdp")
    meshes: Any = importlib.import_module("torch.distributed.device_mesh")
    mesh = meshes.init_device_mesh("cuda", (ranks,))
    policy = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList) and len(module) > 1:
            for layer in module:
                fsdp.fully_shard(layer, mesh=mesh, mp_policy=policy)
    fsdp.fully_shard(model, mesh=mesh, mp_policy=policy)


def built(case: Case, torch: Any, transformers: Any) -> tuple[Any, Any, Any]:
    flags, given = case.flags, dict(case.config)
    kind = getattr(transformers, given["architectures"][0])
    config = transformers.AutoConfig.for_model(given.pop("model_type"), **given)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(flags["dtype"], torch.float32)
    try:
        model = kind._from_config(config, dtype=dtype, attn_implementation=flags["attention"])
    except ValueError:
        model = kind._from_config(config, dtype=dtype, attn_implementation="eager")
    model = model.train()
    if flags.get("checkpointing"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model, config, dtype


def batch_of(model: Any, config: Any, flags: dict[str, Any], dtype: Any, torch: Any) -> dict[str, Any]:
    many, kind = flags["batch"], type(model).__name__
    if model.main_input_name == "pixel_values":
        size = getattr(config, "image_size", None) or 224
        pixels = torch.randn(many, 3, size, size, device="cuda", dtype=dtype)
        return {"pixel_values": pixels, "labels": torch.zeros(many, dtype=torch.long, device="cuda")}
    words = torch.randint(5, 1000, (many, flags["seq"]), device="cuda")
    one_each = kind.endswith("ForSequenceClassification")
    return {
        "input_ids": words,
        "labels": torch.zeros(many, dtype=torch.long, device="cuda") if one_each else words.clone(),
    }


def optimizer_of(name: str, model: Any, torch: Any) -> Any:
    optim, parameters = torch.optim, list(model.parameters())
    made = {
        "adamw": lambda: optim.AdamW(parameters),
        "adamw-fused": lambda: optim.AdamW(parameters, fused=True),
        "adamw-loop": lambda: optim.AdamW(parameters, foreach=False),
        "adam-fused": lambda: optim.Adam(parameters, fused=True),
        "sgd": lambda: optim.SGD(parameters, lr=1e-3),
        "sgd-momentum": lambda: optim.SGD(parameters, lr=1e-3, momentum=0.9),
        "adafactor": lambda: optim.Adafactor(parameters),
        "rmsprop": lambda: optim.RMSprop(parameters),
    }
    return made[name]()


def autocast(flags: dict[str, Any], torch: Any) -> Any:
    low = {"bf16-autocast": torch.bfloat16, "fp16-autocast": torch.float16}.get(flags["dtype"])
    if low is None or flags.get("strategy") == "fsdp2":  # FSDP2 has a precision of its own
        return contextlib.nullcontext()
    return torch.autocast("cuda", dtype=low)


if __name__ == "__main__":
    main()
