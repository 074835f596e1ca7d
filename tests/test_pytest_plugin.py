"""The pytest plugin as its users meet it: pytest runs in a process of its own, and so does every rank."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from paramedic.knowledge.taxonomy import load_taxonomy
from paramedic.pytest_plugin import Settings
from paramedic.ward.inject import FAULTS, problem_with
from paramedic.ward.ranks import place_of

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parent.parent
Run = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester) -> Run:
    """Writes `test_it.py` and runs pytest in another process."""

    def run_it(source: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(test_it=f"import os, signal, subprocess, sys, time, unittest\nimport pytest\n{source}")
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", *options)

    return run_it


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def wait_until(condition: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.05)


def test_every_rank_runs_the_test_with_its_own_fixtures_and_the_parents_options(
    pytester: pytest.Pytester, run: Run
) -> None:
    pytester.makeini("[pytest]\naddopts = -n 0 --maxfail=3\nmarkers = slow: x\nfilterwarnings = error\n")
    pytester.makeconftest(
        """
        import os, pathlib, pytest

        def pytest_addoption(parser):
            parser.addoption("--device", default="cpu")

        @pytest.fixture(scope="module", autouse=True)
        def only_in_ranks():
            assert "RANK" in os.environ, "the parent must not run fixtures"
            yield
            pathlib.Path(f"torn-down-{os.environ['RANK']}").touch()

        @pytest.fixture
        def device(request):
            return request.config.getoption("--device")
        """
    )
    result = run(
        """
        class TestIt:
            @pytest.mark.slow
            @pytest.mark.ranks(2, backend=None)
            @pytest.mark.parametrize("name", ["a b", "x::y[1]/é"])
            def test_it(self, name, ranks, device, tmp_path, capsys, record_property):
                names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"]
                assert [os.environ[name] for name in names] == [str(ranks.rank)] * 2 + ["2", "127.0.0.1"]
                assert int(os.environ["MASTER_PORT"]) > 0
                assert (ranks.world_size, device, os.getcwd()) == (2, "gpu", os.path.dirname(__file__))
                assert ranks.tmp_path not in tmp_path.parents
                (ranks.tmp_path / str(ranks.rank)).write_text(name)
                while len(list(ranks.tmp_path.iterdir())) < 2:
                    time.sleep(0.01)
                print("seen")
                assert capsys.readouterr().out == "seen\\n"
                record_property("name", name)
        """.replace("\n        ", "\n"),
        "--device=gpu",
        "-k",
        "test_it",
        "-m",
        "slow",
        "--junitxml=out.xml",
    )
    result.assert_outcomes(passed=2)
    assert sorted(path.name for path in pytester.path.glob("torn-down-*")) == ["torn-down-0", "torn-down-1"]
    properties = ElementTree.parse(pytester.path / "out.xml").findall(".//property")
    assert [one.get("value") for one in properties] == ["a b", "x::y[1]/é"]


def test_the_rank_that_failed_first_is_shown_with_its_traceback_and_every_rank_with_its_output(run: Run) -> None:
    result = run(
        """
@pytest.mark.ranks(3, backend=None)
def test_it(ranks):
    print("hello from", ranks.rank)
    while ranks.rank != 2 and not (ranks.tmp_path / "failing").exists():
        time.sleep(0.01)
    (ranks.tmp_path / "failing").touch()
    if ranks.rank == 0:
        time.sleep(1000)
    if ranks.rank == 1:
        time.sleep(0.5)
        raise RuntimeError("the echo")
    raise ValueError("Expected input batch_size (16) to match target batch_size (12).")
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "rank 2 of 3 failed first: ValueError: Expected input batch_size (16) to match target *",
            "rank 0 is in test_it (test_it.py:*); ended 5 s after the failure",
            "then rank 1: RuntimeError: the echo",
            "E * ValueError: Expected input batch_size (16) to match target *",
            "*- rank 2 stdout -*",
            "hello from 2",
            "*- rank 0 stacks -*",
            "*test_it.py*line * in test_it",
            "*- rank 0 stdout -*",
            "hello from 0",
            "*- rank 1 failure -*",
            "E * RuntimeError: the echo",
            "*- Paramedic's verdict -*",
            "computation * tensor shape or dtype mismatch · rank 2 · * sure",
            "FAILED test_it.py::test_it - Failed: rank 2 of 3 failed first: *",
        ]
    )
    assert "_pytest" not in result.stdout.str()


