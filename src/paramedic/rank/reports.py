"""What a rank writes when it is asked: stacks of all its threads, and torch's flight recorder."""

from __future__ import annotations

import os
import sys
import threading
import time
from types import FrameType

_MOST_FRAMES = 100
_HERE = os.path.dirname(os.path.abspath(__file__))


def write_stacks(path: str, number: int) -> None:
    """In faulthandler's form, with the names of threads; dumps follow each other in the file."""
    with open(path, "a", encoding="utf-8", errors="replace") as file:
        file.write("\n".join([f"Dump {number} at {time.time():.3f} of process {os.getpid()}", *_stacks(), ""]))


def _stacks() -> list[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    own = threading.get_ident()
    frames = sorted(sys._current_frames().items(), key=lambda item: names.get(item[0]) != "MainThread")
    lines: list[str] = []
    for ident, innermost in frames:
        if ident == own:
            continue
        lines.append("Thread 0x{:016x} [{}] (most recent call first):".format(ident, names.get(ident, "?")))
        frame: FrameType | None = innermost
        depth = 0
        while frame is not None and depth < _MOST_FRAMES:
            code = frame.f_code
            if not code.co_filename.startswith(_HERE):
                lines.append(f'  File "{code.co_filename}", line {frame.f_lineno or 0} in {code.co_name}')
            frame, depth = frame.f_back, depth + 1
        lines.append("")
    return lines


def flight_recorder() -> bytes | None:
    """torch's own bytes. Where there are two recorders, the one of the GPUs' library comes first."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None or not c10d.is_initialized():
        return None
    from torch._C import _distributed_c10d as native  # the program has imported it already

    for name in ("_dump_nccl_trace", "_dump_fr_trace"):
        dump = getattr(native, name, None)
        data = dump(True, True, False) if dump is not None else None
        if data and len(data) > 256:
            return bytes(data)
    return None


def replace_file(path: str, data: bytes) -> None:
    temporary = path + ".part"
    with open(temporary, "wb") as file:
        file.write(data)
    os.replace(temporary, path)
