"""Plain words: which symptom a description sounds like, when there is no log line that a signature knows.

A small text classifier, trained at first use on what the knowledge base says and on `knowledge/descriptions.toml`.
For each word and pair of words it adds up how much more often the symptom's own texts use it than all other texts do
(naive Bayes against its complement). Nothing is fetched, nothing is stored, nothing of the text is executed.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import resources
from itertools import pairwise

from paramedic.detect.match import on_events
from paramedic.knowledge import Rule, load, load_taxonomy
from paramedic.model import VERDICT_AT, Event, Finding, Run

NONE = "none"
DESCRIBED_BY = "description.described"
"""The name under which rules ask for it."""
MOST = 4_000
"""Characters that are read: what fails is said early."""
LEAST = 0.15
"""Below it nothing is said at all: the words fit no symptom."""
SUREST = 0.9
"""Words are no evidence of what the machine did."""
SHARPNESS = 2.2
"""Of the scores, so that a probability is the share that is right: found by leaving each wording out in turn; a test
recomputes it."""
_SMOOTH = 0.1

_OF_ALL = frozenset(
    [
        "collective-hang",
        "collective-desync",
        "communication-runtime-error",
        "rendezvous-setup-hang",
        "replica-divergence",
    ]
)
"""Who reports these is seldom who is to blame."""
_WORD = re.compile(r"[a-z]+[a-z0-9]*|\b(?:13[4579]|143|40[134])\b")
_FIRST = re.compile(r"[a-z]{1,20}")
_COMMON_WORDS = """
a an the of to in on at is are was were be been it its this that and or but i my me we our you your he they with by as
from for so just very really also have has had do does did will would there which what all any some when while if then
than too can could horovod pytorch torch tensorflow deepspeed megatron lightning accelerate colossalai bug
"""
_COMMON = frozenset(_COMMON_WORDS.split())
"""Words that say nothing of what failed, the frameworks' names among them."""
_ENDINGS = ("ations", "ation", "ingly", "ings", "ing", "edly", "ies", "ied", "ed", "es", "s", "ly", "e")


def symptoms_of(text: str) -> list[tuple[str, float]]:
    """(symptom, probability), the likeliest first; the rest of 1 is that nothing failed, or nothing that is known."""
    shares = _model().shares(text)
    return sorted(((id, share) for id, share in shares.items() if id != NONE), key=lambda item: -item[1])


_ASKS = re.compile(
    r"(?:what(?:'s| does| do| is| are)|how (?:do|does|can) (?:i|we|you)) [^.\n]{1,80} (?:mean|do|for|set|use)\?", re.I
)


def asks(text: str) -> bool:
    """Somebody wants to know what a word means, not why something failed."""
    return _ASKS.fullmatch(text.strip()) is not None


_WELL = re.compile(
    r"\b(?:is|are|'s|looks?|seems?|runs?|running|works?|working|goes|going|went|trains?|training|all|everything)"
    r"(?: (?:all|very|quite|pretty|just|now|really|perfectly|again|so far)){0,2}"
    r" (?:fine|good|ok|okay|well|great|normal|healthy|perfect(?:ly)?|smooth(?:ly)?|correct(?:ly)?|nice(?:ly)?|green)\b"
    r"|\bas (?:expected|intended|planned|projected|usual|hoped|it should(?: be)?)\b"
    r"|\b(?:no|without)(?: any| more)? (?:problem|issue|complaint|trouble)s?\b"
    r"|\bnothing(?: is|'s)? (?:wrong|unusual|suspicious|broken|to (?:complain|report|worry))\b(?: about)?"
    r"|\b(?:finished|ended|completed|ran|done) (?:successfully|cleanly|normally|well|fine)\b"
    r"|\b(?:happy|content|satisfied|pleased) with\b",
    re.I,
)
_NO_ERROR = re.compile(r"\b(?:no|without)(?: any| more)? (?:error|failure|crash|hang|warning|nan)(?:s|es)?\b", re.I)
"""Is said of what goes wrong without a word, too."""
_BUT = """
but however except although though yet until unless instead despite only not cannot never no none nothing why what how
used was were too than then still without less lower higher fewer worse more bad poor die dies died dying dead lost nan
inf oom out odd half zero flat idle gone
"""
_ILL_BEGINNINGS = """
slow hang hung stuck stall freez froze crash fail error kill lose losing miss wrong broke break diverg explod spik
differ mismatch strang weird suspicio leak grow timeout timed refus unable problem issue trouble stop plateau chance
random twice doubl garbage nonsense unexpected block wait silent quiet disappear vanish exit abort restart preempt reset
drop corrupt throttl degrad
"""
_ILL = re.compile(rf"\b(?:{'|'.join(_BUT.split())})\b|\b(?:{'|'.join(_ILL_BEGINNINGS.split())})|\booms|n't\b|\?", re.I)
"""Who is content may say such a word, too, and is then asked as everybody is."""
_POLITE = re.compile(r"(?:hi|hey|hello|dear|thanks?|thank you|thx|cheers|many thanks|great work)\b[\w ]{0,30}", re.I)
_CLAUSE = re.compile(r"[,.;:!\n]+(?=\s|$)|\s[-\u2013\u2014]\s")


