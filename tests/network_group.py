"""One rank of a gloo group that trains a small model for a few steps: started by the lab on each of its hosts.

`network_group.py --hosts FILE` is all ranks at once: torch is imported once, then a process for each host is forked into
that host's namespaces.
"""

from __future__ import annotations

import ctypes
import datetime
import json
import os
import socket
import subprocess
import sys
import time
from typing import Any

_NET, _MOUNT, _NAME = 0x40000000, 0x00020000, 0x04000000


def main() -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    start = time.monotonic()
    limit = datetime.timedelta(seconds=float(os.environ.get("GROUP_TIMEOUT", "15")))
    dist.init_process_group("gloo", timeout=limit)
    large = torch.ones(next((int(word) for word in sys.argv[1:] if word.isdigit()), 1 << 20))
    dist.all_reduce(large)
    assert bool((large == dist.get_world_size()).all())
    weights = torch.zeros(8, 1, requires_grad=True)
    truth = torch.arange(8.0).reshape(8, 1)
    for _ in range(20):
        batch = torch.randn(16, 8)
        loss: Any = ((batch @ weights - batch @ truth) ** 2).mean()
        loss.backward()
        assert weights.grad is not None
        dist.all_reduce(weights.grad)
        with torch.no_grad():
            weights -= 0.05 * weights.grad / dist.get_world_size()
            weights.grad.zero_()
    assert float(loss) < float((truth**2).sum()), "it did not learn"
    print(f"trained in {time.monotonic() - start:.1f} s", flush=True)


def told() -> None:
    """Runs, and says how it ended; gloo's threads may wait for ever."""
    try:
        main()
    except Exception as error:
        print(f"failed: {type(error).__name__}: {str(error).splitlines()[0][:200]}", flush=True)
        os._exit(1)
    os._exit(0)


def on_all(file: str) -> None:
    import torch.distributed  # noqa: F401

    with open(file) as hosts:
        for host in json.load(hosts):
            if os.fork() == 0:
                enter(host)
                told()
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


def enter(host: dict[str, Any]) -> None:
    """As `ip netns exec` and `unshare` do it for a program that is started anew."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{host['space']}") as space:
        assert libc.setns(space.fileno(), _NET) == 0, os.strerror(ctypes.get_errno())
    assert libc.unshare(_MOUNT | _NAME) == 0, os.strerror(ctypes.get_errno())
    socket.sethostname(host["name"])
    subprocess.run(["sh", "-c", f"mount --make-rprivate /; {host['mounts']}"], check=True)
    os.environ.update(host["env"])
    log = os.open(host["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--hosts"]:
        on_all(sys.argv[2])
    else:
        told()
