"""One screen, at any width, and nothing in a log can steer the terminal."""

from __future__ import annotations

import re
from dataclasses import replace
from io import BytesIO, StringIO, TextIOWrapper

import pytest
import reports
from rich.cells import cell_len
from rich.console import Console

from paramedic.model import Cause, Evidence, Fix, Report, Run
from paramedic.report import ShownReport, render
from paramedic.report.escape import encodable, one_line, printable
from paramedic.report.text import render as render_text
from paramedic.report.words import compact, examined, on_ranks, percent

COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@pytest.mark.parametrize("name", ["typical", "silent_rank", "undecided", "empty", "many_ranks"])
def test_a_verdict_is_one_screen(name: str) -> None:
    assert len(render(reports.ALL[name](), "text", width=100).splitlines()) <= 40


def test_it_says_what_happened_why_what_to_do_and_where_to_learn_more() -> None:
    lines = render(reports.typical(), "text").splitlines()
    arrow = "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}"
    assert lines[0] == f"communication {arrow} collective hang · rank 3 on node-01 · 93 % sure"
    text = "\n".join(lines)
    order = [
        "Evidence",
        "skipping gradient sync",
        "Likely causes",
        "71 %",
        "Do this",
        "What followed",
        "VER004",
    ]
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    assert "61 messages on ranks 0-2 followed from this" in text
    assert lines[-1] == "learn more: paramedic explain COL003"


def test_without_a_verdict_it_says_what_was_examined_and_what_was_not() -> None:
    text = render(reports.undecided(), "text")
    assert text.startswith("No verdict: 1 finding, no first failure named\nExamined: 2 sources, 3,680 lines")
    assert "2 of 8 ranks left output" in text
    assert "logs/rank7.log.zst: truncated" in text
    assert "VER004" in text
    assert "pip install nvidia-nccl-cu12==2.27.3" in text
    assert render(reports.empty(), "text").startswith("No verdict: nothing could be examined")


@pytest.mark.parametrize("name", reports.ALL)
@pytest.mark.parametrize("width", [60, 61, 80, 100, 137, 200])
def test_no_line_is_wider_than_the_screen(name: str, width: int) -> None:
    shown = ShownReport.of(reports.ALL[name]())
    page = StringIO()
    Console(file=page, width=width).print(shown)
    assert max(map(cell_len, page.getvalue().splitlines())) <= width
    assert not any(line != line.rstrip() for line in page.getvalue().splitlines())


def test_a_long_command_is_not_broken() -> None:
    fix = Fix("version-and-dependency-management", "Do", "safe", {"kind": "command", "run": "a " * 99 + "b"})
    verdict = replace(reports.mismatch(), fixes=(fix,))
    assert "    " + "a " * 99 + "b\n" in render(Report(Run("r"), verdict), "text", width=60)


@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("terminal", [False, True])
def test_hostile_text_is_shown_and_not_obeyed(verbose: bool, terminal: bool) -> None:
    page = StringIO()
    console = Console(file=page, width=100, force_terminal=terminal, color_system="truecolor" if terminal else None)
    render_text(reports.hostile(), console, verbose)
    text = COLOUR.sub("", page.getvalue()) if terminal else page.getvalue()
    assert all(character.isprintable() or character == "\n" for character in text)
    whole = text.replace("\n", "")
    assert "[red]markup" in whole or not verbose
    assert r"\x1b]8;;" in whole or not verbose
    assert "<script>document.title" in whole


def test_a_terminal_without_unicode_gets_escapes() -> None:
    raw = BytesIO()
    console = Console(file=TextIOWrapper(raw, "ascii"), width=80)
    render_text(reports.typical(), console)
    console.file.flush()
    assert b"communication > collective hang - rank 3" in raw.getvalue()


def test_verbose_shows_all_quotes_with_context() -> None:
    text = render(reports.typical(), "text", verbose=True)
    assert "step 1351 loss 2.3120" in text
    assert text.count("Watchdog caught") == 2


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain", "plain"),
        ("a\x1b[1;31mb\x1b[0mc", "abc"),
        ("\x1b\x1b[0m[31m", r"\x1b[31m"),
        ("\x1b]0;t\x07", r"\x1b]0;t\x07"),
        ("a\r\nb\rc", "a\nb\\rc"),
        ("\x9b\x7f\x00", r"\x9b\x7f\x00"),
        ("\u202e\u2066\u200f\ufeff\u2028", r"\u202e\u2066\u200f\ufeff\u2028"),
        ("\ud800\udcff\U000e0041", r"\ud800\xff\U000e0041"),
        ("größe → 日本 \xa0", "größe → 日本 \xa0"),
    ],
)
def test_printable(raw: str, shown: str) -> None:
    assert printable(raw) == shown


def test_one_line_and_encodable() -> None:
    assert one_line(" a\n\tb ") == "a b"
    assert encodable("\x1b\udc80\ud83d") == "\x1b\\x80\\ud83d"


def test_numbers_in_words() -> None:
    assert compact([0, 1, 2, 3, 7]) == "0-3,7"
    assert compact([]) == ""
    assert compact(range(0, 100, 2), 2) == "0,2 and 48 more"
    assert on_ranks((5,)) == "rank 5"
    assert on_ranks(tuple(range(0, 100, 2))) == "50 ranks (0,2 and 48 more)"
    assert [percent(p) for p in (0, 0.001, 0.5, 0.996, 1)] == ["0 %", "<1 %", "50 %", ">99 %", "100 %"]


