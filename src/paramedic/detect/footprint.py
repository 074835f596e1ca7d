"""What a job's files say of its memory: model, ranks, sharing, batch. Arithmetic only, and only what is certain."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from paramedic.detect.jobsize import deepspeed_of, file_named, started, world_size
from paramedic.detect.memory import human
from paramedic.detect.setup import Hit, Part, Setup
from paramedic.model import Fact

GIB = 1 << 30
LARGEST = {
    "b300": 288, "b200": 192, "gb200": 192, "h200": 144, "gh200": 144, "h100": 96, "h800": 80, "a100": 80, "a800": 80,
    "v100": 32, "p100": 16, "a40": 48, "a30": 24, "a10": 24, "a10g": 24, "l40s": 48, "l40": 48, "l4": 24, "t4": 16,
    "rtx3090": 24, "rtx4090": 24, "rtx5090": 32, "rtx8000": 48, "a6000": 48, "a5000": 24, "2080ti": 11, "titanrtx": 24,
}  # fmt: skip
"""GiB of the largest card that bears the name."""
_PART_TRAINED = re.compile(
    r"lora|peft|adapter|freez|requires_grad|quant|load_in_|bitsandbytes|galore|apollo|lomo|_8bit|prompt_tuning"
    r"|tensor_parallel|tp_size|pipeline_parallel|low_rank", re.I
)  # fmt: skip
_ADAM = ("adamw_torch", "adamw_torch_fused", "adamw_hf")
_SEQ = ("max_seq_length", "max_seq_len", "block_size", "model_max_length", "seq_length", "max_length", "cutoff_len")


@dataclass(frozen=True)
class Job:
    """A launch command with what it names. What is None is not known."""

    launch: Part
    arguments: Part
    world: int | None
    model: Part | None
    deepspeed: Part | None

    @property
    def stage(self) -> int | None:
        """ZeRO's; 0 without DeepSpeed."""
        if self.deepspeed is None:
            return 0
        return self.deepspeed.number_of("zero_optimization.stage") if self.deepspeed.has("zero_optimization") else 0

    @property
    def shards(self) -> bool:
        return bool(self.arguments.get("fsdp"))


def jobs(of: Setup) -> Iterator[Job]:
    for launch, part in started(of, "transformers", "arguments"):
        size = world_size(launch)
        yield Job(launch, part, size[0] if size else None, _model_of(of, launch, part), deepspeed_of(of, launch, part))


def _model_of(setup: Setup, launch: Part, part: Part) -> Part | None:
    for key in ("model_name_or_path", "config_name", "model"):
        named = part.get(key)
        if isinstance(named, str):
            found = file_named(setup, launch.source, posixpath.join(named, "config.json"), "model")
            if found is not None or not named.startswith((".", "/")):
                return found
    models = list(setup.of("model"))
    return models[0] if len(models) == 1 else None


def parameters(config: Mapping[str, Any]) -> int | None:
    """Of decoders whose layers are known by heart; a little less than all, never more."""
    if config.get("model_type") not in ("llama", "mistral", "qwen2", "qwen3"):
        return None
    keys = ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size", "num_attention_heads")
    values = [config.get(key) for key in keys]
    if not all(isinstance(value, int) and not isinstance(value, bool) and value > 0 for value in values):
        return None
    hidden, inner, layers, words, heads = (int(value) for value in values if value is not None)
    pairs = config.get("num_key_value_heads")
    width = config.get("head_dim") or hidden // heads
    if not isinstance(width, int):
        return None
    across = heads * width
    kept = (pairs if isinstance(pairs, int) else heads) * width
    layer = 2 * hidden * across + 2 * hidden * kept + 3 * hidden * inner
    tables = words * hidden * (1 if config.get("tie_word_embeddings") is not False else 2)
    return layers * layer + tables


def least_bytes(job: Job, count: int) -> int | None:
    """On each card, with weights in half precision; None where it is not known how the ranks share them."""
    if job.world is None or job.world < 1 or job.stage is None or _unknown(job):
        return None
    if job.deepspeed is None:
        each = 8 / job.world if job.shards else 8.0
        return int(count * each)
    away, gone = (_away(job.deepspeed, name) for name in ("offload_optimizer", "offload_param"))
    share = 1 / job.world
    weights = 0.0 if gone else 2 * (share if job.stage == 3 else 1.0)
    if job.stage == 0:
        return int(count * weights)
    return int(count * (weights + (0.0 if away or gone else 12 * share)))


def _away(config: Part, name: str) -> bool:
    return any(key.startswith(f"zero_optimization.{name}") for key in config.facts) or config.has(
        "zero_optimization.cpu_offload"
    )


