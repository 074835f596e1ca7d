"""Logs, folders, archives and standard input → one Run."""

from __future__ import annotations

import hashlib
import io
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from paramedic.clocks import with_years
from paramedic.collect import processes, stacks
from paramedic.collect.archives import unpack
from paramedic.collect.attempts import beside_attempts, in_order
from paramedic.collect.decoding import BinaryInput
from paramedic.collect.drafts import MAX_TRACE
from paramedic.collect.elastic import read_error_file
from paramedic.collect.flight import head_of, is_dump, read_dump
from paramedic.collect.identity import MAX_WORLD_SIZE, frameworks_in, world_size
from paramedic.collect.inputs import Input, open_inputs
from paramedic.collect.layouts import Place, numbered, place_of, process_of, ranks_of_places
from paramedic.collect.logs import LogRead, read_log
from paramedic.collect.netfile import MAX_NETWORK, is_network, read_network
from paramedic.collect.posts import told_in
from paramedic.collect.prose import SAID, as_described, beside_logs
from paramedic.collect.raised import kept_parts
from paramedic.collect.ras import is_ras, read_ras
from paramedic.collect.readers import Read, read_ahead
from paramedic.collect.recording import MAX_RECORDING, is_recording, read_recording
from paramedic.collect.rosters import ITSELF_A_TASK
from paramedic.collect.tracebacks import Traceback
from paramedic.collect.watched import MAX_WATCHED, NO_CALLS, is_watched, read_watched
from paramedic.model import Event, Fact, Run, Skipped, Source, names_processes
from paramedic.prefilter import Prefilter
from paramedic.redact import Names, clipped, redact
from paramedic.regex import regex

Progress = Callable[[str, int], None]
"""Called with each source's name and its size in bytes once it has been read."""
Heard = Callable[[Iterable[Event]], None]
"""Called with each source's events, while other sources are still being read."""

_MAX_ERROR_FILE = 4 << 20
MAX_KEPT = 80 << 20
"""Of the text of all events together: from then on of each source only the last events of each kind are kept."""
_LAST = 4


def collect(
    paths: Iterable[str], prefilter: Prefilter, progress: Progress | None = None, heard: Heard | None = None
) -> Run:
    """Reads logs, folders, archives and standard input into one Run."""
    paths = tuple(paths)
    skipped: list[Skipped] = []
    reads: list[Read] = []
    shown = Names()
    kept = 0
    with read_ahead(paths, lambda path: _read_plain(path, prefilter)) as ready:
        for item in open_inputs(paths, skipped):
            read = (ready(item.name) if item.plain else None) or _read(item, shown(item.name), prefilter)
            if kept > MAX_KEPT:
                _shorten(read.log)
            kept += _size(read.log.events)
            if heard:
                heard(read.log.events)
            skipped += [left for left in read.log.skipped if left.why != NO_CALLS]
            if read.log.source.lines or (read.place.rank is not None and not read.log.skipped):
                reads.append(read)
            elif not read.log.skipped:
                skipped.append(Skipped(item.name, "empty"))
            if progress:
                progress(read.log.source.id, read.log.source.bytes)
    skipped = [Skipped(redact(left.what), redact(left.why)) for left in skipped]
    logs = beside_logs(in_order(_with_global_ranks(_with_named_ranks(reads))), frozenset(map(redact, paths)))
    return _run(logs, skipped)


def collect_words(text: str, prefilter: Prefilter) -> Run:
    """The same of what somebody says, where there is nothing else: errors that he quotes are read as on standard
    input."""
    data = text.encode("utf-8", "replace").replace(b"\0", b" ")
    log = read_log(io.BytesIO(data), Source(SAID, "log"), prefilter)
    return _run([as_described(log, text.strip())], list(log.skipped))


def _read_plain(path: str, prefilter: Prefilter) -> Read | None:
    """The same as reading it where it is opened; None for what is packed, has a secret in its name or breaks."""
    skipped: list[Skipped] = []
    with open(path, "rb", buffering=0) as raw:
        found = [_read(item, path, prefilter) for item in unpack(path, raw, skipped) if item.plain]
    return found[0] if found and not skipped and redact(path) == path else None


