"""Measures the cases on a real GPU and writes the truth as JSON. Runs where torch and transformers are: Python 3.12.

  python3 bench/memory/measure.py --out truth.json [--shard 1/2] [--seconds 540]

Each case runs in a process of its own: three steps, the peaks reset after the second. What is there already is kept, so
a run that was cut off goes on. Under `transformers` whose version stands in the result; the estimate must use the same.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from cases import CASES, OUT_OF_MEMORY, Case

STEPS = 3
FRACTIONS = (1.05, 0.97, 0.9)
"""Of the peak reserved: with how much the step is tried again."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default=os.path.join(os.environ.get("OUT", "."), "truth.json"))
    parser.add_argument("--shard", default="1/1")
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--one")
    parser.add_argument("--limit", type=int, default=0)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one(next(case for case in CASES if case.id == args.one), args.limit)))
        return
    out, start = Path(args.out), time.monotonic()
    found = json.loads(out.read_text()) if out.exists() else {"cases": {}, "limited": []}
    part, parts = (int(n) for n in args.shard.split("/"))
    for case in CASES[part - 1 :: parts]:
        if case.id not in found["cases"] and time.monotonic() - start < args.seconds:
            found["cases"][case.id] = started(case.id, 0)
            out.write_text(json.dumps(found, indent=1))
    for id in OUT_OF_MEMORY[part - 1 :: parts]:
        peak = found["cases"].get(id, {}).get("peak_reserved_bytes")
        if peak and not any(row["id"] == id for row in found["limited"]) and time.monotonic() - start < args.seconds:
            for fraction in FRACTIONS:
                limit = int(peak * fraction)
                result = started(id, limit)
                found["limited"].append(
                    {
                        "id": id,
                        "limit_bytes": limit,
                        "ran": "peak_allocated_bytes" in result,
                        "said": result.get("error"),
                    }
                )
            out.write_text(json.dumps(found, indent=1))


def started(id: str, limit: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", id, "--limit", str(limit)]
    case = next(case for case in CASES if case.id == id)
    env = dict(os.environ)
    if case.flags.get("alloc_conf"):
        env["PYTORCH_ALLOC_CONF"] = case.flags["alloc_conf"]
    if case.flags.get("world_size", 1) > 1:
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            str(case.flags["world_size"]),
            *command[1:],
        ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=env, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        said = [line for line in done.stderr.splitlines() if "Error" in line]
        return {"error": (said or [done.stderr[-300:]])[-1][:400]}
    result: dict[str, Any] = json.loads(lines[0])
    print(id, limit or "", result, file=sys.stderr, flush=True)
    return result


def one(case: Case, limit: int) -> dict[str, Any]:
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")

    flags = case.flags
    ranks = flags.get("world_size", 1)
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
    if limit:
        torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
    free_before = torch.cuda.mem_get_info()[0]
    model, batch = built(case, torch, transformers)
    if ranks > 1:
        model = torch.nn.parallel.DistributedDataParallel(
            model, device_ids=[0], gradient_as_bucket_view=flags.get("bucket_view", False)
        )
    optimizer = optimizer_of(flags["optimizer"], model, torch)
    first: dict[str, int] = {}
    for step in range(STEPS):
        if step == STEPS - 1:
            torch.cuda.reset_peak_memory_stats()
        for _ in range(flags.get("accumulation", 1)):
            with autocast(flags["dtype"], torch):
                loss = model(**batch).loss
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step == 0:
            first = {
                "first_allocated_bytes": torch.cuda.max_memory_allocated(),
                "first_reserved_bytes": torch.cuda.max_memory_reserved(),
            }
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return first | {
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
        "device_bytes": total - free,
        "device_before_bytes": total - free_before,
        "device_memory_bytes": total,
        "parameters": sum(p.numel() for p in model.parameters()),
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "cudnn": torch.backends.cudnn.version(),
        },
        "gpu": torch.cuda.get_device_name(),
    }


def built(case: Case, torch: Any, transformers: Any) -> tuple[Any, dict[str, Any]]:
    flags, given = case.flags, dict(case.config)
    kind = getattr(transformers, given["architectures"][0])
    config = transformers.AutoConfig.for_model(given.pop("model_type"), **given)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(flags["dtype"], torch.float32)
    try:
        model = kind._from_config(config, dtype=dtype, attn_implementation=flags["attention"])
    except ValueError:
        model = kind._from_config(config, dtype=dtype, attn_implementation="eager")
    model = model.to("cuda").train()
    if flags.get("checkpointing"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model, batch_of(model, config, flags, dtype, torch)


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
        "sgd": lambda: optim.SGD(parameters, lr=1e-3),
        "sgd-momentum": lambda: optim.SGD(parameters, lr=1e-3, momentum=0.9),
        "adafactor": lambda: optim.Adafactor(parameters),
    }
    return made[name]()


def autocast(dtype: str, torch: Any) -> Any:
    low = {"bf16-autocast": torch.bfloat16, "fp16-autocast": torch.float16}.get(dtype)
    return torch.autocast("cuda", dtype=low) if low else contextlib.nullcontext()


if __name__ == "__main__":
    main()
