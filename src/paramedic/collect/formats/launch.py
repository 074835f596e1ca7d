"""Commands → launch sections: the launcher with its options, the program, and the program's own arguments."""

from __future__ import annotations

import json as stdlib_json
import re
from collections.abc import Iterator, Sequence

from paramedic.collect.formats import Entry, Lines, Section, typed, variables
from paramedic.collect.formats.shell import Command, Word, parse

UNKNOWN = "?"
"""The key of words that the script does not say: what is not seen may still be there."""

_FLAGS = {
    "torchrun": {"standalone", "no_python", "m", "module", "run_path", "use_env", "virtual_local_rank"},
    "deepspeed": {
        "no_python", "module", "no_local_rank", "no_ssh", "no_ssh_check", "force_multi", "save_pid",
        "detect_nvlink_pairs",
        "elastic_training", "bind_cores_to_rank",
    },
    "accelerate": {
        "multi_gpu", "cpu", "tpu", "use_deepspeed", "use_fsdp", "use_megatron_lm", "debug", "m", "module",
        "no_python", "quiet",
        "q", "use_parallelism_config", "same_network", "enable_cpu_affinity", "use_cpu", "use_tpu", "ipex",
        "use_xpu", "dynamo_use_fullgraph", "dynamo_use_dynamic", "tpu_cluster", "no_tpu_cluster",
    },
    "srun": {
        "exclusive", "l", "label", "u", "unbuffered", "K", "v", "Q", "overlap", "pty", "contiguous", "s",
        "oversubscribe",
        "no_container_mount_home", "container_writable", "container_mount_home", "exact", "overcommit", "O", "verbose",
        "wait_all_nodes", "spread_job", "whole", "Z", "X", "disable_status", "use_min_nodes", "quiet",
        "container_remap_root",
    },
    "mpirun": {
        "allow_run_as_root", "tag_output", "report_bindings", "oversubscribe", "display_map", "bind_to_none",
        "v", "verbose",
        "q", "nooversubscribe", "use_hwthread_cpus", "output_filename_nodes", "disable_hostname_propagation",
        "l", "timestamp_output",
    },
    "horovodrun": {
        "verbose", "disable_cache", "start_timeout_off", "gloo", "mpi", "use_gloo", "use_mpi", "v", "autotune",
        "no_autotune",
        "log_with_timestamp", "hierarchical_allreduce", "hierarchical_allgather", "check_build",
    },
    "colossalai": set[str](),
    "docker": {"it", "i", "t", "d", "rm", "privileged", "init", "P", "detach", "interactive", "tty", "ti",
    "read_only", "itd", "dit"},
    "python": {"u", "m", "O", "B", "v", "I", "s", "E", "OO"},
    "ray": {"no_wait", "verbose", "v"},
}  # fmt: skip
_SHORT = {
    "srun": {
        "n": "ntasks", "N": "nodes", "c": "cpus_per_task", "p": "partition", "t": "time", "w": "nodelist", "J":
        "job_name",
        "G": "gpus", "o": "output", "e": "error", "l": "label", "A": "account", "x": "exclude",
    },
    "mpirun": {"np": "n", "H": "host", "f": "hostfile", "machinefile": "hostfile", "N": "npernode", "c": "n"},
    "horovodrun": {"np": "num_proc", "n": "num_proc", "H": "hosts"},
    "deepspeed": {"H": "hostfile", "i": "include", "e": "exclude"},
    "colossalai": {"H": "host"},
    "docker": {"v": "volume", "e": "env", "p": "publish", "w": "workdir", "m": "memory"},
}  # fmt: skip
_TWO = {"mpirun": {"x": 1, "mca": 2, "gmca": 2}}
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
_VERBS = {"accelerate": "launch", "colossalai": "run", "docker": "run"}
_SBATCH_SHORT = _SHORT["srun"] | {"d": "dependency", "D": "chdir", "q": "qos", "C": "constraint", "a": "array"}
_SBATCH = re.compile(r"^#SBATCH[ \t]+([^\n]*)", re.M)
_MEGATRON = frozenset(
    (
        "tensor_model_parallel_size", "pipeline_model_parallel_size", "num_attention_heads", "micro_batch_size",
        "global_batch_size", "hidden_size", "num_layers", "max_position_embeddings", "tokenizer_type",
    )
)  # fmt: skip
_TRANSFORMERS = frozenset(
    ("per_device_train_batch_size", "per_device_eval_batch_size", "num_train_epochs", "save_strategy")
)


def sections(text: str) -> Iterator[Section]:
    lines, commands = Lines(text), parse(text)
    batch = [Section("slurm", tuple(found))] if (found := [*_sbatch(text, lines)]) else []
    yield from batch
    if given := [*_variables(commands, lines)]:
        yield Section("environment", tuple(given))
        yield from _cluster_descriptions(given)
    launched = [*_launched(commands, lines, text)]
    yield from launched
    yield from variables.of_launches(batch + launched)


