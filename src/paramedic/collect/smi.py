"""What nvidia-smi showed: its table, `--query-gpu` and `--query-compute-apps` as CSV, `dmon`, `pmon` and `-q`, and what
DCGM's exporter shows to Prometheus, in files of their own or pasted into a log → what each GPU was like over all looks,
and which processes held its memory."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from paramedic.regex import regex

LITERALS = (
    "NVIDIA-SMI ", ".0 Off |", ".0 On |", "| Processes:", "--query-gpu=", "--query-compute-apps=", "temperature.gpu",
    "utilization.gpu", "clocks.current.", "clocks_throttle_reasons.", "clocks_event_reasons.", "memory.used",
    "used_gpu_memory", "# gpu ", "#gpu, ", "#Date ", "#Time ", "NVSMI LOG", "DCGM_FI_DEV_",
)  # fmt: skip
"""One of them stands in the first line of whatever is read here."""
GPU, PROCESS = "smi gpu", "smi process"
"""Kinds of the events."""

SLOWED = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Reasons for a lower clock that are no normal way to run, as a power cap (0x04) and an idle clock (0x01) are."""
_BY_NAME = {
    "hw_slowdown": SLOWED[0x8],
    "sw_thermal_slowdown": SLOWED[0x20],
    "hw_thermal_slowdown": SLOWED[0x40],
    "hw_power_brake_slowdown": SLOWED[0x80],
}
MOST_ROWS = 100_000
_MOST_LOOKS = 2_048
"""Of one GPU, the last ones."""
_MOST_GPUS, _MOST_PROCESSES = 2_048, 4_096
_STRANGE = 40
"""So many lines in a row that do not fit end a table: a log may go on between its rows."""
_BUSY = 30
"""Percent: below it a clock says nothing."""
MAX_LINE = 1_000

_NODE = r"(?P<node>[A-Za-z0-9][\w.-]{0,80})"
_COMMANDS = (
    regex(rf"\bssh (?:-\S{{1,40}} (?:\d{{1,6}} )?){{0,4}}(?:[\w.-]{{1,40}}@)?{_NODE} .{{0,200}}?nvidia-smi"),
    regex(rf"\bsrun .{{0,120}}?(?:-w|--nodelist)[ =]?{_NODE} .{{0,200}}?nvidia-smi"),
    regex(rf"\bkubectl .{{0,80}}?\bexec (?:-\S{{1,20}} ){{0,4}}(?:pod/)?{_NODE} .{{0,120}}?nvidia-smi"),
    regex(rf"^\W{{0,12}}{_NODE}:~? .{{0,40}}?nvidia-smi"),
    regex(rf"[\w.-]{{1,40}}@{_NODE}[: ].{{0,120}}?[$#%] .{{0,200}}?nvidia-smi"),
)
"""How a line that calls nvidia-smi tells where."""
_QUERY = regex(r"--query-(?P<what>gpu|compute-apps)[= ]['\"]?(?P<columns>[a-z_.]{2,60}(?:, ?[a-z_.0-9]{2,60}){1,60})")
_COLUMN = regex(r"([a-z][a-z_]{0,40}(?:\.[a-z0-9_]{1,40}){0,4})(?: \[[A-Za-z%/]{1,8}\])?")
_KNOWN = (
    "temperature.", "utilization.", "clocks", "memory.", "power.", "used_gpu_memory", "used_memory", "pstate", "fan.",
)  # fmt: skip
_BEFORE_ROW = regex(rf"{_NODE}: (?=\S)")
_A_BUS = regex(r"(?:[0-9A-Fa-f]{4,8}:)?([0-9A-Fa-f]{2}:[0-9A-Fa-f]{2})\.[0-9A-Fa-f]")
_NAMES_GPU = {"index": regex(r"\d{1,3}"), "bus": _A_BUS, "uuid": regex(r"(?:GPU|MIG)-[\w/-]{8,60}")}
_HEX = regex(r"0x[0-9A-Fa-f]{1,16}")
_NUMBER = regex(r"(\d{1,9})(?:\.\d{1,6})?(?: ?(?:%|W|MHz|MiB|C))?")

