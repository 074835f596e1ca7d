"""The command line: its frozen surface, its exit codes, what it prints where, and that it starts fast."""

from __future__ import annotations

import argparse
import fcntl
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from paramedic import __version__
from paramedic.commands import VERBS, build_parser, flags, main
from paramedic.knowledge import Knowledge

RECORDING = str(Path(__file__).parents[1] / "corpus" / "rank-killed" / "merged-4" / "input")
OOM = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
SCHEMA = json.loads(resources.files("paramedic.report").joinpath("report.schema.json").read_text("utf-8"))
PARAMEDIC = [sys.executable, "-m", "paramedic"]

RULE_FLAGS = ["--select", "--ignore", "--rules", "--setting"]
SURFACE = {
    "demo": ["--output"],
    "diagnose": ["PATH", "COMMAND", "--saw", "--format", "--output", "-q", "--quiet", "-v", "--verbose", "--fail-on", *RULE_FLAGS],
    "check": ["DIR", "COMMAND", "--baseline", "--write-baseline", "--files-only", "--checkpoint", "--deep",
              "--python", "--refresh-facts", "--via", "--probe-only", "--format", "--output", "-q", "--quiet", "-v",
              "--verbose", "--fail-on", *RULE_FLAGS],
    "run": ["--dir", "--record", "--payload", "--last", "--max-disk", "--redact-data", "COMMAND", "--on-hang",
            "--no-live", "--metrics", "--webhook", "--retry", "--join", "--listen", "--gather", "--token-file",
            "--format", "--output", "-q", "--quiet", "-v", "--verbose", *RULE_FLAGS],
    "attach": ["PATH", "--pid", "--dir", "--nonblocking", "--via", "--collect", "--listen", "--nodes", "--wait",
               "--gather", "--token-file", "--format", "--output", "-q", "--quiet", "-v", "--verbose", "--fail-on",
               *RULE_FLAGS],
    "record": ["-o", "--dir", "--payload", "--last", "--max-disk", "--redact-data", "COMMAND", "--on-hang",
               "--no-live", "--metrics", "--webhook", "--retry", "--join", "--listen", "--gather", "--token-file",
               "--format", "--output", "-q", "--quiet", "-v", "--verbose", *RULE_FLAGS],
    "replay": ["DIR", "COMMAND", "--rank", "--all", "--procs", "--until", "--tolerant", "--warm-up", "--ops", "--pdb",
               "--trust", "-o", "--dir", "--format", "--output", "-q", "--quiet"],
    "compare": ["A", "B", "--format", "--output", "-q", "--quiet"],
    "diff": ["RUN_OK", "RUN_BAD", "--format", "--output", "-q", "--quiet", "-v", "--verbose", "--rules", "--setting"],
    "fix": ["DIR|REPORT", "--apply", "--unsafe", "--undo", *RULE_FLAGS],
    "explain": ["ID", "--format", "--rules", "--setting"],
    "rules": ["--format", "--rules", "--check", "--matrix"],
    "net": ["ACTION"],
    "memory": ["ACTION"],
    "submit": ["COMMAND", "--engine", "--nodes", "--gpus", "--ranks", "--time-limit", "--option", "--env", "--ship",
               "--checkpoint", "--tunable", "--step", "--retry", "--most-attempts", "--name", "--key", "--force", "--wait",
               "--dry-run", "--format"],
    "jobs": ["ID", "--format"],
    "logs": ["ID", "--rank", "--attempt", "--follow"],
    "cancel": ["ID"],
    "bundle": ["PATH", "-o", "--output", "--anonymous", "--with-logs", "--rules"],
    "ward": ["ACTION"],
    "study": ["ACTION"],
    "completion": ["shell"],
}  # fmt: skip
"""Public for ever. A line that changes here is a decision, not an accident."""

Captured = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("rules_loaded_once")


