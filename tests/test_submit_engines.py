"""The engines that are really started here: Slurm's own daemons with two nodes, a Ray cluster of three.

Each test is a run of the fault matrix (bench/submit_faults.py), which says itself whether all went as the policy says.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FAULTS = ROOT / "bench" / "submit_faults.py"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
SLURM = """
[ -n "$IN_CLUSTER" ] || hostname node-01
. ./slurm.sh
id=$(sbatch --parsable --output="$PWD/job-%j.out" --wrap "python3 -c 'raise RuntimeError(\\"CUDA out of memory. Tried to allocate 20.00 GiB\\")'")
follow "$id"
"$@" "slurm:$id" --format json > found.json 2> said.txt
"$@" slurm:99999 > /dev/null 2> unknown.txt
kill $(jobs -p) 2>/dev/null
pkill -F .cluster/munged.pid
"""
needs_slurm = pytest.mark.skipif(
    not (shutil.which("slurmctld") and shutil.which("munged") and os.geteuid() == 0), reason="needs Slurm, and root"
)


@contextmanager
def ended_with_its_group(command: list[str], place: Path) -> Iterator[subprocess.Popen[bytes]]:
    with open(place / "output", "wb") as output:
        process = subprocess.Popen(
            command, cwd=place, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def as_the_policy_says(place: Path, *arguments: str) -> None:
    command = [sys.executable, str(FAULTS), "--jobs", "1", "--keep", str(place), *arguments]
    with ended_with_its_group(command, place) as process:
        assert process.wait(1500) == 0, (place / "output").read_text()[-3000:]


@pytest.mark.slow
@pytest.mark.timeout(1600)
@needs_slurm
@pytest.mark.parametrize(
    ("fault", "nodes"), [("no fault", 2), ("node down", 1), ("pre-empted", 1), ("time limit", 1), ("cancelled", 2)]
)
def test_a_job_on_slurm(fault: str, nodes: int, tmp_path: Path) -> None:
    as_the_policy_says(tmp_path, "--engine", "slurm", "--only", fault, "--nodes", str(nodes))


@pytest.mark.slow
@pytest.mark.timeout(1600)
@pytest.mark.parametrize(("fault", "nodes"), [("no fault", 2), ("node removed", 1), ("cancelled", 2)])
def test_a_job_on_ray(fault: str, nodes: int, tmp_path: Path) -> None:
    as_the_policy_says(tmp_path, "--engine", "ray", "--only", fault, "--nodes", str(nodes))


@pytest.mark.slow
@pytest.mark.timeout(1600)
@needs_slurm
def test_the_same_function_ends_with_the_same_loss_on_every_engine(tmp_path: Path) -> None:
    record = tmp_path / "runs.jsonl"
    for engine in ("local", "slurm", "ray"):
        as_the_policy_says(tmp_path, "--engine", engine, "--only", "no fault", "--record", str(record))
    runs = [json.loads(line) for line in record.read_text().splitlines()]
    assert [run["engine"] for run in runs] == ["local", "slurm", "ray"]
    assert len({run["loss"] for run in runs}) == 1 and runs[0]["loss"] is not None


@pytest.mark.slow
@needs_slurm
def test_a_job_of_slurm_that_was_not_submitted_by_us_is_diagnosed(tmp_path: Path) -> None:
    shutil.copy(ROOT / "src/paramedic/ward/programs/slurm.sh", tmp_path)
    (tmp_path / "launch.sh").write_text(SLURM)
    cluster = ["unshare", "--mount", "--uts", "--propagation", "private", "bash", "launch.sh"]
    with ended_with_its_group([*cluster, sys.executable, "-m", "paramedic", "diagnose"], tmp_path) as process:
        process.wait(250)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["verdict"]["symptom"] == "device-out-of-memory", (tmp_path / "said.txt").read_text()
    assert re.search(r"scontrol\.txt|job-\d+\.out", json.dumps(found["verdict"]["evidence"]))
    assert "Slurm knows no such job" in (tmp_path / "unknown.txt").read_text()
