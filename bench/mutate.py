"""Hostile inputs made from real logs. A number alone decides what an input is, as long as the seeds are the same."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import random
import re
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard

from paramedic.knowledge import Knowledge

ROOT = Path(__file__).parent.parent
RANDOM_MOST = 1 << 20
BOMB = 4 << 20
Files = dict[str, bytes]
Mutator = Callable[[bytes, random.Random, "Seeds"], bytes]


@dataclass(frozen=True, slots=True)
class Sample:
    """Files below a folder, which of them is diagnosed (`""`: the folder itself), and how many bytes that unpacks to."""

    kind: str
    files: Files
    target: str
    size: int
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Seeds:
    logs: list[bytes]
    keywords: list[bytes]
    lines: list[bytes]
    """Of the rules' own cases: they are nearest to what the rules look for."""
    posts: list[bytes]
    """Of people, in their own words."""
    runs: list[Files] = field(default_factory=list)
    """Recorded Runs, as files."""

    @classmethod
    def of(cls, knowledge: Knowledge) -> Seeds:
        rules = sorted(knowledge.rules.values(), key=lambda rule: rule.id)
        cases = [case.text.encode() for rule in rules for case in rule.cases()]
        recorded = sorted(path for path in (ROOT / "corpus").glob("*/*/input/**/*") if path.is_file())
        healthy = sorted(path for path in (ROOT / "tests" / "healthy" / "logs").glob("**/*") if path.is_file())
        logs = [data for path in (*recorded, *healthy) if (data := path.read_bytes()[:RANDOM_MOST])]
        keywords = sorted({keyword.encode() for rule in rules for keyword in rule.keywords})
        lines = [line for case in cases for line in case.split(b"\n") if line.strip()]
        posts = (ROOT / "tests" / "posts_of_strangers.txt").read_bytes().split(b"%%% ")[1:]
        return cls([*logs, *cases], keywords, lines, [one.partition(b"\n")[2] for one in posts])


# -- lines ---------------------------------------------------------------------------------------------------------


def window(data: bytes, choice: random.Random, most: int) -> bytes:
    """Some lines that follow each other: mostly few, so that a campaign gets far."""
    if len(data) <= most:
        return data
    start = choice.choice((0, len(data) - most, choice.randrange(len(data) - most)))
    return data[start : start + most]


def piece(choice: random.Random, seeds: Seeds) -> bytes:
    return window(choice.choice(seeds.logs), choice, choice.choice((400, 1_500, 4_000)))


def drop(data: bytes, choice: random.Random, seeds: Seeds) -> bytes:
    share = choice.random()
    return b"\n".join(line for line in data.split(b"\n") if choice.random() > share)


def duplicate(data: bytes, choice: random.Random, seeds: Seeds) -> bytes:
    return b"\n".join(line for line in data.split(b"\n") for _ in range(choice.choice((1, 1, 1, 2, 9))))


def shuffle(data: bytes, choice: random.Random, seeds: Seeds) -> bytes:
    lines = data.split(b"\n")
    choice.shuffle(lines)
    return b"\n".join(lines)


def splice(data: bytes, choice: random.Random, seeds: Seeds) -> bytes:
    other = piece(choice, seeds)
    return data[: choice.randrange(len(data) + 1)] + other[choice.randrange(len(other) + 1) :]


def interleave(data: bytes, choice: random.Random, seeds: Seeds) -> bytes:
    both = [data.split(b"\n")[::-1], piece(choice, seeds).split(b"\n")[::-1]]
    mixed = []
    while both[0] and both[1]:
        mixed.append(choice.choice(both).pop())
    return b"\n".join([*mixed, *both[0][::-1], *both[1][::-1]])


