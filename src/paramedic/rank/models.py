"""What the program makes of its models: DDP and its hooks, units of FSDP, optimizers that are dealt out, meshes, plans
for tensor parallelism and recomputation; and what goes forward through them."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

from .agent import Agent
from .compiled import unless_compiling
from .counting import LOOKS
from .feeding import printed
from .hooks import own_place

_MODELS, _FED = 6, 8


class Models:
    """One method for each place in torch; what is seen goes into `said`, and in which order, to `heard`."""

    def __init__(
        self, agent: Agent, said: dict[str, Any], is_on: Callable[[], bool], heard: Callable[[str], None]
    ) -> None:
        self.agent, self.said, self.is_on, self.heard = agent, said, is_on, heard
        self.wrapped: list[tuple[Any, dict[str, Any]]] = []
        self.of_model: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
        self.depth = 0

    def patches(self) -> dict[str, Callable[[Any], None]]:
        return {
            "torch.nn.parallel.distributed": self.replicas,
            "torch.distributed.fsdp.fully_sharded_data_parallel": self.shards,
            "torch.distributed.fsdp._fully_shard._fully_shard": self.sharded,
            "torch.distributed.optim.zero_redundancy_optimizer": self.zero,
            "torch.distributed.device_mesh": self.meshes,
            "torch.distributed.tensor.parallel.api": self.planned,
            "torch.distributed.algorithms._checkpoint.checkpoint_wrapper": self.recomputed,
        }

    def replicas(self, module: Any) -> None:
        self._wrapped(module.DistributedDataParallel, "ddp")
        register = module.DistributedDataParallel.register_comm_hook
        module.DistributedDataParallel.register_comm_hook = self.hooked(register)

    def hooked(self, register: Callable[..., Any]) -> Callable[..., Any]:
        """DDP's communication hook: what goes in and what comes out, of the first buckets."""

        @functools.wraps(register)
        def register_comm_hook(model: Any, state: Any, hook: Any, *arguments: Any, **named: Any) -> Any:
            self.said["hook"] = f"{getattr(hook, '__module__', '')}.{getattr(hook, '__qualname__', '')}"[:120]

            @functools.wraps(hook)
            def watched(state: Any, bucket: Any) -> Any:
                due = self.agent.is_watching and self.agent.steps + 1 in LOOKS[:2] and len(self.said["buckets"]) < _FED
                before = self.agent.guarded("conduct: hook", _sum_of, bucket.buffer()) if due else None
                future = hook(state, bucket)
                if before is not None:
                    row = {"step": self.agent.steps + 1, "bucket": int(bucket.index()), "before": before}
                    self.said["buckets"].append(row)
                    future.add_done_callback(lambda done: self.agent.guarded("conduct: hook", _came_out, row, done))
                return future

            return register(model, state, watched, *arguments, **named)

        return register_comm_hook

    def shards(self, module: Any) -> None:
        self._wrapped(module.FullyShardedDataParallel, "fsdp")

    def sharded(self, module: Any) -> None:
        shard = module.fully_shard

        @functools.wraps(shard)
        def fully_shard(*arguments: Any, **named: Any) -> Any:
            if self.is_on():
                self.agent.guarded("conduct: models", self._unit, arguments[0] if arguments else named.get("module"))
                if (mesh := named.get("mesh")) is not None:
                    self.agent.guarded("conduct: models", self._spread, "fully_shard", mesh.size(mesh.ndim - 1))
            return shard(*arguments, **named)

        module.fully_shard = fully_shard

    def zero(self, module: Any) -> None:
        initialise = module.ZeroRedundancyOptimizer.__init__

        @functools.wraps(initialise)
        def __init__(optimizer: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807
            initialise(optimizer, *arguments, **named)
            if self.is_on():
                self.agent.guarded("conduct: models", self._spread, "ZeroRedundancyOptimizer", optimizer.world_size)
                self.agent.guarded("conduct: models", self._shared_out, optimizer)

        module.ZeroRedundancyOptimizer.__init__ = __init__

    def _shared_out(self, optimizer: Any) -> None:
        each = optimizer._partition_parameters()
        self.said["shares"] = [sum(p.numel() for group in groups for p in group["params"]) for groups in each]

    def meshes(self, module: Any) -> None:
        make = module.init_device_mesh

        @functools.wraps(make)
        def init_device_mesh(*arguments: Any, **named: Any) -> Any:
            mesh = make(*arguments, **named)
            if self.is_on():
                self.agent.guarded("conduct: models", self._mesh, mesh)
            return mesh

        module.init_device_mesh = init_device_mesh

    def _mesh(self, mesh: Any) -> None:
        names = mesh.mesh_dim_names or ()
        self.said["meshes"] |= {str(name)[:40]: mesh.size(number) for number, name in enumerate(names)}
        self.said["places"].setdefault("mesh", own_place(sys._getframe(3)))

    def _spread(self, what: str, ranks: int) -> None:
        """Over how many ranks something is sharded."""
        self.said["spread"][what] = max(self.said["spread"].get(what, 0), ranks)
        self.said["places"].setdefault(what, own_place(sys._getframe(3)))

    def planned(self, module: Any) -> None:
        """Tensor parallelism by a plan, of which no name may be one of the model's."""
        parallelize = module.parallelize_module

        @functools.wraps(parallelize)
        def parallelize_module(*arguments: Any, **named: Any) -> Any:
            result = parallelize(*arguments, **named)
            if self.is_on():
                self.agent.guarded("conduct: plans", self._plan, "parallelize_module", _has_parts(result))
            return result

        module.parallelize_module = parallelize_module

    def recomputed(self, module: Any) -> None:
        apply = module.apply_activation_checkpointing

        @functools.wraps(apply)
        def apply_activation_checkpointing(model: Any, *arguments: Any, **named: Any) -> Any:
            result = apply(model, *arguments, **named)
            if self.is_on():
                found = any(isinstance(one, module.ActivationWrapper) for one in model.modules())
                self.agent.guarded("conduct: plans", self._plan, "apply_activation_checkpointing", found)
            return result

        module.apply_activation_checkpointing = apply_activation_checkpointing

    def _plan(self, what: str, found: bool) -> None:
        plans = self.said["plans"]
        plans[what] = bool(plans.get(what)) or found
        self.said["places"].setdefault(what, own_place(sys._getframe(3)))

    def _unit(self, model: Any) -> None:
        for one in model if isinstance(model, (list, tuple)) else [model]:
            self._shard(_described(one))

    def _shard(self, described: dict[str, Any]) -> None:
        self.said["sharded_units"] += 1
        self.said["sharded_leaves"] += described.get("children") == 0
        self.said["sharded_last"] = described

    def _wrapped(self, kind: Any, name: str) -> None:
        initialise, forward = kind.__init__, kind.forward

        @functools.wraps(initialise)
        def __init__(model: Any, *arguments: Any, **named: Any) -> None:  # noqa: N807
            inner = arguments[0] if arguments else named.get("module")
            described = self.agent.guarded("conduct: models", _described, inner)
            initialise(model, *arguments, **named)
            if self.is_on():
                self.agent.guarded("conduct: models", self._made, model, name, described or {})

        def entered(model: Any, *arguments: Any, **named: Any) -> Any:
            if self.depth or not self.is_on():
                return forward(model, *arguments, **named)
            self.agent.guarded("conduct: models", self._forward, model, arguments, named)
            self.depth += 1
            try:
                return forward(model, *arguments, **named)
            finally:
                self.depth -= 1

        kind.__init__, kind.forward = __init__, unless_compiling(forward, entered)

    def _made(self, model: Any, kind: str, described: dict[str, Any]) -> None:
        if kind == "fsdp":
            self._shard(described)
        if len(self.wrapped) >= _MODELS or kind == "fsdp":
            return
        group = getattr(model, "process_group", None)
        said = {"kind": kind, "ranks": group.size() if group is not None else 0, "steps_in_eval": 0, "forwards": 0}
        said |= {"not_averaged": 0, "without_gradients": 0, "of_them_in_training": 0, **described}
        said["sends_buffers"] = bool(getattr(model, "broadcast_buffers", False))
        self.said["models"].append(said)
        self.wrapped.append((weakref.ref(model), said))
        self.of_model[model] = said

    def _forward(self, model: Any, arguments: Any, named: Any) -> None:
        torch = sys.modules["torch"]
        said = self.of_model.get(model, {})
        if not torch.is_grad_enabled():
            self.heard("e")
            said["without_gradients"] = said.get("without_gradients", 0) + 1
            inner = getattr(model, "module", model)
            said["of_them_in_training"] = said.get("of_them_in_training", 0) + bool(inner.training)
            return
        averages = getattr(model, "require_backward_grad_sync", True)
        self.heard("f" if averages else "n")
        said["forwards"] = said.get("forwards", 0) + 1
        said["not_averaged"] = said.get("not_averaged", 0) + (not averages)
        if len(self.said["fed"]) < _FED:
            self.said["fed"].append(printed((arguments, named)))


def _described(model: Any) -> dict[str, Any]:
    """What a wrapped model is made of."""
    nn = sys.modules["torch"].nn
    inner = list(model.modules())
    blocks = [len(one) for one in inner if isinstance(one, nn.ModuleList)]
    return {
        "type": type(model).__name__,
        "children": sum(1 for _ in model.children()),
        "dropout": sum(isinstance(one, nn.modules.dropout._DropoutNd) and one.p > 0 for one in inner),
        "batch_norm": sum(isinstance(one, nn.modules.batchnorm._BatchNorm) for one in inner),
        "blocks": max(blocks, default=0),
        "parameters": sum(1 for _ in model.parameters()),
        "elements": sum(one.numel() for one in model.parameters()),
        "buffers": sum(one.numel() for one in model.buffers()),
    }


def _has_parts(model: Any) -> bool:
    return any(hasattr(one, "placements") for one in model.parameters())


def _sum_of(tensor: Any) -> float | None:
    return float(tensor.detach().double().sum()) if tensor.device.type == "cpu" else None


def _came_out(row: dict[str, Any], done: Any) -> None:
    result = done.value()
    row["after"] = _sum_of(result[0] if isinstance(result, (list, tuple)) else result)