@pytest.mark.slow
def test_outcomes_other_than_pass_and_failure(run: Run) -> None:
    result = run(
        """
twice = pytest.mark.ranks(2, backend=None)

@twice
def test_skipped_in_all(): pytest.skip("no luck today")

@twice
def test_skipped_in_one(ranks):
    if ranks.rank:
        pytest.skip("only one looks")

@twice
@pytest.mark.skipif(True, reason="known before")
def test_skipped_before(): raise AssertionError("must not run")

@twice
@pytest.mark.xfail(raises=ValueError, strict=True)
def test_fails_in_one(ranks):
    if ranks.rank:
        raise ValueError("as expected")

@twice
@pytest.mark.xfail(strict=True)
def test_does_not_fail(): pass

@twice
@pytest.mark.xdist_group("some")
def test_says_so_itself(): pytest.xfail("later")

@twice
class TestUnit(unittest.TestCase):
    def setUp(self):
        self.rank = os.environ["RANK"]

    def test_it(self):
        self.assertIn(self.rank, "01")

@pytest.mark.ranks(1, backend=None, fails=True)
def test_fails_as_it_says(): os._exit(3)

@pytest.mark.ranks(1, backend=None, fails=True)
def test_does_not_fail_as_it_says(): pass

def test_without_mark(ranks): pass
""",
        "-rs",
        "-n2",
        "--dist=loadgroup",
    )
    result.assert_outcomes(passed=3, failed=2, skipped=2, xfailed=2, errors=1)
    result.stdout.fnmatch_lines(["SKIPPED * test_it.py:*: no luck today"])
    result.stdout.fnmatch_lines(["was expected to fail, but rank 0 passed"])
    result.stdout.fnmatch_lines(["*XPASS(strict)*"])
    result.stdout.fnmatch_lines(["the fixture `ranks` is for tests with @pytest.mark.ranks(N)"])


def test_a_hang_shows_every_stack_and_leaves_no_process(pytester: pytest.Pytester, run: Run) -> None:
    result = run(
        """
@pytest.mark.ranks(3, backend=None, timeout=4)
def test_it(ranks):
    worker = subprocess.Popen(["sleep", "1000"])
    with open("pids", "a") as file:
        file.write(f"{os.getpid()} {worker.pid} ")
    if ranks.rank == 2:
        look_busy()
    time.sleep(1000)

def look_busy():
    while True: pass
"""
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "hung for 4 s; ranks 0, 1 are in test_it (test_it.py:11), rank 2 is in look_busy (test_it.py:14)",
            "*- rank 2 stacks -*",
            '  File "*test_it.py", line 14 in look_busy',
            '  File "*test_it.py", line 10 in test_it',
        ]
    )
    pids = [int(pid) for pid in (pytester.path / "pids").read_text().split()]
    assert len(pids) == 6
    wait_until(lambda: not any(map(alive, pids)))


def test_ranks_end_with_a_pytest_that_is_killed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os, pytest, time
        @pytest.mark.ranks(2, backend=None)
        def test_it(ranks):
            open(f"pid-{os.getpid()}", "w").close()
            time.sleep(1000)
        """
    )
    process = pytester.popen([sys.executable, "-m", "pytest"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: len(list(pytester.path.glob("pid-*"))) == 2)
    finally:
        process.kill()
        process.communicate()
    pids = [int(path.name[4:]) for path in pytester.path.glob("pid-*")]
    wait_until(lambda: not any(map(alive, pids)))


@pytest.mark.slow
def test_a_rank_that_dies_is_named_with_its_signal(run: Run) -> None:
    result = run(
        """
die = pytest.mark.ranks(2, backend=None)

@die
def test_killed(ranks):
    if ranks.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)

@die
def test_segfault(ranks):
    if ranks.rank == 1:
        import ctypes
        ctypes.string_at(0)

@die
def test_left(ranks):
    if ranks.rank == 0:
        print("last words")
        os._exit(7)

