"""What a line says in words about the job itself, as numbers: how many ranks, which samples, how far apart."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Set

from paramedic.collect.guarded import divides
from paramedic.collect.quantities import BYTES, Value, factor_of, time_of, words_before
from paramedic.regex import regex

_STATED = regex(
    r"\b(?:(?:rank|process|worker|proc|task|member)\W{0,3}(?P<index>\d{1,6}) ?(?:of|/) ?(?P<size>\d{1,6})"
    r"|(?:dist_)?world(?:[_ ]?size)?(?:['\"]?\W{1,4}| \.{3,60} )(?P<world>\d{1,6})"
    r"|rank\W{0,3}\d{1,6},? (?:local[_ ]rank\W{0,3}\d{1,6},? )?size\W{0,3}(?P<ranks>\d{1,6})"
    r"|hvd[._]size(?:\(\))?\W{1,4}(?P<hvd>\d{1,6})"
    r"|process \d{1,6}, total (?P<total>\d{1,6})|(?:GPU number: |training on )(?P<gpus>\d{1,6})(?:$|(?= devices))"
    r"|(?P<replicas>\d{1,6}) replicas in sync|num_replicas_in_sync\W{1,4}(?P<in_sync>\d{1,6})"
    r"|num processes: (?P<processes>\d{1,6}))\b",
    re.I,
)
_LAUNCHED = regex(
    r"\bdist_world_size[=:] ?(?P<dist>\d{1,6})\b|\bdistributed_world_size['\"]?[:=] ?(?P<size>\d{1,6})\b"
    r"|\bSLURM_NTASKS=(?P<tasks>\d{1,6})\b"
    r"|\b(?:accelerate launch|horovodrun|mpirun|mpiexec|deepspeed)\b[^\n]{0,200}? "
    r"(?:--num[_-](?:processes|gpus)[ =]|--?np[ =]|-n )(?P<processes>\d{1,6})\b"
    r"|\b(?:torchrun|torch\.distributed\.(?:run|launch))\b[^\n]{0,200}? --nproc[_-]per[_-]node[ =](?P<local>\d{1,5})\b"
    r"|(?P<several>Setting OMP_NUM_THREADS environment variable for each process)"
)
_TASK = regex(r"\b(?:SLURM_PROCID|OMPI_COMM_WORLD_RANK|PMIX?_RANK)['\"]?[=:] ?['\"]?(\d{1,6})\b")
_NODES = regex(r" --nnodes[ =](\d{1,5})\b")
_SLASHED = regex(r"\d ?/ ?\d")
_PLANNED = regex(
    r"\b(?:plan|planned|expected|expecting|requested|intended|asked for|wanted)\b[^\n.]{0,40}?"
    r"(?:\b(?:ranks|processes|workers|gpus|devices|world[_ ]?size|replicas)['\"]?[ :=]{1,3}(?P<after>\d{1,6})\b"
    r"|\b(?P<before>\d{1,6}) (?:ranks|processes|workers|gpus|devices|replicas)\b)",
    re.I,
)
_DIFFERENCE = regex(
    r"\b(?:param\w*|weights?|replicas?|models?|buffers?)\b[^\n]{0,60}?\b(?:difference|diff|spread|deviation|drift)\b"
    r"(?: (?:to|from|of|between|across|over|with|among)(?: all)? (?:rank \d{1,6}|ranks|replicas|processes|workers))"
    r"\W{1,4}(?:is )?(\d{1,9}(?:\.\d{1,17})?(?:e[-+]?\d{1,3})?)\b",
    re.I,
)
_COUNTED = regex(
    r"\b(?:(\d{1,12}) predictions\b[^\n\d]{1,24}?(\d{1,12}) (?:samples|examples|rows|images|items)"
    r"|(\d{1,12}) (?:samples|examples|images|items|rows) (?:were )?(?:evaluated|scored|predicted)\b[^\n\d]{1,40}?"
    r"(?:set|data|has|of|are)\W[^\n\d]{0,16}(\d{1,12})"
    r"|(?:num[_ ]?)?predictions['\"]?[:=] ?(\d{1,12})\b[^\n\d]{1,12}(?:num[_ ]?)?(?:examples|samples|labels"
    r"|targets)['\"]?[:=] ?"
    r"(\d{1,12})"
    r"|(?:evaluated|gathered|scored) (\d{1,12})(?: [a-z]{1,16})?(?: ?/ ?| of (?:only )?| out of | instead of "
    r"|[^\n\d]{1,24}(?:set size|set has|set of|dataset size|len\(dataset\))[^\n\d]{1,6})(\d{1,12}))\b",
    re.I,
)
_EVALUATED_OF_THEM = regex(
    r"\b(\d{1,12}) (?:samples|examples|images|items|rows|predictions) (?:were )?(?:evaluated|scored|predicted"
    r"|gathered)\b"
    r"|\b(?:evaluated|scored|predicted|gathered)(?: on)? (\d{1,12}) (?:samples|examples|images|items|rows"
    r"|predictions)\b",
    re.I,
)
_DIFFERENT = ("different", "unique", "distinct")
_REPEATED = regex(
    r"\b(?:(\d{1,12}) (?:rows|samples|examples|records|documents|images)(?: (?:were )?(?:read|used|seen|drawn))?"
    r"[ ,;(]{1,3}(?:of them )?(\d{1,12}) (?:different|unique|distinct)\b"
    r"|(?:rows|samples|examples|records|documents|images) (?:read|used|seen|drawn)\W{1,3}(\d{1,12})[ ,;(]{1,3}"
    r"(?:different|unique|distinct)(?: ones)?\W{1,3}(\d{1,12})\b)",
    re.I,
)
_MOVED = regex(
    r"\b(?:largest|max(?:imum)?|total|mean|average) (?:absolute )?change (?:of|in) (?:a |any |the |all )?"
    r"(?:weights?|param\w{0,8})\b[^\n:=]{0,40}[:= ]{1,3}(\d{1,9}(?:\.\d{1,17})?(?:e[-+]?\d{1,3})?)\b",
    re.I,
)
_EFFICIENCY = regex(
    r"\b(?:scaling|parallel|weak[ -]scaling|strong[ -]scaling) efficiency\W{1,4}(\d{1,3}(?:\.\d{1,4})?)( ?%)?", re.I
)
_SMI = regex(r"\| {1,6}(\d{1,7})MiB / {1,3}\d{1,7}MiB \|")
_SCORED_ON = regex(
    r"\b(?:acc\w{0,6}|loss|score|perplexity)\b[ :=]{1,3}[\d.]{1,20}%? (?:over|on|of|for) (\d{1,12})"
    r"(?: (?:of|out of) (\d{1,12}))? (?:rows|samples|examples|images|items)\b",
    re.I,
)
_SHARE = regex(
    r"\b(?:my|own|local|its|share|shard|partition|part|gets|assigned|reads|holds"
    r"|takes)\b[^\n\d]{0,40}?(\d{1,12}) ?(?:of|/|out of) ?"
    r"(\d{1,12}) (?:training |train )?(?:samples|examples|rows|documents|records|images|files|shards)\b",
    re.I,
)
_DATA_SHARE = regex(
    r"\b(\d{1,3}(?:\.\d{1,4})?) ?% (?:of (?:it|the step|the time|step time|time) )?(?:spent )?(?:waiting (?:for"
    r"|on)|in|on|for|loading)? ?"
    r"(?:the )?(?:data\w*|input|loader)\b|\b(?:data|input|loader)(?: (?:wait|time|share"
    r"|stall))?\W{1,3}(\d{1,3}(?:\.\d{1,4})?) ?%",
    re.I,
)
_EXTREMES = regex(
    r"\b(?P<what>[a-z][a-z +/_-]{2,30}?)[ :=_(]{1,3}min(?:imum)?[ :=]{1,3}(?P<least>\d{1,9}(?:\.\d{1,6})?) ?"
    r"(?P<unit>ms|s)?"
    r"(?: \((?:on )?rank \d{1,6}\))?[ ,;|/]{1,4}max(?:imum)?[ :=]{1,3}(?P<most>\d{1,9}(?:\.\d{1,6})?) ?(?:ms|s)?"
    r"(?: \((?:on )?rank (?P<rank>\d{1,6})\))?",
    re.I,
)
_COUNTS = ("predictions", "evaluated", "gathered", "scored", "predicted")
_LOW_AND_HIGH = regex(
    r"\b(?:param\w*|weights?|model)\b[^\n]{0,40}?\b(?:across|over|between|of all) ranks\b[^\n]{0,12}?"
    r"\bmin[ :=]{1,3}(-?\d{1,12}\.\d{1,17}(?:e[-+]?\d{1,3})?)[ ,;|/]{1,4}max[ :=]{1,3}(-?\d{1,12}\.\d{1,17}"
    r"(?:e[-+]?\d{1,3})?)\b",
    re.I,
)
_IN_SYNC = regex(
    r"\b(?:param\w*|weights?|models?|replicas?)\b(?: \w{1,12}){0,3}?[ _](in[_ ]sync|identical|equal|the same"
    r"|synced|consistent"
    r"|differ|out of sync|diverged)(?: (?:across|on|between) (?:all )?(?:ranks|replicas|workers|processes))?"
    r"['\"]?\??[ :=]{1,3}(true|false|yes|no)\b",
    re.I,
)
_UNLIKE = ("differ", "out of sync", "diverged")
_SIZES = ("world", "replicas", "num proc", "gpu number", "training on", ", total ", "size")
_STARTS = (
    "torchrun", "torch.distributed", "accelerate", "deepspeed", "mpirun", "mpiexec", "horovodrun",
    "slurm_ntasks", "omp_num", "dist_world", "distributed_world",
)  # fmt: skip
_GPU_THERE = regex(
    r"\bcuda(?:\.is_available\(\)| is available| available|_available)['\"]?[ :=]{1,3}(?:true|yes|1)\b", re.I
)
_DEVICE = regex(
    r"\b(?:using|training on|running on|selected|model on)? ?device['\"]?[ :=]{1,3}(?:device\(type=')?(cpu|cuda)\b",
    re.I,
)
_BACKEND = regex(r"\bbackend['\"]?[ :=]{1,3}['\"]?(gloo|nccl)\b", re.I)
_ROUND_TRIPS = regex(r"\bMnRtt/Rnk: (\d{1,9}\.\d{1,4})ms/\d{1,6} \| MxRtt/Rnk: (\d{1,9}\.\d{1,4})ms/(\d{1,6})\b")
_IDS = regex(
    r"\b(?:(?:sample|example|row|item|data|batch|doc|document|record)[_ ]?ids?|(?:samples|rows|examples)(?= ?\[)"
    r"|(?:\w{1,12}[_ ])?(?:idx|indices|indexes|queue|permutation|perm|order))['\"]?"
    r"(?: of [a-z ]{1,24})?[ :=]{0,3}(?:tensor\()?[\[(](\d{1,12}(?:,? {1,4}\d{1,12}){2,100})",
    re.I,
)
_LISTED = ("idx", "ind", "ids", "samples [", "rows [", "examples [", "queue", "perm", "order")
_DIGITS = regex(r"\d{1,12}")
_FEW = 4
_RANGE = regex(
    r"\b(?:samples|rows|indices|records|documents|lines|examples|items)\b[ :=]{0,3}[\[(]?(\d{1,12})"
    r"(?: to |\.\.| ?- ?| ?– ?|:|, ?)(\d{1,12})\b",
    re.I,
)
_FILES = regex(
    r"\b(?:reads?|reading|assigned|owns?|takes?|gets?|my|own)\b[^\n\[]{0,40}?\b(?:files?"
    r"|shards?)\b[^\n\[]{0,8}\[([^\]\n]{3,500})\]",
    re.I,
)
_QUOTED = regex(r"['\"]([^'\"\n]{1,120})['\"]")
_LOCAL_OF_TOTAL = regex(
    r"\b(?:local|sharded|own|this rank|optimi[sz]er state)\b[^\n\d]{0,30}?(\d{1,15}(?:,\d{3}){0,4}"
    r"(?:\.\d{1,6})?) ?([kmgt]i?b|[kmb]\b)?"
    r"[^\n\d]{1,24}?\b(?:total|full|whole|global|unsharded)\b[^\n\d]{0,40}?(\d{1,15}(?:,\d{3}){0,4}"
    r"(?:\.\d{1,6})?) ?([kmgt]i?b|[kmb]\b)?",
    re.I,
)
_HELD = regex(
    r"\b(\d{1,15}(?:\.\d{1,6})?)(?: ?(?:[kmgt]i?b|[kmb]|bytes|elements))? of (\d{1,15}(?:\.\d{1,6})?) ?"
    r"(?:(?:[kmgt]i?b|[kmb]|bytes|elements)(?: of)? )?(?:the )?(?:param|weight|optimi[sz]er|state|gradient)",
    re.I,
)
_PART = regex(r"\b(?P<size>\d{1,9}(?:\.\d{1,6})?) ?(?P<unit>[kmgt]i?b|bytes) of (?P<what>param|weight)", re.I)
_OF_ALL = regex(r"\b(?:model|total|full|whole|unsharded)\b", re.I)
_OF_ONE = regex(r"\b(?:rank|holds|keeps|local|shard|per)\b", re.I)
_THROTTLED = regex(
    r"\b(?:quota|throttl\w{1,6})\b[^\n\d]{0,40}?(\d{1,12}) (?:of|out of|/) (\d{1,12})\b"
    r"|\bnr_periods\W{1,4}(?P<periods>\d{1,12})\W{1,4}nr_throttled\W{1,4}(?P<held>\d{1,12})\b",  # cpu.stat of cgroups
    re.I,
)
_NOT_FINITE = regex(
    r"\b(?:non[-_ ]?finite|nan|inf)(?:[-_ ]ranks?| on ranks?)?['\"]?[ :=]{1,3}[\[(](\d{1,6})[\])]", re.I
)
_AMOUNT = r"(\d{1,3}(?:,\d{3}){1,4}|\d{1,12})"
_SET_OF = (
    r"(?:images|samples|examples|records|rows|sequences|documents|docs|clips|utterances|items|videos|pairs|sentences)"
)
_TRAIN_SET = regex(
    rf"\btrain(?:ing)?(?:[ _-]?(?:data ?set|data|set|split))?(?: (?:has|with|size|contains|of))?[ :=(]{{1,4}}"
    rf"{_AMOUNT} {_SET_OF}\b"
    rf"|\b{_AMOUNT} train(?:ing)? {_SET_OF}\b",
    re.I,
)
_TRAIN_LOADER = regex(
    r"\btrain(?:ing)?[ _-]?(?:data[ _-]?)?loader\b[^\n\d]{0,24}?(\d{1,12}) "
    r"(?:mini-?)?(?:batches|steps|iterations|iters)\b"
    r"|\b(\d{1,12}) (?:train(?:ing)? )?(?:mini-?)?(?:batches|steps|iterations|iters)"
    r"(?: ?/ ?| per | in (?:an |each |one |the )?| an | each )epoch\b",
    re.I,
)
_NOT_ALL = regex(
    r"\b(?:rank|shard|sharded|local|own|per|each|part|this|val|valid|validation|test|eval\w{0,7}|dev)\b", re.I
)
"""Before or behind a number: it is a part, or another set."""
_EACH_BATCH = regex(
    r"\b(?:batch(?:[ _]size)?|bs|bsz)[ :=]{1,3}(\d{1,7}) ?(?:/ ?|per |on each |x ?)(?:gpu|device|rank|process|card)\b",
    re.I,
)
_LOADING = ("loader", "epoch", "train")
_BATCHES = ("batch", "bs")
_PLANS = ("plan", "expect", "request", "intended", "wanted", "asked")
_OF_WEIGHTS = ("param", "weight", "optimi", "shard")
_PROCESSORS = ("cuda", "cpu", "gpu")
_UNLIKENESS = ("diff", "spread", "deviat", "drift", "across ranks", "sync", "identical")


_KINDS = ("classes", "categories", "labels", "vocab")
_VOCABULARY = regex(
    r"\b(\d{1,3}(?:,\d{3}){1,3}|\d{1,9}) "
    r"(?:classes|categories|labels|(?:words|entries|tokens) in (?:the )?vocab\w{0,6})\b"
    r"|\b(?:(?:num|n)[_ ]?(?:classes|labels|categories)|vocab(?:ulary)?(?:[_ ]size)?)\W{1,3}"
    r"(\d{1,3}(?:,\d{3}){1,3}|\d{1,9})\b(?![.%])",
    re.I,
)
"""How many kinds of things a model tells apart: what its first or last layer is as wide as."""
_SAVES = ("sav", "checkpoint", "ckpt")
_SAVE_TIME = regex(
    r"\b(?:sav(?:e|ed|ing)|checkpoint(?:ing|ed)?|ckpt)\b[^\n]{0,160}?"
    r"\b(?:duration|took|takes|in|time|elapsed)\W{1,3}(\d{1,6}(?:\.\d{1,6})?) ?(ms|s|secs?|seconds)\b",
    re.I,
)
_RESTORED = regex(
    r"\brestored all states from the checkpoint(?: file)?(?: at)? (?P<all>\S{1,400})"
    r"|\bresum(?:ed|ing)(?: training)? from(?: (?:the )?(?:checkpoint|ckpt))?(?: at| path)?[ :=]{1,3}"
    r"['\"]?(?P<file>\S{1,400})",
    re.I,
)
_SAVED_EPOCH = regex(r"(?<![a-z])epoch[=_-]?(\d{1,6})(?!\d)", re.I)
_SAVED_STEP = regex(
    r"(?<![a-z])(?:global[_-]?)?(?:step|iter(?:ation)?)s?[=_-]?(\d{1,9})(?!\d)|^checkpoint-(\d{1,9})$", re.I
)
WORDS = (
    *_SAVES, *_KINDS,
    *_LOADING, *_BATCHES, *_COUNTS, *_SIZES, *_STARTS, *_PLANS, *_DIFFERENT, *_LISTED, *_UNLIKENESS, *_OF_WEIGHTS,
    *_PROCESSORS, " of ", " on ", " over ", "/", "%", "change", "throttl", "quota", "finite", "nan", "efficiency",
    "max", "min", "backend", "file",
)  # fmt: skip


def statements(text: str, low: str, present: Set[str], labelled: bool) -> list[Value]:
    """What a line says in words about the job itself, as numbers; `present` are those of `WORDS` that stand in it."""
    values = [*_of_job(text, low, present)]
    of = " of " in present
    if not present.isdisjoint(_UNLIKENESS):
        values += _apart(text)
    if not present.isdisjoint(_COUNTS) and (found := _COUNTED.search(text)):
        count, whole = [part for part in found.groups() if part]
        values += _ratio("counted", count, whole)
    if "change" in present and (found := _MOVED.search(text)):
        values.append(Value("moved", float(found[1])))
    if ("throttl" in present or "quota" in present) and (found := _THROTTLED.search(text)):
        values += _ratio("throttled", found[1] or found["held"], found[2] or found["periods"])
    if not present.isdisjoint(_OF_WEIGHTS):
        values += (_held(text) if of else []) or _local_of_total(text)
    if ("finite" in present or "nan" in present) and (found := _NOT_FINITE.search(text)):
        values.append(Value("nonfinite rank", float(found[1])))
    if "efficiency" in present and (found := _EFFICIENCY.search(text)):
        values.append(Value("efficiency", float(found[1]) / (100 if found[2] or float(found[1]) > 1.5 else 1)))
    if "MiB /" in text and (found := _SMI.search(text)):
        values.append(Value("memory device", float(found[1]) * BYTES["mib"], "bytes"))
    if not present.isdisjoint(_COUNTS) and (found := _EVALUATED_OF_THEM.search(text)):
        values.append(Value("evaluated", float(found[1] or found[2])))
    if "%" in present and (found := _DATA_SHARE.search(text)):
        values.append(Value("data_share", float(found[1] or found[2]) / 100))
    if "max" in present and "min" in present:
        values += _extremes(text)
    if "Rtt/Rnk" in text and (found := _ROUND_TRIPS.search(text)):
        values += [
            Value("fastest round", float(found[1]) / 1e3, "s"),
            Value("slowest round", float(found[2]) / 1e3, "s"),
        ]
        values.append(Value("slowest_rank", float(found[3])))
    of_loaders = () if labelled else _of_loaders(text, present)
    of_samples = [*_of_samples(text, present), *_of_kinds(text, present)]
    return [*values, *of_loaders, *of_samples, *_saving(text, present), *_read_by_rank(text, present, labelled)]


def restored(text: str, present: Set[str]) -> list[Value]:
    """The place in training that a file is named after, where a line says that training goes on from it: Lightning's
    `Restored all states from the checkpoint at …/epoch=11-step=18768.ckpt`."""
    found = None if present.isdisjoint(("restor", "resum")) else _RESTORED.search(text)
    if found is None:
        return []
    name = (found["all"] or found["file"]).rstrip("/.,;:'\")]").rpartition("/")[2]
    epoch, step = _SAVED_EPOCH.search(name), _SAVED_STEP.search(name)
    of_step = [Value("restored_step", float(step[1] or step[2]))] if step else []
    return [Value("restored_epoch", float(epoch[1])), *of_step] if epoch else of_step


def _saving(text: str, present: Set[str]) -> list[Value]:
    """How long it took to save."""
    found = None if present.isdisjoint(_SAVES) else _SAVE_TIME.search(text)
    return [Value("save_time", float(found[1]) * factor_of(found[2].lower()), "s")] if found else []


def _of_samples(text: str, present: Set[str]) -> list[Value]:
    """Of how many samples a result is, and how often each of them was read."""
    values: list[Value] = []
    if (" on " in present or " over " in present) and (found := _SCORED_ON.search(text)):
        values.append(Value("scored", float(found[1])))
        values += _ratio("scored_part", found[1], found[2]) if found[2] else []
    if not present.isdisjoint(_DIFFERENT) and (found := _REPEATED.search(text)):
        values += _ratio("repeated", found[1] or found[3], found[2] or found[4])
    return values


def _of_kinds(text: str, present: Set[str]) -> list[Value]:
    found = None if present.isdisjoint(_KINDS) else _VOCABULARY.search(text)
    return [Value("vocabulary", float((found[1] or found[2]).replace(",", "")))] if found else []


def _of_loaders(text: str, present: Set[str]) -> Iterator[Value]:
    """How much a training set has, in how many batches an epoch goes through it, and how large a rank's batch is."""
    if "train" in present and (found := _TRAIN_SET.search(text)) is not None and _of_all(text, found):
        yield Value("samples", float((found[1] or found[2]).replace(",", "")))
    if not present.isdisjoint(_LOADING) and (found := _TRAIN_LOADER.search(text)) is not None and _of_all(text, found):
        yield Value("epoch_steps", float(found[1] or found[2]))
    if not present.isdisjoint(_BATCHES) and (found := _EACH_BATCH.search(text)) is not None:
        yield Value("device_batch", float(found[1]))