_CARD = regex(
    r"\|\s{1,5}(?P<index>\d{1,3})\s.{0,90}?\|\s{0,6}(?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s"
)
_TEMPERATURE = regex(r"\s(\d{1,3})C\s")
_POWER = regex(r"\s(\d{1,5})W /")
_MEMORY = regex(r"\s(\d{1,8})MiB / {1,4}(\d{1,8})MiB")
_USED = regex(r"MiB {1,4}\|\s{1,20}(\d{1,3})%\s")
_UNCORRECTED = regex(r"\|\s{0,24}(\d{1,9})\s{0,4}\|$")
"""Of a GPU's first row; `N/A`, `Off` and, where it is divided, `On` are no counts."""
_UNREADABLE = "ERR!"
_BESIDE_FAN = regex(r"\|\s{0,3}(?:N/A|ERR!|\d{1,3}%)\s{1,6}(?:ERR!|\d{1,3}C\s{1,6}ERR!)\s")
"""Neither temperature nor state can be read. A fan or a power sensor alone says little."""
_MIG = regex(r"\|\s{1,24}Enabled\*?\s{0,4}\|$")
_HOLDER = regex(
    r"\|\s{1,6}(?P<gpu>\d{1,3})\s{1,8}(?:(?P<instance>N/A|\d{1,3})\s{1,6}(?:N/A|\d{1,3})\s{1,20})?(?P<pid>\d{1,10})\s{1,8}"
    r"(?P<type>C\+G|M\+C|C|G|M)\s{1,8}(?P<name>\S.{0,120}?)\s{1,60}+(?:(?P<memory>\d{1,8}) ?MiB|N/A)\s{0,4}\|"
)
_DMON = {"pwr": "power", "gtemp": "temperature", "temp": "temperature", "sm": "busy", "pclk": "clock", "fb": "used"}
_MONITORED = frozenset(("pid", "mclk", *_DMON))
_HEADING = regex(r"#\s{0,2}(?:Date\s{1,12})?(?:Time\s{1,14})?(?:Date,? ?)?(?:Time,? ?)?gpu[\s,]", re.I)

_OF_LOG = regex(r"(?P<indent> {0,16})(?P<name>\S.{0,60}?)(?: {0,60}: (?P<value>.{0,120}))?$")
_CARD_OF_LOG = regex(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])$")
_REASONS = ("Clocks Event Reasons", "Clocks Throttle Reasons")
_ECC = "ECC Errors"
_COUNTERS = regex(r"(?:SRAM|DRAM) Uncorrectable(?: [A-Z][\w-]{0,20})?")
"""Of the volatile errors, as recent drivers list them; older ones have a total of double bits."""
_LOST = ("GPU is lost", "GPU requires reset", "Unknown Error")
_TELLING = ("Product Name", "GPU Current Temp", "Performance State")
"""Every GPU that works has them; a fan or a power sensor may be missing without harm."""


@dataclass(slots=True)
class _Look:
    """One GPU at one moment; None for what was not shown."""

    line: int
    text: str
    snapshot: int
    temperature: int | None = None
    power: int | None = None
    clock: int | None = None
    most: int | None = None
    busy: int | None = None
    used: int | None = None
    total: int | None = None
    reasons: set[str] | None = None
    uncorrected: int | None = None
    unread: bool = False
    """The driver could not read what every GPU that works has."""
    bad_line: int = 0
    bad_text: str = ""
    """Where that, or how many errors, stands."""

    def count(self, errors: int, line: int, text: str) -> None:
        self.uncorrected = (self.uncorrected or 0) + errors
        if errors:
            self.bad_line, self.bad_text = line, text.strip()

    def not_read(self, line: int, text: str) -> None:
        if not self.unread:
            self.unread, self.bad_line, self.bad_text = True, line, text.strip()

    @property
    def works(self) -> bool:
        return self.busy is None or self.busy >= _BUSY