@pytest.mark.ranks(2, backend=None, fails="worker-or-node-loss")
def test_expected(ranks):
    if ranks.rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)

@pytest.mark.ranks(1, backend=None, fails="collective-hang")
def test_expected_otherwise(): os.kill(os.getpid(), signal.SIGKILL)
""",
        "-n2",
    )
    result.assert_outcomes(passed=1, failed=4)
    text = result.stdout.str()
    assert "rank 1 of 2 died first: killed by SIGKILL" in text
    assert "rank 1 of 2 died first: killed by SIGSEGV" in text
    assert "Fatal Python error: Segmentation fault" in text
    assert "rank 0 of 2 died first: exited with code 7" in text
    assert "last words" in text
    assert "failed, but not with collective-hang: Paramedic's verdict is worker-or-node-loss" in text


@pytest.mark.slow
def test_the_last_failed_run_again_and_x_stops(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        pytestmark = pytest.mark.ranks(1, backend=None)
        def test_passes(): pass
        def test_fails(): assert 1 == 2
        def test_never_runs(): pass
        """
    )
    first = pytester.runpytest_subprocess("-x")
    first.assert_outcomes(passed=1, failed=1)
    first.stdout.fnmatch_lines(["rank 0 of 1 failed first: assert 1 == 2"])
    again = pytester.runpytest_subprocess("--lf", "--collect-only", "-q")
    again.stdout.fnmatch_lines(["*::test_fails", "1 test collected in *"])


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("0", "0 is no number of ranks; give a whole number from 1 on"),
        ("'x'", "'x' is no number of ranks; give a whole number from 1 on"),
        ("True", "True is no number of ranks; give a whole number from 1 on"),
        ("", "it takes the number of ranks and keywords, as in ranks(4, timeout=60)"),
        ("2, tiemout=3", "tiemout= is no keyword of it; did you mean 'timeout'?"),
        ("2, timeout=0", "timeout=0 is no number of seconds"),
        (
            "2, backend='nccl'",
            "backend='nccl' is neither 'gloo' nor None; with None the test makes its own process group",
        ),
        ("2, inject='slowrank'", "no fault has the name 'slowrank'; did you mean 'slow-rank'?"),
        ("2, inject=3", "inject=3 is neither a fault's name nor a list of them"),
        ("2, inject='kill-rank', inject_rank=2", "inject_rank=2 is none of the 2 ranks"),
        ("2, inject='kill-rank', inject_at=0", "inject_at=0 is no position; the first is 1"),
        ("2, inject='late-rank', inject_seconds=-1", "inject_seconds=-1 is no number of seconds"),
        (
            "2, fails='collectivehang'",
            "fails='collectivehang' is neither True nor a symptom; did you mean 'collective-hang'?",
        ),
    ],
)
def test_a_bad_mark_is_refused_in_words(mark: str, message: str) -> None:
    made = eval(f"pytest.mark.ranks({mark})").mark
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Settings.of(made)


def test_a_bad_mark_stops_the_run_and_names_the_test(run: Run) -> None:
    result = run("@pytest.mark.ranks(0)\ndef test_it(): pass\n")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["test_it.py::test_it: @pytest.mark.ranks: 0 is no number of ranks; *"])


def test_without_torch_only_what_needs_it_is_refused_and_a_fault_that_never_happens_is_a_failure(
    pytester: pytest.Pytester, run: Run
) -> None:
    pytester.makeconftest("import sys\nsys.modules['torch'] = None")
    result = run(
        """
def test_ordinary(): pass

@pytest.mark.ranks(2)
def test_group(): pass

@pytest.mark.ranks(2, backend=None, inject="slow-rank")
def test_fault(): pass

@pytest.mark.ranks(1, backend=None, inject="full-disk")
def test_plain(ranks, tmp_path):
    with pytest.raises(OSError, match="No space left on device"):
        (tmp_path / "checkpoint").write_text("weights")
    assert sys.modules["torch"] is None

@pytest.mark.ranks(2, backend=None, inject="full-disk", inject_at=2)
def test_never(tmp_path): (tmp_path / "one").write_text("x")
"""
    )
    result.assert_outcomes(passed=2, errors=2, failed=1)
    result.stdout.fnmatch_lines(
        ["passed, but the injected fault full-disk never happened on rank 0: *second occasion*"]
    )
    wanted = "test_it.py::test_group: @pytest.mark.ranks needs torch: pip install 'paramedic[[]torch[]]' (or use backend=None)"
    result.stdout.fnmatch_lines([wanted])


