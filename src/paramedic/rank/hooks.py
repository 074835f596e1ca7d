"""Where the agent looks at torch: right after the program has imported each module, and before anybody uses it."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import os
import sys
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .agent import Agent
from .compiled import left_alone
from .counting import Steps
from .sentinels import Sentinels

_HERE = os.path.dirname(os.path.abspath(__file__))
_COLLECTIVES = (
    "all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "all_gather_coalesced",
    "all_gather_object", "gather", "gather_object", "scatter", "scatter_object_list", "broadcast_object_list",
    "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "barrier", "monitored_barrier",
    "send", "recv", "isend", "irecv", "send_object_list", "recv_object_list", "batch_isend_irecv",
)  # fmt: skip
_TENSORS = (
    "tensor", "tensor_list", "input_tensor", "input", "output_tensor", "output", "obj", "object_list", "p2p_op_list",
)  # fmt: skip
_PEERS = ("src", "dst", "group_src", "group_dst")


Patches = Mapping[str, Callable[[Any], None]]


def install(agent: Agent) -> None:
    torch = _Torch(agent)
    patches = {
        "torch.distributed.distributed_c10d": torch.communication,
        "torch.optim.optimizer": torch.optimizers,
        "torch.utils.data.dataloader": torch.loaders,
        "torch.autograd": torch.backward,
        "torch.serialization": torch.files,
        "torch.nn.parallel.distributed": torch.replicas,
        "deepspeed.runtime.engine": torch.deepspeed,
        "torch._dynamo.trace_rules": left_alone,
    }
    look_at(patches, agent.guarded)
    torch.watch_conduct()
    chain_excepthook(lambda *seen: agent.guarded("exception", _record, agent, *seen) if agent.is_watching else None)


def look_at(patches: Patches, guarded: Callable[..., Any]) -> None:
    """Each module once the program has imported it; `guarded` says what becomes of errors."""
    sys.meta_path.insert(0, _Finder(patches, guarded))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing itself: lets the others find the module, and looks at it once it has been executed."""

    def __init__(self, patches: Patches, guarded: Callable[..., Any]) -> None:
        self._patches, self._guarded = dict(patches), guarded

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self._patches:
            return None
        patch = self._patches.pop(name)
        for finder in sys.meta_path:
            found = None if finder is self else finder.find_spec(name, path, target)
            if found is not None and found.loader is not None:
                self._watch(name, found.loader, patch)
                return found
        return None

    def _watch(self, name: str, loader: Any, patch: Callable[[Any], None]) -> None:
        execute = loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            execute(module)
            self._guarded(name, patch, module)

        loader.exec_module = exec_module


