"""What a run was made of: versions, configuration, arguments, environment, launch command, code, pace and warnings.

`paramedic diff` compares two of these. Everything is read as text and parsed by hand: nothing of it is executed, every
size is bounded, and secrets are taken out before a value is kept.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from paramedic.clocks import find_stamp
from paramedic.collect.archives import is_log
from paramedic.collect.formats import launch as job_scripts
from paramedic.collect.formats.toml import refuse_deep_keys
from paramedic.collect.inputs import open_inputs
from paramedic.collect.layouts import Prefixes, plain
from paramedic.collect.rosters import all_of
from paramedic.model import Run, Skipped
from paramedic.redact import redact

MOST_FILE = 1 << 20
"""Of a configuration or a program; of a log its beginning and its end are read."""
MOST_LOG = 2 << 20
MOST_LOGS = 16 << 20
MOST_FACTS = 20_000
MOST_VALUE = 400
_TAIL = 1 << 20
_CHUNK = 4 << 20
_MOST_VALUES = 8
_MOST_HOSTS = 4_096
_MOST_YAML, _LEAST_YAML = 20_000, 6
_MOST_BLOCK = 400  # lines of a dump
_DEEPEST = 12
_CONFIGS = (".json", ".yaml", ".yml", ".toml")
_CODE = (".py", ".sh", ".sbatch", ".slurm")
_IMAGE_FILE = re.compile(r"(?i)^(?:docker|container)file\b")
_NOT_CONFIGS = re.compile(r"^(?:error|tokenizer|vocab|trainer_state|run)\b.*\.json$|\.index\.json$|^merges", re.I)


@dataclass(frozen=True, slots=True)
class Stated:
    """What was said of one thing: all different values, in their order, and where the first one stands. `part`: in what
    kind of list it was said, which the other run may lack as a whole."""

    values: tuple[str, ...]
    source: str
    line: int | None = None
    part: str = ""


@dataclass(frozen=True, slots=True)
class Code:
    text: str
    source: str


@dataclass(slots=True)
class Settings:
    """`stated` is by (kind, key); the kinds are those of `differences.KINDS`."""

    stated: dict[tuple[str, str], Stated] = field(default_factory=dict)
    code: dict[str, Code] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)

    def add(self, kind: str, key: str, value: object, source: str, line: int | None = None, *, part: str = "") -> None:
        key = " ".join(key.split())
        if len(self.stated) >= MOST_FACTS and (kind, key) not in self.stated:
            return  # before anything is looked through for secrets: that is what takes time
        key, text = redact(key)[:200], _shown(key, value)
        known = self.stated.get((kind, key))
        if known is None:
            if key and len(self.stated) < MOST_FACTS:
                self.stated[kind, key] = Stated((text,), source, line, part)
        elif text not in known.values and len(known.values) < (_MOST_HOSTS if kind == "hosts" else _MOST_VALUES):
            self.stated[kind, key] = replace(known, values=(*known.values, text))


def _shown(key: str, value: object) -> str:
    """As one line, without secrets; a secret is known by the name that stands before it."""
    if value is None or isinstance(value, bool):
        text = {None: "null", True: "true", False: "false"}[value]
    elif isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        text = str(int(value))
    else:
        text = " ".join(str(value).split())
    name = re.split(r"[.:\s]", key)[-1]
    head = f"{name}:" if text.startswith("//") else f"{name}="  # the rest of an address
    clean = redact(head + text)
    return (clean.removeprefix(head) if clean.startswith(head) else redact(text))[:MOST_VALUE]


# -- reading -------------------------------------------------------------------------------------------------------


def is_wanted(name: str) -> bool:
    """Logs, and beside them what a run is configured by and consists of."""
    suffix = PurePosixPath(name).suffix.lower()
    known = suffix in (*_CONFIGS, *_CODE) and not name.startswith(".") and not _NOT_CONFIGS.match(name)
    return is_log(name) or known or _IMAGE_FILE.match(name) is not None


def read_settings(path: str) -> Settings:
    """From a file, a folder, a glob or an archive. Names of files are those inside it, without what was named."""
    found = Settings()
    budget = MOST_LOGS
    root = path.rstrip("/") + "/"
    for item in open_inputs([path], found.skipped, is_wanted):
        inside = item.name.split("!/", 1)[-1]
        name = inside.removeprefix(root) if inside.startswith(root) else inside
        base = name.rsplit("/", 1)[-1]
        suffix = PurePosixPath(base).suffix.lower()
        if _IMAGE_FILE.match(base):
            _read_image_file(found, base, item.name, _text(item.stream, MOST_FILE))
        elif suffix in _CODE:
            _read_code(found, name, item.name, _text(item.stream, MOST_FILE))
        elif suffix in _CONFIGS:
            if not _NOT_CONFIGS.match(base):
                _read_config(found, name, item.name, _text(item.stream, MOST_FILE))
        else:
            most = max(min(MOST_LOG, budget // 4), _CHUNK // 64)
            text = _head_and_tail(item.stream, most)
            budget -= len(text)
            _read_text(found, item.name, text)
    return found


def of_run(run: Run) -> Settings:
    """A recorded Run has no files any more: its facts, and the warnings among its events."""
    found = Settings()
    for fact in run.facts:
        kind, _, key = fact.name.partition(" ")
        if kind in ("version", "config", "argument", "environment") and key:
            found.add(kind, key, fact.value, fact.source, fact.line)
    for event in run.events:
        if event.kind == "line":
            _warning(found, event.text.split("\n")[0], event.source, event.line or 0)
    return found


def _text(stream: BinaryIO, most: int) -> str:
    data = stream.read(most + 1)
    return "" if len(data) > most or b"\0" in data[:4096] else data.decode("utf-8-sig", "replace")


def _head_and_tail(stream: BinaryIO, most: int) -> str:
    head, tail = stream.read(most), b""
    if b"\0" in head[:4096]:
        return ""
    while chunk := stream.read(_CHUNK):
        tail = (tail + chunk)[-min(_TAIL, most) :]
    return (head + b"\n" + tail if tail else head).decode("utf-8", "replace")


def _read_code(found: Settings, name: str, source: str, text: str) -> None:
    if not text:
        return
    found.code[name] = Code(redact(text), source)
    if not name.endswith(".py"):
        for number, line in enumerate(text.replace("\\\n", " ").split("\n"), 1):
            _environment(found, line.strip(), source, number, "script")
            _launch(found, line.strip(), source, number)
            _modules(found, line, source, number)
        for entry in job_scripts.batch(text):
            if entry.value is not None:
                key = f"--{entry.key.replace('_', '-')}"
                found.add(
                    "launch", key, "given" if entry.value is True else entry.value, source, entry.line, part="batch"
                )


def _read_image_file(found: Settings, name: str, source: str, text: str) -> None:
    """What an image is made from, and what is put into it."""
    for number, line in enumerate(text.replace("\\\n", " ").split("\n"), 1):
        if (made := _FROM.match(line)) is not None:
            found.add("config", f"{name}: FROM image", made[1], source, number)
        elif re.match(r"(?i)^\s*ENV ", line):
            for key, value in _OVERRIDE.findall(line):
                found.add("environment", key, value, source, number, part="image")
        elif "install " in line:
            for word in line.split():
                _requirement(found, word.strip("'\""), source, number)


def _modules(found: Settings, line: str, source: str, number: int) -> None:
    """`module load CUDA/12.1.1 gcc/12`, as clusters have it."""
    if (loads := _MODULE.match(line)) is not None:
        for word in loads[1].split()[:40]:
            name, slash, version = word.rpartition("/")
            if slash and _DIGIT.search(version):
                found.add("version", _package(name.rsplit("/", 1)[-1]), version, source, number, part="modules")


def _read_config(found: Settings, name: str, source: str, text: str) -> None:
    parse = json.loads if name.endswith(".json") else _toml if name.endswith(".toml") else _yaml
    try:
        value = parse(text)
    except (ValueError, RecursionError, OverflowError) as error:
        if text:
            found.skipped.append(Skipped(source, f"cannot be parsed: {' '.join(str(error).split())[:120]}"))
        return
    if name.rsplit("/", 1)[-1].startswith(("environment.", "conda")) and isinstance(value, dict):
        for line in _strings(value.get("dependencies")):
            _requirement(found, line, source, 0)
        return
    for key, leaf in leaves(value):
        found.add("config", f"{name.rsplit('/', 1)[-1]}: {key}", leaf, source)


def _toml(text: str) -> Any:
    refuse_deep_keys(text)
    return tomllib.loads(text)


def _yaml(text: str) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    if len(re.findall(r"(?:^|[\s\[,:-])[&*]\w", text)) > 50:  # anchors that multiply
        raise ValueError("too many anchors")
    try:
        return YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        raise ValueError(str(error)) from None
    except (TypeError, AttributeError, KeyError, IndexError, AssertionError) as error:
        raise ValueError(f"no YAML: {error}") from None


def _strings(value: object, depth: int = 0) -> Iterator[str]:
    if isinstance(value, str):
        yield value[:200]
    elif isinstance(value, list | dict) and depth < 4:
        for item in value if isinstance(value, list) else value.values():
            yield from _strings(item, depth + 1)


def leaves(value: Any, path: str = "", depth: int = 0) -> Iterator[tuple[str, object]]:
    """(key path, value) of nested objects. A list of plain values is one value; depth is bounded."""
    if isinstance(value, dict) and value and depth < _DEEPEST:
        for key, item in [*value.items()][:2_000]:
            yield from leaves(item, f"{path}.{key}" if path else str(key), depth + 1)
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value) and depth < _DEEPEST:
        names = [item.get("name") for item in value[:200] if isinstance(item, dict)]
        named = len({*map(str, names)}) == len(value) and all(isinstance(name, str) and name for name in names)
        for number, item in enumerate(value[:200]):
            yield from leaves(item, f"{path}[{names[number] if named else number}]", depth + 1)
    else:
        yield path or "value", value if not isinstance(value, dict | list) else _compact(value)


def _compact(value: Any) -> str:
    try:
        return json.dumps(value, default=str)[:MOST_VALUE]
    except (ValueError, RecursionError):
        return "…"


# -- logs and other texts ------------------------------------------------------------------------------------------

_MODULE = re.compile(r"^\s*(?:module|ml) (?:load |add |swap )?([\w./+ -]{3,400})$")
_DIGIT = re.compile(r"\d")
_OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_][\w.@/]{0,80})=(\S{1,200})")
"""`data.root=/scratch`, as Hydra takes it."""
_YAML_LINE = re.compile(r"^( {0,16})(?:- )?([A-Za-z_][\w./-]{0,60}):(?: +(.{1,200}))?$")
_FROM = re.compile(r"(?i)^\s*FROM (?:--\S+ )?(\S{1,200})")
_NODES = re.compile(r"\b(?:SLURM_(?:JOB_|STEP_)?NODELIST|NodeList)=([\w.,\[\]-]{2,2000})")
_REVISION = re.compile(
    r"(?i:\b(?:commit|revision|git[ _-]?(?:sha|hash|rev))(?: id| hash| sha)?\b[ \t]{0,2}[:=]?[ \t]{0,2}"
    r"|\bhead is now at )"
    r"([0-9a-f]{7,40})\b|^([0-9a-f]{7,40}) \(HEAD\b"
)
_NETWORK = re.compile(r"NCCL INFO (Using network \w{1,40})")
_LEAD = re.compile(
    r"^(?:\[?\d{4}-\d\d-\d\d[ T][\d:,.]{5,15}(?:Z|[+-]\d\d:?\d\d)?\]?[ ,]*)?"
    r"(?:\[?(?:INFO|DEBUG|WARNING|WARN|ERROR)\]?[ :]+)?"
    r"(?:\[[\w./-]{1,80}:\d{1,6}(?::\w{1,60})?\] ?)?(?:[\w.]{1,40}: )?(?:\[?rank[ _]?\d{1,6}\]?:? )?"
)
_DOTTED = re.compile(r"^\s*([A-Za-z_][\w.-]{0,80}) \.{3,} ?(.{0,400})$")
_ASSIGNED = re.compile(
    r"^(?:\+ |\d{1,4} )?(?:setenv (?=\w{3,61} )|(?:export )?(?=\w{3,61}=))([A-Z][A-Z0-9_]{2,60})[= ](.{0,400})$"
)
_SEVERAL = re.compile(r"(?:^|\s)([A-Z][A-Z0-9_]{2,60})=(\S{1,200})(?=\s+[A-Za-z_]\w{1,60}=\S|$)")
"""`MASTER_ADDR=a1 MASTER_PORT=29500`."""
_OUR_VARIABLES = re.compile(
    r"^(?:NCCL|TORCH|PYTORCH|CUDA|GLOO|UCX|FI|OMPI|OMP|MKL|HF|TRANSFORMERS|ACCELERATE|DEEPSPEED|DS|MASTER|WORLD|HOROVOD|TF|XLA|"
    r"RAY|MV2|I_MPI|PMIX|LD|PYTHON|PATH|NVIDIA|ROCR|HIP|SLURM|NVTE|MEGATRON|TOKENIZERS|TRITON|BNB|FSDP|WANDB|NODE|NUM|N?NODES|"
    r"GPUS|CPUS|BATCH|LR|SEED|MODEL|DATA|CONDA|VIRTUAL)(?:_|$)"
)
_OF_ONE_RUN = re.compile(
    r"^(?:RANK|LOCAL_RANK|GROUP_RANK|ROLE_RANK|NODE_RANK|PWD|OLDPWD|HOME|USER|TERM|SHLVL|_|PS1|HOSTNAME|TMPDIR|"
    r"(?:TORCHELASTIC_RUN|SLURM_(?:JOB|JOBID|STEP|PROC|LOCAL|NODE|TASK|GTIDS|TOPOLOGY|LAUNCH|SUBMIT|SRUN|UMASK|CONF))\w*|"
    r"OMPI_\w*|PMIX?_\w*|SSH_\w*|XDG_\w*|TMUX\w*|STY|WINDOW\w*|DISPLAY|COLUMNS|LINES|LESS\w*|EDITOR|MAIL|DBUS_\w*|LS_COLORS|BASH_\w*|\w*PID|\w*TIMESTAMP|\w*_PORT_RANGE)$"
)
_NCCL_ENV = re.compile(r"NCCL INFO ([A-Z][A-Z0-9_]{3,60}) set by environment to (\S{1,200}?)\.?$")
_NCCL_HOST = re.compile(r"^([\w.-]{1,64}):\d{1,8}:\d{1,8} \[\d{1,3}\] NCCL ")
_LAUNCHERS = (
    r"(?:torchrun|accelerate launch|deepspeed|horovodrun|mpirun|mpiexec|srun|colossalai run|ray job submit|"
    r"(?:\S{0,200}python[\d.]{0,8}) (?:-u )?-m (?:torch\.distributed\.(?:run|launch)|deepspeed\.launcher\.launch|"
    r"accelerate\.commands\.launch)|(?:\S{0,200}python[\d.]{0,8})(?: -u)?(?= \S{1,200}\.py\b))"
)
_LAUNCH = re.compile(rf"(?:^|\bcmd = |[Cc]ommand(?: line)?: |[$+] |&& |: )(\S{{0,200}}?{_LAUNCHERS} .{{1,2000}})$")
_NAMESPACE = re.compile(
    r"\b(?:Namespace|TrainingArguments|Seq2SeqTrainingArguments|\w{1,40}(?:Args|Arguments|Config))\((.*)$"
)
_ENTRY = re.compile(r"^\s*['\"]?([A-Za-z_][\w.-]{0,80})['\"]? ?[=:] ?(.*?),?\s*$")
_LISTED = re.compile(r"^\s{2,8}([A-Z][\w ./()&-]{3,70}?) = ([\d,.]+)\s*$")
_TORCHRUN = re.compile(
    r"^\s+(entrypoint|min_nodes|max_nodes|nproc_per_node|rdzv_backend|max_restarts|monitor_interval) +: (.*)$"
)
_REQUIREMENT = re.compile(
    r"^\s*(?:\[(?:pip3?|conda)\] )?([A-Za-z][\w.-]{0,60})(?:\[[\w,-]{1,60}\])? ?"
    r"(===?|>=|<=|~=|!=|>|<) ?([\w.*+!-]{1,40})"
)
_CONDA_LIST = re.compile(r"^([a-z_][\w.-]{1,60}) {2,}(\d[\w.+-]{0,30}) {2,}\S{1,60}(?: {2,}\S{1,40})?\s*$")
_COLLECT_ENV = re.compile(
    r"^(PyTorch version|CUDA used to build PyTorch|ROCM used to build PyTorch|OS|GCC version|Clang version|"
    r"CMake version|Libc version|Python version|Is CUDA available|CUDA runtime version|Nvidia driver version|"
    r"cuDNN version|Python platform|GPU \d{1,2}|Is XPU available|HIP runtime version): ?(.{0,200})$"
)
_VERSION = re.compile(
    r"(?<![\w-])(torch|pytorch|deepspeed|transformers|accelerate|nccl|cuda|cudnn|tensorflow|keras|horovod|lightning|ray|numpy|"
    r"megatron-core|colossalai|flash[-_]attn|apex|triton|python|driver|transformer[-_]engine)"
    r"(?:[ _-]?version|\.__version__| info)?(?: ?[=:.]{1,40} ?| )v?(\d{1,4}\.\d{1,4}(?:\.\d{1,4})?[+.\w-]{0,24})",
    re.I,
)
_SAME = {"pytorch": "torch", "megatron_core": "megatron", "megatron-core": "megatron", "flash_attn": "flash-attn"}
_STEP = re.compile(r"(?:\b|_)(?:global[ _])?(?:step|iter|iteration)\b\W{0,4}(\d{1,9})(?!\d*[.:]\d)", re.I)
_LOSS = re.compile(r"(?:\b|_)loss\b\W{0,4}(-?\d{1,9}(?:\.\d{1,12})?(?:e[+-]?\d{1,3})?|nan|-?inf)\b", re.I)
_TOOK = (
    (re.compile(r"(?i)(?:time per iteration|step[ _]time)\W{0,3}\(?(ms|s)\)?\W{1,3}(\d{1,9}(?:\.\d+)?)"), 2, 1),
    (re.compile(r"\b(\d{1,7}(?:\.\d{1,6})?) ?(s/it|it/s)\b"), 1, 2),
    (re.compile(r"\bloss\b.{1,60}?\b(\d{1,7}(?:\.\d{1,6})?) (ms)\b"), 1, 2),
    (re.compile(r"\beta: .{1,200}?\btime: (\d{1,6}\.\d{1,6})()"), 1, 2),
)  # fmt: skip
_RATE = re.compile(
    r"\b(\d{1,9}(?:,\d{3}){0,3}(?:\.\d{1,6})?) ?(?:tok(?:en)?s?|samples|images?|imgs?|seqs?|examples|rows)"
    r"(?:/| per )s(?:ec(?:ond)?)?\b"
    r"|\b(?:tokens|samples|images|examples)(?:/s(?:ec)?|_per_sec(?:ond)?| per second)\b[ =:]{1,3}"
    r"(\d{1,9}(?:\.\d{1,6})?)",
    re.I,
)
_MEMORY = re.compile(
    r"(?:\b|_)(?:mem|memory)(?:[ _](?:alloc(?:ated)?|reserved|used|usage|peak|max)){0,2}\W{0,3}"
    r"(\d{1,9}(?:\.\d{1,6})?) ?([GM])i?B?\b",
    re.I,
)
_WORLD = re.compile(r"(?i)\b(?:rank|process|worker) \d{1,7}(?: of |/)([1-9]\d{0,6})\b(?![.%])")
_IS_WARNING = re.compile(
    r"\b\w{0,30}[Ww]arning\b|\bWARN(?:ING)?\b|^W\d{4} |\[W\d{3}|\bdeprecated\b|[Ff]all(?:ing|s|en)? ?back"
)
_NUMBER = re.compile(r"(?<![A-Za-z])[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
_MASKS = (
    (re.compile(r"0x[0-9a-f]{4,}|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.I), "<id>"),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?\b"), "<address>"),
    (re.compile(r"(?<![\w<])(?:~|\.{0,2})/[\w.+@-][\w./+@=-]{2,200}"), "<path>"),
    (re.compile(r"\d+(?:\.\d+)*"), "<n>"),
)


def template(text: str) -> str:
    """The message with what differs from run to run masked: numbers, addresses, ids, paths."""
    text = " ".join(text[:600].split())
    for pattern, mask in _MASKS:
        text = pattern.sub(mask, text)
    return text


@dataclass(slots=True)
class _Pace:
    last: int = -1
    loss: str = ""
    memory: float = 0.0
    rates: list[float] = field(default_factory=list)
    took: list[float] = field(default_factory=list)
    stamps: dict[int, int] = field(default_factory=dict)

    def see(self, line: str) -> bool:
        for pattern, number, unit in _TOOK:
            if (found := pattern.search(line)) and len(self.took) < 5_000 and (value := float(found[number])) > 0:
                self.took.append(
                    {"ms": value / 1e3, "s": value, "": value, "s/it": value, "it/s": 1 / value}[found[unit].lower()]
                )
                break
        if loss := _LOSS.search(line):
            self.loss = loss[1]
        step = _STEP.search(line)
        if (step or loss) and len(self.rates) < 5_000 and (rate := _RATE.search(line)):
            self.rates.append(float((rate[1] or rate[2]).replace(",", "")))
        if (step or loss) and (memory := _MEMORY.search(line)):
            self.memory = max(self.memory, float(memory[1]) / (1 if memory[2] in "gG" else 1024))
        if step is None:
            return loss is not None
        self.last = max(self.last, int(step[1]))
        if len(self.stamps) < 5_000 and (stamp := find_stamp(line)) is not None and stamp.utc_ns is not None:
            self.stamps.setdefault(int(step[1]), stamp.utc_ns)
        return True

    def seconds(self) -> float | None:
        """Of a step: as the log says it, else between the clocks of its lines."""
        if len(self.took) >= 3:
            return statistics.median(self.took)
        points = sorted(self.stamps.items())
        gaps = [(b - a) / (n - m) / 1e9 for (m, a), (n, b) in pairwise(points) if n > m and b > a]
        return statistics.median(gaps) if len(gaps) >= 3 else None


def _read_text(found: Settings, source: str, text: str) -> None:
    lines = text.split("\n")
    if _listing(lines, _REQUIREMENT) or _listing(lines, _CONDA_LIST):
        for number, line in enumerate(lines, 1):
            _requirement(found, line, source, number)
        return
    if _listing(lines, re.compile(r"^(?:export |declare -x )?[A-Za-z_]\w*=")):
        for number, line in enumerate(lines, 1):
            _environment(found, line.removeprefix("declare -x "), source, number, "listing")
            _nodes(found, line, source, number)
        return
    _read_log(found, source, lines)


def _listing(lines: Sequence[str], pattern: re.Pattern[str]) -> bool:
    said = [line for line in lines[:2_000] if line.strip() and not line.startswith("#")]
    return len(said) >= 2 and sum(pattern.match(line[:300]) is not None for line in said) >= 0.8 * len(said)


def _read_log(found: Settings, source: str, lines: list[str]) -> None:
    prefixes = Prefixes.of(lines[:400])
    pace, training = _Pace(), False
    stated: dict[str, list[tuple[str, ...]]] = {}
    shown: dict[str, tuple[str, int]] = {}
    block: _Block | None = None
    dumped = _yaml_dumps(lines)
    for number, raw in enumerate(lines, 1):
        if number in dumped:
            found.add("argument", *dumped[number], source, number, part="yaml")
            continue
        line = prefixes.peel(plain(raw[:4_000]).rstrip("\r").rsplit("\r", 1)[-1]).text
        text = _LEAD.sub("", line, count=1)
        if block is not None:
            block = block.feed(found, text, source)
            continue
        if pace.see(line):
            training = True
            continue
        if host := _NCCL_HOST.match(line):
            found.add("hosts", "hosts", host[1], source, number)
            if network := _NETWORK.search(line):
                found.add("statement", "network", network[1], source, number)
        _nodes(found, line, source, number)
        if size := _WORLD.search(line[:500]):
            found.add("world size", "world size", size[1], source, number)
        if _warning(found, line, source, number):
            continue
        for reader in _READERS:
            if reader(found, text, source, number):
                break
        else:
            block = _Block.opened_by(text, number)
            if block is None and not training and len(stated) < 2_000:
                _statement(stated, shown, text, number)
    _say_statements(found, source, stated, shown)
    _say_pace(found, source, pace)


def _yaml_dumps(lines: Sequence[str]) -> dict[int, tuple[str, str]]:
    """Keys and values of configurations that stand in a log as YAML: several lines of it one after the other, at least
    one of them within another."""
    found: dict[int, tuple[str, str]] = {}
    block: list[tuple[int, re.Match[str]]] = []
    for number, line in enumerate([*lines[:_MOST_YAML], "."], 1):
        if (said := _YAML_LINE.match(line.rstrip("\r"))) is not None:
            block.append((number, said))
        elif not line.lstrip().startswith("- "):
            if len(block) >= _LEAST_YAML and any(said[1] for _, said in block):
                found.update(_nested(block))
            block = []
    return found


def _nested(block: Sequence[tuple[int, re.Match[str]]]) -> Iterator[tuple[int, tuple[str, str]]]:
    above: list[tuple[int, str]] = []
    for number, said in block:
        depth = len(said[1])
        while above and above[-1][0] >= depth:
            above.pop()
        if said[3] is None:
            above.append((depth, said[2]))
        else:
            yield number, (".".join([*(name for _, name in above), said[2]]), said[3])


def _nodes(found: Settings, line: str, source: str, number: int) -> None:
    if (listed := _NODES.search(line)) is not None:
        for host in islice(all_of(listed[1]), _MOST_HOSTS):
            found.add("hosts", "hosts", host, source, number)


def _statement(stated: dict[str, list[tuple[str, ...]]], shown: dict[str, tuple[str, int]], text: str, at: int) -> None:
    """A line of words with a few numbers, before the first step: `global batch 64, 32 steps an epoch`."""
    numbers = tuple(_NUMBER.findall(text[:300]))
    if 1 <= len(numbers) <= 4 and len(text) <= 200 and len(re.findall(r"[A-Za-z]{3,}", text)) >= 2:
        text = redact(text)  # before its numbers are masked: what is left of a secret then is one still
        key = template(text)
        stated.setdefault(key, []).append(numbers)
        shown.setdefault(key, (text, at))


def _say_statements(found: Settings, source: str, stated: dict[str, list[tuple[str, ...]]], shown: Any) -> None:
    """Only what every rank said alike: what differs between ranks differs between runs, too."""
    for key, numbers in stated.items():
        if len(set(numbers)) == 1 and "<address>" not in key and "<id>" not in key and "pid" not in key:
            text, line = shown[key]
            found.add("statement", key, text, source, line)


def _say_pace(found: Settings, source: str, pace: _Pace) -> None:
    if pace.last >= 0:
        found.add("pace", "last step", pace.last, source)
    if pace.loss:
        found.add("pace", "last loss", pace.loss, source)
    if (seconds := pace.seconds()) is not None and math.isfinite(seconds):
        found.add("pace", "seconds a step", f"{seconds:.4g}", source)
    if len(pace.rates) >= 3 and (rate := statistics.median(pace.rates)) > 0:
        found.add("pace", "done a second", f"{rate:.6g}", source)
    if pace.memory:
        found.add("pace", "memory in GB", f"{pace.memory:.4g}", source)


def _warning(found: Settings, line: str, source: str, number: int) -> bool:
    if not _IS_WARNING.search(line[:600]):
        return False
    said = re.sub(
        r"^(?:W\d{4} \S+ \d+|\[W\d+[^\]]*\]|\S+\.py:\d+:)\s*(?:\S+\.(?:py|cc|cpp):\d+\]\s*)?", "", _LEAD.sub("", line)
    )
    if len(said) > 12:
        said = redact(said)
        found.add("warning", template(said), said, source, number)
    return True


def _environment(found: Settings, line: str, source: str, number: int, part: str = "log") -> bool:
    if (nccl := _NCCL_ENV.search(line)) is not None:
        found.add("environment", nccl[1], nccl[2], source, number, part="nccl")
        return True
    said = _ASSIGNED.match(line.strip())
    if said is None:
        return False
    several = _SEVERAL.findall(line) if "=" in said[2] else []
    every = part == "listing" or line.startswith(("export ", "+ export "))
    for name, value in several if len(several) > 1 else [(said[1], said[2])]:
        if (every or _OUR_VARIABLES.match(name)) and not _OF_ONE_RUN.match(name):
            found.add("environment", name, value.strip().strip("'\""), source, number, part=part)
    return True


def _revision(found: Settings, text: str, source: str, number: int) -> bool:
    """Of a list of them the first one counts, which is the newest."""
    said = _REVISION.search(text[:300])
    revision = "" if said is None else said[1] or said[2]
    if revision and not revision.isdigit():
        known = found.stated.get(("code", "revision"))
        if known is None or known.source != source:
            found.add("code", "revision", revision[:12], source, number)
    return False


def _launch(found: Settings, line: str, source: str, number: int) -> bool:
    said = _LAUNCH.search(line)
    if said is None or line.lstrip().startswith("#"):
        return False
    words = redact(said[1]).split()[:400]  # before anything is taken apart: the half of an address hides nothing
    program = next((i for i, word in enumerate(words) if re.search(r"\.(?:py|sh)$", word)), len(words))
    found.add(
        "launch",
        "launcher",
        " ".join(w.rsplit("/", 1)[-1] for w in words[:program] if not w.startswith("-"))[:80],
        source,
        number,
    )
    if program < len(words):
        found.add("launch", "program", words[program], source, number)
    for key, value in _flags(words[:program]):
        found.add("launch", key, value, source, number)
    for key, value in _flags(words[program + 1 :]):
        found.add("argument", key.lstrip("-").replace("-", "_"), value, source, number)
    for word in words[:program]:
        _environment(found, word, source, number)
    return True


def _flags(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if (override := _OVERRIDE.fullmatch(word)) is not None:
            yield override[1], override[2]
        if not word.startswith("-") or word == "-":
            continue
        key, equals, value = word.partition("=")
        if not equals and at < len(words) and not re.match(r"-[A-Za-z-]", words[at]):
            value, at = words[at], at + 1
        yield key.replace("_", "-"), value or "given"


def _requirement(found: Settings, line: str, source: str, number: int) -> bool:
    said = _REQUIREMENT.match(line)
    if said is not None:
        name, sign, version = said.groups()
        shown = version if sign.startswith("==") else f"{sign}{version}"
        found.add("version", _package(name), shown, source, number, part="packages")
        return True
    if (listed := _CONDA_LIST.match(line)) is not None:
        found.add("version", _package(listed[1]), listed[2], source, number, part="packages")
        return True
    return False


def _package(name: str) -> str:
    name = name.lower().replace("_", "-")
    return _SAME.get(name, name)


def _versions(found: Settings, text: str, source: str, number: int) -> bool:
    if (env := _COLLECT_ENV.match(text)) is not None:
        short = {"pytorch version": "torch", "nvidia driver version": "driver", "python version": "python"}
        key = short.get(env[1].lower(), env[1].lower())
        found.add("version", key, env[2] or "none", source, number, part="collect_env")
        return True
    if "==" in text and _requirement(found, text, source, number):
        return True
    for name, version in _VERSION.findall(text[:500]):
        found.add("version", _package(name), version.rstrip(".-"), source, number, part="log")
    return False


def _dotted(found: Settings, text: str, source: str, number: int) -> bool:
    said = _DOTTED.match(text)
    if said is None or said[2].startswith(": ("):  # timers
        return False
    if not _VERSION.search(text[:200]) or "version" not in said[1].lower():
        found.add("argument", said[1], said[2].strip() or "none", source, number, part="dotted")
    else:
        _versions(found, text, source, number)
    return True


def _dumped(found: Settings, text: str, source: str, number: int) -> bool:
    """`Namespace(lr=0.1, …)` or `{'lr': 0.1, …}` on one line."""
    start = text.find("{")
    if text.rstrip().endswith("}") and text[start + 1 : start + 2] in ("'", '"'):
        inner = text.rstrip()[start + 1 : -1]
    elif (said := _NAMESPACE.search(text)) is not None:
        inner = said[1].strip().removesuffix(")")
    else:
        return False
    if not inner:
        return False
    for part in _split(inner):
        if entry := _ENTRY.match(part):
            found.add("argument", entry[1], entry[2].strip("'\""), source, number, part="dump")
    return True


def _split(text: str) -> Iterator[str]:
    """At commas outside of quotes and brackets."""
    depth, quote, start = 0, "", 0
    for at, character in enumerate(text[:16_000]):
        if quote:
            quote = "" if character == quote and text[at - 1] != "\\" else quote
        elif character in "'\"":
            quote = character
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        elif character == "," and depth <= 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]


def _listed(found: Settings, text: str, source: str, number: int) -> bool:
    said = _LISTED.match(text) or _TORCHRUN.match(text)
    if said is not None:
        kind = "launch" if said.re is _TORCHRUN else "argument"
        found.add(kind, said[1], said[2].strip().replace(",", ""), source, number, part="listed")
    return said is not None


_READERS: tuple[Callable[[Settings, str, str, int], bool], ...] = (
    _revision, _environment, _launch, _dotted, _dumped, _listed, _versions,
)  # fmt: skip


@dataclass(slots=True)
class _Block:
    """A dump over several lines: `TrainingArguments(` … `)`, or JSON behind `Model config X {`."""

    line: int
    closing: str
    lines: list[str]
    depth: int = 1

    @classmethod
    def opened_by(cls, text: str, line: int) -> _Block | None:
        if re.search(r"\b\w{0,40}(?:Arguments|Args|Config|Namespace)\($", text.rstrip()):
            return cls(line, ")", [])
        if re.search(r"(?i)(?:config\w*|arguments|json|parameters|settings)\b[^{}]{0,60}\{$", text.rstrip()):
            return cls(line, "}", ["{"])
        return None

    def feed(self, found: Settings, text: str, source: str) -> _Block | None:
        self.lines.append(text)
        outside = re.sub(r"\"[^\"\n]*\"|'[^'\n]*'", "", text)
        self.depth += sum(outside.count(c) for c in "([{") - sum(outside.count(c) for c in ")]}")
        if self.depth > 0 and len(self.lines) < _MOST_BLOCK:
            return self
        if self.depth <= 0:
            self._said(found, source)
        return None

    def _said(self, found: Settings, source: str) -> None:
        if self.closing == "}":
            try:
                for key, value in leaves(json.loads("\n".join(self.lines))):
                    found.add("argument", key, value, source, self.line, part="block")
                return
            except (ValueError, RecursionError):
                pass
        for text in self.lines[:-1]:
            if (entry := _ENTRY.match(text)) is not None:
                found.add("argument", entry[1], entry[2].strip("'\""), source, self.line, part="block")
