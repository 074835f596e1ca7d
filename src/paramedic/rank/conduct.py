"""What the program does with its parts: in which order it goes forward and backward, averages, clips and steps; what it
feeds, loads and saves. Small facts by which ranks can be held against each other, and against what training in parallel
asks for. Nothing is changed, and but for the first steps nothing is computed."""

from __future__ import annotations

import functools
import os
import sys
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .agent import Agent
from .beside import Beside
from .classes import Classes
from .compiled import unless_compiling
from .counting import LOOKS, Known
from .feeding import Feeding
from .hooks import own_place
from .keeping import Keeping
from .models import Models
from .recomputing import Recomputing
from .restoring import Restoring
from .rounding import Rounding
from .sentinels import Sentinels, is_capturing, local, sampled

_SAMPLE = 4096  # elements of a tensor
_TENSORS = 96  # that are told apart
_GATHERS = ("all_gather", "gather", "send", "isend", "recv", "irecv", "batch_isend")
_ORDERS, _LETTERS, _CALLS = 12, 24, 24
_SCHEDULES, _FACTORS, _OPTIMIZERS = 6, 8, 4
_GROUPS = 32
_EXTRA = 4  # looks where the program moved as much as it has parameters
_DEPTH = 4
_ROWS, _LARGE, _FEW = 4096, 1 << 20, 0.01
"""A large table, and the share of its rows that are few."""