def _of_all(text: str, found: re.Match[str]) -> bool:
    """Nothing beside it says that it is of one rank, or of what is held out."""
    return not _NOT_ALL.search(text, max(found.start() - 40, 0), found.start()) and not _OF_A_RANK.match(
        text, found.end()
    )


_OF_A_RANK = regex(
    r" (?:per|on (?:each|this|every)|for (?:each|this)|of this) ?(?:rank|gpu|process|worker|shard)", re.I
)


def _of_job(text: str, low: str, present: Set[str]) -> Iterator[Value]:
    """How many ranks there are, were started and were meant; on which kind of device, over which backend."""
    if "not using distributed mode" in low:
        yield Value("world", 1.0)
    stated = (
        " of " in present
        or not present.isdisjoint(_SIZES)
        or ("/" in present and divides(text) and _SLASHED.search(low))
    )
    if stated and "dist_world" not in low and (found := _STATED.search(text)):
        yield Value("world", float(next(part for name, part in found.groupdict().items() if part and name != "index")))
    if not present.isdisjoint(_STARTS) and (found := _LAUNCHED.search(text)):
        nodes = _NODES.search(text) if found["local"] else None
        if found["several"]:
            yield Value("several", 1.0)
        else:
            size = int(next(part for part in found.groups() if part))
            yield Value("launched", float(size * int(nodes[1] if nodes else 1)))
    if ("_PROCID" in text or "_RANK" in text) and (found := _TASK.search(text)):
        yield Value("task", float(found[1]))
    if not present.isdisjoint(_PLANS) and (found := _PLANNED.search(text)):
        yield Value("planned", float(found["after"] or found["before"]))
    if not present.isdisjoint(_PROCESSORS):
        if _GPU_THERE.search(text):
            yield Value("gpu_there", 1.0)
        if (found := _DEVICE.search(text)) is not None:
            yield Value("on_gpu", float(found[1].lower() != "cpu"))
    if "backend" in present and (found := _BACKEND.search(text)) is not None:
        yield Value("backend", float(found[1].lower() == "gloo"))


