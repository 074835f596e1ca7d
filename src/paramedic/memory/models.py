"""A Hugging Face config.json → the model without weights, a batch for it, and its loss."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from paramedic.errors import ParamedicError
from paramedic.memory.config_json import read_config
from paramedic.memory.request import Request

BATCH = dict[str, torch.Tensor]
_FAMILIES = (
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "MODEL_FOR_CTC_MAPPING_NAMES",
    "MODEL_MAPPING_NAMES",
)
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Of the parameters and what is fed in; with autocast both stay fp32."""
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers", "decoder_layers")


@dataclass
class Work:
    """What a step is made of."""

    model: torch.nn.Module
    make_batch: Callable[[], BATCH]
    loss: Callable[[torch.nn.Module, Any], torch.Tensor]
    optimizer: torch.optim.Optimizer | None = None
    experts: int = 0
    layers: int | None = None
    notes: tuple[str, ...] = ()


def from_config(request: Request) -> Work:
    given = read_config(request.model or "")
    config, notes = _config(given)
    layers = next((getattr(config, name) for name in _LAYERS if isinstance(getattr(config, name, None), int)), None)
    if request.layers is not None:
        _set_layers(config, request.layers)
    kind = _class_of(config, given)
    notes += _other_than_named(kind, given)
    model, more = _build(kind, config, request)
    experts = next(
        (
            value
            for one in (config, _text(config))
            for name in ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
            if isinstance(value := getattr(one, name, None), int)
        ),
        0,
    )
    return Work(model, _batch_maker(model, config, request), loss_of, None, experts, layers, (*notes, *more))


def _config(given: dict[str, Any]) -> tuple[Any, list[str]]:
    import transformers

    kind = given["model_type"]
    known = vars(transformers.models.auto.configuration_auto)["CONFIG_MAPPING_NAMES"]
    if kind not in known:
        near = difflib.get_close_matches(kind, known, n=3)
        hint = f"; near to it: {', '.join(near)}" if near else ""
        raise ParamedicError(
            f"--model: transformers {transformers.__version__} knows no model_type {kind!r}{hint}. "
            "Use a newer transformers, or --entry with your own code"
        )
    rest = {key: value for key, value in given.items() if key not in ("model_type", "quantization_config", "auto_map")}
    notes = [f"{key} is left out" for key in ("quantization_config", "auto_map") if key in given]
    try:
        config = transformers.AutoConfig.for_model(kind, **rest)
    except Exception as error:
        raise ParamedicError(f"--model: transformers refuses this config: {type(error).__name__}: {error}") from None
    return config, notes


def _text(config: Any) -> Any:
    get = getattr(config, "get_text_config", None)
    return get() if callable(get) else config


def _set_layers(config: Any, layers: int) -> None:
    for one in {id(c): c for c in (config, _text(config))}.values():
        for name in _LAYERS:
            if isinstance(getattr(one, name, None), int):
                setattr(one, name, layers)
        if isinstance(getattr(one, "layer_types", None), list):
            one.layer_types = one.layer_types[:layers]


def _class_of(config: Any, given: dict[str, Any]) -> Any:
    import transformers

    names = given.get("architectures")
    for name in names if isinstance(names, list) else ():
        found = getattr(transformers, name, None) if isinstance(name, str) and name.isidentifier() else None
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            return found
    auto = transformers.models.auto.modeling_auto
    for family in _FAMILIES:
        name = getattr(auto, family, {}).get(config.model_type)
        if name:
            return getattr(transformers, name if isinstance(name, str) else name[0])
    raise ParamedicError(f"--model: transformers has no model for model_type {config.model_type!r}; use --entry")


def _other_than_named(kind: Any, given: dict[str, Any]) -> list[str]:
    names = given.get("architectures")
    named = [str(name)[:80] for name in names] if isinstance(names, list) else []
    if not named or kind.__name__ in named:
        return []
    return [f"transformers has no {named[0]}: {kind.__name__} is taken"]