def _size(events: Sequence[Event]) -> int:
    size = sum([len(event.text) for event in events])
    for item in [item for event in events if event.fields for item in event.fields.values()]:
        texts = isinstance(item, list) and (not item or isinstance(item[0], str))
        size += sum(map(len, item if texts else map(str, item))) if isinstance(item, list) else len(str(item))
    return size


def _shorten(log: LogRead) -> None:
    last: list[Event] = []
    counts: Counter[str] = Counter()
    for event in reversed(log.events):
        counts[event.kind] += 1
        if event.kind not in ("line", "traceback") or counts[event.kind] <= _LAST:
            last.append(event)
    if dropped := len(log.events) - len(last):
        log.events = last[::-1]
        why = f"{dropped} of its events, all but the last ones, were left out: the logs together hold too much text"
        log.skipped.append(Skipped(log.source.id, why))


def _run(reads: Sequence[LogRead], skipped: list[Skipped]) -> Run:
    """A rank's empty file is a source, too: that rank said nothing. But when nobody said anything there is no Run."""
    if not any(read.source.lines for read in reads):
        skipped += [Skipped(read.source.id, "empty") for read in reads]
        reads = ()
    sources = tuple(read.source for read in reads)
    events = _ends(_heard(beside_attempts(with_years([event for read in reads for event in read.events]))))
    facts = tuple(fact for read in reads for fact in read.facts)
    return Run(
        id=_run_id(sources, events),
        sources=sources,
        events=events,
        facts=facts,
        skipped=tuple(skipped),
        world_size=world_size(sources, facts),
        frameworks=frameworks_in(events, facts),
    )


def _read(item: Input, shown: str, prefilter: Prefilter) -> Read:
    place = place_of(item.name)
    source = Source(shown, "log", None if place.group is not None else place.rank, place.host, place.attempt)
    try:
        head = head_of(item)
        if (other := _no_log(item, head, source, place)) is not None:
            return Read(place, other)
        told = told_in(item, ranked=place.rank is not None)
        log = read_log(item.stream, source, prefilter)
        if stacks.is_dump(head):
            log.events = stacks.without_activity(log.events)
        return Read(place, as_described(log, told.words, told.title, told.quoted, told.wish) if told else log)
    except BinaryInput as why:
        return Read(place, LogRead(source, skipped=[Skipped(item.name, str(why))]))


def _no_log(item: Input, head: bytes, source: Source, place: Place) -> LogRead | None:
    """What is not made of lines, known by its name or its first bytes."""
    found: LogRead | None = None
    if item.name.rsplit("/", 1)[-1] == "error.json":
        found = _read_error_file(item, replace(source, kind="error-file"))
    elif is_recording(item.name):
        found = read_recording(item.stream.read(MAX_RECORDING + 1), replace(source, kind="recording"))
    elif is_watched(item.name):
        found = read_watched(item.stream.read(MAX_WATCHED), source)
    elif is_network(item.name):
        found = read_network(item.stream.read(MAX_NETWORK), source)
    elif is_dump(item.name, head):
        found = read_dump(item, replace(source, rank=place.rank))
    elif is_ras(head):
        found = read_ras(item, source)
    elif stacks.may_be_json(head):
        found = _read_stacks(item, replace(source, kind="stacks"))
    elif item.name.endswith(processes.NAME):
        found = _read_process(item, replace(source, kind="process"))
    return found


def _read_stacks(item: Input, source: Source) -> LogRead:
    data = item.stream.read(stacks.MAX_JSON + 1)
    found = stacks.of_json(data) if len(data) <= stacks.MAX_JSON else None
    if found is None:
        return LogRead(source, skipped=[Skipped(item.name, "not stacks as py-spy writes them, or cut off")])
    events = [
        Event(source.id, line, "stack", text, line, source.rank, source.host, source.attempt, fields=fields)
        for _, line, text, fields in stacks.told(found, of_one=source.rank is not None)
    ]
    return LogRead(replace(source, lines=len(events), bytes=len(data)), events)


