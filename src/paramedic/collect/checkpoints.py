"""A checkpoint folder → facts: its kind, its parts, which are missing or damaged, and how many ranks saved it."""

from __future__ import annotations

import json
import os
import re
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from paramedic.collect.plain_pickle import Named
from paramedic.collect.tensor_files import (
    Piece,
    TensorFile,
    plain_dict,
    read_index,
    read_safetensors,
    read_torch,
    sha256,
)
from paramedic.errors import ParamedicError
from paramedic.model import Fact, Skipped

MOST_FILES = 20_000
_MOST_JSON = 64 << 20
_DEEPEST = 6
_ZERO = re.compile(r"^(?:bf16_|fp16_)?zero_pp_rank_(\d{1,6})_mp_rank_(\d{1,4}(?:_\d{1,4})?)_(optim|model)_states\.pt$")
_MODEL = re.compile(r"^mp_rank_(\d{1,4}(?:_\d{1,4})?)_model_states\.pt$")
_MEGATRON = re.compile(r"^mp_rank_(\d{2,4})(?:_(\d{3,4}))?(?:_(\d{3,4}))?$")
_SAFE = re.compile(
    r"^(?:torch(?:\.|$)|collections\.|numpy\.|_codecs\.encode$|builtins\.(?:set|frozenset|bytearray|complex|slice|range|list|dict|tuple|int|float|str|bool)$"
    r"|copyreg\._reconstructor$|argparse\.Namespace$|deepspeed\.|megatron\.|pathlib\.|datetime\.|functools\.partial$|enum\.|random\.|transformer_engine\.|accelerate\.|transformers\.|types\.SimpleNamespace$|ml_dtypes\.|signal\.|colossalai\.|omegaconf\.|__builtin__\.(?:set|object|list|dict|unicode)$|builtins\.object$)"
)
_TORCH_UNSAFE = re.compile(
    r"^torch\.(?:load|hub\.|jit\.|utils\.cpp_extension|utils\.collect_env|multiprocessing|distributed\.elastic|_inductor)"
)
TENSORS = (".pt", ".pth", ".bin", ".ckpt")


@dataclass
class Look:
    root: str
    deep: bool
    facts: list[Fact] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, value: Any, source: str = "") -> None:
        self.facts.append(Fact(f"checkpoint {name}", value, os.path.join(self.root, source) if source else self.root))

    def damaged(self, name: str, why: str) -> None:
        self.add(f"damaged {name}", why, name)

    def missing(self, name: str, named_by: str) -> None:
        self.add(f"missing {name}", named_by, named_by if named_by in self.files else "")

    def below(self, folder: str) -> dict[str, int]:
        start = folder.rstrip("/") + "/" if folder else ""
        return {name[len(start) :]: size for name, size in self.files.items() if name.startswith(start)}

    def text(self, name: str) -> str:
        try:
            with open(os.path.join(self.root, name), "rb") as file:
                return file.read(4096).decode("utf-8", "replace").strip()
        except OSError:
            return ""


def look_into(root: str, deep: bool = False, progress: Callable[[str, int], None] | None = None) -> Look:
    """Every file's outside, and inside where its form is known. Links that lead out of the folder are not followed."""
    if not os.path.isdir(root):
        raise ParamedicError(f"--checkpoint {root}: no such folder")
    look = Look(root, deep)
    look.files = dict(listed(root, look.skipped))
    folder = _pointed(look)
    for kind in (_deepspeed, _universal, _distributed, _megatron):
        kind(look, folder)
    _indexed(look)
    _tensors(look, progress)
    _hashes(look)
    _sizes(look)
    if not any(fact.name == "checkpoint kind" for fact in look.facts):
        kinds = [name for name in look.files if name.endswith((".safetensors", *TENSORS))]
        look.add("kind", "files of tensors" if kinds else "unknown")
    return look


def listed(root: str, skipped: list[Skipped]) -> Iterator[tuple[str, int]]:
    count, real = 0, os.path.realpath(root)
    for folder, folders, names in os.walk(root):
        inside = os.path.relpath(folder, root)
        folders.sort()
        if inside.count(os.sep) >= _DEEPEST:
            folders.clear()
        for name in sorted(names):
            path = os.path.join(folder, name)
            if not os.path.realpath(path).startswith(real + os.sep):
                skipped.append(Skipped(path, "is a link that leads out of the folder"))
                continue
            count += 1
            if count > MOST_FILES:
                skipped.append(Skipped(root, f"holds more than {MOST_FILES:,} files"))
                return
            try:
                yield os.path.normpath(os.path.join(inside, name)), os.stat(path).st_size
            except OSError as error:
                skipped.append(Skipped(path, str(error.strerror)))


def _pointed(look: Look) -> str:
    """The folder that `latest` or Megatron's tracker names; the root itself where there is no such file."""
    for pointer, shape in (
        ("latest", "{}"),
        ("latest_universal", "{}"),
        ("latest_checkpointed_iteration.txt", "iter_{:07d}"),
    ):
        if pointer not in look.files:
            continue
        said = look.text(pointer)
        if "{:07d}" in shape:
            folder = "release" if said == "release" else shape.format(int(said)) if said.isdigit() else said
        else:
            folder = said
        if not folder or ".." in folder.split("/") or folder.startswith("/") or not look.below(folder):
            look.add("pointer", {"file": pointer, "says": said[:200]}, pointer)
            continue
        look.add("step", folder, pointer)
        return folder
    return ""


