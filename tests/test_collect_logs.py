"""One log, whatever is in it: the right lines with the right numbers, bounded in memory, wherever the blocks end."""

from __future__ import annotations

import io
import random
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import ReadLog
from paramedic.collect import blocks, logs
from paramedic.collect.decoding import BinaryInput
from paramedic.collect.drafts import MAX_CONTEXT, MAX_TEXT
from paramedic.collect.files import collect
from paramedic.collect.logs import LogRead, read_log
from paramedic.collect.tail import TAIL
from paramedic.model import Event, Source
from paramedic.prefilter import Prefilter

OOM = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"
RECORDINGS = Path(__file__).parents[1] / "corpus"


def lines_of(found: LogRead) -> list[Event]:
    return [event for event in found.events if event.kind == "line"]


def of_kind(found: LogRead, kind: str) -> list[tuple[int | None, int | None, str]]:
    return [(event.rank, event.line, event.text) for event in found.events if event.kind == kind]


# -- which lines, and their numbers --------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_lines_are_numbered_from_one(read: ReadLog, end: str) -> None:
    found = read(end.join([OOM, "x", "", OOM, "y"]) + end)
    assert [event.line for event in lines_of(found)] == [1, 4]
    assert [event.text for event in lines_of(found)] == [OOM, OOM]
    assert found.source.lines == 5


@pytest.mark.parametrize("separator", ["\x0b", "\x0c", "\x85", "\u2028", "\x1c", "\r"])
def test_only_newlines_count_as_lines(read: ReadLog, separator: str) -> None:
    found = read(f"a{separator}b\n{OOM}\n")
    assert [event.line for event in lines_of(found)] == [2]
    assert found.source.lines == 2


def test_a_last_line_without_its_end_counts(read: ReadLog) -> None:
    found = read(f"a\n{OOM}")
    assert ([event.line for event in lines_of(found)], found.source.lines) == ([2], 2)


def test_a_hit_in_a_progress_bar_is_read_from_its_own_piece(read: ReadLog) -> None:
    bar = "".join(f"\r{n}%|##| {n}/999 [00:01<00:02, 3.5it/s]" for n in range(3000))
    (event,) = lines_of(read(f"a\n{bar}\r{OOM}\r{bar}\nb\n"))
    assert (event.text, event.line) == (OOM, 2)


def test_context_is_whole_lines_before_and_after(read: ReadLog) -> None:
    (event,) = lines_of(read(f"1\n2\n3\n4\r\n{OOM}\n\x1b[31m6\x1b[0m\nold\r7\n8\n9\n"))
    assert (event.fields["before"], event.fields["after"]) == (["2", "3", "4"], ["6", "7", "8"])


def test_a_part_of_a_line_is_no_context(read: ReadLog) -> None:
    """The rest of a long line might be what stood after `password=`."""
    long = "password=" + "S3cr3tS3cr3t" * 1000
    (event,) = lines_of(read(f"{long}\n{OOM}\n{long}\n"))
    assert (event.fields["before"], event.fields["after"]) == ([], [])


def test_context_is_redacted_across_lines_and_cropped(read: ReadLog) -> None:
    key = ["-----BEGIN RSA PRIVATE KEY-----", "MIIEpAIBAAKCAQEAx" + "Ab3" * 16, "more", "-----END RSA PRIVATE KEY-----"]
    (event,) = lines_of(read("\n".join(["y" * 1000, OOM, *key])))
    assert event.fields["before"] == ["y" * MAX_CONTEXT]
    assert event.fields["after"] == ["[redacted]"]


def test_a_secret_is_redacted_also_where_the_text_is_cut(read: ReadLog) -> None:
    for length in range(MAX_TEXT - 60, MAX_TEXT):
        (event,) = lines_of(read(f"{OOM} {'x' * (length - len(OOM))} hf_{'Q' * 40}\n"))
        assert "QQQ" not in event.text
    for length in range(15_950, 16_010):
        (event,) = lines_of(read(f"{OOM}{'x' * (length - len(OOM))} hf_{'Q' * 40}\n"))
        assert "QQQ" not in event.text


@pytest.mark.parametrize("rank", [None, 3])
def test_of_many_equal_lines_the_first_and_the_last_are_kept(read: ReadLog, rank: int | None) -> None:
    found = [event.line or 0 for event in lines_of(read(f"{OOM}\n" * 5000, rank=rank))]
    first, last = (400, 100) if rank is None else (8, 8)
    assert found == [*range(1, first + 1), *range(5000 - last + 1, 5001)]


