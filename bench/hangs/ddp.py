"""Plain DDP training: a step, a callback, a line now and then."""

import ctypes
import os
import re
import signal
import socket
import threading
import time

import torch
import torch.distributed as dist
from common import BATCH, HOW, WORLD, build_model, due, go_on, log, make_batch, mark, reached, setup, train_step
from torch.nn.parallel import DistributedDataParallel


def refresh_token():
    while not os.path.exists("/nonexistent/token"):
        time.sleep(0.5)


def read_schedule():
    with open(os.environ["FAULT_FIFO"]) as file:
        return file.read()


def report_progress(step):
    with socket.create_server(("127.0.0.1", 0)) as tracker:
        with socket.create_connection(tracker.getsockname()) as client:
            client.sendall(f"step {step}\n".encode())
            return client.recv(16)


def update_best(lock):
    with lock:
        lock.acquire()


def count_tokens():
    """A native extension that keeps the interpreter and waits for itself; no signal gets it out."""
    mutex = ctypes.create_string_buffer(64)
    native = ctypes.PyDLL(None)
    native.pthread_mutex_lock(mutex)
    native.pthread_mutex_lock(mutex)


def clean_text():
    return re.fullmatch(r"(\w+\s?)*;", "the quick brown fox jumps over the lazy dog and runs away from it")


def on_step_end(step):
    """What people do between two steps."""
    if HOW == "sleep" and due(step):
        time.sleep(36000)
    elif HOW == "poll" and due(step):
        refresh_token()
    elif HOW == "fifo" and due(step):
        read_schedule()
    elif HOW == "socket" and due(step):
        report_progress(step)
    elif HOW == "lock" and due(step):
        update_best(threading.Lock())
    elif HOW == "stop" and due(step):
        os.kill(os.getpid(), signal.SIGSTOP)
    elif HOW == "kill" and due(step):
        os.kill(os.getpid(), signal.SIGKILL)
    elif HOW == "native" and due(step):
        count_tokens()
    elif HOW == "regex" and due(step):
        clean_text()


def limit_link():
    """Every TCP connection of this process sends at most so many bytes a second."""
    for fd in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(fd))) as link:
                if link.family in (socket.AF_INET, socket.AF_INET6):
                    link.setsockopt(socket.SOL_SOCKET, 47, 120_000_000 // WORLD)
        except OSError:
            pass


def crowd_core():
    """This process shares one core with two others that never rest and end with it."""
    core = {max(os.sched_getaffinity(0))}
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), core)
    for _ in range(2):
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
            while os.getppid() != 1:
                sum(range(100_000))
            os._exit(0)


def slow_down(step):
    """Returns the size of this step's batch."""
    if not reached(step):
        return BATCH
    if HOW == "work":
        mark()
        return BATCH * 8
    if HOW == "crowded" and due(step):
        crowd_core()
    if HOW == "link" and due(step):
        limit_link()
    return BATCH


def main():
    setup()
    model = DistributedDataParallel(build_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    while go_on(step):
        loss = train_step(model, optimizer, make_batch(step, slow_down(step)))
        log(step, loss)
        on_step_end(step)
        step += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