def _deepspeed(look: Look, folder: str) -> None:
    below = look.below(folder)
    shards: dict[tuple[str, str], set[int]] = {}
    for name in below:
        if hit := _ZERO.match(name):
            shards.setdefault((hit[2], hit[3]), set()).add(int(hit[1]))
    models = sorted(name for name in below if _MODEL.match(name))
    if not shards and not models:
        return
    look.add("kind", "deepspeed", folder)
    saved = _saved_by(look, folder, models)
    for (part, kind), ranks in shards.items():
        count = max(saved.get("dp_world_size", 0), max(ranks) + 1) if kind == "optim" else max(ranks) + 1
        pattern = next(name for name in below if (hit := _ZERO.match(name)) and (hit[2], hit[3]) == (part, kind))
        for rank in sorted(set(range(count)) - ranks)[:50]:
            look.missing(os.path.join(folder, re.sub(r"pp_rank_\d+", f"pp_rank_{rank}", pattern)), "its neighbours")
    parts = max((len({part for part, _ in shards}), len(models)), default=1) or 1
    data = saved.get("dp_world_size") or max((max(ranks) + 1 for ranks in shards.values()), default=0)
    if data:
        look.add("ranks", data * max(saved.get("mp_world_size", parts), 1), folder)
        look.add("data parallel", data, folder)
    if shards:
        look.add("fixed to its ranks", True, folder)


def _saved_by(look: Look, folder: str, models: list[str]) -> dict[str, int]:
    """What DeepSpeed has written into the model's own file."""
    for name in models[:1]:
        value = plain_dict(read_torch(os.path.join(look.root, folder, name), False).value) or {}
        numbers = {key: value[key] for key in ("dp_world_size", "mp_world_size") if isinstance(value.get(key), int)}
        if isinstance(value.get("ds_version"), str):
            look.add("saved with", f"deepspeed {value['ds_version']}", os.path.join(folder, name))
        return numbers
    return {}


def _universal(look: Look, folder: str) -> None:
    below = look.below(folder)
    parameters = {name.split("/")[1] for name in below if name.startswith("zero/") and name.count("/") == 2}
    if not parameters:
        return
    look.add("kind", "deepspeed universal", folder)
    states = {part: {name for name in below if name.startswith(f"zero/{part}/")} for part in parameters}
    usual = {name.rsplit("/", 1)[1] for names in states.values() for name in names}
    usual = {name for name in usual if sum(f"zero/{p}/{name}" in n for p, n in states.items()) > len(states) / 2}
    for part, names in states.items():
        for absent in sorted(usual - {name.rsplit("/", 1)[1] for name in names})[:3]:
            look.missing(os.path.join(folder, "zero", part, absent), "its neighbours")


def _distributed(look: Look, folder: str) -> None:
    """torch.distributed.checkpoint, also as Megatron and accelerate write it; perhaps in several subfolders."""
    for name in [name for name in look.files if os.path.basename(name) == ".metadata"]:
        place = os.path.dirname(name)
        look.add("kind", "torch.distributed.checkpoint", name)
        wrong, pieces, names = read_index(os.path.join(look.root, name))
        _unsafe(look, name, names)
        if wrong:
            look.damaged(name, wrong)
        _pieces(look, place, name, pieces)
    lone = {os.path.dirname(name) for name in look.files if name.endswith(".distcp")}
    for place in sorted(lone - {os.path.dirname(name) for name in look.files if os.path.basename(name) == ".metadata"}):
        look.add("kind", "torch.distributed.checkpoint", place)
        look.missing(
            os.path.join(place, ".metadata"), "its shards: the save was cut off, for the index is written last"
        )


def _pieces(look: Look, place: str, index: str, pieces: list[Piece]) -> None:
    ends: dict[str, int] = {}
    for piece in pieces:
        ends[piece.file] = max(ends.get(piece.file, 0), piece.offset + piece.length)
    ranks = {int(hit[1]) for name in ends if (hit := re.match(r"__(\d{1,6})_\d+\.distcp$", name))}
    if ranks:
        look.add("ranks", max(ranks) + 1, index)
        look.add("can be resharded", True, index)
    for name, end in ends.items():
        path = os.path.normpath(os.path.join(place, name))
        size = look.files.get(path)
        if size is None:
            look.missing(path, index)
        elif size < end:
            look.damaged(path, f"is cut off: {size:,} of {end:,} bytes are there")