def test_a_rare_line_is_kept_among_many_frequent_ones(read: ReadLog) -> None:
    rare = (
        "torch.distributed.DistNetworkError: The server socket has failed to listen: EADDRINUSE address already in use"
    )
    found = read(f"{OOM}\n" * 5000 + f"{rare}\n" + f"{OOM}\n" * 5000)
    assert 5001 in [event.line for event in lines_of(found)]


def test_the_quota_holds_also_while_a_traceback_is_open(read: ReadLog) -> None:
    found = read(f"Traceback (most recent call last):\n{OOM.replace('RuntimeError: ', '')} x\n" * 5000)
    assert len(lines_of(found)) <= 500


# -- the end of a log ----------------------------------------------------------------------------------------------


def test_each_ranks_last_line_and_last_progress_are_told(read: ReadLog) -> None:
    text = "\n".join(
        [
            "[rank0]: step 1 loss 0.5",
            "[rank1]: step 1 loss 0.4",
            "[rank0]: step 2 loss 0.3",
            "[rank1]: shutting down",
            "",
        ]
    )
    found = read(text)
    assert of_kind(found, "progress") == [(1, 2, "step 1 loss 0.4"), (0, 3, "step 2 loss 0.3")]
    assert of_kind(found, "last") == [(0, 3, "step 2 loss 0.3"), (1, 4, "shutting down")]


def test_a_rank_with_several_prefixes_has_one_last_line(read: ReadLog) -> None:
    found = read("[default1]:step 1\n[default1]:[rank1]: step 2\n[default1]:step 3\n")
    assert of_kind(found, "last") == [(1, 3, "step 3")]


@pytest.mark.parametrize("line", ["step 3 failed", "Error at step 3", "Traceback at iteration 5", "killed in epoch 3"])
def test_trouble_is_no_progress(read: ReadLog, line: str) -> None:
    assert of_kind(read(f"{line}\n"), "progress") == []


def test_the_last_line_of_a_progress_bar_is_what_the_terminal_showed(read: ReadLog) -> None:
    assert of_kind(read("\r 1%|#| 1/100\r 2%|#| 2/100\r\n"), "last") == [(None, 1, "2%|#| 2/100")]


def test_a_part_of_a_line_at_the_start_of_the_tail_is_nobodys_last_line(read: ReadLog) -> None:
    text = "[rank0]: " + "y" * TAIL + "\n[rank1]: end\n"
    assert of_kind(read(text), "last") == [(1, 2, "end")]


def test_the_tail_keeps_its_line_numbers(read: ReadLog) -> None:
    found = read("a line of some length\n" * 10_000 + "step 9\n")
    assert of_kind(found, "last") == [(None, 10_001, "step 9")]


# -- blocks --------------------------------------------------------------------------------------------------------


def read_in(data: bytes, prefilter: Prefilter, block: int, rank: int | None = None) -> LogRead:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK", block)
        patch.setattr(logs, "HEAD", 300)  # the first chunk is the head, whatever the blocks
        return read_log(io.BytesIO(data), Source("x", "log", rank), prefilter)


pieces = st.lists(
    st.one_of(
        st.sampled_from(
            [
                "", "step 1 loss 0.3", OOM, f"[rank1]: {OOM}", "Traceback (most recent call last):", "Failures:",
                '  File "a.py", line 3, in f', "    g()", "ValueError: x", "KeyError", "[rank1]: ValueError: y",
                "[rank1]: Traceback (most recent call last):", "=" * 60, "[0]:", "  rank      : 3 (local_rank: 3)",
                "  exitcode  : 1 (pid: 4)", "During handling of the above exception, another exception occurred:",
                "x" * 5000, "\r 3%|#|\r 4%|#|", f"\r50%\r{OOM}\r51%", "  + Exception Group Traceback (most recent call last):",
                "  | ValueError: z", "3: x", "é" * 30, f"{OOM}\r",
            ]
        ),
        st.text(alphabet=st.characters(exclude_characters="\n", exclude_categories=["Cs", "Cc"]), max_size=20),
    ),
    max_size=60,
)  # fmt: skip


