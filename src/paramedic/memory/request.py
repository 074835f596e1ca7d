"""What is asked: a model, the shape of a step, how it is trained, on which cards. Standard library only."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from paramedic.errors import ParamedicError

DTYPES = ("fp32", "bf16", "fp16", "bf16-autocast", "fp16-autocast")
OPTIMIZERS = (
    "adamw", "adamw-foreach", "adamw-fused", "adamw-loop", "adamw-8bit", "adam", "adam-fused",
    "sgd", "sgd-momentum", "adafactor", "adagrad", "rmsprop", "none",
)  # fmt: skip
ATTENTION = ("sdpa", "eager", "flash")
STRATEGIES = ("none", "ddp", "zero1", "zero2", "zero3", "fsdp2")
OFFLOAD = ("none", "optimizer", "parameters")


@dataclass(frozen=True, slots=True)
class Request:
    model: str | None = None
    entry: str | None = None
    batch: int = 1
    seq: int | None = None
    target_seq: int | None = None
    image_size: int | None = None
    dtype: str = "bf16-autocast"
    optimizer: str = "adamw"
    checkpointing: bool = False
    attention: str = "sdpa"
    gpu: str = "h100"
    gpu_memory: str | None = None
    strategy: str = "none"
    world_size: int = 1
    tp: int = 1
    pp: int = 1
    micro_batches: int | None = None
    accumulation: int = 1
    offload: str = "none"
    bucket_view: bool = False
    alloc_conf: str = ""
    layers: int | None = None
    """Only for extrapolation: the model with so many layers."""

    @property
    def dp(self) -> int:
        return self.world_size // (self.tp * self.pp)

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> Request:
        return cls(**{one.name: given[one.name] for one in fields(cls) if one.name in given})

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def check(request: Request) -> None:
    if (request.model is None) == (request.entry is None):
        raise ParamedicError("memory estimate: needs --model config.json or --entry train.py:build, one of them")
    for name in ("batch", "world_size", "tp", "pp", "accumulation"):
        if getattr(request, name) < 1:
            raise ParamedicError(f"--{name.replace('_', '-')} {getattr(request, name)}: must be 1 or more")
    for name in ("seq", "target_seq", "image_size", "micro_batches"):
        value = getattr(request, name)
        if value is not None and not 0 < value <= 1 << 24:
            raise ParamedicError(f"--{name.replace('_', '-')} {value}: must be between 1 and {1 << 24:,}")
    if request.batch > 1 << 20 or request.world_size > 1 << 18:
        raise ParamedicError(f"--batch {request.batch} --world-size {request.world_size}: no job is as large as that")
    _check_ranks(request)


def _check_ranks(request: Request) -> None:
    cells = request.tp * request.pp
    if request.world_size % cells:
        raise ParamedicError(
            f"--world-size {request.world_size}: is no multiple of --tp {request.tp} × --pp {request.pp} = {cells}"
        )
    if request.strategy == "none" and request.dp > 1:
        raise ParamedicError(
            f"--world-size {request.world_size}: how do the ranks share the work? "
            "Say --strategy ddp, fsdp2, zero1, zero2 or zero3, or --tp, --pp"
        )
    if request.offload != "none" and request.strategy not in ("zero1", "zero2", "zero3", "fsdp2"):
        raise ParamedicError(f"--offload {request.offload}: needs --strategy zero1, zero2, zero3 or fsdp2")
    if request.strategy.startswith("zero") and request.dtype == "fp32":
        raise ParamedicError(f"--strategy {request.strategy} --dtype fp32: ZeRO is known in half precision; say bf16")
    if request.offload == "parameters" and request.strategy in ("zero1", "zero2"):
        raise ParamedicError("--offload parameters: needs --strategy zero3 or fsdp2")
    if request.pp > 1 and request.strategy in ("zero2", "zero3"):
        raise ParamedicError(f"--pp {request.pp}: a pipeline goes with zero1, ddp or fsdp2, not {request.strategy}")
    if request.entry and (request.tp > 1 or request.pp > 1):
        raise ParamedicError("--entry: tensor and pipeline parallelism need --model, whose layers are known")
