"""A bounded campaign of fuzzed inputs through the whole of Paramedic: no traceback, no time-out, memory bounded.

python bench/fuzz.py --inputs 1000000 --jobs 16 --failures /tmp/failures     inputs number 1, 2, … of the seeds in this tree
python bench/fuzz.py --first 500001 --inputs 500000 …                         from there on, as "next" of a summary says
python bench/fuzz.py --repeat 4711                                           one of them once more, with its traceback

An input is its number: `mutate.sample`. Every input is read, diagnosed and put into a document; every n-th is also rendered,
validated against the JSON schema, recorded and read back, or read as one of two runs to compare. What is wrong: any exception but ParamedicError, more than a second
of processor time a megabyte (`--floor` for small ones), memory, control characters or planted secrets in an output.
`summary.json` in the folder of failures is written every few seconds; SIGTERM and Ctrl-C end the campaign with it.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import platform
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from importlib.util import find_spec
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from mutate import Files, Sample, Seeds, sample

from paramedic import run_folder
from paramedic.collect.sides import read_settings
from paramedic.errors import ParamedicError
from paramedic.knowledge import Knowledge, load
from paramedic.pipeline import Options, compile_prefilter, examine, read
from paramedic.prefilter import Prefilter
from paramedic.report import FORMATS, ShownReport, render

LARGE = 64 << 10
"""From this size on seconds per megabyte mean something."""
LARGEST = 8 << 20
"""No input is larger."""
SHOWN, VALID, RECORDED, COMPARED = 8, 64, 64, 16
"""Every so many inputs are rendered, validated, recorded, read as one side of `paramedic diff`."""
_KEPT = 3  # inputs of the same failure
_MINIMISE_SECONDS = 30
_TELL_SECONDS = 10
_BATCH = 50  # inputs between two reports of a worker
_ALLOWED = {"\n"} | {chr(code) for code in range(0x3001) if unicodedata.category(chr(code)) == "Zs"}
_SCRIPT = re.compile(r"<script(?: [^>]*)?>.*?</script>", re.S)


class TooSlow(BaseException):
    """Nothing may catch it on its way out."""


class Wrong(AssertionError):  # noqa: N818
    """An output that breaks its promise."""


@dataclass(frozen=True, slots=True)
class Limits:
    per_mb: float = 1.0
    floor: float = 2.0
    memory_mb: int = 700

    def seconds(self, size: int) -> float:
        return max(self.floor, self.per_mb * size / 1e6)


@dataclass(slots=True)
class Tools:
    knowledge: Knowledge
    prefilter: Prefilter
    seeds: Seeds
    validate: Callable[[Any], None] | None

    @classmethod
    def load(cls) -> Tools:
        os.environ["PARAMEDIC_DEBUG"] = "1"  # a detector that breaks is a failure here, and not a line about it
        knowledge = load()
        matcher = compile_prefilter(knowledge)
        seeds = Seeds.of(knowledge)
        return cls(knowledge, matcher, replace(seeds, runs=list(_recorded(seeds.logs, matcher))), _validator())

    def diagnose(self, path: str) -> ShownReport:
        return examine(read([path], self.prefilter), self.knowledge, self.prefilter, Options())


def _recorded(logs: list[bytes], matcher: Prefilter) -> Iterator[Files]:
    """Some logs as recorded Runs, small ones, so that their lines can be changed."""
    small = [data for data in logs if 300 < len(data) < 6_000][::12][:80]
    with tempfile.TemporaryDirectory() as place:
        for number, data in enumerate(small):
            Path(place, "job.log").write_bytes(data)
            run_folder.write(read([f"{place}/job.log"], matcher), Path(place, f"run{number}"))
            files = {file.name: file.read_bytes() for file in sorted(Path(place, f"run{number}").glob("*.json*"))}
            yield {name: data.replace(place.encode(), b"") for name, data in files.items()}


def _validator() -> Callable[[Any], None] | None:
    try:
        import jsonschema
    except ImportError:
        return None
    schema = json.loads(resources.files("paramedic.report").joinpath("report.schema.json").read_text("utf-8"))
    validate: Callable[[Any], None] = jsonschema.Draft202012Validator(schema).validate
    return validate


# -- one input -----------------------------------------------------------------------------------------------------


def lay_out(files: Files, folder: str) -> None:
    os.makedirs(folder, exist_ok=True)
    for name, data in files.items():
        path = os.path.join(folder, name)
        if "/" in name:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)


def examine_one(made: Sample, number: int, folder: str, tools: Tools) -> None:
    """Raises whatever is wrong with it. `number` decides what else than a document is asked for."""
    try:
        report = tools.diagnose(os.path.join(folder, made.target) if made.target else folder)
    except ParamedicError:
        return
    document = report.to_dict()
    check_ranks(document)
    if tools.validate is not None and number % VALID == 0:
        tools.validate(document)
    if made.secrets:
        check_secrets(made.secrets, json.dumps(document, ensure_ascii=False), repr(report.run))
    if number % SHOWN == 0 or (made.secrets and number % 2):
        format = FORMATS[number // SHOWN % len(FORMATS)]
        shown = render(report, format, knowledge=tools.knowledge, verbose=number % 3 == 0)
        check_shown(shown, format)
        check_secrets(made.secrets, shown)
    if number % RECORDED == 1 and made.kind != "run":
        check_recording(report, os.path.join(folder, "again.run"), tools)

    if number % COMPARED == 3:
        check_settings(made, os.path.join(folder, made.target) if made.target else folder)


def check_settings(made: Sample, path: str) -> None:
    found = read_settings(path)
    told = repr((found.stated, found.code))
    check_secrets(made.secrets, told)
    told.encode("utf-8")


def check_ranks(document: dict[str, Any]) -> None:
    for finding in (document["verdict"], *document["findings"], *document["cascades"]):
        ranks = finding["ranks"] if finding else []
        if not all(type(rank) is int and rank >= 0 for rank in ranks) or sorted(set(ranks)) != list(ranks):
            raise Wrong(f"ranks {ranks[:20]}")
        if finding and not 0 <= finding.get("confidence", 1) <= 1:
            raise Wrong(f"confidence {finding['confidence']}")


def check_shown(shown: str, format: str) -> None:
    shown.encode("utf-8")
    if format == "html":
        if "<script" in _SCRIPT.sub("", shown) or "alert(1)</script" in shown:
            raise Wrong("a log's <script> stands in the page")
    elif not shown.isprintable() and (raw := {c for c in shown if not (c.isprintable() or c in _ALLOWED)}):
        raise Wrong(f"raw characters {sorted(raw)[:9]} in {format}")
    if format in ("json", "sarif"):
        json.loads(shown)


def check_secrets(secrets: tuple[str, ...], *outputs: str) -> None:
    for secret in secrets:
        for part in {secret, secret[:16], secret[-16:]}:
            if any(part in output for output in outputs):
                raise Wrong("a planted secret leaks")


def check_recording(report: ShownReport, path: str, tools: Tools) -> None:
    run_folder.pack(report.run, Path(path))
    again = run_folder.read(path)
    if again != report.run:
        raise Wrong("a recording is not what was recorded")
    if examine(again, tools.knowledge, tools.prefilter, Options()).to_dict() != report.to_dict():
        raise Wrong("a recording gives another document")


def on_alarm(number: int, frame: object) -> None:
    raise TooSlow


def attempt(made: Sample, number: int, tools: Tools, limits: Limits, place: str) -> tuple[str, str, float]:
    """(which failure, "" for none; its traceback; seconds of processor time)."""
    folder = os.path.join(place, "input")
    failure = told = ""
    try:
        lay_out(made.files, folder)
        start = time.process_time()
        # And again every half second: a callback from C may swallow what is raised in it.
        signal.setitimer(signal.ITIMER_PROF, limits.seconds(made.size), 0.5)
        try:
            examine_one(made, number, folder, tools)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    except (Exception, TooSlow, RecursionError) as error:
        told = traceback.format_exc(limit=-60)
        failure = f"{type(error).__name__} at {_where(error)}"
        if isinstance(error, Wrong):
            failure = f"Wrong: {error}"
    seconds = time.process_time() - start
    shutil.rmtree(folder)
    return failure, told, seconds


def _where(error: BaseException) -> str:
    """The innermost frame of our own, so that the same fault is counted once."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/paramedic/" in frame.filename] or frames
    return f"{own[-1].filename.rsplit('/paramedic/', 1)[-1]}:{own[-1].lineno}"


