"""What one line says in numbers: at which step, and which quantities, by one name whatever a framework calls them."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

_MAX_NAME = 64
_NUMBER = re.compile(
    r"(?<![\w.#/@-])(?P<value>[-+]?(?:\d{1,3}(?:,\d{3}){1,4}|\d{1,45})(?:\.\d{0,20})?(?:e[-+]?\d{1,3})?"
    r"|[-+]?(?:nan|inf)\b(?:\.0\b)?)"
    r"(?:[ ]?(?P<unit>%|(?:[kmgt]i?b|bytes)\b|[mg]\b|"
    r"(?:milliseconds?|seconds?|secs?|ms|us|µs|ns|s)\b(?:/(?:it|iter|iteration|step|batch|epoch|update)\b)?|"
    r"(?:samples?|tokens?|tok|images?|imgs?|examples?|seqs?|sequences|words|steps?|batches|iterations?|iters?|it)"
    r"(?:/| per )s(?:ec(?:ond)?)?\b(?![ :=]{1,3}\d)|"
    r"(?:words|tokens|documents|sequences)\b(?! per |/|[ :=]{1,3}\d)))?(?![A-Za-z0-9_]|\.\d)",
    re.I,
)
_BAR = re.compile(r"(?:^|[\s|])(\d{1,9})/(\d{1,9}) (?:\[\d|- \d|[━=>.]{3})")
# mmengine, torchvision, timm and the examples of PyTorch: the place in an epoch stands in brackets
_PLACE = re.compile(
    r"\b(?:epoch|train(?: epoch)?|training)(?:\(train\))?:?\s{0,4}\[?(?P<epoch>\d{1,7})\]?\s{1,4}?"
    r"\[\s{0,8}(?P<step>\d{1,9})\s?/\s?\d{1,9}"
    r"|\b(?:epoch|train)(?:\(train\))?:?\s{0,4}\[(?P<epoch_>\d{1,7})\]\[\s{0,8}(?P<step_>\d{1,9})\s?/\s?\d{1,9}"
    r"|\biter(?:\(train\))? {0,4}\[\s{0,8}(?P<iter>\d{1,9})/\d{1,9}\]"
    r"|^\W{0,3}\[\s{0,6}(?P<first>\d{1,9})/\d{1,9}\]\s"
    r"|^\[(?P<pair>\d{1,6}),\s{1,6}(?P<batch>\d{1,9})\] (?:train )?loss",
    re.I,
)
_CUT = re.compile(r"[|,;{}\[\]\t]| - ")
_SLASH = re.compile(r"/(?!s(?:ec(?:ond)?)?\b)")
_NOT_WORD = re.compile(r"[^a-z/%+ ]+")
_UNIT_IN_NAME = re.compile(
    r"\((ms|s|sec|seconds|[kmgt]i?b|bytes)\)\W{0,3}$|[_. ](ms|us|ns|secs?|seconds|[mg]i?b)['\"]?\W{0,3}$"
    r"|_(s)['\"]?\W{0,3}$",
    re.I,
)
_UNIT_OF_LINE = re.compile(r"\btimes? \((ms|s)\) \|", re.I)
_OF_ALL_SAMPLES = re.compile(r" ?/ ?(\d{1,12})\b(?!\.)")
_OUT_OF = re.compile(r" ?/ ?\d{1,7}(?:\.\d{1,6})? ?([kmgt]i?b)\b", re.I)

_BYTES = {"bytes": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12}
_BYTES |= {"m": float(1 << 20), "g": float(1 << 30)}
_BYTES |= {"kib": float(1 << 10), "mib": float(1 << 20), "gib": float(1 << 30), "tib": float(1 << 40)}
_SECONDS = {"s": 1.0, "sec": 1.0, "secs": 1.0, "second": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}
_SECONDS |= {"millisecond": 1e-3, "milliseconds": 1e-3, "ns": 1e-9}
_NOUNS = ("words", "tokens", "documents", "sequences")

_TIME_OF = re.compile(r"t (forward|backward|fwd|bwd|compute|sync|wait|data|comm)")
_QUALIFIED = re.compile(
    r"(.{0,40}\b(?:loss|acc|accuracy|grad norm|ppl)) (local|own|global|mean|avg|averaged?|reduced|synced|overall"
    r"|all ranks)"
)
_LABEL = re.compile(r"(?:^| )(step|iteration|iter|updates?|epoch|batch)$")
_NOT_LABEL = re.compile(
    r"\b(?:total|max(?:imum)?|warm ?up|number of|per|save|eval\w*|log|logging|every|accum\w*|decay|optimi[sz]ation|left"
    r"|remaining|micro|global(?= batch)|mini|size)\b"
)
_LOSS = re.compile(r"(?:^| )(?:loss(?: step| epoch| value)?|xent|nll)$")
_EVALUATED = re.compile(r"\b(?:eval|evaluation|val|valid|validation|test|held ?out|dev) loss(?: step| epoch| value)?$")
_OF_EVALUATION = re.compile(r"[^\n\w]{0,8}(?:test|val|valid|validation|eval|evaluation|epoch\(val\))\b(?! loss)", re.I)
_OTHER_LOSS = re.compile(r"\b(?:aux|auxiliary|z|kl|router|balancing|policy|value|critic|actor|lowest|scaled) loss\b")
_GRADIENT = re.compile(r"(?:^| )(?:grad(?:ient)?s? (?:total |global |l )?norm|gnorm)$")
_LOCAL = re.compile(r"\b(?:own|local|shard|sharded|raw|unreduced|partial|per rank|this rank)\b")
_JOINT = re.compile(
    r"\b(?:global|(?:all )?reduced|overall|aggregated?|(?:across|over|of) (?:all )?ranks|all ranks|synced|gathered"
    r"|mean|avg"
    r"|averaged?)\b"
)
_OWN = re.compile(
    r"\b(?:own|local|shard|sharded|data|batch|input|file|sample|raw|unreduced|grad|gradients?|partial|latency|time"
    r"|memory"
    r"|updates?|delta|size|decay|running|bn|batch ?norm|buffers?)\b"
)
"""A rank's own; and buffers, which each rank has changed once more since they were last made equal."""
_STATE = re.compile(
    r"\b((?:param(?:eter)?s?|weights?|model|embeddings?|replica|state|theta|bias|kernel)(?: [a-z]+)? "
    r"(?:norm|sum|checksum|hash|digest|fingerprint|signature|mean|crc|l)|"
    r"(?:norm|sum|checksum|hash|digest|fingerprint|mean) of (?:[a-z]+ ){0,2}"
    r"(?:param(?:eter)?s?|weights?|model|norms?|matrix|embeddings?|layers?|replica)|w norm|"
    r"^(?:checksum|fingerprint))(?: to| is)?$"
)
_HASH = re.compile(
    r"(?P<name>[a-z_ ]{0,40}(?:checksum|hash|md5|sha1|sha256|crc32|crc|digest|fingerprint|signature))\W{1,4}(?:0x)?"
    r"(?P<value>(?=[0-9]{0,63}[a-f])[0-9a-f]{6,64})\b",
    re.I,
)
_MEMORY = re.compile(
    r"(?:^| )((?:(?:max|peak|gpu|cuda|host|cpu|device|allocated|reserved|resident|used|current) ){0,3}"
    r"(?:(?:mem(?:ory)?|vram|ram)(?: (?:allocated|reserved|used|usage|in use|consumption))?|(?:max|vm)?rss|uss"
    r"|resident(?: set(?: size)?)?|footprint"
    r"|allocated|alloc)|cuda gb allocated)(?: is)?$|^(ma|ca)$"
)
_FREE = re.compile(r"(?:^| )(?:gb free|(?:gpu |cuda |device |host )?(?:free mem(?:ory)?|mem(?:ory)? free))$")
_NOT_USED = re.compile(r"\b(?:free|total|available|limit|shared|saved|estimated|required)\b")
_WAITING = re.compile(
    r"(?:^| )(?:all ?reduce|all ?gather|reduce scatter|sync\w*|wait\w*|comm\w*|barrier|collectives?|idle|blocked)"
    r"(?: time| for(?: \w{1,12})?)?(?: took)?$"
)
_READING = re.compile(
    r"(?:^| )(?:data|input|loader|data ?load\w*|batch load\w*|load\w* batch|fetch\w*|batch generator|data iter\w*"
    r"|next batch)"
    r"(?: wait\w*)?(?: time)?(?: took)?$|(?:^| )wait\w* (?:for|on) (?:the )?(?:data\w*|input|loader|batch)(?: took)?$"
)
_COMPUTING = re.compile(
    r"(?:^| )((?:forward|fwd)(?: ?\+ ?| and | )(?:backward|bwd)|(?:forward|backward) compute|bwd inner|forward"
    r"|backward|fwd|bwd"
    r"|comput\w+|busy|own work|working)(?: microstep)?(?: times?| pass)?(?: took)?$"
)
_ALL_REDUCING = re.compile(r"(?:^| )(?:bwd )?all ?reduce microstep$")
_STEPPING = re.compile(
    r"(?:^| )(?:step|iter|iteration|update|batch)(?: time| took)?$|^(?:time|dt|took|elapsed)$|time per iteration$"
)
_THROUGHPUT = re.compile(
    r"(?:^| )(?:tps|throughput|(?:samples?|tokens?|tok|steps?|images?|it|seqs?|sequences)"
    r"(?: per sec(?:ond)?|/s(?:ec(?:ond)?)?))$"
)
_BY_DDP = re.compile(r"^avg (?:forward|backward) (?:compute|comm) time$")
_AVERAGED = re.compile(r"\b(?:mean|avg|average|median|usual)\b")
_NAMED_TIME = re.compile(r"(?:^| )(?:time|took)$")
_NO_DURATION = re.compile(
    r"\b(?:eta|wall|total|start|end|left|remaining|train|run|epoch|elapsed|stamp|last|max|min|date)\b"
)
_EXPECTED = re.compile(r"\b(?:expected|baseline|target|reference)\b")
_WORK = re.compile(r"(?:^| )(words|tokens|documents|sequence length|seq len)$")
_CUMULATIVE = re.compile(r"\b(?:consumed|total|global|seen|processed|so far)\b")
_SCORE = re.compile(r"(?:^| )(accuracy|acc|top|perplexity|ppl|bleu)$")
_SCALE = re.compile(r"(?:^| )(?:(?:loss|grad|gradient) )?scale(?:r)?(?: to| is)?$|^reducing to$")
_ATTEMPTED = re.compile(r"^attempted\b|\battempted loss scale\b")
_SKIPPED_NOW = re.compile(r"(?:^| )skipped iterations$")  # since the last such line
_SKIPPED = re.compile(r"(?:^| )skipped(?: steps)?$")
_BATCH_SUM = re.compile(r"(?:^| )(?:batch|inputs?|data|x)(?: [a-z]+)? (?:checksum|hash|sum|mean|digest|crc)$")
_SAMPLES = re.compile(
    r"(?:^| )(?:train(?:ing)? )?(?:samples|examples)$|(?:^| )(?:train(?:ing)? )?(?:dataset|data set) (?:size|len\w*)$"
)
_NOT_ALL_SAMPLES = re.compile(r"\b(?:per|eval\w*|val\w*|test|consumed|seen|predict\w*|local|this|own|shard|on)\b")
_DEVICE_BATCH = re.compile(
    r"(?:^| )batch size (?:per|on each) (?:device|gpu|rank|process|replica|worker)$"
    r"|(?:^| )(?:per (?:device|gpu|rank|process)|local)(?: train)? batch(?: size)?$"
)
_WHOLE_BATCH = re.compile(r"(?:^| )(?:total|global|effective)(?: train)? batch size$|^distributed accumulation$")
_ACCUMULATED = re.compile(r"(?:^| )grad(?:ient)? accumulation(?: steps)?$")
_EPOCH_STEPS = re.compile(
    r"(?:^| )(?:steps|batches|iterations|iters) (?:per|in each|an) epoch$|(?:^| )len train ?(?:data)? ?loader$"
)
_RATE = re.compile(r"(?:^| )(?:lrs?|learning rates?)(?: to| is)?$")

