"""Programs that train wrongly or hang on more than one rank. Judged by their calls alone, file by file."""

from __future__ import annotations

import re
from collections.abc import Iterator

from paramedic.detect.setup import Hit, Script, Setup
from paramedic.model import Event

COLLECTIVES = (
    "barrier", "all_reduce", "all_gather", "all_gather_object", "all_to_all", "all_gather_into_tensor", "broadcast",
    "broadcast_object_list", "reduce", "reduce_scatter", "gather", "gather_object", "scatter", "reduce_scatter_tensor",
    "all_to_all_single", "monitored_barrier", "scatter_object_list",
)  # fmt: skip
_DDP = ("DistributedDataParallel",)


def _last(call: Event) -> str:
    return str(call.fields["name"]).rsplit(".", 1)[-1]


def _is_torch(call: Event, *roots: str) -> bool:
    return str(call.fields["name"]).startswith(roots or ("torch.",))


def _distributed(setup: Setup) -> Iterator[Script]:
    """Programs that set up process groups themselves or wrap a model for several ranks."""
    for script in setup.scripts:
        if any(
            _is_torch(c) for c in script.named("init_process_group", *_DDP, "FullyShardedDataParallel", "fully_shard")
        ):
            yield script


def _with_ddp(setup: Setup) -> Iterator[Script]:
    for script in setup.scripts:
        if any(_is_torch(call) for call in script.named(*_DDP)):
            yield script


def _guarded(call: Event) -> bool:
    return bool(call.fields["guards"])


def _keyword(call: Event, name: str, position: int | None = None) -> object:
    if name in call.fields["keywords"]:
        return call.fields["keywords"][name]
    arguments = call.fields["arguments"]
    return arguments[position] if position is not None and position < len(arguments) else None


def _text(value: object) -> str:
    """The text of an expression, without the mark of one."""
    return value[1:] if isinstance(value, str) and value.startswith("=") else repr(value)


# -- data ----------------------------------------------------------------------------------------------------------


def shuffle_with_sampler(setup: Setup) -> Iterator[Hit]:
    """DataLoader itself refuses the two together."""
    for script in setup.scripts:
        for call in script.named("DataLoader"):
            keywords = call.fields["keywords"]
            sampler = keywords.get("sampler")
            if (
                _is_torch(call)
                and keywords.get("shuffle") is True
                and isinstance(sampler, str)
                and sampler.startswith("=")
            ):
                if " if " not in sampler and _always_set(script, sampler[1:], call):
                    yield Hit((call,))


def _always_set(script: Script, name: str, call: Event) -> bool:
    """The sampler is made in this function, unconditionally."""
    made = [c for c in script.calls if c.fields["to"] == name and c.fields["function"] == call.fields["function"]]
    return (bool(made) and all(not c.fields["context"] and not c.fields["guards"] for c in made)) or "(" in name


def split_differs(setup: Setup) -> Iterator[Hit]:
    for script in _distributed(setup):
        seeded = any(True for _ in script.named("manual_seed", "set_seed", "seed_everything"))
        for call in script.named("random_split"):
            if not seeded and _is_torch(call) and "generator" not in call.fields["keywords"] and not _guarded(call):
                yield Hit((call,))


def many_workers(setup: Setup) -> Iterator[Hit]:
    for script in _distributed(setup):
        for call in script.named("DataLoader"):
            workers = _text(_keyword(call, "num_workers"))
            if re.fullmatch(r"(?:os|mp|multiprocessing)\.cpu_count\(\)", workers):
                yield Hit((call,), {"workers": workers})


def download_on_every_rank(setup: Setup) -> Iterator[Hit]:
    for script in _distributed(setup):
        waits = any(_last(call) == "barrier" for call in script.calls)
        for call in script.calls:
            if call.fields["keywords"].get("download") is True and not _guarded(call) and not waits:
                yield Hit((call,))


# -- collectives ---------------------------------------------------------------------------------------------------


def collective_in_rank_branch(setup: Setup) -> Iterator[Hit]:
    for script in setup.scripts:
        calls = [call for call in script.named(*COLLECTIVES) if _is_torch(call, "torch.distributed.")]
        for call in calls:
            guards = call.fields["guards"]
            if not guards or guards[-1] not in ("first", "others") or "group" in call.fields["keywords"]:
                continue
            name = _last(call)
            if len(call.fields["arguments"]) > {"barrier": 0}.get(name, 2):
                continue  # a group by position
            same = [other for other in calls if other is not call and _last(other) == name]
            opposite = "others" if guards[-1] == "first" else "first"
            if any(opposite in other.fields["guards"] for other in same):
                continue
            yield Hit((call,), {"name": name, "who": _who(guards[-1])}, "warning" if same else None)


