"""Process groups in Python: one that records what it hands on to the real one, one that has no peers at all."""

from __future__ import annotations

import datetime
import sys
import threading
from typing import Any

from . import calls
from .program import stand_in


def recording_group(c10d: Any, recorder: Any) -> Any:
    """The class; torch is only known now. The real group does the work, and keeps its name."""

    class RecordingGroup(c10d.ProcessGroup):  # type: ignore[misc]
        def __init__(self, inner: Any) -> None:
            super().__init__(inner.rank(), inner.size())
            self._inner = inner
            stand_in(c10d, self, inner)

        def getBackendName(self) -> str:  # noqa: N802
            return str(self._inner.name())

    def method(name: str, op: str) -> Any:
        def called(self: Any, *arguments: Any, **named: Any) -> Any:
            call = recorder.begin(self, op, arguments) if recorder.is_on else None
            work = getattr(self._inner, name)(*arguments, **named)
            if call is None:
                return work
            return recorder.end(call) if work is None else Recorded(work, call)

        called.__name__ = name
        return called

    class Recorded(c10d.Work):  # type: ignore[misc]
        """Is complete only when the outputs have been recorded: nobody changes them in between."""

        def __init__(self, inner: Any, call: calls.Call) -> None:
            super().__init__()
            self._inner, self._call = inner, call
            self._once = threading.Lock()
            self._is_done = False
            self._future: Any = None

        def _done(self) -> None:
            with self._once:
                if not self._is_done:
                    self._is_done = True
                    recorder.end(self._call)

        def wait(self, timeout: Any = None) -> Any:
            unlimited = timeout is None or timeout.total_seconds() <= 0
            result = self._inner.wait() if unlimited else self._inner.wait(timeout)
            self._done()
            return result

        def get_future(self) -> Any:
            if self._future is None:

                def then(future: Any) -> Any:
                    value = future.value()
                    self._done()
                    return value

                self._future = self._inner.get_future().then(then)
            return self._future

        def is_completed(self) -> bool:
            return bool(self._inner.is_completed())

        def is_success(self) -> bool:
            return bool(self._inner.is_success())

        def exception(self) -> Any:
            return self._inner.exception()

        def result(self) -> Any:
            return self._inner.result()

        def source_rank(self) -> int:
            return int(self._inner.source_rank())

        def synchronize(self) -> None:
            self._inner.synchronize()
            self._done()

    for name, op in calls.METHODS.items():
        if hasattr(c10d.ProcessGroup, name):
            setattr(RecordingGroup, name, method(name, op))
    return RecordingGroup


def lonely_group(c10d: Any, player: Any) -> Any:
    """The class of a group without peers: what they sent comes from the recording."""

    torch = sys.modules["torch"]

    class LonelyGroup(c10d.ProcessGroup):  # type: ignore[misc]
        def __init__(self, inner: Any, backend: str) -> None:
            super().__init__(inner.rank(), inner.size())
            self._backend = backend
            stand_in(c10d, self, inner)
            if backend == "gloo":  # DDP asks the real one for its threads
                alone = c10d.ProcessGroupGloo(
                    sys.modules["torch.distributed"].HashStore(), 0, 1, timeout=datetime.timedelta(minutes=1)
                )
                gloo = c10d.ProcessGroup.BackendType.GLOO
                self._set_default_backend(gloo)
                self._register_backend(torch.device("cpu"), gloo, alone)
                self._set_group_name(inner.group_name)
                self._set_group_desc(inner.group_desc)

        def getBackendName(self) -> str:  # noqa: N802
            return self._backend

    class Done(c10d.Work):  # type: ignore[misc]
        def __init__(self, outputs: list[Any]) -> None:
            super().__init__()
            from torch.futures import Future

            self._outputs = outputs or [torch.zeros(1)]
            self._future: Any = Future()
            self._future.set_result(self._outputs)

        def wait(self, timeout: Any = None) -> bool:
            return True

        def get_future(self) -> Any:
            return self._future

        def is_completed(self) -> bool:
            return True

        def is_success(self) -> bool:
            return True

        def exception(self) -> None:
            return None

        def result(self) -> Any:
            return self._outputs

        def synchronize(self) -> None:
            return None

    def method(name: str, op: str) -> Any:
        def called(self: Any, *arguments: Any, **named: Any) -> Any:
            call = calls.Call(op, arguments, self.rank())
            player.play(self, call)
            return Done(call.outputs)

        called.__name__ = name
        return called

    for name, op in calls.METHODS.items():
        if hasattr(c10d.ProcessGroup, name):
            setattr(LonelyGroup, name, method(name, op))
    return LonelyGroup
