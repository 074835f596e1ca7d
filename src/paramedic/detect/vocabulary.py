"""What names say: of ranks and their number, of what libraries make, of parameters that nobody passes."""

from __future__ import annotations

import ast
import re
from functools import lru_cache

from paramedic.detect.program import text_of
from paramedic.detect.values import Value
from paramedic.regex import regex

RANK = regex(
    r"(?i)(?:^|(?<!per)(?<!each)(?<!lora)(?<!low)_)rank(?:_id)?$|^(?:get_|world_|global_|local_)?rank$|process_index$|^local_rank$|^procid$"
)
FIRST = regex(
    r"(?i)^is_(?:main|master|chief|primary|first|leader|root|rank)\w*$|^(?:chief|coordinator)$|^is_(?:global|local|world)_(?:process_)?zero$"
    r"|(?:main|master)_process$"
)
WORLD = regex(
    r"(?i)^(?:n_|num_|world_?|get_world_?)(?:size|ranks|processes|replicas|workers_total)?$|world_?size$|num_replicas|num_processes$|^world$|^n_?ranks$"
)
_RANK_VARIABLES = {"RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_LOCALID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"}
_WORLD_VARIABLES = {"WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}
RANK_CALLS = {
    "get_rank",
    "get_world_rank",
    "get_global_rank",
    "process_index",
    "get_local_rank",
    "get_node_local_rank",
}
WORLD_CALLS = {"get_world_size", "world_size", "num_processes"}
RANDOM = frozenset(
    [
        "randn",
        "rand",
        "randint",
        "randperm",
        "normal",
        "uniform",
        "multinomial",
        "bernoulli",
        "permutation",
        "shuffle",
        "choice",
        "standard_normal",
        "sample",
        "random",
        "integers",
        "choices",
        "randrange",
        "uniform_",
        "normal_",
        "random_",
        "exponential_",
        "bernoulli_",
        "randn_like",
        "rand_like",
    ]
)
SEEDS = {"manual_seed", "manual_seed_all", "seed", "set_seed", "seed_everything", "default_rng", "RandomState"}
WITHOUT_GRAPH = frozenset(
    [
        "item",
        "tolist",
        "numpy",
        "detach",
        "detach_",
        "argmax",
        "argmin",
        "size",
        "numel",
        "dim",
        "data_ptr",
        "backward",
        "len",
        "int",
        "float",
        "str",
        "bool",
        "print",
        "format",
        "isfinite",
        "isnan",
        "topk",
        "eq",
        "ne",
        "all",
        "any",
        "info",
        "debug",
        "warning",
        "range",
        "isinstance",
        "hasattr",
    ]
)
SAME = frozenset(
    [
        "to",
        "cuda",
        "cpu",
        "float",
        "half",
        "double",
        "bfloat16",
        "train",
        "eval",
        "compile",
        "contiguous",
        "type",
        "requires_grad_",
        "share_memory",
        "share_memory_",
        "convert_sync_batchnorm",
        "to_empty",
        "apply",
        "xpu",
    ]
)
THROUGH = frozenset(
    ["iter", "tqdm", "islice", "cycle", "trange", "reversed", "list", "tuple", "chain", "track", "batched"]
)
_OPTIMIZERS = frozenset(
    [
        "Adam",
        "AdamW",
        "SGD",
        "RMSprop",
        "Adagrad",
        "Adadelta",
        "Adamax",
        "LBFGS",
        "NAdam",
        "RAdam",
        "Rprop",
        "ASGD",
        "SparseAdam",
        "Adafactor",
        "ZeroRedundancyOptimizer",
        "FusedAdam",
        "DeepSpeedCPUAdam",
        "FusedLAMB",
        "Lion",
        "HybridAdam",
        "CPUAdam",
        "LARS",
        "LAMB",
        "LossScaleOptimizer",
        "Muon",
    ]
)
_KERAS_LAYERS = regex(r"(?:^|\.)(?:keras|layers)\.")
SCHEDULER = regex(r"LR$|Scheduler$|Restarts$|^get_\w*(?:schedule|scheduler)(?:_with_\w+)?$|^ReduceLROnPlateau$")
WRAPPERS = {
    "DistributedDataParallel": "ddp", "FullyShardedDataParallel": "fsdp", "fully_shard": "fsdp2",
    "prepare_model": "ray",
    "prepare_ddp_model": "ddp", "FSDP": "fsdp", "DDP": "ddp", "replicate": "ddp", "ShardedDataParallel": "fsdp",
    "LegacyDistributedDataParallel": "ddp", "wrap_model": "ddp",
}  # fmt: skip
MODEL_METHODS = frozenset(
    [
        "parameters",
        "named_parameters",
        "children",
        "modules",
        "named_modules",
        "named_children",
        "state_dict",
        "load_state_dict",
        "no_sync",
        "register_comm_hook",
        "zero_grad",
        "step",
        "backward",
        "clip_grad_norm_",
        "save_checkpoint",
        "load_checkpoint",
        "buffers",
    ]
)
ASKED = regex(
    r"get|set|num|count|estimate|generate|save|load|configure|print|log|register|add|named|push|init|fit|compile|summary|_"
)


@lru_cache(4096)
def hint_of(name: str) -> frozenset[str]:
    """What a bare name says, where nothing else is known."""
    if RANK.search(name):
        return frozenset({"rank"})
    if WORLD.search(name):
        return frozenset({"world"})
    return frozenset()


def variable(name: str) -> frozenset[str]:
    if name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE"):
        return frozenset({"local size"})
    if name in ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"):
        return frozenset({"rank", "local"})
    return (
        frozenset({"rank"})
        if name in _RANK_VARIABLES
        else frozenset({"world"})
        if name in _WORLD_VARIABLES
        else frozenset()
    )


def parameter(name: str, annotation: ast.expr | None) -> Value:
    """A parameter of a function that nobody in the project calls."""
    text = text_of(annotation)
    lower = name.lower()
    tags = hint_of(name)
    if FIRST.search(name):
        return Value(tags=frozenset({"rank"}), label="first", name=name)
    if re.search(r"(?i)optim\w*$|^opt$", lower) or "Optimizer" in text:
        return Value("optimizer", name="parameter")
    if re.search(r"(?i)sched\w*$", lower):
        return Value("scheduler", name="parameter")
    if re.search(r"(?i)(?:^|_)(?:loader|dataloader)$|loader$", lower) or "DataLoader" in text:
        return Value("loader", name="parameter", tags=frozenset({"shard", "parameter"}))
    if re.search(r"(?i)^(?:model|net|network|module|ddp_model|fsdp_model|wrapped)$", lower) or "Module" in text:
        return Value("model", name="parameter", tags=frozenset({"parameter"}))
    if lower == "scaler":
        return Value("scaler", name="parameter")
    if lower == "accelerator":
        return Value("accelerator", name="Accelerator")
    if lower in ("criterion", "loss_fn"):
        return Value("criterion", name="parameter")
    return Value(tags=tags, name=name)


def is_optimizer(name: str, last: str) -> bool:
    if ".lr_scheduler" in name:
        return False
    return last in _OPTIMIZERS or (name.startswith("torch.optim.") and last[:1].isupper() and "swa" not in name)


def is_layer(name: str, last: str) -> bool:
    if not last[:1].isupper():
        return False
    if name.startswith(("torch.nn.parallel", "torch.nn.utils", "torch.nn.init")):
        return False
    return (
        name.startswith(("torch.nn.", "nn."))
        or bool(_KERAS_LAYERS.search(name))
        or last in ("Sequential", "ModuleList")
    )


def parts_of_class(node: ast.AST | None) -> set[str]:
    """Layers and calls that act in training only."""
    for child in ast.walk(node) if node is not None else ():
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute) and child.func.attr == "dropout":
            name = text_of(child.func)
            if name in ("F.dropout", "nn.functional.dropout", "torch.nn.functional.dropout") and any(
                keyword.arg == "training" and "training" in text_of(keyword.value) for keyword in child.keywords
            ):
                return {"part:Dropout"}
    return set()