def test_loading_the_plugin_imports_nothing_but_pytest() -> None:
    code = """
import sys, pytest
before = set(sys.modules)
import paramedic.pytest_plugin
new = {name for name in set(sys.modules) - before if name.partition(".")[0] not in sys.stdlib_module_names}
print(sorted(new))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['paramedic', 'paramedic.errors', 'paramedic.pytest_plugin']"


def test_every_fault_leads_to_a_symptom_of_the_taxonomy_and_is_documented() -> None:
    page = (ROOT / "docs/pytest.md").read_text("utf-8")
    for name, fault in FAULTS.items():
        assert fault.symptom in load_taxonomy().symptoms
        assert f"| `{name}` | " in page, name
        assert f"`{fault.symptom}`" in page
    assert problem_with("gamma-ray") == f"no fault has the name 'gamma-ray'; there are {', '.join(FAULTS)}"


def test_a_place_is_the_users_line_and_what_it_called() -> None:
    dump = """Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.12/threading.py", line 359 in wait

Current thread 0x00007f02 (most recent call first):
  File "/v/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/v/lib/python3.12/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/me/job/model.py", line 12 in sync
  File "/home/me/job/test_model.py", line 5 in test_it
  File "/v/lib/python3.12/site-packages/_pytest/python.py", line 187 in pytest_pyfunc_call
"""
    place = place_of(dump, Path("/home/me/job"))
    assert (str(place), place and place.waits) == ("wait in all_reduce (model.py:12)", "collective-hang")
    waiting = dump.replace("in all_reduce", "in init_process_group").replace("/home/me/job/", "/v/site-packages/")
    early = place_of(waiting, Path("/home/me/job"))
    assert (str(early), early and early.waits) == ("wait in init_process_group", "rendezvous-setup-hang")
    assert place_of("", Path()) is None


needs_torch = pytest.mark.skipif("not __import__('importlib.util').util.find_spec('torch')", reason="needs torch")


@needs_torch
def test_ranks_share_a_gloo_group_and_a_killed_one_is_diagnosed(run: Run) -> None:
    """Both tests at the same time, on ports of their own."""
    result = run(
        """
@pytest.mark.ranks(2)
def test_sum(ranks):
    import torch
    import torch.distributed as dist
    assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (ranks.rank, 2, "gloo")
    value = torch.ones(2) * (ranks.rank + 1)
    dist.all_reduce(value)
    assert value.tolist() == [3, 3]

@pytest.mark.ranks(2, inject="kill-rank", inject_at=2, fails="worker-or-node-loss")
def test_killed():
    import torch
    from torch.distributed import all_reduce
    for _ in range(3):
        all_reduce(torch.ones(2))
""",
        "-n2",
        "-rA",
        "-Werror",
    )
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*Paramedic's verdict*", "* worker or node loss · rank 1 · *"])


@needs_torch
def test_each_fault_acts_once_and_is_taken_out_again(pytester: pytest.Pytester) -> None:
    """One rank in one process, so that torch is imported once."""
    pytester.makepyfile(test_faults=_FAULTS)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-rA")
    result.assert_outcomes(passed=1)


_FAULTS = """
import errno, os, time, pytest

