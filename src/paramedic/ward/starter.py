"""Start plain processes as ranks, without any launcher of a framework: copied beside the job and run there.

    python starter.py srun-l|per-rank PORT RANKS COMMAND…

`srun-l`: every line labelled on one console as `srun -l` does; `per-rank`: one file a rank under logs/. As with `srun
--kill-on-bad-exit`, after the first bad exit the others get SIGTERM a second later.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

KILL_WAIT_S = 1.0


def main() -> int:
    layout, port, ranks, *command = sys.argv[1:]
    world = int(ranks)
    missing = int(os.environ.pop("WARD_RANKS_NOT_STARTED", "0"))
    processes = []
    threads = []
    lock = threading.Lock()
    for rank in range(world - missing):
        env = os.environ | {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world),
            "MASTER_ADDR": os.environ.get("MASTER_ADDR", "127.0.0.1"),
            "MASTER_PORT": os.environ.get("MASTER_PORT", port),
        }  # fmt: skip
        if layout == "per-rank":
            with open(f"logs/rank-{rank}.log", "wb") as out:
                processes.append(subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT))
        else:
            process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            processes.append(process)
            threads.append(threading.Thread(target=label, args=(rank, process, lock)))
            threads[-1].start()
    code = wait(processes)
    for thread in threads:
        thread.join()
    return code


def label(rank: int, process: subprocess.Popen[bytes], lock: threading.Lock) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        with lock:
            sys.stdout.buffer.write(b"%d: " % rank + line.rstrip(b"\n") + b"\n")
            sys.stdout.buffer.flush()


def wait(processes: list[subprocess.Popen[bytes]]) -> int:
    """0 when all ended well; else the code of the first bad exit."""
    while True:
        codes = [process.poll() for process in processes]
        bad = [code for code in codes if code]
        if bad:
            break
        if all(code == 0 for code in codes):
            return 0
        time.sleep(0.05)
    time.sleep(KILL_WAIT_S)
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    limit = time.monotonic() + 10 * KILL_WAIT_S
    while time.monotonic() < limit and any(process.poll() is None for process in processes):
        time.sleep(0.05)
    for process in processes:
        process.kill()
        process.wait()
    return bad[0] if bad[0] > 0 else 128 - bad[0]


if __name__ == "__main__":
    sys.exit(main())