PACKAGES = "/home/me/venv/lib/python3.11/site-packages/"


def quoted(text: str, frames: list[str], types: list[str], width: int = 80) -> list[str]:
    event = reports.event(1, 4, text, None, "traceback", frames=frames, types=types)
    verdict = replace(reports.mismatch(), evidence=(Evidence(event),))
    shown = render(Report(Run("r"), verdict), "text", width=width)
    return [line.removeprefix("  │ ") for line in shown.splitlines() if line.startswith("  │ ")]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_quote_has_the_users_own_frame_and_the_whole_message(width: int) -> None:
    message = (
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: 29677, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
    )
    frames = [
        "/home/me/venv/bin/torchrun:6 in <module>",
        "/home/me/jobs/train.py:23 in main",
        f"{PACKAGES}torch/distributed/rendezvous.py:280 in _env_rendezvous_handler",
        f"{PACKAGES}torch/distributed/elastic/rendezvous/static_tcp_rendezvous.py:67 in next_rendezvous",
    ]
    lines = quoted(message, frames, ["torch.distributed.DistNetworkError"], width)
    assert lines[0] == "/home/me/jobs/train.py:23 in main"
    assert lines[1].startswith("…/") and lines[1].endswith("next_rendezvous"[: width - 20])
    assert " ".join(lines[2:]) == message  # between words, and nothing lost
    assert len(lines) <= 6


def test_the_quote_of_a_launchers_own_frames_leaves_out_its_script() -> None:
    frames = ["/home/me/venv/bin/torchrun:6 in <module>", f"{PACKAGES}torch/distributed/run.py:9 in run"]
    assert quoted("ValueError: no", frames, ["ValueError"])[1] == "…/site-packages/torch/distributed/run.py:9 in run"


def test_the_quote_of_a_loaders_worker_has_the_inner_exception() -> None:
    text = "ValueError: Caught ValueError in DataLoader worker process 0.\nValueError: cannot decode sample 300"
    frames = [f"{PACKAGES}torch/_utils.py:794 in reraise", "/home/me/train.py:13 in __getitem__"]
    assert quoted(text, frames, ["ValueError", "ValueError"]) == [frames[1], *text.split("\n")]


def test_the_quote_of_a_state_that_does_not_fit_has_the_first_keys() -> None:
    keys = ", ".join(f'"layers.{i}.weight"' for i in range(400))
    text = f"RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s): {keys}.\n\tUnexpected key(s): {keys}."
    frames = ["/home/me/train.py:32 in main", f"{PACKAGES}torch/nn/modules/module.py:2638 in load_state_dict"]
    lines = quoted(text, frames, ["RuntimeError"])
    assert len(lines) <= 6
    assert lines[2] == "RuntimeError: Error(s) in loading state_dict for Net:"
    assert lines[3].startswith('    Missing key(s): "layers.0.weight", ')
    assert lines[5].startswith('    Unexpected key(s): "layers.0.weight", ') and lines[5].endswith("…")


def test_of_a_long_message_the_first_lines_and_the_last_are_quoted() -> None:
    text = "\n".join(("torch.distributed.DistBackendError: NCCL error", *"abcdefg", "Connect to 10.0.0.2 failed"))
    lines = quoted(text, [], ["torch.distributed.DistBackendError"])
    assert len(lines) == 6
    assert lines[0].endswith("NCCL error") and lines[-2:] == ["d …", "Connect to 10.0.0.2 failed"]


def test_verbose_quotes_every_frame() -> None:
    event = reports.event(1, 4, "E: no", None, "traceback", frames=[f"/a.py:{i} in f" for i in range(9)], types=["E"])
    verdict = replace(reports.mismatch(), evidence=(Evidence(event),))
    assert render(Report(Run("r"), verdict), "text", verbose=True).count(" in f") == 9


def test_the_base_rate_gives_way_before_the_reason_is_cut() -> None:
    causes = (
        Cause("network-interface-or-firewall-misconfiguration", 0.5, "base rate 47% (lab)"),
        Cause("collective-order-divergence", 0.3, "only some ranks have it; base rate 44% (lab)"),
    )
    verdict = replace(reports.mismatch(), causes=causes)
    narrow, wide = (render(Report(Run("r"), verdict), "text", width=width) for width in (90, 120))
    assert "only some ranks have it\n" in narrow and "base rate" not in narrow.replace("base rate 47% (lab)\n", "")
    assert "only some ranks have it; base rate 44% (lab)\n" in wide
    assert "base rate" not in render(Report(Run("r"), verdict), "text", width=80)


def test_an_alternative_is_said_whole() -> None:
    title = "Give every rank the same number of batches, and let the sampler drop what is left over at the end"
    verdict = replace(reports.mismatch(), fixes=(reports.RECIPE, replace(reports.LONGER, title=title)))
    assert f"or: {title} (safe)" in one_line(render(Report(Run("r"), verdict), "text", width=60))


def test_ranks_whose_lines_stand_in_one_file_are_not_said_to_be_silent() -> None:
    run = Run("r", (reports.source(None, 31),), world_size=2)
    assert examined(run) == "1 source, 31 lines, 2 ranks, not told apart"
    one = replace(run, events=(reports.event(1, 3, "RuntimeError: no", None, "traceback"),))
    assert examined(one) == "1 source, 31 lines, rank 1, 1 of 2 ranks told apart"
    apart = replace(run, sources=(reports.source(0), reports.source(None)))
    assert examined(apart).endswith("1 of 2 ranks left output")
