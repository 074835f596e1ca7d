"""Records what a rank hands over and gets back, its batches, its random numbers and its state. It changes nothing, and
when it fails it says so and lets the program go on."""

from __future__ import annotations

import functools
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from . import calls, prints
from .fingerprint import environment
from .groups import recording_group
from .program import Listener, Program, replace_group
from .state import State, is_of_optimizer, random_states
from .tape import SMALL, VERSION, Tape, folder_of, packed

VARIABLE = "PARAMEDIC_RECORD"
F = TypeVar("F", bound=Callable[..., Any])
_SELDOM = 8  # steps between two looks at all parameters where no payload is kept
_LITTLE = 4 << 20  # bytes of optimizer states that are looked at after every step
_FOR_GOOD = 10  # every so many steps the print of each tensor stays, for whoever holds a checkpoint against it


def harmless(method: F) -> F:
    """Whatever goes wrong in here ends the recording, not the program."""

    @functools.wraps(method)
    def called(self: Any, *arguments: Any) -> Any:
        if not self.is_on:
            return None
        try:
            return method(self, *arguments)
        except Exception as error:
            self.give_up(f"{type(error).__name__}: {str(error)[:200]}")
            return None

    return called  # type: ignore[return-value]


class Recorder(Listener):
    """One rank's. Payloads go to the segment of the step that they belong to; of a ring, the oldest are dropped."""

    def __init__(self, folder: str, options: dict[str, Any]) -> None:
        self.folder = folder
        self.payload = str(options.get("payload", "ring"))
        self.last = max(1, int(options.get("last", 8)))
        self.limit = int(options.get("limit", 32 << 30))
        self.redact = bool(options.get("redact_data"))
        self.state = State()
        self.program = Program(self, self.state)
        self.tape: Tape | None = None
        self.is_on = True
        self.paused = False
        """For whoever measures what recording costs."""
        self.groups: list[Any] = []
        self.kind: Any = None
        self.calls = 0
        self.of_group: dict[str, int] = {}
        self.states: list[int] = []
        self.keep_until: int | None = None
        self.stores = self.payload != "hash"
        self._lock = threading.Lock()
        self._told: set[str] = set()
        self._head: dict[str, Any] = {}
        self._optimizer_is_small = True
        self._names: list[str] = []
        self._replicas: dict[str, list[str]] = {}

    # -- life ------------------------------------------------------------------------------------------------------

    def give_up(self, why: str) -> None:
        self.is_on = False
        try:
            if self.tape is not None:
                self.tape.line({"k": "off", "why": why})
            sys.stderr.write(f"paramedic: recording of this rank ended: {why}\n")
        except Exception:
            return

    def forget(self) -> None:
        """In a forked child: it is not the rank."""
        self.is_on = False
        self._lock = threading.Lock()

    def tell(self, kind: str, **said: Any) -> None:
        if self.tape is not None:
            self.tape.line(dict({"k": kind, "s": self.program.steps}, **said))
            if self.tape.logged > self.limit and self.is_on:
                self.give_up("its log alone has reached --max-disk")

    def tell_once(self, kind: str, **said: Any) -> None:
        if kind + json.dumps(said) not in self._told:
            self._told.add(kind + json.dumps(said))
            self.tell(kind, **said)

    def _begin(self, rank: int, size: int) -> None:
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self.tape = Tape(folder_of(self.folder, rank, int(attempt) if attempt.isdigit() else 0), self.limit)
        self._head = {
            "rank": rank, "world_size": size, "pid": os.getpid(), "at": time.time(), "prints": prints.NAME,
            "payload": self.payload, "last": self.last, "redacted": self.redact,
        }  # fmt: skip
        self._tell_environment()
        self.tell("head", rank=rank, world_size=size, version=VERSION, host=socket.gethostname(), payload=self.payload)
        self._tell_random("at set-up")

    def _tell_environment(self) -> None:
        """At the start, and again after the first step: only then is it known whether a GPU is used, and how."""
        if self.tape is not None:
            self.tape.head(dict(self._head, environment=environment()))

    def ended(self, why: str, text: str = "") -> None:
        if self.is_on and self.tape is not None:
            self._check_complete()
            self.tell("end", why=why, text=text[:400])
            self.tape.end()

    # -- what the program does -------------------------------------------------------------------------------------

    def group(self, c10d: Any, inner: Any, name: str, ranks: list[int]) -> Any:
        if not self.is_on:
            return inner
        try:
            return self._group(c10d, inner, name, ranks)
        except Exception as error:
            self.give_up(f"a process group could not be recorded: {type(error).__name__}: {str(error)[:200]}")
            return inner

    def _group(self, c10d: Any, inner: Any, name: str, ranks: list[int]) -> Any:
        if self.kind is None:
            self._begin(inner.rank(), inner.size())
            self.kind = recording_group(c10d, self)
        group = self.kind(inner)
        backend = str(c10d._world.pg_map[inner][0])
        config = str(c10d._world.pg_backend_config.get(inner, ""))
        replace_group(c10d, inner, group)
        self.groups.append((group, name, _sequence(inner)))  # torch holds the group by its C++ side alone
        self.tell("g", g=name, desc=str(inner.group_desc), ranks=ranks, backend=backend, config=config)
        return group

    @harmless
    def begin(self, group: Any, op: str, arguments: tuple[Any, ...]) -> calls.Call | None:
        if self.paused:
            return None
        call = calls.Call(op, arguments, group.rank())
        print_in, is_finite = prints.look(call.inputs) if call.inputs else (None, True)
        name = str(group.group_name)
        said: dict[str, Any] = {"in": calls.shapes(call.inputs), "out": calls.shapes(call.outputs), "h": print_in}
        said.update(call.fields)
        if self.program.hands_over_objects:
            said["obj"] = 1
        elif not is_finite:
            said["nf"] = 1
        with self._lock:
            call.number = self.calls
            self.calls += 1
            place = self.of_group[name] = self.of_group.get(name, 0) + 1
            self.tell("c", i=call.number, g=name, q=place, op=op, **said)
        if "nf" in said:
            self.keep(f"input of call {call.number} is not finite")
        if op == "recv_anysource":
            self.not_covered("a receive from any source")
        return call

    @harmless
    def end(self, call: calls.Call) -> None:
        said: dict[str, Any] = {"i": call.number}
        if call.outputs:
            key, is_finite = prints.look(call.outputs)
            said["h"] = key
            if self.store(key, [prints.bytes_of(one) for one in call.outputs]):
                said["p"] = 1
            if not self.program.hands_over_objects and not is_finite:
                said["nf"] = 1
        self.tell("d", **said)
        if "nf" in said:
            self.keep(f"output of call {call.number} is not finite")

    @harmless
    def batch(self, loader: Any, batch: Any) -> None:
        tensors = list(leaves(batch))
        if self.tape is None or self.paused or not tensors:
            return
        key, is_finite = prints.look(tensors)
        kept = not self.redact and self.store(key, [prints.bytes_of(one) for one in tensors], small=False)
        said = {"h": key, "t": calls.shapes(tensors), "y": int(getattr(loader, "_num_yielded", 0))}
        if not is_finite:
            said["nf"] = 1
        self.tell("b", **dict(said, p=1) if kept else said)

    @harmless
    def loss(self, loss: Any) -> None:
        if self.tape is None or self.paused:
            return
        value = float(loss.detach())
        finite = value - value == 0.0
        self.tell("l", h=prints.of([loss]), v=value if finite else str(value))
        if not finite:
            self.keep("the loss is not finite")

    @harmless
    def gradients(self, optimizer: Any) -> None:
        if self.tape is not None and not self.paused and self._looks():
            self._tell_each("gr", list(self.state.gradients()))

    @harmless
    def stepped(self) -> None:
        if self.tape is None or self.paused:
            return
        step = self.program.steps
        if step == 1:
            self._tell_environment()
        self._check_complete()
        known = self._tell_state(step) if self._looks() else {}
        before = self.segment(step - 1)
        self._tell_random("")
        self.tell("s", i=self.calls)
        self.tape.close(before)
        if self._keeps_state(step):
            self._keep_state(step, known)
        if os.path.exists(os.path.join(self.folder, "keep")):
            self.keep("on demand")
        if self.keep_until is not None and step >= self.keep_until:
            self.stores = False

    def not_covered(self, what: str) -> None:
        self.tell_once("refused", why=what)

    # -- keeping ---------------------------------------------------------------------------------------------------

    def _looks(self) -> bool:
        return self.stores or self.program.steps % _SELDOM == 0

    def segment(self, step: int) -> str:
        return f"step-{step:08d}" if step else "setup"

    def store(self, key: str, tensors: list[Any], small: bool = True) -> bool:
        if not self.stores or self.tape is None:
            return False
        size = sum(one.numel() for one in tensors)
        step = self.program.steps
        segment = "small" if small and step and size <= SMALL else self.segment(step)
        return self._put(segment, key, [prints.view(one) for one in tensors])

    def _put(self, segment: str, key: str, parts: list[Any]) -> bool:
        if self.tape is None:
            return False
        if self.tape.put(segment, key, parts) or (self._make_room() and self.tape.put(segment, key, parts)):
            return True
        self.tell_once("full", limit=self.limit)
        return False

    def _make_room(self) -> bool:
        """Of a ring, what lies before the last state can go: the newest steps are worth more than the oldest."""
        if self.tape is None or self.payload != "ring" or self.keep_until is not None or not self.states:
            return False
        return self.tape.make_room(self.states[-1])

    def keep(self, why: str) -> None:
        """From now on nothing is dropped; after as many steps again nothing is added."""
        if self.keep_until is None:
            self.keep_until = self.program.steps + self.last
            self.tell("keep", why=why)
            if self.tape is not None:
                self.tape.sync()

    def _tell_random(self, where: str) -> None:
        states = random_states()
        parts = packed(states)
        key = prints.of_bytes(b"".join(parts))
        kept = self.stores and self._put(self.segment(self.program.steps), key, parts)
        of = {name: prints.of_bytes(data)[:16] for name, data in states.items()}
        self.tell("r", h=key, p=int(kept), of=of, **({"at": where} if where else {}))

    def _tell_state(self, step: int) -> dict[str, str]:
        """Parameters and buffers; what the optimizer has beside them is much, and read seldom unless it is little."""
        whole = self._optimizer_is_small or step % _FOR_GOOD == 0 or self._keeps_state(step)
        pairs = [pair for pair in self.state.tensors(whole) if not pair[0].startswith("scaler")]
        known = self._tell_each("pa", [pair for pair in pairs if not is_of_optimizer(pair[0])])
        own = [pair for pair in pairs if is_of_optimizer(pair[0])]
        self._optimizer_is_small &= sum(one.numel() * one.element_size() for _, one in own) <= _LITTLE
        if own and (self._optimizer_is_small or step % _FOR_GOOD == 0 or self._keeps_state(step)):
            known |= self._tell_each("op", own)
        return known

    def _keeps_state(self, step: int) -> bool:
        return self.payload == "ring" and self.keep_until is None and step % self.last == 0

    def _tell_each(self, kind: str, pairs: list[tuple[str, Any]]) -> dict[str, str]:
        """One print for all, and each by its name where the step is kept."""
        each = prints.each(pairs)
        data = json.dumps(each).encode()
        whole = prints.of_bytes(data)
        step = self.program.steps
        segment = "each" if kind != "gr" and step % _FOR_GOOD == 0 else self.segment(step)
        kept = self.stores and self._put(segment, whole, [data])
        replicas = {"rep": self._copies(each)} if kind == "pa" else {}
        self.tell(kind, h=whole, n=len(each), p=int(kept), **replicas)
        return each

    def _copies(self, each: dict[str, str]) -> dict[str, str]:
        """One print of the parameters that must be equal on all ranks of a group."""
        if list(each) != self._names:
            self._names = list(each)
            known = self.state.replicas()
            self._replicas = {
                group: [name for name in names if name.startswith("model ") and name in each]
                for group, names in known.items()
            }
            self.tell("names", groups=known, shards=self.state.shards(), places=self.state.of_optimizers(),
                      transient=self.state.transient())  # fmt: skip
        return {
            group: prints.of_bytes(json.dumps([[name, each[name]] for name in names]).encode())
            for group, names in self._replicas.items()
            if names
        }

    def _keep_state(self, step: int, known: dict[str, str]) -> None:
        """A new one, and nothing from before the one before it any more: from any moment at least so many steps."""
        tape = self.tape
        if tape is None:
            return
        segment, index = f"state-{step:08d}", []
        pairs = list(self.state.tensors())
        keys = known | prints.each([pair for pair in pairs if pair[0] not in known])
        for name, tensor in pairs:
            key = keys[name]
            if not self._put(segment, key, [prints.view(prints.bytes_of(tensor))]):
                tape.drop([segment])
                return
            index.append([name, *calls.shapes([tensor])[0], key])
        data = json.dumps({"tensors": index, "values": self.state.values()}).encode()
        key = prints.of_bytes(data)
        tape.put(segment, key, [data])
        random = packed(random_states())
        random_key = prints.of_bytes(b"".join(random))
        tape.put(segment, random_key, random)
        self.tell("state", i=self.calls, h=key, rng=random_key)
        tape.close(segment)
        self.states.append(step)
        if len(self.states) > 1:
            tape.drop(tape.before(self.states[-2]), reuse=True)
            self.states = self.states[-2:]

    def _check_complete(self) -> None:
        """The backend counts its own calls: some that were not seen here make the recording incomplete."""
        for group, name, before in self.groups:
            made, seen = _sequence(group._inner) - before, self.of_group.get(name, 0)
            if before >= 0 and made != seen and not self._told & {name}:
                self._told.add(name)
                self.tell("gap", g=name, made=made, seen=seen)


def _sequence(inner: Any) -> int:
    backends = {id(one): one for one in (inner._get_backend(device) for device in inner._device_types)}
    try:
        return sum(int(one._get_sequence_number_for_group()) for one in backends.values())
    except (RuntimeError, AttributeError):
        return -1


def leaves(batch: Any, depth: int = 0) -> Any:
    """All tensors of a batch, in the order in which it holds them."""
    if type(batch).__name__ in ("Tensor", "Parameter") and hasattr(batch, "untyped_storage"):
        if batch.layout is sys.modules["torch"].strided:
            yield batch
    elif depth < 8 and isinstance(batch, (list, tuple)):
        for one in batch:
            yield from leaves(one, depth + 1)
    elif depth < 8 and hasattr(batch, "values") and callable(batch.values):
        for one in batch.values():
            yield from leaves(one, depth + 1)
