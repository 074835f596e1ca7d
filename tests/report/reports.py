"""Reports as a real diagnosis makes them: a verdict, none, hostile text everywhere, 1,024 ranks."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

from paramedic.knowledge.taxonomy import load_taxonomy
from paramedic.model import (
    Cascade,
    Cause,
    Event,
    Evidence,
    Finding,
    Fix,
    Report,
    Run,
    Skipped,
    Source,
    Suppressed,
    Symptom,
)

START = 1_767_348_000 * 10**9  # 2026-01-02 10:00 UTC
SECOND = 10**9


def symptom(id: str) -> Symptom:
    return load_taxonomy().symptom(id)


def event(
    rank: int | None, seq: int, text: str, at: float | None = None, kind: str = "line", /, **fields: Any
) -> Event:
    """An event of `logs/rankN.log`, `at` seconds after the start."""
    return Event(
        source="logs/launcher.log" if rank is None else f"logs/rank{rank}.log",
        seq=seq,
        kind=kind,
        text=text,
        line=seq * 10 + 2,
        rank=rank,
        host=None if rank is None else f"node-{rank // 2:02}",
        utc_ns=None if at is None else START + int(at * SECOND),
        fields=fields,
    )


def source(rank: int | None, lines: int = 1840) -> Source:
    host = None if rank is None else f"node-{rank // 2:02}"
    name = "logs/launcher.log" if rank is None else f"logs/rank{rank}.log"
    return Source(name, "log", rank=rank, host=host, lines=lines, bytes=lines * 92)


RECIPE = Fix(
    pattern="distributed-feature-api-and-communication-tuning",
    title="Make every rank issue the same collectives in the same order",
    safety="manual",
    action={
        "kind": "code",
        "hint": "train.py:118 calls all_reduce inside `if batch.valid:`; call it on every rank, with zeros "
        "where a batch is not valid.",
    },
    verify="Run 200 steps with TORCH_DISTRIBUTED_DEBUG=DETAIL: no mismatch is reported.",
    cause="collective-order-divergence",
)
LONGER = Fix(
    pattern="environment-and-launch-configuration",
    title="Let the ranks say which collective each of them issues",
    safety="safe",
    action={"kind": "env", "name": "TORCH_DISTRIBUTED_DEBUG", "value": "DETAIL"},
)
BATCHES = Fix(
    pattern="resource-and-memory-tuning",
    title="Accumulate less per step on the slow rank",
    safety="unsafe",
    action={"kind": "config", "file": "ds_config.json", "key": "gradient_accumulation_steps", "value": 4},
    cause="uneven-work-across-ranks",
)


def hang(first: Event, victims: list[Event]) -> Finding:
    return Finding(
        rule="COL003",
        symptom=symptom("collective-hang"),
        severity="error",
        scope="rank",
        ranks=(3,),
        hosts=("node-01",),
        confidence=0.93,
        summary="Rank 3 skipped all_reduce 8,112 at step 1,352; ranks 0-2 waited 600 s and were aborted.",
        evidence=(
            Evidence(
                first,
                before=("step 1351 loss 2.3120 lr 2.9e-4 412 ms", "step 1352 forward done"),
                after=("waiting in torch.distributed.barrier()",),
            ),
            *(Evidence(victim) for victim in victims),
        ),
        causes=(
            Cause("uneven-work-across-ranks", 0.18, "rank 3 had read 4 % fewer batches"),
            Cause(
                "collective-order-divergence",
                0.71,
                "rank 3 issued barrier while its peers were in all_reduce with the same sequence number",
            ),
            Cause("network-fabric-fault", 0.04),
        ),
        fixes=(RECIPE, LONGER, BATCHES),
    )


def mismatch() -> Finding:
    probe = Event("pip/node-01.txt", 4, "line", "nccl 2.21.5+cuda12.4", line=14, host="node-01")
    return Finding(
        rule="VER004",
        symptom=symptom("communication-runtime-error"),
        severity="warning",
        scope="host",
        ranks=(2, 3),
        hosts=("node-01",),
        confidence=0.64,
        summary="node-01 has NCCL 2.21.5, the other hosts have 2.27.3.",
        evidence=(Evidence(probe),),
        causes=(Cause("cross-node-environment-skew", 0.8),),
        fixes=(
            Fix(
                "version-and-dependency-management",
                "Install the same NCCL on all hosts",
                "safe",
                {"kind": "package", "requirement": "nvidia-nccl-cu12==2.27.3"},
                "python -c 'import torch; print(torch.cuda.nccl.version())' prints the same on all hosts",
            ),
        ),
    )


def _steps(rank: int) -> list[Event]:
    return [event(rank, i, f"step {i * 90} loss {3 - i / 9:.3f}", i * 240, "progress") for i in range(1, 16)]


def typical() -> Report:
    """Rank 3 of 4 leaves the common path; the others time out, the launcher ends them all."""
    first = event(3, 16, "step 1352 batch is not valid, skipping gradient sync", 3605.2)
    timeouts = [
        event(
            rank,
            17,
            f"[rank{rank}]: torch.distributed.DistBackendError: [Rank {rank}] Watchdog caught collective "
            "operation timeout: WorkNCCL(SeqNum=8112, OpType=ALLREDUCE, NumelIn=16777216, NumelOut=16777216, "
            "Timeout(ms)=600000) ran for 600012 milliseconds before timing out.",
            4206 + rank / 2,
            "traceback",
            frames=["train.py:118 in step", "torch/distributed/distributed_c10d.py:2501 in all_reduce"],
        )
        for rank in (0, 1, 2)
    ]
    events = [
        event(None, 0, "torchrun --nproc-per-node 2 --nnodes 2 train.py", 0.0, "head"),
        *(line for rank in range(4) for line in _steps(rank)),
        first,
        *timeouts,
        event(3, 18, "waiting in torch.distributed.barrier()", 3605.4, "last"),
        *(event(rank, 19, "", 4209 + rank / 4, "exit", rank=rank, exitcode=-6, signal="SIGABRT") for rank in (0, 1, 2)),
        event(None, 20, "Sending process 4127 closing signal SIGTERM", 4212.5),
        event(3, 21, "", 4213.0, "exit", rank=3, exitcode=-15, signal="SIGTERM"),
    ]
    verdict = hang(first, timeouts[:2])
    run = Run(
        id="0198c4f2-run-7d1e",
        sources=(source(None, 212), *(source(rank) for rank in range(4))),
        events=tuple(events),
        world_size=4,
        frameworks=("pytorch", "deepspeed"),
    )
    return Report(
        run=run,
        verdict=verdict,
        findings=(verdict, mismatch()),
        cascades=(
            Cascade(symptom("collective-hang"), (0, 1, 2), "COL003", 61, tuple(timeouts)),
            Cascade(symptom("worker-or-node-loss"), (0, 1, 2, 3), "COL003", 9),
        ),
        skipped=(
            Skipped("logs/rank3.err", "the file is empty"),
            Skipped("dmesg of node-00", "permission denied; run as a user in group adm"),
        ),
        suppressed=(Suppressed("PERF002", "--ignore PERF002", (1,)),),
    )


def silent_rank() -> Report:
    """Rank 2 never wrote a line; nobody's log has a clock."""
    victims = [event(rank, 4, "Timed out waiting 30000ms for recv operation to complete") for rank in (0, 1, 3)]
    verdict = Finding(
        rule="COL001",
        symptom=symptom("collective-hang"),
        severity="error",
        scope="rank",
        ranks=(2,),
        hosts=(),
        confidence=0.7,
        summary="Rank 2 wrote nothing; the other three waited for it.",
        evidence=tuple(Evidence(victim) for victim in victims),
    )
    run = Run("silent", tuple(source(r) for r in (0, 1, 3)), tuple(victims), world_size=4)
    return Report(run, verdict, (verdict,), (Cascade(verdict.symptom, (0, 1, 3), "COL001", 3),))


