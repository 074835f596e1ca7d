"""Tracebacks are put together by rank, whatever stands between their lines, and the last one is never lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from paramedic.collect.tracebacks import MAX_FRAMES
from paramedic.model import Event

Tracebacks = Callable[..., list[Event]]

BODY = [
    "Traceback (most recent call last):",
    '  File "/srv/train.py", line 10, in <module>',
    "    main()",
    '  File "/srv/train.py", line 5, in main',
    "    step()",
    "    ~~~~^^",
]


def trace(exception: str, prefix: str = "") -> list[str]:
    return [prefix + line for line in (*BODY, exception)]


def test_a_plain_traceback(tracebacks: Tracebacks) -> None:
    (event,) = tracebacks("\n".join(["start", *trace("ValueError: bad"), "end"]))
    assert event.text == "ValueError: bad"
    assert event.line == event.seq == 8
    assert event.fields["frames"] == ["/srv/train.py:10 in <module>", "/srv/train.py:5 in main"]
    assert event.fields["types"] == ["ValueError"]
    assert event.fields["first_line"] == 2
    assert not event.fields["uncaught"]


def test_ranks_are_told_apart_line_by_line(tracebacks: Tracebacks) -> None:
    pairs = zip(trace("ValueError: zero", "[rank0]: "), trace("KeyError: 'one'", "[rank1]: "), strict=True)
    found = tracebacks("\n".join(line for pair in pairs for line in (*pair, "unprefixed noise")))
    assert [(e.rank, e.text, len(e.fields["frames"])) for e in found] == [
        (0, "ValueError: zero", 2),
        (1, "KeyError: 'one'", 2),
    ]
    assert all(event.fields["uncaught"] for event in found)


@pytest.mark.parametrize("prefix", ["[rank3]: ", "[default3]:", "[default3]:[rank3]: ", "[1,3]<stderr>:"])
def test_every_prefix_is_taken_off(tracebacks: Tracebacks, prefix: str) -> None:
    (event,) = tracebacks("\n".join(trace("ValueError: bad", prefix)))
    assert (event.rank, event.text, len(event.fields["frames"])) == (3, "ValueError: bad", 2)


def test_srun_labels_are_taken_off(tracebacks: Tracebacks) -> None:
    lines = [line for rank in (2, 10) for line in trace(f"ValueError: {rank}", f"{rank:>2}: ")]
    assert [(e.rank, e.text) for e in tracebacks("\n".join(lines))] == [(2, "ValueError: 2"), (10, "ValueError: 10")]


@pytest.mark.parametrize(
    "between",
    [
        "\nDuring handling of the above exception, another exception occurred:\n",
        "\nThe above exception was the direct cause of the following exception:\n",
    ],
)
@pytest.mark.parametrize("prefix", ["", "[rank1]: "])
def test_chained_exceptions_are_one_event(tracebacks: Tracebacks, between: str, prefix: str) -> None:
    middle = [prefix + line for line in between.split("\n")]
    text = "\n".join([*trace("KeyError: 'a'", prefix), *middle, *trace("RuntimeError: b", prefix)])
    (event,) = tracebacks(text)
    assert event.text == "KeyError: 'a'\nRuntimeError: b"
    assert event.fields["types"] == ["KeyError", "RuntimeError"]
    assert event.line == text.count("\n") + 1


def test_a_chain_whose_empty_lines_lost_their_prefix_is_one_event(tracebacks: Tracebacks) -> None:
    """torch's excepthook does not prefix empty lines."""
    chain = ["", "[rank1]: During handling of the above exception, another exception occurred:", ""]
    text = "\n".join([*trace("KeyError: 'a'", "[rank1]: "), *chain, *trace("RuntimeError: b", "[rank1]: ")])
    assert [event.text for event in tracebacks(text)] == ["KeyError: 'a'\nRuntimeError: b"]


@pytest.mark.parametrize("prefix", ["", "[rank2]: "])
def test_a_loader_workers_quoted_traceback_belongs_to_it(tracebacks: Tracebacks, prefix: str) -> None:
    quoted = [
        "Original Traceback (most recent call last):",
        '  File "/srv/data.py", line 7, in __getitem__',
        "    return parse(row)",
        "ValueError: bad sample",
    ]
    caught = "RuntimeError: Caught ValueError in DataLoader worker process 0."
    (event,) = tracebacks("\n".join([*trace(caught, prefix), *(prefix + line for line in quoted)]))
    assert event.text == f"{caught}\nValueError: bad sample"
    assert event.fields["types"] == ["RuntimeError", "ValueError"]
    assert event.fields["frames"][-1] == "/srv/data.py:7 in __getitem__"