@settings(max_examples=200, deadline=None, derandomize=True)
@given(pieces, st.integers(1, 9000), st.sampled_from(["\n", "\r\n"]))
def test_where_blocks_end_changes_nothing(parts: list[str], block: int, end: str) -> None:
    data = end.join(parts).encode()
    prefilter = _prefilter()
    whole = read_in(data, prefilter, 1 << 22)
    cut = read_in(data, prefilter, block)
    assert cut.events == whole.events
    assert cut.source == whole.source


def _prefilter() -> Prefilter:
    from paramedic.collect.logs import LITERALS

    return Prefilter([*LITERALS, "CUDA out of memory", "é"])


@pytest.mark.parametrize("block", [1 << 10, 5_000, 70_000])
def test_where_blocks_end_changes_nothing_in_real_logs(prefilter: Prefilter, block: int) -> None:
    for file in sorted(RECORDINGS.glob("*/merged-4/input/console.log"))[:8]:
        data = file.read_bytes() * 3
        whole, cut = read_in(data, prefilter, 1 << 22), read_in(data, prefilter, block)
        assert (cut.events, cut.source) == (whole.events, whole.source)


def test_every_line_is_read_once_and_only_once(prefilter: Prefilter) -> None:
    choice = random.Random(7)
    lines = [OOM if choice.random() < 0.1 else "x" * choice.randrange(200) for _ in range(3000)]
    data = "\n".join(lines).encode()
    wanted = [number for number, line in enumerate(lines, 1) if line == OOM]
    for block in (100, 4096, 1 << 20):
        found = read_in(data, prefilter, block)
        assert [event.line for event in lines_of(found)] == wanted
        assert found.source.lines == 3000


# -- absurd lines --------------------------------------------------------------------------------------------------


@dataclass
class Endless(io.RawIOBase):
    """A stream of one repeated piece that lies on no disk."""

    piece: bytes
    times: int
    end: bytes = b""

    def readable(self) -> bool:
        return True

    def parts(self) -> Iterator[bytes]:
        yield from (self.piece for _ in range(self.times))
        yield self.end

    def readinto(self, buffer: object) -> int:
        if not hasattr(self, "_parts"):
            self._parts, self._left = self.parts(), b""
        view = memoryview(buffer)  # type: ignore[arg-type]
        if not self._left:
            self._left = next(self._parts, b"")
        data, self._left = self._left[: len(view)], self._left[len(view) :]
        view[: len(data)] = data
        return len(data)


def peak_of(stream: Endless, prefilter: Prefilter) -> tuple[LogRead, float]:
    tracemalloc.start()
    try:
        found = read_log(io.BufferedReader(stream, 1 << 16), Source("x", "log"), prefilter)
        return found, tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()


def test_a_line_of_a_gigabyte_is_cut_and_the_next_line_is_read(prefilter: Prefilter) -> None:
    found, megabytes = peak_of(Endless(b"x" * (1 << 20), 1024, f"\n{OOM}\n".encode()), prefilter)
    assert megabytes < 50
    assert [event.line for event in lines_of(found)] == [2]
    assert found.source.lines == 2
    assert "only their beginning was read" in found.skipped[0].why


def test_a_gigabyte_of_progress_bar_does_not_hide_the_end(prefilter: Prefilter) -> None:
    bar = b"\r50%|##| 1/2 [00:01<00:02, 3.5it/s]" * 30_000
    found, megabytes = peak_of(Endless(bar, 200, f"\r{OOM}\n".encode()), prefilter)
    assert megabytes < 50
    assert [(event.line, event.text) for event in lines_of(found)] == [(1, OOM)]
    assert found.skipped == []


def test_a_long_line_keeps_the_beginning_of_its_text(prefilter: Prefilter) -> None:
    found, _ = peak_of(Endless(f"{OOM} {'x' * (1 << 20)}".encode(), 8, b"\nend\n"), prefilter)
    (event,) = lines_of(found)
    assert event.text.startswith(OOM)
    assert len(event.text) <= MAX_TEXT
    assert found.source.lines == 2


