"""The wheel: it builds, holds its data, installs offline from files, and its demo runs from there."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(out), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    return next(out.glob("*.whl"))


def test_the_wheel_holds_all_package_data(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    package = ROOT / "src" / "paramedic"
    files = {
        str(f.relative_to(ROOT / "src")) for f in package.rglob("*") if f.is_file() and "__pycache__" not in f.parts
    }
    assert files <= names
    assert not [name for name in names if name.startswith("tests")]


def test_the_wheel_installs_offline_and_its_demo_runs(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--target",
        str(site),
        str(wheel),
    ]
    subprocess.run(pip, check=True, capture_output=True)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    code = "import paramedic, sys; print(paramedic.__file__); from paramedic.commands import main; sys.exit(main(['demo']))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(site))
    assert "rank 2" in done.stdout
    assert (tmp_path / "paramedic-report.html").stat().st_size < 300_000