_STATED = re.compile(
    r"\b(?:(?:rank|process|worker|proc|task|member)\W{0,3}(?P<index>\d{1,6}) ?(?:of|/) ?(?P<size>\d{1,6})"
    r"|(?:dist_)?world[_ ]?size['\"]?\W{1,4}(?P<world>\d{1,6})"
    r"|rank\W{0,3}\d{1,6},? (?:local[_ ]rank\W{0,3}\d{1,6},? )?size\W{0,3}(?P<ranks>\d{1,6})"
    r"|hvd\.size\(\)\W{1,4}(?P<hvd>\d{1,6})"
    r"|process \d{1,6}, total (?P<total>\d{1,6})|(?:GPU number: |training on )(?P<gpus>\d{1,6})(?:$|(?= devices))"
    r"|(?P<replicas>\d{1,6}) replicas in sync|num processes: (?P<processes>\d{1,6}))\b",
    re.I,
)
_LAUNCHED = re.compile(
    r"\bdist_world_size[=:] ?(?P<dist>\d{1,6})\b|\bdistributed_world_size['\"]?[:=] ?(?P<size>\d{1,6})\b"
    r"|\bSLURM_NTASKS=(?P<tasks>\d{1,6})\b"
    r"|\b(?:accelerate launch|horovodrun|mpirun|mpiexec|deepspeed)\b[^\n]{0,200}? "
    r"(?:--num[_-](?:processes|gpus)[ =]|--?np[ =]|-n )(?P<processes>\d{1,6})\b"
    r"|\b(?:torchrun|torch\.distributed\.(?:run|launch))\b[^\n]{0,200}? --nproc[_-]per[_-]node[ =](?P<local>\d{1,5})\b"
    r"|(?P<several>Setting OMP_NUM_THREADS environment variable for each process)"
)
_NODES = re.compile(r" --nnodes[ =](\d{1,5})\b")
_SLASHED = re.compile(r"\d ?/ ?\d")
_PLANNED = re.compile(
    r"\b(?:plan|planned|expected|expecting|requested|intended|asked for|wanted)\b[^\n.]{0,40}?"
    r"(?:\b(?:ranks|processes|workers|gpus|devices|world[_ ]?size|replicas)['\"]?[ :=]{1,3}(?P<after>\d{1,6})\b"
    r"|\b(?P<before>\d{1,6}) (?:ranks|processes|workers|gpus|devices|replicas)\b)",
    re.I,
)
_DIFFERENCE = re.compile(
    r"\b(?:param\w*|weights?|replicas?|models?|buffers?)\b[^\n]{0,60}?\b(?:difference|diff|spread|deviation|drift)\b"
    r"(?: (?:to|from|of|between|across|over|with|among)(?: all)? (?:rank \d{1,6}|ranks|replicas|processes|workers))"
    r"\W{1,4}(?:is )?(\d{1,9}(?:\.\d{1,17})?(?:e[-+]?\d{1,3})?)\b",
    re.I,
)
_COUNTED = re.compile(
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
_EVALUATED_OF_THEM = re.compile(
    r"\b(\d{1,12}) (?:samples|examples|images|items|rows|predictions) (?:were )?(?:evaluated|scored|predicted"
    r"|gathered)\b"
    r"|\b(?:evaluated|scored|predicted|gathered)(?: on)? (\d{1,12}) (?:samples|examples|images|items|rows"
    r"|predictions)\b",
    re.I,
)
_EFFICIENCY = re.compile(
    r"\b(?:scaling|parallel|weak[ -]scaling|strong[ -]scaling) efficiency\W{1,4}(\d{1,3}(?:\.\d{1,4})?)( ?%)?", re.I
)
_SMI = re.compile(r"\| {1,6}(\d{1,7})MiB / {1,3}\d{1,7}MiB \|")
_SHARE = re.compile(
    r"\b(?:my|own|local|its|share|shard|partition|part|gets|assigned|reads|holds"
    r"|takes)\b[^\n\d]{0,40}?(\d{1,12}) ?(?:of|/|out of) ?"
    r"(\d{1,12}) (?:training |train )?(?:samples|examples|rows|documents|records|images|files|shards)\b",
    re.I,
)
_DATA_SHARE = re.compile(
    r"\b(\d{1,3}(?:\.\d{1,4})?) ?% (?:of (?:it|the step|the time|step time|time) )?(?:spent )?(?:waiting (?:for"
    r"|on)|in|on|for|loading)? ?"
    r"(?:the )?(?:data\w*|input|loader)\b|\b(?:data|input|loader)(?: (?:wait|time|share"
    r"|stall))?\W{1,3}(\d{1,3}(?:\.\d{1,4})?) ?%",
    re.I,
)
_EXTREMES = re.compile(
    r"\b(?P<what>[a-z][a-z +/_-]{2,30}?)[ :=_(]{1,3}min(?:imum)?[ :=]{1,3}(?P<least>\d{1,9}(?:\.\d{1,6})?) ?"
    r"(?P<unit>ms|s)?"
    r"(?: \((?:on )?rank \d{1,6}\))?[ ,;|/]{1,4}max(?:imum)?[ :=]{1,3}(?P<most>\d{1,9}(?:\.\d{1,6})?) ?(?:ms|s)?"
    r"(?: \((?:on )?rank (?P<rank>\d{1,6})\))?",
    re.I,
)
_COUNTS = ("predictions", "evaluated", "gathered", "scored", "predicted")
_LOW_AND_HIGH = re.compile(
    r"\b(?:param\w*|weights?|model)\b[^\n]{0,40}?\b(?:across|over|between|of all) ranks\b[^\n]{0,12}?"
    r"\bmin[ :=]{1,3}(-?\d{1,12}\.\d{1,17}(?:e[-+]?\d{1,3})?)[ ,;|/]{1,4}max[ :=]{1,3}(-?\d{1,12}\.\d{1,17}"
    r"(?:e[-+]?\d{1,3})?)\b",
    re.I,
)
_IN_SYNC = re.compile(
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
    "SLURM_NTASKS", "OMP_NUM", "dist_world", "distributed_world",
)  # fmt: skip
_GPU_THERE = re.compile(
    r"\bcuda(?:\.is_available\(\)| is available| available|_available)['\"]?[ :=]{1,3}(?:true|yes|1)\b", re.I
)
_DEVICE = re.compile(
    r"\b(?:using|training on|running on|selected|model on)? ?device['\"]?[ :=]{1,3}(?:device\(type=')?(cpu|cuda)\b",
    re.I,
)
_BACKEND = re.compile(r"\bbackend['\"]?[ :=]{1,3}['\"]?(gloo|nccl)\b", re.I)
_ROUND_TRIPS = re.compile(r"\bMnRtt/Rnk: (\d{1,9}\.\d{1,4})ms/\d{1,6} \| MxRtt/Rnk: (\d{1,9}\.\d{1,4})ms/(\d{1,6})\b")
_IDS = re.compile(
    r"\b(?:(?:sample|example|row|item|data|batch|doc|document|record)[_ ]?ids?|(?:\w{1,12}[_ ])?(?:idx|indices"
    r"|indexes))['\"]?"
    r"(?: of [a-z ]{1,24})?[ :=]{0,3}(?:tensor\()?[\[(](\d{1,12}(?:,? {1,4}\d{1,12}){2,100})",
    re.I,
)
_DIGITS = re.compile(r"\d{1,12}")
_FEW = 4
_RANGE = re.compile(
    r"\b(?:samples|rows|indices|records|documents|lines|examples|items)\b[ :=]{0,3}[\[(]?(\d{1,12})"
    r"(?: to |\.\.| ?- ?| ?– ?|:|, ?)(\d{1,12})\b",
    re.I,
)
_FILES = re.compile(
    r"\b(?:reads?|reading|assigned|owns?|takes?|gets?|my|own)\b[^\n\[]{0,40}?\b(?:files?"
    r"|shards?)\b[^\n\[]{0,8}\[([^\]\n]{3,500})\]",
    re.I,
)
_QUOTED = re.compile(r"['\"]([^'\"\n]{1,120})['\"]")
_LOCAL_OF_TOTAL = re.compile(
    r"\b(?:local|sharded|own|this rank|optimi[sz]er state)\b[^\n\d]{0,30}?(\d{1,15}(?:,\d{3}){0,4}"
    r"(?:\.\d{1,6})?) ?([kmgt]i?b|[kmb]\b)?"
    r"[^\n\d]{1,24}?\b(?:total|full|whole|global|unsharded)\b[^\n\d]{0,40}?(\d{1,15}(?:,\d{3}){0,4}"
    r"(?:\.\d{1,6})?) ?([kmgt]i?b|[kmb]\b)?",
    re.I,
)
_HELD = re.compile(
    r"\b(\d{1,15}(?:\.\d{1,6})?)(?: ?(?:[kmgt]i?b|[kmb]|bytes|elements))? of (\d{1,15}(?:\.\d{1,6})?) ?"
    r"(?:(?:[kmgt]i?b|[kmb]|bytes|elements)(?: of)? )?(?:the )?(?:param|weight|optimi[sz]er|state|gradient)",
    re.I,
)
_PART = re.compile(r"\b(?P<size>\d{1,9}(?:\.\d{1,6})?) ?(?P<unit>[kmgt]i?b|bytes) of (?P<what>param|weight)", re.I)
_OF_ALL = re.compile(r"\b(?:model|total|full|whole|unsharded)\b", re.I)
_OF_ONE = re.compile(r"\b(?:rank|holds|keeps|local|shard|per)\b", re.I)
_THROTTLED = re.compile(
    r"\b(?:quota|throttl\w{1,6})\b[^\n\d]{0,40}?(\d{1,12}) (?:of|out of|/) (\d{1,12})\b"
    r"|\bnr_periods\W{1,4}(?P<periods>\d{1,12})\W{1,4}nr_throttled\W{1,4}(?P<held>\d{1,12})\b",  # cpu.stat of cgroups
    re.I,
)
_RESUMED = re.compile(r"\bresum(?:ed|ing)\b", re.I)
_STAMP = re.compile(r"[\[(]?\d{4}[-/]\d\d[-/]\d\d[ T_]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?")
_HASHES = ("checksum", "hash", "md5", "sha", "crc", "digest", "fingerprint", "signature")
_PLANS = ("plan", "expect", "request", "intended", "wanted", "asked")


class Value(NamedTuple):
    name: str
    value: float | None
    """None for what is no finite number."""
    unit: str = ""


class Said(NamedTuple):
    """What one line says: at which step, and which values."""

    label: str
    values: list[Value]


def is_bar(text: str) -> bool:
    return _BAR.search(text) is not None


def said_in(text: str) -> Said:
    reading = _Reading(text)
    stamp = _STAMP.match(text)
    end = 0
    for found in _NUMBER.finditer(text, stamp.end() if stamp else 0):
        reading.number(found, text[max(end, found.start() - _MAX_NAME) : found.start()])
        end = found.end()
    return reading.said()


class _Reading:
    """One line while its numbers are read, from left to right; of one quantity the first counts."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.low = text.lower()
        self.labels: dict[str, str] = {}
        self.values: dict[str, Value] = {}
        self.qualified: dict[str, Value] = {}
        self.loose: dict[str, tuple[float | None, str]] = {}
        self.total = ""
        unit = _UNIT_OF_LINE.search(text) if "time" in self.low else None
        self.unit = unit[1].lower() if unit else ""
        if "/" in text and (bar := _BAR.search(text)) is not None:
            self.labels["step"], self.total = bar[1], bar[2]
        if "[" in text and (place := _PLACE.search(text, 0, 240)) is not None:
            self.labels |= _placed(place)

    def number(self, found: re.Match[str], before: str) -> None:
        words, unit = _words(before, (found["unit"] or "").lower())
        if not unit and (whole := _OUT_OF.match(self.text, found.end())) is not None:
            unit = whole[1].lower()
        what = _what(words, unit)
        number = _number(found["value"])
        if not what and not unit and ("." in found["value"] or _BY_DDP.search(words)):
            what, unit = self._time_without_unit(words, number)
        if what.startswith("label "):
            if what == "label epoch" or found["value"].replace(",", "").isdecimal():
                self.labels.setdefault(what[6:], found["value"].replace(",", ""))
        elif what == "bare time":
            self.loose.setdefault("took", (number, unit))
        elif what.startswith("score ") and (whole := _OF_ALL_SAMPLES.match(self.text, found.end())) is not None:
            self._right_of_all(what, number, float(whole[1]))
        elif what:
            self._keep(what, words, _value(what, number, unit))

    def _right_of_all(self, what: str, right: float | None, whole: float) -> None:
        """`Accuracy: 9210/10000`: a share, and more right answers than questions are a miscount."""
        if right is not None and whole > 0:
            self.values.setdefault(what, Value(what, right / whole))
            if right > whole:
                self.values.setdefault("counted", Value("counted", right / whole))

    def _time_without_unit(self, words: str, number: float | None) -> tuple[str, str]:
        """`forward_time=0.31`; a mere `time` or `data` counts only beside the other one."""
        if self.unit:
            return _time(words, ""), self.unit
        if _BY_DDP.search(words) and (number or 0) >= _LONGEST:
            return _time(words, ""), "ns"
        if words in ("time", "data"):
            self.loose.setdefault(words, (number, "s"))
        elif _NAMED_TIME.search(words) and not _NO_DURATION.search(words) and (number or 0) < _LONGEST:
            return _time(words, ""), "s"
        return "", ""

    def _keep(self, what: str, words: str, value: Value) -> None:
        if self.total and (rate := _pace(value, self.total)) is not None:
            self.values.setdefault(rate.name, rate)
        if "_time" in what and _AVERAGED.search(words):
            self.values.setdefault(f"usual {what}", value._replace(name=f"usual {what}"))
        if what in _OF_RANKS or what.startswith("score "):
            whose = "own " if _LOCAL.search(words) else "joint " if _JOINT.search(words) else ""
            if whose:
                self.qualified.setdefault(whose + what, value._replace(name=whose + what))
                return
        self.values.setdefault(what, value)

    def said(self) -> Said:
        labels, values = self.labels, self.values
        if "step" not in labels and "batch" in labels:
            labels["step"] = labels["batch"]
        self._settle_times()
        for name, value in self.qualified.items():
            plain = name.partition(" ")[2]
            if name != "own grad_norm":
                values.setdefault(plain, value._replace(name=plain))
            values[name] = value
        if "loss" in values and _OF_EVALUATION.match(self.text):
            values.setdefault("eval_loss", values.pop("loss")._replace(name="eval_loss"))
        elif "loss" in values and "eval_loss" in values:  # of an epoch, or measured anew, beside a validation's
            values["summary_loss"] = values.pop("loss")._replace(name="summary_loss")
        found = list(values.values())
        if any(word in self.low for word in _HASHES):
            found += [Value(*pair) for pair in _hashes(self.text)]
        found += _statements(self.text, self.low, bool(labels))
        label = " ".join(f"{kind} {labels[kind]}" for kind in ("epoch", "step") if kind in labels)
        if label and "resum" in self.low and _RESUMED.search(self.text):
            found = [Value(f"resumed_{one.name}", one.value, one.unit) for one in found if one.name == "lr"]
            if "step" in labels:
                found.append(Value("resumed_step", _number(labels["step"])))
        elif "step" in labels and found:
            found.append(Value("step", _number(labels["step"])))
        return Said(label, found)

    def _settle_times(self) -> None:
        loose, values = self.loose, self.values
        if "data" in loose and ("time" in loose or "step_time" in values):
            values.setdefault("data_time", Value("data_time", loose["data"][0], "s"))
        if "time" in loose and "data_time" in values:
            values.setdefault("step_time", Value("step_time", loose["time"][0], "s"))
        if "took" in loose and "step" in self.labels and "step_time" not in values:
            number, unit = loose["took"]
            values["step_time"] = Value("step_time", (number or 0.0) * _factor(unit), "s")


_LONGEST = 1e5
_OF_RANKS = ("loss", "eval_loss", "grad_norm")
"""Quantities that a rank may have of its own, and all of them together."""


def _placed(place: re.Match[str]) -> dict[str, str]:
    epoch = place["epoch"] or place["epoch_"] or place["pair"]
    step = place["step"] or place["step_"] or place["batch"] or place["iter"] or place["first"]
    return {"step": step} | ({"epoch": epoch} if epoch else {})


def _pace(value: Value, total: str) -> Value | None:
    """A bar's `4.3it/s` or `1.2s/it`, as the time of a step. Bars of one length are of one loop."""
    if value.name == "throughput" and value.unit == "it/s" and value.value:
        return Value(f"step_time bar {total}", 1 / value.value, "s")
    if value.name == "step_time" and value.unit == "s/it":
        return Value(f"step_time bar {total}", value.value, "s")
    return None


def _value(what: str, number: float | None, unit: str) -> Value:
    if what == "free_memory" and not unit:
        unit = "gb"
    if unit == "s/it":
        return Value(what, number, unit)
    if what.startswith("memory ") and not unit:  # bare numbers are megabytes in some logs and bytes in others
        few = number is not None and number < 200 and not number.is_integer()
        unit = "bytes" if (number or 0) >= 1e7 else "gib" if few else "mib"
    return Value(what, number if number is None else number * _factor(unit), _base(unit))


def _number(text: str) -> float | None:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _factor(unit: str) -> float:
    return _BYTES.get(unit) or _SECONDS.get(unit.split("/", 1)[0]) or 1.0


def _base(unit: str) -> str:
    if unit in _BYTES:
        return "bytes"
    if unit.split("/", 1)[0] in _SECONDS:
        return "s"
    return unit


@lru_cache(maxsize=8192)
def _words(before: str, unit: str) -> tuple[str, str]:
    """The words right before a number, and its unit, which may stand in their brackets: `mem (GB): 12`."""
    bracketed = _UNIT_IN_NAME.search(before)
    if bracketed is not None and not before[: bracketed.start()].lower().endswith("per"):
        before, unit = before[: bracketed.start()], unit or (bracketed[1] or bracketed[2] or bracketed[3]).lower()
    parts = [part for part in _CUT.split(before.rstrip(" :=|'\"([")) if part.strip()]
    words = (parts[-1] if parts else "").lower().replace("_", " ").replace("-", " ")
    words = " ".join(_NOT_WORD.sub(" ", _SLASH.sub(" ", words)).split())
    if (found := _TIME_OF.fullmatch(words)) is not None:
        return f"{found[1]} time", unit
    return (f"{found[2]} {found[1]}" if (found := _QUALIFIED.fullmatch(words)) else words), unit


@lru_cache(maxsize=8192)
def _what(words: str, unit: str) -> str:
    """The one name under which a quantity is known; empty if it is none of ours."""
    if unit in _BYTES:
        return _memory(words)
    if unit.split("/", 1)[0] in _SECONDS:
        return _time(words, unit.partition("/")[2])
    if unit in _NOUNS:
        return "" if _CUMULATIVE.search(words) else f"work {unit}"
    if "/" in unit or " per " in unit or _THROUGHPUT.search(words):
        return "expected_throughput" if _EXPECTED.search(words) else "throughput"
    if unit == "%":
        return _quantity(words) if _SCORE.search(words) else ""
    return "" if unit else _label(words) or _memory(words) or _quantity(words)


def _memory(words: str) -> str:
    if _FREE.search(words):
        return "free_memory"
    found = None if _NOT_USED.search(words) else _MEMORY.search(words)
    return f"memory {found[1] or found[2]}" if found else ""


def _label(words: str) -> str:
    found = None if "loss" in words or _NOT_LABEL.search(words) else _LABEL.search(words)
    if found is None:
        return ""
    return f"label {found[1]}" if found[1] in ("epoch", "batch") else "label step"


def _time(words: str, per: str) -> str:
    if per:
        return "" if per == "epoch" else "step_time"
    for pattern, name in ((_READING, "data_time"), (_WAITING, "wait_time"), (_ALL_REDUCING, "wait_time")):
        if pattern.search(words):
            return name
    if (found := _COMPUTING.search(words)) is not None:
        return f"compute_time {found[1]}"
    if _STEPPING.search(words):
        return "step_time"
    return "" if words else "bare time"


def _quantity(words: str) -> str:
    for pattern, name, unless in _NAMED:
        if (found := pattern.search(words)) is not None and not (unless and unless.search(words)):
            return name.format(*found.groups())
    return ""


_NAMED: tuple[tuple[re.Pattern[str], str, re.Pattern[str] | None], ...] = (
    (_EVALUATED, "eval_loss", None),
    (_LOSS, "loss", _OTHER_LOSS),
    (_GRADIENT, "grad_norm", None),
    (_STATE, "state {}", _OWN),
    (_WORK, "work {}", _CUMULATIVE),
    (_SCORE, "score {}", None),
    (_RATE, "lr", None),
    (_SCALE, "loss_scale", _ATTEMPTED),
    (_SKIPPED_NOW, "skipped_now", None),
    (_SKIPPED, "skipped", None),
    (_BATCH_SUM, "batch_sum", None),
    (_DEVICE_BATCH, "device_batch", None),
    (_WHOLE_BATCH, "whole_batch", None),
    (_ACCUMULATED, "accumulated", None),
    (_EPOCH_STEPS, "epoch_steps", None),
    (_SAMPLES, "samples", _NOT_ALL_SAMPLES),
)
"""The words right before a number, the quantity's name, and the words that make it another one."""


_KIND_OF_HASH = re.compile(r"\b(?:md5|sha1|sha256|crc32|crc)$")


def _hashes(text: str) -> Iterator[tuple[str, float]]:
    for found in _HASH.finditer(text):
        words = " ".join(found["name"].lower().replace("_", " ").split())
        if _BATCH_SUM.search(_KIND_OF_HASH.sub("hash", words)):
            yield "batch_sum", float(int(found["value"][:12], 16))
        elif (state := _STATE.search(_KIND_OF_HASH.sub("hash", words))) and not _OWN.search(words):
            yield f"state {state[1]}", float(int(found["value"][:12], 16))


def _statements(text: str, low: str, labelled: bool) -> list[Value]:
    """What a line says in words about the job itself, as numbers."""
    values = [*_of_job(text, low)]
    of = " of " in low
    if any(word in low for word in ("diff", "spread", "deviat", "drift", "across ranks", "sync", "identical")):
        values += _apart(text)
    if any(word in low for word in _COUNTS) and (found := _COUNTED.search(text)):
        count, whole = [part for part in found.groups() if part]
        values += _ratio("counted", count, whole)
    if ("throttl" in low or "quota" in low) and (found := _THROTTLED.search(text)):
        values += _ratio("throttled", found[1] or found["held"], found[2] or found["periods"])
    if "param" in low or "weight" in low or "optimi" in low or "shard" in low:
        values += (_held(text) if of else []) or _local_of_total(text)
    if "efficiency" in low and (found := _EFFICIENCY.search(text)):
        values.append(Value("efficiency", float(found[1]) / (100 if found[2] or float(found[1]) > 1.5 else 1)))
    if "MiB /" in text and (found := _SMI.search(text)):
        values.append(Value("memory device", float(found[1]) * _BYTES["mib"], "bytes"))
    if any(word in low for word in _COUNTS) and (found := _EVALUATED_OF_THEM.search(text)):
        values.append(Value("evaluated", float(found[1] or found[2])))
    if "%" in text and (found := _DATA_SHARE.search(text)):
        values.append(Value("data_share", float(found[1] or found[2]) / 100))
    if "max" in low and "min" in low:
        values += _extremes(text)
    if "Rtt/Rnk" in text and (found := _ROUND_TRIPS.search(text)):
        values += [
            Value("fastest round", float(found[1]) / 1e3, "s"),
            Value("slowest round", float(found[2]) / 1e3, "s"),
        ]
        values.append(Value("slowest_rank", float(found[3])))
    return [*values, *_read_by_rank(text, low, labelled)]


def _of_job(text: str, low: str) -> Iterator[Value]:
    """How many ranks there are, were started and were meant; on which kind of device, over which backend."""
    if "not using distributed mode" in low:
        yield Value("world", 1.0)
    stated = " of " in low or any(word in low for word in _SIZES) or _SLASHED.search(low)
    if stated and "dist_world" not in low and (found := _STATED.search(text)):
        yield Value("world", float(next(part for name, part in found.groupdict().items() if part and name != "index")))
    if any(word in text for word in _STARTS) and (found := _LAUNCHED.search(text)):
        nodes = _NODES.search(text) if found["local"] else None
        if found["several"]:
            yield Value("several", 1.0)
        else:
            size = int(next(part for part in found.groups() if part))
            yield Value("launched", float(size * int(nodes[1] if nodes else 1)))
    if any(word in low for word in _PLANS) and (found := _PLANNED.search(text)):
        yield Value("planned", float(found["after"] or found["before"]))
    if "cuda" in low or "cpu" in low or "gpu" in low:
        if _GPU_THERE.search(text):
            yield Value("gpu_there", 1.0)
        if (found := _DEVICE.search(text)) is not None:
            yield Value("on_gpu", float(found[1].lower() != "cpu"))
    if "backend" in low and (found := _BACKEND.search(text)) is not None:
        yield Value("backend", float(found[1].lower() == "gloo"))


def _extremes(text: str) -> list[Value]:
    """`compute min 97.1 ms (rank 0) max 310.2 ms (rank 3)`: of all ranks, where one is named or the line says so."""
    found = _EXTREMES.search(text)
    if found is None or not (found["rank"] or "ranks" in text):
        return []
    unit = (found["unit"] or "s").lower()
    what = _time(_words(found["what"], unit)[0], "")
    if not what:
        return []
    values = [Value(f"fastest {what}", float(found["least"]) * _factor(unit), "s")]
    values.append(Value(f"slowest {what}", float(found["most"]) * _factor(unit), "s"))
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


def _read_by_rank(text: str, low: str, labelled: bool) -> Iterator[Value]:
    """Which samples: as a number for each list, as a pair for a range, as a number for each file."""
    if ("idx" in low or "ind" in low or "ids" in low) and (found := _IDS.search(text)) is not None:
        ids = [int(word) for word in _DIGITS.findall(found[1])]
        if len(ids) >= _FEW:
            yield Value("ids shuffled" if ids != sorted(ids) else "ids", float(zlib.crc32(repr(ids).encode())))
    if not labelled and (found := _SHARE.search(text)) is not None:
        yield from _ratio("share", found[1], found[2])
    if not labelled and (found := _RANGE.search(text)) is not None and int(found[1]) < int(found[2]):
        yield from (Value("range_start", float(found[1])), Value("range_end", float(found[2])))
    if not labelled and ("shard" in low or "file" in low) and (found := _FILES.search(text)) is not None:
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


_SHARD = re.compile(
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
    size = float(found["size"]) * _BYTES[found["unit"].lower()]
    whose = text[max(found.start() - 40, 0) : found.start()]
    if _OF_ONE.search(whose):
        return [Value("held_bytes", size, "bytes")]
    return [Value("model_bytes", size, "bytes")] if _OF_ALL.search(whose) else []