def _who(guard: str) -> str:
    return "rank 0" if guard == "first" else "the other ranks"


def skipped_backward(setup: Setup) -> Iterator[Hit]:
    """`if not finite: continue` before `backward`: the other ranks wait for this one's gradients."""
    for script in _with_ddp(setup):
        if "join" in script.names or "Join" in script.names:
            continue
        backward = [call for call in script.named("backward") if call.fields["loops"]]
        for jump in script.events:
            if jump.kind != "jump" or not jump.fields["context"] or not jump.fields["loops"]:
                continue
            condition = jump.fields["context"][-1]
            if not re.search(r"(?i)isnan|isinf|isfinite|nan_|is_nan", condition) or "reduce" in condition:
                continue
            after = [
                c for c in backward if c.fields["loops"] == jump.fields["loops"] and (c.line or 0) > (jump.line or 0)
            ]
            if after:
                yield Hit((jump, after[0]), {"word": jump.fields["word"]})


def tensor_on_other_device(setup: Setup) -> Iterator[Hit]:
    """NCCL moves GPU memory only."""
    for script in setup.scripts:
        backends = {_keyword(c, "backend", 0) for c in script.named("init_process_group") if _is_torch(c)}
        if backends != {"nccl"} or script.names & {"set_default_device", "set_default_tensor_type"}:
            continue
        for call in script.named("all_reduce", "broadcast", "reduce"):
            first = _text(_keyword(call, "tensor", 0))
            made = re.match(r"torch\.(?:tensor|zeros|ones|full|empty|FloatTensor|LongTensor)\(", first)
            if (
                _is_torch(call, "torch.distributed.")
                and made
                and "device=" not in first
                and not re.search(r"\.(?:cuda|to)\(", first)
            ):
                yield Hit((call,), {"name": _last(call)})


def gloo_with_gpus(setup: Setup) -> Iterator[Hit]:
    for script in setup.scripts:
        calls = [c for c in script.named("init_process_group") if _is_torch(c)]
        backends = {_keyword(c, "backend", 0) for c in calls}
        gpu = any(
            c.fields["name"].endswith(".cuda") or _keyword(c, "", 0) == "cuda" for c in script.named("cuda", "to")
        )
        if backends == {"gloo"} and gpu and "set_device" in script.names:
            yield Hit((calls[0],))


def objects_before_device(setup: Setup) -> Iterator[Hit]:
    for script in setup.scripts:
        backends = {_keyword(c, "backend", 0) for c in script.named("init_process_group") if _is_torch(c)}
        used = "set_device" in script.names or "device_id" in {k for c in script.calls for k in c.fields["keywords"]}
        if backends == {"nccl"} and not used:
            for call in script.named("all_gather_object", "broadcast_object_list", "gather_object"):
                if _is_torch(call, "torch.distributed."):
                    yield Hit((call,), {"name": _last(call)})
                    break


# -- devices and launch --------------------------------------------------------------------------------------------


def first_gpu_for_all(setup: Setup) -> Iterator[Hit]:
    for script in _distributed(setup):
        if "set_device" in script.names or "CUDA_VISIBLE_DEVICES" in script.names:
            continue
        for call in script.named("to", "device", "cuda"):
            first = _keyword(call, "device", 0)
            if first == "cuda:0" or (first == 0 and _last(call) == "cuda"):
                yield Hit((call,), {"device": first})
                break


def default_gpu_for_all(setup: Setup) -> Iterator[Hit]:
    for script in _distributed(setup):
        backends = {_keyword(c, "backend", 0) for c in script.named("init_process_group") if _is_torch(c)}
        known = {
            "set_device",
            "CUDA_VISIBLE_DEVICES",
            "local_rank",
            "LOCAL_RANK",
            "device_count",
            "set_default_device",
            "init_device_mesh",
        }
        if (
            not backends & {"nccl"}
            or script.names & known
            or any("device_id" in c.fields["keywords"] for c in script.calls)
        ):
            continue
        for call in script.named("cuda"):
            bare = not call.fields["arguments"] and not call.fields["keywords"]
            if bare and not str(call.fields["name"]).startswith("torch.cuda") and not _guarded(call):
                yield Hit((call,))
                break


def device_by_global_rank(setup: Setup) -> Iterator[Hit]:
    for script in setup.scripts:
        if "local_rank" in script.names or "LOCAL_RANK" in script.names or "device_count" in script.names:
            continue
        ranks = {
            event.fields["to"]
            for event in script.events
            if event.kind == "assigned"
            and re.search(r"get_rank\(\)|environ(?:\.get\()?\[?['\"]RANK['\"]", event.fields["text"])
        }
        for call in script.named("set_device"):
            if _is_torch(call, "torch.cuda.") and _text(_keyword(call, "device", 0)) in ranks | {"dist.get_rank()"}:
                yield Hit((call,), {"device": _text(_keyword(call, "device", 0))})


