"""Small training programs that end well, although some of what they print looks alarming.

    torchrun --nproc-per-node 2 programs.py NAME

PROGRAMS, at the end, names them. Each is a function of (rank, world); `launch` has set up the group.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

log = logging.getLogger("train")


def net(width: int = 32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 4))


def batches(rank: int, steps: int, size: int = 16) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    source = torch.Generator().manual_seed(rank)
    for step in range(steps):
        x = torch.randn(size, 16, generator=source)
        yield step, x, (x[:, 0] > 0).long() * 2 + (x[:, 1] > 0).long()


def fit(
    model: nn.Module,
    rank: int,
    steps: int = 20,
    before: Callable[[int], None] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    same_data: bool = False,
) -> nn.Module:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.05)
    for step, x, y in batches(0 if same_data else rank, steps):
        if before:
            before(step)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            log.info("rank %d step %d loss %.4f", rank, step, loss.item())
    return model


def wrap(model: nn.Module, **options: Any) -> nn.Module:
    return DDP(model, **options) if dist.is_initialized() else model


# --- kinds of parallelism


def ddp(rank: int, world: int) -> None:
    fit(wrap(net()), rank)


def ddp_find_unused(rank: int, world: int) -> None:
    fit(wrap(net(), find_unused_parameters=True), rank)


def ddp_static_accumulate(rank: int, world: int) -> None:
    model = DDP(net(), static_graph=True, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters())
    for step, x, y in batches(rank, 24):
        loss = F.cross_entropy(model(x), y) / 4
        loss.backward()
        if step % 4 == 3:
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            log.info("rank %d step %d loss %.4f grad_norm %.3f skipped 0", rank, step, loss.item() * 4, norm)


def ddp_join(rank: int, world: int) -> None:
    """Unequal numbers of batches, handled as they should be."""
    model = DDP(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with model.join():
        steps = 10 + 3 * rank
        for _, x, y in batches(rank, steps):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        log.info("rank %d exhausted its data after %d steps, shadowing the others", rank, steps)


def ddp_hooks(rank: int, world: int) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    model = DDP(net(64))
    if world > 2:
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    else:
        state = powerSGD_hook.PowerSGDState(process_group=None, start_powerSGD_iter=4)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    fit(model, rank, 15)


def zero_optimizer(rank: int, world: int) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DDP(net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=1e-3)
    fit(model, rank, optimizer=optimizer)


def fsdp2(rank: int, world: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (world,))
    model = net(64)
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fit(fully_shard(model, mesh=mesh), rank)


def fsdp1(rank: int, world: int) -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType

    model = FullyShardedDataParallel(net(64), device_id=torch.device("cpu"))
    fit(model, rank, 12)
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        log.info("rank %d state dict has %d entries", rank, len(model.state_dict()))


def tensor_parallel(rank: int, world: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
    model = parallelize_module(net(64), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fit(model, rank, 12, same_data=True)


def pipeline(rank: int, world: int) -> None:
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    torch.manual_seed(0)
    layers = [nn.Linear(16, 16) for _ in range(world - 1)] + [nn.Linear(16, 4)]
    stage = PipelineStage(layers[rank], rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=F.cross_entropy)
    optimizer = torch.optim.SGD(layers[rank].parameters(), lr=0.05)
    for step, x, y in batches(0, 10):
        losses: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(x)
        elif rank == world - 1:
            schedule.step(target=y, losses=losses)
        else:
            schedule.step()
        optimizer.step()
        optimizer.zero_grad()
        if losses and step % 3 == 0:
            log.info("rank %d step %d loss %.4f", rank, step, torch.stack(losses).mean().item())


def collectives(rank: int, world: int) -> None:
    for size in (1, 1 << 10, 1 << 16):
        began = time.perf_counter()
        tensor = torch.full((size,), float(rank))
        dist.all_reduce(tensor)
        error = abs(float(tensor[0]) - world * (world - 1) / 2)
        log.info(
            "rank %d all_reduce %d error %.1e in %.2f ms",
            rank,
            size,
            error,
            1e3 * (time.perf_counter() - began),
        )
    dist.monitored_barrier(timeout=timedelta(seconds=20))
    answers: list[Any] = [None] * world
    dist.all_gather_object(answers, {"rank": rank, "failed": False, "errors": 0, "timeout": None})
    log.info("rank %d self test passed: %s", rank, answers)


def spawn(rank: int, world: int) -> None:
    """Its own processes instead of torchrun's."""
    import torch.multiprocessing as mp

    os.environ["MASTER_ADDR"] = "localhost"
    mp.spawn(spawned, args=(3,), nprocs=3)


