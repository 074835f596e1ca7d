"""What recording costs: every step in turn bare, with fingerprints, and with payloads on disk, in one job.

    python bench/replay_cost.py                       two gloo ranks on CPU
    python bench/replay_cost.py --ranks 1 --cuda      one NCCL rank on a GPU
    python bench/replay_cost.py --ranks 4 --cuda      gloo ranks that share the GPU

Prints the ratio of the steps with recording to the bare ones between which they stand, with a 95 % interval, the
microseconds for each call, and the bytes for each step. What is done in some steps only (the state kept, all parameters
looked at where no payload is, optimizer states looked at) is measured in steps of its own and counted with its share.
Fingerprints cost by the byte that is sent, a step by the token: tokens a rank and step are the ratio that decides.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "src" / "paramedic" / "rank" / "site"
MODES = ("bare", "hash", "bare", "looked", "bare", "ring", "bare", "state", "bare", "tenth")
EVERY = 8
"""`record --last 8`: a state every eighth step; with fingerprints alone, all parameters are looked at as seldom."""
SHARES = {"hash": {"looked": 1 / EVERY}, "ring": {"state": 1 / EVERY, "tenth": 3 / 40}}
"""Optimizer states are looked at in every tenth step, too: in forty steps three that keep no state of their own."""
WARM = 4
"""Rounds that do not count: by then the files of dropped steps are written over, as in all of a long job but its start."""
TOKENS = 64  # of a sequence
NEVER = 1 << 40
WALL, BUSY, OWN = 1, 4, 5
"""Places in a row: seconds of wall; of this rank's processor, which a loaded machine disturbs less; and of those what was
spent inside of the recorder, which is a certain figure, without what its reading does to caches."""


def loop(args: argparse.Namespace) -> None:
    """One rank."""
    import torch
    import torch.distributed as dist
    from paramedic_rank import recorder as recording  # type: ignore[import-not-found]
    from paramedic_rank import start
    from torch import nn

    torch.set_num_threads(1)
    device = torch.device("cuda", 0) if args.cuda else torch.device("cpu")
    dist.init_process_group("nccl" if args.cuda and args.ranks == 1 else "gloo")
    rank = dist.get_rank()
    torch.manual_seed(7)
    layer = nn.TransformerEncoderLayer(args.width, 4, 4 * args.width, batch_first=True)
    model: Any = nn.Sequential(nn.TransformerEncoder(layer, args.layers), nn.Linear(args.width, 64)).to(device)
    if args.way == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh(device.type, (args.ranks,))
        for block in model[0].layers:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(args.batch, TOKENS, args.width, device=device)
    recorder = start.recorder
    own = timed(recorder)
    rows = []
    for step in range((args.steps + WARM) * len(MODES)):
        mode = MODES[step % len(MODES)]
        recorder.paused = mode == "bare"
        recorder.stores = mode in ("ring", "state", "tenth")
        recorder.payload = "ring" if recorder.stores else "hash"
        recorder.last = 1 if mode == "state" else NEVER
        recording._FOR_GOOD = 1 if mode == "tenth" else NEVER
        recorder._looks = lambda mode=mode: mode != "hash"
        calls, before, own[0] = recorder.calls, _written(recorder), 0.0
        if args.cuda:
            torch.cuda.synchronize()
        began, busy = time.perf_counter(), time.process_time()
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if args.cuda:
            torch.cuda.synchronize()
        took, busy = time.perf_counter() - began, time.process_time() - busy
        if step >= WARM * len(MODES):
            rows.append([mode, took, recorder.calls - calls, _written(recorder) - before, busy, own[0]])
    if rank == 0:
        parameters = sum(getattr(p, "_local_tensor", p).numel() * 4 for p in model.parameters())
        Path(os.environ["BENCH_ROWS"]).write_text(json.dumps({"rows": rows, "bytes": parameters}))
    dist.barrier()
    dist.destroy_process_group()


def timed(recorder: Any) -> list[float]:
    """Seconds of the processor that its methods take, in whatever thread they run."""
    own = [0.0]

    def of(method: Any) -> Any:
        def called(*arguments: Any) -> Any:
            began = time.thread_time()
            try:
                return method(*arguments)
            finally:
                own[0] += time.thread_time() - began

        return called

    for name in ("begin", "end", "batch", "loss", "gradients", "stepped"):
        setattr(recorder, name, of(getattr(recorder, name)))
    return own


def _written(recorder: Any) -> int:
    return recorder.tape.written if recorder.tape is not None else 0


def ratios(rows: list[list[Any]], mode: str, of: int) -> list[float]:
    """Each step with recording against the mean of the bare ones before and after it."""
    return [
        rows[at][of] / ((rows[at - 1][of] + rows[at + 1][of]) / 2)
        for at in range(1, len(rows) - 1)
        if rows[at][0] == mode and rows[at - 1][0] == rows[at + 1][0] == "bare"
    ]


def spread(rows: list[list[Any]], mode: str, of: int) -> str:
    """The usual cost, and what is seldom with its share; by the median, with a 95 % interval."""
    chance = random.Random(0)
    usual, seldom = ratios(rows, mode, of), {one: ratios(rows, one, of) for one in SHARES[mode]}

    def drawn(found: list[float]) -> list[float]:
        return chance.choices(found, k=len(found))

    again = sorted(
        _shared(mode, drawn(usual), {one: drawn(found) for one, found in seldom.items()}) for _ in range(2000)
    )
    low, mid, high = (100 * (one - 1) for one in (again[50], _shared(mode, usual, seldom), again[1949]))
    return f"{mid:+.1f} % ({low:+.1f} to {high:+.1f})"


def _shared(mode: str, usual: list[float], seldom: dict[str, list[float]]) -> float:
    often = median(usual)
    return often + sum((median(seldom[one]) - often) * share for one, share in SHARES[mode].items())


def measure(args: argparse.Namespace, way: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="paramedic-", dir=args.disk) as place:
        rows = Path(place, "rows.json")
        variables = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(SITE), os.environ.get("PYTHONPATH", "")]),
            "PARAMEDIC_WATCH": place,
            "PARAMEDIC_RECORD": json.dumps({"payload": "ring", "last": EVERY}),
            "OMP_NUM_THREADS": "1",
            "BENCH_ROWS": str(rows),
        }
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(args.ranks)]
        own = [
            "--loop",
            "--way",
            way,
            *(f"--{n}={getattr(args, n)}" for n in ("ranks", "steps", "width", "layers", "batch")),
        ]
        subprocess.run([*launch, __file__, *own, *(["--cuda"] if args.cuda else [])], env=variables, check=True)
        found: dict[str, Any] = json.loads(rows.read_text())
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20, help="of each kind")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--ways", default="ddp,fsdp2")
    parser.add_argument("--disk", help="a folder on the disk that payloads go to")
    parser.add_argument("--way", default="ddp", help=argparse.SUPPRESS)
    parser.add_argument("--loop", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.steps < 6:
        parser.error("--steps: at least 6")
    if args.loop:
        loop(args)
        return
    print(
        "| | bare step | fingerprints | payloads on disk | the same in processor time | the recorder's own processor time | a call, fingerprints | bytes a step |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for way in args.ways.split(","):
        found = measure(args, way)
        print(
            f"| {way}, {args.ranks} ranks, {found['bytes'] / 4e6:.1f} M parameters on each, {args.batch * TOKENS} tokens | {' | '.join(cells(found))} |",
            flush=True,
        )


def cells(found: dict[str, Any]) -> list[str]:
    rows = found["rows"]
    costs = [spread(rows, mode, of) for of in (WALL, BUSY) for mode in ("hash", "ring")]
    bare, busy = (median(row[of] for row in rows if row[0] == "bare") for of in (WALL, BUSY))
    own = {mode: median(row[OWN] for row in rows if row[0] == mode) / busy for mode in MODES}
    alone = [own[mode] + sum((own[one] - own[mode]) * n for one, n in SHARES[mode].items()) for mode in SHARES]
    calls = median(row[2] for row in rows if row[0] == "hash")
    micros = own["hash"] * busy * 1e6 / max(calls, 1)
    sizes = {mode: median(row[3] for row in rows if row[0] == mode) for mode in ("ring", "state")}
    size = sizes["ring"] + (sizes["state"] - sizes["ring"]) / EVERY
    return [
        f"{1e3 * bare:.0f} ms, {1e3 * busy:.0f} of processor", *costs[:2], f"{costs[2]}; {costs[3]}", " and ".join(f"{100 * one:.1f} %" for one in alone), f"{micros:.0f} µs of processor ({calls:.0f} calls)",
        f"{size / 1e6:.1f} MB, {size / max(found['bytes'], 1):.2f} of this rank's parameters",
    ]  # fmt: skip


if __name__ == "__main__":
    main()
