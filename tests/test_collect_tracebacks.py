"""Tracebacks are put together by rank, whatever stands between their lines, and the last one is never lost."""

from __future__ import annotations

import json
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


def test_heads_without_anything_below_them_hide_no_traceback(tracebacks: Tracebacks) -> None:
    (event,) = tracebacks("\n".join(["start", *[BODY[0]] * 1000, *trace("ValueError: bad"), BODY[0], BODY[0]]))
    assert event.text == "ValueError: bad"
    assert event.line == 1008


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


# -- tracebacks in other clothes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prefix",
    [
        "2026-11-15 08:47:3{n},877 - ERROR - ",
        "[2026-11-15 08:47:3{n},605 E 227 254] ",
        "ERROR:root:",
        "[NeMo E 2026-11-15 08:47:3{n} exceptions:12] ",
        "Nov 15 08:47:3{n} node01 train[4711]: ",
    ],
)
def test_a_loggers_prefix_on_every_line_is_taken_off(tracebacks: Tracebacks, prefix: str) -> None:
    lines = [prefix.format(n=number) + line for number, line in enumerate(trace("ValueError: bad"))]
    (event,) = tracebacks("\n".join(lines))
    assert (event.text, event.fields["types"], len(event.fields["frames"])) == ("ValueError: bad", ["ValueError"], 2)


def test_a_loggers_prefix_on_the_first_line_alone(tracebacks: Tracebacks) -> None:
    first, *rest = trace("ValueError: bad")
    (event,) = tracebacks("\n".join([f"2026-11-15 08:47:31,877 ERROR {first}", *rest]))
    assert (event.text, len(event.fields["frames"])) == ("ValueError: bad", 2)


def test_a_traceback_within_one_line_of_json(tracebacks: Tracebacks) -> None:
    line = json.dumps(
        {"level": "ERROR", "message": "failed", "exc_info": "\n".join(trace("ValueError: bad")), "rank": 3}
    )
    (event,) = tracebacks(f"start\n{line}\nend")
    assert (event.text, len(event.fields["frames"]), event.line) == ("ValueError: bad", 2, 2)


BOX = """\
╭─────────────────────────── Traceback (most recent call last) ───────────────────────────╮
│ /srv/a/very/long/path/that/does/not/fit/into/the/width/of/the/terminal/so/it/is/wrapped/ │
│ train.py:10 in <module>                                                                  │
│                                                                                          │
│    9 if __name__ == "__main__":                                                          │
│ ❱ 10 │   main()                                                                          │
│   11                                                                                     │
│                                                                                          │
│ /srv/train.py:5 in main                                                                  │
│                                                                                          │
│ ❱  5 │   step()                                                                          │
╰──────────────────────────────────────────────────────────────────────────────────────────╯
ValueError: Expected input batch_size (16) to match target batch_size (11), and this is a
message that rich has broken into two.
next line"""


def test_richs_box(tracebacks: Tracebacks) -> None:
    (event,) = tracebacks(BOX)
    wrapped = "/srv/a/very/long/path/that/does/not/fit/into/the/width/of/the/terminal/so/it/is/wrapped/train.py"
    assert event.fields["frames"] == [f"{wrapped}:10 in <module>", "/srv/train.py:5 in main"]
    assert event.text.endswith("and this is a message that rich has broken into two.")


def test_richs_box_in_ascii_and_chained(tracebacks: Tracebacks) -> None:
    box = BOX.translate(str.maketrans("╭╮╰╯─│❱", "++++-|>")).removesuffix("next line")
    text = f"{box}\nDuring handling of the above exception, another exception occurred:\n\n{BOX}"
    (event,) = tracebacks(text)
    assert (event.fields["types"], len(event.fields["frames"])) == (["ValueError", "ValueError"], 4)


def test_richs_box_behind_a_ranks_prefix(tracebacks: Tracebacks) -> None:
    (event,) = tracebacks("\n".join(f"[rank2]: {line}" for line in BOX.split("\n")[:-1]))
    assert (event.rank, len(event.fields["frames"])) == (2, 2)


def test_logurus_traceback(tracebacks: Tracebacks) -> None:
    text = """\
2026-11-15 08:47:31.877 | ERROR    | __main__:<module>:10 - An error has been caught in function '<module>', process 'MainProcess' (123), thread 'MainThread' (140):
Traceback (most recent call last):

> File "/srv/train.py", line 10, in <module>
    main()
    └ <function main at 0x7f3a>

  File "/srv/train.py", line 5, in main
    step(batch)
    │    └ {'x': 3}
    └ <function step at 0x7f3b>

ValueError: bad
2026-11-15 08:47:32.000 | INFO     | __main__:<module>:11 - end"""
    (event,) = tracebacks(text)
    assert (event.text, len(event.fields["frames"])) == ("ValueError: bad", 2)