def _build(kind: Any, config: Any, request: Request) -> tuple[torch.nn.Module, list[str]]:
    notes: list[str] = []
    dtype = _DTYPES.get(request.dtype, torch.float32)
    wanted = "eager" if request.attention == "eager" else "sdpa"
    for attention in dict.fromkeys((wanted, "eager")):
        try:
            with torch.device("meta"):
                model = kind._from_config(config, dtype=dtype, attn_implementation=attention)
            break
        except (ValueError, ImportError) as error:
            if attention == "eager" or "attention" not in str(error).lower():
                raise _does_not_build(kind, error) from None
            if getattr(_text(config), "num_attention_heads", None):
                notes.append(f"{kind.__name__} has no {wanted} attention: eager is taken")
        except Exception as error:
            raise _does_not_build(kind, error) from None
    model.train()
    if request.checkpointing:
        try:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        except ValueError:
            raise ParamedicError(f"--activation-checkpointing: {kind.__name__} does not support it") from None
    return model, notes


def _does_not_build(kind: Any, error: Exception) -> ParamedicError:
    return ParamedicError(
        f"--model: {kind.__name__} does not build from this config: {type(error).__name__}: {str(error)[:300]}; "
        "check the config's sizes, or use --entry with your own code"
    )


def loss_of(model: torch.nn.Module, batch: BATCH) -> torch.Tensor:
    """The outputs are gone when the backward pass begins, as in a training loop that keeps only the loss."""
    out = model(**batch)
    loss = getattr(out, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    first = out[0] if not isinstance(out, torch.Tensor) else out
    return first.float().mean()


def _batch_maker(model: Any, config: Any, request: Request) -> Callable[[], BATCH]:
    name = getattr(model, "main_input_name", "input_ids")
    kind = type(model).__name__
    batch = request.batch
    text = _text(config)
    half = _DTYPES.get(request.dtype, torch.float32)

    def tokens(length: int) -> torch.Tensor:
        return torch.zeros((batch, length), dtype=torch.long)

    def make() -> BATCH:
        seq = request.seq or _longest(text)
        made: BATCH
        if name == "pixel_values":
            made = {"pixel_values": torch.zeros((batch, *_image(config, request)), dtype=half)}
        elif name == "input_features":
            frames = 2 * config.max_source_positions if hasattr(config, "max_source_positions") else seq
            made = {"input_features": torch.zeros((batch, getattr(config, "num_mel_bins", 80), frames), dtype=half)}
        elif name == "input_values":
            made = {"input_values": torch.zeros((batch, seq), dtype=half)}
        else:
            _check_length(text, seq)
            made = {"input_ids": tokens(seq)}
        if kind.endswith("ForSequenceClassification") and getattr(config, "num_labels", 2) == 1:
            return made | {"labels": torch.zeros((batch,), dtype=half)}
        return made | _labels(kind, name, seq, request, tokens)

    return make


def _labels(kind: str, name: str, seq: int, request: Request, tokens: Callable[[int], torch.Tensor]) -> BATCH:
    one_each = torch.zeros((request.batch,), dtype=torch.long)
    if kind.endswith(("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForTokenClassification", "ForPreTraining")):
        return {"labels": tokens(seq)}
    if kind.endswith("ForConditionalGeneration"):
        length = request.target_seq or (seq if name == "input_ids" else request.seq or 448)
        return {"labels": tokens(length)}
    if kind.endswith("ForQuestionAnswering"):
        return {"start_positions": one_each, "end_positions": one_each.clone()}
    if kind.endswith(("Classification", "ForImageClassification", "ForSequenceClassification")):
        return {"labels": one_each}
    if kind.endswith("ForCTC"):
        return {"labels": tokens(request.target_seq or 32)}
    return {}


def _longest(text: Any) -> int:
    for name in ("max_position_embeddings", "n_positions", "max_seq_len"):
        if isinstance(value := getattr(text, name, None), int) and value > 0:
            return min(value, 2048)
    return 512


def _check_length(text: Any, seq: int) -> None:
    """Learned positions end somewhere; rotary ones do not."""
    rotary = any(hasattr(text, name) for name in ("rope_theta", "rope_parameters", "rope_scaling"))
    for name in ("max_position_embeddings", "n_positions"):
        most = getattr(text, name, None)
        if isinstance(most, int) and not rotary and 0 < most < seq:
            raise ParamedicError(f"--seq {seq}: the model has positions for {most} tokens only ({name})")


def _image(config: Any, request: Request) -> tuple[int, int, int]:
    vision = getattr(config, "vision_config", config)
    size = request.image_size or getattr(vision, "image_size", None) or 224
    height, width = size if isinstance(size, list | tuple) else (size, size)
    return getattr(vision, "num_channels", 3), int(height), int(width)