def content(text: str) -> bool:
    """Somebody says that all is well: each part of it says so, or is mere politeness, and nothing beside complains."""
    parts = [_NO_ERROR.sub(" ", part).strip() for part in _CLAUSE.split(text[:MOST])]
    well = [part for part in parts if _WELL.search(part)]
    others = [part for part in parts if part and not _WELL.search(part)]
    complains = any(_ILL.search(_WELL.sub(" ", part)) for part in well)
    return bool(well) and not complains and all(map(_POLITE.fullmatch, others))


def nothing_wrong(told: Sequence[Event]) -> bool:
    """Nothing is to be explained: all of it are mere questions, or say that all is well."""
    return all(asks(event.text) or content(event.text) for event in told)


def described(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """What a text in plain words sounds like; only where nothing else was recognised in any of the input."""
    if any(one.severity == "error" for one in found) or run.of_kind("traceback", "exit"):
        return
    told = run.of_kind("description")
    if told and len(told) == len(run.sources):
        yield from sounds_like(told, rule)


def sounds_like(
    told: Sequence[Event], rule: Rule, known: Mapping[str, float] | None = None, beside: str = ""
) -> Iterator[Finding]:
    """The likeliest symptom by the words, or by what is `known` of them, if there is one; `beside` is a sentence about
    what else there is. A mere candidate is a remark: it fails nobody's build."""
    if nothing_wrong(told):
        return
    ranked = known.items() if known else symptoms_of("\n".join(event.text for event in told))
    likely = sorted((item for item in ranked if item[1] >= LEAST / 3), key=lambda item: -item[1])
    if not likely or likely[0][1] < LEAST:
        return
    (symptom, share), others = likely[0], likely[1:3]
    advice = _descriptions()[symptom]
    fields = {
        "beside": beside,
        "symptom": symptom.replace("-", " "),
        "others": "".join(f", or {id.replace('-', ' ')} ({part:.0%})" for id, part in others),
        "logs": advice["logs"],
        "rerun": advice["rerun"],
        "command": advice["command"],
    }
    ranks = () if symptom in _OF_ALL else _accused(told[0])
    if ranks:
        fields["accused"] = ", ".join(map(str, ranks))
    one = on_events(rule, told[:1], ranks, fields)
    severity = one.severity if share >= VERDICT_AT else "warning"
    sure = round(min(share, SUREST), 3)
    yield replace(one, symptom=load_taxonomy().symptom(symptom), confidence=sure, severity=severity)


def _accused(event: Event) -> tuple[int, ...]:
    """The ranks that it says to fail, as they were read."""
    ranks = event.fields.get("accused", ())
    return tuple(rank for rank in ranks if isinstance(rank, int)) if isinstance(ranks, list | tuple) else ()


# -- the classifier ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Model:
    """How much each symptom's texts, and all texts together, use a feature; each text is a vector of length 1."""

    idf: Mapping[str, float]
    unseen: float
    used: Mapping[str, Mapping[str, float]]
    sizes: Mapping[str, float]
    total: Mapping[str, float]

    def shares(self, text: str) -> dict[str, float]:
        return shares(self.scores(features(text)))

    def scores(self, said: Mapping[str, int], left_out: str = "") -> dict[str, float]:
        """For each symptom. A text that was learnt is judged as if it were not, where its symptom is `left_out`."""
        vector = self.vector(said)
        known = {feature: weight for feature, weight in vector.items() if feature in self.total}
        size, kinds = sum(self.sizes.values()), _SMOOTH * len(self.total)
        gone = sum(known.values()) if left_out else 0.0
        found: dict[str, float] = {}
        for symptom, used in self.used.items():
            own = gone if symptom == left_out else 0.0
            ours, others = self.sizes[symptom] - own, size - gone - self.sizes[symptom] + own
            score = 0.0
            for feature, weight in known.items():
                here = used.get(feature, 0.0)
                there = self.total[feature] - here
                if left_out == symptom:
                    here -= weight
                elif left_out:
                    there -= weight
                score += weight * math.log((here + _SMOOTH) / (there + _SMOOTH))
            found[symptom] = score + sum(known.values()) * math.log((others + kinds) / (ours + kinds))
        return found

    def gain(self, feature: str, here: float) -> float:
        """What a feature adds to the score of a symptom that uses it so much, over one that never does."""
        total = self.total[feature]
        return math.log((here + _SMOOTH) / (total - here + _SMOOTH)) - math.log(_SMOOTH / (total + _SMOOTH))

    def size_term(self, symptom: str) -> float:
        """The same for how much is known of the symptom at all; times the weight of the known features."""
        size, kinds = sum(self.sizes.values()), _SMOOTH * len(self.total)
        return math.log((size - self.sizes[symptom] + kinds) / (self.sizes[symptom] + kinds))

    def vector(self, said: Mapping[str, int]) -> dict[str, float]:
        """Words that nobody has used yet count in its length: they make every answer less sure."""
        raw = {feature: math.log1p(count) * self.idf.get(feature, self.unseen) for feature, count in said.items()}
        length = math.sqrt(sum(weight * weight for weight in raw.values())) or 1.0
        return {feature: weight / length for feature, weight in raw.items()}


def shares(scores: Mapping[str, float], sharpness: float = SHARPNESS) -> dict[str, float]:
    top = max(scores.values())
    powers = {symptom: math.exp(sharpness * (score - top)) for symptom, score in scores.items()}
    total = sum(powers.values())
    return {symptom: power / total for symptom, power in powers.items()}


def train(texts: Iterable[tuple[str, Mapping[str, int]]]) -> Model:
    texts = list(texts)
    seen = Counter(feature for _, said in texts for feature in said)
    idf = {feature: math.log((1 + len(texts)) / (1 + count)) + 1 for feature, count in seen.items()}
    empty = Model(idf, math.log(1 + len(texts)) + 1, {}, {}, {})
    used: dict[str, dict[str, float]] = {symptom: {} for symptom, _ in texts}
    total: dict[str, float] = defaultdict(float)
    for symptom, said in texts:
        ours = used[symptom]
        for feature, weight in empty.vector(said).items():
            ours[feature] = ours.get(feature, 0.0) + weight
            total[feature] += weight
    return replace(empty, used=used, sizes={id: sum(ours.values()) for id, ours in used.items()}, total=dict(total))


def features(text: str, whole: bool = True) -> dict[str, int]:
    """Stems and pairs of them, without the commonest words; of a `whole` message its first word, too: how, what, is."""
    text = text[:MOST].lower().replace("can not", "cannot").replace("n't", " not")
    words = [word for word in map(_stem, _WORD.findall(text)) if word]
    said = Counter(words)
    said.update(f"{one} {two}" for one, two in pairwise(words))
    if whole and (first := _FIRST.search(text)):
        said[f"^{first[0]}"] += 1
    return said


@lru_cache(20_000)
def _stem(word: str) -> str:
    if word in _COMMON:
        return ""
    word = next((word[: -len(end)] for end in _ENDINGS if word.endswith(end) and len(word) - len(end) >= 3), word)
    return word[:-1] if len(word) > 4 and word[-1] == word[-2] and word[-1] not in "ls" else word


# -- what it learns from -------------------------------------------------------------------------------------------


@cache
def _model() -> Model:
    return train(learnt())


def learnt() -> list[tuple[str, dict[str, int]]]:
    """(symptom, features of a text) for all that is learnt from."""
    return [*wordings(), *((symptom, features(text, whole=False)) for symptom, text in of_knowledge())]


def wordings() -> Iterator[tuple[str, dict[str, int]]]:
    for symptom, line in of_people():
        yield symptom, features(line)


def of_people() -> Iterator[tuple[str, str]]:
    for symptom, entry in _descriptions().items():
        for line in entry["said"].strip().split("\n"):
            yield symptom, line


@cache
def _descriptions() -> dict[str, dict[str, str]]:
    return tomllib.loads(resources.files("paramedic.knowledge").joinpath("descriptions.toml").read_text("utf-8"))


def of_knowledge() -> Iterator[tuple[str, str]]:
    """The taxonomy's and the rules' own words. What a rule is not (`Not this`) speaks of other symptoms: left out. So
    are rules of files and nodes before the launch: they speak of settings, not of what people then see."""
    for id, entry in load_taxonomy().symptoms.items():
        signals = [text for text in entry.signals.get("log", ()) if text != "none"]
        for text in (id.replace("-", " "), entry.definition, entry.boundary, *signals):
            yield str(id), text
    for rule in load().rules.values():
        of_failures = {case.kind for case in rule.cases()} <= {"log", "folder"}
        if of_failures and not rule.detector.startswith(("exceptions.", "description.")):  # these stand for any symptom
            yield str(rule.symptom), " ".join((rule.title, *rule.keywords, rule.section("What it means")))
