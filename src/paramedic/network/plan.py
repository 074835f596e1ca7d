"""Chooses interfaces, the master and its port with OR-tools CP-SAT; or says which facts forbid any choice.

"Right" means: right by the facts that were probed. Nothing is known about pairs that nobody dialled.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paramedic.errors import ParamedicError
from paramedic.network.world import Endpoint, Obstacle, World, id_of

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

SOLVE_SECONDS, SOLVE_WORK = 120.0, 60.0
"""By the clock, and in the solver's own measure of work, which does not depend on how busy the machine is."""
_KEPT, _MASTER, _SLOWER, _LATER = 10_000, 4_000, 10, 1


@dataclass(frozen=True, slots=True)
class Plan:
    """What to set. `order` begins with the master's host."""

    endpoints: Mapping[str, Mapping[str, Endpoint]]
    """Plane → host → endpoint."""
    master: str
    port: int
    order: tuple[str, ...]

    @property
    def address(self) -> str:
        return self.endpoints["gloo"][self.master].address


@dataclass(frozen=True, slots=True)
class Conflict:
    """Facts that together leave no choice, none of them to spare, and the fewest whose change would cure it."""

    facts: tuple[Obstacle, ...]
    cure: tuple[Obstacle, ...] = field(default=())


def plan(world: World) -> Plan | Conflict:
    lonely = [host for host in world.hosts if not world.endpoints.get(host)]
    if lonely:
        text = f"{lonely[0]} has no interface that is up and has an address"
        none = Obstacle("unusable", text, f"bring up an interface on {lonely[0]}")
        return Conflict((none,), (none,))
    model = _Model(world)
    return model.best() or _conflict(model, world)


def _conflict(model: _Model, world: World) -> Conflict:
    """Background facts are beyond dispute; only where they alone already conflict are they shown."""
    disputable = [number for number, one in enumerate(world.obstacles) if not one.background]
    fixed = [number for number, one in enumerate(world.obstacles) if one.background]
    if not model.possible(fixed):
        disputable, fixed = list(range(len(world.obstacles))), []
    core = model.core(fixed, disputable)
    for number in list(core):
        fewer = [other for other in core if other != number]
        if not model.possible([*fixed, *fewer]):
            core = fewer
    cure = model.fewest(fixed, disputable)
    return Conflict(tuple(world.obstacles[n] for n in core), tuple(world.obstacles[n] for n in cure))