def spawned(rank: int, world: int) -> None:
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world)}
    start_logging(rank)
    dist.init_process_group("gloo")
    ddp(rank, world)
    dist.destroy_process_group()


# --- data


class Rows(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, flaky: bool) -> None:
        self.flaky = flaky

    def __len__(self) -> int:
        return 96

    def read(self, index: int, attempt: int) -> tuple[torch.Tensor, int]:
        if self.flaky and index % 40 == 17 and attempt == 0:
            raise TimeoutError(f"timed out reading shard-{index // 40:05d}.tar after 2.0 s")
        x = torch.randn(16, generator=torch.Generator().manual_seed(index))
        return x, int(x[0] > 0)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        for attempt in range(3):
            try:
                return self.read(index, attempt)
            except TimeoutError:
                log.exception("reading sample %d failed (attempt %d of 3), retrying", index, attempt + 1)
        raise RuntimeError("unreadable")


def iterate(rank: int, workers: int, flaky: bool) -> None:
    model = wrap(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, (x, y) in enumerate(DataLoader(Rows(flaky), batch_size=16, num_workers=workers)):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.info("rank %d step %d loss %.4f", rank, step, loss.item())


def loader_workers(rank: int, world: int) -> None:
    """More workers than cores: the DataLoader says so."""
    iterate(rank, 6, flaky=False)


def loader_retry(rank: int, world: int) -> None:
    iterate(rank, 1, flaky=True)


# --- numbers


def amp_cpu_scaler(rank: int, world: int) -> None:
    """Infinite gradients now and then, as a loss scaler expects."""
    model = wrap(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=4)
    for step, x, y in batches(rank, 16):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if step in (3, 4, 11):
            next(model.parameters()).grad.fill_(float("inf"))
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() < before:
            log.warning(
                "rank %d Gradient overflow. Skipping step, loss scaler reducing loss scale from %.1f to %.1f",
                rank, before, scaler.get_scale(),
            )  # fmt: skip
        log.info("rank %d step %d loss %.4f scale %.0f", rank, step, loss.item(), scaler.get_scale())


def amp_without_cuda(rank: int, world: int) -> None:
    """The CUDA mixed-precision API on a host without CUDA: warnings only."""
    model = wrap(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.cuda.amp.GradScaler()
    for step, x, y in batches(rank, 8):
        with torch.cuda.amp.autocast():
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        log.info("rank %d step %d loss %.4f", rank, step, loss.item())


def nan_skipped(rank: int, world: int) -> None:
    model = wrap(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    skipped = 0
    for step, x, y in batches(rank, 20):
        loss = F.cross_entropy(model(x * float("nan") if step == 8 else x), y)
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if not torch.isfinite(norm):
            skipped += 1
            log.warning("rank %d step %d loss nan grad_norm nan: found NaN/Inf, skipping update", rank, step)
            continue
        optimizer.step()
        log.info(
            "rank %d step %d loss %.4f | number of skipped iterations: %d | number of nan iterations: 0",
            rank, step, loss.item(), skipped,
        )  # fmt: skip


def scheduler_order(rank: int, world: int) -> None:
    model = wrap(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    for step, x, y in batches(rank, 10):
        scheduler.step()
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.info("rank %d step %d loss %.4f lr %.4f", rank, step, loss.item(), scheduler.get_last_lr()[0])


def deprecations(rank: int, world: int) -> None:
    warnings.simplefilter("always")
    model = net()
    x = torch.randn(8, 16)
    torch.tensor(x)
    F.mse_loss(model(x), torch.zeros(8, 1))
    nn.Softmax()(x)
    torch.nn.utils.weight_norm(nn.Linear(4, 4))
    F.dropout2d(torch.randn(2, 3))
    torch.randn(2, 3, 4).T  # noqa: B018
    nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2), 1)
    torch.jit.script(nn.Linear(2, 2))
    x.requires_grad_().sum().backward()
    _ = (x * 2).grad
    warnings.warn(
        "the 'error_bad_lines' option is ignored and will fail in a future version", FutureWarning, 2
    )
    fit(wrap(model), rank, 10)


def compiled(rank: int, world: int) -> None:
    """Graph breaks and more shapes than the recompile limit: slower, not wrong."""
    torch._dynamo.config.recompile_limit = 3

    @torch.compile(backend="eager", dynamic=False)
    def step(model: nn.Module, x: torch.Tensor, kind: int) -> torch.Tensor:
        if x.sum().item() > 1e9:
            print("large")
        return model(x) * kind

    model = net()
    for kind in range(6):
        log.info("rank %d kind %d mean %.4f", rank, kind, step(model, torch.randn(4 + kind, 16), kind).mean())
    fit(wrap(model), rank, 10)


# --- errors that the program deals with


def fetch_weights(attempt: int) -> nn.Module:
    if attempt < 2:
        raise ConnectionResetError(104, "Connection reset by peer")
    return net()


def caught_traceback(rank: int, world: int) -> None:
    for attempt in range(3):
        try:
            model = fetch_weights(attempt)
            break
        except OSError:
            traceback.print_exc()
            print(f"rank {rank}: download failed, attempt {attempt + 1}/3, retrying in 0.2 s", flush=True)
            time.sleep(0.2)
    fit(wrap(model), rank)


def chained_logging(rank: int, world: int) -> None:
    """A metrics service that is down: a real refusal, logged with a chained traceback, and lived with."""

    def report(step: int) -> None:
        if step % 8 == 0:
            try:
                try:
                    socket.create_connection(("127.0.0.1", 9), timeout=1).close()
                except OSError as error:
                    raise RuntimeError(f"metrics push failed at step {step}") from error
            except RuntimeError:
                log.exception("could not reach the tracking server, keeping metrics locally")

    fit(wrap(net()), rank, before=report)


def oom_retry(rank: int, world: int) -> None:
    """The program raises the out-of-memory error itself: there is no GPU to run out of."""
    size = 64
    while True:
        try:
            if size > 16:
                raise torch.OutOfMemoryError(
                    f"CUDA out of memory. Tried to allocate {size // 8}.00 GiB. GPU {rank} has a total "
                    "capacity of 79.15 GiB of which 1.13 GiB is free. Of the allocated memory 70.01 GiB is "
                    "allocated by PyTorch, and 6.22 GiB is reserved by PyTorch but unallocated."
                )
            break
        except torch.OutOfMemoryError as error:
            log.warning("rank %d batch size %d does not fit (%s), trying %d", rank, size, error, size // 2)
            size //= 2
    log.info("rank %d found batch size %d", rank, size)
    fit(wrap(net()), rank)


def thread_dies(rank: int, world: int) -> None:
    """A side thread ends with an exception, which does not concern the training."""

    def upload() -> None:
        raise PermissionError(13, "Permission denied", "/var/lib/node_exporter/train.prom")

    thread = threading.Thread(target=upload, name="metrics-exporter")
    thread.start()
    thread.join()
    fit(wrap(net()), rank)


def asyncio_task(rank: int, world: int) -> None:
    async def ping() -> None:
        raise TimeoutError("heartbeat to tracker timed out")

    async def main() -> None:
        task = asyncio.create_task(ping())
        await asyncio.sleep(0.05)
        del task

    asyncio.run(main())
    fit(wrap(net()), rank)


class Writer:
    def __del__(self) -> None:
        raise ValueError("I/O operation on closed file.")


def ignored_exception(rank: int, world: int) -> None:
    writer = Writer()
    fit(wrap(net()), rank)
    del writer


def stack_dump(rank: int, world: int) -> None:
    """A slow step makes the program's own stall reporter dump its stacks once."""
    faulthandler.dump_traceback_later(1.0, exit=False)
    fit(wrap(net()), rank, before=lambda step: time.sleep(1.3 if step == 6 else 0.0))
    faulthandler.cancel_dump_traceback_later()


def preemption_notice(rank: int, world: int) -> None:
    def save(number: int, frame: object) -> None:
        log.warning("rank %d received signal %d (SIGUSR1): saving a checkpoint, then going on", rank, number)

    signal.signal(signal.SIGUSR1, save)
    fit(wrap(net()), rank, before=lambda step: os.kill(os.getpid(), signal.SIGUSR1) if step == 7 else None)


def probes_fail(rank: int, world: int) -> None:
    """Start-up probes for things that this host lacks."""
    for command in (["nvidia-smi"], ["ibv_devinfo"], ["git", "-C", "/", "rev-parse", "HEAD"]):
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            log.warning(
                "probe %s failed with exit code %d: %s", command[0], done.returncode, done.stderr.strip()
            )
        except OSError as error:
            log.warning("probe failed: %r", error)
    for module in ("flash_attn", "apex", "transformer_engine"):
        try:
            __import__(module)
        except ImportError as error:
            log.warning("%s: %s; falling back to the plain implementation", type(error).__name__, error)
    if not torch.cuda.is_available():
        log.warning("CUDA is not available, NCCL not available: training on cpu with gloo")
    fit(wrap(net()), rank)


def socket_retry(rank: int, world: int) -> None:
    """The store's clients come before its server: torch 2.13 retries without a word."""
    port = int(os.environ["MASTER_PORT"]) + 1
    if rank == 0:
        time.sleep(4)
    store = dist.TCPStore("localhost", port, world, rank == 0, timedelta(seconds=60))
    store.set(f"ready-{rank}", "yes")
    store.wait([f"ready-{r}" for r in range(world)])
    fit(wrap(net()), rank)


def tracker_tests(rank: int, world: int) -> None:
    """A self test in which the errors are the expected outcome."""
    cases: list[tuple[str, Callable[[], object]]] = [
        ("mat1 and mat2", lambda: torch.ones(2, 3) @ torch.ones(4, 5)),
        ("index out of range", lambda: nn.Embedding(4, 2)(torch.tensor([9]))),
        ("must match the size", lambda: torch.ones(3) + torch.ones(4)),
    ]
    for expected, call in cases:
        try:
            call()
        except (RuntimeError, IndexError) as error:
            passed = expected in str(error)
            print(f"selftest: {type(error).__name__}: {error} ... {'ok' if passed else 'FAIL'}", flush=True)
    fit(wrap(net()), rank)


# --- state


def strict_false(rank: int, world: int) -> None:
    model = net()
    state = {"0.weight": model[0].weight.detach().clone(), "lm_head.weight": torch.zeros(4, 4)}
    result = model.load_state_dict(state, strict=False)
    log.warning("missing keys when loading the checkpoint: %s", result.missing_keys)
    log.warning("unexpected keys when loading the checkpoint: %s", result.unexpected_keys)
    fit(wrap(model), rank)


def first_start(rank: int, world: int) -> None:
    """No checkpoint yet; a torn one is passed over; then saving and loading works."""
    import torch.distributed.checkpoint as dcp

    Path(f"torn-{rank}.pt").write_bytes(b"PK\x03\x04 torn")
    for path in ("latest.pt", f"torn-{rank}.pt"):
        try:
            torch.load(path)
        except Exception as error:
            log.warning("rank %d cannot resume from %s: %s: %.120s", rank, path, type(error).__name__, error)
    log.info("rank %d no usable checkpoint found, starting from scratch", rank)
    model = fit(wrap(net()), rank, 10)
    state = {"model": model.state_dict()}
    dcp.save(state, checkpoint_id="ckpt-10")
    dcp.load(state, checkpoint_id="ckpt-10")
    log.info("rank %d resumed from ckpt-10 without errors", rank)


def words(rank: int, world: int) -> None:
    """Settings and measures whose names are words of failure."""
    settings = {
        "nccl_timeout": 1800, "watchdog_timeout_s": 600, "on_error": "abort", "max_failures": 3,
        "fail_fast": True, "kill_grace_period": 30, "oom_retries": 2, "nan_policy": "raise",
        "crash_dir": "/srv/crash",
        "ddp_timeout": "1:00:00", "TORCH_NCCL_ASYNC_ERROR_HANDLING": 1, "segfault_handler": "off",
    }  # fmt: skip
    log.info("config %s", settings)
    for key, value in settings.items():
        print(f"  {key:<34} = {value}", flush=True)

    def measure(step: int) -> None:
        if step % 4 == 0:
            print(
                f"[{step:>4}] error_rate {0.5 / (step + 1):.4f} failed_requests 0 timeouts 0 killed 0 "
                f"lost_ranks 0 word_error 0.31 mean_absolute_error: {1 / (step + 1):.3f} "
                "exception_count=0 Connection closed: 0",
                flush=True,
            )

    fit(wrap(net()), rank, before=measure)
    print("summary: 0 errors, 0 failures, 0 crashed workers; eval loss nan_count=0; exit code 0", flush=True)


def no_destroy(rank: int, world: int) -> None:
    """`launch` leaves the process group as it is when this one returns."""
    fit(DDP(net()), rank)


def subgroups(rank: int, world: int) -> None:
    halves = [dist.new_group(list(range(start, world, 2)), timeout=timedelta(seconds=30)) for start in (0, 1)]
    mine = torch.ones(1) * rank
    dist.all_reduce(mine, group=halves[rank % 2])
    log.info("rank %d sum in its half %.0f", rank, mine.item())
    dist.destroy_process_group(halves[rank % 2])
    fit(DDP(net()), rank)


def profiled(rank: int, world: int) -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        fit(wrap(net()), rank, 6)
    if rank == 0:
        print(profiler.key_averages().table(sort_by="cpu_time_total", row_limit=12), flush=True)


# --- libraries on top


def accelerate_loop(rank: int, world: int) -> None:
    from accelerate import Accelerator
    from accelerate.logging import get_logger

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    logger = get_logger("train", log_level="INFO")
    model = net()
    data = DataLoader(Rows(False), batch_size=16, num_workers=0)
    model, optimizer, data = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), data)
    for step, (x, y) in enumerate(data):
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        logger.info(f"step {step} loss {loss.item():.4f}", main_process_only=False)
    accelerator.save_state("accelerate-state")
    accelerator.end_training()


def hf_trainer(rank: int, world: int) -> None:
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    config = BertConfig(
        vocab_size=99,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        num_labels=2,
    )
    data = [
        {"input_ids": torch.randint(0, 99, (12,)), "attention_mask": torch.ones(12).long(), "labels": i % 2}
        for i in range(64)
    ]
    options = TrainingArguments(
        output_dir="hf", use_cpu=True, per_device_train_batch_size=8, num_train_epochs=2, logging_steps=2,
        report_to=[], save_strategy="epoch", ddp_find_unused_parameters=True, dataloader_num_workers=1,
    )  # fmt: skip
    Trainer(model=BertForSequenceClassification(config), args=options, train_dataset=data).train()


def hf_partial_weights(rank: int, world: int) -> None:
    """A checkpoint without a head: the library lists newly initialised and unexpected weights."""
    from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification

    config = BertConfig(
        vocab_size=99, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    if rank == 0:
        BertForMaskedLM(config).save_pretrained("masked-lm")
    dist.barrier()
    model = wrap(BertForSequenceClassification.from_pretrained("masked-lm"), find_unused_parameters=True)
    for step in range(4):
        loss = model(input_ids=torch.randint(0, 99, (4, 12)), labels=torch.tensor([0, 1, 0, 1])).loss
        loss.backward()
        log.info("rank %d step %d loss %.4f", rank, step, loss.item())


def lightning_ddp(rank: int, world: int) -> None:
    import lightning as L

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
            loss = F.cross_entropy(self.net(batch[0]), batch[1])
            self.log("train_loss", loss, prog_bar=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.05)

    trainer = L.Trainer(
        accelerator="cpu", strategy="ddp", devices=world, max_epochs=2, logger=False, log_every_n_steps=50,
        enable_progress_bar=False,
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(Rows(False), batch_size=16))


PROGRAMS: dict[str, Callable[[int, int], None]] = {
    f.__name__.replace("_", "-"): f
    for f in (
        ddp, ddp_find_unused, ddp_static_accumulate, ddp_join, ddp_hooks, zero_optimizer, fsdp2, fsdp1,
        tensor_parallel, pipeline, collectives, spawn, loader_workers, loader_retry, amp_cpu_scaler,
        amp_without_cuda, nan_skipped, scheduler_order, deprecations, compiled, caught_traceback,
        chained_logging, oom_retry, thread_dies, asyncio_task, ignored_exception, stack_dump,
        preemption_notice, probes_fail, socket_retry, tracker_tests, strict_false, first_start,
        words, no_destroy, subgroups, profiled, accelerate_loop, hf_trainer, hf_partial_weights,
        lightning_ddp,
    )
}  # fmt: skip
OWN_GROUP = {"spawn", "accelerate-loop", "hf-trainer", "lightning-ddp"}


def start_logging(rank: int) -> None:
    """Half of the programs log with a time stamp to stderr, half plainly to stdout."""
    if os.environ.get("PLAIN_LOG"):
        logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    else:
        style = f"%(asctime)s | %(levelname)-8s | rank{rank} | %(message)s"
        logging.basicConfig(level=logging.INFO, format=style, stream=sys.stderr)


def launch(name: str) -> None:
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    start_logging(rank)
    if name not in OWN_GROUP and "RANK" in os.environ:
        dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    PROGRAMS[name](rank, world)
    if name != "no-destroy" and dist.is_initialized():
        dist.destroy_process_group()
    log.info("rank %d finished", rank)


if __name__ == "__main__":
    launch(sys.argv[1])