class _Torch:
    """One method for each module that is looked at."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.sentinels = Sentinels(agent)
        self.main = threading.main_thread().ident
        self.calls: dict[str, int] = {}
        self.inside = threading.local()
        self.steps = Steps()
        self.stepping: list[int] = []
        """Optimizers in whose step we are: one may hold another, and sends what that did when it is done."""
        self.counted_elsewhere = False

    def watch_conduct(self) -> None:
        from .conduct import Conduct

        self.conduct = Conduct(self.agent, self.sentinels, self.on_main_thread, self.stepping)
        look_at(self.conduct.patches(), self.agent.guarded)

    def on_main_thread(self) -> bool:
        return self.agent.is_watching and threading.get_ident() == self.main

    def phase(
        self, name: str, function: Callable[..., Any], said: Callable[..., str] = lambda *_, **__: ""
    ) -> Callable[..., Any]:
        """The function, timed as a phase of the main thread."""
        agent = self.agent

        @functools.wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            if not self.on_main_thread():
                return function(*arguments, **named)
            agent.clock.enter(name, said(*arguments, **named))
            agent.tick()
            try:
                result = function(*arguments, **named)
            finally:
                agent.clock.leave()
            agent.tick()  # who comes out of it with an exception has made no progress
            return result

        return timed

    # -- modules -------------------------------------------------------------------------------------------------

    def communication(self, c10d: Any) -> None:
        for name in _COLLECTIVES:
            if hasattr(c10d, name):
                setattr(c10d, name, self.collective(name, getattr(c10d, name)))
        c10d.init_process_group = self.set_up(c10d, c10d.init_process_group)
        for name in ("new_group", "split_group"):
            if hasattr(c10d, name):
                setattr(c10d, name, self.grouped(c10d, getattr(c10d, name)))

    def set_up(self, c10d: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        agent = self.agent

        @functools.wraps(function)
        def init_process_group(*arguments: Any, **named: Any) -> Any:
            agent.guarded("set-up", agent.entered, "set-up")
            agent.clock.enter("collective", "init_process_group")
            try:
                result = function(*arguments, **named)
            finally:
                agent.clock.leave()
            agent.guarded("set-up", self.met, c10d)
            return result

        return init_process_group

    def met(self, c10d: Any) -> None:
        from .start import RANK_PID

        rank, size = c10d.get_rank(), c10d.get_world_size()
        if self.agent.rank is None:
            os.environ[RANK_PID] = str(os.getpid())
            self.agent.begin(rank, size)
        elif size == 1 < (self.agent.size or 0):
            self.agent.note("alone")  # its launcher has started more, and it has met nobody
        elif (self.agent.rank, self.agent.size) != (rank, size):
            self.agent.rename(rank, size)
        self.agent.entered("running")
        self.know_groups(c10d)

    def grouped(self, c10d: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def made(*arguments: Any, **named: Any) -> Any:
            result = function(*arguments, **named)
            self.agent.guarded("groups", self.know_groups, c10d)
            self.conduct.grouped()
            return result

        return made

    def know_groups(self, c10d: Any) -> None:
        world = c10d._world
        for group, ranks in world.pg_group_ranks.items():
            name = str(world.pg_names.get(group, ""))
            backend = str(world.pg_map.get(group, ("",))[0])
            members = sorted(int(rank) for rank in ranks)
            said = str(getattr(group, "group_desc", ""))
            self.agent.groups[name] = {"name": name, "desc": said, "ranks": members, "backend": backend}

    def collective(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Notes the call in the box before it is made: a rank that dies or blocks in it has said where."""
        agent, inside, said = self.agent, self.inside, _Said(name, function)

        @functools.wraps(function)
        def called(*arguments: Any, **named: Any) -> Any:
            box = agent.box
            if self.on_main_thread() and not getattr(inside, "one", False):
                agent.guarded("conduct: collectives", self.conduct.called, name, said.first(arguments, named))
            if box is None or getattr(inside, "one", False) or not agent.is_watching:
                return function(*arguments, **named)
            what = agent.guarded("collectives", self.describe, said, arguments, named)
            at = box.begin(what) if what else None
            main = self.on_main_thread()
            inside.one = True
            if main:
                agent.clock.enter("collective", what or name)
                agent.tick()
            done = False
            try:
                result = function(*arguments, **named)
                done = True
                return result
            finally:
                inside.one = False
                if at is not None:
                    box.end(at, done)
                if main:
                    agent.clock.leave()
                    if done:
                        agent.tick()

        return called

    def describe(self, said: _Said, arguments: tuple[Any, ...], named: dict[str, Any]) -> str:
        """Tab-separated: group, number of the call in it, operation, sizes, type, peer, where in own code."""
        group = said.argument("group", arguments, named)
        name = str(getattr(group, "group_name", "") or "") if group is not None else "0"
        number = self.calls[name] = self.calls.get(name, 0) + 1
        sizes, kind = said.tensor(arguments, named)
        peer = next((str(v) for v in (said.argument(p, arguments, named) for p in _PEERS) if v is not None), "")
        return "\t".join((name, str(number), said.name, sizes, kind, peer, own_place(sys._getframe(3))))

    def optimizers(self, module: Any) -> None:
        module.register_optimizer_step_pre_hook(self.before_step)
        module.register_optimizer_step_post_hook(self.after_step)

    def before_step(self, optimizer: Any, *_: Any) -> None:
        if self.on_main_thread():
            if id(optimizer) in self.stepping:  # its last step has failed
                self.stepping.clear()
            self.stepping.append(id(optimizer))
            self.agent.guarded("agreement", self.sentinels.agreement)
            self.agent.guarded("gradients", self.sentinels.gradients, optimizer)
            self.agent.clock.enter("optimizer")

    def after_step(self, optimizer: Any, *_: Any) -> None:
        if self.on_main_thread():
            self.agent.clock.leave()
            if self.stepping and self.stepping.pop() == id(optimizer) and not self.stepping:
                self.agent.guarded("steps", self.count_step, optimizer)

    def count_step(self, optimizer: Any) -> None:
        if self.steps.is_new(optimizer, self.agent.steps) and not self.counted_elsewhere:
            self.stepped()

    def stepped(self) -> None:
        self.agent.guarded("conduct", self.conduct.stepped)
        self.agent.stepped()
        self.sentinels.take_waiting()

    def loaders(self, module: Any) -> None:
        """The first batch of an epoch takes its time: workers are started for it."""
        one = module._BaseDataLoaderIter
        one.__next__ = self.phase(
            "data", one.__next__, lambda loader: "" if getattr(loader, "_num_yielded", 1) else "first batch"
        )

    def backward(self, autograd: Any) -> None:
        timed = self.phase("backward", autograd.backward)

        @functools.wraps(autograd.backward)
        def backward(tensors: Any, *arguments: Any, **named: Any) -> Any:
            if self.on_main_thread():
                self.agent.guarded("loss", self.sentinels.loss, tensors)
            return timed(tensors, *arguments, **named)

        autograd.backward = backward

    def files(self, serialization: Any) -> None:
        for name in ("save", "load"):
            setattr(serialization, name, self.phase("checkpoint", getattr(serialization, name)))

    def replicas(self, module: Any) -> None:
        replicated = module.DistributedDataParallel
        initialise = replicated.__init__

        @functools.wraps(initialise)
        def __init__(model: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807
            initialise(model, *arguments, **named)
            self.agent.guarded("agreement", self.sentinels.replicated, model)

        replicated.__init__ = __init__

    def deepspeed(self, module: Any) -> None:
        """Its optimizers step once for each piece of the parameters: the engine knows better."""

        def entered() -> None:
            self.counted_elsewhere = True

        def stepped() -> None:
            if self.on_main_thread():
                self.agent.guarded("steps", self.stepped)

        after_engine_step(module.DeepSpeedEngine, entered, stepped)


def after_engine_step(engine: Any, entered: Callable[[], None], stepped: Callable[[], None]) -> None:
    """Tells of each call, and of those that ended a step: with accumulation not every call does."""
    step = engine.step

    @functools.wraps(step)
    def stepping(one: Any, *arguments: Any, **named: Any) -> Any:
        entered()
        before = one.global_steps
        result = step(one, *arguments, **named)
        if one.global_steps > before:
            stepped()
        return result

    engine.step = stepping


class _Said:
    """How to find a call's arguments without binding its signature each time."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        import inspect

        self.name = name
        self.places = {argument: place for place, argument in enumerate(inspect.signature(function).parameters)}
        self.tensors = [argument for argument in _TENSORS if argument in self.places]

    def argument(self, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if name in named:
            return named[name]
        place = self.places.get(name, len(arguments))
        return arguments[place] if place < len(arguments) else None

    def tensor(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[str, str]:
        value = self.first(arguments, named)
        if value is None:
            return "", ""
        return "x".join(map(str, value.shape)) or "1", str(getattr(value, "dtype", "")).replace("torch.", "")

    def first(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The first tensor that is handed over."""
        for name in self.tensors:
            value = self.argument(name, arguments, named)
            if isinstance(value, (list, tuple)) and value:
                value = value[0]
            if getattr(value, "shape", None) is not None:
                return value
        return None


def own_place(frame: types.FrameType | None) -> str:
    """The nearest caller that is not installed."""
    first = ""
    for _ in range(40):
        if frame is None:
            break
        name = frame.f_code.co_filename
        if not name.startswith(_HERE):
            place = f"{name}:{frame.f_lineno or 0}"
            if "-packages/" not in name and "/lib/python" not in name and not name.startswith("<"):
                return place
            first = first or place
        frame = frame.f_back
    return first


def chain_excepthook(before: Callable[..., Any]) -> None:
    previous = sys.excepthook

    def excepthook(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
        before(kind, error, trace)
        previous(kind, error, without_us(trace))

    sys.excepthook = excepthook


def without_us(trace: types.TracebackType | None) -> types.TracebackType | None:
    """The traceback as it would be without our hooks on the way."""
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_HERE):
        trace = trace.tb_next
    at = trace
    while at is not None:
        while at.tb_next is not None and at.tb_next.tb_frame.f_code.co_filename.startswith(_HERE):
            at.tb_next = at.tb_next.tb_next
        at = at.tb_next
    return trace


def _record(agent: Agent, kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
    place = ""
    while trace is not None:
        name = trace.tb_frame.f_code.co_filename
        if "-packages/" not in name and "/lib/python" not in name and not name.startswith(_HERE):
            place = f"{name}:{trace.tb_lineno}"
        trace = trace.tb_next
    agent.note("exception", type=kind.__name__, text=str(error)[:300], place=place)
    agent.stage = "failed"
    agent.write()
    agent.guarded("flight recorder", agent.write_last_trace)
