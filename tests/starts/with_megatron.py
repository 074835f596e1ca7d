from common import answer
from megatron.core.transformer import TransformerConfig

NAMES = {"num_experts": "num_moe_experts"}
KNOWN = set(TransformerConfig.__dataclass_fields__)


def start(name, value):
    given = {NAMES.get(key, key): item for key, item in value.items()}
    given = {key: item for key, item in given.items() if key in KNOWN}
    if given.get("pipeline_model_parallel_size", 1) > 1:
        import torch

        given["pipeline_dtype"] = torch.float32
    TransformerConfig(**given)


answer(start)