class Conduct:
    """One method for each place in torch; what is seen goes into `said`, which the agent writes."""

    def __init__(
        self, agent: Agent, sentinels: Sentinels, is_on: Callable[[], bool], stepping: Sequence[int] = ()
    ) -> None:
        self.agent, self.sentinels, self.is_on = agent, sentinels, is_on
        self.stepping = stepping
        """Optimizers whose steps are under way, the outermost first."""
        self.outermost = 0
        """The optimizer that steps, and not one inside it."""
        self.letters = ""
        self.scaled = False
        self.left_over: tuple[Any, int] | None = None
        """A gradient that is there before the backward pass, and how often it was changed."""
        self.known = Known()
        self.first_of: dict[int, Callable[[], Any]] = {}
        """The first parameter of each."""
        self.foreign: dict[int, str] = {}
        """Optimizers among whose gradients are those of another one's loss."""
        self.of_schedule: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
        self.optimized: set[int] = set()
        self.parameter: Callable[[], Any] = lambda: None
        """The first that is optimized."""
        self.calls_before = 0
        self.moved = 0
        """Elements that the program's own collectives took since the last step."""
        self.held = 0
        self.extra = 0
        self.said: dict[str, Any] = {
            "orders": {}, "calls": [], "replicas": [], "loaders": [], "models": [], "fed": [], "optimizers": [],
            "loads": [], "saves": [], "states": {}, "matched": [], "factors": [], "groups": [], "groups_made": 0,
            "sharded_units": 0, "left_over": 0, "places": {}, "sums": [], "buckets": [], "called": 0, "moved": [],
            "moved_most": 0, "schedules": [], "scaler_updates": 0, "plans": {}, "spread": {},
            "gathered": 0, "gathers": [], "too_late": 0, "kept": [], "sharded_leaves": 0, "meshes": {},
        }  # fmt: skip
        agent.conduct = self.said
        self.models = Models(agent, self.said, is_on, self.heard)
        self.feeding = Feeding(agent, self.said, is_on)
        self.restoring = Restoring(agent, self.said, is_on)
        self.beside = Beside(agent, sentinels, self.said, is_on)
        self.rounding = Rounding(sentinels)
        self.keeping = Keeping(sentinels, self.said)
        self.recomputing = Recomputing(agent, self.said, is_on)
        self.classes = Classes(sentinels, self.said, self.recomputing.has)

    def patches(self) -> dict[str, Callable[[Any], None]]:
        return {
            "torch.optim.optimizer": self.optimizers,
            "torch.optim.lr_scheduler": self.schedulers,
            "torch.nn.modules.module": self.modules,
            "torch.nn.utils.clip_grad": self.clipping,
            "torch.utils.checkpoint": self.recomputing.watch,
            "torch.amp.grad_scaler": self.scalers,
            "torch.utils.data.dataloader": self.feeding.watch,
            "torch.autograd": self.backwards,
            "torch.serialization": self.restoring.files,
            **self.models.patches(),
        }

    # -- the order of a step -----------------------------------------------------------------------------------------

    def heard(self, letter: str) -> None:
        """f forward, n forward without averaging, e forward without gradients, b backward, r all_reduce, l schedule,
        u unscaled, z gradients cleared, c clipped, x clipped while scaled; a + after what comes again, s at the end."""
        if letter not in self.said["places"]:
            self.said["places"][letter] = own_place(sys._getframe(2))
        if self.letters.endswith((letter, letter + "+")):
            self.letters = self.letters.rstrip("+") + "+"
        elif len(self.letters) < _LETTERS:
            self.letters += letter

    def called(self, name: str, tensor: Any) -> None:
        """The program itself calls a collective."""
        self.said["called"] += "barrier" not in name
        self.said["gathered"] += name.startswith(_GATHERS)
        if name == "all_reduce":
            self.heard("r")
        if tensor is not None:
            self.moved += tensor.numel()

    def stepped(self) -> None:
        """A step has ended: its order is counted."""
        orders, order = self.said["orders"], self.letters + "s"
        if order in orders or len(orders) < _ORDERS:
            orders[order] = orders.get(order, 0) + 1
        count = self.agent.box.count if self.agent.box else 0
        if self.said["calls"]:  # before the first one they begin alike
            self.said["moved_most"] = max(self.moved, self.said["moved_most"])
        if len(self.said["calls"]) < _CALLS:
            self.said["calls"].append(count - self.calls_before)
            self.said["moved"].append(self.moved)
            self.said["gathers"].append(self.said["gathered"])
        self.letters, self.moved = "", 0
        self.said["gathered"] = 0
        self.calls_before = count
        self.beside.stepped(self.optimized)

    def grouped(self) -> None:
        """A process group was made."""
        self.said["groups_made"] += 1
        if len(self.said["groups"]) < _GROUPS:
            self.said["groups"].append(self.agent.steps)

    def tells(self, letter: str, function: Callable[..., Any], note: Callable[..., None] | None = None) -> Any:
        """The function; each outermost call of it by the main thread is heard."""

        def told(*arguments: Any, **named: Any) -> Any:
            if self.is_on():
                if letter:
                    self.heard(letter)
                if note:
                    self.agent.guarded("conduct: order", note, *arguments)
            return function(*arguments, **named)

        return unless_compiling(function, told)

    # -- modules of torch ----------------------------------------------------------------------------------------------

    def optimizers(self, module: Any) -> None:
        base = module.Optimizer
        base.zero_grad = self.tells("z", base.zero_grad, self.cleared)
        module.register_optimizer_step_pre_hook(self.before_step)
        module.register_optimizer_step_post_hook(self.after_step)
        self.restoring.of_optimizers(base, _rates)

    def before_step(self, optimizer: Any, *_: Any) -> None:
        if self.is_on() and len(self.stepping) < 2:
            self.outermost = id(optimizer)
            self.agent.guarded("conduct: replicas", self._before, optimizer)

    def after_step(self, optimizer: Any, *_: Any) -> None:
        """Where several optimizers are used, the gradients of one may hold what another one's loss has left there; one
        that steps inside another has the same gradients as that."""
        if not self.is_on() or id(optimizer) != self.outermost:
            return
        self.agent.guarded("conduct: rounding", self._rounded, optimizer)
        if self.known.count > 1 and self.agent.steps <= LOOKS[-2]:
            self.agent.guarded("conduct: foreign gradients", self._after, optimizer)

    def _rounded(self, optimizer: Any) -> None:
        number, one = self.known.number(optimizer), self._optimizer(optimizer)
        self.rounding.after(number, one)
        self.keeping.after(number, one.get("own_steps", 0), optimizer)

    def _after(self, optimizer: Any) -> None:
        own = self.known.number(optimizer)
        if self.foreign.pop(own, "") == "went backward":
            one = self._optimizer(optimizer)
            one["foreign"] = one.get("foreign", 0) + 1
        for number, parameter in self.first_of.items():
            grad = getattr(parameter(), "grad", None)
            mine = local(grad) if number != own and grad is not None else None
            if mine is not None and mine.device.type == "cpu" and mine.any():
                self.foreign[number] = "left"

    def cleared(self, optimizer: Any, *_: Any) -> None:
        self.foreign.pop(self.known.number(optimizer), None)

    def _before(self, optimizer: Any) -> None:
        one = self._optimizer(optimizer)
        self.rounding.before(self.known.number(optimizer), one, optimizer)
        self.keeping.before(self.known.number(optimizer))
        step = self.agent.steps + 1
        if step >= one["due"]:
            one["due"] = step + 1 + step // 4
            one["rates"].append([step, _rates(optimizer)])
        meets = bool(self.held) and 2 * self.moved >= self.held and step > LOOKS[1] and self.extra < _EXTRA
        if meets and step not in LOOKS:  # replicas that part may have met again
            self.extra += 1
        if step in LOOKS or meets:
            self._sum("at step")
            self._look(one, optimizer, step)
            self._modes()
            self.said["aids"] = _aids(sys.modules["torch"], self.said.get("aids", {}))
        for reference, said in self.models.wrapped:
            model = reference()
            if model is not None and not getattr(model, "module", model).training:  # some restore the inner one only
                said["steps_in_eval"] += 1

    def _optimizer(self, optimizer: Any) -> dict[str, Any]:
        found: list[dict[str, Any]] = self.said["optimizers"]
        number = self.known.number(optimizer)
        while number >= len(found) < _OPTIMIZERS:
            found.append({"rates": [], "due": 0})
        if number >= len(found):
            return {"rates": [], "due": 1 << 62}
        if "type" not in found[number]:
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            self.optimized.update(map(id, parameters))
            if parameters:
                self.first_of[number] = weakref.ref(parameters[0])
            if self.parameter() is None and parameters:
                self.parameter = weakref.ref(parameters[0])
            planned = _rates(optimizer, "initial_lr")
            found[number] |= {"type": type(optimizer).__name__, "parameters": len(parameters), "planned_rates": planned}
        return found[number]

    def _look(self, one: dict[str, Any], optimizer: Any, step: int) -> None:
        """What replicas have in common if they are replicas: parameters, gradients."""
        torch = sys.modules["torch"]
        if is_capturing():
            return
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        whole = [p for p in parameters if _is_whole(p) and local(p) is not None and local(p).numel()]
        one["sharded"] = sum(not _is_whole(p) for p in parameters)
        if not whole or len({p.device for p in whole}) > 1:
            return
        shapes = zlib.crc32(repr([tuple(p.shape) for p in whole]).encode())
        number = self.said["optimizers"].index(one)
        row: dict[str, Any] = {"optimizer": number, "step": step, "tensors": len(whole), "shapes": shapes}
        if step == LOOKS[0]:
            row["matrices"] = [
                zlib.crc32(repr(tuple(p.shape)).encode()) if p.dim() > 1 else 0 for p in whole[:_TENSORS]
            ]
        self.said["replicas"].append(row)
        self.held = self.held or sum(local(p).numel() for p in whole)
        with torch.no_grad():
            for what, tensors in (("parameters", whole), ("gradients", [p.grad for p in whole])):
                held = [local(t) if t is not None else None for t in tensors]
                present = [t for t in held if t is not None]
                if present:
                    sums = torch.stack([sampled(torch, t) for t in present])
                    self.sentinels.fetch(f"{what} {number} {step}", sums, functools.partial(_digested, row, what))
                row["none" if what == "gradients" else "held"] = len(held) - len(present)
        asked = [p for p in whole if p.requires_grad]
        row["bytes"], row["storage"] = _bytes(whole)
        row["elements"] = sum(p.numel() for p in asked)
        row["without_gradient"] = sum(p.numel() for p in asked if p.grad is None)
        self._idle(torch, row, asked)

    def _idle(self, torch: Any, row: dict[str, Any], parameters: Sequence[Any]) -> None:
        """Of large tables with dense gradients: of how many elements next to none gets another gradient than zero."""
        tables = [p for p in parameters if p.dim() == 2 and p.shape[0] >= _ROWS and p.numel() >= _LARGE]
        grads = [(p.numel(), local(p.grad)) for p in tables if p.grad is not None and p.grad.layout == torch.strided]
        grads = [(size, grad) for size, grad in grads if grad is not None]
        if grads:
            with torch.no_grad():
                each = [(grad[:: max(1, grad.shape[0] // _SAMPLE), 0] != 0).float().mean() for _, grad in grads]
            use = functools.partial(_not_touched, row, [size for size, _ in grads])
            self.sentinels.fetch(f"idle {row['optimizer']} {row['step']}", torch.stack(each), use)

    def _modes(self) -> None:
        for reference, said in self.models.wrapped:
            if (model := reference()) is not None and self.agent.steps + 1 >= LOOKS[2]:
                trained = [p for p in model.parameters() if p.requires_grad]
                said["in_no_optimizer"] = sum(id(p) not in self.optimized for p in trained)

    def schedulers(self, module: Any) -> None:
        begin = module.LRScheduler._initial_step

        @functools.wraps(begin)
        def initial(scheduler: Any, *arguments: Any) -> Any:
            before, result = self.letters, begin(scheduler, *arguments)
            self.letters = before
            if self.is_on() and len(self.said["schedules"]) < _SCHEDULES:
                row = {"type": type(scheduler).__name__, "planned": _planned(scheduler), "calls": 0}
                self.of_schedule[scheduler] = row
                self.said["schedules"].append(row)
            return result

        module.LRScheduler._initial_step = initial
        kinds: list[Any] = [one for one in vars(module).values() if isinstance(one, type)]
        for kind in kinds:
            if "step" in vars(kind) and hasattr(kind, "get_last_lr"):
                kind.step = self.tells("l", kind.step, self.scheduled)
            if "load_state_dict" in vars(kind) and hasattr(kind, "get_last_lr"):
                kind.load_state_dict = self.tells(
                    "", kind.load_state_dict, lambda *_: self.restoring.restored("scheduler")
                )

    def scheduled(self, scheduler: Any, *_: Any) -> None:
        if (row := self.of_schedule.get(scheduler)) is not None:
            row["calls"] += 1

    def modules(self, module: Any) -> None:
        base = module.Module
        base.zero_grad = self.tells("z", base.zero_grad, lambda *_: self.foreign.clear())
        self.restoring.of_modules(base)

    def clipping(self, module: Any) -> None:
        clip = module.clip_grad_norm_

        def clip_grad_norm_(*arguments: Any, **named: Any) -> Any:
            norm = clip(*arguments, **named)
            if self.is_on():
                self.heard("x" if self.scaled else "c")
                self.agent.guarded("conduct: clipping", self.sentinels.clipped, norm)
                limit = named.get("max_norm", arguments[1] if len(arguments) > 1 else None)
                if isinstance(limit, (int, float)):
                    self.said["clipped_at"] = float(limit)
            return norm

        module.clip_grad_norm_ = unless_compiling(clip, clip_grad_norm_)

    def scalers(self, module: Any) -> None:
        kind = module.GradScaler

        def scaled(scaler: Any, *_: Any) -> None:
            self.scaled = bool(scaler.is_enabled())

        def unscaled(*_: Any) -> None:
            self.scaled = False

        def updated(scaler: Any, *_: Any) -> None:
            self.scaled = False
            self.said["scaler_updates"] += bool(scaler.is_enabled())

        kind.scale = self.tells("", kind.scale, scaled)
        kind.unscale_ = self.tells("u", kind.unscale_, unscaled)
        kind.update = self.tells("", kind.update, updated)
        kind.load_state_dict = self.tells("", kind.load_state_dict, lambda *_: self.restoring.restored("scaler"))

    def backwards(self, autograd: Any) -> None:
        backward = autograd.backward

        @functools.wraps(backward)
        def heard(tensors: Any, *arguments: Any, **named: Any) -> Any:
            on = self.is_on()
            if on:
                self.agent.guarded("conduct: loss", self._backward, tensors)
            before = self.said["called"]
            result = backward(tensors, *arguments, **named)
            if on:
                self.agent.guarded("conduct: sums", self._added, self.said["called"] > before)
            return result

        autograd.backward = heard

    def _added(self, reduced: bool) -> None:
        """A backward pass adds to what is there; what it leaves as it is belongs to a copy, as half precision has.
        Where hooks have reduced gradients meanwhile, what they were before is not known."""
        if self.left_over is not None:
            grad, version = self.left_over
            self.left_over = None
            same = getattr(self.parameter(), "grad", None) is grad
            self.said["left_over"] += not same or local(grad)._version > version
        if not reduced:
            self._sum("after backward")

    def _sum(self, when: str) -> None:
        """Of the first gradient: a sum over ranks of sums tells an average from a sum."""
        step = self.agent.steps + 1
        grad = getattr(self.parameter(), "grad", None)
        mine = local(grad) if step in LOOKS and grad is not None and _is_whole(grad) else None
        if mine is not None:
            rows = self.said["sums"]
            if not rows or rows[-1]["step"] != step:
                rows.append({"step": step})
            total = mine.detach().double().sum().reshape(1)
            self.sentinels.fetch(f"{when} {step}", total, functools.partial(_summed, rows[-1], when))

    def _backward(self, tensors: Any) -> None:
        grad = getattr(self.parameter(), "grad", None)
        self.left_over = None
        if grad is not None and "b" not in self.letters and self.agent.steps <= LOOKS[-2]:
            mine = local(grad)
            if mine is not None and mine.device.type == "cpu" and mine.any():
                self.left_over = grad, mine._version
        loss = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
        if self.agent.steps < LOOKS[2]:
            factors = list(_factors(getattr(loss, "grad_fn", None)))
            if factors and len(self.said["factors"]) < _FACTORS:
                self.said["factors"].append(factors)
        self.foreign = dict.fromkeys(self.foreign, "went backward")
        if self.letters.rstrip("+").endswith("f"):
            models = [reference() for reference, _ in self.models.wrapped]
            self.said["too_late"] += any(
                getattr(model, "require_backward_grad_sync", True) is False for model in models
            )
        self.heard("b")
        self.feeding.backward()
        self.classes.backward(loss)
        self.recomputing.backward()


def _bytes(tensors: Sequence[Any]) -> tuple[int, int]:
    """What they hold, and what is kept in memory because of them: of a view, all that it is a view of."""
    held = {part.data_ptr(): part for tensor in tensors if (part := local(tensor)) is not None}
    stores = {store.data_ptr(): store.nbytes() for part in held.values() if (store := part.untyped_storage())}
    return sum(part.numel() * part.element_size() for part in held.values()), sum(stores.values())


def _rates(optimizer: Any, name: str = "lr") -> list[float]:
    return [float(group[name]) for group in optimizer.param_groups[:4] if name in group]


def _planned(scheduler: Any) -> int:
    """How many steps a schedule was made for, if it says so."""
    for name in ("T_max", "total_steps", "total_iters"):
        if isinstance(value := getattr(scheduler, name, None), int):
            return value
    for function in getattr(scheduler, "lr_lambdas", ()):
        if isinstance(value := (getattr(function, "keywords", None) or {}).get("num_training_steps"), int):
            return value
    return 0


def _aids(torch: Any, before: dict[str, Any]) -> dict[str, Any]:
    """What helps to find errors, and costs time, at every look; and how many threads there are to how many cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0
    return {
        "anomaly": before.get("anomaly", True) and bool(torch.is_anomaly_enabled()),
        "profiler": before.get("profiler", True) and bool(torch.autograd._profiler_enabled()),
        "threads": int(torch.get_num_threads()),
        "cores": cores,
    }


def _factors(node: Any) -> Iterator[float]:
    """By which numbers the program has multiplied or divided its loss, last first."""
    for _ in range(_DEPTH):
        name = node.name() if node is not None else ""
        if name not in ("DivBackward0", "MulBackward0"):
            return
        following = [one for one, _ in node.next_functions if one is not None]
        other = getattr(node, "_saved_other", None)
        if other is None or other.numel() != 1 or other.device.type != "cpu" or len(following) != 1:
            return
        value, node = float(other), following[0]
        if not value or node.name().startswith("Add"):
            return  # the mean of two terms
        yield 1 / value if name == "DivBackward0" else value


def _is_whole(parameter: Any) -> bool:
    placements = getattr(parameter, "placements", None)
    return placements is None or all(one.is_replicate() for one in placements)


def _digested(row: dict[str, Any], what: str, _: str, __: int, sums: Any) -> None:
    values = sums.tolist()
    row[what] = zlib.crc32(repr(values).encode())
    row["each " + what] = [value & 0xFFFF for value in values[:_TENSORS]]


def _not_touched(row: dict[str, Any], sizes: Sequence[int], _: str, __: int, shares: Any) -> None:
    row["idle"] = sum(size for size, share in zip(sizes, shares.tolist(), strict=True) if share < _FEW)


def _summed(row: dict[str, Any], when: str, _: str, __: int, value: Any) -> None:
    row[when] = float(value)
