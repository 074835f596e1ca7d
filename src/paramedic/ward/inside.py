"""The pytest plugin inside of a rank: joins the process group, installs faults, and tells the parent what happens."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Generator, Iterable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from paramedic.ward.ranks import DUMP_SIGNAL


class Inside:
    """Registered by pytest_plugin.py in the process that runs the test."""

    def __init__(self, request: dict[str, Any]) -> None:
        folder = Path(request["folder"])
        self.rank: int = request["rank"]
        self.size: int = request["size"]
        self.shared = folder / "shared"
        self.options: dict[str, object] = request["options"]
        self._request = request
        self._logs = folder / "logs" / f"rank-{self.rank}"
        self._results = _opened(folder / "state" / f"{self.rank}.jsonl")
        self._go: int = request["go"]
        self._failed = False
        self._faults = ExitStack()
        _die_with(request["parent"])
        self._stacks = _opened(folder / "state" / f"{self.rank}.stacks")
        faulthandler.register(DUMP_SIGNAL, self._stacks)

    def tell(self, event: str, **more: object) -> None:
        """One write, past everything that a fault may have replaced."""
        os.write(self._results, json.dumps({"event": event, "time": time.time(), **more}).encode() + b"\n")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if name_in_file(item) == self._request["test"]]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._report("collect", "failed", str(report.longrepr), str(report.longrepr).strip().rpartition("\n")[2])

    def pytest_warning_recorded(self, warning_message: Any) -> None:
        where = f"{warning_message.filename}:{warning_message.lineno}"
        sys.stderr.write(f"{where}: {warning_message.category.__name__}: {warning_message.message}\n")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, None, None]:
        self.tell("ready")
        request = self._request
        if request["inject"]:
            from paramedic.ward.inject import installed

            faults = installed(request["inject"], request["at"], request["seconds"], self._injected)
            self._faults.enter_context(faults)
        if request["backend"]:
            import torch.distributed as dist

            dist.init_process_group(request["backend"])
        return (yield)

    def _injected(self, fault: str, what: str) -> None:
        self.tell("injected", fault=fault, what=what)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, None, None]:
        try:
            yield
        except BaseException:
            self._failed = True
            raise
        finally:
            self._leave()

    def _leave(self) -> None:
        """Who has passed stays until nobody needs it; who has failed goes at once, as a crashed rank does."""
        self._faults.close()
        if not self._failed:
            self.tell("done")
            select.select([self._go], [], [])
        dist = sys.modules.get("torch.distributed")
        if self._request["backend"] and dist is not None and dist.is_initialized():
            dist.destroy_process_group()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        text = str(report.longrepr or "")
        line = call.excinfo.exconly(tryshort=True).partition("\n")[0] if call.excinfo else ""
        outcome: str = report.outcome
        if hasattr(report, "wasxfail"):
            outcome, line = ("xfailed" if report.skipped else "xpassed"), report.wasxfail
        elif report.skipped and isinstance(report.longrepr, tuple):
            line = report.longrepr[2].removeprefix("Skipped: ")
        elif report.failed and call.excinfo is None:
            outcome = "xpassed"  # strict; the parent finds that itself when no other rank has failed
        if outcome in ("failed", "xfailed"):
            self._failed = True
            if call.excinfo:
                self._write_traceback(call.excinfo.value, f"rank {self.rank} failed in {report.when}")
        self._report(str(report.when), outcome, text, line, report.user_properties)
        return report

    def _report(
        self, when: str, outcome: str, text: str, line: str, properties: Iterable[tuple[str, object]] = ()
    ) -> None:
        plain = [pair for pair in properties if isinstance(pair[1], str | int | float)]
        self.tell("report", when=when, outcome=outcome, text=text, line=line, properties=plain)

    def _write_traceback(self, error: BaseException, heading: str) -> None:
        """As Python itself writes it, from the test on: what `paramedic diagnose` reads."""
        step = error.__traceback__
        while step and step.tb_frame.f_globals.get("__name__", "").partition(".")[0] in ("_pytest", "pluggy"):
            step = step.tb_next
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds")
        lines = traceback.format_exception(type(error), error, step or error.__traceback__)
        text = f"{stamp} ERROR {heading}\n{''.join(lines)}"
        file = _opened(self._logs / "traceback.log")
        os.write(file, text.encode(errors="backslashreplace"))
        os.close(file)

    def pytest_runtest_logfinish(self) -> None:
        self.tell("finished")


def _die_with(parent: int) -> None:
    """Linux ends this process when its parent ends, however that ends."""
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def _opened(path: Path) -> int:
    """A file to append to, past everything that a fault may have replaced."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def name_in_file(item: pytest.Item) -> str:
    """What follows the file in its node id, to which xdist may have added a group."""
    places = pytest.Session, pytest.Directory, pytest.File
    return "::".join(node.name for node in item.listchain() if not isinstance(node, places))