def parsers() -> dict[str, argparse.ArgumentParser]:
    action = next(a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    return dict(action.choices)


def run(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PARAMEDIC_")} | more.pop("env", {})
    return subprocess.run(
        [*PARAMEDIC, *arguments], capture_output=True, text=True, env=environment, check=False, **more
    )


# -- the surface ---------------------------------------------------------------------------------------------------


def test_verbs_and_flags_are_frozen() -> None:
    found = {
        verb: [
            name for action in parser._actions for name in action.option_strings or [str(action.metavar or action.dest)]
        ]
        for verb, parser in parsers().items()
    }
    assert {verb: [name for name in names if name not in ("-h", "--help")] for verb, names in found.items()} == SURFACE


def test_actions_of_the_ward_and_their_flags_are_frozen() -> None:
    action = next(a for a in parsers()["ward"]._actions if isinstance(a, argparse._SubParsersAction))
    assert {name: [flag for a in sub._actions for flag in a.option_strings] for name, sub in action.choices.items()} == {
        "list": ["-h", "--help", "--matrix", "--format", "--cases"],
        "run": ["-h", "--help", "--all", "--fixed", "--variants", "--jobs", "--shard", "--output", "--watched",
                "--no-diagnosis",
                "--strict", "--no-install", "--format", "-v", "--verbose", "--cases"],
        "score": ["-h", "--help", "--split", "--from", "--corpus", "--format", "--output", "--cases"],
    }  # fmt: skip
    assert tuple(SURFACE) == VERBS


def test_actions_of_the_study_and_their_flags_are_frozen() -> None:
    action = next(a for a in parsers()["study"]._actions if isinstance(a, argparse._SubParsersAction))
    assert {name: [flag for a in sub._actions for flag in a.option_strings] for name, sub in action.choices.items()} == {
        "fetch": ["-h", "--help", "--api", "--github-api", "--stackexchange-api", "--max-wait", "--format", "--db"],
        "tables": ["-h", "--help", "--labels", "--check", "--format", "--db", "--output"],
        "label": ["-h", "--help", "--score", "--next", "--ask", "--agreement", "--clusters", "--rater", "--second",
                  "--model", "--engine", "--workers", "--again", "--format", "--db"],
        "report": ["-h", "--help", "--labels", "--framework", "--data", "--db", "--output"],
        "priors": ["-h", "--help", "--labels", "--raters", "--check", "--format", "--db", "--output"],
    }  # fmt: skip


@pytest.mark.parametrize("arguments", [[], *([verb] for verb in VERBS)], ids=["paramedic", *VERBS])
def test_every_help_page_is_there(arguments: list[str], capsys: Captured) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*arguments, "--help"])
    assert stop.value.code == 0
    page = capsys.readouterr()
    assert page.out.startswith("usage: paramedic")
    assert page.err == ""
    if not arguments:
        assert all(f"\n    {verb}" in page.out for verb in VERBS)
        assert "Exit codes: 0" in page.out


def test_the_version_is_told(capsys: Captured) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert (stop.value.code, capsys.readouterr().out) == (0, f"paramedic {__version__}\n")