def _read_process(item: Input, source: Source) -> LogRead:
    data = item.stream.read(processes.MAX_BYTES + 1)
    state = processes.read_process(data) if len(data) <= processes.MAX_BYTES else None
    if state is None:
        return LogRead(source, skipped=[Skipped(item.name, "not the state of a process as paramedic attach writes it")])
    source = replace(source, rank=state.rank, host=state.host or source.host, lines=1, bytes=len(data))
    event = Event(source.id, 1, "process", state.says, 1, state.rank, source.host, fields=state.as_fields)
    known = {"world_size": state.world_size, "pid": state.pid, "host": state.host or None}
    facts = [Fact(name, value, source.id, 1, state.rank, source.host) for name, value in known.items() if value]
    return LogRead(source, [event], facts=facts, rank_is_sure=True)


def _read_error_file(item: Input, source: Source) -> LogRead:
    data = item.stream.read(_MAX_ERROR_FILE)
    error = read_error_file(data)
    if error is None or not error.message:
        return LogRead(source, skipped=[Skipped(item.name, "not an error file as torchrun writes it")])
    trace = Traceback(1, uncaught=True)
    for number, line in enumerate([*error.callstack.split("\n")[1:], error.message.split("\n")[0]], 1):
        if not trace.closed and not trace.exceptions:
            trace.feed(line, number, by_torch=False)
    frames, _, types = kept_parts(trace)
    event = Event(
        source=source.id,
        seq=1,
        kind="traceback",
        text=clipped(error.message, MAX_TRACE),
        line=1,
        rank=source.rank,
        attempt=source.attempt,
        utc_ns=error.epoch_seconds * 1_000_000_000 if error.epoch_seconds else None,
        uncertainty_ns=1_000_000_000,
        fields={"frames": frames, "types": types[:1], "uncaught": True},
    )
    return LogRead(replace(source, lines=1, bytes=len(data)), [event])


def _with_named_ranks(reads: Sequence[Read]) -> list[Read]:
    """What only all files together tell: `slurm-4711_3.out` is rank 3 beside 0, 1 and 2, `worker-0` rank 1 beside a
    master; and where no name says it, each program may have said who it is."""
    reads = [_coordinating(read) for read in reads]
    arrays = _of_arrays(reads)
    named = ranks_of_places([Place() if read.log.source.id in arrays else read.place for read in reads])
    if all(rank is None for rank in named):
        named = _counted(reads, arrays)
    named = _beside_records(_by_process(_with_stated(named, reads), reads), reads)
    each = _ranks_in_a_pod(reads, named)
    return [_as_named(read, rank, each) for read, rank in zip(reads, named, strict=True)]


_NUMBER_OF_JOB = regex(r"(?<!\d)(\d{2,12})[-_.](?:task[-_.]?)?$")


def _of_arrays(reads: Sequence[Read]) -> set[str]:
    """`slurm-4711_3.out` is no rank where accounting, or the tasks themselves, tell of an array, or where each trained
    to an end of its own: those are jobs of their own."""
    said = [fact for read in reads for fact in read.log.facts if fact.name == "array"]
    jobs, tasks = {fact.value for fact in said}, {fact.source for fact in said if fact.value == ITSELF_A_TASK}
    groups: dict[str, list[LogRead]] = defaultdict(list)
    for read in reads:
        if read.place.group is not None and read.place.rank is not None:
            groups[read.place.group].append(read.log)
    arrays: set[str] = set()
    for group, logs in groups.items():
        number = _NUMBER_OF_JOB.search(group)
        if number is not None and (number[1] in jobs or any(log.source.id in tasks for log in logs) or _unlike(logs)):
            arrays.update(log.source.id for log in logs)
    return arrays


