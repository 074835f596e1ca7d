"""Damaged programs beside a healthy log, through the whole diagnosis: no traceback, no time-out.

python bench/fuzz_programs.py --inputs 20000           programs number 1, 2, … of the ward's
python bench/fuzz_programs.py --repeat 4711            one of them once more, with its traceback

A program is its number. Most of them still parse: lines are taken out, doubled, moved, taken from other programs, names are
exchanged, so that rules meet code that nobody would write.
"""

from __future__ import annotations

import argparse
import io
import keyword
import random
import tempfile
import time
import tokenize
from collections import Counter
from functools import cache
from pathlib import Path

from paramedic.collect.beside import read_beside
from paramedic.errors import ParamedicError
from paramedic.knowledge import Knowledge, load
from paramedic.pipeline import Options, compile_prefilter, examine, read
from paramedic.prefilter import Prefilter
from paramedic.report import FORMATS, render
from paramedic.ward.case import CASES, PROGRAMS

LOG = "".join(f"rank {rank} step {step} loss {1 / (step + 1):.4f}\n" for step in range(6) for rank in range(2))
SECONDS = 2.0
"""More processor time than this for one program is wrong."""


@cache
def seeds() -> list[str]:
    return [path.read_text("utf-8") for path in sorted([*CASES.glob("*/*.py"), *PROGRAMS.glob("*.py")])]


@cache
def known() -> tuple[Knowledge, Prefilter]:
    knowledge = load()
    return knowledge, compile_prefilter(knowledge)


def program(number: int) -> str:
    chance = random.Random(number)
    text = chance.choice(seeds())
    for _ in range(chance.choice((1, 1, 2, 3, 6, 12))):
        text = chance.choice((_lines, _lines, _names, _names, _numbers, _moved, _bytes, _growing))(text, chance)
    return "\ufeff" * (number % 97 == 0) + text


def _lines(text: str, chance: random.Random) -> str:
    lines = text.split("\n")
    at, many = chance.randrange(len(lines)), chance.choice((1, 1, 2, 5))
    piece = lines[at : at + many]
    match chance.randrange(4):
        case 0:
            del lines[at : at + many]
        case 1:
            lines[at:at] = piece
        case 2:
            other = chance.choice(seeds()).split("\n")
            begin = chance.randrange(len(other))
            lines[at:at] = other[begin : begin + many]
        case _:
            lines[at : at + many] = [line[4:] if line.startswith("    ") else f"    {line}" for line in piece]
    return "\n".join(lines)


def _names(text: str, chance: random.Random) -> str:
    """One name is called what another is called, everywhere or once."""
    names = sorted(set(_identifiers(text)))
    if len(names) < 2:
        return text
    old, new = chance.sample(names, 2)
    return text.replace(old, new, chance.choice((-1, 1, 2)))


def _identifiers(text: str) -> list[str]:
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        return [word for word in text.split() if word.isidentifier()]
    return [t.string for t in tokens if t.type == tokenize.NAME and not keyword.iskeyword(t.string)]


def _numbers(text: str, chance: random.Random) -> str:
    digits = [at for at, letter in enumerate(text) if letter.isdigit()]
    if not digits:
        return text
    at = chance.choice(digits)
    return (
        text[:at]
        + chance.choice(("0", "-1", "1e400", "9" * 5000, "0x" + "f" * 5000, "None", "'x'", "rank", "f(x)[0]"))
        + text[at + 1 :]
    )


def _moved(text: str, chance: random.Random) -> str:
    """A statement wanders to another place."""
    lines = text.split("\n")
    line = lines.pop(chance.randrange(len(lines)))
    lines.insert(chance.randrange(len(lines) + 1), line)
    return "\n".join(lines)


def _bytes(text: str, chance: random.Random) -> str:
    at = chance.randrange(len(text) + 1)
    odd = chance.choice(
        ("\0", "(" * 300, "\\", '"""', "\t", "é\u202e", "lambda: ", "*", "[" * 90 + "]" * 90, "{**x, 'a': 1}")
    )
    return text[:at] + odd + text[at + chance.choice((0, 1, 40)) :]


_GROWING = (
    "x = x + x", "x = x * x", "x = (x, x)", "x = [*x, *x]", "x = {'a': x, 'b': x}", "y = (y, x); x = (x, y)", "x.append(y); y.append(x)",
    "x = f'{x}{x}'", "x += x", "if dist.get_rank() == 0: x = (x, y)", "y = x if rank else (y, y)", "x = [x for y in x]", "x = model(x, x)",
)  # fmt: skip


def _growing(text: str, chance: random.Random) -> str:
    """A statement that makes something of twice the size, again and again, with a little that begins it; or one long line."""
    lines = text.split("\n")
    at = chance.choice((len(lines), chance.randrange(len(lines) + 1)))
    margin = " " * (len(lines[at]) - len(lines[at].lstrip())) if at < len(lines) else ""
    begin = chance.choice(
        ("x = y = 3", "x = y = [0]", "x = y = (rank, 1)", "x = y = {}", "x = y = loss", "é = x = y = 'é'")
    )
    many = chance.choice((12, 40, 200))
    match chance.randrange(4):
        case 0:
            made = [chance.choice(("to(", "x.to(", "[", "(", "f(*", "save(x, ")) * many + "x"]
            made[0] += "".join({"(": ")", "[": "]"}[one] for one in reversed(made[0]) if one in "([")
        case 1:
            made = [chance.choice(("to();", "x = 1;", "é = to(1);")) * 20 * many]
        case _:
            made = [chance.choice(_GROWING)] * many
    lines[at:at] = [margin + line for line in (begin, *made)]
    return "\n".join(lines)


def once(number: int, folder: Path, shown: bool) -> str:
    """The rule of the verdict; empty where there is none."""
    (folder / "train.py").write_text(program(number), "utf-8")
    (folder / "job.log").write_text(LOG)
    knowledge, prefilter = known()
    began = time.process_time()
    beside = read_beside([str(folder)], ["torchrun", "--nproc-per-node", "2", str(folder / "train.py")])
    report = examine(read([str(folder / "job.log")], prefilter), knowledge, prefilter, Options(), beside)
    if shown:
        for name in FORMATS:
            render(report, name)
    if (took := time.process_time() - began) > SECONDS * (1 + len(FORMATS) * shown):
        raise AssertionError(f"{took:.1f} s of processor time")
    return report.verdict.rule if report.verdict else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=2000)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--repeat", type=int)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if args.repeat is not None:
            print(once(args.repeat, Path(name), True) or "no verdict")
            return 0
        verdicts, failures = Counter[str](), 0
        for number in range(args.first, args.first + args.inputs):
            try:
                verdicts[once(number, Path(name), number % 50 == 0)] += 1
            except ParamedicError:
                verdicts["refused"] += 1
            except Exception as error:
                failures += 1
                print(f"{number}: {type(error).__name__}: {str(error)[:200]}", flush=True)
    print(
        f"{args.inputs} programs, {failures} failures; {sum(verdicts.values()) - verdicts['']} verdicts: {dict(verdicts.most_common(12))}"
    )
    return int(bool(failures))


if __name__ == "__main__":
    raise SystemExit(main())