def test_help_imports_nothing_heavy() -> None:
    heavy = "rich jinja2 hyperscan zstandard ruamel torch numpy asyncio tarfile zipfile sqlite3 ssl http email multiprocessing"
    code = (
        "import sys; from paramedic.commands import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
        f"print(sorted(set(sys.modules) & set({heavy.split()!r})), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


# -- wrong usage ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nonsense"], "nonsense: no such verb; verbs: demo, diagnose, "),
        (["diagnos", "logs"], "did you mean: paramedic diagnose logs (see"),
        (["Rules"], "did you mean: paramedic rules (see"),
        ([RECORDING, "-v"], f"did you mean: paramedic diagnose {RECORDING} -v (see"),
        (["-"], "did you mean: paramedic diagnose - (see"),
        ([RECORDING, "b", "c", "d", "e"], f"paramedic diagnose {RECORDING} b c d … (see"),
        (["evil\x1b[31m\n verb"], "no such verb"),
        (["diagnose"], "required: PATH (see `paramedic diagnose --help`)"),
        (
            ["diagnose", "x", "--fromat", "json"],
            "--fromat: no such option; did you mean --format? (see `paramedic diag",
        ),
        (["net", "check", "--fromat=json"], "did you mean --format? (see `paramedic net check --help`)"),
        (["diagnose", RECORDING, "--output", "x.csv"], "x.csv: no format is called .csv; there are .html, .json, "),
        (
            ["diff", RECORDING, RECORDING, "--output", "x.html"],
            "x.html: no format is called .html; there are .json, .txt",
        ),
        (["diagnose", "x", "--nonsense"], "unrecognized arguments: --nonsense"),
        (["diagnose", "x", "--format", "xml"], "xml"),
        (["diagnose", "x", "--fail-on", "all"], "all"),
        (["completion", "tcsh"], "tcsh"),
        (["diagnose", "evil\x1b[31m\n.log"], "no such file or folder"),
        (["diagnose", "nul\0.log"], "no such file or folder"),
        (["diagnose", "/dev/zero"], "neither a file nor a folder"),
        (["diagnose", RECORDING, "--select", "NOPE001"], "NOPE001: no rule or symptom has this name"),
        (["diagnose", RECORDING, "--ignore", "NOPE001"], "NOPE001"),
        (["diagnose", RECORDING, "--rules", "/nowhere"], "/nowhere"),
        (["explain", "collective-hagn"], "collective-hang"),
        (["explain", " "], "no rule, symptom, cause"),
        (["bundle", "missing"], "missing: no such file or folder"),
        *(
            (["bundle", RECORDING, "-o", f"x{suffix}"], "a bundle is NAME.tar.zst or a folder")
            for suffix in (".gz", ".tar.gz", ".tgz", ".zip", ".ZIP", ".tar", ".tar.bz2", ".tar.xz")
        ),
    ],
)
def test_wrong_usage_is_one_line_on_stderr_and_code_2(arguments: list[str], says: str, capsys: Captured) -> None:
    try:
        code: object = main(arguments)
    except SystemExit as stop:
        code = stop.code
    page = capsys.readouterr()
    assert (code, page.out) == (2, "")
    assert says in page.err
    assert page.err.startswith("paramedic: ")
    assert page.err.count("\n") == 1
    assert page.err.strip("\n").isprintable()


def test_paramedic_alone_prints_the_help_on_stderr_and_is_code_2(capsys: Captured) -> None:
    with pytest.raises(SystemExit) as stop:
        main([])
    page = capsys.readouterr()
    assert (stop.value.code, page.out) == (2, "")
    assert page.err == build_parser().format_help()


def test_a_slip_in_the_config_file_is_code_2(in_tmp: Path, capsys: Captured) -> None:
    (in_tmp / "paramedic.toml").write_text('formt = "json"')
    assert main(["diagnose", RECORDING]) == 2
    assert "did you mean 'format'?" in capsys.readouterr().err


def test_an_internal_error_is_one_line_and_does_not_look_like_findings(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: object) -> int:
        raise ZeroDivisionError("division by\x1b zero")

    monkeypatch.setattr("paramedic.commands.rules.run", broken)
    monkeypatch.delenv("PARAMEDIC_DEBUG")
    assert main(["rules"]) == 2
    page = capsys.readouterr()
    assert page.out == ""
    assert page.err.startswith("paramedic: internal error: ZeroDivisionError: division by\\x1b zero; PARAMEDIC_DEBUG=1")
    assert page.err.count("\n") == 1
    monkeypatch.setenv("PARAMEDIC_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["rules"])


# -- exit codes and output -----------------------------------------------------------------------------------------


@pytest.fixture
def logs(in_tmp: Path) -> Path:
    (in_tmp / "bad.log").write_text(OOM)
    (in_tmp / "good.log").write_text("step 1 loss 0.3\nstep 2 loss 0.2\n")
    (in_tmp / "empty.log").write_text("")
    (in_tmp / "binary.log").write_bytes(bytes(range(256)))
    (in_tmp / "folder").mkdir()
    (in_tmp / "folder" / "train.py").write_text("x")
    return in_tmp


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["good.log"], 0),
        (["bad.log"], 1),
        (["bad.log", "--fail-on", "never"], 0),
        (["bad.log", "--fail-on", "warning"], 1),
        (["bad.log", "--select", "NET"], 0),
        (["bad.log", "--ignore", "MEM,JOB"], 0),
        (["empty.log"], 3),
        (["binary.log"], 3),
        (["folder"], 3),
        (["empty.log", "bad.log"], 1),
        (["missing.log"], 2),
        (["bad.log", "missing.log"], 2),
    ],
)
def test_exit_codes_and_json(logs: Path, arguments: list[str], code: int, capsys: Captured) -> None:
    assert main(["diagnose", *arguments, "--format", "json"]) == code
    page = capsys.readouterr()
    if code == 2:
        assert page.out == ""
        return
    assert page.err == ""
    document = json.loads(page.out)
    jsonschema.validate(document, SCHEMA)
    if code == 3:
        assert document["skipped"]


