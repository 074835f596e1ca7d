"""The benchmark's training steps: small enough for one H200 in seconds each, different enough to find mistakes.

A case's id decides by its hash whether it is for development or for scoring; nobody chooses.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, NamedTuple


class Case(NamedTuple):
    id: str
    config: dict[str, Any]
    flags: dict[str, Any]

    @property
    def split(self) -> str:
        return "scoring" if hashlib.sha256(self.id.encode()).digest()[0] & 1 else "development"


def _decoder(kind: str, model_type: str, **more: Any) -> dict[str, Any]:
    sizes = {
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "vocab_size": 32000,
    }
    return {"architectures": [kind], "model_type": model_type, **sizes, "max_position_embeddings": 4096, **more}


GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_embd": 1024,
    "n_layer": 24,
    "n_head": 16,
    "vocab_size": 50257,
    "n_positions": 1024,
}
LLAMA = _decoder("LlamaForCausalLM", "llama", num_key_value_heads=16)
LLAMA_GQA = _decoder("LlamaForCausalLM", "llama", num_key_value_heads=4)
QWEN2 = _decoder(
    "Qwen2ForCausalLM",
    "qwen2",
    hidden_size=896,
    intermediate_size=4864,
    num_hidden_layers=24,
    num_attention_heads=14,
    num_key_value_heads=2,
    vocab_size=151936,
    tie_word_embeddings=True,
)
QWEN3 = _decoder(
    "Qwen3ForCausalLM", "qwen3", num_key_value_heads=8, head_dim=128, vocab_size=151936, tie_word_embeddings=True
)
GEMMA2 = _decoder(
    "Gemma2ForCausalLM", "gemma2", num_attention_heads=4, num_key_value_heads=2, head_dim=256, vocab_size=64000
)
NEOX = _decoder("GPTNeoXForCausalLM", "gpt_neox", intermediate_size=4096, vocab_size=50304)
OPT = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "hidden_size": 1024,
    "ffn_dim": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "vocab_size": 50272,
    "word_embed_proj_dim": 1024,
}
MIXTRAL = _decoder(
    "MixtralForCausalLM",
    "mixtral",
    hidden_size=768,
    intermediate_size=1536,
    num_hidden_layers=8,
    num_attention_heads=12,
    num_key_value_heads=4,
    num_local_experts=8,
    num_experts_per_tok=2,
)
QWEN2_MOE = _decoder(
    "Qwen2MoeForCausalLM",
    "qwen2_moe",
    hidden_size=768,
    num_hidden_layers=8,
    num_attention_heads=12,
    num_key_value_heads=12,
    moe_intermediate_size=512,
    shared_expert_intermediate_size=1024,
    num_experts=16,
    num_experts_per_tok=4,
)
BERT = {
    "architectures": ["BertForMaskedLM"],
    "model_type": "bert",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "vocab_size": 30522,
}
ROBERTA = {
    "architectures": ["RobertaForSequenceClassification"],
    "model_type": "roberta",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "vocab_size": 50265,
    "max_position_embeddings": 514,
}
MODERNBERT = {"architectures": ["ModernBertForMaskedLM"], "model_type": "modernbert"}
T5 = {
    "architectures": ["T5ForConditionalGeneration"],
    "model_type": "t5",
    "d_model": 1024,
    "d_kv": 64,
    "d_ff": 4096,
    "num_layers": 12,
    "num_heads": 16,
    "vocab_size": 32128,
    "decoder_start_token_id": 0,
}
BART = {"architectures": ["BartForConditionalGeneration"], "model_type": "bart"}
VIT = {
    "architectures": ["ViTForImageClassification"],
    "model_type": "vit",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
}
DINO = {
    "architectures": ["Dinov2ForImageClassification"],
    "model_type": "dinov2",
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
}
SWIN = {"architectures": ["SwinForImageClassification"], "model_type": "swin"}
RESNET = {"architectures": ["ResNetForImageClassification"], "model_type": "resnet"}
CONVNEXT = {"architectures": ["ConvNextForImageClassification"], "model_type": "convnext"}
REGNET = {"architectures": ["RegNetForImageClassification"], "model_type": "regnet"}

LLAMA_1B = _decoder(
    "LlamaForCausalLM", "llama", hidden_size=2048, intermediate_size=5632, num_attention_heads=32, num_key_value_heads=8
)
MISTRAL = _decoder("MistralForCausalLM", "mistral", num_key_value_heads=8, sliding_window=512)
PHI3 = _decoder("Phi3ForCausalLM", "phi3", num_key_value_heads=16, pad_token_id=0)
FALCON = _decoder("FalconForCausalLM", "falcon", multi_query=True, vocab_size=65024)
BLOOM = {
    "architectures": ["BloomForCausalLM"],
    "model_type": "bloom",
    "hidden_size": 1024,
    "n_layer": 16,
    "n_head": 16,
    "vocab_size": 64000,
}
STARCODER2 = _decoder("Starcoder2ForCausalLM", "starcoder2", intermediate_size=4096, num_key_value_heads=2)
OLMOE = _decoder(
    "OlmoeForCausalLM", "olmoe", hidden_size=768, intermediate_size=512, num_hidden_layers=8, num_attention_heads=12,
    num_key_value_heads=12, num_experts=16, num_experts_per_tok=4,
)  # fmt: skip
DISTILBERT = {"architectures": ["DistilBertForMaskedLM"], "model_type": "distilbert"}
ELECTRA = {
    "architectures": ["ElectraForMaskedLM"],
    "model_type": "electra",
    "hidden_size": 768,
    "embedding_size": 768,
    "intermediate_size": 3072,
    "num_attention_heads": 12,
}
DEBERTA = {"architectures": ["DebertaV2ForMaskedLM"], "model_type": "deberta-v2", "hidden_size": 768,
    "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12, "vocab_size": 64000,
}  # fmt: skip
BEIT = {"architectures": ["BeitForImageClassification"], "model_type": "beit"}
MOBILENET = {"architectures": ["MobileNetV2ForImageClassification"], "model_type": "mobilenet_v2"}
EFFICIENTNET = {
    "architectures": ["EfficientNetForImageClassification"],
    "model_type": "efficientnet",
    "image_size": 224,
}

_TABLE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("gpt2-fp32", GPT2, {"batch": 4, "seq": 512, "dtype": "fp32"}),
    ("gpt2-bf16", GPT2, {"batch": 8, "seq": 512, "dtype": "bf16"}),
    ("gpt2-autocast", GPT2, {"batch": 8, "seq": 1024}),
    ("gpt2-autocast-ac", GPT2, {"batch": 8, "seq": 1024, "checkpointing": True}),
    ("gpt2-autocast-fused", GPT2, {"batch": 8, "seq": 512, "optimizer": "adamw-fused"}),
    ("gpt2-sgd", GPT2, {"batch": 8, "seq": 512, "optimizer": "sgd"}),
    ("gpt2-fp16-momentum", GPT2, {"batch": 8, "seq": 512, "dtype": "fp16-autocast", "optimizer": "sgd-momentum"}),
    ("gpt2-eager", GPT2, {"batch": 4, "seq": 1024, "attention": "eager"}),
    ("gpt2-accumulation", GPT2, {"batch": 4, "seq": 512, "accumulation": 4}),
    ("gpt2-expandable", GPT2, {"batch": 8, "seq": 768, "alloc_conf": "expandable_segments:True"}),
    ("llama-fp32", LLAMA, {"batch": 2, "seq": 1024, "dtype": "fp32"}),
    ("llama-bf16-long", LLAMA, {"batch": 2, "seq": 4096, "dtype": "bf16"}),
    ("llama-autocast", LLAMA, {"batch": 8, "seq": 1024}),
    ("llama-autocast-ac", LLAMA, {"batch": 16, "seq": 2048, "checkpointing": True}),
    ("llama-loop", LLAMA, {"batch": 2, "seq": 512, "optimizer": "adamw-loop"}),
    ("llama-gqa-fp32", LLAMA_GQA, {"batch": 2, "seq": 1024, "dtype": "fp32"}),
    ("llama-gqa-autocast", LLAMA_GQA, {"batch": 4, "seq": 2048}),
    ("llama-gqa-bf16-fused", LLAMA_GQA, {"batch": 4, "seq": 2048, "dtype": "bf16", "optimizer": "adamw-fused"}),
    ("llama-gqa-adafactor", LLAMA_GQA, {"batch": 4, "seq": 1024, "optimizer": "adafactor"}),
    ("qwen2-autocast", QWEN2, {"batch": 2, "seq": 1024}),
    ("qwen2-bf16-ac", QWEN2, {"batch": 4, "seq": 2048, "dtype": "bf16", "checkpointing": True}),
    ("qwen3-autocast", QWEN3, {"batch": 2, "seq": 2048}),
    ("gemma2-autocast", GEMMA2, {"batch": 2, "seq": 1024}),
    ("neox-bf16", NEOX, {"batch": 4, "seq": 1024, "dtype": "bf16"}),
    ("opt-autocast", OPT, {"batch": 4, "seq": 1024}),
    ("mixtral-autocast", MIXTRAL, {"batch": 4, "seq": 512}),
    ("mixtral-bf16", MIXTRAL, {"batch": 4, "seq": 1024, "dtype": "bf16"}),
    ("qwen2-moe-bf16", QWEN2_MOE, {"batch": 4, "seq": 1024, "dtype": "bf16"}),
    ("bert-fp32", BERT, {"batch": 8, "seq": 256, "dtype": "fp32"}),
    ("bert-autocast", BERT, {"batch": 32, "seq": 512}),
    ("bert-autocast-ac", BERT, {"batch": 32, "seq": 512, "checkpointing": True}),
    ("roberta-autocast", ROBERTA, {"batch": 64, "seq": 256}),
    ("modernbert-autocast", MODERNBERT, {"batch": 8, "seq": 1024}),
    ("t5-autocast", T5, {"batch": 8, "seq": 512}),
    ("t5-bf16-ac", T5, {"batch": 16, "seq": 512, "dtype": "bf16", "checkpointing": True}),
    ("bart-autocast", BART, {"batch": 8, "seq": 512}),
    ("vit-autocast", VIT, {"batch": 64}),
    ("vit-fp32", VIT, {"batch": 16, "dtype": "fp32"}),
    ("vit-autocast-ac", VIT, {"batch": 128, "checkpointing": True}),
    ("dinov2-autocast", DINO, {"batch": 64}),
    ("swin-autocast", SWIN, {"batch": 64}),
    ("resnet-fp32", RESNET, {"batch": 64, "dtype": "fp32", "optimizer": "sgd-momentum"}),
    ("resnet-autocast", RESNET, {"batch": 128}),
    ("convnext-autocast", CONVNEXT, {"batch": 64}),
    ("regnet-fp32", REGNET, {"batch": 64, "dtype": "fp32"}),
    ("gpt2-ddp", GPT2, {"batch": 4, "seq": 512, "strategy": "ddp", "world_size": 2}),
    ("bert-ddp-view", BERT, {"batch": 8, "seq": 256, "strategy": "ddp", "world_size": 2, "bucket_view": True}),
    ("gpt2-odd", GPT2, {"batch": 3, "seq": 777}),
    ("gpt2-max-split", GPT2, {"batch": 8, "seq": 768, "alloc_conf": "max_split_size_mb:128"}),
    ("gpt2-ddp-autocast", GPT2, {"batch": 4, "seq": 1024, "strategy": "ddp", "world_size": 2}),
    (
        "llama-expandable-ac",
        LLAMA,
        {"batch": 8, "seq": 2048, "checkpointing": True, "alloc_conf": "expandable_segments:True"},
    ),
    ("llama-rmsprop", LLAMA, {"batch": 4, "seq": 512, "optimizer": "rmsprop"}),
    ("llama-1b-bf16", LLAMA_1B, {"batch": 2, "seq": 2048, "dtype": "bf16"}),
    ("llama-1b-autocast-ac", LLAMA_1B, {"batch": 4, "seq": 2048, "checkpointing": True}),
    ("llama-eager", LLAMA, {"batch": 2, "seq": 1024, "attention": "eager"}),
    ("mistral-autocast", MISTRAL, {"batch": 4, "seq": 1024}),
    ("phi3-bf16", PHI3, {"batch": 4, "seq": 1024, "dtype": "bf16"}),
    ("falcon-autocast", FALCON, {"batch": 4, "seq": 512}),
    ("bloom-autocast", BLOOM, {"batch": 4, "seq": 512}),
    ("starcoder2-autocast", STARCODER2, {"batch": 4, "seq": 1024}),
    ("olmoe-autocast", OLMOE, {"batch": 4, "seq": 512}),
    ("distilbert-autocast", DISTILBERT, {"batch": 64, "seq": 256}),
    ("distilbert-fp16", DISTILBERT, {"batch": 64, "seq": 256, "dtype": "fp16-autocast", "optimizer": "adam-fused"}),
    ("electra-fp32", ELECTRA, {"batch": 16, "seq": 256, "dtype": "fp32"}),
    ("deberta-autocast", DEBERTA, {"batch": 8, "seq": 256}),
    ("t5-fp32", T5, {"batch": 4, "seq": 256, "dtype": "fp32", "optimizer": "adafactor"}),
    ("bart-fp32", BART, {"batch": 4, "seq": 512, "dtype": "fp32"}),
    ("vit-bf16", VIT, {"batch": 64, "dtype": "bf16"}),
    ("beit-autocast", BEIT, {"batch": 64}),
    ("mobilenet-autocast", MOBILENET, {"batch": 128}),
    ("efficientnet-fp32", EFFICIENTNET, {"batch": 32, "dtype": "fp32"}),
    ("resnet-bf16", RESNET, {"batch": 128, "dtype": "bf16", "optimizer": "sgd-momentum"}),
    ("roberta-fsdp2", ROBERTA, {"batch": 32, "seq": 256, "strategy": "fsdp2", "world_size": 2}),
]
CASES = [
    Case(id, config, {"dtype": "bf16-autocast", "optimizer": "adamw", "attention": "sdpa", **flags})
    for id, config, flags in _TABLE
]
Truth = dict[str, Any]
"""`truth.json`: `cases` by id; `later`, the cases that a later transformers runs otherwise, since which; `limited`."""


def shown(truth: Truth, transformers: str) -> dict[str, dict[str, Any]]:
    """What the card showed of each case, with the model's code as that version of transformers has it."""
    found: dict[str, dict[str, Any]] = dict(truth["cases"])
    later = [one for one in truth.get("later", []) if _release(one["since"]) <= _release(transformers)]
    return found | {one["id"]: one for one in sorted(later, key=lambda one: _release(one["since"]))}


def limited(truth: Truth, id: str, seen: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs of this case with less memory, with the same code as what was seen."""
    return [one for one in truth["limited"] if one["id"] == id and one.get("since") == seen.get("since")]


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


OUT_OF_MEMORY = ("gpt2-autocast", "llama-gqa-fp32", "bert-autocast", "t5-autocast", "vit-autocast")
"""These are also run with less memory than they need, until they fail: the truth about `fits`."""