def _extremes(text: str) -> list[Value]:
    """`compute min 97.1 ms (rank 0) max 310.2 ms (rank 3)`: of all ranks, where one is named or the line says so."""
    found = _EXTREMES.search(text)
    if found is None or not (found["rank"] or "ranks" in text):
        return []
    unit = (found["unit"] or "s").lower()
    what = time_of(words_before(found["what"], unit)[0], "")
    if not what:
        return []
    values = [Value(f"fastest {what}", float(found["least"]) * factor_of(unit), "s")]
    values.append(Value(f"slowest {what}", float(found["most"]) * factor_of(unit), "s"))
    return [*values, Value("slowest_rank", float(found["rank"]))] if found["rank"] else values


def _apart(text: str) -> list[Value]:
    if (found := _DIFFERENCE.search(text)) is not None:
        return [Value("apart", float(found[1]))]
    if (found := _LOW_AND_HIGH.search(text)) is not None:
        low, high = float(found[1]), float(found[2])
        return _ratio("apart", str(abs(high - low)), str(max(abs(low), abs(high))))
    if (found := _IN_SYNC.search(text)) is not None:
        return [Value("apart", float((found[2].lower() in ("false", "no")) != (found[1].lower() in _UNLIKE)))]
    return []


def _read_by_rank(text: str, present: Set[str], labelled: bool) -> Iterator[Value]:
    """Which samples: as a number for each list, as a pair for a range, as a number for each file."""
    if not present.isdisjoint(_LISTED) and (found := _IDS.search(text)) is not None:
        ids = [int(word) for word in _DIGITS.findall(found[1])]
        if len(ids) >= _FEW:
            yield Value("ids shuffled" if ids != sorted(ids) else "ids", float(zlib.crc32(repr(ids).encode())))
    if not labelled and (found := _SHARE.search(text)) is not None:
        yield from _ratio("share", found[1], found[2])
    if not labelled and (found := _RANGE.search(text)) is not None and int(found[1]) < int(found[2]):
        yield from (Value("range_start", float(found[1])), Value("range_end", float(found[2])))
    if not labelled and ("shard" in present or "file" in present) and (found := _FILES.search(text)) is not None:
        for name in _QUOTED.findall(found[1]):
            yield Value("reads", float(zlib.crc32(name.encode())))