@dataclass(slots=True)
class _Card:
    node: str
    index: int | None = None
    bus: str = ""
    uuid: str = ""
    name: str = ""
    place: int | None = None
    """In a list of all GPUs."""
    divided: bool = False
    """Into parts (MIG), each with processes of its own."""
    looks: deque[_Look] = field(default_factory=lambda: deque(maxlen=_MOST_LOOKS))

    def told(self, snapshot: int | None) -> tuple[int, str, dict[str, Any]]:
        """The line that shows it best, and, as plain texts and numbers, what all looks together say. Memory and use are
        those of the moment at which the processes were listed, where they were."""
        at_work = [look for look in self.looks if look.works]
        slowed = Counter(reason for look in at_work for reason in look.reasons or ())
        then = next((look for look in reversed(self.looks) if look.snapshot == snapshot), self.looks[-1])
        shown = next((look for look in reversed(at_work) if look.reasons), then)
        fields = {
            "node": self.node, "index": self.index, "bus": self.bus, "uuid": self.uuid, "name": self.name,
            "divided": self.divided, "looks": len(self.looks), "at_work": len(at_work),
            "slowed": "\n".join(f"{times} {why}" for why, times in slowed.items()),
            "reasons": any(look.reasons is not None for look in at_work),
            **{name: _usual(name, at_work) for name in ("temperature", "power", "clock", "most", "busy")},
            "used": then.used, "total": then.total, "busy_then": then.busy, **self._bad(),
        }  # fmt: skip
        return shown.line, shown.text, fields

    def _bad(self) -> dict[str, Any]:
        """Of the last look that shows errors, or values that could not be read."""
        look = next((look for look in reversed(self.looks) if look.uncorrected or look.unread), None)
        if look is None:
            return {}
        told = {"uncorrected": look.uncorrected or 0, "unread": look.unread}
        return {**told, "bad_line": look.bad_line, "bad_text": look.bad_text}


def _usual(name: str, looks: Sequence[_Look]) -> float | None:
    values = [value for look in looks if (value := getattr(look, name)) is not None]
    return float(median(values)) if values else None


@dataclass(frozen=True, slots=True)
class _Holder:
    """A process that holds memory of a GPU."""

    gpu: tuple[str, str]
    pid: int
    kind: str
    name: str
    memory: int | None
    line: int
    text: str


_Row = Callable[[str, int], bool]


