"""say how much memory a training step takes on each rank, without a GPU, and what to change so that it fits

`estimate` runs the real step on tensors without data and replays torch's allocator. `plan` looks for settings that fit,
by the smallest change to yours. `compare` puts an estimate beside what a real run measured.
Exit codes: 0 it fits, 1 it does not, 2 wrong usage or input.

  paramedic memory estimate --model config.json --batch 8 --seq 2048 --gpu h100
  paramedic memory estimate --entry train.py:build --gpu 4090
  paramedic memory plan --model config.json --batch 8 --seq 4096 --gpu a100-40 --world-size 4
  paramedic memory compare snapshot.pickle --model config.json --batch 8 --seq 2048
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from paramedic.commands import flags
from paramedic.errors import ParamedicError
from paramedic.memory.request import ATTENTION, DTYPES, OFFLOAD, OPTIMIZERS, STRATEGIES, Request

if TYPE_CHECKING:
    from paramedic.memory.estimate import Estimate

_FORMATS = {".html": "html", ".json": "json"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=type(parser))
    estimating = actions.add_parser("estimate", help="how much memory the step takes, and whether it fits")
    planning = actions.add_parser("plan", help="what to change so that it fits, the smallest change first")
    comparing = actions.add_parser("compare", help="an estimate beside what a real run measured")
    comparing.add_argument("measured", metavar="FILE", help="a torch.cuda.memory snapshot, or memory_stats as JSON")
    for action in (estimating, planning, comparing):
        _add_step(action)
        _add_ranks(action)
        _add_output(action, html=action is estimating)
    planning.add_argument(
        "--largest", choices=("batch", "seq"), help="instead: the largest batch or sequence that fits as it is"
    )
    planning.add_argument("--most", type=int, default=3, metavar="N", help="how many answers (default: 3)")


def _add_step(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the step")
    group.add_argument("--model", metavar="CONFIG", help="a Hugging Face config.json, or its folder")
    group.add_argument(
        "--entry", metavar="FILE:NAME",
        help="your own code: a function that returns (model, optimizer, batch, loss); runs in a limited child process",
    )  # fmt: skip
    group.add_argument("--batch", type=int, default=1, metavar="N", help="samples of one rank in one step (default: 1)")
    group.add_argument("--seq", type=int, metavar="N", help="tokens of a sample (default: the model's, at most 2048)")
    group.add_argument("--target-seq", type=int, metavar="N", help="tokens of a decoder's target (default: as --seq)")
    group.add_argument("--image-size", type=int, metavar="N", help="pixels a side (default: the model's, or 224)")
    group.add_argument("--dtype", choices=DTYPES, help="(default: bf16-autocast; with --entry: as your code does)")
    group.add_argument(
        "--optimizer", choices=OPTIMIZERS, default="adamw", help="adamw: as torch chooses on a GPU (default)"
    )
    group.add_argument("--activation-checkpointing", action="store_true", help="each layer again in the backward pass")
    group.add_argument("--attention", choices=ATTENTION, default="sdpa", help="(default: sdpa)")
    group.add_argument("--accumulation", type=int, default=1, metavar="N", help="backward passes a step (default: 1)")


def _add_ranks(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the cards")
    group.add_argument("--gpu", metavar="NAME", default="h100", help="h200, h100, a100-80, a100-40, l40s, 4090, …")
    group.add_argument("--gpu-memory", metavar="SIZE", help="another size than the card's own, like 22GiB")
    group.add_argument("--strategy", choices=STRATEGIES, default="none", help="how ranks share (default: none)")
    group.add_argument(
        "--world-size", type=int, default=None, metavar="N", help="ranks (default: what the others give)"
    )
    group.add_argument("--tp", type=int, default=1, metavar="N", help="ranks that share each layer")
    group.add_argument("--pp", type=int, default=1, metavar="N", help="stages of a pipeline")
    group.add_argument("--dp", type=int, default=None, metavar="N", help="ranks with a batch of their own")
    group.add_argument("--micro-batches", type=int, metavar="N", help="of a pipeline (default: twice its stages)")
    group.add_argument("--offload", choices=OFFLOAD, default="none", help="what stays in the host's memory")
    group.add_argument("--bucket-view", action="store_true", help="DDP(gradient_as_bucket_view=True)")
    group.add_argument("--alloc-conf", metavar="CONF", default="", help="as PYTORCH_ALLOC_CONF would say it")


def _add_output(parser: argparse.ArgumentParser, html: bool) -> None:
    group = parser.add_argument_group("output")
    formats = ("text", "json", "html") if html else ("text", "json")
    group.add_argument("--format", choices=formats, help="(default: text, or as FILE is called)")
    group.add_argument("--output", metavar="FILE", help="write it there instead of to standard output")
    group.add_argument("-q", "--quiet", action="store_true", help="print nothing; the exit code is the answer")


def run(args: argparse.Namespace) -> int:
    actions: dict[str, Callable[[argparse.Namespace], int]] = {
        "estimate": _estimate,
        "plan": _plan,
        "compare": _compare,
    }
    return actions[args.action](args)


def request_of(args: argparse.Namespace) -> Request:
    cells = args.tp * args.pp
    world = args.world_size if args.world_size is not None else cells * (args.dp or 1)
    if args.dp is not None and args.dp * cells != world:
        raise ParamedicError(
            f"--world-size {world}: is not --dp {args.dp} × --tp {args.tp} × --pp {args.pp} = {args.dp * cells}"
        )
    return Request(
        model=args.model, entry=args.entry, batch=args.batch, seq=args.seq, target_seq=args.target_seq,
        image_size=args.image_size, optimizer=args.optimizer,
        dtype=args.dtype or ("fp32" if args.entry else "bf16-autocast"),
        checkpointing=args.activation_checkpointing, attention=args.attention, gpu=args.gpu,
        gpu_memory=args.gpu_memory, strategy=args.strategy, world_size=world, tp=args.tp, pp=args.pp,
        micro_batches=args.micro_batches, accumulation=args.accumulation, offload=args.offload,
        bucket_view=args.bucket_view, alloc_conf=args.alloc_conf,
    )  # fmt: skip


def _estimate(args: argparse.Namespace) -> int:
    from paramedic.memory.estimate import estimate

    request = request_of(args)
    if request.entry and not args.quiet:
        flags.say(f"paramedic: runs {request.entry} in a child process of limited memory, without a GPU or data")
    _begin(args)
    made = estimate(request, _say(args))
    _write(args, _rendered(made, args))
    return int(made.fits == "no")


def _rendered(made: Estimate, args: argparse.Namespace) -> str:
    from paramedic.memory.document import document
    from paramedic.memory.page import page
    from paramedic.memory.show import text
    from paramedic.report.escape import printable
    from paramedic.report.json import dumps

    kind = args.format or flags.format_of(args.output, _FORMATS) or "text"
    if kind == "json":
        return dumps(document(made)) + "\n"
    words = "\n".join(printable(line) for line in text(made).split("\n"))
    if kind == "html":
        return page(f"Memory of {made.request.model or made.request.entry}", words, made)
    return words


def _plan(args: argparse.Namespace) -> int:
    from paramedic.memory import answers, plan
    from paramedic.report.json import dumps

    request = request_of(args)
    if request.entry:
        raise ParamedicError("memory plan: needs --model; with --entry, change your code and estimate it again")
    if args.most < 1:
        raise ParamedicError(f"--most {args.most}: must be 1 or more")
    _begin(args)
    found = (
        plan.largest(request, args.largest, _say(args)) if args.largest else plan.plan(request, args.most, _say(args))
    )
    kind = args.format or flags.format_of(args.output, _FORMATS) or "text"
    _write(args, dumps(answers.document(found)) + "\n" if kind == "json" else answers.text(found))
    return int(not found.answers)


def _compare(args: argparse.Namespace) -> int:
    from paramedic.memory import compare
    from paramedic.memory.estimate import estimate
    from paramedic.report.json import dumps

    measured = compare.read(args.measured)
    made = estimate(request_of(args), _say(args))
    found = compare.compare(measured, made)
    kind = args.format or flags.format_of(args.output, _FORMATS) or "text"
    _write(args, dumps(found) + "\n" if kind == "json" else compare.text(found))
    return 0


def _begin(args: argparse.Namespace) -> None:
    if not args.quiet and sys.stderr is not None and sys.stderr.isatty():
        flags.say("paramedic: traces the step; a small model takes some seconds, 7 billion parameters half a minute")


def _say(args: argparse.Namespace) -> Callable[[str], None]:
    return (lambda text: None) if args.quiet else flags.say


def _write(args: argparse.Namespace, text: str) -> None:
    if args.output not in (None, "-"):
        flags.write_file(args.output, text)
        if not args.quiet:
            flags.say(f"paramedic: wrote {args.output}")
    elif not args.quiet and sys.stdout is not None:
        reconfigure = getattr(sys.stdout, "reconfigure", None)
        if reconfigure and args.format == "json":
            reconfigure(encoding="utf-8", errors="backslashreplace")
        sys.stdout.write(text)