@pytest.mark.parametrize("format", ["text", "json", "sarif", "github", "html"])
def test_quiet_prints_nothing(logs: Path, format: str, capsys: Captured) -> None:
    assert main(["diagnose", "bad.log", "--quiet", "--format", format]) == 1
    assert main(["diagnose", "empty.log", "--quiet", "--format", format]) == 3
    assert main(["diagnose", "bad.log", "--quiet", "--format", format, "--output", "out"]) == 1
    assert capsys.readouterr() == ("", "")
    assert Path("out").stat().st_size > 0


@pytest.mark.parametrize("format", ["text", "json", "sarif", "github", "html"])
def test_the_output_file_is_what_would_have_been_printed(logs: Path, format: str, capsys: Captured) -> None:
    main(["diagnose", "bad.log", "--format", format])
    printed = capsys.readouterr().out
    assert main(["diagnose", "bad.log", "--format", format, "--output", "out"]) == 1
    page = capsys.readouterr()
    assert (page.out, page.err) == ("", "paramedic: wrote out\n")
    assert Path("out").read_text("utf-8") == printed
    assert main(["diagnose", "bad.log", "--format", format, "--output", "-"]) == 1
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize(
    ("name", "starts"),
    [
        ("rep.html", "<!doctype html>"),
        ("rep.json", '{\n  "schema_version"'),
        ("REP.JSON", '{\n  "schema_version"'),
        ("rep.sarif", '{\n  "$schema"'),
        ("rep.sarif.json", '{\n  "$schema"'),
        ("rep.txt", "memory › "),
    ],
)
def test_the_output_files_name_says_the_format(logs: Path, name: str, starts: str) -> None:
    assert main(["diagnose", "bad.log", "--output", name]) == 1
    assert Path(name).read_text("utf-8").startswith(starts)


