"""What a rule of `check` may name as its detector."""

from __future__ import annotations

from types import ModuleType

from paramedic.detect import (
    code,
    code_accelerate,
    code_averages,
    code_checkpoints,
    code_colossalai,
    code_copies,
    code_data,
    code_deepspeed,
    code_evaluation,
    code_frameworks,
    code_gradients,
    code_horovod,
    code_lightning,
    code_megatron,
    code_memory,
    code_parts,
    code_ray,
    code_replicas,
    code_scores,
    code_sharding,
    code_shares,
    code_speed,
    code_tensorflow,
    code_upkeep,
    configs,
    deepspeed,
    footprint,
    jobsize,
    kubernetes,
    launchers,
    megatron,
    slurm,
    trainers,
    variables,
)
from paramedic.detect.setup import Check

_ROOMS: tuple[ModuleType, ...] = (
    configs,
    deepspeed,
    trainers,
    megatron,
    launchers,
    slurm,
    kubernetes,
    variables,
    jobsize,
    footprint,
    code,
    code_data,
    code_gradients,
    code_replicas,
    code_evaluation,
    code_memory,
    code_speed,
    code_upkeep,
    code_averages,
    code_parts,
    code_checkpoints,
    code_frameworks,
    code_copies,
    code_accelerate,
    code_lightning,
    code_deepspeed,
    code_ray,
    code_colossalai,
    code_megatron,
    code_horovod,
    code_tensorflow,
    code_scores,
    code_sharding,
    code_shares,
)


def _of(room: ModuleType) -> dict[str, Check]:
    name = room.__name__.rsplit(".", 1)[-1]
    public = {key: value for key, value in vars(room).items() if not key.startswith("_")}
    return {
        f"{name}.{key}": value
        for key, value in public.items()
        if f"{getattr(value, '__module__', '')}.".startswith(f"{room.__name__}.")
        and getattr(value, "__annotations__", {}).keys() == {"setup", "return"}
    }


CHECKS: dict[str, Check] = {name: check for room in _ROOMS for name, check in _of(room).items()}
"""Every public function of these rooms that takes a Setup alone; `every` makes such of rules about one program."""