def _unknown(job: Job) -> bool:
    """Something else than the Trainer's Adam on all parameters may be meant, or something could not be read."""
    parts = [one for one in (job.arguments, job.deepspeed) if one is not None]
    if any("?" in key for one in parts for key in one.facts) or job.launch.get("launcher") == "accelerate":
        return True  # accelerate's own file may share what the arguments do not
    if any(job.arguments.has(key) and job.arguments.get(key) is None for key in ("fsdp", "deepspeed", "optim")):
        return True
    if job.deepspeed is None and any(job.arguments.has(key) for key in ("deepspeed", "deepspeed_config")):
        return True
    optimizer = job.arguments.get("optim")
    if optimizer is not None and optimizer not in _ADAM:
        return True
    named = job.deepspeed.get("optimizer.type") if job.deepspeed is not None else None
    if named is not None and str(named).lower() not in ("adam", "adamw"):
        return True
    half = job.deepspeed is None or any(job.deepspeed.get(f"{one}.enabled") is True for one in ("bf16", "fp16"))
    return not half or any(_PART_TRAINED.search(key) for one in parts for key in one.facts)


def states_exceed_card(setup: Setup) -> Iterator[Hit]:
    """Only with the Trainer, whose optimizer is known, in a program of this folder that trains all parameters."""
    for job in jobs(setup):
        card = _card(setup, job.launch)
        if card is None or job.model is None or job.arguments.kind != "transformers" or not _trains_all(setup, job):
            continue
        count = parameters({key: fact.value for key, fact in job.model.facts.items()})
        least = least_bytes(job, count) if count else None
        if count and least and least > card[0]:
            quoted = (*job.arguments.quoted("per_device_train_batch_size"), *job.launch.quoted("launcher"), card[1])
            fields = {
                "count": f"{count / 1e9:.1f}", "least": human(least), "card": human(card[0]), "ranks": job.world,
                "plan": plan_command(job, card[0]),
                "model": job.model.source,
            }  # fmt: skip
            yield Hit(quoted, fields)


def _trains_all(setup: Setup, job: Job) -> bool:
    program = job.launch.get("program")
    named = {posixpath.basename(str(program))} if isinstance(program, str) else set()
    for script in setup.scripts:
        if posixpath.basename(script.source) in named:
            return "Trainer" in script.names and not any(_PART_TRAINED.search(name) for name in script.names)
    return False


def _card(setup: Setup, launch: Part) -> tuple[int, Fact] | None:
    """By the name that the same batch script asks Slurm for; of cards with one name the largest."""
    for part in setup.of("slurm"):
        if part.source != launch.source:
            continue
        for key in ("gres", "gpus_per_node", "gpus", "gpus_per_task"):
            words = re.split(r"[:,=_-]", str(part.get(key) or "").lower())
            sizes = [LARGEST[word] for word in words if word in LARGEST]
            if sizes:
                return max(sizes) * GIB, part.facts[key]
    return None


def plan_command(job: Job | None, card: int | None, world: int | None = None, root: str = "") -> str:
    """`paramedic memory plan` with all that is known; words in capitals where it is not."""
    model = posixpath.join(root, job.model.source) if job is not None and job.model is not None else "config.json"
    words = ["paramedic", "memory", "plan", "--model", shlex.quote(posixpath.normpath(model))]
    batch = _first(job, "per_device_train_batch_size", "micro_batch_size", "batch_size")
    if batch is None and job is not None and job.deepspeed is not None:
        batch = job.deepspeed.number_of("train_micro_batch_size_per_gpu")
    words += ["--batch", str(batch or "BATCH"), "--seq", str(_first(job, *_SEQ) or "TOKENS")]
    steps = _first(job, "gradient_accumulation_steps")
    words += ["--accumulation", str(steps)] if steps and steps > 1 else []
    ranks = (job.world if job is not None else None) or world
    words += ["--world-size", str(ranks)] if ranks and ranks > 1 else []
    words += _sharing(job) if job is not None else []
    if job is not None and job.arguments.get("gradient_checkpointing") is True:
        words.append("--activation-checkpointing")
    words += ["--gpu", "GPU"] if card is None else _gpu(card)
    return " ".join(words)


def _sharing(job: Job) -> list[str]:
    if job.stage:
        offload = "parameters" if job.deepspeed is not None and _away(job.deepspeed, "offload_param") else "optimizer"
        away = job.deepspeed is not None and any(
            _away(job.deepspeed, f"offload_{one}") for one in ("param", "optimizer")
        )
        return ["--strategy", f"zero{job.stage}", *(["--offload", offload] if away else [])]
    return ["--strategy", "fsdp2"] if job.shards else []


def _gpu(card: int) -> list[str]:
    """The very size, and a card of about this one, where there is but one that jobs run on."""
    gib = card / GIB
    sizes = (
        ("t4", 15.2),
        ("", 17),
        ("4090", 25),
        ("v100-32", 34),
        ("a100-40", 42),
        ("l40s", 50),
        ("", 85),
        ("h200", 150),
    )
    name = next((name for name, most in sizes if gib <= most), "b200")
    return [*(("--gpu", name) if name else ()), "--gpu-memory", f"{gib:.2f}GiB"]


def _first(job: Job | None, *keys: str) -> int | None:
    if job is None:
        return None
    return next((value for key in keys if (value := job.arguments.number_of(key)) is not None), None)
