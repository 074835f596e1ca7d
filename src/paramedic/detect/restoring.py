"""What a watched program read back and wrote: states that were left in the file, names that did not match, files that
several ranks write."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from paramedic.detect.conduct import (
    Conduct,
    are_replicas,
    as_dict,
    as_list,
    conducts,
    finding,
    floats,
    items,
    natural,
)
from paramedic.detect.ranks import listed
from paramedic.detect.watched import said_by
from paramedic.knowledge import Rule
from paramedic.model import Finding, Run

_STATES = ("optimizer", "scheduler", "scaler")
_OFTEN = 3


def _files(one: Conduct) -> str:
    """What was read and written, and what was taken from it."""
    rows = [
        f"{word} {file.get('path')} ({', '.join(map(str, as_list(file.get('holds'))))})"
        for way, word in (("loads", "read"), ("saves", "wrote"))
        for file in items(one.raw.get(way))[:2]
    ]
    restored = ", ".join(map(str, as_dict(one.raw.get("states")))) or "no state"
    return "; ".join([*rows, f"restored: {restored}"])


def state_left_in_file(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The file that training goes on from holds a state that the program has and does not take from it."""
    ranks = conducts(run)
    left: dict[int, tuple[str, str]] = {}
    for rank, one in ranks.items():
        restored = as_dict(one.raw.get("states"))
        for file in _resumed_from(ranks, one):
            missing = [
                what for what in _STATES if what in as_list(file.get("holds")) and not natural(restored.get(what))
            ]
            missing = [what for what in missing if what != "scheduler" or "l" in "".join(one.orders)]
            if missing:
                left[rank] = str(file.get("path")), " and ".join(missing)
    if left and len(left) == len(ranks):
        path, what = left[min(left)]
        yield finding(rule, ranks, [], {"what": what, "path": path}, _files)


def _resumed_from(ranks: Mapping[int, Conduct], one: Conduct) -> list[Mapping[str, object]]:
    """Files that a rank read before its first step, from a folder that the run itself writes its checkpoints to."""
    saved = [file for other in ranks.values() for file in items(other.raw.get("saves")) if file.get("path")]
    folders = {os.path.dirname(str(file.get("path"))) for file in saved}
    loads = [file for file in items(one.raw.get("loads")) if not natural(file.get("step")) and file.get("path")]
    return [file for file in loads if os.path.dirname(str(file.get("path"))) in folders]