@pytest.mark.parametrize(
    "text",
    [
        "Traceback (most recent call last):\n" * 100_000,
        "Failures:\n" * 100_000,
        "Root Cause (first observed failure):\n[0]:\n" * 50_000,
        "".join(f"[rank{n}]: Traceback (most recent call last):\n" for n in range(50_000)),
        "Failures: 3\n" * 100_000,
        "failed (exitcode: x\n" * 100_000,
        "Traceback (most recent call last):\n" + "  x\n" * 200_000,
    ],
    ids=["tracebacks", "failures", "root-causes", "tracebacks-of-many-ranks", "summaries", "agent-lines", "indented"],
)
def test_a_log_of_nothing_but_headings_is_survived(read: ReadLog, text: str) -> None:
    found = read(text)
    assert [event for event in found.events if event.kind not in ("last", "complaint")] == []
    assert found.source.lines == text.count("\n")


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xfe\xfd invalid utf-8 \x80\n",
        b"\xed\xa0\x80 a lone surrogate \xed\xbf\xbf\n",
        b"some NULs \x00 in a long enough text that goes on and on\n" * 3,
        b"\x1b[2J\x1b[H\x1b]0;evil\x07\x1bP+q\x1b\\ escapes\n",
        b"\xef\xbb\xbfwith a byte order mark\n",
        b"\n\n\n",
        b"\r\r\r",
    ],
)
def test_odd_bytes_do_not_hide_the_lines_around_them(read: ReadLog, data: bytes) -> None:
    if data.startswith(b"\xff\xfe"):
        data = b"x" + data
    (event,) = lines_of(read(data * 20 + b"\n" + OOM.encode() + b"\n" + data))
    assert event.text == OOM
    assert event.line == data.count(b"\n") * 20 + 2


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("text in UTF-16\n".encode("utf-16"), "UTF-16"),
        ("text in UTF-16\n".encode("utf-16-be"), "binary"),
        (bytes(range(256)) * 10, "binary"),
        (b"\0" * 1000, "binary"),
    ],
)
def test_what_is_no_text_is_refused(read: ReadLog, data: bytes, why: str) -> None:
    with pytest.raises(BinaryInput, match=why):
        read(data)


def line_events(read: LogRead) -> list[Event]:
    return [event for event in read.events if event.kind == "line"]


def test_the_text_kept_of_one_source_is_bounded(read: ReadLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_KEPT", 100_000)
    text = "".join(f"{n} CUDA out of memory {'x y ' * 900}\n" for n in range(300))
    found = read(text)
    events = line_events(found)
    assert sum(len(event.text) for event in events) < 250_000
    assert events[0].line == 1 and events[-1].line == 300, "the first and the last ones stay"
    assert any("were left out: too much text" in left.why for left in found.skipped)
    assert not read("CUDA out of memory\n" * 300).skipped


def test_a_line_that_waits_keeps_little(read: ReadLog) -> None:
    text = "".join(f"CUDA out of memory {'x y ' * 9_000}\n" for _ in range(20))
    late = line_events(read(text, rank=1))[8:]
    assert late and all(len(event.text) <= 4_000 for event in late)


def test_what_waits_is_stored_short(prefilter: Prefilter) -> None:
    scan = logs._Scan(Source("a", "log", 1), prefilter, b"")
    scan._wait(b"x" * 100_000, [0])
    assert [len(raw) for waiting in scan.late.values() for _, raw in waiting] == [4_001]
    assert scan.late_bytes == 4_001


def test_the_text_kept_of_a_whole_run_is_bounded(
    tmp_path: Path, prefilter: Prefilter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paramedic.collect.files.MAX_KEPT", 20_000)
    for n in range(20):
        text = "".join(f"{i} CUDA out of memory {'x y ' * 200}\n" for i in range(30))
        (tmp_path / f"{chr(97 + n)}.log").write_text(text)
    run = collect([str(tmp_path)], prefilter)
    counts = Counter(event.source for event in run.events if event.kind == "line")
    assert counts[str(tmp_path / "a.log")] == 30
    assert counts[str(tmp_path / "t.log")] == 4
    assert max(e.line or 0 for e in run.events if e.source.endswith("t.log")) == 30, "the last ones stay"
    assert sum("hold too much text" in left.why for left in run.skipped) == 19


def test_the_last_step_of_a_rank_that_wrote_at_the_same_moment_as_another_is_known(tmp_path: Path) -> None:
    console = "".join(f"[rank {r}] it {s} loss 1.{s}\n" for s in range(6) for r in (0, 1))
    (tmp_path / "console.log").write_text(console + "[rank 0] it 6 loss 0.9[rank 1] it 6 loss 0.8\n\n")

    run = collect([str(tmp_path / "console.log")], Prefilter(("nothing",)))

    assert {event.rank: event.text for event in run.of_kind("progress")} == {
        0: "[rank 0] it 6 loss 0.9",
        1: "[rank 1] it 6 loss 0.8",
    }