class Smi:
    """Fed with lines, from one with one of LITERALS on as long as it is `open`."""

    def __init__(self) -> None:
        self._cards: list[_Card] = []
        self._known: dict[tuple[str, str, str], _Card] = {}
        self._holders: dict[str, dict[tuple[tuple[str, str], int], _Holder]] = {}
        self._of_snapshot: dict[str, int] = {}
        self._row: _Row | None = None
        self._strange = 0
        self._rows = 0
        self._node = ""
        self._snapshot = 0
        self._columns: list[str] = []
        self._card: _Card | None = None
        self._in_processes = False
        self._section = ""
        self._within: dict[int, str] = {}
        self._attached, self._listed = 0, 0
        self._pid: dict[str, str] = {}
        self._said_by_exporter: dict[int, set[str]] = {}

    @property
    def open(self) -> bool:
        return self._row is not None

    @property
    def cut(self) -> bool:
        return self._rows >= MOST_ROWS

    def feed(self, text: str, line: int) -> None:
        text = text[:MAX_LINE].rstrip()
        if self.cut:
            self._row = None
        elif self._begins(text, line):
            self._strange = 0
        elif self._row is not None:
            fits = self._row(text, line)
            self._rows += 1
            self._strange = 0 if fits else self._strange + 1
            if self._strange > _STRANGE:
                self._row = None

    def found(self) -> Iterator[tuple[str, int, str, dict[str, Any]]]:
        """(kind, line, text, fields) of each GPU and of each process of the last moment at which any were listed."""
        for card in self._cards:
            if card.index is None and self._attached == self._listed:
                card.index = card.place
            if card.looks:
                yield (GPU, *card.told(self._of_snapshot.get(card.node)))
        for node, holders in self._holders.items():
            for one in holders.values():
                fields = {
                    "node": node, one.gpu[0]: int(one.gpu[1]) if one.gpu[0] == "index" else one.gpu[1], "pid": one.pid,
                    "type": one.kind, "name": one.name, "memory": one.memory,
                }  # fmt: skip
                yield PROCESS, one.line, one.text, fields

    # -- what begins -----------------------------------------------------------------------------------------------

    def _begins(self, text: str, line: int) -> bool:
        if "nvidia-smi" in text:
            self._called(text)
        if self._row != self._table_row and ("NVIDIA-SMI " in text or "| Processes:" in text or _drawn_card(text)):
            self._row = self._table_row
            self._snapshot += 1
            self._card, self._in_processes = None, False
            self._table_row(text, line)
            return True
        if (query := _QUERY.search(text)) is not None:
            self._head([name.strip() for name in query["columns"].split(",")])
            return True
        if self._row != self._exporter_row and _EXPORTED.match(text):
            self._row = self._exporter_row
            self._snapshot += 1
            self._said_by_exporter = {}
            return self._exporter_row(text, line)
        if "NVSMI LOG" in text:
            self._row, self._card, self._section, self._within = self._log_row, None, "", {}
            self._snapshot += 1
            self._attached = self._listed = 0
            return True
        if _HEADING.match(text) and not _MONITORED.isdisjoint(
            names := text.lstrip("# ").lower().replace(",", " ").split()
        ):
            self._columns, self._row = names, self._monitor_row
            return True
        return "," in text and self._head_row(text)

    def _called(self, text: str) -> None:
        hits = (pattern.search(text[:600]) for pattern in _COMMANDS)
        named = next((hit["node"] for hit in hits if hit is not None), "")
        self._node = "" if named in ("nvidia-smi", "sudo", "watch") else named

    def _head_row(self, text: str) -> bool:
        """A line of a CSV table that names its columns."""
        said = _BEFORE_ROW.match(text)
        cells = [_COLUMN.fullmatch(cell.strip(" \"'")) for cell in text[said.end() if said else 0 :].split(",")]
        names = [cell[1] for cell in cells if cell is not None]
        if len(names) < len(cells) or len(names) < 2 or not any(name.startswith(_KNOWN) for name in names):
            return False
        return self._head(names)

    def _head(self, names: Sequence[str]) -> bool:
        """Where rows do not say of which GPU they are they are of none."""
        columns = [_SAME.get(name, name) for name in names]
        known = any(name in columns for name in ("index", "uuid", "bus", "pid"))
        self._columns = columns if known else []
        self._row = self._query_row if known else None
        self._snapshot += 1
        return known

    # -- its table -------------------------------------------------------------------------------------------------

    def _table_row(self, text: str, line: int) -> bool:
        text = text[max(text.find("|"), 0) :]
        if not text.startswith(("|", "+")) and "+--" not in text:
            return not text.strip()
        if "NVIDIA-SMI " in text:
            self._snapshot += 1
        if "Processes:" in text or "MIG devices:" in text:
            self._card, self._in_processes = None, "Processes:" in text
        elif (found := _CARD.match(text)) is not None:
            self._card, self._in_processes = self._of(self._node, index=int(found["index"]), bus=found["bus"]), False
            look = self._look(self._card, line, text)
            if (errors := _UNCORRECTED.search(text)) is not None:
                look.count(int(errors[1]), line, text)
            elif _UNREADABLE in text:
                look.not_read(line, text)
        elif self._in_processes and (held := _HOLDER.match(text)) is not None:
            self._hold(("index", held["gpu"]), held, line, text)
            if (held["instance"] or "N/A") != "N/A":
                self._of(self._node, index=int(held["gpu"])).divided = True
        if self._card is not None:
            self._shown_beside(self._card, text, line)
        return True

    def _shown_beside(self, card: _Card, text: str, line: int) -> None:
        """The lines below a GPU's name: temperature, power, memory and use."""
        if not card.looks:
            return
        look = card.looks[-1]
        if (memory := _MEMORY.search(text)) is not None:
            look.used, look.total = int(memory[1]), int(memory[2])
            look.line, look.text = line, text
        for name, pattern in (("temperature", _TEMPERATURE), ("power", _POWER), ("busy", _USED)):
            if (found := pattern.search(text)) is not None:
                setattr(look, name, int(found[1]))
        if _BESIDE_FAN.match(text):
            look.not_read(line, text)
        card.divided = card.divided or _MIG.search(text) is not None

    # -- tables as CSV ---------------------------------------------------------------------------------------------

    def _query_row(self, text: str, line: int) -> bool:
        cells = [cell.strip(" \"'") for cell in text.split(",")]
        node = self._node
        if (said := _BEFORE_ROW.match(text)) is not None:
            node, cells[0] = said["node"], text[said.end() :].partition(",")[0].strip(" \"'")
        if len(cells) != len(self._columns):
            return False
        row = dict(zip(self._columns, cells, strict=True))
        if not all(pattern.fullmatch(row[name]) for name, pattern in _NAMES_GPU.items() if name in row):
            return False
        if "pid" in row:
            return self._holding_row(node, row, line, text)
        card = self._of(node, int(row["index"]) if "index" in row else None, row.get("bus", ""), row.get("uuid", ""))
        card.name = row.get("name", card.name)[:80]
        look = self._look(card, line, text)
        for column, name in _VALUES.items():
            if column in row and (number := _NUMBER.fullmatch(row[column])) is not None:
                setattr(look, name, int(number[1]))
        look.reasons = _reasons(row)
        if (errors := _NUMBER.fullmatch(row.get(_VOLATILE, ""))) is not None:
            look.count(int(errors[1]), line, text)
        if any(_is_lost(row.get(name, "")) for name in ("name", "temperature.gpu", "pstate", "memory.used")):
            look.not_read(line, text)
        return True

    def _holding_row(self, node: str, row: Mapping[str, str], line: int, text: str) -> bool:
        where = next((name for name in ("index", "bus", "uuid") if name in row), None)
        if where is None or not row["pid"].isdecimal() or len(row["pid"]) > 10:
            return False
        memory = _NUMBER.fullmatch(row.get("memory", ""))
        gpu = _bus(row[where]) if where == "bus" else row[where]
        held = {"pid": row["pid"], "type": "C", "name": row.get("process_name", ""), "memory": memory and memory[1]}
        self._hold((where, gpu), held, line, text, node)
        return True

    # -- dmon and pmon ---------------------------------------------------------------------------------------------

    def _monitor_row(self, text: str, line: int) -> bool:
        if text.startswith("#"):
            return True
        cells = text.replace(",", " ").split(maxsplit=len(self._columns) - 1)
        if len(cells) != len(self._columns):
            return False
        row = dict(zip(self._columns, cells, strict=True))
        if not (row["gpu"].isdecimal() and len(row["gpu"]) < 4):
            return False
        if "pid" in row:
            memory = row.get("fb", "-")
            if row["pid"].isdecimal() and len(row["pid"]) <= 10:
                held = {"pid": row["pid"], "type": row.get("type", "C"), "name": row.get("command", "")}
                self._hold(
                    ("index", row["gpu"]),
                    {**held, "memory": memory if memory.isdecimal() and len(memory) < 9 else None},
                    line,
                    text,
                )
            return True
        look = self._look(self._of(self._node, index=int(row["gpu"])), line, text)
        for column, name in _DMON.items():
            if (value := row.get(column, "-")).isdecimal() and len(value) < 9:
                setattr(look, name, int(value))
        if "tviol" in row:
            look.reasons = {SLOWED[0x40]} if row["tviol"] == "1" else set()
        return True

    # -- DCGM's exporter -------------------------------------------------------------------------------------------

    def _exporter_row(self, text: str, line: int) -> bool:
        """`DCGM_FI_DEV_SM_CLOCK{gpu="5",Hostname="node-3"} 1290`: a value of one GPU; the same once more is of a later
        moment."""
        found = _EXPORTED.match(text)
        if found is None:
            return text.startswith("#")
        labels = dict(_LABEL.findall(found["labels"]))
        gpu = labels.get("gpu", "")
        if not (gpu.isdecimal() and len(gpu) < 4):
            return True
        card = self._of(labels.get("Hostname", "")[:80] or self._node, index=int(gpu))
        card.name = labels.get("modelName", card.name)[:80]
        said = self._said_by_exporter.setdefault(id(card), set())
        if not card.looks or found["what"] in said:
            self._look(card, line, text)
            said.clear()
        said.add(found["what"])
        value = float(found["value"]) if len(found["value"]) < 16 else 0.0
        self._exported(card.looks[-1], found["what"], int(value), line, text)
        return True

    def _exported(self, look: _Look, what: str, value: int, line: int, text: str) -> None:
        if what in _OF_EXPORTER:
            setattr(look, _OF_EXPORTER[what], value)
        elif what in ("CLOCK_THROTTLE_REASONS", "CLOCKS_EVENT_REASONS"):
            look.reasons = {why for bit, why in SLOWED.items() if value & bit}
            look.line, look.text = (line, text.strip()) if look.reasons else (look.line, look.text)
        elif what == "ECC_DBE_VOL_TOTAL":
            look.count(value, line, text)

    # -- nvidia-smi -q ---------------------------------------------------------------------------------------------

    def _log_row(self, text: str, line: int) -> bool:
        if not text:
            return True
        if (found := _CARD_OF_LOG.match(text)) is not None:
            self._card = self._of(self._node, bus=found[1])
            self._card.place = self._listed
            self._look(self._card, line, text)
            self._section, self._within = "", {}
            self._listed += 1
            return True
        found = _OF_LOG.match(text)
        if found is None or (not found["indent"] and found["value"] is None):
            return False
        name, value = found["name"].strip(), (found["value"] or "").strip()
        if name == "Attached GPUs" and value.isdecimal():
            self._attached = int(value[:4])
        if found["value"] is None:
            self._open(name, len(found["indent"]))
        elif self._card is not None and self._card.looks:
            self._said_of(self._card.looks[-1], name, value, line, text)
        return True

    def _open(self, name: str, indent: int) -> None:
        """A section of a GPU, or one within it."""
        if indent == 4:
            self._section, self._within = name, {}
        else:
            self._within = {depth: kept for depth, kept in self._within.items() if depth < indent} | {indent: name}

    def _is_counter(self, name: str) -> bool:
        """Of errors since the driver was loaded that nobody could correct, each once."""
        if self._section != _ECC or self._within.get(8) != "Volatile":
            return False
        return _COUNTERS.fullmatch(name) is not None or (self._within.get(12), name) == ("Double Bit", "Total")

    def _said_of(self, look: _Look, name: str, value: str, line: int, text: str) -> None:
        number = _NUMBER.fullmatch(value)
        if number is not None and self._is_counter(name):
            look.count(int(number[1]), line, text)
        elif name in _TELLING and _is_lost(value):
            look.not_read(line, text)
        elif self._section in _REASONS:
            look.reasons = look.reasons or set()
            reason = _BY_NAME.get({"hw_power_brake": "hw_power_brake_slowdown"}.get(_snake(name), _snake(name)))
            if reason is not None and value == "Active":
                look.reasons.add(reason)
                look.line, look.text = line, text
        elif number is not None and (kept := _OF_SECTION.get((self._section, name))) is not None:
            setattr(look, kept, int(number[1]))
        elif self._section == "Processes":
            self._pid = {"pid": value} if name == "Process ID" else {**self._pid, name: value}
            memory = _NUMBER.fullmatch(self._pid.get("Used GPU Memory", ""))
            if name == "Used GPU Memory" and self._card is not None and self._pid.get("pid", "").isdecimal():
                held = {
                    "pid": self._pid["pid"][:10],
                    "type": self._pid.get("Type", "C"),
                    "name": self._pid.get("Name", ""),
                }
                self._hold(("bus", self._card.bus), {**held, "memory": memory and memory[1]}, line, text)

    # -- what is kept ----------------------------------------------------------------------------------------------

    def _of(self, node: str, index: int | None = None, bus: str = "", uuid: str = "") -> _Card:
        """The same GPU by whatever is said of it."""
        said = {"index": "" if index is None else str(index), "bus": _bus(bus), "uuid": uuid[:60]}
        keys = [(node, name, value) for name, value in said.items() if value]
        card = next((self._known[key] for key in keys if key in self._known), None)
        if card is None:
            card = _Card(node)
            if len(self._cards) < _MOST_GPUS:
                self._cards.append(card)
        if len(self._known) < 4 * _MOST_GPUS:
            self._known.update(dict.fromkeys(keys, card))
        card.index = card.index if index is None else index
        card.bus, card.uuid = said["bus"] or card.bus, said["uuid"] or card.uuid
        return card

    def _look(self, card: _Card, line: int, text: str) -> _Look:
        card.looks.append(_Look(line, text.strip(), self._snapshot))
        return card.looks[-1]

    def _hold(
        self,
        gpu: tuple[str, str],
        held: Mapping[str, Any] | re.Match[str],
        line: int,
        text: str,
        node: str | None = None,
    ) -> None:
        """A process that is listed on the same GPU again is of a later moment: what was known before is forgotten."""
        node = self._node if node is None else node
        pid, memory = int(held["pid"]), held["memory"]
        known = self._holders.setdefault(node, {}) if len(self._holders) < _MOST_GPUS else {}
        if (gpu, pid) in known or self._of_snapshot.get(node, self._snapshot) != self._snapshot:
            known.clear()
        self._of_snapshot[node] = self._snapshot
        if len(known) < _MOST_PROCESSES:
            name = str(held["name"])[:120]
            known[gpu, pid] = _Holder(gpu, pid, held["type"], name, int(memory) if memory else None, line, text.strip())


