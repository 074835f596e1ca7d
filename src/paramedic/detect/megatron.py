"""Arguments of Megatron-LM that contradict it or each other."""

from __future__ import annotations

from collections.abc import Iterator

from paramedic.detect.known_keys import (
    MEGATRON_REMOVED,
)
from paramedic.detect.setup import Hit, Part, Setup


def _indivisible(setup: Setup, whole: str, by: str, default: int | None = None) -> Iterator[tuple[Part, int, int]]:
    for part in setup.of("megatron"):
        number = part.number_of(whole)
        divisor = part.number_of(by) if part.has(by) else default
        if number is not None and divisor is not None and divisor > 0 and number % divisor:
            yield part, number, divisor


def hidden(setup: Setup) -> Iterator[Hit]:
    for part, hidden, heads in _indivisible(setup, "hidden_size", "num_attention_heads"):
        if not part.has("kv_channels"):
            yield Hit(part.quoted("hidden_size", "num_attention_heads"), {"hidden": hidden, "heads": heads})


def heads(setup: Setup) -> Iterator[Hit]:
    for part, heads, degree in _indivisible(setup, "num_attention_heads", "tensor_model_parallel_size"):
        yield Hit(part.quoted("num_attention_heads", "tensor_model_parallel_size"), {"heads": heads, "degree": degree})


def groups(setup: Setup) -> Iterator[Hit]:
    for part, groups, degree in _indivisible(setup, "num_query_groups", "tensor_model_parallel_size"):
        if degree % groups:  # newer releases share groups between ranks where the degree is a multiple of them
            yield Hit(
                part.quoted("num_query_groups", "tensor_model_parallel_size"), {"groups": groups, "degree": degree}
            )


_OTHER_SPLITS = (
    "decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers", "pipeline_model_parallel_layout",
    "num_layers_in_first_pipeline_stage", "account_for_embedding_in_pipeline_split", "hybrid_layer_pattern",
    "hybrid_override_pattern", "account_for_loss_in_pipeline_split",
)  # fmt: skip


def layers(setup: Setup) -> Iterator[Hit]:
    for part, layers, degree in _indivisible(setup, "num_layers", "pipeline_model_parallel_size"):
        if not any(part.has(key) for key in _OTHER_SPLITS) and "?" not in part.facts:
            yield Hit(part.quoted("num_layers", "pipeline_model_parallel_size"), {"layers": layers, "degree": degree})


def batch(setup: Setup) -> Iterator[Hit]:
    for part, total, micro in _indivisible(setup, "global_batch_size", "micro_batch_size"):
        if not part.has("rampup_batch_size"):
            yield Hit(part.quoted("global_batch_size", "micro_batch_size"), {"total": total, "micro": micro})


def experts(setup: Setup) -> Iterator[Hit]:
    for part, experts, degree in _indivisible(setup, "num_experts", "expert_model_parallel_size"):
        yield Hit(part.quoted("num_experts", "expert_model_parallel_size"), {"experts": experts, "degree": degree})


def sequence(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("megatron"):
        length, degree = part.number_of("seq_length"), part.number_of("context_parallel_size")
        if length and degree and degree > 1 and length % (2 * degree):
            yield Hit(part.quoted("seq_length", "context_parallel_size"), {"length": length, "pieces": 2 * degree})


def positions(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("megatron"):
        length, positions = part.number_of("seq_length"), part.number_of("max_position_embeddings")
        if length and positions and length > positions:
            yield Hit(
                part.quoted("max_position_embeddings", "seq_length"),
                {"length": length, "positions": positions, "section": part.number},
            )


def rates(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("megatron"):
        low, high = part.get("min_lr"), part.get("lr")
        if isinstance(low, float | int) and isinstance(high, float | int) and low > high:
            yield Hit(part.quoted("min_lr", "lr"), {"low": low, "high": high})


def removed(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("megatron"):
        for name, instead in MEGATRON_REMOVED.items():
            if part.has(name) and not (name == _ROTARY_ONLY and _rotates(part)):
                yield Hit(
                    part.quoted(name), {"name": name.replace("_", "-"), "instead": instead, "section": part.number}
                )


_ROTARY_ONLY = "no_position_embedding"
"""Refused unless positions are rotary: there it still means what it says."""


def _rotates(part: Part) -> bool:
    return part.get("position_embedding_type") == "rope" or part.has("use_rotary_position_embeddings")


def connections(setup: Setup) -> Iterator[Hit]:
    """Before Blackwell the overlap of tensor parallelism asks for one hardware queue."""
    for part in setup.of("megatron"):
        split = (part.number_of("tensor_model_parallel_size") or 1) * (part.number_of("context_parallel_size") or 1)
        variables = [p for p in setup.of("environment") if p.source == part.source]
        named = any("CUDA_DEVICE_MAX_CONNECTIONS" in p.facts for p in variables)
        fsdp = part.has("use_torch_fsdp2") or part.has("use_megatron_fsdp")
        if split > 1 and part.source.endswith((".sh", ".sbatch", ".slurm")) and not named and not fsdp:
            if part.has("sequence_parallel") or part.has("tp_comm_overlap"):
                yield Hit(part.quoted("tensor_model_parallel_size", "sequence_parallel"), {"split": split})
