"""`@pytest.mark.ranks(4)`: a test that runs on four real processes. docs/pytest.md is for users.

The parent collects the test and starts `python -m pytest` for it once a rank; fixtures run there, and results come back
as JSON lines. This module is loaded by every pytest of everybody who has Paramedic installed: it imports the
standard library and pytest, and everything else only where a test uses it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import math
import os
import sys
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from paramedic.ward.ranks import Place, Rank

NEEDS_TORCH = "needs torch: pip install 'paramedic[torch]'"
_SHOWN = 20_000  # characters of one stream in a report; the whole of it is in the folder that the report names
_OPTION = "--paramedic-rank"
_INSIDE = "paramedic-rank"
_UNRECOGNISED = "JOB001"  # an exception that no rule knows: its traceback, which is shown anyway, says as much

_PARENT_ONLY = """
basetemp cacheclear cacheshow capture collectonly color continue_on_collection_errors cov_report cov_source debug
deselect dist distload doctestmodules durations durations_min exitfirst failedfirst file_or_dir force_short_summary help
htmlpath ignore ignore_glob inifilename json_report json_report_file keepduplicates keyword last_failed_no_failures lf
log_cli_level log_file log_file_level looponfail markers markexpr maxfail maxprocesses maxschedchunk maxworkerrestart
newfirst no_cov numprocesses paramedic_rank pastebin px reruns reruns_delay rootdir rsyncdir rsyncignore setuponly
setupplan setupshow show_fixtures_per_test showfixtures stepwise stepwise_reset stepwise_skip testrunuid timeout trace
traceconfig tx usepdb usepdb_cls version xmlpath
"""
"""Options that choose tests, write reports or start processes; children get all others."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the mark says."""

    n: int
    timeout: float = 60.0
    backend: str | None = "gloo"
    inject: str | list[str] | None = None
    inject_rank: int | None = None
    inject_at: int = 1
    inject_seconds: float | None = None
    fails: bool | str = False

    @classmethod
    def of(cls, mark: pytest.Mark) -> Settings:
        """Raises ValueError with a sentence for the user."""
        known = [one.name for one in fields(cls)]
        for name in mark.kwargs:
            if name not in known:
                raise ValueError(f"{name}= is no keyword of it{_nearest(name, known)}")
        try:
            settings = cls(*mark.args, **mark.kwargs)
        except TypeError:
            raise ValueError("it takes the number of ranks and keywords, as in ranks(4, timeout=60)") from None
        for problem in settings._problems():
            raise ValueError(problem)
        return settings

    def _problems(self) -> Iterator[str]:
        if not _is_count(self.n):
            yield f"{self.n!r} is no number of ranks; give a whole number from 1 on"
        if not _is_seconds(self.timeout) or self.timeout == 0:
            yield f"timeout={self.timeout!r} is no number of seconds"
        if self.backend not in ("gloo", None):
            yield f"backend={self.backend!r} is neither 'gloo' nor None; with None the test makes its own process group"
        if self.inject_rank is not None and self.inject_rank not in range(self.n):
            yield f"inject_rank={self.inject_rank!r} is none of the {self.n} ranks"
        if not _is_count(self.inject_at):
            yield f"inject_at={self.inject_at!r} is no position; the first is 1"
        if self.inject_seconds is not None and not _is_seconds(self.inject_seconds):
            yield f"inject_seconds={self.inject_seconds!r} is no number of seconds"
        if not isinstance(self.inject, str | list | tuple | None):
            yield f"inject={self.inject!r} is neither a fault's name nor a list of them"
        if self.faults:
            from paramedic.ward.inject import problem_with

            yield from filter(None, map(problem_with, self.faults))
        if not isinstance(self.fails, bool):
            from paramedic.knowledge.taxonomy import load_taxonomy

            if self.fails not in (symptoms := load_taxonomy().symptoms):
                yield f"fails={self.fails!r} is neither True nor a symptom{_nearest(str(self.fails), symptoms)}"

    @property
    def faults(self) -> list[str]:
        return [self.inject] if isinstance(self.inject, str) else list(self.inject or ())

    def faults_of(self, rank: int) -> list[str]:
        """Where no rank is named: the last one, or rank 0 for what happens to files."""
        from paramedic.ward.inject import FAULTS

        def struck(name: str) -> int:
            if self.inject_rank is not None:
                return self.inject_rank
            return 0 if FAULTS[name].on_first else self.n - 1

        return [name for name in self.faults if struck(name) == rank]

    @property
    def needs_torch(self) -> bool:
        if self.backend is not None or not self.faults:
            return self.backend is not None
        from paramedic.ward.inject import FAULTS

        return any(FAULTS[name].needs_torch for name in self.faults)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 1


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf


def _nearest(name: str, known: Iterable[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name, list(known), 1, 0.5)
    return f"; did you mean {near[0]!r}?" if near else ""


@dataclass(frozen=True, slots=True)
class Ranks:
    """What the fixture `ranks` gives to a test."""

    rank: int
    world_size: int
    tmp_path: Path
    """A temporary folder that all ranks share."""


@pytest.fixture(scope="session")
def ranks(request: pytest.FixtureRequest) -> Ranks:
    """Which rank this is, of how many, and a temporary folder that they share."""
    inside = request.config.pluginmanager.get_plugin(_INSIDE)
    if inside is None:
        pytest.fail("the fixture `ranks` is for tests with @pytest.mark.ranks(N)", pytrace=False)
    return Ranks(inside.rank, inside.size, inside.shared)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(_OPTION, dest="paramedic_rank", default=None, help=argparse.SUPPRESS)


def pytest_configure(config: pytest.Config) -> None:
    keywords = ", ".join(f"{one.name}={one.default!r}" for one in fields(Settings)[1:])
    config.addinivalue_line("markers", f"ranks(n, {keywords}): run the test on n processes (Paramedic)")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """In a child: take the parent's options before conftest files are read."""
    request = getattr(early_config.known_args_namespace, "paramedic_rank", None)
    if request:
        from paramedic.ward.inside import Inside

        inside = Inside(json.loads(Path(request).read_text("utf-8")))
        vars(early_config.option).update(inside.options)
        early_config.pluginmanager.register(inside, _INSIDE)


def _is_child(config: pytest.Config) -> bool:
    return config.pluginmanager.has_plugin(_INSIDE)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A bad mark is an error of the file, as a bad `parametrize` is."""
    for mark in metafunc.definition.iter_markers("ranks"):
        _settings(mark, metafunc.definition.nodeid)


def _settings(mark: pytest.Mark, nodeid: str) -> Settings:
    try:
        return Settings.of(mark)
    except ValueError as error:
        pytest.fail(f"{nodeid}: @pytest.mark.ranks: {error}", pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """In the parent the test is what its ranks do; its fixtures are theirs. All else of pytest stays as it is."""
    mark = item.get_closest_marker("ranks")
    if mark is None or _is_child(item.config):
        return

    def setup() -> None:
        settings = _settings(mark, item.nodeid)
        if settings.needs_torch and importlib.util.find_spec("torch") is None:
            pytest.fail(f"{item.nodeid}: @pytest.mark.ranks {NEEDS_TORCH} (or use backend=None)", pytrace=False)

    def runtest() -> None:
        item.stash[_SECTIONS] = []
        _judge(_Job.run(item, _settings(mark, item.nodeid)))

    item.setup = setup  # type: ignore[method-assign]
    item.runtest = runtest  # type: ignore[method-assign]
    item.teardown = lambda: None  # type: ignore[method-assign]


_SECTIONS = pytest.StashKey[list[tuple[str, str]]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    sections = item.stash.get(_SECTIONS, None)
    if report.when == "call" and sections is not None:
        report.sections += sections
        if report.skipped and isinstance(report.longrepr, tuple):
            report.longrepr = (str(item.path), (item.location[1] or 0) + 1, report.longrepr[2])
    return report


@dataclass(slots=True)
class _Job:
    """A test's ranks, after the last of them has ended."""

    item: pytest.Item
    settings: Settings
    ranks: list[Rank]
    folder: Path
    hung: float | None
    """For how many seconds."""
    places: dict[int, Place | None]
    """Where those were that did not end by themselves."""

    @classmethod
    def run(cls, item: pytest.Item, settings: Settings) -> _Job:
        from paramedic.ward import ranks as processes

        config, folder = item.config, _folder(item)
        read_end, write_end = os.pipe()
        try:
            with processes.reserve_port() as port:
                commands = [_command(item, settings, folder, rank, read_end) for rank in range(settings.n)]
                started = processes.start(
                    commands,
                    _environment(settings),
                    folder,
                    config.invocation_params.dir,
                    port=port.getsockname()[1],
                    go=read_end,
                )
                try:
                    hung = processes.watch(started, settings.timeout, write_end)
                    left = [rank for rank in started if rank.is_running and not rank.has_told("finished")]
                    processes.dump_stacks(left)
                finally:
                    processes.stop(started)
        finally:
            os.close(read_end)
        places = {rank.number: rank.place(config.invocation_params.dir) for rank in left}
        return cls(item, settings, started, folder, hung, places)

    @property
    def failed(self) -> list[Rank]:
        """Who failed by itself, the first one first."""
        found = [(rank.failed_at, rank.number, rank) for rank in self.ranks if rank.failed_at is not None]
        return [rank for _, _, rank in sorted(found, key=lambda one: one[:2])]

    @property
    def symptom_of_hang(self) -> str | None:
        found = {place.waits for place in self.places.values() if place and place.waits} if self.hung else set()
        return max(found, default=None)  # who is still in the rendezvous keeps the others from anything else

    def where(self) -> str:
        """`ranks 0, 1 wait in all_reduce (test_a.py:12), rank 2 is in load (test_a.py:7)`."""
        groups: dict[str, list[int]] = {}
        for rank in self.ranks:
            if rank.number in self.places:
                place = self.places[rank.number]
                state = "have finished" if rank.has_told("done") else str(place) if place else "give no answer"
                groups.setdefault(state, []).append(rank.number)
        return ", ".join(f"{_named(numbers)} {_conjugated(state, len(numbers))}" for state, numbers in groups.items())

    def never_happened(self) -> str | None:
        """A fault that was asked for and did not occur: the test has shown nothing."""
        for rank in self.ranks:
            missing = [name for name in self.settings.faults_of(rank.number) if name not in rank.injected]
            if missing:
                return (
                    f"the injected fault {missing[0]} never happened on rank {rank.number}: the test has no "
                    f"{_ordinal(self.settings.inject_at)} occasion for it (inject_at={self.settings.inject_at})"
                )
        return None


def _judge(job: _Job) -> None:
    """Raises what pytest is to report."""
    settings, failed = job.settings, [rank for rank in job.failed if not _is_xfailed(rank)]
    if not job.hung and all(rank.was_sacrificed for rank in failed):
        _record(job, "")
        _without_failure(job)
        return
    verdict = _diagnosed(job)
    first = next((rank for rank in failed if rank.number in verdict.ranks), failed[0] if failed else None)
    message = _message(job, first, verdict)
    _record(job, verdict.text, first)
    if not settings.fails:
        pytest.fail(message, pytrace=False)
    said = {verdict.symptom, job.symptom_of_hang} - {None}
    if settings.fails is not True and settings.fails not in said:
        names = " and ".join(sorted(map(str, said))) or "none"
        pytest.fail(f"failed, but not with {settings.fails}: Paramedic's verdict is {names}\n{message}", pytrace=False)
    if never := job.never_happened():
        pytest.fail(f"failed as expected, but {never}\n{message}", pytrace=False)


def _without_failure(job: _Job) -> None:
    alive = [rank for rank in job.ranks if not rank.was_sacrificed]
    for rank in alive:
        if _is_xfailed(rank):
            pytest.xfail(next(one["line"] for one in rank.reports if one["outcome"] == "xfailed"))
    skips = [one["line"] for rank in alive for one in rank.reports if one["outcome"] == "skipped"]
    if len(skips) == len(alive) > 0:
        pytest.skip(skips[0])
    if job.settings.fails:
        expected = "fail" if job.settings.fails is True else f"fail with {job.settings.fails}"
        never = job.never_happened()
        why = f"; {never}" if never else ""
        pytest.fail(f"was expected to {expected}, but {_named(r.number for r in alive)} passed{why}", pytrace=False)
    if never := job.never_happened():
        pytest.fail(f"passed, but {never}", pytrace=False)


def _is_xfailed(rank: Rank) -> bool:
    outcomes = {one["outcome"] for one in rank.reports}
    return "xfailed" in outcomes and "failed" not in outcomes and not rank.died


def _message(job: _Job, first: Rank | None, verdict: _Verdict) -> str:
    text = []
    happened = [f"injected on rank {r.number}: {name}: {what}" for r in job.ranks for name, what in r.injected.items()]
    if job.hung:
        unready = [r.number for r in job.ranks if not r.has_told("ready") and r.number in job.places]
        what = f"did not start: {_named(unready)} never reached the test" if unready else f"hung for {job.hung:.0f} s"
        text.append(f"{what}; {job.where()}")
    elif first is not None:
        failure = next((one for one in first.reports if one["outcome"] == "failed"), None)
        reason = failure["line"] if failure else first.ending
        how = "failed" if failure else "died"
        when = f" in {failure['when']}" if failure and failure["when"] != "call" else ""
        text.append(f"rank {first.number} of {job.settings.n} {how} first{when}: {reason}")
    text += [*happened, *([f"Paramedic: {verdict.headline}"] if verdict.headline else [])]
    if not job.hung and job.places:
        text.append(f"{job.where()}; ended {_grace():g} s after the failure")
    for rank in job.failed:
        if rank is not first:
            lines = [one["line"] for one in rank.reports if one["outcome"] == "failed"]
            text.append(f"then rank {rank.number}: {lines[0] if lines else rank.ending}")
    text.append(f"logs: {job.folder / 'logs'}")
    for one in first.reports if first and not job.hung else ():
        if one["outcome"] == "failed":
            text += ["", one["text"]]
    return "\n".join(text)


def _grace() -> float:
    from paramedic.ward.ranks import GRACE_S

    return GRACE_S


def _record(job: _Job, verdict: str, first: Rank | None = None) -> None:
    """Every rank's output in sections, that of the first failure first, and the verdict at the end."""
    from paramedic.ward.ranks import without_launcher

    sections = job.item.stash[_SECTIONS]
    for rank in sorted(job.ranks, key=lambda one: (one is not first, one.number)):
        if rank is not first:
            texts = [one["text"] for one in rank.reports if one["outcome"] == "failed"]
            sections += [(f"rank {rank.number} failure", text) for text in texts]
        if rank.number in job.places and not rank.has_told("done"):
            sections.append((f"rank {rank.number} stacks", without_launcher(rank.dump)))
        for stream in ("stdout", "stderr", "log"):
            sections.append((f"rank {rank.number} {stream}", without_launcher(_end_of(rank.logs / f"{stream}.log"))))
    sections.append(("Paramedic's verdict", verdict.rstrip()))
    sections[:] = [(name, text) for name, text in sections if text]
    for one in job.ranks[0].reports:
        if one["when"] == "call":
            job.item.user_properties += [(str(key), value) for key, value in one["properties"]]


@dataclass(frozen=True, slots=True)
class _Verdict:
    headline: str = ""
    text: str = ""
    symptom: str | None = None
    ranks: tuple[int, ...] = ()


def _diagnosed(job: _Job) -> _Verdict:
    from paramedic import diagnose
    from paramedic.report import render
    from paramedic.ward.ranks import exit_table

    if table := exit_table(job.ranks):
        (job.folder / "logs" / "console.log").write_text(table, "utf-8")
    try:
        with contextlib.chdir(job.folder / "logs"):  # so that files have short names
            report = diagnose(".")
    except Exception as error:
        return _Verdict("", f"no verdict: {type(error).__name__}: {error}")
    hang = job.symptom_of_hang
    if report.verdict is None:
        return _Verdict(hang.replace("-", " ") if hang else "", f"{hang}: {job.where()}" if hang else "")
    symptom, ranks = str(report.verdict.symptom), report.verdict.ranks
    if report.verdict.rule == _UNRECOGNISED:
        return _Verdict("", "", symptom, ranks)
    text = render(report, "text")
    return _Verdict(text.partition("\n")[0], text, symptom, ranks)


def _folder(item: pytest.Item) -> Path:
    """Kept and removed as `tmp_path` is."""
    factory: pytest.TempPathFactory = item.config._tmp_path_factory  # type: ignore[attr-defined]
    name = "".join(c if c.isalnum() or c in "_-" else "_" for c in item.name)[:40]
    folder = factory.mktemp(f"ranks-{name}")
    for part in ("logs", "state", "shared", "tmp"):
        (folder / part).mkdir()
    return folder


def _environment(settings: Settings) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    environment["PYTHONUNBUFFERED"] = "1"  # what a rank has printed must outlive a SIGKILL
    environment.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does
    if settings.backend == "gloo" and sys.platform == "linux":
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return environment


def _command(item: pytest.Item, settings: Settings, folder: Path, rank: int, go: int) -> list[str]:
    from paramedic.ward.inside import name_in_file

    config = item.config
    request = folder / "state" / f"{rank}.json"
    document = {
        "rank": rank,
        "size": settings.n,
        "test": name_in_file(item),
        "backend": settings.backend,
        "inject": settings.faults_of(rank) if settings.faults else [],
        "at": settings.inject_at,
        "seconds": settings.inject_seconds,
        "folder": str(folder),
        "go": go,
        "parent": os.getpid(),
        "options": _options(config),
    }
    request.write_text(json.dumps(document), "utf-8")
    cwd = config.invocation_params.dir
    as_module = any(path in ("", str(cwd)) for path in sys.path)
    return [
        sys.executable,
        *([] if as_module else ["-P"]),
        *("-m", "pytest", f"{item.path}::{name_in_file(item)}"),
        *(_OPTION, str(request)),
        *("--rootdir", str(config.rootpath), "-c", str(config.inipath or os.devnull)),
        *("--confcutdir", str(cwd / (config.option.confcutdir or _confcutdir(config)))),
        *("--capture=no", "--basetemp", str(folder / "tmp" / str(rank))),
        *(_logging(config, folder, rank) if config.pluginmanager.has_plugin("logging") else ()),
        *("-p", "no:terminal", "-p", "no:lfplugin", "-p", "no:nfplugin"),
        *_early_options(config),
        *("-o", "addopts="),
    ]


def _logging(config: pytest.Config, folder: Path, rank: int) -> list[str]:
    level = config.option.log_file_level or config.option.log_level or config.getini("log_level") or "INFO"
    return ["--log-file", str(folder / "logs" / f"rank-{rank}" / "log.log"), "--log-file-level", str(level)]


def _confcutdir(config: pytest.Config) -> Path:
    return config.inipath.parent if config.inipath else config.rootpath


def _early_options(config: pytest.Config) -> list[str]:
    """Those that pytest reads before plugins can set any."""
    option = config.option
    given = [word for plugin in option.plugins for word in ("-p", plugin)]
    given += [word for setting in option.override_ini or () for word in ("-o", setting)]
    given += [word for warning in option.pythonwarnings or () for word in ("-W", warning)]
    given += ["--assert", option.assertmode, "--import-mode", option.importmode]
    given += ["--noconftest"] if option.noconftest else []
    given += ["--disable-plugin-autoload"] if getattr(option, "disable_plugin_autoload", False) else []
    return given


def _options(config: pytest.Config) -> dict[str, object]:
    """The rest: of conftest files, of other plugins, and how tracebacks are shown."""
    parents, plain = set(_PARENT_ONLY.split()), dict[str, object]()
    for name, value in vars(config.option).items():
        if name not in parents:
            with contextlib.suppress(TypeError, ValueError):
                plain[name] = json.loads(json.dumps(value))
    return plain


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def _end_of(path: Path) -> str:
    text = _text(path)
    if len(text) <= _SHOWN:
        return text
    return f"… {len(text) - _SHOWN:,} characters before this are in {path}\n{text[-_SHOWN:]}"


def _named(numbers: Iterable[int]) -> str:
    listed = list(numbers)
    return f"{'rank' if len(listed) == 1 else 'ranks'} {', '.join(map(str, listed))}"


def _conjugated(state: str, count: int) -> str:
    verb, _, rest = state.partition(" ")
    one, many = {"wait": ("waits", "wait"), "be": ("is", "are"), "have": ("has", "have"), "give": ("gives", "give")}[
        verb
    ]
    return f"{one if count == 1 else many} {rest}"


def _ordinal(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")