@pytest.mark.ranks(1)
def test_faults(tmp_path):
    import torch
    import torch.distributed as dist
    from torch.distributed import all_reduce
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader
    from paramedic.ward.inject import installed
    global reduce_early
    reduce_early = all_reduce
    told = []

    def with_fault(name, at=1, seconds=None):
        told.clear()
        return installed([name], at, seconds, lambda fault, what: told.append((fault, what)))

    def step(size=4):
        torch.manual_seed(0)
        model = torch.nn.Linear(size, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(2, size)).sum().backward()
        optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    right = step()
    originals = (dist.all_reduce, reduce_early, DataLoader.__iter__, torch.optim.Optimizer.__init__, open, torch.save,
                 DistributedDataParallel.forward, os.environ["MASTER_PORT"])

    with with_fault("slow-rank", at=2, seconds=0.3):
        begin = time.monotonic()
        reduce_early(torch.ones(1))
        assert told == []
        step()
        assert time.monotonic() - begin >= 0.3
    assert told == [("slow-rank", "SGD.step waits 0.3 s, and so does all that follows")]

    with with_fault("skip-collective", at=2):
        dist.barrier()
        gathered = [None]
        dist.all_gather_object(gathered, 1)
        work = dist.all_reduce(torch.ones(1), async_op=True)
        assert gathered == [None] and work.wait()
    assert told == [("skip-collective", "all_gather_object left out")]

    with with_fault("skip-collective"):
        assert dist.all_reduce(torch.ones(1), async_op=True).wait()
    assert told == [("skip-collective", "all_reduce left out")]

    with with_fault("shape-mismatch"):
        value = torch.zeros(2, 2)
        dist.barrier()
        dist.all_reduce(tensor=value)
        dist.all_reduce(value)
    assert told == [("shape-mismatch", "all_reduce of 2 numbers instead of 4")]

    with with_fault("nan-gradient"):
        assert any(p.isnan().any() for p in step())
    assert told == [("nan-gradient", "a gradient of shape (1, 4) is NaN in backward")]

    with with_fault("bit-flip"):
        wrong = step()
    assert told == [("bit-flip", "a gradient's value 2 becomes 512")]
    assert sum((a != b).sum() for a, b in zip(right, wrong)) == 1

    with with_fault("uneven-data", at=2):
        assert len(list(DataLoader(range(8), batch_size=2))) == 2
        assert told == [("uneven-data", "the DataLoader ends after 2 batches")]
        assert len(list(DataLoader(range(2), batch_size=2))) == 1

    with with_fault("data-worker-error", at=2):
        batches = iter(DataLoader(range(4)))
        next(batches)
        with pytest.raises(ValueError, match="injected by paramedic"):
            next(batches)

    with with_fault("full-disk", at=2):
        torch.save({}, tmp_path / "one.pt")
        for write in (lambda: torch.save({}, tmp_path / "two.pt"), lambda: open(tmp_path / "x", "a"),
                      lambda: (tmp_path / "y").write_bytes(b"")):
            with pytest.raises(OSError) as caught:
                write()
            assert caught.value.errno == errno.ENOSPC
        with open(__file__) as file:
            assert file.read(6) == "import"
        open("/dev/null", "w").close()
    assert told == [("full-disk", f"no space for {tmp_path / 'two.pt'}")]

    with with_fault("late-rank", seconds=0.1):
        pass
    assert told == [("late-rank", "comes 0.1 s late to the rendezvous")]

    with with_fault("lost-store"):
        with pytest.raises(dist.DistNetworkError):
            dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), timeout=__import__("datetime").timedelta(seconds=1))

    assert step()[0].equal(right[0])
    assert originals == (dist.all_reduce, reduce_early, DataLoader.__iter__, torch.optim.Optimizer.__init__, open,
                         torch.save, DistributedDataParallel.forward, os.environ["MASTER_PORT"])
"""


@needs_torch
@pytest.mark.slow
def test_faults_in_a_training_loop_lead_to_the_symptoms_that_they_name(run: Run) -> None:
    result = run(
        """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

def train(workers=0, check=False, last=True):
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (batch,) in enumerate(DataLoader(TensorDataset(torch.randn(32, 64)), batch_size=8, num_workers=workers)):
        loss = model(batch).square().mean()
        if check and not torch.isfinite(loss):
            raise FloatingPointError(f"loss is {loss.item()} at step {step}")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        norm = model.module.weight.detach().norm()
        if check:
            norms = [torch.zeros(()) for _ in range(dist.get_world_size())]
            dist.all_gather(norms, norm)
            assert torch.isnan(norm) or len({n.item() for n in norms}) == 1, "replicas diverge"
    if last:
        dist.all_reduce(torch.zeros(64))

@pytest.mark.ranks(2, timeout=120)
def test_healthy(): train(1, True)