def _unlike(logs: Sequence[LogRead]) -> bool:
    """All tell of their good end, and one of them after far fewer steps than another."""
    ended = [any(event.kind == "progress" and event.fields.get("ended") for event in log.events) for log in logs]
    metrics = [[event.fields.get("count", 0) for event in log.events if event.kind == "metric"] for log in logs]
    counts = [max(numbers, default=0) for numbers in metrics]
    return len(logs) > 1 and all(ended) and 0 < min(counts) < _AS_LONG * max(counts)


_AS_LONG = 0.9


def _coordinating(read: Read) -> Read:
    """A chief that hands out the work, as with TensorFlow's parameter servers, does none: workers count from 0."""
    if read.place.pod != "chief" or not any(fact.name == "coordinator" for fact in read.log.facts):
        return read
    return Read(replace(read.place, rank=None, pod=None), _renamed(read.log, None))


def _ranks_in_a_pod(reads: Sequence[Read], named: Sequence[int | None]) -> int:
    """By so many all who speak are in the pod that counting gives them: as many as speak in one of them, or the one
    number for which it comes out."""
    heard = [
        (pod, _ranks_in(read.log))
        for read, pod in zip(reads, named, strict=True)
        if read.place.pod is not None and pod is not None and read.log.source.rank is None
    ]
    spoke = {(rank, pod) for pod, ranks in heard for rank in ranks}
    fits = [n for n in range(1, _MOST_IN_A_POD + 1) if all(rank // n == pod for rank, pod in spoke)] if spoke else []
    each = max((len(ranks) for _, ranks in heard), default=1)
    spoken = each if each in fits else fits[0] if len(fits) == 1 else 1
    return max(spoken, _by_tables(reads, named), _by_agents(reads, named))


def _by_agents(reads: Sequence[Read], named: Sequence[int | None]) -> int:
    """So many processes torchrun's agents ended in each pod, where they tell of the same number in all of them."""
    logs = [read.log for read, pod in zip(reads, named, strict=True) if read.place.pod is not None and pod is not None]
    ended = [{hit[1] for e in log.events if (hit := _CLOSED.search(e.text)) is not None} for log in logs]
    counts = {len(processes) for processes in ended if processes}
    count = counts.pop() if len(counts) == 1 else 1
    return count if count <= _MOST_IN_A_POD else 1


_CLOSED = regex(r"\bSending process (\d{1,10}) closing signal SIGTERM\b")
_MOST_IN_A_POD = 16


def _ranks_in(log: LogRead) -> set[int]:
    speaking = {event.rank for event in log.events if event.rank is not None}
    return speaking | {fact.rank for fact in log.facts if fact.rank is not None}


def _by_tables(reads: Sequence[Read], named: Sequence[int | None]) -> int:
    """Where torchrun's tables tell by how much the ranks of a pod differ from their numbers in it: as many for each pod
    that comes before."""
    pods = [(read, pod) for read, pod in zip(reads, named, strict=True) if read.place.pod is not None and pod]
    rows = [(pod, [e for e in read.log.events if e.rank != read.log.source.rank]) for read, pod in pods]
    steps = {divmod(offset, pod) for pod, events in rows for offset in _of_table(events)}
    each, rest = steps.pop() if len(steps) == 1 else (1, 0)
    return each if 1 < each <= _MOST_IN_A_POD and not rest else 1


def _as_named(read: Read, rank: int | None, each: int) -> Read:
    if rank is None or read.log.rank_is_sure:
        return read
    if read.place.pod is not None and max(read.log.processes, each) > 1:
        return _as_node(read, rank, max(read.log.processes, each))
    free = rank != read.log.source.rank and _is_free(read, rank)
    return Read(read.place, _renamed(read.log, rank)) if free else read


def _counted(reads: Sequence[Read], arrays: Collection[str]) -> list[int | None]:
    """`mae_0.log` to `mae_7.log` are ranks where there are eight, where a scheduler tells of tasks 0 to 7, a launcher
    has ended eight, or where some of them say so themselves."""
    tasks = {event.rank for read in reads for event in read.log.events if event.kind == "exit"} - {None}
    families: dict[str, dict[int, int]] = defaultdict(dict)
    for at, read in enumerate(reads):
        if read.log.source.id not in arrays and (name := numbered(read.log.source.id)) is not None:
            families[name[0]][name[1]] = at
    ranks: list[int | None] = [None] * len(reads)
    for members in families.values():
        logs = {number: reads[at].log for number, at in members.items()}
        said = {number: who for number, log in logs.items() if (who := _says_it_is(log)) is not None}
        sizes = {fact.value for log in logs.values() for fact in log.facts if fact.name == "world_size"}
        agreed = all(number == who for number, who in said.items()) and (
            bool(said) or sizes == {len(members)} or tasks == members.keys() or _ended_together(reads) == {len(members)}
        )
        if len(members) > 1 and members.keys() == set(range(len(members))) and agreed:
            for number, at in members.items():
                ranks[at] = number
    return ranks


_KILLING = "Killing subprocess "


def _ended_together(reads: Sequence[Read]) -> set[int]:
    """How many processes DeepSpeed's launcher, or torch's of old, ended on its node, where it was several."""
    ended: dict[str, set[str]] = defaultdict(set)
    for read in reads:
        for event in read.log.events:
            if event.kind == "line" and _KILLING in event.text:
                ended[read.log.source.id].add(event.text.partition(_KILLING)[2])
    return {len(processes) for processes in ended.values() if len(processes) > 1}


def _says_it_is(log: LogRead) -> int | None:
    return log.stated_rank if log.source.rank is None else log.source.rank


def _with_stated(named: Sequence[int | None], reads: Sequence[Read]) -> list[int | None]:
    """Where those that are known and those that say who they are count from 0, each of them once."""
    known = [rank if rank is not None else read.log.source.rank for rank, read in zip(named, reads, strict=True)]
    both = [read.log.stated_rank if rank is None else rank for rank, read in zip(known, reads, strict=True)]
    ranks = sorted(rank for rank in both if rank is not None)
    once = len(ranks) > 1 and ranks == list(range(len(ranks)))
    return [said if once and rank is None else rank for rank, said in zip(named, both, strict=True)]


def _by_process(named: Sequence[int | None], reads: Sequence[Read]) -> list[int | None]:
    """Ray ends the name of a worker's file with its process, and its driver's log may say which rank that is."""
    ranks: dict[int, set[int]] = defaultdict(set)
    for read in reads:
        for fact in read.log.facts:
            if fact.name == "pid" and fact.rank is not None:
                ranks[fact.value].add(fact.rank)
    return [
        min(ranks[pid]) if rank is None and (pid := process_of(read.log.source.id)) and len(ranks[pid]) == 1 else rank
        for rank, read in zip(named, reads, strict=True)
    ]


_ON_A_NODE = 16


def _beside_records(named: Sequence[int | None], reads: Sequence[Read]) -> list[int | None]:
    """Stacks in `spy_0.txt` or `pyspy_r077.txt`, of whom the recorders of collectives know a rank of that number, or so
    many ranks speak that it is no number on a node: who looks into processes numbers them as they do, or by the number
    of the process, which stands in the file."""
    recorded = {read.log.source.rank for read in reads if read.log.source.kind == "trace"} - {None}
    heard = [event.rank for read in reads for event in read.log.events if event.rank is not None]
    known = recorded or set(range(_ON_A_NODE, max(heard, default=0) + 1))
    ranks = list(named)
    for at, read in enumerate(reads) if known else ():
        stacks = [event for event in read.log.events if event.kind == "stack"]
        of_one = len([event for event in stacks if event.fields.get("main")]) == 1
        free = of_one and ranks[at] is None and read.log.source.rank is None
        name = numbered(read.log.source.id.rsplit("/", 1)[-1]) if free else None
        if name and name[1] in known and name[1] not in {event.fields.get("pid") for event in stacks}:
            ranks[at] = name[1]
    return ranks


def _as_node(read: Read, number: int, each: int) -> Read:
    """A pod in which a launcher starts several processes is a node: its number counts such nodes, not ranks."""
    log = read.log
    pod, nobodys = log.source.name, _renamed(log, None)
    ranks = range(number * each, (number + 1) * each) if number < MAX_WORLD_SIZE else range(0)
    facts = [*nobodys.facts, *(Fact("host", pod, log.source.id, None, rank) for rank in ranks)]
    events = [event if event.host else replace(event, host=pod) for event in nobodys.events]
    return Read(replace(read.place, rank=None), replace(nobodys, events=events, facts=facts))


def _is_free(read: Read, rank: int | None = None) -> bool:
    """Nobody speaks in it by prefix, or only who it is named after, nor does a launcher tell of others: the file is one
    rank's."""
    own = (read.log.source.rank, rank)
    told = any(event.fields.get("first_observed") and event.rank not in own for event in read.log.events)
    return not told and all(event.rank in own or event.kind in ("exit", "progress") for event in read.log.events)


def _renamed(log: LogRead, rank: int | None) -> LogRead:
    old = log.source.rank
    return replace(
        log,
        source=replace(log.source, rank=rank),
        events=[replace(event, rank=rank) if event.rank == old else event for event in log.events],
        facts=[replace(fact, rank=rank) if fact.rank == old else fact for fact in log.facts],
    )


def _with_global_ranks(reads: Sequence[Read]) -> list[LogRead]:
    """torchrun names its folders after local ranks; where torch or its own table has named one rank of a node, the
    others follow."""
    offsets: dict[str, set[int]] = {}
    runs = {read.place.run for read in reads if read.place.run is not None and read.place.rank is not None}
    within: dict[str, list[str]] = {}
    for run in runs:
        for slash in re.finditer("/", run):
            within.setdefault(run[: slash.start()], []).append(run)
    for read in reads:
        below = within.get(read.log.source.id.rpartition("/")[0], ())
        if len(below) == 1 and read.place.rank is None:
            offsets.setdefault(below[0], set()).update(_of_table(read.log.events))
    for read in reads:
        if read.place.run is not None and read.place.rank is not None and read.log.rank_is_sure:
            offsets.setdefault(read.place.run, set()).add((read.log.source.rank or 0) - read.place.rank)
    return [_moved(read, offsets.get(read.place.run or "", set())) for read in reads]


def _of_table(events: Sequence[Event]) -> Iterator[int]:
    """How far the job's ranks are from the node's, by the rows that name both."""
    for event in events:
        local = event.fields.get("local_rank") if event.kind == "exit" else None
        if event.rank is not None and isinstance(local, int):
            yield event.rank - local


def _moved(read: Read, offsets: set[int]) -> LogRead:
    log, local = read.log, read.place.rank
    if len(offsets) != 1 or offsets == {0} or local is None or log.rank_is_sure:
        return log
    rank = local + next(iter(offsets))
    return _renamed(log, rank) if 0 <= rank <= MAX_WORLD_SIZE else log  # else the named one is of another job


def _heard(events: Sequence[Event]) -> tuple[Event, ...]:
    """Without the tracebacks that torchrun's table quotes of ranks that were heard themselves."""
    own = {(e.attempt, e.rank) for e in events if e.kind == "traceback" and not e.fields.get("quoted")}
    return tuple([e for e in events if not (e.fields and e.fields.get("quoted")) or (e.attempt, e.rank) not in own])


def _ends(events: tuple[Event, ...]) -> tuple[Event, ...]:
    """Where other launchers tell of their processes, srun's tasks are those launchers, one on each node."""
    if not names_processes(events):
        return events
    return tuple(replace(e, rank=None) if e.kind == "exit" and e.fields.get("by_srun") else e for e in events)


def _run_id(sources: Iterable[Source], events: Sequence[Event]) -> str:
    """The same input gives the same id."""
    digest = hashlib.sha256()
    for source in sources:
        digest.update(f"{source.id}\0{source.bytes}\0{source.lines}\0".encode("utf-8", "replace"))
    for start in range(0, len(events), 1_000):
        said = "".join([f"{e.kind}\0{e.line}\0{e.text}\0" for e in events[start : start + 1_000]])
        digest.update(said.encode("utf-8", "replace"))
    return digest.hexdigest()[:12]