def undecided() -> Report:
    """Findings, none of them sure enough."""
    run = Run("undecided", tuple(source(rank) for rank in range(2)), tuple(_steps(0)), world_size=8)
    return Report(run, None, (mismatch(),), skipped=(Skipped("logs/rank7.log.zst", "truncated after 4,096 bytes"),))


def empty() -> Report:
    return Report(Run("empty"), None, skipped=(Skipped("-", "no input"),))


def many_ranks(size: int = 1024) -> Report:
    """Every rank logs; rank 517 runs out of memory and 1,000 follow."""
    events: list[Event] = []
    for rank in range(size):
        events += [event(rank, i, f"step {i}", i * 7 + rank % 5 / 10, "progress") for i in range(1, 9)]
        if rank % 43:
            text = "RuntimeError: NCCL communicator was aborted"
            events.append(event(rank, 10, text, 70 + rank % 29 / 4, "traceback"))
    oom = event(517, 9, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", 61.0)
    verdict = Finding(
        rule="MEM001",
        symptom=symptom("device-out-of-memory"),
        severity="error",
        scope="rank",
        ranks=(517,),
        hosts=("node-258",),
        confidence=0.97,
        summary="Rank 517 could not allocate 2.00 GiB on its GPU.",
        evidence=(Evidence(oom),),
        causes=(Cause("device-memory-overcommit", 0.8),),
        fixes=(BATCHES,),
    )
    victims = tuple(rank for rank in range(size) if rank % 43 and rank != 517)
    run = Run("many", tuple(source(rank) for rank in range(size)), (*events, oom), (), (), size, ("pytorch",))
    cascade = Cascade(
        symptom("communication-runtime-error"),
        victims,
        "MEM001",
        4 * len(victims),
        tuple(e for e in events if e.rank in victims),
    )
    return Report(run, verdict, (verdict,), (cascade,))


def hostile_text(beacon: str = "http://127.0.0.1:9") -> str:
    """What a log may hold to break out of a terminal, a page, a template, an annotation or an encoder."""
    return " ".join(
        (
            "<script>document.title='owned';new Image().src='BEACON/script'</script>",
            "\"><img src='BEACON/img' onerror=\"document.title='owned'\">",
            "' onmouseover='document.title=1' x='",
            "</textarea></title></style></svg></script><link rel=stylesheet href='BEACON/css'>",
            "<iframe src='BEACON/frame'></iframe><meta http-equiv=refresh content='9;url=BEACON/refresh'>",
            "<svg onload=\"document.title='owned'\"><!-- ]]> &lt;b&gt; javascript:alert(1)",
            "\x1b[31mred\x1b[0m \x1b]8;;BEACON/link\x1b\\click\x1b]8;;\x1b\\ \x1b[2J\x9b2J \x07\x00\x7f",
            "\u202eesrever\u2066 \u200b\u2028\ufeff \ud800 \udcff \U000e0041",
            "[red]markup[/red] [link=BEACON/rich]x[/link] :boom: {{7*7}} {% raw %} ${7*7} {0} %s 100%",
            "::error file=a,line=1::forged\r\n::set-output name=a::b\n##[error]forged %0A %25",
            "``` `code` ![image](BEACON/markdown) @everyone www.example.org #1 | a \\",
        )
    ).replace("BEACON", beacon)


def hostile(beacon: str = "http://127.0.0.1:9") -> Report:
    """The typical report with hostile text in every place that a log, a host or a file name can reach."""
    text = hostile_text(beacon)
    kinds = {"line", "traceback", "exit", "last", "env", "config", "package", "code"}
    fixed = {"rule", "symptom", "severity", "scope", "safety", "pattern", "because", "consequence", "cause"}

    def spoil(value: Any, name: str = "") -> Any:
        if name in fixed or (name == "id" and value in load_taxonomy().causes) or isinstance(value, Symptom):
            return value
        if isinstance(value, str):
            return value if name == "kind" and value in kinds else value + text
        if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{f.name: spoil(getattr(value, f.name), f.name) for f in fields(value)})
        if isinstance(value, dict):
            return {key: spoil(item, str(key)) for key, item in value.items()}
        return type(value)(spoil(item) for item in value) if isinstance(value, tuple | list) else value

    spoilt: Report = spoil(typical())
    return spoilt


ALL = {
    "typical": typical,
    "silent_rank": silent_rank,
    "undecided": undecided,
    "empty": empty,
    "many_ranks": many_ranks,
    "hostile": hostile,
}