def minimised(made: Sample, number: int, tools: Tools, limits: Limits, place: str, failure: str) -> Sample:
    """Lines, then bytes, are left out as long as the same thing goes wrong."""
    until = time.monotonic() + _MINIMISE_SECONDS

    def still(files: Files) -> bool:
        smaller = replace(made, files=files)
        return time.monotonic() < until and attempt(smaller, number, tools, limits, place)[0] == failure

    for name in sorted(made.files):
        for glue in (b"\n", b""):
            whole = made.files[name]
            parts = whole.split(b"\n") if glue else [bytes([byte]) for byte in whole[:4_000]]
            if not glue and len(whole) > 4_000:
                continue
            step = len(parts) // 2
            while step and time.monotonic() < until:
                at = 0
                while at < len(parts):
                    fewer = parts[:at] + parts[at + step :]
                    if still({**made.files, name: glue.join(fewer)}):
                        parts = fewer
                    else:
                        at += step
                step //= 2
            made = replace(made, files={**made.files, name: glue.join(parts)})
    return made


# -- the campaign --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Tally:
    inputs: int = 0
    generated_s: float = 0.0
    diagnosed_s: float = 0.0
    bytes: int = 0
    slowest_s: tuple[float, int] = (0.0, 0)
    slowest_s_per_mb: tuple[float, int] = (0.0, 0)
    peak_rss_mb: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        self.inputs += other.inputs
        self.generated_s += other.generated_s
        self.diagnosed_s += other.diagnosed_s
        self.bytes += other.bytes
        self.slowest_s = max(self.slowest_s, other.slowest_s)
        self.slowest_s_per_mb = max(self.slowest_s_per_mb, other.slowest_s_per_mb)
        self.peak_rss_mb = max(self.peak_rss_mb, other.peak_rss_mb)
        self.kinds += other.kinds
        self.failures += other.failures


