"""The places in torch at which a program shows what it does: groups, batches, losses, gradients, steps. The recorder
and the player listen there, each to the same ones."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

from .counting import Steps
from .hooks import after_engine_step

_OBJECTS = (
    "all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list", "send_object_list",
    "recv_object_list",
)  # fmt: skip


class Listener:
    """What the recorder and the player answer to; nothing by default."""

    is_on = True

    def met(self) -> None:
        """The default group is there: rank and size are known."""

    def group(self, c10d: Any, inner: Any, name: str, ranks: list[int]) -> Any:
        return inner

    def batch(self, loader: Any, batch: Any) -> None:
        """The program is about to get it."""

    def loss(self, loss: Any) -> None:
        """A backward pass starts from it."""

    def gradients(self, optimizer: Any) -> None:
        """The optimizer is about to use them."""

    def stepped(self) -> None:
        """A step has ended."""

    def not_covered(self, what: str) -> None:
        """The program uses something that cannot be recorded."""


class Program:
    """Looks at torch's modules as they are imported, and tells the listener."""

    def __init__(self, listener: Any, state: Any) -> None:
        self.listener = listener
        self.state = state
        self.steps = 0
        self.inside = threading.local()
        self.of_optimizers = Steps()
        self.counted_by_engine = False

    def patches(self) -> dict[str, Callable[[Any], None]]:
        return {
            "torch.distributed.distributed_c10d": self.communication,
            "torch.nn.modules.module": self.modules,
            "torch.optim.optimizer": self.optimizers,
            "torch.optim.lr_scheduler": self.schedulers,
            "torch.amp.grad_scaler": self.scalers,
            "torch.utils.data.dataloader": self.loaders,
            "torch.autograd": self.backward,
            "torch.distributed.rpc": self.remote_calls,
            "torch._dynamo.trace_rules": self.compiler,
            "deepspeed.runtime.engine": self.engine,
        }

    @property
    def hands_over_objects(self) -> bool:
        return bool(getattr(self.inside, "objects", 0))

    # -- communication ---------------------------------------------------------------------------------------------

    def communication(self, c10d: Any) -> None:
        c10d._new_process_group_helper = self.made(c10d, c10d._new_process_group_helper)
        c10d.init_process_group = self.after(c10d.init_process_group, self.listener.met)
        if hasattr(c10d, "split_group"):
            c10d.split_group = self.split(c10d, c10d.split_group)
        for name in _OBJECTS:
            if hasattr(c10d, name):
                setattr(c10d, name, self.marked(getattr(c10d, name)))

    def made(self, c10d: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def helper(*positions: Any, **more: Any) -> Any:
            before = set(map(id, c10d._world.pg_map))
            group, prefix = function(*positions, **more)
            if group in c10d._world.pg_map and id(group) not in before:
                members = [int(one) for one in positions[2]] or list(range(group.size()))
                group = self.listener.group(c10d, group, str(positions[5]), members)
            return group, prefix

        return helper

    def split(self, c10d: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def split_group(*arguments: Any, **named: Any) -> Any:
            group = function(*arguments, **named)
            if group in c10d._world.pg_map:
                members = sorted(int(one) for one in c10d._world.pg_group_ranks.get(group, {}))
                group = self.listener.group(c10d, group, str(group.group_name), members)
            return group

        return split_group

    def marked(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """While it runs, what goes over the wire are pickles."""

        @functools.wraps(function)
        def handing(*arguments: Any, **named: Any) -> Any:
            self.inside.objects = getattr(self.inside, "objects", 0) + 1
            try:
                return function(*arguments, **named)
            finally:
                self.inside.objects -= 1

        return handing

    @staticmethod
    def after(function: Callable[..., Any], then: Callable[[], None]) -> Callable[..., Any]:
        @functools.wraps(function)
        def called(*arguments: Any, **named: Any) -> Any:
            result = function(*arguments, **named)
            then()
            return result

        return called

    def remote_calls(self, module: Any) -> None:
        if hasattr(module, "init_rpc"):
            module.init_rpc = self.after(module.init_rpc, lambda: self.listener.not_covered("remote procedure calls"))

    @staticmethod
    def compiler(rules: Any) -> None:
        """What is compiled calls our groups as it calls torch's own; the compiler must not try to read them."""
        rules.add(__name__.rpartition(".")[0])

    # -- state -----------------------------------------------------------------------------------------------------

    def modules(self, module: Any) -> None:
        self.registered(module.Module, self.state.module)

    def schedulers(self, module: Any) -> None:
        self.registered(module.LRScheduler, self.state.scheduler)

    def scalers(self, module: Any) -> None:
        self.registered(module.GradScaler, self.state.scaler)

    @staticmethod
    def registered(kind: Any, register: Callable[[Any], None]) -> None:
        initialise = kind.__init__

        @functools.wraps(initialise)
        def __init__(one: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807
            initialise(one, *arguments, **named)
            register(one)

        kind.__init__ = __init__

    # -- the loop --------------------------------------------------------------------------------------------------

    def loaders(self, module: Any) -> None:
        kind = module._BaseDataLoaderIter
        following = kind.__next__

        @functools.wraps(following)
        def __next__(loader: Any) -> Any:  # noqa: N807
            batch = following(loader)
            self.listener.batch(loader, batch)
            return batch

        kind.__next__ = __next__

    def backward(self, autograd: Any) -> None:
        function = autograd.backward

        @functools.wraps(function)
        def backward(tensors: Any, *arguments: Any, **named: Any) -> Any:
            one = tensors[0] if isinstance(tensors, (list, tuple)) and len(tensors) == 1 else tensors
            if getattr(one, "numel", None) is not None and one.numel() == 1:
                self.listener.loss(getattr(one, "_local_tensor", one))
            return function(tensors, *arguments, **named)

        autograd.backward = backward

    def optimizers(self, module: Any) -> None:
        module.register_optimizer_step_pre_hook(self.before_step)
        module.register_optimizer_step_post_hook(self.after_step)

    def before_step(self, optimizer: Any, arguments: Any = (), named: Any = None) -> None:
        self.state.optimizer(optimizer)
        if not _has_closure(arguments, named):
            self.listener.gradients(optimizer)

    def after_step(self, optimizer: Any, arguments: Any = (), named: Any = None) -> None:
        """An engine that has its own count knows better."""
        if _has_closure(arguments, named):  # forward and backward passes were part of the step
            self.listener.gradients(optimizer)
        if self.of_optimizers.is_new(optimizer, self.steps) and not self.counted_by_engine:
            self.step()

    def step(self) -> None:
        self.steps += 1
        self.listener.stepped()

    def jump(self, step: int) -> None:
        """The next step is the one after this."""
        self.of_optimizers.jump(step - self.steps)
        self.steps = step

    def engine(self, module: Any) -> None:
        after_engine_step(module.DeepSpeedEngine, self.counts_itself, self.step)

    def counts_itself(self) -> None:
        self.counted_by_engine = True


def _has_closure(arguments: Any, named: Any) -> bool:
    return (named or {}).get("closure", arguments[1] if len(arguments) > 1 else None) is not None


def replace_group(c10d: Any, old: Any, new: Any) -> None:
    """Everywhere torch knows the group by its object or its name, it finds the new one."""
    world = c10d._world
    name = world.pg_names.get(old)
    for table in (world.pg_map, world.pg_names, world.pg_backend_config, world.pg_to_tag, world.pg_group_ranks):
        if old in table:
            table[new] = table.pop(old)
    for groups in world.tags_to_pg.values():
        groups[:] = [new if group is old else group for group in groups]
    native = sys.modules["torch._C._distributed_c10d"]
    native._unregister_process_group(name)
    native._register_process_group(name, new)


def stand_in(c10d: Any, group: Any, inner: Any) -> None:
    """`group` answers for `inner`: the same backends, name, description and device."""
    kinds = c10d.Backend.backend_type_map
    for device in inner._device_types:
        backend = inner._get_backend(device)
        kind = kinds.get(backend.name().lower(), c10d.ProcessGroup.BackendType.CUSTOM)
        group._set_default_backend(kind)
        group._register_backend(device, kind, backend)
    group._set_group_name(inner.group_name)
    group._set_group_desc(inner.group_desc)
    if inner.bound_device_id is not None:
        group.bound_device_id = inner.bound_device_id
