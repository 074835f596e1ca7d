"""Flight-recorder dumps as NCCL's process group writes them, made from the documented fields."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from paramedic.knowledge import load
from paramedic.model import Report, Run
from paramedic.pipeline import Options, compile_prefilter, examine, read

KNOWLEDGE = load(())
PREFILTER = compile_prefilter(KNOWLEDGE)
Entry = dict[str, Any]


class Rank:
    """Records calls in order, as one rank's recorder does."""

    def __init__(self, rank: int, groups: dict[str, list[int]]) -> None:
        self.rank, self.groups = rank, groups
        self.entries: list[Entry] = []
        self._seqs: dict[str, int] = {}
        self._sent: dict[str, int] = {}

    def call(
        self,
        op: str,
        sizes: tuple[int, ...] = (4,),
        *,
        group: str = "0",
        line: int = 10,
        done: bool = True,
        dtype: str = "Float",
        outs: list[list[int]] | None = None,
    ) -> Rank:
        peer = op.startswith(("send", "recv"))
        self._seqs[group] = self._seqs.get(group, 0) + (not peer)
        self._sent[group] = self._sent.get(group, 0) + peer
        self.entries.append(
            {
                "frames": [
                    {"name": "all_reduce", "filename": "/lib/python3.11/site-packages/torch/d.py", "line": 1},
                    {"name": "step", "filename": "/job/train.py", "line": line},
                ],
                "record_id": len(self.entries),
                "pg_id": int(group),
                "process_group": (group, "default_pg" if group == "0" else "undefined"),
                "collective_seq_id": self._seqs[group],
                "p2p_seq_id": self._sent[group] if peer else 0,
                "op_id": len(self.entries),
                "profiling_name": f"nccl:{op}",
                "input_sizes": [list(sizes)],
                "output_sizes": [list(sizes)] if outs is None else outs,
                "input_dtypes": [dtype],
                "output_dtypes": [dtype] if outs is None or outs else [],
                "state": "completed" if done else "scheduled",
                "retired": done,
                "is_p2p": peer,
            }
        )
        return self

    def dump(self) -> dict[str, Any]:
        mine = {name: ranks for name, ranks in self.groups.items() if self.rank in ranks}
        return {
            "version": "2.10",
            "pg_config": {
                name: {"name": name, "desc": "default_pg" if name == "0" else "undefined", "ranks": str(ranks)}
                for name, ranks in mine.items()
            },
            "pg_status": {},
            "entries": self.entries,
        }


def job(size: int, groups: dict[str, list[int]] | None = None) -> list[Rank]:
    return [Rank(rank, {"0": list(range(size)), **(groups or {})}) for rank in range(size)]


def written(ranks: list[Rank], folder: Path, missing: int | None = None, name: str = "nccl_trace_rank_{}") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for one in ranks:
        if one.rank != missing:
            (folder / name.format(one.rank)).write_bytes(pickle.dumps(one.dump(), 2))
    return folder


def run_of(*paths: Path) -> Run:
    return read([str(path) for path in paths], PREFILTER)


def judged(*paths: Path) -> Report:
    return examine(run_of(*paths), KNOWLEDGE, PREFILTER, Options())


def training(size: int = 4, groups: dict[str, list[int]] | None = None) -> list[Rank]:
    """Six steps that all ranks have done."""
    ranks = job(size, groups)
    for one in ranks:
        for _ in range(6):
            one.call("all_reduce", (8,), line=20).call("_reduce_scatter_base", (16,), line=21)
    return ranks


def missing(bad: int, size: int = 4) -> list[Rank]:
    """One rank does not come to the next."""
    ranks = training(size)
    for one in ranks:
        if one.rank != bad:
            one.call("all_reduce", (8,), line=20, done=False)
    return ranks