class _Model:
    """One model for all questions: each obstacle holds only while its literal is true."""

    def __init__(self, world: World) -> None:
        try:
            from ortools.sat.python import cp_model
        except ImportError:
            raise ParamedicError("net plan needs OR-tools: pip install 'paramedic[net]'") from None
        self.cp, self.world = cp_model, world
        self.model = cp_model.CpModel()
        self.use: dict[tuple[str, str], Any] = {}
        self.used: dict[tuple[str, str], Any] = {}
        self.master: dict[str, Any] = {host: self.model.new_bool_var(f"master {host}") for host in world.hosts}
        self.port: dict[int, Any] = {port: self.model.new_bool_var(f"port {port}") for port in world.ports}
        self.six = self.model.new_bool_var("ipv6")
        self.holds = [self.model.new_bool_var(f"fact {number}") for number in range(len(world.obstacles))]
        self.model.add_exactly_one(self.master.values())
        self.model.add_exactly_one(self.port.values())
        for plane in world.planes:
            self._choose(plane)
        for number, one in enumerate(world.obstacles):
            self._forbid(one, self.holds[number])

    def _choose(self, plane: str) -> None:
        for host in self.world.hosts:
            options = []
            for one in self.world.endpoints[host]:
                chosen = self.use[plane, id_of(one)] = self.model.new_bool_var(f"{plane} {id_of(one)}")
                options.append(chosen)
                self.model.add_implication(chosen, self.six if one.family == 6 else self.six.negated())
                if (plane, one.network) not in self.used:
                    self.used[plane, one.network] = self.model.new_bool_var(f"{plane} on {one.network}")
                self.model.add_implication(chosen, self.used[plane, one.network])
            self.model.add_exactly_one(options)

    def _forbid(self, one: Obstacle, holds: Any) -> None:
        deny = [holds.negated()]
        if one.kind == "busy":
            self._clause(
                [*deny, self.master[one.host].negated(), self.port[one.port].negated()] if one.port in self.port else []
            )
        elif one.kind == "master":
            self._clause([*deny, self.master[one.host]])
        elif one.kind == "port":
            self._clause([*deny, self.port[one.port]])
        elif one.kind == "family":
            self._clause([*deny, self.six if one.port == 6 else self.six.negated()])
        elif one.kind == "keep":
            if one.a in self.world.planes:
                named = [self.use[one.a, id_of(e)] for e in self.world.endpoints[one.host] if e.interface == one.b]
                self._clause([*deny, *named])
        else:
            for plane in self.world.planes:
                both = self.used if one.kind == "apart" else self.use
                self._clause([*deny, *(both[plane, end].negated() for end in (one.a, one.b) if end)])

    def _clause(self, literals: list[Any]) -> None:
        if literals:
            self.model.add_bool_or(literals)

    # -- questions -------------------------------------------------------------------------------------------------

    def _solved(self, assumed: Collection[int], goal: Any = None) -> tuple[Any, cp_model.CpSolver]:
        solver = self.cp.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.linearization_level = 0
        solver.parameters.max_time_in_seconds = SOLVE_SECONDS
        solver.parameters.max_deterministic_time = SOLVE_WORK
        self.model.clear_objective()  # type: ignore[no-untyped-call]
        self.model.clear_assumptions()
        if goal is not None:
            self.model.minimize(goal)
        self.model.add_assumptions([self.holds[number] for number in assumed])
        status = solver.solve(self.model)
        if status == self.cp.UNKNOWN:
            raise ParamedicError(
                f"net plan: no answer within {SOLVE_SECONDS:.0f} s; pin something, or plan for fewer hosts"
            )
        return status, solver

    def _is_possible(self, status: Any) -> bool:
        return status in (self.cp.OPTIMAL, self.cp.FEASIBLE)

    def possible(self, assumed: Collection[int]) -> bool:
        return self._is_possible(self._solved(assumed)[0])

    def best(self) -> Plan | None:
        status, solver = self._solved(range(len(self.holds)), self._cost())
        if not self._is_possible(status):
            return None
        return self._read(solver)

    def core(self, fixed: Sequence[int], disputable: Sequence[int]) -> list[int]:
        """Some of the disputable that already conflict; not yet the fewest."""
        _, solver = self._solved([*fixed, *disputable])
        index = {self.holds[number].index: number for number in disputable}
        found = [index[one] for one in solver.sufficient_assumptions_for_infeasibility() if one in index]
        return found if not self.possible([*fixed, *found]) else list(disputable)

    def fewest(self, fixed: Sequence[int], disputable: Sequence[int]) -> list[int]:
        """The smallest set whose absence leaves a choice; of equals, what the user pinned himself."""
        pins = ("master", "port", "family", "keep")
        weights = {number: 100 if self.world.obstacles[number].kind in pins else 101 for number in disputable}
        goal = self.cp.LinearExpr.weighted_sum([self.holds[n].negated() for n in weights], list(weights.values()))
        _, solver = self._solved(fixed, goal)
        return [number for number in disputable if not solver.value(self.holds[number])]

    def _cost(self) -> Any:
        speeds = sorted({one.speed for group in self.world.endpoints.values() for one in group}, reverse=True)
        costs = [
            (self._wish(plane, one, place) + _SLOWER * speeds.index(one.speed), self.use[plane, id_of(one)])
            for plane in self.world.planes for group in self.world.endpoints.values() for place, one in enumerate(group)
        ]  # fmt: skip
        costs += [
            (_MASTER + _LATER * place, self.master[host])
            for place, host in enumerate(self.world.hosts)
            if host != self.world.master
        ]
        costs += [(_LATER * place, literal) for place, literal in enumerate(self.port.values())]
        costs.append((_LATER, self.six))
        return self.cp.LinearExpr.weighted_sum([literal for _, literal in costs], [cost for cost, _ in costs])

    def _wish(self, plane: str, one: Endpoint, place: int) -> int:
        """What is set is kept; else, of equals, the host's first interface."""
        wished = self.world.set_now.get((plane, one.host))
        return _KEPT if wished and wished != one.interface else min(place, _SLOWER - 1)

    def _read(self, solver: cp_model.CpSolver) -> Plan:
        every = [one for group in self.world.endpoints.values() for one in group]
        chosen = {
            plane: {one.host: one for one in every if solver.value(self.use[plane, id_of(one)])}
            for plane in self.world.planes
        }
        master = next(host for host, literal in self.master.items() if solver.value(literal))
        port = next(port for port, literal in self.port.items() if solver.value(literal))
        near = chosen["gloo"]
        order = sorted(
            self.world.hosts,
            key=lambda host: (host != master, near[host].network != near[master].network, near[host].network, host),
        )
        return Plan(chosen, master, port, tuple(order))
