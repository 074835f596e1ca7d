"""Labelling many posts: posts a second and memory by workers, and that all engines give the same labels.

    python bench/study.py                      # 100,000 posts, 1 and 2 workers
    python bench/study.py --posts 2000 --engine ray --workers 2

Posts are made up: people's wordings from knowledge/descriptions.toml, a third of them with a quoted log of one of the
signatures' own cases, padded with small talk. Each run is a process of its own; its memory is the largest resident
size of the process and of its largest worker.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from paramedic.knowledge import load
from paramedic.knowledge.wordings import of_people
from paramedic.study.label import Recipe
from paramedic.study.labelling import classify
from paramedic.study.store import Post, opened

TALK = [
    "I followed the tutorial",
    "Any help is welcome",
    "We run this every night on the cluster and it used to work",
    "The same code is fine on one machine",
    "I have tried two versions",
    "Please tell me what else you need",
    "",
]


def posts(n: int) -> Iterator[list[Post]]:
    rng = random.Random(0)
    wordings = [text for symptom, text in of_people()]
    logs = [case.text for rule in load().rules.values() for case in rule.cases() if case.kind == "log"]
    batch: list[Post] = []
    for number in range(n):
        body = ". ".join(rng.sample(TALK, 4)) + f". It is run number {number}."
        if rng.random() < 1 / 3:
            body += f"\n```\n{rng.choice(logs)}\n```\n"
        title = f"{rng.choice(wordings)} and {rng.choice(wordings)}"
        batch.append(Post(f"https://example.org/{number:07}", "github:made/up", "pytorch", title, body, state="closed"))
        if len(batch) == 5_000:
            yield batch
            batch = []
    yield batch


def one(db: Path, engine: str, workers: int) -> None:
    began = time.perf_counter()
    with opened(db) as store:
        done = classify(store, Recipe(), engine=engine, workers=workers, again=True)
        seconds = time.perf_counter() - began
        own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10  # before all labels are read to compare them
        rows = store.query("SELECT * FROM predictions ORDER BY post")
    workers_ = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
    labels = hashlib.sha256(json.dumps(rows).encode()).hexdigest()
    print(json.dumps({"posts": done.new, "seconds": seconds, "mb": own, "worker_mb": workers_, "labels": labels}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--posts", type=int, default=100_000)
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--engine", choices=("local", "ray"), default="local")
    parser.add_argument("--one", metavar="DB", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        one(Path(args.one), args.engine, int(args.workers))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        db = Path(folder) / "posts.duckdb"
        with opened(db, create=True) as store:
            for batch in posts(args.posts):
                store.put_posts(batch)
        found = []
        for workers in map(int, args.workers.split(",")):
            command = [sys.executable, __file__, "--one", str(db), "--workers", str(workers), "--engine", args.engine]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            row = json.loads(done.stdout.splitlines()[-1])
            found.append(row)
            print(
                f"{args.engine}, {workers} workers: {row['posts']:,} posts in {row['seconds']:.0f} s, "
                f"{row['posts'] / row['seconds']:.0f} posts/s, {row['mb']} MB, worker {row['worker_mb']} MB",
                flush=True,
            )
    same = len({row["labels"] for row in found}) == 1
    print("all runs gave the same labels" if same else "LABELS DIFFER")
    return int(not same)


if __name__ == "__main__":
    sys.exit(main())