def test_hydras_words_around_a_traceback(tracebacks: Tracebacks) -> None:
    lines = [
        "Error executing job with overrides: ['lr=1']",
        *trace("ValueError: bad"),
        "",
        "Set the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.",
    ]
    (event,) = tracebacks("\n".join(lines))
    assert event.text == "ValueError: bad"


REMOTE = [
    *trace(
        "ray.exceptions.RayTaskError(ValueError): ray::_RayTrainWorker__execute.get_next() (pid=324, ip=10.0.0.2, actor_id=9a, repr=<x>)"
    ),
    '  File "/opt/ray/train/_internal/worker_group.py", line 33, in __execute',
    "    raise skipped from exception_cause(skipped)",
    '  File "/srv/train.py", line 28, in loop',
    "    step()",
    "ValueError: bad",
]


def test_rays_remote_traceback_goes_on_to_the_real_exception(tracebacks: Tracebacks) -> None:
    (event,) = tracebacks("\n".join([*REMOTE, "end"]))
    assert event.fields["types"][-1] == "ValueError"
    assert event.fields["frames"][-1] == "/srv/train.py:28 in loop"


def test_rays_remote_traceback_is_the_workers_whose_process_it_names(tracebacks: Tracebacks) -> None:
    known = ["(TorchTrainer pid=11) - (node_id=9a, ip=10.0.0.2, pid=324) world_rank=5, local_rank=0, node_rank=0"]
    (event,) = tracebacks("\n".join([*known, *REMOTE]))
    assert (event.rank, event.host) == (5, "10.0.0.2")


def test_rays_chain_of_remote_tracebacks_is_one(tracebacks: Tracebacks) -> None:
    cause = "The above exception was the direct cause of the following exception:"
    lines = [
        *REMOTE[:-1],
        "KeyError: 'a'",
        "",
        cause,
        "",
        "ray::F.f() (pid=324, ip=10.0.0.2)",
        '  File "x.py", line 1, in f',
        "RuntimeError: b",
    ]
    (event,) = tracebacks("\n".join(lines))
    assert event.fields["types"][-2:] == ["KeyError", "RuntimeError"]


def test_a_dead_ray_actors_process_names_the_rank(tracebacks: Tracebacks) -> None:
    known = ["(TorchTrainer pid=11) - (node_id=9a, ip=10.0.0.2, pid=324) world_rank=5, local_rank=0, node_rank=0"]
    died = [
        *trace("ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."),
        "\tclass_name: RayTrainWorker",
        "\tactor_id: 9a",
        "\tpid: 324",
        "\tnamespace: 1b",
        "\tip: 10.0.0.2",
    ]
    (event,) = tracebacks("\n".join([*known, *died]))
    assert event.rank == 5


def test_tensorflows_message_goes_on_to_its_operation(tracebacks: Tracebacks) -> None:
    message = [
        "tensorflow.python.framework.errors_impl.InvalidArgumentError: Graph execution error:",
        "",
        "Detected at node CollectiveReduceV2 defined at (most recent call last):",
        '  File "/srv/train.py", line 51, in validate',
        "",
        "Collective ops is aborted by: Shape mismatch in the collective instance 121.",
        "The error could be from a previous operation. Restart your program to reset.",
        "\t [[{{node CollectiveReduceV2}}]] [Op:__inference_validate_578]",
    ]
    (event,) = tracebacks("\n".join([*BODY, *message, "another line"]))
    assert "Shape mismatch in the collective instance 121." in event.text
    assert event.text.endswith("[Op:__inference_validate_578]")
    assert event.fields["frames"][-1] == "/srv/train.py:51 in validate"


def test_tensorflows_message_ends_where_the_log_goes_on(tracebacks: Tracebacks) -> None:
    lines = [
        *BODY,
        "tensorflow.python.framework.errors_impl.UnavailableError: Socket closed",
        "I0000 00:00:1794725308.338526 17 port.cc:153] x",
    ]
    (event,) = tracebacks("\n".join(lines))
    assert event.text.endswith("Socket closed")


def test_a_spawned_childs_number_is_its_rank(tracebacks: Tracebacks) -> None:
    middle = ["", "-- Process 3 terminated with the following error:"]
    lines = [*trace("torch.multiprocessing.spawn.ProcessRaisedException: "), *middle, *trace("ValueError: child")]
    (event,) = tracebacks("\n".join(lines))
    assert event.rank == 3