@pytest.mark.parametrize("prefix", ["", "[rank0]: "])
def test_a_spawned_processs_quoted_traceback_belongs_to_it(tracebacks: Tracebacks, prefix: str) -> None:
    raised = "torch.multiprocessing.spawn.ProcessRaisedException: "
    middle = ["", "-- Process 1 terminated with the following error:"]
    lines = [*trace(raised, prefix), *(prefix + line for line in middle), *trace("ValueError: child", prefix)]
    (event,) = tracebacks("\n".join(lines))
    assert event.fields["types"][-1] == "ValueError"


def test_a_message_of_many_lines_is_kept_whole_under_torchs_prefix(tracebacks: Tracebacks) -> None:
    message = [
        "RuntimeError: NCCL error",
        "ncclSystemError: System call failed.",
        "Last error:",
        "",
        "connect: refused",
    ]
    lines = [*trace(message[0], "[rank1]: "), *("[rank1]: " + line for line in message[1:])]
    (event,) = tracebacks("\n".join([*lines, "[rank1]:[E603 17:48:01.005 x.cpp:1] something else"]))
    assert event.text == "\n".join(line for line in message if line)


def test_indented_lines_go_on_with_a_message(tracebacks: Tracebacks) -> None:
    lines = trace("RuntimeError: Error(s) in loading state_dict for Net:")
    (event,) = tracebacks("\n".join([*lines, '\tMissing key(s) in state_dict: "a".', "next line"]))
    assert event.text.endswith('Net:\n\tMissing key(s) in state_dict: "a".')


@pytest.mark.parametrize("prefix", ["", "[rank0]: "])
def test_two_tracebacks_in_a_row_are_two(tracebacks: Tracebacks, prefix: str) -> None:
    found = tracebacks("\n".join([*trace("ValueError: first", prefix), *trace("KeyError: 'second'", prefix)]))
    assert [event.text for event in found] == ["ValueError: first", "KeyError: 'second'"]


def test_a_restarted_rank_has_two_tracebacks(tracebacks: Tracebacks) -> None:
    between = ["W1115 02:25:09.237000 18403 api.py:1028] Restarting worker group"]
    found = tracebacks(
        "\n".join([*trace("ValueError: 1", "[rank0]: "), *between, *trace("ValueError: 2", "[rank0]: ")])
    )
    assert [event.text for event in found] == ["ValueError: 1", "ValueError: 2"]


def test_foreign_lines_in_between_do_not_break_it(tracebacks: Tracebacks) -> None:
    lines = trace("ValueError: bad")
    lines[3:3] = ["Epoch: 3", "loss 0.3", "node01:1:2 [0] NCCL INFO Connected all rings"]
    (event,) = tracebacks("\n".join(lines))
    assert (event.text, len(event.fields["frames"])) == ("ValueError: bad", 2)


def test_after_many_foreign_lines_it_is_given_up_but_what_was_seen_is_kept(tracebacks: Tracebacks) -> None:
    (event,) = tracebacks("\n".join([*BODY, *["lower case noise"] * 50]))
    assert event.text == "Traceback cut off in /srv/train.py:5 in main"
    assert event.fields["types"] == []


@pytest.mark.parametrize("keep", [2, 4, 6])
def test_a_traceback_cut_by_the_end_of_the_file_still_says_where(tracebacks: Tracebacks, keep: int) -> None:
    (event,) = tracebacks("\n".join(BODY[:keep]))
    assert event.text.startswith("Traceback cut off in /srv/train.py:")
    assert event.line == 1


def test_a_heading_alone_is_nothing(tracebacks: Tracebacks) -> None:
    assert tracebacks("Traceback (most recent call last):\n" * 3) == []


@pytest.mark.parametrize(
    ("exception", "type"),
    [
        ("KeyboardInterrupt", "KeyboardInterrupt"),
        ("StopIteration", "StopIteration"),
        ("AssertionError", "AssertionError"),
        ("torch.OutOfMemoryError: CUDA out of memory.", "torch.OutOfMemoryError"),
        ("queue.Empty", "queue.Empty"),
        ("ray.exceptions.RayTaskError(ValueError): x", "ray.exceptions.RayTaskError(ValueError)"),
        ("OutOfData: no more", "OutOfData"),
        ("zmq.error.Again: 3 times", "zmq.error.Again"),
        ("Exception: boom", "Exception"),
    ],
)
def test_exceptions_of_all_names_and_without_a_message(tracebacks: Tracebacks, exception: str, type: str) -> None:
    (event,) = tracebacks("\n".join(trace(exception)))
    assert (event.text, event.fields["types"]) == (exception, [type])


@pytest.mark.parametrize(
    "line", ["Epoch: 3", "Step: 100 loss 3", "Warning: something", "NCCL: x", "train: x", "Iteration: 7"]
)
def test_ordinary_lines_are_not_taken_for_the_exception(tracebacks: Tracebacks, line: str) -> None:
    (event,) = tracebacks("\n".join([*BODY, line, "RuntimeError: real"]))
    assert event.text == "RuntimeError: real"


GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "/srv/train.py", line 3, in <module>
  |     raise ExceptionGroup("several", errors)
  | ExceptionGroup: several (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/srv/train.py", line 9, in one
    |     raise ValueError("a")
    | ValueError: a
    +---------------- 2 ----------------
    | KeyError: 'b'
    +------------------------------------
"""


@pytest.mark.parametrize("prefix", ["", "[rank4]: "])
def test_an_exception_group_gives_all_its_exceptions(tracebacks: Tracebacks, prefix: str) -> None:
    text = "".join(f"{prefix}{line}\n" for line in GROUP.splitlines()) + "next\n"
    (event,) = tracebacks(text)
    assert event.text == "ExceptionGroup: several (2 sub-exceptions)\nValueError: a\nKeyError: 'b'"
    assert event.fields["types"] == ["ExceptionGroup", "ValueError", "KeyError"]
    assert event.fields["frames"] == ["/srv/train.py:3 in <module>", "/srv/train.py:9 in one"]


def test_a_traceback_may_start_behind_a_progress_bar(tracebacks: Tracebacks) -> None:
    bar = "".join(f"\rEpoch 1: {n}%|###| {n}/100 [00:01<00:02, 3.5it/s]" for n in range(2000))
    (event,) = tracebacks(bar + "\r" + "\n".join(trace("ValueError: bad")) + "\n")
    assert (event.text, event.line, event.fields["first_line"]) == ("ValueError: bad", 7, 1)


def test_colours_do_not_hide_it(tracebacks: Tracebacks) -> None:
    lines = [f"\x1b[31m{line}\x1b[0m" for line in trace("ValueError: bad", "[rank1]: ")]
    (event,) = tracebacks("\n".join(lines))
    assert (event.rank, event.text) == (1, "ValueError: bad")


def test_windows_line_ends_change_nothing(tracebacks: Tracebacks) -> None:
    chain = ["", "During handling of the above exception, another exception occurred:", ""]
    lines = [*trace("KeyError: 'a'"), *chain, *trace("ValueError: bad"), "next"]
    (unix,), (windows,) = tracebacks("\n".join(lines)), tracebacks("\r\n".join(lines))
    assert windows == unix
    assert windows.text == "KeyError: 'a'\nValueError: bad"


def test_a_very_deep_traceback_keeps_both_ends_and_its_exception(tracebacks: Tracebacks) -> None:
    deep = [line for n in range(2000) for line in (f'  File "/srv/a.py", line {n}, in f{n}', "    f()", "    ~^^")]
    (event,) = tracebacks("\n".join([BODY[0], *deep, "RecursionError: maximum recursion depth exceeded"]))
    assert event.text.startswith("RecursionError")
    assert len(event.fields["frames"]) == MAX_FRAMES
    assert event.fields["frames"][0].endswith("f0")
    assert event.fields["frames"][-1].endswith("f1999")


def test_an_endless_message_is_bounded(tracebacks: Tracebacks) -> None:
    lines = [*trace("ValueError: x", "[rank0]: "), *["[rank0]: " + "y" * 1000] * 1000]
    assert all(len(event.text) <= 16_000 for event in tracebacks("\n".join(lines)))


def test_the_first_and_the_last_tracebacks_are_kept(tracebacks: Tracebacks) -> None:
    text = "\n".join(line for n in range(1000) for line in (*trace(f"ValueError: {n}"), ""))
    kept = [int(event.text.split()[-1]) for event in tracebacks(text)]
    assert kept == [*range(200), *range(800, 1000)]
    kept = [int(event.text.split()[-1]) for event in tracebacks(text, rank=3)]
    assert kept == [*range(40), *range(960, 1000)]


def test_a_rank_that_went_silent_in_mid_traceback_does_not_slow_down_the_rest(tracebacks: Tracebacks) -> None:
    noise = ["[rank1]: step"] * 25_000
    found = tracebacks("\n".join([*("[rank0]: " + line for line in BODY), *noise, "[rank0]: ValueError: much later"]))
    assert [event.text for event in found] == ["Traceback cut off in /srv/train.py:5 in main"]


def test_a_remote_traceback_of_a_pool_is_read(tracebacks: Tracebacks) -> None:
    lines = ["multiprocessing.pool.RemoteTraceback: ", '"""', *trace("ValueError: bad"), '"""', "",
             "The above exception was the direct cause of the following exception:", "", *trace("ValueError: bad")]  # fmt: skip
    assert [event.text for event in tracebacks("\n".join(lines))] == ["ValueError: bad"] * 2
