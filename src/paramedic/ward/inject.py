"""Faults for a program that is not ours: each acts in one rank's process, without a change to the program.

`@pytest.mark.ranks(4, inject="slow-rank")` installs them just before the test and takes them out after it. Everything
that is replaced belongs to torch or to Python; torch is imported only by the faults that need it.
"""

from __future__ import annotations

import difflib
import errno
import functools
import importlib.util
import io
import itertools
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

Tell = Callable[[str], None]

COLLECTIVES = (
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
)
_SIZED = ("all_reduce", "broadcast", "reduce")


@dataclass(slots=True)
class Site:
    """Where one fault is installed: when it acts, how it says so, and how everything is put back."""

    at: int
    """It acts on the at-th occasion, counted from 1."""
    seconds: float
    tell: Tell
    undo: ExitStack
    seen: int = 0
    told: bool = False
    _inside: threading.local = field(default_factory=threading.local)

    def is_due(self) -> bool:
        """Counts an occasion; true on the one that was asked for."""
        self.seen += 1
        return self.seen == self.at

    def happened(self, where: str) -> None:
        """Said before the fault acts, as it may be the last thing that this process does; only once."""
        if not self.told:
            self.told = True
            self.tell(where)

    def replace(self, owner: Any, name: str, new: Any) -> None:
        self.undo.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, new)

    def replace_everywhere(self, old: Any, new: Any) -> None:
        """Also where somebody has written `from torch.distributed import all_reduce`."""
        for module in list(sys.modules.values()):
            space = getattr(module, "__dict__", None)
            if isinstance(space, dict):
                for name in [name for name, value in list(space.items()) if value is old]:
                    self.undo.callback(space.__setitem__, name, old)
                    space[name] = new

    def on_collectives(self, around: Callable[[str, Callable[[], Any], tuple[Any, ...], dict[str, Any]], Any]) -> None:
        """`around` is called for each collective that the program calls; those that torch builds of others are one."""
        import torch.distributed as dist

        def wrapped(name: str, old: Any) -> Any:
            @functools.wraps(old)
            def collective(*args: Any, **kwargs: Any) -> Any:
                if getattr(self._inside, "here", False):
                    return old(*args, **kwargs)
                self._inside.here = True
                try:
                    return around(name, old, args, kwargs)
                finally:
                    self._inside.here = False

            return collective

        for name in COLLECTIVES:
            if (old := getattr(dist, name, None)) is not None:
                self.replace_everywhere(old, wrapped(name, old))

    def on_steps(self, before: Callable[[Any], None]) -> None:
        """`before` is called with the optimizer, before each of its steps."""
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        hook = register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: before(optimizer))
        self.undo.callback(hook.remove)

    def on_beats(self, act: Callable[[str], None]) -> None:
        """A beat is a collective that Python calls, or an optimizer step: DDP reduces in C++, where nobody sees it."""

        def around(name: str, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            act(name)
            return call(*args, **kwargs)

        self.on_collectives(around)
        self.on_steps(lambda optimizer: act(f"{type(optimizer).__name__}.step"))


class _Finished:
    """What an asynchronous collective returns that did not take place."""

    def wait(self, timeout: object = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    is_success = is_completed


def slow_rank(site: Site) -> None:
    def act(where: str) -> None:
        site.seen += 1
        if site.seen >= site.at:
            site.happened(f"{where} waits {site.seconds:g} s, and so does all that follows")
            time.sleep(site.seconds)

    site.on_beats(act)


def kill_rank(site: Site) -> None:
    def act(where: str) -> None:
        if site.is_due():
            site.happened(f"SIGKILL in {where}")
            os.kill(os.getpid(), signal.SIGKILL)

    site.on_beats(act)


def skip_collective(site: Site) -> None:
    """For DDP the collective is that of a whole backward pass."""
    from torch.nn.parallel import DistributedDataParallel

    def around(name: str, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if not site.is_due():
            return call(*args, **kwargs)
        site.happened(f"{name} left out")
        return _Finished() if kwargs.get("async_op") else None

    site.on_collectives(around)
    forward: Any = DistributedDataParallel.forward

    def silent(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not (self.training and self.require_backward_grad_sync and site.is_due()):
            return forward(self, *args, **kwargs)
        site.happened("DDP's gradient reduction left out")
        with self.no_sync():
            return forward(self, *args, **kwargs)

    site.replace(DistributedDataParallel, "forward", silent)


def shape_mismatch(site: Site) -> None:
    def around(name: str, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        tensor = args[0] if args else kwargs.get("tensor")
        if name not in _SIZED or tensor is None or not site.is_due():
            return call(*args, **kwargs)
        import torch

        flat, size = tensor.detach().reshape(-1), tensor.numel()
        other = flat[: size // 2].clone() if size > 1 else torch.cat([flat, flat])
        site.happened(f"{name} of {other.numel()} numbers instead of {size}")
        rest = {key: value for key, value in kwargs.items() if key != "tensor"}
        return call(other, *args[1:], **rest)

    site.on_collectives(around)


def nan_gradient(site: Site) -> None:
    """In the backward pass, so before any reduction: the others get it, too."""
    from torch.optim import Optimizer

    make = Optimizer.__init__

    def poison(gradient: Any) -> Any:
        if not site.is_due():
            return None
        site.happened(f"a gradient of shape {tuple(gradient.shape)} is NaN in backward")
        return gradient * float("nan")

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        parameters = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        if parameters:
            site.undo.callback(parameters[0].register_hook(poison).remove)

    site.replace(Optimizer, "__init__", made)


def bit_flip(site: Site) -> None:
    """Just before the optimizer step, so after any reduction: this rank's weights part from the others'."""

    def flip(optimizer: Any) -> None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if not gradients or not site.is_due():
            return
        import torch

        gradient = getattr(gradients[0], "_local_tensor", gradients[0]).detach()
        flat = gradient.reshape(-1).clone()
        largest = int(flat.abs().argmax())
        before = float(flat[largest])
        bits = flat.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()])
        bits[largest] ^= 1 << (8 * flat.element_size() - 6)  # an exponent's bit: factor 256 in float32
        site.happened(f"a gradient's value {before:g} becomes {float(flat[largest]):g}")
        gradient.copy_(flat.reshape(gradient.shape))

    site.on_steps(flip)


def uneven_data(site: Site) -> None:
    from torch.utils.data import DataLoader

    start: Any = DataLoader.__iter__

    def cut(batches: Iterator[Any]) -> Iterator[Any]:
        for number in itertools.count():
            try:
                batch = next(batches)
            except StopIteration:
                return
            if number == site.at:
                site.happened(f"the DataLoader ends after {site.at} batches")
                return
            yield batch

    site.replace(DataLoader, "__iter__", lambda self: cut(start(self)))


def data_worker_error(site: Site) -> None:
    """In the worker processes where there are some (started by fork), else where the batch is fetched."""
    from torch.utils.data._utils import fetch

    for fetcher in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        site.replace(fetcher, "fetch", _failing(fetcher.fetch, site))


def _failing(load: Callable[..., Any], site: Site) -> Callable[..., Any]:
    def fetch(self: Any, indices: Any) -> Any:
        if site.is_due():
            site.happened("a sample cannot be decoded")
            raise ValueError("injected by paramedic: this sample cannot be decoded")
        return load(self, indices)

    return fetch


def full_disk(site: Site) -> None:
    """From the at-th file on: nothing can be opened for writing, and torch.save fails."""
    write: Any = io.open

    def refuse(file: Any) -> None:
        site.seen += 1
        if site.seen >= site.at:
            site.happened(f"no space for {file}")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))

    @functools.wraps(write)
    def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if set(mode) & set("wax+") and not isinstance(file, int) and not os.fsdecode(file).startswith("/dev/"):
            refuse(file)
        return write(file, mode, *args, **kwargs)

    site.replace_everywhere(write, opened)
    if importlib.util.find_spec("torch") is not None:
        from torch import serialization

        begin = serialization._open_zipfile_writer

        def begun(file: Any) -> Any:
            if isinstance(file, str | os.PathLike):  # else it was opened above, or is no file
                refuse(file)
            return begin(file)

        site.replace(serialization, "_open_zipfile_writer", begun)


def late_rank(site: Site) -> None:
    site.happened(f"comes {site.seconds:g} s late to the rendezvous")
    time.sleep(site.seconds)


def lost_store(site: Site) -> None:
    """A port that is taken and on which nobody listens: every connection is refused."""
    port = site.undo.enter_context(socket.socket())
    port.bind(("127.0.0.1", 0))
    site.undo.callback(os.environ.__setitem__, "MASTER_PORT", os.environ.get("MASTER_PORT", ""))
    os.environ["MASTER_PORT"] = str(port.getsockname()[1])
    site.happened("the store's port is one where nobody listens")


@dataclass(frozen=True, slots=True)
class Fault:
    install: Callable[[Site], None]
    does: str
    symptom: str
    """What it leads to, in the taxonomy's words, in code that does not cope with it."""
    seconds: float = 0.0
    on_first: bool = False
    """Where no rank is named it strikes the last one, or rank 0, which usually writes the files."""
    needs_torch: bool = True


FAULTS: dict[str, Fault] = {
    "slow-rank": Fault(slow_rank, "delays each collective and optimizer step", "straggler-or-imbalance", 0.5),
    "kill-rank": Fault(kill_rank, "SIGKILL in a collective or optimizer step", "worker-or-node-loss"),
    "skip-collective": Fault(skip_collective, "leaves one collective out", "collective-hang"),
    "shape-mismatch": Fault(shape_mismatch, "one collective with half the size", "collective-desync"),
    "nan-gradient": Fault(nan_gradient, "one gradient is NaN before it is reduced", "numerical-instability"),
    "bit-flip": Fault(bit_flip, "one bit of one gradient flips after it is reduced", "replica-divergence"),
    "uneven-data": Fault(uneven_data, "the DataLoader ends early", "collective-hang"),
    "data-worker-error": Fault(data_worker_error, "a sample cannot be decoded", "data-pipeline-failure"),
    "full-disk": Fault(
        full_disk, "torch.save and open for writing fail", "checkpoint-save-failure", on_first=True, needs_torch=False
    ),
    "late-rank": Fault(late_rank, "comes late to the rendezvous", "rendezvous-setup-hang", 5.0, needs_torch=False),
    "lost-store": Fault(lost_store, "cannot reach the store", "rendezvous-setup-hang", needs_torch=False),
}


def problem_with(name: object) -> str | None:
    """What to tell somebody who has asked for a fault that there is not."""
    if name in FAULTS:
        return None
    near = difflib.get_close_matches(str(name), FAULTS, 1, 0.5)
    return f"no fault has the name {name!r}; " + (
        f"did you mean {near[0]!r}?" if near else f"there are {', '.join(FAULTS)}"
    )


@contextmanager
def installed(names: Sequence[str], at: int, seconds: float | None, tell: Callable[[str, str], None]) -> Iterator[None]:
    """The faults act inside; `tell` gets a fault's name and what it has done, once."""
    with ExitStack() as undo:
        for name in names:
            fault = FAULTS[name]
            wait = fault.seconds if seconds is None else seconds
            fault.install(Site(at, wait, functools.partial(tell, name), undo))
        yield