def batch(text: str) -> Iterator[Entry]:
    """What `#SBATCH` lines ask for."""
    return _sbatch(text, Lines(text))


def _launched(commands: Sequence[Command], lines: Lines, raw: str) -> Iterator[Section]:
    number = 0
    for command in commands:
        for section in of_words(command, lines, number, raw):
            yield section
            number += 1


def of_command(words: Sequence[str]) -> tuple[str, tuple[Section, ...]]:
    """A command given as words: its text, and what stands in it."""
    import shlex

    text = shlex.join(words)
    return text, tuple(sections(text))


def of_words(command: Command, lines: Lines, number: int, raw: str) -> Iterator[Section]:
    """`srun … torchrun … train.py …` has two launchers, one inside the other, and a program."""
    at, words = 0, command.words
    outer = command.outer if command.outer in ("srun", "mpirun", "docker") else ""
    while at < len(words):
        name, after = _launcher(words, at)
        if not name:
            at += 1
            continue
        if name == "python" and not _is_program(words, after):
            return
        options, after = _options(words, after, name, lines, "" if command.deferred else raw)
        head = Entry("launcher", name, lines.of(words[at].start), words[at].start, words[at].end, _span(words[at]))
        outside = [Entry("inside", outer, head.line, head.start, head.end, head.whole)] if outer else []
        if name in ("srun", "mpirun", "docker"):
            yield Section(f"launch-{name}", (head, *outside, *options), number)
            at, outer, number = after, name, number + 1
            continue
        program = words[after] if after < len(words) else None
        arguments = [*_arguments(words[after + 1 :], lines)]
        if program is not None:
            options.append(
                Entry("program", program.text, lines.of(program.start), program.start, program.end, _span(program))
            )
        kind = "launch" if name != "python" else "run"
        yield Section(kind, (head, *outside, *options), number)
        if arguments:
            yield Section(_kind_of({entry.key for entry in arguments}), tuple(arguments), number + 1)
        return


def _span(word: Word) -> tuple[int, int]:
    return word.start, word.end


def _is_program(words: Sequence[Word], at: int) -> bool:
    """Not `python -c …`, nor a mere mention of Python."""
    rest = [word.text for word in words[at : at + 3]]
    return any(text is not None and (text.endswith(".py") or text == "-m") for text in rest)


def _launcher(words: Sequence[Word], at: int) -> tuple[str, int]:
    text = words[at].text
    if text is None:
        return "", at
    base = text.rsplit("/", 1)[-1]
    following = words[at + 1].text if at + 1 < len(words) else None
    if base in _VERBS:
        return (base, at + 2) if following == _VERBS[base] else ("", at)
    if base in ("torchrun", "deepspeed", "srun", "horovodrun"):
        return (base, at + 1) if following is not None or at + 1 < len(words) else ("", at)
    if base in ("mpirun", "mpiexec"):
        return "mpirun", at + 1
    if re.fullmatch(r"python[\d.]*", base):
        for ahead in range(at + 1, min(at + 5, len(words) - 1)):
            if words[ahead].text == "-m" and (name := _MODULES.get(words[ahead + 1].text or "")):
                return name, ahead + 2
        return "python", at + 1
    return "", at


def _unexpanded(key: str, word: Word, raw: str) -> list[Entry]:
    """Of a node's rank the text as well: who fills it in, and where, decides."""
    if raw and key in ("node_rank", "machine_rank") and word.text is None:
        return [Entry(f"{key}:text", raw[word.start : word.end], 0)]
    return []


def _options(words: Sequence[Word], at: int, name: str, lines: Lines, raw: str) -> tuple[list[Entry], int]:
    found: list[Entry] = []
    flags, short, two = _FLAGS[name], _SHORT.get(name, {}), _TWO.get(name, {})
    while at < len(words):
        word = words[at]
        if word.text is None and not word.lead.startswith("-"):
            if found or name != "python":  # what it stands for may be options, and may be the program
                found.append(Entry(UNKNOWN, None, lines.of(word.start)))
            at += 1
            continue
        if not word.lead.startswith("-") or word.text == "-":
            break
        if word.text == "--":
            at += 1
            break
        option, equals, value = _split(word)
        bare = option.lstrip("-").replace("-", "_")
        glued = re.fullmatch(r"([A-Za-z])(\d+)", bare) if not option.startswith("--") and name == "srun" else None
        if glued:
            found.append(_entry(short.get(glued[1], glued[1]), glued[2], word, word, lines))
            at += 1
            continue
        key = short.get(bare, bare)
        if equals:
            found.append(_entry(key, value, word, word, lines))
            found += _unexpanded(key, word, raw)
            at += 1
        elif bare in flags or key in flags:
            found.append(Entry(key, True, lines.of(word.start), word.start, word.end, _span(word)))
            at += 1
        else:
            count = two.get(bare, 1)
            taken = words[at + 1 : at + 1 + count]
            text = None if not taken or any(w.text is None for w in taken) else " ".join(str(w.text) for w in taken)
            found.append(_entry(key, text, taken[-1] if taken else word, word, lines))
            found += _unexpanded(key, taken[-1] if taken else word, raw)
            at += 1 + len(taken)
    return found, at