_EXPORTED = regex(
    r"DCGM_FI_DEV_(?P<what>[A-Z][A-Z_]{1,60})\{(?P<labels>[^}\n]{0,900})\} "
    r"(?P<value>\d{1,15}(?:\.\d{1,12})?)(?: \d{10,13})?$"
)
_LABEL = regex(r'([A-Za-z_]\w{0,60})="([^"\n]{0,200})"')
_OF_EXPORTER = {
    "SM_CLOCK": "clock",
    "GPU_TEMP": "temperature",
    "POWER_USAGE": "power",
    "GPU_UTIL": "busy",
    "FB_USED": "used",
}
_VOLATILE = "ecc.errors.uncorrected.volatile.total"
_SAME = {
    "gpu_uuid": "uuid",
    "pci.bus_id": "bus",
    "gpu_bus_id": "bus",
    "gpu_name": "name",
    "clocks.sm": "clocks.current.sm",
    "clocks.gr": "clocks.current.graphics",
    "clocks.current.gr": "clocks.current.graphics",
    "used_memory": "memory",
    "used_gpu_memory": "memory",
}
_VALUES = {
    "temperature.gpu": "temperature",
    "power.draw": "power",
    "power.draw.average": "power",
    "power.draw.instant": "power",
    "clocks.current.graphics": "clock",
    "clocks.current.sm": "clock",
    "clocks.max.graphics": "most",
    "clocks.max.sm": "most",
    "utilization.gpu": "busy",
    "memory.used": "used",
    "memory.total": "total",
}
_OF_SECTION = {
    ("Temperature", "GPU Current Temp"): "temperature",
    ("Clocks", "SM"): "clock",
    ("Max Clocks", "SM"): "most",
    ("Utilization", "GPU"): "busy",
    ("Utilization", "Gpu"): "busy",
    ("FB Memory Usage", "Used"): "used",
    ("FB Memory Usage", "Total"): "total",
    ("GPU Power Readings", "Power Draw"): "power",
    ("GPU Power Readings", "Average Power Draw"): "power",
    ("Power Readings", "Power Draw"): "power",
}