@pytest.mark.parametrize("prefix", ["", "[rank1]: "])
def test_what_autograph_says_below_in_user_code_belongs_to_it(tracebacks: Tracebacks, prefix: str) -> None:
    below = [
        "",
        '    File "/srv/model.py", line 6, in step  *',
        "        return tf.reshape(x, [3, 10])",
        "",
        "    ValueError: Cannot reshape a tensor with 12 elements to shape [3,10]",
        "",
        "epoch 2 begins",
    ]
    lines = [*trace("ValueError: in user code:", prefix), *(prefix + line for line in below[:-1]), below[-1]]
    (event,) = tracebacks("\n".join(lines))
    assert event.fields["types"] == ["ValueError", "ValueError"]
    assert event.fields["frames"][-1] == "/srv/model.py:6 in step"
    assert event.fields["code"][-1] == "return tf.reshape(x, [3, 10])"
    assert "Cannot reshape" in event.text
    assert "epoch 2" not in event.text


def test_what_keras_says_in_the_next_paragraph_belongs_to_it(tracebacks: Tracebacks) -> None:
    lines = [
        *trace("ValueError: Exception encountered when calling Sequential.call()."),
        "",
        "\x1b[1mInvalid input shape: expected (None, 8, 8, 3)\x1b[0m",
        "",
        "Arguments received by Sequential.call():",
        "  • training=True",
    ]
    (event,) = tracebacks("\n".join(lines))
    assert event.text.split("\n")[1:] == ["Invalid input shape: expected (None, 8, 8, 3)"]


def test_a_log_line_after_in_user_code_is_another_matter(tracebacks: Tracebacks) -> None:
    (event,) = tracebacks("\n".join([*trace("ValueError: in user code:"), "", "2026-01-02 10:00:00 step 3"]))
    assert event.text == "ValueError: in user code:"


FRAMES = [
    '  File "/srv/train.py", line 5, in main',
    "    engine.step()",
    '  File "/opt/venv/lib/python3.11/site-packages/acme/engine.py", line 61, in step',
    "    raise StepError(",
]


@pytest.mark.parametrize("prefix", ["", "[rank3]: "])
def test_a_traceback_whose_head_was_cut_off_is_one(tracebacks: Tracebacks, prefix: str) -> None:
    (event,) = tracebacks("\n".join(prefix + line for line in (*FRAMES, "acme.StepError: no step")))
    assert event.text == "acme.StepError: no step"
    assert event.fields["types"] == ["acme.StepError"]
    assert len(event.fields["frames"]) == 2
    assert event.rank == (3 if prefix else None)


@pytest.mark.parametrize("after", [[], ["UserWarning: a step took long"], ["step 12 loss 0.3"]])
def test_a_stack_that_somebody_printed_is_no_failure(tracebacks: Tracebacks, after: list[str]) -> None:
    assert tracebacks("\n".join(["where are we?", *FRAMES[:2], *after])) == []


def test_lines_that_lost_their_indentation_are_frames_and_code(tracebacks: Tracebacks) -> None:
    flat = [line.strip() for line in (*BODY[:5], "RuntimeError: bad")]
    (event,) = tracebacks("\n".join(flat))
    assert (event.text, len(event.fields["frames"]), event.fields["code"]) == (
        "RuntimeError: bad",
        2,
        ["main()", "step()"],
    )


def test_the_frames_of_a_notebook(tracebacks: Tracebacks) -> None:
    lines = [
        "KeyError                                  Traceback (most recent call last)",
        "<ipython-input-3-0a1b2c> in <module>",
        "----> 1 trainer.train()",
        "",
        "~/venv/lib/python3.9/site-packages/acme/trainer.py in train(self, steps)",
        "    413         self._prepare()",
        "--> 414         self._loop(steps)",
        "    415 ",
        "",
        "File /srv/loop.py:7, in Loop.run(self)",
        "----> 7 state['epoch']",
        "",
        "KeyError: 'epoch'",
    ]
    (event,) = tracebacks("\n".join(lines))
    assert event.text == "KeyError: 'epoch'"
    assert event.fields["frames"] == [
        "<ipython-input-3-0a1b2c>:0 in <module>",
        "~/venv/lib/python3.9/site-packages/acme/trainer.py:0 in train",
        "/srv/loop.py:7 in Loop.run",
    ]


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ('    raise ValueError(f"no state at {path}")', "ValueError: no state at {path}"),
        ('    assert heads % degree == 0, "heads do not divide"', "AssertionError: heads do not divide"),
    ],
)
def test_what_a_cut_off_traceback_was_about_to_raise(tracebacks: Tracebacks, last: str, said: str) -> None:
    (event,) = tracebacks("\n".join([*BODY[:4], last]))
    assert event.text == said


def test_a_traceback_that_pip_has_indented_ends_with_its_own_exception(tracebacks: Tracebacks) -> None:
    quoted = ["      " + line for line in trace("ModuleNotFoundError: No module named 'torch'")]
    lines = ["  error: subprocess-exited-with-error", *quoted, "      [end of output]", "error: it failed"]
    (one,) = tracebacks("\n".join(lines))
    assert one.text == "ModuleNotFoundError: No module named 'torch'"