def _split(word: Word) -> tuple[str, bool, str | None]:
    """`--key=value`, where the value may be unknown."""
    option, equals, value = word.lead.partition("=")
    return option, bool(equals), None if word.text is None else value


def _entry(key: str, value: str | None, at: Word, head: Word, lines: Lines) -> Entry:
    start, end = at.start, at.end
    if at is head and value:
        start = max(end - len(value), start)
    return Entry(key, None if value is None else typed(value), lines.of(head.start), start, end, (head.start, at.end))


def _arguments(words: Sequence[Word], lines: Lines) -> Iterator[Entry]:
    """`--key value`, `--key=value`, `--flag`; several values make a list."""
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if word.text is None and not word.lead.startswith("--"):
            yield Entry(UNKNOWN, None, lines.of(word.start))
            continue
        if not word.lead.startswith("--"):
            continue
        option, equals, value = _split(word)
        key = option.lstrip("-").replace("-", "_")
        if equals:
            yield _entry(key, value, word, word, lines)
            continue
        taken: list[Word] = []
        while at < len(words) and not words[at].lead.startswith("--") and (words[at].text is not None or not taken):
            taken.append(words[at])
            at += 1
        yield _argument(key, word, taken, lines)


def _argument(key: str, head: Word, taken: Sequence[Word], lines: Lines) -> Entry:
    line, whole = lines.of(head.start), (head.start, taken[-1].end if taken else head.end)
    if not taken:
        return Entry(key, True, line, head.start, head.end, whole)
    values = [None if word.text is None else typed(word.text) for word in taken]
    value = values[0] if len(values) == 1 else None if None in values else values
    return Entry(key, value, line, taken[0].start, taken[-1].end, whole)


def _kind_of(keys: set[str]) -> str:
    if len(keys & _MEGATRON) >= 3:
        return "megatron"
    return "transformers" if keys & _TRANSFORMERS else "arguments"


_COMMAND = re.compile(r"^[ \t]*[^#\s]", re.M)


def _sbatch(text: str, lines: Lines) -> Iterator[Entry]:
    command = _COMMAND.search(text)
    for found in _SBATCH.finditer(text):
        if command and command.start() < found.start():  # sbatch stops reading there
            yield Entry("after_commands", found[1].strip(), lines.of(found.start()), *found.span(1), found.span())
            continue
        words = list(re.finditer(r"\S+", found[1]))
        at = 0
        while at < len(words):
            raw, base = words[at][0], found.start(1)
            if raw.startswith("#") or not raw.startswith("-"):
                break
            option, equals, value = raw.partition("=")
            bare = option.lstrip("-").replace("-", "_")
            glued = re.fullmatch(r"([A-Za-z])(\d.*)", bare) if not option.startswith("--") else None
            if glued:
                bare, value, equals = glued[1], glued[2], "="
            end = words[at].end()
            start = end - len(value)
            if not equals and at + 1 < len(words) and not words[at + 1][0].startswith(("-", "#")):
                at += 1
                value, start, end = words[at][0], words[at].start(), words[at].end()
            span = (found.start(), found.end())
            at += 1
            key = _SBATCH_SHORT.get(bare, bare) if not option.startswith("--") else bare
            known = None if "$" in value else typed(value.strip("\"'")) if value else True
            yield Entry(key, known, lines.of(found.start()), base + start, base + end, span)


def _variables(commands: Sequence[Command], lines: Lines) -> Iterator[Entry]:
    for command in commands:
        if command.exports or command.words:
            for name, word in command.given:
                whole = (word.start - len(name) - 1, word.end)
                value = None if word.text is None else typed(word.text)
                yield Entry(name, value, lines.of(word.start), word.start, word.end, whole)


def _cluster_descriptions(variables: Sequence[Entry]) -> Iterator[Section]:
    """`TF_CONFIG` is a document of its own."""
    from paramedic.collect.formats.json import parse as parse_json

    for number, entry in enumerate(variables):
        if entry.key == "TF_CONFIG" and isinstance(entry.value, str):
            try:
                stdlib_json.loads(entry.value)
                inner = parse_json(entry.value).entries
            except (ValueError, RecursionError):
                yield Section("tf-config", (Entry("", entry.value, entry.line),), number)
                continue
            yield Section("tf-config", tuple(Entry(e.key, e.value, entry.line) for e in inner), number)