def device_is_text(setup: Setup) -> Iterator[Hit]:
    variable = (
        r"os\.(?:environ\[['\"]LOCAL_RANK['\"]\]|getenv\(['\"]LOCAL_RANK['\"]\)|environ\.get\(['\"]LOCAL_RANK['\"]\))"
    )
    for script in setup.scripts:
        for call in script.named("set_device"):
            if _is_torch(call, "torch.cuda.") and re.fullmatch(variable, _text(_keyword(call, "device", 0))):
                yield Hit((call,))
        for call in script.named(*_DDP):
            if re.fullmatch(rf"\[{variable}\]", _text(_keyword(call, "device_ids"))):
                yield Hit((call,))


def port_in_code(setup: Setup) -> Iterator[Hit]:
    for script in setup.scripts:
        if "init_process_group" not in script.names and "setdefault" in script.names:
            continue
        for event in script.events:
            if event.kind == "variable" and event.fields["name"] == "MASTER_PORT" and _plain(event.fields["value"]):
                yield Hit((event,), {"port": event.fields["value"]})
        for call in script.named("init_process_group"):
            method = _keyword(call, "init_method", 1)
            if isinstance(method, str) and (found := re.fullmatch(r"tcp://(?:localhost|127\.0\.0\.1):(\d+)", method)):
                yield Hit((call,), {"port": found[1]})


def _plain(value: object) -> bool:
    return isinstance(value, int) or (isinstance(value, str) and value.isdigit())


def fixed_rank(setup: Setup) -> Iterator[Hit]:
    for script in setup.scripts:
        for call in script.named("init_process_group"):
            rank, size = _keyword(call, "rank", 4), _keyword(call, "world_size", 3)
            if _is_torch(call) and type(rank) is int and type(size) is int and size > 1 and rank >= 0:
                yield Hit((call,), {"given": rank, "size": size})


def group_not_destroyed(setup: Setup) -> Iterator[Hit]:
    for script in setup.scripts:
        if "destroy_process_group" in script.names:
            continue
        for call in script.named("init_process_group"):
            if _is_torch(call, "torch.distributed.") and _has_training(script):
                yield Hit((call,))
                break


def _has_training(script: Script) -> bool:
    return any(True for _ in script.named("backward"))


def local_rank_argument(setup: Setup) -> Iterator[Hit]:
    """torchrun hands the local rank over in the environment alone."""
    for script in setup.scripts:
        if "LOCAL_RANK" in script.names or "init_process_group" not in script.names:
            continue
        if script.names & {"Accelerator", "initialize", "init_distributed", "Fabric"}:
            continue
        for call in script.named("add_argument"):
            names = {name for name in call.fields["arguments"] if isinstance(name, str)}
            if names & {"--local_rank", "--local-rank"}:
                yield Hit((call,))


def fork_with_cuda(setup: Setup) -> Iterator[Hit]:
    for script in _distributed(setup):
        for call in script.named("set_start_method"):
            if _keyword(call, "method", 0) == "fork":
                yield Hit((call,))


# -- model and optimiser -------------------------------------------------------------------------------------------


def sync_batchnorm_after_wrapping(setup: Setup) -> Iterator[Hit]:
    for script in _with_ddp(setup):
        wrapped = {c.fields["to"]: c.line or 0 for c in script.named(*_DDP) if c.fields["to"]}
        for call in script.named("convert_sync_batchnorm"):
            model = _text(_keyword(call, "module", 0))
            if model in wrapped and (call.line or 0) > wrapped[model] and _same_place(call, script, model):
                yield Hit((call,), {"model": model})


def _same_place(call: Event, script: Script, model: str) -> bool:
    return any(c.fields["to"] == model and c.fields["function"] == call.fields["function"] for c in script.named(*_DDP))


def unused_parameters(setup: Setup) -> Iterator[Hit]:
    for script in _with_ddp(setup):
        for call in script.named(*_DDP):
            if _is_torch(call) and call.fields["keywords"].get("find_unused_parameters") is True:
                yield Hit((call,))


def unused_with_recomputation(setup: Setup) -> Iterator[Hit]:
    for script in _with_ddp(setup):
        reentrant = [
            c
            for c in script.named("checkpoint")
            if _is_torch(c, "torch.utils.checkpoint") and _keyword(c, "use_reentrant") is True
        ]
        for call in script.named(*_DDP):
            if reentrant and call.fields["keywords"].get("find_unused_parameters") is True:
                yield Hit((call, reentrant[0]))


