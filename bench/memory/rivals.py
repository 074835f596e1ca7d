"""What DeepSpeed's and accelerate's own estimators say of the cases. Runs where they are installed; adds to the file.

  python bench/memory/rivals.py truth.json rivals.json     (where deepspeed is, and where accelerate and transformers are)

DeepSpeed: `estimate_zero2_model_states_mem_needs` for one card without offload. accelerate: what `accelerate estimate-memory` prints
for training with Adam (`estimate_training_usage`), in the precision of the case. Neither is given batch or length: they take none.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from cases import CASES, Case


def main() -> None:
    truth, out = json.loads(Path(sys.argv[1]).read_text())["cases"], Path(sys.argv[2])
    found: dict[str, dict[str, int]] = json.loads(out.read_text()) if out.exists() else {}
    for case in CASES:
        found.setdefault(case.id, {}).update(said(case, truth[case.id]["parameters"]))
    out.write_text(json.dumps(found, indent=1))


def said(case: Case, parameters: int) -> dict[str, int]:
    found = {}
    if zero := there("deepspeed.runtime.zero.stage_1_and_2"):
        _, gpu = zero.estimate_zero2_model_states_mem_needs(
            parameters, num_gpus_per_node=1, num_nodes=1, cpu_offload=False, additional_buffer_factor=1.5
        )
        found["DeepSpeed"] = int(gpu)
    if commands := there("accelerate.commands.estimate"):
        whole, _ = there("accelerate.utils").calculate_maximum_sizes(built(case))
        half = {"bf16": "bfloat16", "bf16-autocast": "bfloat16", "fp16-autocast": "float16"}
        found["accelerate"] = int(
            max(commands.estimate_training_usage(whole, half.get(case.flags["dtype"], "float32")).values())
        )
    return found


def there(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def built(case: Case) -> Any:
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    given = dict(case.config)
    kind = getattr(transformers, given["architectures"][0])
    config = transformers.AutoConfig.for_model(given.pop("model_type"), **given)
    with torch.device("meta"):
        return kind._from_config(config)


if __name__ == "__main__":
    main()