@pytest.mark.ranks(2, inject="slow-rank", inject_seconds=0.1, timeout=120)
def test_slow(): train()

@pytest.mark.ranks(2, inject="kill-rank", inject_at=3, fails="worker-or-node-loss", timeout=120)
def test_killed(): train()

@pytest.mark.ranks(2, inject="kill-rank", timeout=120)
def test_copes_with_a_killed_rank():
    with pytest.raises(RuntimeError, match="[Cc]onnection"):
        train()

@pytest.mark.ranks(2, inject="skip-collective", inject_at=5, fails="collective-hang", timeout=120)
def test_skipped(): train()

@pytest.mark.ranks(2, inject="skip-collective", inject_at=4, fails="collective-hang", timeout=120)
def test_skipped_by_ddp(): train(last=False)

@pytest.mark.ranks(2, inject="shape-mismatch", fails="collective-desync", timeout=120)
def test_shape(): train()

@pytest.mark.ranks(2, inject="nan-gradient", fails="numerical-instability", timeout=120)
def test_nan(): train(check=True)

@pytest.mark.ranks(2, inject="bit-flip", fails=True, timeout=120)
def test_flipped(): train(check=True)

@pytest.mark.ranks(2, inject="uneven-data", fails="collective-hang", timeout=120)
def test_uneven(): train(last=False)

@pytest.mark.ranks(2, inject="data-worker-error", fails="data-pipeline-failure", timeout=120)
def test_worker(): train(1)

@pytest.mark.ranks(2, inject="full-disk", fails="checkpoint-save-failure", timeout=120)
def test_disk(ranks):
    train()
    if ranks.rank == 0:
        torch.save({}, ranks.tmp_path / "checkpoint.pt")
    dist.barrier()

@pytest.mark.ranks(2, inject="late-rank", inject_seconds=2, timeout=120)
def test_late(): train()

@pytest.mark.ranks(2, inject="late-rank", inject_seconds=100, fails="rendezvous-setup-hang", timeout=5)
def test_too_late(): train()

@pytest.mark.ranks(2, inject="lost-store", fails="rendezvous-setup-hang", timeout=5)
def test_lost(): train()
""",
        "-n2",
        "-rA",
    )
    result.assert_outcomes(passed=15)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh virtual environment with the wheel and pytest, and nothing else that can be imported but their needs."""
    folder = tmp_path_factory.mktemp("project")
    build = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    venv.create(folder / "venv", with_pip=False)
    site = next((folder / "venv").glob("lib/python*/site-packages"))
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", str(site)]
    subprocess.run([*install, str(next(folder.glob("*.whl")))], check=True, capture_output=True)
    ours = Path(pytest.__file__).parent.parent
    absent = (
        "torch",
        "paramedic",
        "_paramedic",
        "__editable__",
        "functorch",
        "xdist",
        "pytest_xdist",
        "hypothesis",
        "_hypothesis",
    )
    for path in ours.iterdir():
        if not path.name.startswith(absent) and path.suffix != ".pth" and not (site / path.name).exists():
            (site / path.name).symlink_to(path)
    (folder / "test_mine.py").write_text(
        "import pytest\n@pytest.mark.ranks(2)\ndef test_mine(ranks): assert ranks.world_size == 2\n"
    )
    return folder


def _run_in(project: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PYTEST"))}
    command = [str(project / "venv/bin/python"), "-m", "pytest", "-p", "no:cacheprovider"]
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_project_that_installs_the_wheel_has_the_mark_and_is_told_to_install_torch(project: Path) -> None:
    done = _run_in(project)
    assert "plugins: paramedic-" in done.stdout
    assert "needs torch: pip install 'paramedic[torch]'" in done.stdout
    assert "1 error" in done.stdout


@needs_torch
@pytest.mark.slow
def test_a_project_that_installs_the_wheel_runs_on_ranks(project: Path) -> None:
    site = next((project / "venv").glob("lib/python*/site-packages"))
    torch = site / "torch.pth"
    torch.write_text(f"{Path(pytest.__file__).parent.parent}\n")
    try:
        done = _run_in(project)
    finally:
        torch.unlink()
    assert "1 passed" in done.stdout, done.stdout + done.stderr
