"""Programs that resume, but not where they left off."""

from __future__ import annotations

import re
from collections.abc import Iterator

from paramedic.detect.flow import Flow
from paramedic.detect.loops import backwards, distributed, hit, once
from paramedic.detect.setup import Hit, Setup
from paramedic.detect.values import Op, Value

_STATEFUL = {"optimizer": "optimizer", "scheduler": "scheduler", "scaler": "scaler"}


def _saves(flow: Flow) -> Iterator[tuple[Op, dict[str, Value]]]:
    """What `torch.save` writes, by key."""
    for op in flow.calls("save"):
        if op.name == "torch.save" and op.args:
            yield op, op.args[0].attrs if op.args[0].kind == "dict" else {"": op.args[0]}


def _resumes(flow: Flow) -> list[Op]:
    """A saved state of the model is read back, and training goes on."""
    trained = backwards(flow)
    if not trained:
        return []
    return [op for op in flow.calls("load") if op.name == "torch.load" and op.index < trained[0].op.index]


def _restored(flow: Flow) -> list[Op]:
    return list(flow.calls("load_state_dict"))


def state_not_restored(setup: Setup) -> Iterator[Hit]:
    def found() -> Iterator[Hit]:
        for flow in setup.flows:
            loads = _resumes(flow)
            restored = _restored(flow)
            if not loads or not any(op.of is not None and op.of.kind == "model" for op in restored):
                continue
            if any(op.of is not None and op.of.kind in ("", "instance") for op in restored) or flow.mentions(
                r"load_state\(|set_optimizer_state_dict|set_state_dict"
            ):
                continue
            back = {op.of.kind for op in restored if op.of is not None}
            for op, saved in _saves(flow):
                kinds = [one.attrs["of"].kind for one in saved.values() if one.kind == "state" and "of" in one.attrs]
                lost = [kind for kind in kinds if kind in _STATEFUL and kind not in back]
                if lost and "model" in kinds:
                    yield hit(loads[0], op, what=" and ".join(dict.fromkeys(lost)))

    return once(found())


def state_not_saved(setup: Setup) -> Iterator[Hit]:
    """Resumes from weights alone: moments and schedule start anew."""

    def found() -> Iterator[Hit]:
        for flow in setup.flows:
            loads = _resumes(flow)
            saves = list(_saves(flow))
            if (
                not loads
                or not saves
                or flow.mentions(
                    r"optim\w*\.state_dict|opt\.state_dict|get_state_dict|save_state|finetun|pretrain|\.save_checkpoint"
                )
            ):
                continue
            steps_back = _same_file(saves[0][0], loads) or any(
                re.search(r"(?i)resum|restart|start_epoch|begin|first_epoch|last_epoch", op.module.text) for op in loads
            )
            model_kept = any(
                one.kind == "state" and one.attrs.get("of", Value()).kind == "model"
                for _, saved in saves
                for one in saved.values()
            )
            optimizers = [
                op
                for op in flow.ops
                if op.kind == "call" and op.result.kind == "optimizer" and op.result.made is op and _has_memory(op)
            ]
            if (
                model_kept
                and optimizers
                and steps_back
                and any(op.of is not None and op.of.kind == "model" for op in _restored(flow))
            ):
                yield hit(saves[0][0], loads[0], what=optimizers[0].last)

    return once(found())


def _same_file(save: Op, loads: list[Op]) -> bool:
    path = save.args[1] if len(save.args) > 1 else Value()
    return any(op.args and (op.args[0] is path or (path.known and op.args[0].const == path.const)) for op in loads)


def _has_memory(op: Op) -> bool:
    momentum = op.keywords.get("momentum")
    return op.last != "SGD" or (momentum is not None and momentum.const not in (0, 0.0, None))


def names_passed_over(setup: Setup) -> Iterator[Hit]:
    """The wrapped model's names into the bare one, or the other way round, with strict=False."""

    def found() -> Iterator[Hit]:
        for flow in setup.flows:
            for op in _restored(flow):
                strict = op.argument("strict", 1)
                of = op.of
                if strict is None or strict.const is not False or of is None or of.kind != "model":
                    continue
                if flow.mentions(
                    r"module\.['\"]|removeprefix|consume_prefix|partition\(['\"]module|\.replace\(['\"]module"
                ):
                    continue
                for save, saved in _saves(flow):
                    for one in saved.values():
                        model = one.attrs.get("of", Value())
                        if one.kind != "state" or model.kind != "model" or model.base is not of.base:
                            continue
                        if _prefixed(model) != _prefixed(of):
                            yield hit(
                                op,
                                save,
                                saved="wrapped" if _prefixed(model) else "bare",
                                loaded="wrapped" if _prefixed(of) else "bare",
                            )

    return once(found())


def _prefixed(model: Value) -> bool:
    return model.wrap in ("ddp", "ray", "accelerate", "deepspeed")


def begins_anew(setup: Setup) -> Iterator[Hit]:
    """The epoch or step is saved and the weights are restored, but the loop begins at nought."""

    def found() -> Iterator[Hit]:
        for flow in setup.flows:
            loads = _resumes(flow)
            if not loads or not any(op.of is not None and op.of.kind == "model" for op in _restored(flow)):
                continue
            counted = [
                (op, key)
                for op, saved in _saves(flow)
                for key in saved
                if re.fullmatch(r"(?i)(?:\w*_)?(?:epoch|step|iteration|iter)s?", key)
            ]
            loops = [loop for one in backwards(flow) for loop in one.op.loops]
            ranges = [loop for loop in loops if loop.over.kind == "range"]
            if not counted or not ranges:
                continue
            key = re.escape(counted[0][1])
            used = flow.mentions(
                rf"\[['\"]{key}['\"]\](?!\s*=[^=])|\.get\(['\"]{key}['\"]|\.pop\(['\"]{key}|\*\*\w*(?:state|ckpt|checkpoint)"
            )
            outer = ranges[0]
            start = outer.over.attrs.get("start", Value())
            if start.number() == 0 and not outer.over.has("loaded") and outer.over.made is not None:
                if not used:
                    yield hit(outer.over.made, counted[0][0], key=counted[0][1])

    return once(found())


def read_before_written(setup: Setup) -> Iterator[Hit]:
    """One rank writes, all read at once, and nothing makes them wait."""

    def found() -> Iterator[Hit]:
        for flow in distributed(setup):
            for save in flow.calls("save"):
                if save.name != "torch.save" or save.label != "first" or len(save.args) < 2:
                    continue
                for op in flow.ops[save.index + 1 : save.index + 40]:
                    if op.last in (
                        "barrier",
                        "wait_for_everyone",
                        "monitored_barrier",
                        "broadcast",
                        "all_reduce",
                        "all_gather",
                        "broadcast_object_list",
                    ):
                        break
                    if op.last == "load" and op.name == "torch.load" and op.args and not op.label:
                        same = op.args[0] is save.args[1] or (
                            op.args[0].known and op.args[0].const == save.args[1].const
                        )
                        if same and op.loops == save.loops:
                            yield hit(op, save)

    return once(found())