def plain_backward_with_accelerate(setup: Setup) -> Iterator[Hit]:
    for script in setup.scripts:
        made = any(c.fields["name"].startswith("accelerate") for c in script.named("Accelerator"))
        calls = list(script.named("backward"))
        if made and calls and not any("accelerator" in str(c.fields["of"]).lower() for c in calls):
            for call in calls:
                if not call.fields["arguments"] and call.fields["loops"]:
                    yield Hit((call,), {"loss": call.fields["of"]})


def plain_step_with_deepspeed(setup: Setup) -> Iterator[Hit]:
    for script in setup.scripts:
        made = [c for c in script.named("initialize") if c.fields["name"] == "deepspeed.initialize"]
        if len(made) != 1 or not made[0].fields["to"]:
            continue
        engine = re.split(r"[,(]", made[0].fields["to"].strip("("))[0].strip()
        for call in script.named("backward"):
            if call.fields["of"] == "loss" and call.fields["loops"] and not call.fields["arguments"]:
                if call.fields["function"] == made[0].fields["function"]:
                    yield Hit((call,), {"engine": engine or "engine"})


def cuda_in_lightning_module(setup: Setup) -> Iterator[Hit]:
    for script in setup.scripts:
        for call in script.named("cuda"):
            module = any(base.endswith("LightningModule") for base in call.fields["bases"])
            if module and not str(call.fields["name"]).startswith("torch.cuda") and not call.fields["arguments"]:
                yield Hit((call,))


def unreduced_metric(setup: Setup) -> Iterator[Hit]:
    for script in setup.scripts:
        for call in script.named("log"):
            module = any(base.endswith("LightningModule") for base in call.fields["bases"])
            step = call.fields["function"] in ("validation_step", "test_step")
            if (
                module
                and step
                and call.fields["of"] == "self"
                and not {"sync_dist", "**"} & call.fields["keywords"].keys()
            ):
                value = call.fields["arguments"][1] if len(call.fields["arguments"]) > 1 else None
                if isinstance(value, str) and "loss" in value:
                    yield Hit((call,), {"what": str(call.fields["arguments"][0])})


# -- files ---------------------------------------------------------------------------------------------------------


def _called_under_guard(script: Script, function: str) -> bool:
    """Functions are not followed; one whose name says that it saves may be called by one rank only."""
    return bool(re.search(r"(?i)save|checkpoint|export|dump", function))


def loaded_to_first_gpu(setup: Setup) -> Iterator[Hit]:
    for script in _distributed(setup):
        for call in script.named("load"):
            keywords = call.fields["keywords"]
            if call.fields["name"] != "torch.load" or {"map_location", "mmap", "**"} & set(keywords):
                continue
            if len(call.fields["arguments"]) < 2 and not _guarded(call) and _uses_gpu(script):
                yield Hit((call,))


def _uses_gpu(script: Script) -> bool:
    return any(_keyword(c, "backend", 0) == "nccl" for c in script.named("init_process_group"))


def wrapped_names_saved(setup: Setup) -> Iterator[Hit]:
    for script in _with_ddp(setup):
        wrapped = {(c.fields["to"], c.fields["function"]) for c in script.named(*_DDP) if c.fields["to"]}
        for call in script.named("state_dict"):
            if call.fields["inside"] == "save" and (call.fields["of"], call.fields["function"]) in wrapped:
                yield Hit((call,), {"model": call.fields["of"]})


def folder_race(setup: Setup) -> Iterator[Hit]:
    for script in _distributed(setup):
        for call in script.named("makedirs", "mkdir"):
            if (
                call.fields["name"] in ("os.makedirs", "os.mkdir")
                and not _guarded(call)
                and "exist_ok" not in call.fields["keywords"]
            ):
                rank = re.search(r"rank", _text(_keyword(call, "name", 0)))
                if not rank and not _called_under_guard(script, str(call.fields["function"])) and _has_training(script):
                    yield Hit((call,), {"name": _last(call)})


def zero_three_state_saved(setup: Setup) -> Iterator[Hit]:
    """Under ZeRO-3 a rank's state_dict has empty placeholders."""
    stage3 = {
        p.source
        for p in setup.of("deepspeed")
        if p.number_of("zero_optimization.stage") == 3 and p.source.endswith(".py")
    }
    for script in setup.scripts:
        engine = any(c.fields["name"] == "deepspeed.initialize" for c in script.named("initialize"))
        for call in script.named("state_dict"):
            if script.source in stage3 and engine and call.fields["inside"] == "save":
                yield Hit((call,))
