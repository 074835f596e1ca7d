"""Plays a recording to one rank of the program: no peers, what they sent comes from the tape, and everything that the
program does is held against what it did then.

Steps before the recorded ones are run among copies of the rank itself, which brings loaders, schedulers, counters and
DDP's buckets to where they were; then the recorded state takes the place of what came of it.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from . import calls, prints
from .fingerprint import environment
from .groups import lonely_group
from .pretend import pretend
from .program import Listener, Program, replace_group
from .recorder import leaves
from .score import Score, differing
from .state import State, is_of_optimizer, random_states, set_random_states
from .tape import Tape, folder_of, packed
from .watching import Ops

VARIABLE = "PARAMEDIC_REPLAY"
_MOST = 200


class Player(Listener):
    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.rank = int(settings["rank"])
        self.score = Score(settings["folder"])
        self.size = int(self.score.head["world_size"])
        self.strict = settings.get("mode", "strict") == "strict"
        self.until = settings.get("until")
        self.start = int(settings.get("start") or 0)
        """The step with whose state the recorded ones begin."""
        self.warm_up = min(int(settings["warm_up"]), self.start) if settings.get("warm_up") else None
        self.has_jumped = self.start == 0
        self.settling = False
        """A loss from before the jump may still be on its way to a log."""
        self.handle: Any = None
        self.exact = True
        """What the program computes now it computed then: false among copies of itself."""
        self.asked: Any = None
        self.kind: Any = None
        self.state = State()
        self.program = Program(self, self.state)
        self.place: dict[str, int] = {}
        self.groups: list[Any] = []
        self.seen: dict[str, int] = {}
        self.number = 0
        self.found: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.checked = {
            name: [0, 0]
            for name in ("calls", "batches", "losses", "gradients", "parameters", "optimizer states", "random states")
        }
        self.ops: Ops | None = None
        self.tape: Tape | None = None
        self.is_over = False
        self.watch_from = self.score.first_bad()

    # -- the program alone -----------------------------------------------------------------------------------------

    def patches(self) -> dict[str, Any]:
        patches = self.program.patches()
        communication = patches["torch.distributed.distributed_c10d"]

        def alone(c10d: Any) -> None:
            self.alone(c10d)
            communication(c10d)

        return dict(patches, **{"torch.distributed.distributed_c10d": alone})

    def alone(self, c10d: Any) -> None:
        """Nobody is met: torch's group for dry runs stands where the real one was."""
        make, initialise = c10d._new_process_group_helper, c10d.init_process_group

        def helper(*positions: Any, **more: Any) -> Any:
            size, rank, ranks, _, store, name = positions[:6]
            more = {key: more[key] for key in ("timeout", "pg_tag", "group_desc") if key in more}
            return make(size, rank, ranks, "fake", store, name, **more)

        def init_process_group(
            backend: Any = None, init_method: Any = None, timeout: Any = None, *_: Any, **__: Any
        ) -> None:
            import torch.testing._internal.distributed.fake_pg  # noqa: F401  (registers it)

            store = sys.modules["torch.distributed"].HashStore()
            initialise("fake", store=store, rank=self.rank, world_size=self.size, timeout=timeout)

        c10d._new_process_group_helper = helper
        c10d.init_process_group = init_process_group
        c10d._store_based_barrier = lambda *_, **__: None

    def group(self, c10d: Any, inner: Any, name: str, ranks: list[int]) -> Any:
        if self.kind is None:
            self.kind = lonely_group(c10d, self)
            self._begin()
        recorded = self.score.groups.get(name, {})
        backend = str(recorded.get("backend") or "gloo")
        group = self.kind(inner, backend)
        replace_group(c10d, inner, group)
        world = c10d._world
        world.pg_map[group] = (backend, world.pg_map[group][1])
        world.pg_backend_config[group] = str(recorded.get("config") or world.pg_backend_config.get(group, ""))
        self.groups.append(group)
        return group

    def _begin(self) -> None:
        if self.settings.get("output"):
            self.tape = Tape(folder_of(self.settings["output"], self.rank), 1 << 40)
            self.tape.head(dict(self.score.head, payload="hash", replayed=True, environment=environment()))
        for line in self.score.marks.get(("r", 0), ()):
            if line.get("at"):
                self._seed(line)
        if self.start == 0:
            self._watch()

    def _seed(self, line: dict[str, Any]) -> None:
        """Python's and NumPy's generators, which programs seldom seed; torch's is the program's to set."""
        try:
            parts = self.score.random(line) or {}
            set_random_states({name: data for name, data in parts.items() if name != "torch"})
        except Exception as error:
            self.finish("damaged", f"the random states at the start: {type(error).__name__}: {str(error)[:200]}")

    # -- what it hands over and gets back --------------------------------------------------------------------------

    def play(self, group: Any, call: calls.Call) -> None:
        if self.is_over:
            return
        if self.program.hands_over_objects and not self.settings.get("trust"):
            self.finish("refused", "the program takes an object from its peers, which is a pickle in the recording; "
                        "--trust plays it, if you know who made the recording")  # fmt: skip
        if call.op == "recv_anysource":
            self.finish("refused", "a receive from any source: which message came first is not recorded")
        name = str(group.group_name)
        place = self.place.get(name, 0)
        recorded = self.score.calls.get(name, [])
        if not self.exact and self.warm_up is not None:
            pretend(call, group.size())
            return
        if place >= len(recorded):
            self.finish("complete", "the recording has no further calls")
        self.place[name] = place + 1
        line = recorded[place]
        self._fits(line, call, name)
        if "done" not in line and call.op != "send":
            self.finish("complete", f"the recording ends in call {line['i']}, {line['op']}")
        self._serve(line, call, group)

    def _fits(self, line: dict[str, Any], call: calls.Call, name: str) -> None:
        said: dict[str, Any] = {"op": call.op, "in": calls.shapes(call.inputs), "out": calls.shapes(call.outputs)}
        said.update(call.fields)
        why = differing(line, said)
        number, self.number = self.number, self.number + 1
        print_in = prints.of(call.inputs) if call.inputs else None
        carried = self.settling and not why and line["h"] != print_in
        self._tell("c", i=number, g=name, q=line["q"], h=line["h"] if carried else print_in, **said)
        if why and not self.exact:
            self.finish("astray", f"before the recorded steps the program makes another call than it made then: {why}")
        if not self.exact:
            return
        if carried:
            self._note(
                "between the restored state and the next forward pass the program handed on values from before it"
            )
            return
        self._check("calls", line, not why and line["h"] == print_in, name=line["op"], why=why or "its input differs",
                    call=line["i"], structure=bool(why))  # fmt: skip
        if why:
            self.finish("diverged", f"call {line['i']}: {why}")

    def _serve(self, line: dict[str, Any], call: calls.Call, group: Any) -> None:
        done = line.get("done", {})
        if call.outputs and self.score.has(done):
            with sys.modules["torch"].no_grad():
                parts = self._payload(done["h"], call.outputs, f"call {line['i']}")
                for tensor, part in zip(call.outputs, parts, strict=True):
                    tensor.detach().copy_(part)
        elif call.outputs and "h" in done:
            if line["s"] >= self.start:
                self.finish("incomplete", f"the payload of call {line['i']} is missing from the recording")
            self.exact = False
            pretend(call, group.size())
        self._tell("d", i=self.number - 1, **({"h": done["h"]} if "h" in done else {}))

    def _payload(self, key: str, like: list[Any], what: str) -> list[Any]:
        """What was recorded, as tensors like these; ends the replay where it is not what it was."""
        if key not in self.score.segments:
            self.finish("incomplete", f"the payload of {what} is missing from the recording")
        data, at, parts = self.score.segments.read(key), 0, []
        if len(data) == sum(tensor.numel() * tensor.element_size() for tensor in like):
            for tensor in like:
                size = tensor.numel() * tensor.element_size()
                parts.append(prints.tensor_from(data[at : at + size], prints.kind(tensor), tensor.shape))
                at += size
            if prints.of(parts) == key:
                return parts
        self.finish("damaged", f"the payload of {what} is not what it was when it was recorded")
        return []

    # -- the loop --------------------------------------------------------------------------------------------------

    def batch(self, loader: Any, batch: Any) -> None:
        if self.tape is None and self.kind is None:
            return
        step = self.program.steps
        tensors = list(leaves(batch))
        seen = self.seen.get("b", 0)
        self.seen["b"] = seen + 1
        recorded = self.score.marks.get(("b", step), [])
        if not self.exact or seen >= len(recorded) or not tensors:
            return
        line = recorded[seen]
        key = prints.of(tensors)
        if key != line["h"] and self.score.has(line) and calls.shapes(tensors) == line["t"]:
            parts = self._payload(line["h"], tensors, f"a batch of step {step + 1}")
            for tensor, part in zip(tensors, parts, strict=True):
                tensor.data = part.to(tensor.device)
            self._note("the batches come from the recording: the loader gives others here")
            key = line["h"]
        elif key != line["h"] and not self.has_jumped:
            self.exact = False  # other data, before the steps that count
            return
        self._tell("b", h=key, t=calls.shapes(tensors), y=int(getattr(loader, "_num_yielded", 0)))
        self._check("batches", line, key == line["h"], name="batch", why="the loader gives another batch")

    def loss(self, loss: Any) -> None:
        seen = self.seen.get("l", 0)
        self.seen["l"] = seen + 1
        recorded = self.score.marks.get(("l", self.program.steps), [])
        if self.kind is None or not self.exact or seen >= len(recorded):
            return
        key, value = prints.of([loss]), float(loss.detach())
        self._tell("l", h=key, v=value if value - value == 0.0 else str(value))
        self._check(
            "losses",
            recorded[seen],
            key == recorded[seen]["h"],
            name="loss",
            why=f"{value!r} instead of {recorded[seen]['v']!r}",
        )

    def gradients(self, optimizer: Any) -> None:
        if self.kind is not None and self.exact:
            self._compare("gr", "gradients", dict(self.state.gradients()))

    def stepped(self) -> None:
        if self.kind is None:
            return
        step = self.program.steps
        self.seen = {}
        if self.exact and not self._is_there(step):
            pairs = {name: one for name, one in self.state.tensors() if not name.startswith("scaler")}
            self._compare("pa", "parameters", {n: one for n, one in pairs.items() if not is_of_optimizer(n)})
            self._compare("op", "optimizer states", {n: one for n, one in pairs.items() if is_of_optimizer(n)})
            self._check_random(step)
            self._tell("s", i=self.number)
        elif self._is_there(step):
            self._jump()
        elif self.warm_up is None and self.score.steps.get(step, {}).get("i", sum(self.place.values())) != sum(
            self.place.values()
        ):
            self.finish("astray", f"before the recorded steps, step {step} has other calls than it had then")
        if self.exact:
            step = self.program.steps
            self._watch()
            if (self.until is not None and step >= self.until) or (step >= self.score.last_step and not self._more()):
                asked = f"step {step} is the last one asked for" if self.until == step else ""
                self.finish("stopped" if asked and self.settings.get("pdb") else "complete", asked)

    def _check_random(self, step: int) -> None:
        for line in self.score.marks.get(("r", step), ()):
            states = random_states()
            key = prints.of_bytes(b"".join(packed(states)))
            of = {name: prints.of_bytes(data)[:16] for name, data in states.items()}
            self._tell("r", h=key, of=of)
            other = [str(name) for name in line["of"] if line["of"][name] != of.get(name)]
            self._check("random states", line, not other, name="random states", why=f"{', '.join(other)} differs")

    def _is_there(self, step: int) -> bool:
        return not self.has_jumped and step == (self.start if self.warm_up is None else self.warm_up)

    def _more(self) -> bool:
        return any(self.place.get(name, 0) < len(one) for name, one in self.score.calls.items())

    def _jump(self) -> None:
        """From here on the state is the recorded one."""
        line = self.score.states[self.start]
        try:
            self._restore(line)
        except Exception as error:
            why = f"the state after step {self.start} cannot be put in place"
            self.finish("damaged", f"{why}: {type(error).__name__}: {str(error)[:200]}")
        self.exact = self.has_jumped = self.settling = True
        hooks = sys.modules["torch"].nn.modules.module
        self.handle = hooks.register_module_forward_pre_hook(self._settle)
        self.program.jump(self.start)
        for name, one in self.score.calls.items():
            self.place[name] = sum(1 for call in one if call["i"] < line["i"])

    def _restore(self, line: dict[str, Any]) -> None:
        data = self.score.segments.read(line["h"])
        if prints.of_bytes(data) != line["h"]:
            raise ValueError("its list is not what it was when it was recorded")
        index = json.loads(data)
        wanted = {name: (dtype, shape, key) for name, dtype, shape, key in index["tensors"]}
        strange = []
        with sys.modules["torch"].no_grad():
            for name, tensor in self.state.tensors():
                dtype, shape, key = wanted.pop(name, ("", None, ""))
                if shape != list(tensor.shape) or dtype != prints.kind(tensor):
                    strange.append(name)
                else:
                    tensor.copy_(self._payload(key, [tensor], name)[0])
        self.state.restore_values(index["values"])
        random = self.score.random(line, "rng")
        if random is not None:
            set_random_states(random)
        if strange or wanted:
            count, some = len(strange) + len(wanted), ", ".join([*strange, *wanted][:3])
            self._note(f"{count} tensors of the recorded state have no place here, or none there: {some}")

    def _settle(self, *_: Any) -> None:
        """What is computed from here on comes from the restored state alone."""
        self.settling = False
        self.handle.remove()

    def _watch(self) -> None:
        """In the step in which something stopped being a number, every operation is looked at."""
        step = self.program.steps
        wanted = step == self.watch_from or bool(self.settings.get("ops"))
        if wanted and self.ops is None:
            path = (
                os.path.join(self.tape.folder, "ops.seg")
                if self.tape is not None and self.settings.get("ops")
                else None
            )
            self.ops = Ops(self, path)
            self.ops.begin()
        elif not wanted and self.ops is not None:
            self.ops.end()

    # -- what is found ---------------------------------------------------------------------------------------------

    def _compare(self, kind: str, what: str, pairs: dict[str, Any]) -> None:
        step = self.program.steps
        recorded = self.score.marks.get((kind, step), [])
        seen = self.seen.get(kind, 0)
        self.seen[kind] = seen + 1
        if seen >= len(recorded):
            return
        each = prints.each(list(pairs.items()))
        whole = prints.of_bytes(json.dumps(each).encode())
        self._tell(kind, h=whole, n=len(each))
        then = self.score.each(kind, step) if whole != recorded[seen]["h"] else {}
        names = [name for name in each if then and then.get(name) != each[name]]
        self._check(what, recorded[seen], whole == recorded[seen]["h"], name=what, names=names[:20],
                    why=f"{len(names)} of {len(each)} differ" if then else "they differ")  # fmt: skip

    def _check(self, what: str, line: dict[str, Any], same: bool, **said: Any) -> None:
        self.checked[what][0] += same
        self.checked[what][1] += 1
        if same:
            return
        if len(self.found) < _MOST:
            self.found.append(dict(said, kind=what, step=self.program.steps))
        if self.strict:
            self.finish("diverged", f"{said['name']}: {said['why']}")

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _tell(self, kind: str, **said: Any) -> None:
        if self.tape is not None and self.exact:
            self.tape.line(dict({"k": kind, "s": self.program.steps}, **said))

    def not_covered(self, what: str) -> None:
        self.finish("refused", f"the program uses {what}, which no recording holds")

    def finish(self, status: str, why: str = "", exit: bool = True, error: BaseException | None = None) -> None:
        """The end of the replay is the end of the process, wherever in the program it stands."""
        if not self.is_over:
            self.is_over = True
            if self.ops is not None:
                self.ops.close()
            self._write(status, why)
        if self.settings.get("pdb") and status in ("diverged", "raised", "reproduced", "stopped"):
            _debug(why, error)
        if exit:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    def forget(self) -> None:
        self.is_over = True

    def ended(self, error: BaseException | None = None) -> None:
        """The program came to its own end."""
        if self.is_over:
            return
        if error is not None:
            text = f"{type(error).__name__}: {error}"[:400]
            ends = [line for line in self.score.lines if line.get("k") == "end" and line.get("why") == "exception"]
            same = any(str(line.get("text")) == text for line in ends)
            self.finish("reproduced" if same else "raised", text, exit=False, error=error)
        elif self.kind is None:
            self.finish("strange", "the program never called init_process_group", exit=False)
        elif not self.exact:
            self.finish("strange", "the program ended before the recorded steps", exit=False)
        else:
            self.finish(
                "short" if self._more() else "complete", "the program ended" if self._more() else "", exit=False
            )

    def _write(self, status: str, why: str) -> None:
        said = {
            "status": status, "why": why, "rank": self.rank, "steps": [self.start, self.program.steps],
            "calls": [sum(self.place.values()), self.score.total], "checked": self.checked, "differences": self.found,
            "notes": self.notes, "damage": self.score.damage, "environment": environment(),
            "origin": self.ops.origin if self.ops is not None else None,
        }  # fmt: skip
        path = self.settings["result"]
        with open(path + ".part", "w", encoding="utf-8") as file:
            json.dump(said, file)
        os.replace(path + ".part", path)
        if self.tape is not None:
            self.tape.line({"k": "end", "s": self.program.steps, "why": status, "text": why})


def _debug(why: str, error: BaseException | None) -> None:
    """In the program's own frame, with the tensors as they are; what was raised is looked at where it was raised."""
    import pdb

    debugger = pdb.Pdb()
    debugger.reset()
    sys.stderr.write(f"paramedic: {why}\n")
    sys.stderr.flush()
    if error is not None:
        debugger.interaction(None, error.__traceback__)
        return
    frame = sys._getframe()
    here = os.path.dirname(os.path.abspath(__file__))
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(here)
        or "-packages/" in frame.f_code.co_filename
        or "/lib/python" in frame.f_code.co_filename
    ):
        frame = frame.f_back
    debugger.interaction(frame, None)