def work(first: int, last: int, step: int, tools: Tools, limits: Limits, failures: str, said: Connection) -> None:
    """Every `step`-th input; tells the parent before each one what it is about to do, and now and then how it goes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGPROF, on_alarm)
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    gc.freeze()
    gc.set_threshold(20_000)
    shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="paramedic-fuzz-", dir=shm) as place:
        for number in range(first, last, step):
            said.send(("starts", number, limits.seconds(LARGEST)))
            start = time.process_time()
            made = sample(number, tools.seeds)
            tally.generated_s += time.process_time() - start
            failure, told, seconds = attempt(made, number, tools, limits, place)
            rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            too_much = rss > limits.memory_mb
            if too_much and not failure:
                failure = told = f"Memory: over {limits.memory_mb} MB"
            tally.inputs += 1
            tally.kinds[made.kind] += 1
            tally.diagnosed_s += seconds
            tally.bytes += made.size
            tally.slowest_s = max(tally.slowest_s, (seconds, number))
            if made.size >= LARGE:
                tally.slowest_s_per_mb = max(tally.slowest_s_per_mb, (seconds / made.size * 1e6, number))
            tally.peak_rss_mb = max(tally.peak_rss_mb, rss)
            if failure:
                tally.failures[failure] += 1
                if failures:
                    _keep(made, number, tools, limits, place, failure, told, failures)
            if failure or tally.inputs >= _BATCH or number + step >= last:
                said.send(("tally", number, tally))
                tally = Tally()
            if too_much:  # the peak is the process's: only a new one can tell of the next input
                break
    said.send(("done", number, 0.0))


def _keep(
    made: Sample, number: int, tools: Tools, limits: Limits, place: str, failure: str, told: str, folder: str
) -> None:
    name = re.sub(r"[^A-Za-z0-9.]+", "-", failure)[:80]
    os.makedirs(os.path.join(folder, name), exist_ok=True)
    if len(os.listdir(os.path.join(folder, name))) >= _KEPT:
        return
    kept = os.path.join(folder, name, str(number))
    os.makedirs(kept, exist_ok=True)
    smaller = made if failure.startswith("Memory") else minimised(made, number, tools, limits, place, failure)
    lay_out({f"files/{name}": data for name, data in smaller.files.items()}, kept)
    about = {"number": number, "failure": failure, "kind": made.kind, "target": made.target, "bytes": made.size}
    Path(kept, "failure.txt").write_text(json.dumps(about) + "\n\n" + told, "utf-8", "backslashreplace")


@dataclass(slots=True)
class Worker:
    process: Any
    said: Connection
    number: int
    until: float
    next: int
    """The first of its inputs that no tally has counted."""


Told = Callable[[Tally, int], None]
"""Called every few seconds with what is known so far, and the first input that is not sure to be done."""


class Stopped(BaseException):
    """Somebody asked for an early end."""


def on_stop(number: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise Stopped


def campaign(
    first: int, inputs: int, jobs: int, minutes: float, failures: str, limits: Limits, tools: Tools, tell: Told
) -> Tally:
    """Runs the workers, ends those that no longer answer, and starts others for what is left."""
    fork = multiprocessing.get_context("fork")
    last, end = first + inputs, time.monotonic() + minutes * 60
    total = Tally()
    workers: list[Worker] = []

    def start(number: int) -> None:
        if number >= last:
            return
        said, theirs = fork.Pipe(duplex=False)
        process = fork.Process(target=work, args=(number, last, jobs, tools, limits, failures, theirs), daemon=True)
        process.start()
        theirs.close()
        workers.append(Worker(process, said, number, time.monotonic() + 600, number))

    def follow() -> None:
        ready = wait([worker.said for worker in workers], timeout=1)
        for worker in [w for w in workers if w.said in ready]:
            try:
                what, number, value = worker.said.recv()
            except EOFError:  # killed by the kernel, or a crash in C
                total.failures["Crash"] += 1
                _note(failures, worker.number, "Crash")
                _replace(worker, workers)
                start(worker.number + jobs)
                continue
            worker.number = number
            if what == "starts":
                worker.until = time.monotonic() + 30 + 20 * value  # other work on this machine is not its fault
            elif what == "tally":
                total.add(value)
                worker.next = number + jobs
            else:
                _replace(worker, workers)
                start(number + jobs)
        for worker in [w for w in workers if time.monotonic() > w.until + _MINIMISE_SECONDS]:
            total.failures["Stuck"] += 1
            _note(failures, worker.number, "Stuck")
            _replace(worker, workers)
            start(worker.number + jobs)

    told = time.monotonic()
    try:
        for number in range(first, first + jobs):
            start(number)
        while workers and time.monotonic() < end:
            follow()
            if time.monotonic() - told > _TELL_SECONDS:
                told = time.monotonic()
                tell(total, min((worker.next for worker in workers), default=last))
    except Stopped:
        print("stopped", file=sys.stderr)
    tell(total, min((worker.next for worker in workers), default=last))
    for worker in tuple(workers):
        _replace(worker, workers)
    return total


def _replace(worker: Worker, workers: list[Worker]) -> None:
    worker.process.kill()
    worker.process.join()
    worker.said.close()
    workers.remove(worker)


def _note(failures: str, number: int, what: str) -> None:
    print(f"{what} on input {number}", file=sys.stderr)
    if failures:
        os.makedirs(failures, exist_ok=True)
        with open(os.path.join(failures, "lost.txt"), "a", encoding="utf-8") as file:
            file.write(f"{what} {number}\n")


def summary(total: Tally, seconds: float, limits: Limits, tools: Tools) -> dict[str, Any]:
    return {
        "inputs": total.inputs,
        "failures": sum(total.failures.values()),
        "which": dict(total.failures.most_common()),
        "kinds": dict(total.kinds.most_common()),
        "megabytes": round(total.bytes / 1e6, 1),
        "seconds": round(seconds, 1),
        "inputs_per_s": round(total.inputs / seconds, 1) if seconds else 0,
        "cpu_ms_per_input": {
            "make": round(total.generated_s / max(total.inputs, 1) * 1e3, 2),
            "diagnose": round(total.diagnosed_s / max(total.inputs, 1) * 1e3, 2),
        },
        "slowest_s": {"seconds": round(total.slowest_s[0], 3), "input": total.slowest_s[1]},
        f"slowest_s_per_mb_from_{LARGE >> 10}_kib": {"s_per_mb": round(total.slowest_s_per_mb[0], 3), "input": total.slowest_s_per_mb[1]},
        "peak_rss_mb": round(total.peak_rss_mb, 1),
        "limits": asdict(limits),
        "python": platform.python_version(),
        "matcher": "hyperscan" if find_spec("hyperscan") else "standard library",
        "schema": "checked" if tools.validate else "not checked: jsonschema is not installed",
    }  # fmt: skip


def repeat(number: int, tools: Tools, limits: Limits, failures: str) -> int:
    signal.signal(signal.SIGPROF, on_alarm)
    made = sample(number, tools.seeds)
    with tempfile.TemporaryDirectory(prefix="paramedic-fuzz-") as place:
        failure, told, seconds = attempt(made, number, tools, limits, place)
        if failures:
            lay_out(made.files, os.path.join(failures, str(number)))
    print(
        f"input {number}: {made.kind}, {made.size} bytes, files {sorted(made.files)}, {seconds:.3f} s: {failure or 'nothing wrong'}"
    )
    print(told, end="")
    return 1 if failure else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Fuzzed inputs through the whole of Paramedic; a JSON summary comes out."
    )
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--first", "--seed", type=int, default=1, help="the number of the first input")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--minutes", type=float, default=600, help="stop after so long")
    parser.add_argument("--failures", default="", metavar="DIR", help="write what went wrong there, made small")
    parser.add_argument(
        "--repeat", type=int, metavar="NUMBER", help="only this input (with --failures: write it there)"
    )
    parser.add_argument("--floor", type=float, default=Limits().floor, help="seconds that any input may take")
    parser.add_argument("--memory", type=int, default=Limits().memory_mb, help="megabytes that a worker may take")
    args = parser.parse_args()
    tools, limits = Tools.load(), Limits(floor=args.floor, memory_mb=args.memory)
    if args.repeat is not None:
        return repeat(args.repeat, tools, limits, args.failures)
    start = time.monotonic()
    made: dict[str, Any] = {}

    def tell(total: Tally, following: int) -> None:
        print(f"{total.inputs} inputs, {sum(total.failures.values())} failures", file=sys.stderr, flush=True)
        made.update(summary(total, time.monotonic() - start, limits, tools), first=args.first, next=following)
        if args.failures:
            os.makedirs(args.failures, exist_ok=True)
            with run_folder.whole(os.path.join(args.failures, "summary.json")) as file:
                file.write((json.dumps(made, indent=1) + "\n").encode())

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_stop)
    total = campaign(args.first, args.inputs, args.jobs, args.minutes, args.failures, limits, tools, tell)
    print(json.dumps(made, indent=1))
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main())