def _ratio(name: str, part: str, whole: str) -> list[Value]:
    return [Value(name, float(part) / float(whole))] if float(whole) else []


def _local_of_total(text: str) -> list[Value]:
    """`local parameters: 31,109,952 / total parameters: 124,439,808`, in any unit that both share."""
    if (shard := _SHARD.search(text)) is not None:
        return _ratio("held", shard[1].replace(",", ""), shard[2].replace(",", ""))
    found = _LOCAL_OF_TOTAL.search(text)
    if found is None or (found[2] or "").lower() != (found[4] or "").lower():
        return []
    return _ratio("held", found[1].replace(",", ""), found[3].replace(",", ""))


_SHARD = regex(
    r"\b(?:shard(?:ed)?[ _](?:numel|size|params?|parameters)|param\w* (?:on|of|in|held by) (?:this|each"
    r"|the local) (?:rank|shard|device|gpu))"
    r"\W{1,3}(\d[\d,]{0,20}) ?(?:/|of|out of) ?(\d[\d,]{0,20})\b",
    re.I,
)


def _held(text: str) -> list[Value]:
    if (found := _HELD.search(text)) is not None:
        return _ratio("held", found[1], found[2])
    if (found := _PART.search(text)) is None:
        return []
    size = float(found["size"]) * BYTES[found["unit"].lower()]
    whose = text[max(found.start() - 40, 0) : found.start()]
    if _OF_ONE.search(whose):
        return [Value("held_bytes", size, "bytes")]
    return [Value("model_bytes", size, "bytes")] if _OF_ALL.search(whose) else []
