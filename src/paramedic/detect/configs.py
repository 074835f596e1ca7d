"""Settings that contradict their framework or each other, where plain conditions on single keys do not suffice."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator

from paramedic.detect.known_keys import (
    ACCELERATE,
    DEEPSPEED,
    DEEPSPEED_OPTIMIZERS,
    DEEPSPEED_REMOVED,
    DEEPSPEED_SCHEDULERS,
    DEEPSPEED_WHOLE_NUMBERS,
    DEEPSPEED_ZERO,
    LIGHTNING_REMOVED,
    MEGATRON_REMOVED,
    SBATCH,
    TORCH_OPTIMIZERS,
    TORCH_SCHEDULERS,
    ZERO_TESTED_OPTIMIZERS,
)
from paramedic.detect.setup import Hit, Part, Setup
from paramedic.model import Fact

# -- any file ------------------------------------------------------------------------------------------------------


def broken(setup: Setup) -> Iterator[Hit]:
    for event in setup.events("broken"):
        yield Hit((event,), {"why": event.text, "line": event.line})


def duplicate_key(setup: Setup) -> Iterator[Hit]:
    """DeepSpeed refuses a key given twice; other readers take the last one silently."""
    kinds = {source.id: source.kind for source in setup.run.sources}
    for event in setup.events("duplicate"):
        severity = None if kinds.get(event.source) == "deepspeed" else "warning"
        yield Hit((event,), {"key": event.text, "line": event.line}, severity)  # type: ignore[arg-type]


def loose_json(setup: Setup) -> Iterator[Hit]:
    for event in setup.events("loose"):
        yield Hit((event,), {"what": event.text, "line": event.line})


def allowed_without_reason(setup: Setup) -> Iterator[Hit]:
    for event in setup.events("allowed"):
        if not event.fields["reason"]:
            yield Hit((event,), {"rules": ", ".join(event.fields["rules"])})


# -- DeepSpeed -----------------------------------------------------------------------------------------------------

_BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def deepspeed_batch(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("deepspeed"):
        total, micro, steps = (part.number_of(key) for key in _BATCH)
        if total is None or micro is None or min(total, micro, 1 if steps is None else steps) <= 0:
            continue
        each = micro * (steps or 1)
        if total % each:
            yield Hit(part.quoted(*_BATCH), {"total": total, "micro": micro, "steps": steps or 1, "each": each})


def deepspeed_batch_not_positive(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("deepspeed"):
        for key in _BATCH:
            value = part.number_of(key)
            if value is not None and value <= 0:
                yield Hit(part.quoted(key), {"key": key, "value": value})


def deepspeed_without_batch(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("deepspeed"):
        if part.source.endswith(".py"):
            continue  # a dictionary is often completed further down
        if part.lacks("train_batch_size") and part.lacks("train_micro_batch_size_per_gpu"):
            yield Hit((part.head,), {"section": part.number})


def deepspeed_zero_key(setup: Setup) -> Iterator[Hit]:
    """The model of this block refuses every key it does not know."""
    for part in setup.of("deepspeed"):
        for name, fact in part.below("zero_optimization").items():
            if "." in name or "[" in name or name in DEEPSPEED_ZERO or name in DEEPSPEED_REMOVED or name == "?":
                continue
            if near := difflib.get_close_matches(name, DEEPSPEED_ZERO, 1, 0.82):
                yield Hit((fact,), {"key": name, "near": near[0], "section": part.number})


def deepspeed_top_key(setup: Setup) -> Iterator[Hit]:
    """An unknown key at the top is passed over in silence, so only what looks like a slip is named."""
    for part in setup.of("deepspeed"):
        for name, fact in part.facts.items():
            if "." in name or "[" in name or name in DEEPSPEED or name in DEEPSPEED_REMOVED or name == "?":
                continue
            near = difflib.get_close_matches(name, DEEPSPEED, 1, 0.86)
            if near and near[0] not in part.facts:
                yield Hit((fact,), {"key": name, "near": near[0], "section": part.number})


def deepspeed_removed(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("deepspeed"):
        for name, since in DEEPSPEED_REMOVED.items():
            for key in (name, f"zero_optimization.{name}"):
                fact = part.facts.get(key)
                used = part.get(f"{key}.enabled") if fact and fact.value == {} else fact.value if fact else None
                if fact is not None and (fact.line or 0) > 0:
                    yield Hit((fact,), {"key": key, "since": since, "section": part.number, "used": used})


def deepspeed_number_as_text(setup: Setup) -> Iterator[Hit]:
    """`"5e8"` is no whole number to the model that checks it; `5e8` without quotes is."""
    for part in setup.of("deepspeed"):
        for name in DEEPSPEED_WHOLE_NUMBERS:
            fact = part.facts.get(f"zero_optimization.{name}")
            if (
                fact is None
                or not isinstance(fact.value, str)
                or not re.fullmatch(r"\d+(?:\.\d*)?[eE]\+?\d{1,2}", fact.value)
            ):
                continue
            number = int(float(fact.value))
            yield Hit((fact,), {"key": name, "value": fact.value, "number": number, "section": part.number})


def deepspeed_optimizer(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("deepspeed"):
        name = part.get("optimizer.type")
        if isinstance(name, str) and name.lower() not in DEEPSPEED_OPTIMIZERS and name not in TORCH_OPTIMIZERS:
            near = difflib.get_close_matches(name, sorted(TORCH_OPTIMIZERS), 1, 0.5)
            yield Hit(part.quoted("optimizer.type"), {"name": name, "near": near[0] if near else "AdamW"})


def deepspeed_untested_optimizer(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("deepspeed"):
        name, stage = part.get("optimizer.type"), part.number_of("zero_optimization.stage")
        if not isinstance(name, str) or not stage or part.get("zero_allow_untested_optimizer"):
            continue
        if (
            name in TORCH_OPTIMIZERS
            and name.lower() not in ZERO_TESTED_OPTIMIZERS
            and part.lacks("zero_allow_untested_optimizer")
        ):
            quoted = part.quoted("optimizer.type", "zero_optimization.stage")
            yield Hit(quoted, {"name": name, "stage": stage, "section": part.number})


def deepspeed_scheduler(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("deepspeed"):
        name = part.get("scheduler.type")
        if isinstance(name, str) and name not in DEEPSPEED_SCHEDULERS and name not in TORCH_SCHEDULERS:
            near = difflib.get_close_matches(name, sorted(DEEPSPEED_SCHEDULERS), 1, 0.5)
            yield Hit(
                part.quoted("scheduler.type"),
                {"name": name, "near": near[0] if near else "WarmupLR", "section": part.number},
            )


def deepspeed_schedule_without_end(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("deepspeed"):
        if part.get("scheduler.type") in ("WarmupDecayLR", "WarmupCosineLR") and not part.source.endswith(".py"):
            if part.lacks("scheduler.params.total_num_steps"):
                yield Hit(part.quoted("scheduler.type"), {"name": part.get("scheduler.type"), "section": part.number})


def deepspeed_auto(setup: Setup) -> Iterator[Hit]:
    """Only transformers and accelerate fill "auto" in. A project that calls DeepSpeed itself has to have numbers."""
    names = set().union(*(script.names for script in setup.scripts)) if setup.scripts else set()
    direct = any(call.fields["name"] == "deepspeed.initialize" for script in setup.scripts for call in script.calls)
    filled = any("Accelerator" in script.names for script in setup.scripts) or bool(setup.by_kind.get("transformers"))
    if not direct or filled or setup.by_kind.get("accelerate") or "TrainingArguments" in names:
        return
    for part in setup.of("deepspeed"):
        autos = [fact for fact in part.facts.values() if fact.value == "auto"]
        if autos and not part.source.endswith(".py"):
            yield Hit((autos[0],), {"count": len(autos)})


def deepspeed_keys_of_stage_three(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("deepspeed"):
        stage = part.number_of("zero_optimization.stage")
        if stage is None or stage == 3:
            continue
        for name, fact in part.below("zero_optimization").items():
            if name.startswith("stage3_") and fact.value not in (False, "auto"):
                yield Hit((fact, *part.quoted("zero_optimization.stage")), {"key": name, "stage": stage})
                break


# -- accelerate ----------------------------------------------------------------------------------------------------


def accelerate_key(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("accelerate"):
        for name, fact in part.facts.items():
            if "." in name or "[" in name or name in ACCELERATE or name == "?":
                continue
            if near := difflib.get_close_matches(name, sorted(ACCELERATE), 1, 0.82):
                yield Hit((fact,), {"key": name, "near": near[0], "section": part.number})


def accelerate_machine_rank(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("accelerate"):
        rank, machines = part.number_of("machine_rank"), part.number_of("num_machines")
        if rank is not None and machines is not None and rank >= machines > 0:
            yield Hit(part.quoted("machine_rank", "num_machines"), {"rank": rank, "machines": machines})


def accelerate_processes(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("accelerate"):
        count, machines = part.number_of("num_processes"), part.number_of("num_machines")
        if count and machines and machines > 0 and count % machines:
            yield Hit(part.quoted("num_processes", "num_machines"), {"processes": count, "machines": machines})


_FROM_FILE = (
    "zero_stage", "gradient_accumulation_steps", "gradient_clipping", "offload_optimizer_device",
    "offload_param_device", "zero3_save_16bit_model",
)  # fmt: skip


def accelerate_deepspeed_file(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("accelerate"):
        beside = [key for key in _FROM_FILE if part.has(f"deepspeed_config.{key}")]
        if part.get("deepspeed_config.deepspeed_config_file") and beside:
            quoted = part.quoted(f"deepspeed_config.{beside[0]}", "deepspeed_config.deepspeed_config_file")
            yield Hit(quoted, {"keys": ", ".join(beside), "key": beside[0], "section": part.number})


# -- transformers --------------------------------------------------------------------------------------------------


def _strategy(part: Part, *names: str) -> str | None:
    for name in names:
        if part.has(name):
            value = part.get(name)
            return value.lower() if isinstance(value, str) else "no" if value is False else None
    return None


def transformers_best_model(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("transformers"):
        if part.get("load_best_model_at_end") is not True or "?" in part.facts:
            continue
        evaluation = _strategy(part, "eval_strategy", "evaluation_strategy")
        saving = _strategy(part, "save_strategy")
        if evaluation is None and any(part.has(name) for name in ("eval_strategy", "evaluation_strategy")):
            continue
        evaluation, saving = evaluation or "no", saving or ("steps" if not part.has("save_strategy") else None)
        if saving not in (None, "best", evaluation):
            quoted = part.quoted("load_best_model_at_end", "eval_strategy", "evaluation_strategy", "save_strategy")
            yield Hit(quoted, {"evaluation": evaluation, "saving": saving, "section": part.number})


def transformers_best_model_steps(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("transformers"):
        evaluation, saving = part.number_of("eval_steps"), part.number_of("save_steps")
        by_steps = {
            _strategy(part, "eval_strategy", "evaluation_strategy"),
            _strategy(part, "save_strategy") or "steps",
        }
        if part.get("load_best_model_at_end") is True and by_steps == {"steps"} and evaluation and saving:
            if saving % evaluation:
                quoted = part.quoted("save_steps", "eval_steps", "load_best_model_at_end")
                better = max(evaluation, round(saving / evaluation) * evaluation)
                yield Hit(
                    quoted, {"saving": saving, "evaluation": evaluation, "better": better, "section": part.number}
                )


def transformers_plateau(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("transformers"):
        if part.get("lr_scheduler_type") == "reduce_lr_on_plateau":
            if part.lacks("eval_strategy") and part.lacks("evaluation_strategy"):
                yield Hit(part.quoted("lr_scheduler_type"), {"section": part.number})


def transformers_prefetch(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("transformers"):
        workers = part.get("dataloader_num_workers")
        if part.number_of("dataloader_prefetch_factor") is not None and (
            workers == 0 or part.lacks("dataloader_num_workers")
        ):
            yield Hit(part.quoted("dataloader_prefetch_factor", "dataloader_num_workers"), {"section": part.number})


# -- Lightning -----------------------------------------------------------------------------------------------------


def lightning_removed(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("lightning"):
        for name, instead in LIGHTNING_REMOVED.items():
            if part.has(name) and part.has("class") | (not part.source.endswith(".py")):
                yield Hit(part.quoted(name), {"name": name, "instead": instead, "section": part.number})


def lightning_devices(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("lightning"):
        devices = part.get("devices")
        if not isinstance(devices, bool) and devices in (0, "0", []):
            yield Hit(part.quoted("devices"), {"section": part.number})


# -- Megatron ------------------------------------------------------------------------------------------------------


def _indivisible(setup: Setup, whole: str, by: str, default: int | None = None) -> Iterator[tuple[Part, int, int]]:
    for part in setup.of("megatron"):
        number = part.number_of(whole)
        divisor = part.number_of(by) if part.has(by) else default
        if number is not None and divisor is not None and divisor > 0 and number % divisor:
            yield part, number, divisor


def megatron_hidden(setup: Setup) -> Iterator[Hit]:
    for part, hidden, heads in _indivisible(setup, "hidden_size", "num_attention_heads"):
        if not part.has("kv_channels"):
            yield Hit(part.quoted("hidden_size", "num_attention_heads"), {"hidden": hidden, "heads": heads})


def megatron_heads(setup: Setup) -> Iterator[Hit]:
    for part, heads, degree in _indivisible(setup, "num_attention_heads", "tensor_model_parallel_size"):
        yield Hit(part.quoted("num_attention_heads", "tensor_model_parallel_size"), {"heads": heads, "degree": degree})


def megatron_groups(setup: Setup) -> Iterator[Hit]:
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


def megatron_layers(setup: Setup) -> Iterator[Hit]:
    for part, layers, degree in _indivisible(setup, "num_layers", "pipeline_model_parallel_size"):
        if not any(part.has(key) for key in _OTHER_SPLITS) and "?" not in part.facts:
            yield Hit(part.quoted("num_layers", "pipeline_model_parallel_size"), {"layers": layers, "degree": degree})


def megatron_batch(setup: Setup) -> Iterator[Hit]:
    for part, total, micro in _indivisible(setup, "global_batch_size", "micro_batch_size"):
        if not part.has("rampup_batch_size"):
            yield Hit(part.quoted("global_batch_size", "micro_batch_size"), {"total": total, "micro": micro})


def megatron_experts(setup: Setup) -> Iterator[Hit]:
    for part, experts, degree in _indivisible(setup, "num_experts", "expert_model_parallel_size"):
        yield Hit(part.quoted("num_experts", "expert_model_parallel_size"), {"experts": experts, "degree": degree})


def megatron_sequence(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("megatron"):
        length, degree = part.number_of("seq_length"), part.number_of("context_parallel_size")
        if length and degree and degree > 1 and length % (2 * degree):
            yield Hit(part.quoted("seq_length", "context_parallel_size"), {"length": length, "pieces": 2 * degree})


def megatron_positions(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("megatron"):
        length, positions = part.number_of("seq_length"), part.number_of("max_position_embeddings")
        if length and positions and length > positions:
            yield Hit(
                part.quoted("max_position_embeddings", "seq_length"),
                {"length": length, "positions": positions, "section": part.number},
            )


def megatron_rates(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("megatron"):
        low, high = part.get("min_lr"), part.get("lr")
        if isinstance(low, float | int) and isinstance(high, float | int) and low > high:
            yield Hit(part.quoted("min_lr", "lr"), {"low": low, "high": high})


def megatron_removed(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("megatron"):
        for name, instead in MEGATRON_REMOVED.items():
            if part.has(name):
                yield Hit(
                    part.quoted(name), {"name": name.replace("_", "-"), "instead": instead, "section": part.number}
                )


def megatron_connections(setup: Setup) -> Iterator[Hit]:
    """Before Blackwell the overlap of tensor parallelism asks for one hardware queue."""
    for part in setup.of("megatron"):
        split = (part.number_of("tensor_model_parallel_size") or 1) * (part.number_of("context_parallel_size") or 1)
        variables = [p for p in setup.of("environment") if p.source == part.source]
        named = any("CUDA_DEVICE_MAX_CONNECTIONS" in p.facts for p in variables)
        fsdp = part.has("use_torch_fsdp2") or part.has("use_megatron_fsdp")
        if split > 1 and part.source.endswith((".sh", ".sbatch", ".slurm")) and not named and not fsdp:
            if part.has("sequence_parallel") or part.has("tp_comm_overlap"):
                yield Hit(part.quoted("tensor_model_parallel_size", "sequence_parallel"), {"split": split})


# -- launchers -----------------------------------------------------------------------------------------------------


def _is_here(value: object) -> bool:
    return (
        isinstance(value, str)
        and re.match(r"(?:localhost|127\.0\.0\.\d+|\[?::1\]?|0\.0\.0\.0)(?::|$)", value) is not None
    )


def launch_local_master(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("launch"):
        nodes = part.number_of("nnodes") or part.number_of("num_machines") or part.number_of("num_nodes")
        for key in ("master_addr", "rdzv_endpoint", "main_process_ip"):
            if nodes and nodes > 1 and _is_here(part.get(key)):
                yield Hit(
                    part.quoted(key, "nnodes", "num_machines", "num_nodes"), {"address": part.get(key), "nodes": nodes}
                )


def launch_standalone(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("launch"):
        nodes = part.number_of("nnodes")
        if part.get("standalone") is True and nodes and nodes > 1:
            yield Hit(part.quoted("standalone", "nnodes"), {"nodes": nodes})


def launch_endpoint_ignored(setup: Setup) -> Iterator[Hit]:
    """With a c10d rendezvous only `--rdzv-endpoint` counts."""
    for part in setup.of("launch"):
        if (
            part.get("launcher") == "torchrun"
            and part.get("rdzv_backend") in ("c10d", "etcd-v2")
            and "?" not in part.facts
        ):
            nodes = part.number_of("nnodes")
            if part.has("master_addr") and not part.has("rdzv_endpoint") and (nodes is None or nodes > 1):
                yield Hit(part.quoted("master_addr", "rdzv_backend"), {"section": part.number})


def launch_node_rank(setup: Setup) -> Iterator[Hit]:
    pairs = (("node_rank", "nnodes"), ("machine_rank", "num_machines"))
    for part in setup.of("launch"):
        for rank_key, count_key in pairs:
            rank, count = part.number_of(rank_key), part.number_of(count_key)
            if rank is not None and count is not None and rank >= count > 0:
                yield Hit(part.quoted(rank_key, count_key), {"rank": rank, "nodes": count})


def launch_port(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("launch", "environment", "accelerate"):
        for key in ("master_port", "main_process_port", "MASTER_PORT"):
            port = part.number_of(key)
            if port is not None and (port > 65535 or 0 < port < 1024 or port < 0):
                yield Hit(part.quoted(key), {"port": port}, None if port > 65535 or port < 0 else "warning")


def launch_missing_rendezvous(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("launch"):
        nodes = part.number_of("nnodes")
        if part.get("launcher") != "torchrun" or not nodes or nodes < 2 or "?" in part.facts:
            continue
        if not any(part.has(key) for key in ("master_addr", "rdzv_endpoint", "standalone", "rdzv_backend")):
            yield Hit(part.quoted("nnodes"), {"nodes": nodes})


def launch_visible_devices(setup: Setup) -> Iterator[Hit]:
    """More ranks than the devices that the same script lets them see."""
    for part in setup.of("launch"):
        ranks = part.number_of("nproc_per_node") or part.number_of("num_gpus")
        variables = [p for p in setup.of("environment") if p.source == part.source and p.has("CUDA_VISIBLE_DEVICES")]
        line = part.facts["launcher"].line or 0
        before = [p.facts["CUDA_VISIBLE_DEVICES"] for p in variables]
        before = [fact for fact in before if (fact.line or 0) <= line]
        if not ranks or not before or _set_again(setup, part.source):
            continue
        seen = _devices(before[-1])
        if seen is not None and 0 < seen < ranks:
            yield Hit((*part.quoted("nproc_per_node", "num_gpus"), before[-1]), {"ranks": ranks, "seen": seen})


def _set_again(setup: Setup, source: str) -> bool:
    found = [f for f in setup.run.facts if f.source == source and f.name.endswith(" CUDA_VISIBLE_DEVICES")]
    return len(found) > 1


def _devices(fact: Fact) -> int | None:
    value = fact.value
    if isinstance(value, int) and not isinstance(value, bool):
        return 1 if value >= 0 else None
    return len(value.split(",")) if isinstance(value, str) and re.fullmatch(r"\d+(?:,\d+)*", value) else None


def launch_nested(setup: Setup) -> Iterator[Hit]:
    """`srun` starts several launchers on a node, and each of them starts several ranks."""
    for part in setup.of("launch"):
        if part.get("inside") not in ("srun", "mpirun") or part.get("launcher") not in ("torchrun", "accelerate"):
            continue
        outer = next(
            (
                p
                for p in setup.of("launch-srun", "launch-mpirun")
                if p.source == part.source and p.number == part.number - 1
            ),
            None,
        )
        batch = next((p for p in setup.of("slurm") if p.source == part.source), None)
        tasks = outer.number_of("ntasks_per_node") if outer else None
        where: Part | None = outer
        if (
            tasks is None
            and batch is not None
            and outer is not None
            and not outer.has("ntasks")
            and not outer.has("nodes")
        ):
            tasks, where = batch.number_of("ntasks_per_node"), batch
        ranks = part.number_of("nproc_per_node")
        if tasks and tasks > 1 and ranks and ranks > 1 and where is not None:
            yield Hit(
                (*part.quoted("nproc_per_node"), *where.quoted("ntasks_per_node")), {"tasks": tasks, "ranks": ranks}
            )


def launch_slots(setup: Setup) -> Iterator[Hit]:
    """More processes than slots in the list of hosts."""
    for part in setup.of("launch", "launch-mpirun"):
        count = part.number_of("num_proc") or part.number_of("n")
        hosts = part.get("hosts") or part.get("host")
        if not count or not isinstance(hosts, str) or part.has("oversubscribe"):
            continue
        slots = re.findall(r"[\w.-]+:(\d+)", hosts)
        if len(slots) == len(hosts.split(",")) and sum(map(int, slots)) < count:
            yield Hit(part.quoted("num_proc", "n", "hosts", "host"), {"count": count, "slots": sum(map(int, slots))})


def accelerate_launch_kinds(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("launch"):
        if part.get("launcher") == "accelerate":
            chosen = [key for key in ("cpu", "multi_gpu", "tpu", "use_deepspeed", "use_fsdp") if part.get(key) is True]
            if len(chosen) > 1:
                yield Hit(part.quoted(*chosen), {"chosen": ", ".join(f"--{key}" for key in chosen)})


def deepspeed_launch_filters(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("launch"):
        if part.get("launcher") == "deepspeed":
            filters = [key for key in ("include", "exclude") if part.has(key)]
            counts = [key for key in ("num_nodes", "num_gpus") if part.has(key)]
            if filters and (counts or len(filters) > 1):
                both = (filters + counts)[:2]
                yield Hit(part.quoted(*both), {"one": f"--{both[0]}", "other": f"--{both[1]}"})


# -- Slurm ---------------------------------------------------------------------------------------------------------


def slurm_option(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("slurm"):
        for name, fact in part.facts.items():
            if len(name) > 1 and name not in SBATCH and name != "after_commands":
                if near := difflib.get_close_matches(name, sorted(SBATCH), 1, 0.85):
                    written, better = name.replace("_", "-"), near[0].replace("_", "-")
                    yield Hit((fact,), {"name": written, "near": better, "key": name, "section": part.number})


def slurm_late(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("slurm"):
        if part.has("after_commands"):
            yield Hit(part.quoted("after_commands"), {"option": part.get("after_commands")})


def slurm_tasks(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("slurm"):
        total, each, nodes = (part.number_of(key) for key in ("ntasks", "ntasks_per_node", "nodes"))
        if total and each and nodes and total > each * nodes:
            yield Hit(part.quoted("ntasks", "ntasks_per_node", "nodes"), {"total": total, "each": each, "nodes": nodes})


def gpus_per_node(part: Part) -> int | None:
    for key in ("gpus_per_node", "gres"):
        value = part.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, str) and (found := re.fullmatch(r"(?:gpu:)?(?:[\w.-]+:)?(\d{1,3})", value)):
            return int(found[1])
    return None


def slurm_cores(setup: Setup) -> Iterator[Hit]:
    """One task a node and no word on cores: the launcher and all its ranks share a single core."""
    asked = ("cpus_per_task", "cpus_per_gpu", "exclusive", "mincpus", "cores_per_socket", "threads_per_core", "ntasks")
    for part in setup.of("slurm"):
        gpus = gpus_per_node(part)
        if gpus and gpus > 1 and part.number_of("ntasks_per_node") == 1 and not any(part.has(key) for key in asked):
            yield Hit(part.quoted("ntasks_per_node", "gres", "gpus_per_node"), {"gpus": gpus, "section": part.number})


def slurm_not_on_all_nodes(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("slurm"):
        nodes = part.number_of("nodes")
        launches = [p for p in setup.of("launch") if p.source == part.source and p.get("launcher") == "torchrun"]
        spread = any(p.source == part.source for p in setup.of("launch-srun", "launch-mpirun"))
        if nodes and nodes > 1 and launches and not spread:
            alone = next((p for p in launches if not p.has("inside") and p.has("nnodes")), None)
            if alone is not None:
                yield Hit((*alone.quoted("launcher"), *part.quoted("nodes")), {"nodes": nodes})


def slurm_expanded_too_early(setup: Setup) -> Iterator[Hit]:
    """`srun torchrun --node_rank=$SLURM_NODEID`: the batch script fills it in, on the first node: 0 everywhere."""
    for part in setup.of("launch"):
        for key in ("node_rank", "machine_rank"):
            text = part.get(f"{key}:text")
            if (
                part.get("inside") == "srun"
                and isinstance(text, str)
                and re.search(r"\$\{?SLURM_(?:NODEID|PROCID)\b", text)
            ):
                yield Hit(part.quoted(key), {"text": text})


def slurm_gpus(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("slurm"):
        gpus = gpus_per_node(part)
        for launch in setup.of("launch"):
            ranks = launch.number_of("nproc_per_node") or launch.number_of("num_gpus")
            if launch.source == part.source and gpus is not None and ranks and ranks > gpus:
                quoted = (*launch.quoted("nproc_per_node", "num_gpus"), *part.quoted("gres", "gpus_per_node"))
                yield Hit(quoted, {"ranks": ranks, "gpus": gpus})


# -- files of hosts, TF_CONFIG, requirements, Docker ---------------------------------------------------------------


def hostfile_twice(setup: Setup) -> Iterator[Hit]:
    for _, facts in _hosts(setup):
        seen: set[str] = set()
        for fact in facts:
            host = fact.name.split(" ", 3)[3]
            if host in seen:
                yield Hit((fact,), {"host": host})
            seen.add(host)


def hostfile_line(setup: Setup) -> Iterator[Hit]:
    for _, facts in _hosts(setup):
        for fact in facts:
            if fact.value is None:
                yield Hit((fact,), {"host": fact.name.split(" ", 3)[3]})


def _hosts(setup: Setup) -> Iterable[tuple[str, list[Fact]]]:
    found: dict[str, list[Fact]] = {}
    for fact in setup.run.facts:
        if fact.name.startswith("config hostfile "):
            found.setdefault(fact.source, []).append(fact)
    return found.items()


def tf_config(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("tf-config"):
        kind, index = part.get("task.type"), part.get("task.index")
        if part.has(""):
            yield Hit(part.quoted(""), {"why": "it is no JSON"})
        elif isinstance(kind, str) and not part.has(f"cluster.{kind}") and kind not in ("evaluator", "chief", "master"):
            yield Hit(part.quoted("task.type"), {"why": f"the cluster has no {kind}"})
        elif (
            isinstance(index, int)
            and isinstance(members := part.get(f"cluster.{kind}"), list)
            and index >= len(members)
        ):
            yield Hit(
                part.quoted("task.index"),
                {"why": f"there are only {len(members)} of {kind}, the last one is {len(members) - 1}"},
            )


_PAIRS = {f"2.{minor}": f"0.{minor + 15}" for minor in range(16)}


def requirement_pair(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("requirements"):
        pins = {name: _pin(part.get(name)) for name in ("torch", "torchvision", "torchaudio")}
        torch = pins["torch"]
        if torch is None:
            continue
        minor = ".".join(torch.split(".")[:2])
        wanted = {"torchvision": _PAIRS.get(minor), "torchaudio": minor}
        for name, right in wanted.items():
            pin = pins[name]
            if (
                pin
                and right
                and minor in _PAIRS
                and ".".join(pin.split(".")[:2]) != right
                and minor not in ("2.14", "2.15")
            ):
                if name == "torchaudio" and int(minor.split(".")[1]) > 9:
                    continue  # released apart from torch since then
                yield Hit(part.quoted(name, "torch"), {"name": name, "pin": pin, "torch": torch, "right": right})


def _pin(value: object) -> str | None:
    found = re.match(r"==\s*(\d[\w.]*)", value) if isinstance(value, str) else None
    return found[1] if found else None


def requirement_twice(setup: Setup) -> Iterator[Hit]:
    seen: dict[tuple[str, str], Fact] = {}
    for fact in setup.run.facts:
        if not fact.name.startswith("config requirements ") or fact.name.split(" ", 3)[3].startswith("-"):
            continue
        key = (fact.source, fact.name)
        before = seen.get(key)
        if before is not None and _pin(before.value) and _pin(fact.value) and _pin(before.value) != _pin(fact.value):
            yield Hit((fact, before), {"name": fact.name.split(" ", 3)[3], "one": before.value, "other": fact.value})
        seen[key] = fact


def docker_runs(setup: Setup, pattern: str) -> Iterator[tuple[Part, Fact]]:
    for part in setup.of("dockerfile"):
        for key, fact in part.facts.items():
            if key.startswith("run[") and isinstance(fact.value, str) and re.search(pattern, fact.value):
                yield part, fact


def docker_without_compiler(setup: Setup) -> Iterator[Hit]:
    needs = r"pip3?\b[^&;|]*\binstall\b[^&;|]*[ \t](flash[-_]attn|apex|transformer[-_]engine|horovod)\b"
    for part, fact in docker_runs(setup, needs):
        image = _last_image(part)
        if image is not None and re.search(r"nvidia/cuda:\S*-(?:runtime|base)\b", str(image.value)):
            name = re.search(needs, str(fact.value))
            yield Hit((fact, image), {"name": name[1] if name else "", "image": image.value})


def docker_replaces_torch(setup: Setup) -> Iterator[Hit]:
    installs = r"pip3?\b[^&;|]*\binstall\b[^&;|]*[ \t][\"']?torch(?:[=<>~!\"' \t]|$)"
    for part, fact in docker_runs(setup, installs):
        image = _last_image(part)
        if image is not None and "nvcr.io/nvidia/pytorch" in str(image.value):
            yield Hit((fact, image), {"image": image.value})


def _last_image(part: Part) -> Fact | None:
    images = [fact for key, fact in part.facts.items() if key.startswith("from[")]
    return images[-1] if images else None