_PREFIX = re.compile(
    rb"^(?:\[rank\d+\]: ?|\[(?:default|trainer|worker)\d+\]:|\[\d+,\d+\]<\w+>: ?|[ \t]{0,6}\d{1,6}: |\([\w .]{1,40}=[^)]{1,60}\) )+"
)
_LAYOUTS = (
    "[rank{r}]: ", "[rank{r}]:", "[default{r}]:", "[default{r}]:[rank{r}]: ", "{r}: ", "  {r}: ", "{r}: [rank{r}]: ",
    "[1,{r}]<stderr>:", "[1,{r}]<stdout>: [rank{r}]:", "[1,{r}]<stddiag>:", "(RayTrainWorker pid={p}, ip=10.0.0.{r}) ",
    "(TrainWorker pid={p}) [rank{r}]: ", "(RayTrainWorker(rank={r}) pid={p}) ", "node-{r}: ", "worker-{r}  | ",
    "[pod/train-worker-{r}/pytorch] ", "2026-11-15T02:06:22.123456789Z stderr F ", "Nov 15 02:06:22 node{r} python[{p}]: ",
    "2026-11-15T02:06:22.1234567Z ", "[{r}] ", "[Rank {r}] ", "rank{r}| ", "host-{r}:{p}:{p} [{r}] NCCL INFO ", "",
    "E1115 02:06:22.123456 {p} torch/distributed/elastic/multiprocessing/api.py:869] ", "{r}:", "[stderr] ", "trainer{r}: ",
)  # fmt: skip


def prefixes(data: bytes, choice: random.Random, seeds: Seeds) -> bytes:
    """The same lines as another launcher would have written them; some launchers are stacked, some ranks absurd."""
    layouts = [choice.choice(_LAYOUTS) for _ in range(choice.choice((1, 1, 1, 2, 3)))]
    ranks = choice.choices(
        ((0, 1), (0, 1, 2, 3), range(64), (3,), (0, 999_999, 1_000_000, 9_999_999, 10**12)), (5, 5, 3, 2, 0.3)
    )[0]
    peel = choice.random() < 0.8
    out = []
    for line in data.split(b"\n"):
        rank = choice.choice(ranks)
        front = "".join(layout.format(r=rank, p=4_000 + rank % 1_000) for layout in layouts)
        out.append(front.encode() + (_PREFIX.sub(b"", line) if peel else line))
    return b"\n".join(out)


# -- bytes ---------------------------------------------------------------------------------------------------------


def truncate(data: bytes, choice: random.Random, seeds: Seeds) -> bytes:
    start = choice.choice((0, 0, choice.randrange(len(data) + 1)))
    return data[start : choice.randrange(start, len(data) + 1)]