@pytest.mark.parametrize("given", ["flag", "file", "environment"])
@pytest.mark.parametrize("format", ["text", "json"])
def test_a_format_that_was_asked_for_wins_over_the_output_files_name(
    logs: Path, given: str, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if given == "file":
        (logs / "paramedic.toml").write_text(f'format = "{format}"')
    elif given == "environment":
        monkeypatch.setenv("PARAMEDIC_FORMAT", format)
    more = ["--format", format] if given == "flag" else []
    assert main(["diagnose", "bad.log", "--output", "rep.html", *more]) == 1
    assert Path("rep.html").read_text("utf-8").startswith("{" if format == "json" else "memory › ")


@pytest.mark.parametrize("name", ["mem", "Mem001", "MEM", "device-out-of-memory"])
def test_select_and_ignore_take_rule_ids_in_any_case(
    logs: Path, name: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["diagnose", "bad.log", "--select", f"net,{name}"]) == 1
    assert main(["diagnose", "bad.log", "--ignore", name]) == 0
    monkeypatch.setenv("PARAMEDIC_IGNORE", name)
    assert main(["diagnose", "bad.log"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("target", ["missing/out", "bad.log/out", ".", "..", "/", "folder", "nul\0", "x" * 300, ""])
def test_where_nothing_can_be_written_it_says_so_and_leaves_nothing(logs: Path, target: str, capsys: Captured) -> None:
    before = sorted(path.name for path in logs.rglob("*"))
    assert main(["diagnose", "bad.log", "--output", target]) == 2
    page = capsys.readouterr()
    assert page.out == ""
    assert page.err.count("\n") == 1
    assert sorted(path.name for path in logs.rglob("*")) == before


def test_output_to_a_device_does_not_replace_the_device(logs: Path) -> None:
    assert main(["diagnose", "bad.log", "--output", "/dev/null"]) == 1
    assert not Path("/dev/null").is_file()
    assert not list(Path("/dev").glob("*.new"))


def test_a_full_disk_is_code_2_and_leaves_nothing(
    logs: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    before = sorted(logs.iterdir())
    assert main(["diagnose", "bad.log", "--output", "out"]) == 2
    assert "out: cannot be written: No space left on device" in capsys.readouterr().err
    assert sorted(logs.iterdir()) == before


def test_an_interrupt_is_130_and_quiet(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("paramedic.commands.rules.run", interrupted)
    assert main(["rules"]) == 130
    assert capsys.readouterr() == ("", "")


class Typed(io.RawIOBase):
    """Standard input that gives its pieces one by one; None is a Ctrl-C."""

    def __init__(self, *pieces: bytes | None) -> None:
        self.pieces = list(pieces)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self.pieces.pop(0) if self.pieces else b""
        if piece is None:
            signal.raise_signal(signal.SIGINT)
            return 0
        buffer[: len(piece)] = piece
        return len(piece)

    def as_stdin(self) -> io.TextIOWrapper:
        return io.TextIOWrapper(io.BufferedReader(self))


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


@pytest.mark.usefixtures("ctrl_c", "in_tmp")
def test_ctrl_c_ends_standard_input_and_what_came_before_is_used(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    skipped = [{"what": "-", "why": "interrupted: what came before was used"}]
    for verb in ("diagnose", "bundle"):
        stdin = Typed(OOM.encode(), None, b"never read\n").as_stdin()
        monkeypatch.setattr("sys.stdin", stdin)
        more = ["--format", "json"] if verb == "diagnose" else ["-o", "b.zst"]
        assert main([verb, "-", *more]) == int(verb == "diagnose")
        assert sys.stdin is stdin
    assert json.loads(capsys.readouterr().out)["skipped"] == skipped
    assert main(["diagnose", "b.zst", "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["skipped"] == skipped


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("pieces", [(None,), (OOM.encode(), b"", None)], ids=["before any input", "after its end"])
def test_ctrl_c_with_nothing_left_to_end_is_130(
    pieces: tuple[bytes | None, ...], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", Typed(*pieces).as_stdin())
    if pieces[0] is not None:
        monkeypatch.setattr("paramedic.pipeline.examine", lambda *_: signal.raise_signal(signal.SIGINT))
    assert main(["diagnose", "-"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_between_two_reads_ends_the_reading_and_a_second_one_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", Typed(b"first\n", b"never read\n").as_stdin())
    with flags.interruptible(["-"]) as skipped:
        assert sys.stdin.buffer.readline() == b"first\n"
        signal.raise_signal(signal.SIGINT)
        assert sys.stdin.buffer.read() == b""
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert [one.what for one in skipped] == ["-"]


# -- rules and explain ---------------------------------------------------------------------------------------------


@pytest.fixture
def own_rule(in_tmp: Path) -> Path:
    """A team's copy of a rule, with all its cases right."""
    signatures = resources.files("paramedic.knowledge").joinpath("signatures")
    file = next(f for f in signatures.iterdir() if f.name.startswith("MEM001-"))
    (in_tmp / "own").mkdir()
    copy = in_tmp / "own" / file.name
    copy.write_text(file.read_text("utf-8"), "utf-8")
    return copy


@pytest.mark.slow  # each rule's cases are tests of their own in test_knowledge
def test_the_cases_of_all_rules_are_checked(capsys: Captured, knowledge: Knowledge) -> None:
    assert main(["rules", "--check"]) == 0
    said = f"paramedic: checked the cases of {len(knowledge.rules):,} rules: none failed\n"
    assert capsys.readouterr() == ("", said)


def test_only_the_cases_of_the_named_folders_are_checked(own_rule: Path, capsys: Captured) -> None:
    assert main(["rules", "--check", "--rules", "own"]) == 0
    assert capsys.readouterr() == ("", "paramedic: checked the cases of 1 rule: none failed\n")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (f"```log fires rank=1\n{OOM}```\n```log silent\nfine\n```", []),
        (f"```log fires rank=7\n{OOM}```\n```log silent\nfine\n```", ["case 1: `log fires` fires on rank 1, not on rank 7"]),
        (f"```log fires\n{OOM}```\n```log silent\n{OOM}```", ["case 2: `log silent` does fire"]),
        ("```log fires\nfine\n```\n```log silent\nfine\n```", ["case 1: `log fires` does not fire; found instead: nothing"]),
        (f"```log fires\n{OOM}```", ["has no case `log silent`"]),
        ("", ["has no case `log fires`", "has no case `log silent`"]),
        (f"```log fires rank\n{OOM}```", ["a case has an option that is not written like rank=2"]),
        (f"```log fires rank=\x1b[31m\n{OOM}```\n```log silent\nfine\n```", ["case 1: `log fires` fires on rank 1, not on rank"]),
    ],
)  # fmt: skip
def test_each_case_that_fails_is_one_line_and_code_1(
    own_rule: Path, body: str, says: list[str], capsys: Captured
) -> None:
    front = own_rule.read_text("utf-8").split("```log")[0]
    own_rule.write_text(front + body + "\n", "utf-8")
    assert main(["rules", "--check", "--rules", "own"]) == int(bool(says))
    lines = capsys.readouterr().out.splitlines()
    assert [line.strip() for line in lines] == [f"{own_rule.name}: {problem}" for problem in says]
    assert main(["rules", "--check", "--rules", "own", "--format", "json"]) == int(bool(says))
    assert [row["rule"] for row in json.loads(capsys.readouterr().out)] == ["MEM001"] * len(says)


@pytest.mark.parametrize("prefix", ["MEM", "mem"])
def test_a_prefix_is_explained_by_its_rules(prefix: str, capsys: Captured, knowledge: Knowledge) -> None:
    assert main(["explain", prefix, "--format", "json"]) == 0
    entry = json.loads(capsys.readouterr().out)
    assert (entry["kind"], entry["id"]) == ("prefix", "MEM")
    assert entry["rules"] == {r.id: r.title for r in knowledge.rules.values() if r.id.startswith("MEM")}


@pytest.mark.parametrize("word", ["watchdog", "WatchDog", "watchdog-collective", "Watchdog caught"])
def test_a_word_is_explained_by_the_rules_that_speak_of_it(word: str, capsys: Captured) -> None:
    assert main(["explain", word]) == 0
    page = capsys.readouterr()
    assert "COL003: " in page.out
    assert "MEM001" not in page.out
    assert page.err == ""


def test_a_nickname_is_explained_by_the_rules_of_its_symptom_first(capsys: Captured, knowledge: Knowledge) -> None:
    assert main(["explain", "oom", "--format", "json"]) == 0
    listed = list(json.loads(capsys.readouterr().out)["rules"])
    symptoms = [knowledge.rules[id].symptom for id in listed if id in knowledge.rules]
    assert listed[0].startswith("MEM") and "HOST001" in listed
    assert symptoms == sorted(symptoms, key=lambda symptom: symptom != "device-out-of-memory")


@pytest.mark.parametrize("verb", VERBS)
def test_help_fits_the_screen(verb: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    text = capsys.readouterr().out.split("options:")[0].split("positional arguments:")[0]
    sentences = [line for line in text.splitlines() if not line.startswith((" ", "paramedic "))]
    assert [line for line in sentences if len(line) > 80] == []


def test_without_a_verdict_the_next_step_is_named(in_tmp: Path, capsys: Captured) -> None:
    Path("job.log").write_text("step 1 loss 2.0\nstep 2 loss 1.9\n", "utf-8")
    assert main(["diagnose", "job.log"]) == 0
    assert "\nnext: `paramedic run -- COMMAND` watches the job, " in capsys.readouterr().out
    Path("job.log").write_text("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n", "utf-8")
    main(["diagnose", "job.log"])
    assert "\nnext: ChildFailedError is only torchrun's wrapper: give the ranks' output, too" in capsys.readouterr().out
    assert main(["diagnose", "job.log", "--output", "page.html"]) == 0
    assert "torchrun&#39;s wrapper" in Path("page.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        (
            "a.log",
            "step 1 loss 2.0\nstep 2 loss 1.9\nTraining complete. Best 1.9\n",
            "found, and it ends normally: Training c",
        ),
        (
            "a.log",
            "step 1 loss 2.0\nstep 2 loss 1.9\nstep 3 loss 1.8\n",
            "found; it trains, and no line says that it ended",
        ),
        ("a.log", "foo bar\nqux 17\nhello there\n", "neither a training step nor an error that is known was"),
        ("a.md", "how do I enable FSDP in the trainer?\n", "these words name no failure that is known"),
        (
            "a.md",
            "at night a node vanishes or everything just waits, I cannot tell which\n",
            "words alone are too little for one; what they sound like",
        ),
    ],
)
def test_no_verdict_says_what_kind_of_silence_it_is(
    file: str, text: str, says: str, in_tmp: Path, capsys: Captured
) -> None:
    Path(file).write_text(text, "utf-8")
    assert main(["diagnose", file]) == 0
    page = " ".join(capsys.readouterr().out.split())
    assert page.startswith("No verdict: ")
    assert says in page
    assert " next: " in page


# -- as a real process ---------------------------------------------------------------------------------------------


def test_standard_input_and_a_pipe_are_read_whole(logs: Path) -> None:
    for command in (f"cat bad.log | {' '.join(PARAMEDIC)} diagnose - --format json",
                    f"{' '.join(PARAMEDIC)} diagnose <(cat bad.log) --format json"):  # fmt: skip
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (1, "")
        assert json.loads(done.stdout)["verdict"]["ranks"] == [1]


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = f"{' '.join(PARAMEDIC)} rules | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.split("\n")[1] in ("0", str(128 + signal.SIGPIPE))


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_full_standard_output_is_code_2(logs: Path, format: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([*PARAMEDIC, "diagnose", "bad.log", "--format", format], stdout=full, stderr=subprocess.PIPE, text=True, check=False)  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "paramedic: output: No space left on device\n")


def in_bash(command: str) -> subprocess.CompletedProcess[str]:
    """Without PARAMEDIC_DEBUG: its tracebacks would end with code 1, which looks like findings."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PARAMEDIC_")}
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment, check=False)


@pytest.mark.parametrize("format", ["text", "json"])
@pytest.mark.parametrize("redirection", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_streams_are_survived(logs: Path, redirection: str, format: str) -> None:
    done = in_bash(f"{' '.join(PARAMEDIC)} diagnose bad.log --format {format} {redirection}")
    assert (done.returncode, done.stderr) == (1, "")
    assert bool(done.stdout) == (">&-" not in redirection.replace("2>&-", ""))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("", 2),
        ("nonsense", 2),
        ("diagnose missing", 2),
        ("diagnose bad.log --output out", 1),
        ("bundle bad.log -o b", 0),
    ],
)
def test_what_would_go_to_a_closed_stderr_does_not_go_to_stdout(logs: Path, arguments: str, code: int) -> None:
    done = in_bash(f"{' '.join(PARAMEDIC)} {arguments} 2>&-")
    assert (done.returncode, done.stdout) == (code, "")


def test_ctrl_c_ends_the_reading_of_a_pipe_that_stays_open() -> None:
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from paramedic.commands import main; sys.exit(main(['diagnose', '-', '--format', 'json']))"
    )  # in the background of a script Ctrl-C is ignored
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin and process.stdout
        for piece in (OOM, "and so on\n"):  # once the second has been taken, the first has been read
            process.stdin.write(piece.encode())
            process.stdin.flush()
            deadline = time.monotonic() + 30
            while any(fcntl.ioctl(process.stdin, termios.FIONREAD, b"\0" * 4)):
                assert time.monotonic() < deadline
                time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 1
        document = json.loads(process.stdout.read())
    assert document["verdict"]["ranks"] == [1]
    assert document["skipped"] == [{"what": "-", "why": "interrupted: what came before was used"}]


def test_a_narrow_locale_gets_escapes_but_machines_get_utf8(in_tmp: Path) -> None:
    (in_tmp / "é🏖.log").write_text(OOM.replace("GiB.", "GiB. 🏖"))
    environment = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    assert run("diagnose", "é🏖.log", env=environment).returncode == 1
    done = run("diagnose", "é🏖.log", "--format", "json", env=environment, encoding="utf-8")
    assert done.returncode == 1
    assert json.loads(done.stdout)["verdict"]["evidence"][0]["source"] == "é🏖.log"


@pytest.mark.parametrize("columns", ["", "abc", "-5", "1", "٣", "99999999999"])
def test_an_odd_width_is_survived(logs: Path, columns: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["diagnose", "bad.log"]) == 1
    assert "out of memory" in capsys.readouterr().out.replace("\n", " ")


def test_a_file_name_that_is_no_text_is_survived(in_tmp: Path) -> None:
    name = os.fsencode(in_tmp) + b"/rank0-\xff\xfe.log"
    with open(name, "w") as file:
        file.write(OOM)
    for format in ("text", "json", "sarif", "github", "html"):
        done = run("diagnose", ".", "--format", format)
        assert (done.returncode, done.stderr) == (1, "")
    assert run("bundle", ".", "--output", "b.zst", "--with-logs").returncode == 0
    assert run("diagnose", "b.zst").returncode == 1


# -- completion ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[str]]:
    script = tmp_path_factory.mktemp("completion") / "paramedic"
    script.write_text(run("completion", "bash").stdout)

    def of(*words: str) -> list[str]:
        quoted = " ".join(f"'{word}'" for word in ("paramedic", *words))
        code = (
            f"source {script} && COMP_WORDS=({quoted}) COMP_CWORD={len(words)} && _paramedic && "
            'printf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=False)
        assert done.stderr == ""
        return [line for line in done.stdout.split("\n") if line]

    return of


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_verbs_flags_values_and_ids(complete: Callable[..., list[str]], knowledge: Knowledge) -> None:
    assert complete("") == [*VERBS, "--help", "--version"]
    assert complete("di") == ["diagnose", "diff"]
    assert complete("diagnose", "--f") == ["--format", "--fail-on"]
    assert complete("bundle", "--w") == ["--with-logs"]
    assert complete("diagnose", "x", "--format", "") == ["text", "json", "sarif", "github", "html"]
    assert complete("explain", "--format", "") == ["text", "json"]
    assert complete("explain", "MEM00") == [id for id in knowledge.rules if id.startswith("MEM00")]
    assert "collective-hang" in complete("explain", "coll")
    assert complete("completion", "") == ["bash", "zsh", "fish"]
    assert complete("diagnose", "x") == [], "the shell completes file names itself"


def test_zsh_uses_the_bash_script(capsys: Captured, tmp_path: Path) -> None:
    main(["completion", "bash"])
    bash = capsys.readouterr().out
    main(["completion", "zsh"])
    zsh = capsys.readouterr().out
    assert zsh.startswith("#compdef paramedic\n")
    assert "bashcompinit" in zsh
    assert zsh.endswith(bash)
    check(zsh, "zsh", tmp_path)


def test_fish_has_every_verb_and_flag(capsys: Captured, tmp_path: Path) -> None:
    main(["completion", "fish"])
    fish = capsys.readouterr().out
    for verb, names in SURFACE.items():
        assert f"__fish_use_subcommand -f -a {verb} -d '" in fish
        for name in names:
            if name.startswith("--"):
                assert any(
                    f"'__fish_seen_subcommand_from {verb}'" in line and f"-l {name[2:]}" in line
                    for line in fish.split("\n")
                )
    assert "-x -a 'text json sarif github html'" in fish
    assert "collective-hang" in fish
    assert fish.count("'") % 2 == 0
    check(fish, "fish", tmp_path)


def check(script: str, shell: str, folder: Path) -> None:
    """The shell's own opinion, where it is installed."""
    (folder / "script").write_text(script)
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(folder / "script")], check=True)