def _megatron(look: Look, folder: str) -> None:
    parts = {name.split("/")[0] for name in look.below(folder) if _MEGATRON.match(name.split("/")[0])}
    if parts:
        found = [hit for part in parts if (hit := _MEGATRON.match(part))]
        tensor, pipeline = (max(int(hit[group] or 0) for hit in found) + 1 for group in (1, 2))
        look.add("kind", "megatron", folder)
        look.add("tensor parallel", tensor, folder)
        look.add("pipeline parallel", pipeline, folder)
        wide = any(hit[2] for hit in found)
        for t in range(tensor):
            for p in range(pipeline):
                name = f"mp_rank_{t:02d}_{p:03d}" if wide else f"mp_rank_{t:02d}"
                if not any(part.startswith(name) for part in parts):
                    look.missing(os.path.join(folder, name), "its neighbours")
    below = look.below(folder)
    if "common.pt" not in below and "metadata.json" not in below:
        return
    look.add("kind", "megatron distributed", folder)
    for name, other in (("common.pt", "metadata.json"), ("metadata.json", "common.pt")):
        if name not in below:
            look.missing(os.path.join(folder, name), other)


def _indexed(look: Look) -> None:
    """HF's and Colossal-AI's `*.index.json`: every file that it names, with the tensors that it should hold."""
    for name in [name for name in look.files if name.endswith(".index.json")]:
        try:
            if look.files[name] > _MOST_JSON:
                raise ValueError("too large")
            with open(os.path.join(look.root, name), "rb") as file:
                said = json.loads(file.read())
            weights = {str(key): str(value) for key, value in said["weight_map"].items()}
            groups = (said.get("metadata") or {}).get("param_groups")
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            look.damaged(name, "is no index: it should have a weight_map")
            continue
        optim = "optim" in os.path.basename(name)
        look.add("kind", "colossalai" if isinstance(groups, str) or optim else "sharded weights", name)
        place = os.path.dirname(name)
        wanted = {*weights.values(), *([groups] if isinstance(groups, str) else [])}
        for part in sorted(wanted):
            path = os.path.normpath(os.path.join(place, part))
            if path not in look.files:
                look.missing(path, name)
            elif part.endswith(".safetensors"):
                held = set(read_safetensors(os.path.join(look.root, path)).keys)
                absent = [key for key, where in weights.items() if where == part and key not in held]
                if held and absent:
                    look.damaged(path, f"lacks {absent[0][:120]}, which {os.path.basename(name)} says is there")


def _tensors(look: Look, progress: Callable[[str, int], None] | None) -> None:
    for name, size in look.files.items():
        path = os.path.join(look.root, name)
        if name.endswith(".safetensors"):
            read = read_safetensors(path)
        elif name.endswith(TENSORS):
            read = read_torch(path, look.deep)
        else:
            continue
        if progress:
            progress(name, size)
        if read.problem:
            look.damaged(name, read.problem)
        _unsafe(look, name, read.names)
        _steps(look, name, read)


def _unsafe(look: Look, name: str, names: frozenset[str]) -> None:
    odd = sorted(one for one in names if not _SAFE.match(one) or _TORCH_UNSAFE.match(one))
    if odd:
        look.add(f"calls {name}", odd[:8], name)


def _steps(look: Look, name: str, read: TensorFile) -> None:
    value = plain_dict(read.value) or {}
    for key in ("global_steps", "iteration"):
        if isinstance(value.get(key), int):
            look.add(f"count {name}", value[key], name)
    arguments = value.get("args")
    state = arguments.state if isinstance(arguments, Named) and isinstance(arguments.state, dict) else {}
    for key, fact in (
        ("tensor_model_parallel_size", "tensor parallel"),
        ("pipeline_model_parallel_size", "pipeline parallel"),
    ):
        if isinstance(state.get(key), int) and not any(one.name == f"checkpoint {fact}" for one in look.facts):
            look.add(fact, state[key], name)


def _hashes(look: Look) -> None:
    """Against lists of SHA-256 sums that lie beside the files; only when all is to be read."""
    for name in look.files if look.deep else ():
        if os.path.basename(name) not in ("SHA256SUMS", "sha256sums.txt", "checksums.sha256"):
            continue
        with open(os.path.join(look.root, name), "rb") as file:
            lines = file.read(_MOST_JSON).decode("utf-8", "replace").split("\n")
        for line in lines:
            if hit := re.match(r"([0-9a-f]{64}) [ *](\S.*)$", line):
                path = os.path.normpath(os.path.join(os.path.dirname(name), hit[2]))
                if path not in look.files:
                    look.missing(path, name)
                elif sha256(os.path.join(look.root, path)) != hit[1]:
                    look.damaged(path, f"has another checksum than {name} says")


def _sizes(look: Look) -> None:
    """Shards of one kind are of about one size: a small one was cut off, or its rank had nothing."""
    groups: dict[str, dict[str, int]] = {}
    for name, size in look.files.items():
        if name.endswith((".distcp", ".pt", ".bin", ".safetensors")):
            groups.setdefault(re.sub(r"\d+", "#", name), {})[name] = size
    for members in groups.values():
        usual = statistics.median(members.values())
        small = [name for name, size in members.items() if size < usual / 4]
        if len(members) >= 4 and usual > 1 << 16 and len(small) == 1:
            look.add(f"small {small[0]}", [members[small[0]], int(usual)], small[0])