def flip(data: bytes, choice: random.Random, seeds: Seeds) -> bytes:
    changed = bytearray(data)
    for _ in range(choice.choice((1, 3, 1 + len(changed) // 100)) if changed else 0):
        changed[choice.randrange(len(changed))] = choice.randrange(256)
    return bytes(changed)


_ODD = (
    b"\x00", b"\xff", b"\xfe\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xe2\x80\xae", b"\xe2\x80\xa8",
    b"\xc2\x85", b"\x85", b"\x0b", b"\x0c", b"\x1c", b"\x08\x08", b"\x7f", b"\x9b", b"\x1b[31m", b"\x1b[0m", b"\x1b]0;title\x07", b"\x1b]8;;",
    b"\x1b[", b"\x1b", b"\x1b[?25l\x1b[2K\x1b[1A", b"\x1bP", b"\r", b"\r\n", b"\n\r", b"\r\r\n", b"\t", b"\xd9\xa3", b"\xc2\xb2", b"\xe0\xa5\xa9",
    b"<script>alert(1)</script>", b"</script>", b"<!--", b"::error::x", b"{rank}", b"{0}", b"%s", b"%n", b"[/bold]", b"[link=x]", b"$(id)", b"`id`",
    b"{{7*7}}", b"{% raw %}", b"&lt;", b"\\u0000", b"\\", b'"', b"'", b"\xf0\x9f\x9a\x91", b"\xcc\x81" * 40, b"\xe2\x80\x8b",
)  # fmt: skip


def odd(data: bytes, choice: random.Random, seeds: Seeds) -> bytes:
    """Between words, mostly. All at once: one insertion after the other would move megabytes for each."""
    starts = [found.start() for found in re.finditer(rb"\W", data)] or [0]
    count = 1 + 2 * len(starts) // choice.choice((30, 300))
    made, end = [], 0
    for at in sorted(choice.choice(starts) + choice.randrange(2) for _ in range(count)):
        made += [data[end:at], choice.choice(_ODD)]
        end = at
    return b"".join([*made, data[end:]])


def endings(data: bytes, choice: random.Random, seeds: Seeds) -> bytes:
    some = choice.choice(((b"\r\n",), (b"\r",), (b"\n", b"\r"), (b"\n", b"\r\n", b"\n\n", b"\r\r", b"\n\r")))
    return b"".join(line + choice.choice(some) for line in data.split(b"\n"))


def utf16(data: bytes, choice: random.Random, seeds: Seeds) -> bytes:
    return data.decode("utf-8", "replace").encode(choice.choice(("utf-16", "utf-16-le", "utf-16-be", "utf-8-sig")))


def nuls(data: bytes, choice: random.Random, seeds: Seeds) -> bytes:
    at, count = choice.randrange(len(data) + 1), choice.choice((1, 40, 4_096))
    return data[:at] + b"\0" * count + data[at:]


_NUMBERS = (
    b"0", b"-1", b"00", b"9999999", b"2147483648", b"9" * 20, b"9" * 30, b"9" * 4_400, b"1e999", b"-9223372036854775809",
    b"nan", b"inf", b"\xd9\xa3", b"\xc2\xb2", b"0x7fff", b"1_000", b"3.4.5.6", b"+5", b"999999", b"1000000",
)  # fmt: skip
_STAMPS = (
    b"2026-02-30 02:06:22,1", b"1900-01-01 00:00:00", b"2099-12-31T23:59:60Z", b"2026-11-15 25:61:61", b"0000-00-00 00:00:00",
    b"2026-11-15T02:06:22.999999999+23:59", b"2026-11-15 02:06:22 -99:99", b"1901-01-01T00:00:00+14:00", b"E0229 23:59:59.1",
    b"I1332 02:06:22.0", b"Feb 29 02:06:22", b"Nov 99 02:06:22", b"2000-02-29 00:00:00.000000001 UTC",
)  # fmt: skip


def numbers(data: bytes, choice: random.Random, seeds: Seeds) -> bytes:
    share = choice.choice((0.01, 0.1, 0.5))
    some = _NUMBERS if choice.random() < 0.2 else _NUMBERS[:-2]  # believable worlds of a million ranks cost much time
    return re.sub(rb"\d+", lambda found: choice.choice(some) if choice.random() < share else found[0], data)


def stamps(data: bytes, choice: random.Random, seeds: Seeds) -> bytes:
    return b"\n".join(
        choice.choice(_STAMPS) + b" " + line if choice.random() < 0.3 else line for line in data.split(b"\n")
    )


# -- shapes --------------------------------------------------------------------------------------------------------

_FILLERS = (
    b" ", b"a", b"0", b"/", b".", b"=", b"'", b'"', b":", b"[", b"(", b"\\", b"_", b"-", b"A.", b"a b ", b"rank 1 ", b"1, ", b"1.", b"\t",
    b"://", b"@", b"password=", b"token=", b"key: ", b"eyJa.", b"-----BEGIN PRIVATE KEY-----", b"AAAA", b"\xc3\xa9", b"\x1b[", b"::", b"#", b"%3A",
)  # fmt: skip


def hostile(data: bytes, choice: random.Random, seeds: Seeds) -> bytes:
    """Almost what a rule looks for, with one part of it repeated: the food of slow regular expressions."""
    line = choice.choice(seeds.lines)
    size = choice.choices((50, 400, 3_900, 15_900), (4, 4, 2, 1))[0]
    at = choice.choice((len(line), choice.randrange(len(line) + 1)))
    part = line[choice.randrange(len(line)) :][: choice.choice((1, 2, 5, 12))]
    fill = choice.choice(
        (choice.choice(_FILLERS), part, choice.choice(seeds.keywords), choice.choice(seeds.keywords) + b" ")
    )
    made = line[:at] + (fill * (size // len(fill) + 1))[:size] + choice.choice((b"", line[at:]))
    count = choice.choices((1, 2, 10), (8, 2, 1))[0]
    return b"\n".join([data, *[made] * count, choice.choice((b"", data))])


def gigantic(data: bytes, choice: random.Random, seeds: Seeds) -> bytes:
    """One line of everything, or a line that goes on and on."""
    if choice.random() < 0.5:
        return data.replace(b"\n", choice.choice((b" ", b"", b"\\n", b"\r")))
    size = choice.choice((5_000, 17_000, 70_000) if choice.random() < 0.99 else (1_100_000, 4_300_000))
    at = choice.randrange(len(data) + 1)
    return data[:at] + choice.choice(_FILLERS)[:1] * size + data[at:]


def keywords(data: bytes, choice: random.Random, seeds: Seeds) -> bytes:
    """Words of the rules anywhere."""
    some = [choice.choice(seeds.keywords) for _ in range(choice.choices((3, 30, 200), (5, 3, 0.5))[0])]
    glue = choice.choice((b" ", b"\n", b": ", b"", b"\n[rank1]: "))
    at = choice.randrange(len(data) + 1)
    return data[:at] + glue.join(some) + data[at:]


_START = "Traceback (most recent call last):"
_CHAINS = (
    "\nDuring handling of the above exception, another exception occurred:\n",
    "\nThe above exception was the direct cause of the following exception:\n",
    "\n-- Process 3 terminated with the following error:", "Original " + _START,
)  # fmt: skip
_ERRORS = (
    "ValueError", "RuntimeError: CUDA error", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "KeyError: 'x'",
    "SystemExit: 3", "a.b.c.MyFailure(1, 2): x", "Error", "ExceptionGroup: many (3 sub-exceptions)", "ChildFailedError:", "AssertionError",
    "KeyboardInterrupt", "ConnectionResetError: [Errno 104] Connection reset by peer",
)  # fmt: skip


def tracebacks(data: bytes, choice: random.Random, seeds: Seeds) -> bytes:
    """Chains and groups, deep, half finished, and interleaved with what else was said."""
    made: list[str] = []
    margin = choice.choice(("", "", "  | ", "    | "))
    for _ in range(choice.choices((1, 3, 12, 150), (5, 5, 3, 0.3))[0]):
        start = f"  + Exception Group {_START}" if margin and choice.random() < 0.5 else _START
        made.append(margin + start)
        for number in range(choice.choices((0, 1, 3, 70), (5, 5, 5, 0.5))[0]):
            made += [
                f'{margin}  File "/home/u/f{number}.py", line {number}, in f{number}',
                f"{margin}    call({number})",
            ]
            if choice.random() < 0.2:
                made.append(margin + "    ^^^^~~~~^^^^" + " " * choice.choice((0, 60)))
        made.append(
            margin
            + choice.choice((*_ERRORS, *(line.decode("utf-8", "replace") for line in choice.sample(seeds.lines, 3))))
        )
        made.append(
            choice.choice((*_CHAINS, f"{margin}+-+---------------- 1 ----------------", "", "  note: and more"))
        )
        if choice.random() < 0.1:
            margin = choice.choice(("", margin + "  | "))[-400:]
    text = "\n".join(made).encode("utf-8", "surrogatepass")
    at = choice.randrange(len(data) + 1)
    return data[:at] + b"\n" + (interleave(text, choice, seeds) if choice.random() < 0.3 else text) + b"\n" + data[at:]


_TABLE = (
    "=" * 60, "train.py FAILED", "-" * 60, "Failures:", "  <NO_OTHER_FAILURES>", "-" * 60, "Root Cause (first observed failure):", "[0]:", "[1]:",
    "  time      : 2026-11-15_02:06:27", "  host      : node-3", "  rank      : 3 (local_rank: 3)", "  rank      : 999999 (local_rank: 99999)",
    "  exitcode  : -9 (pid: 4711)", "  exitcode  : 1 (pid: 0)", "  exitcode  : -999999999 (pid: 999999999)", "  error_file: <N/A>",
    "  traceback : Signal 9 (SIGKILL) received by PID 4711", f"  traceback : {_START}", '    File "a.py", line 3, in f', "  ValueError: x",
    "failed (exitcode: -9) local_rank: 2 (pid: 4711) of binary: /usr/bin/python", "failed (exitcode: 137) local_rank: 0 (pid: 1)",
)  # fmt: skip


def tables(data: bytes, choice: random.Random, seeds: Seeds) -> bytes:
    """torchrun's failure table with its lines in any order."""
    made = [line for line in _TABLE for _ in range(choice.choice((0, 1, 1, 1, 4)))]
    if choice.random() < 0.4:
        choice.shuffle(made)
    at = choice.randrange(len(data) + 1)
    return data[:at] + b"\n" + "\n".join(made).encode() + b"\n" + data[at:]


MUTATORS: tuple[Mutator, ...] = (
    drop, duplicate, shuffle, splice, interleave, prefixes, prefixes, truncate, flip, odd, endings, nuls, numbers, numbers, stamps, hostile,
    gigantic, keywords, tracebacks, tables,
)  # fmt: skip


_LARGE = 1 << 20
_CHEAP = (truncate, splice, flip, nuls, hostile, keywords, tracebacks, tables)
"""Also megabytes are no trouble for these: it is Paramedic whose time and memory are measured."""


def log(choice: random.Random, seeds: Seeds, most: int | None = None) -> bytes:
    most = most or choice.choices((600, 3_000, 12_000, 60_000, 400_000), (45, 45, 9, 0.6, 0.05))[0]
    data = window(choice.choice(seeds.logs), choice, most)
    for mutate in choice.sample(MUTATORS, choice.choice((1, 1, 2, 3))):
        if len(data) < _LARGE or mutate in _CHEAP:
            data = mutate(data, choice, seeds)[: 6 << 20]
    return utf16(data, choice, seeds) if choice.random() < 0.01 else data


# -- secrets -------------------------------------------------------------------------------------------------------

_TOKEN = "abcdefghijkmnopqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789"
_PLANTED = (
    ("HF_TOKEN=", "hf_", 34), ("git clone https://", "ghp_", 36), ("OPENAI_API_KEY: ", "sk-proj-7", 40), ("WANDB_API_KEY=", "", 40),
    ("Authorization: Bearer ", "", 32), ('{"password": "', "", 18), ("aws_secret_access_key = ", "", 40), ("--api-key ", "", 24),
    ("postgres://u:", "", 20),
)  # fmt: skip


def plant(data: bytes, choice: random.Random, seeds: Seeds) -> tuple[bytes, tuple[str, ...]]:
    """Whole lines with a secret, between others and beside what the rules look for."""
    lines = data.split(b"\n")
    planted = []
    for _ in range(choice.choice((1, 2, 5))):
        front, mark, size = choice.choice(_PLANTED)
        secret = mark + "".join(choice.choices(_TOKEN, k=size))
        behind = {"postgres://u:": "@db/x", '{"password": "': '"}'}.get(front, "")
        near = choice.choice(
            (b"", choice.choice(seeds.lines) + b" ", choice.choice(seeds.keywords) + b" ", b"[rank1]: ")
        )
        padding = b"x " * choice.choice((0, 0, 0, 190, 1_990, 7_990))
        line = (
            near
            + padding
            + f"{front}{secret}{behind}".encode()
            + choice.choice((b"", b" " + choice.choice(seeds.keywords)))
        )
        lines.insert(choice.randrange(len(lines) + 1), line)
        planted.append(secret)
    return b"\n".join(lines), tuple(planted)


# -- inputs --------------------------------------------------------------------------------------------------------

_NAMES = (
    "job.log", "rank3.log", "slurm-123.out", "0.log", "attempt_0/1/stdout.log", "attempt_3/99999/stderr.log", "rank_7/console.txt", "error.json",
    "log_12.txt", "worker-2.err", "a b\n\x1b[31mc.log", "rank999999.log", "process-00012.out", "x" * 200 + ".log", "\udcff\udcfe.log", "log",
)  # fmt: skip


def one(choice: random.Random, seeds: Seeds) -> Sample:
    data = log(choice, seeds)
    secrets: tuple[str, ...] = ()
    if choice.random() < 0.2:
        data, secrets = plant(data, choice, seeds)
    name = choice.choice(_NAMES) if choice.random() < 0.5 else "job.log"
    return Sample("log", {name: data}, name, len(data), secrets)


def folder(choice: random.Random, seeds: Seeds) -> Sample:
    """Rank files of one job: the same log for all, or different ones."""
    same = log(choice, seeds, 1_000)
    shape = choice.choice(
        (
            "rank{r}.log",
            "{r}.log",
            "attempt_0/{r}/stderr.log",
            "attempt_{r}/0/stdout.log",
            "node{r}/rank_{r}.txt",
            "{n}",
        )
    )
    files: Files = {}
    for rank in range(choice.choices((2, 3, 8), (5, 3, 1))[0]):
        data = b"" if choice.random() < 0.1 else same if choice.random() < 0.4 else log(choice, seeds, 800)
        files[shape.format(r=rank, n=_NAMES[(rank * 5) % len(_NAMES)])] = data
    if choice.random() < 0.3:
        files["attempt_0/1/error.json"] = _error_file(choice, seeds)
    if choice.random() < 0.05:
        files[".hidden"] = files["a.py"] = files["x.tar"] = b"x"
    return Sample("folder", files, "", sum(map(len, files.values())))


def _error_file(choice: random.Random, seeds: Seeds) -> bytes:
    text = choice.choice(seeds.lines).decode("utf-8", "replace")
    stack = tracebacks(b"", choice, seeds).decode("utf-8", "replace")
    odd_values: tuple[Any, ...] = (
        "x",
        3,
        None,
        [],
        {},
        "9" * 4_000,
        -1,
        1e300,
        True,
        ["a", {"b": [[[]]]}],
        "1789442782",
        10**400,
    )
    extra = {"py_callstack": choice.choice((stack, stack, *odd_values)), "timestamp": choice.choice(odd_values)}
    message = choice.choice(
        (
            {"message": text, "extraInfo": extra},
            {"message": choice.choice(odd_values), "extraInfo": extra},
            text,
            *odd_values,
        )
    )
    data = json.dumps(choice.choice(({"message": message}, {"message": message}, message, [message]))).encode()
    if choice.random() < 0.05:
        data = b'{"message":' * 50_000
    return choice.choice((lambda d, *_: d, lambda d, *_: d, flip, truncate, odd))(data, choice, seeds)


def error_file(choice: random.Random, seeds: Seeds) -> Sample:
    data = _error_file(choice, seeds)
    return Sample("error", {"attempt_0/1/error.json": data}, "attempt_0/1/error.json", len(data))


def recorded(choice: random.Random, seeds: Seeds) -> Sample:
    """A recorded Run whose lines a stranger has changed."""
    files = dict(choice.choice(seeds.runs))
    name = choice.choice(sorted(files))
    for _ in range(choice.choice((1, 2, 4))):
        name = choice.choices(sorted(files), [8 if n == "events.jsonl" else 1 for n in sorted(files)])[0]
        change = choice.choice(
            (_values, _values, _values, flip, truncate, drop, duplicate, shuffle, odd, numbers, nuls)
        )
        files[name] = change(files[name], choice, seeds)
    size = sum(map(len, files.values()))
    if choice.random() < 0.3:
        packed = zstandard.ZstdCompressor(level=1).compress(
            _tar({name: files[name] for name in sorted(files, reverse=True)})
        )
        packed = choice.choice((lambda d, *_: d, truncate, flip))(packed, choice, seeds)
        return Sample("run", {"run.tar.zst": packed}, "run.tar.zst", size)
    return Sample("run", files, "", size)


_VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 3.5, -0.0, 1e308, 10**18, 10**30, "", "x", "9" * 5_000, "\x00\x1b[31m", "\ud800", [], {}, [1], ["x"] * 90, {"a": 1},
    [[[[]]]], "exit", "traceback", "line", "last", "progress", {"exitcode": -9, "pid": 3}, {"types": ["ValueError"]}, {"frames": ["a"], "at": [3, 2]},
    {"types": []}, {"types": [""]}, {"exitcode": 10**30, "pid": 1}, {"host": 3}, 999_999, 1_000_000, "node-1",
)  # fmt: skip


def _values(data: bytes, choice: random.Random, seeds: Seeds) -> bytes:
    """Other values, of other types, under the same names."""
    lines = data.split(b"\n")
    for _ in range(choice.choice((1, 3, 10))):
        at = choice.randrange(len(lines))
        try:
            item = json.loads(lines[at])
        except ValueError:
            continue
        inner = (
            item["fields"]
            if isinstance(item, dict) and isinstance(item.get("fields"), dict) and choice.random() < 0.4
            else item
        )
        if isinstance(inner, dict) and inner:
            key = choice.choice((*inner, *inner, "rank", "kind", "new"))
            value = choice.choice((*_VALUES, choice.choice(seeds.lines).decode("utf-8", "replace")))
            inner[key] = value
            if choice.random() < 0.05:
                del inner[choice.choice(sorted(inner))]
        lines[at] = json.dumps(item).encode()
    return b"\n".join(lines)


def _tar(files: Files, choice: random.Random | None = None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(
        fileobj=out, mode="w", format=tarfile.PAX_FORMAT if choice is None else choice.choice((0, 1, 2))
    ) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            if choice and choice.random() < 0.1:
                info.type = choice.choice(
                    (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, b"Z")
                )
                info.linkname = "/etc/passwd"
                info.size, data = 0, b""  # noqa: PLW2901
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def _zip(files: Files, choice: random.Random) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", choice.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name, (2026, 11, 15, 2, 6, 22)), data, archive.compression)
    return out.getvalue()


_ESCAPES = (
    "../../etc/x.log",
    "/etc/passwd",
    "a/../../b.log",
    "..\\..\\c.log",
    "C:\\x.log",
    "./rank0.log",
    "",
    "con",
    "a//b.log",
    "rank1.log/",
)


def archive(choice: random.Random, seeds: Seeds) -> Sample:
    """Packed once or twice, with names that lead out, cut off, damaged, or unpacking to far more than they are."""
    files = {
        name: data for name, data in folder(choice, seeds).files.items() if "\udcff" not in name and "\0" not in name
    }
    if choice.random() < 0.2:
        files[choice.choice(_ESCAPES)] = log(choice, seeds, 500)
    if choice.random() < 0.01:
        files["rank9.log"] = choice.choice(
            (b"\0", b"step 1 loss 1\n", b" ", b"Traceback (most recent call last):\n")
        ) * (BOMB // 20)
    size = sum(map(len, files.values()))
    if choice.random() < 0.2:
        name = choice.choice(sorted(files))
        files[name + ".gz"] = gzip.compress(files.pop(name), 1, mtime=0)
    if choice.random() < 0.1:
        files["inner.tar"] = _tar(files)
    data = _zip(files, choice) if choice.random() < 0.35 else _tar(files, choice)
    for _ in range(choice.choice((0, 1, 1, 2))):
        data = choice.choice((_gz, zstandard.ZstdCompressor(level=1).compress, _xz))(data)
    if choice.random() < 0.5:
        data = choice.choice((truncate, flip, flip, nuls))(data, choice, seeds)
    return Sample("archive", {"logs": data}, "logs", max(size, len(data)))


def _gz(data: bytes) -> bytes:
    return gzip.compress(data, 1, mtime=0)


def _xz(data: bytes) -> bytes:
    return lzma.compress(data, preset=0)


def noise(choice: random.Random, seeds: Seeds) -> Sample:
    """No log at all."""
    data = choice.randbytes(choice.choice((0, 1, 30, 600, 5_000)))
    head = choice.choice(
        (
            b"",
            b"\x1f\x8b\x08\x00",
            b"BZh9",
            b"\xfd7zXZ\x00",
            b"\x28\xb5\x2f\xfd",
            b"PK\x03\x04",
            b"PK\x05\x06",
            b"\0" * 257 + b"ustar",
            b"\xff\xfe",
        )
    )
    name = choice.choice(_NAMES)
    return Sample("noise", {name: head + data}, name, len(data) + 300)


_WIDEST = 20_000
"""Of a line in an export of hundreds of streams: else making it takes more memory than reading it may."""


def exported(choice: random.Random, seeds: Seeds) -> Sample:
    """What a cloud exports: more streams than hosts, stamps and messages without end, lists of nothing, cut off."""
    streams = choice.choices((1, 3, 40, 900), (5, 5, 2, 0.2))[0]
    lines = [line.decode("utf-8", "replace") for line in log(choice, seeds, 2_000).split(b"\n")] or [""]
    rows = []
    for number in range(max(streams, choice.choice((3, 30)))):
        at = choice.choices((1_700_000_000_000 + number, 10**15, -1), (20, 1, 1))[0]
        text = choice.choice(lines)[:_WIDEST] + choice.choices(("", "\n" * 3_000, "\nx\r\ny"), (20, 0.2, 2))[0]
        rows.append((at, f"job/algo-{number % streams}-1709640011", text))
    if choice.random() < 0.5:
        names = ("timestamp", "logStreamName", "message")
        made: list[Any] = [dict(zip(names, row, strict=True)) for row in rows]
        made[1:1] = choice.choices(([], [[]] * 5_000, [{"message": [[{}]] * 900}], ["x"]), (20, 1, 1, 1))[0]
        text = json.dumps(choice.choice((made, {"events": made})), indent=choice.choice((None, 1)))
        if choice.random() < 0.3:
            text = "\n".join(json.dumps(one) for one in made)
    else:
        stamps = ("", "", "", "", "9" * 4_400)
        text = "".join(f"{at}{choice.choice(stamps)}\t{name}\t{said}\n" for at, name, said in rows)
        text += choice.choices(("", "\n" * 100_000), (20, 1))[0]
    data = text.encode("utf-8", "replace")
    if choice.random() < 0.3:
        data = choice.choice((truncate, flip, numbers, odd))(data, choice, seeds)
    return Sample("export", {"events.json": data}, "events.json", len(data))


_AROUND = (
    b"[BUG] ", b"### Describe the bug\n", b"- [x] I have read this\n", b"**Environment**\n- CUDA version: 12.1\n", b"```\n", b"```", b"<details>\n",
    b"<img src=", b"![x](", b"\xe8\xae\xad\xe7\xbb\x83", b"? ", b"[" * 900, b"#" * 5_000, b"*" * 3_000, b"\n\n", b"I get this on two nodes.\n",
)  # fmt: skip


def post(choice: random.Random, seeds: Seeds) -> Sample:
    """What somebody posts: words, a tracker's form, and a log within them."""
    parts = [
        choice.choice(seeds.posts),
        log(choice, seeds, 2_000),
        *choice.choices(_AROUND, k=choice.choice((1, 4, 30))),
    ]
    if choice.random() < 0.6:
        lines = parts[0].split(b"\n")
        parts[:1] = [b"\n".join(lines[:1] + choice.sample(lines, len(lines)))]
    if choice.random() < 0.5:
        parts[1:] = choice.sample(parts[1:], len(parts) - 1)
    data = b"".join(parts)
    secrets: tuple[str, ...] = ()
    if choice.random() < 0.2:
        data, secrets = plant(data, choice, seeds)
    name = choice.choice(("post.md", "issue.txt"))
    return Sample("post", {name: data}, name, len(data), secrets)


_KINDS = (one, folder, archive, recorded, error_file, noise, exported, post)
_SHARES = (70, 9, 7, 9, 3, 2, 3, 8)


def sample(number: int, seeds: Seeds) -> Sample:
    choice = random.Random(number)
    make = choice.choices(_KINDS, _SHARES)[0]
    return make(choice, seeds)
