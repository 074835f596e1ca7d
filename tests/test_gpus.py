"""How GPUs are while a job runs. No machine of the tests has one: a library with NVML's interface is compiled in its place."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from paramedic.node import gpus as node_gpus
from paramedic.node import nvml
from paramedic.node.nvml import Nvml
from paramedic.node.rows import Rows
from paramedic.watch.folder import Folder
from paramedic.watch.gpus import EVERY, Gpus, read
from paramedic.watch.pulse import read_states

LIBRARY = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef struct card { unsigned index; } *device;
static struct card cards[2] = {{0}, {1}};
static unsigned long long from(const char *name, unsigned index) {
    char key[64]; snprintf(key, sizeof key, "%s_%u", name, index);
    const char *value = getenv(key); return value ? strtoull(value, 0, 0) : 0;
}
int nvmlInit_v2(void) { return getenv("NVML_FAILS") ? 9 : 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *out) { *out = &cards[index]; return 0; }
int nvmlDeviceGetUUID(device d, char *text, unsigned size) { snprintf(text, size, "GPU-%u", d->index); return 0; }
int nvmlDeviceGetName(device d, char *text, unsigned size) { snprintf(text, size, "NVIDIA Test"); return 0; }
int nvmlDeviceGetTemperature(device d, int sensor, unsigned *out) { *out = 40 + d->index; return sensor; }
int nvmlDeviceGetPowerUsage(device d, unsigned *out) { *out = 512345; return d->index ? 3 : 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(device d, unsigned long long *out) { *out = from("REASONS", d->index); return 0; }
int nvmlDeviceGetTotalEccErrors(device d, int type, int counter, unsigned long long *out) {
    *out = from("ERRORS", d->index); return type == 1 && counter == 0 ? 0 : 2;
}
int nvmlDeviceGetRemappedRows(device d, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    *corrected = 1; *uncorrected = 2; *pending = d->index; *failed = 0; return 0;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nvml")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    (folder / "nvml.c").write_text(LIBRARY)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", "libnvidia-ml.so.1", "nvml.c"], cwd=folder, check=True)
    return folder / "libnvidia-ml.so.1"


@pytest.fixture
def driver(library: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(nvml, "LIBRARY", str(library))
    return monkeypatch


def test_what_the_driver_says_is_read(driver: pytest.MonkeyPatch) -> None:
    driver.setenv("REASONS_1", "0x44")
    driver.setenv("ERRORS_1", "5")
    first, second = read(Nvml())
    assert (first.uuid, first.uncorrected, first.remap_pending, first.throttled) == ("GPU-0", 0, False, ())
    assert (first.temperature, first.power_w) == (40, 512)
    assert (second.uncorrected, second.remap_pending, second.remap_failed) == (5, True, False)
    assert second.throttled == ("hardware thermal slowdown",)
    assert second.power_w is None  # the card does not know


def test_the_probe_of_a_node_reads_the_same_library(driver: pytest.MonkeyPatch) -> None:
    driver.setenv("REASONS_0", "0x80")
    rows = Rows()
    node_gpus._devices(rows)
    facts = {name: value for name, value, _ in rows.facts}
    assert (facts["gpu count"], facts["gpu 1 name"], facts["gpu 1 remap pending"]) == (2, "NVIDIA Test", True)
    assert (facts["gpu 0 throttled"], facts["gpu 0 temperature"]) == (["hardware power brake"], 40)
    assert "gpu 0 nvlinks" not in facts  # this driver does not say


def test_without_a_driver_there_is_nothing_to_say(driver: pytest.MonkeyPatch) -> None:
    driver.setenv("NVML_FAILS", "1")
    assert read(Nvml()) == []
    driver.setattr(nvml, "LIBRARY", "libnvidia-ml-that-is-not-there.so")
    assert read(Nvml()) == []


def test_errors_count_from_the_start_of_the_job(driver: pytest.MonkeyPatch) -> None:
    gpus = Gpus(Nvml())
    driver.setenv("ERRORS_0", "3")
    assert gpus.look(0.0)
    assert [card["new_errors"] for card in gpus.told()] == [0, 0]
    driver.setenv("ERRORS_0", "4")
    driver.setenv("REASONS_1", "8")
    assert not gpus.look(EVERY / 2)
    assert gpus.look(EVERY)
    assert [(card["new_errors"], card["slowed"]) for card in gpus.told()] == [(1, {}), (0, {"hardware slowdown": 1})]


def test_the_file_of_a_node_is_no_rank(driver: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpus = Gpus(Nvml())
    gpus.look(0.0)
    (tmp_path / "ranks").mkdir()
    Folder(str(tmp_path)).write_gpus("node-1", gpus.told())
    assert len(json.loads((tmp_path / "ranks/gpus-node-1.watch.json").read_text())["gpus"]) == 2
    assert read_states(str(tmp_path)) == {}