def older_than_last(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Training goes on from a file beside which a later one of the same name but for its number lies."""
    ranks = conducts(run)
    older = {rank: [file for file in _resumed_from(ranks, one) if file.get("newer")] for rank, one in ranks.items()}
    if ranks and all(older.values()):
        file = older[min(older)][0]
        yield finding(rule, ranks, [], {"path": str(file.get("path")), "newer": str(file.get("newer"))}, _files)


def nothing_matched(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """No name of the file is a name of the model, and strict=False says nothing about it."""
    ranks = conducts(run)
    for rank, one in sorted(ranks.items()):
        for match in items(one.raw.get("matched")):
            given, unexpected = natural(match.get("given")), natural(match.get("unexpected"))
            if given and unexpected == given and natural(match.get("missing")):
                fields = {"given": str(given), "one": str(match.get("one")), "other": str(match.get("other"))}
                everybody = all(items(other.raw.get("matched")) for other in ranks.values())
                yield finding(rule, ranks, [] if everybody else [rank], fields)
                return


def own_tensors_loaded(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """What was kept as the best weights are the model's own tensors, which training has changed since."""
    ranks = conducts(run)
    for one in ranks.values():
        for match in items(one.raw.get("matched")):
            if natural(match.get("given")) and match.get("own") == match.get("given") and natural(match.get("step")):
                step = natural(match.get("step"))
                yield finding(rule, ranks, [], {"how": f"after step {step} the model was given {match['own']} tensors"})
                return
        for file in items(one.raw.get("saves")):
            if since := natural(file.get("kept_for")):
                fields = {"how": f"after step {natural(file.get('step'))} a state taken {since} steps before was saved"}
                yield finding(rule, ranks, [], fields, _files)
                return


def rate_scaled_again(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """After the optimizer's state was read back, its rate is multiplied by the number of ranks once more."""
    ranks = conducts(run)
    rates = {rank: _around_resume(one) for rank, one in ranks.items()}
    for rank, one in ranks.items():
        before, after = rates[rank]
        world = natural(said_by(one.event).get("world_size"))
        if not before or not after or world < 2:
            return
        if not any(abs(after / before / factor - 1) < 1e-6 for factor in (world, world**0.5)):
            return
    if ranks:
        before, after = rates[min(ranks)]
        yield finding(rule, ranks, [], {"before": f"{before:g}", "after": f"{after:g}"})


def _around_resume(one: Conduct) -> tuple[float, float]:
    """The rate as it was read back, and that of the first step after it; 0 where it is not known."""
    loaded = as_list(one.raw.get("loaded_rate"))
    if len(loaded) != 2:
        return 0.0, 0.0
    later = [rates for step, rates in sorted(one.rates.items()) if step > natural(loaded[0])]
    return next(iter(floats(loaded[1])), 0.0), next(iter(later[0]), 0.0) if later else 0.0


def written_by_several(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Ranks of one node write the same file in the same step."""
    ranks = conducts(run)
    several = {file: [*rows] for file, rows in _written(ranks).items() if len(rows) > 1}
    if several:
        (_, path, _), who = max(several.items(), key=lambda item: len(item[1]))
        yield finding(
            rule, ranks, [] if len(who) == len(ranks) else who, {"path": path, "count": str(len(who))}, _files
        )


def unlike_in_one_file(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Ranks of one node write what differs between them under the same name."""
    ranks = conducts(run)
    unlike = [file for file, rows in _written(ranks).items() if len(rows) == len(ranks) > 1 and _all_differ(rows)]
    if unlike:
        _, path, step = unlike[-1]
        yield finding(rule, ranks, [], {"path": path, "step": str(step), "count": str(len(ranks))}, _files)


def _written(ranks: Mapping[int, Conduct]) -> Mapping[tuple[str | None, str, int], Mapping[int, Mapping[str, object]]]:
    """By host, path and step: what each rank wrote there."""
    written: dict[tuple[str | None, str, int], dict[int, Mapping[str, object]]] = defaultdict(dict)
    for rank, one in sorted(ranks.items()):
        for file in items(one.raw.get("saves")):
            if file.get("path"):
                written[one.event.host, str(file["path"]), natural(file.get("step"))][rank] = file
    return written


def _all_differ(rows: Mapping[int, Mapping[str, object]]) -> bool:
    prints = [row["print"] for row in rows.values() if "print" in row]
    return len(prints) == len(rows) == len(set(prints))


def restored_by_some(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Some ranks read a state back that the others, which have one as well, do not."""
    ranks = conducts(run)
    for what in _STATES[:2]:
        times = {rank: natural(as_dict(one.raw.get("states")).get(what)) for rank, one in ranks.items()}
        had = what == "optimizer" or all("l" in "".join(one.orders) for one in ranks.values())
        if had and any(times.values()) and not all(times.values()) and are_replicas(run):
            who = [rank for rank, count in times.items() if count]
            others = [rank for rank, count in times.items() if not count]
            fields = {"what": what, "others": listed(others), "count": str(len(who))}
            yield finding(rule, ranks, who if len(who) <= len(others) else others, fields, _files)
            return


def changed_while_saved(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Another thread writes tensors that training changes under its hands."""
    ranks = conducts(run)
    paths = {rank: one.raw["changed_while_saved"] for rank, one in ranks.items() if one.raw.get("changed_while_saved")}
    if paths:
        who = sorted(paths) if len(paths) < len(ranks) else []
        yield finding(rule, ranks, who, {"path": str(paths[min(paths)])}, _files)


def saved_again_and_again(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The same file is written several times between two steps of the optimizer, and then in later ones again."""
    ranks = conducts(run)
    for rank, one in sorted(ranks.items()):
        rows = [row for row in items(one.raw.get("saves")) if natural(row.get("times")) >= _OFTEN]
        if len(rows) >= _OFTEN - 1:
            fields = {"path": str(rows[0].get("path")), "times": str(natural(rows[0].get("times")))}
            yield finding(rule, ranks, [] if len(ranks) == 1 or not rank else [rank], fields, _files)
            return


def saved_by_one_of_several(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """One rank writes its shards of distributed tensors. Or parts of the model are others on each rank, beside parts
    that all have in common, and one rank writes what it has itself, and gathers nothing for it."""
    ranks = conducts(run)
    writers = {rank: files for rank, one in ranks.items() if (files := _model_files(one))}
    if len(writers) != 1 or len(ranks) < 2:
        return
    rank, files = next(iter(writers.items()))
    count = natural(files[-1].get("shards")) or (0 if _gathers(ranks, files) else _own_tensors(ranks))
    if count:
        fields = {"writer": str(rank), "count": str(count), "path": str(files[-1].get("path"))}
        yield finding(rule, ranks, [], fields, _files)


def _gathers(ranks: Mapping[int, Conduct], files: Sequence[Mapping[str, object]]) -> bool:
    """More is brought together for a file than in any step; or it is not known."""
    usual = max((natural(count) for one in ranks.values() for count in as_list(one.raw.get("gathers"))), default=0)
    return any("gathered" not in file or natural(file.get("gathered")) > usual for file in files)


def _model_files(one: Conduct) -> list[Mapping[str, object]]:
    return [
        file
        for file in items(one.raw.get("saves"))
        if file.get("path") and natural(file.get("step")) and "tensors" in as_list(file.get("holds"))
    ]


def _own_tensors(ranks: Mapping[int, Conduct]) -> int:
    """How many tensors are unlike on every two ranks at every look, where others are alike at every look."""
    steps = set.intersection(*({*one.looks} for one in ranks.values())) if len(ranks) > 1 else set()
    looks = [[one.looks[at].each_parameters for one in ranks.values()] for at in sorted(steps) if not at[0]]
    sizes = {len(each) for look in looks for each in look}
    if len(looks) < _OFTEN or len(sizes) != 1:
        return 0
    kinds = [[len({each[n] for each in look}) for look in looks] for n in range(sizes.pop())]
    common = any(max(kind) == 1 for kind in kinds)
    return sum(min(kind) == len(ranks) for kind in kinds) if common else 0