def is_table(head: bytes) -> bool:
    """The first bytes of a file are those of a table that nvidia-smi writes as CSV, perhaps below the command."""
    lines = head.decode("utf-8", "replace").removeprefix("\ufeff").split("\n")[:8]
    seen = Smi()
    for number, line in enumerate(lines, 1):
        seen.feed(line, number)
        if seen.open:
            return True
    return False


def _drawn_card(text: str) -> bool:
    return "|" in text and _CARD.match(text[text.find("|") :]) is not None


def _reasons(row: Mapping[str, str]) -> set[str] | None:
    """From the bits or from a column for each; None where neither is there."""
    found: set[str] | None = None
    for column, cell in row.items():
        group, _, reason = column.rpartition(".")
        if not group.startswith(("clocks_throttle_reasons", "clocks_event_reasons")):
            continue
        if reason == "active" and _HEX.fullmatch(cell):
            bits = int(cell, 16)
            found = (found or set()) | {why for bit, why in SLOWED.items() if bits & bit}
        elif reason in _BY_NAME and cell in ("Active", "Not Active"):
            found = (found or set()) | ({_BY_NAME[reason]} if cell == "Active" else set())
    return found


def _is_lost(value: str) -> bool:
    return value.strip("[]") in _LOST


def _snake(name: str) -> str:
    return name.lower().replace(" ", "_")


def _bus(text: str) -> str:
    """As `ab:00`, which is also how NCCL's are kept."""
    found = _A_BUS.fullmatch(text)
    return found[1].lower() if found else ""
