"""`paramedic diff`: what changed between two runs, in which order, and that a stranger's files do no harm."""

from __future__ import annotations

import json
import os
import tarfile
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from rich.cells import cell_len

from paramedic.collect.dumps import leaves
from paramedic.collect.logged import template
from paramedic.collect.settings import Settings
from paramedic.collect.sides import read_settings
from paramedic.commands import main
from paramedic.differences import EFFECTS, KINDS, _relevance
from paramedic.knowledge import load_taxonomy

ROOT = Path(__file__).parents[1]
CORPUS = ROOT / "corpus"
SCHEMA = json.loads(resources.files("paramedic.report").joinpath("diff.schema.json").read_text("utf-8"))
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
SECRET = "hf_abcdefghijklmnopqrstuvwxyz0123456789"

Captured = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("rules_loaded_once")


def compared(ok: Path | str, bad: Path | str, capsys: Captured, code: int = 1) -> dict[str, Any]:
    assert main(["diff", str(ok), str(bad), "--format", "json"]) == code
    page = capsys.readouterr()
    assert page.err == ""
    document: dict[str, Any] = json.loads(page.out)
    VALIDATOR.validate(document)
    return document


def changes(document: dict[str, Any]) -> dict[tuple[str, str], tuple[str | None, str | None]]:
    return {(one["kind"], one["key"]): (one["ok"], one["bad"]) for one in document["differences"]}


OOM = (
    "[rank1]: Traceback (most recent call last):\n"
    '[rank1]:   File "/srv/train/train.py", line 41, in main\n'
    "[rank1]:     loss.backward()\n"
    "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 79.15 GiB "
    "of which 1.00 GiB is free. Of the allocated memory 70.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch "
    "but unallocated.\n"
)


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    """The same job twice; the second one has a larger micro batch, another torch, one more variable and other code."""
    for name, batch, torch, lr, extra in (("ok", 4, "2.1.0", 0.1, ""), ("bad", 16, "2.2.0", 0.2, OOM)):
        run = tmp_path / name
        (run / "conf").mkdir(parents=True)
        config = {
            "train_micro_batch_size_per_gpu": batch,
            "zero_optimization": {"stage": 2, "offload": {"device": "cpu"}},
        }
        (run / "conf" / "ds_config.json").write_text(json.dumps(config))
        (run / "conf" / "model.yaml").write_text("model:\n  layers: 4\n  names: [a, b]\n")
        (run / "conf" / "more.toml").write_text('[data]\npath = "/data"\n')
        (run / "requirements.txt").write_text(f"torch=={torch}\nnumpy==1.26.4\nzstandard>=0.2\n")
        more = "NCCL_IB_DISABLE=1\n" if extra else ""
        (run / "env.txt").write_text(f"NCCL_DEBUG=INFO\nHF_TOKEN={SECRET}\nPWD=/home/{name}\nRANK=0\n{more}")
        (run / "train.py").write_text(f"import torch\nbatch = {batch}\nfor step in range(9):\n    pass\n")
        log = (
            f"$ torchrun --nproc-per-node 2 --master-port {29500 + batch} train.py --lr {lr} --hub_token {SECRET}\n"
            f"rank 0 of 2 started\nrank 1 of 2 started\nNamespace(lr={lr}, name='a, b', layers=[1, 2], resume=None)\n"
            f"global batch {batch * 2}, seed 7\n"
            + "node-1:12:13 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0\n"
            + "".join(f"2026-01-01 10:00:{n:02} INFO step {n} loss 0.{9 - n}\n" for n in range(9 if not extra else 4))
            + ("/srv/train/train.py:7: UserWarning: 12 samples were dropped from /data/x\n" if extra else "")
            + extra
        )
        (run / "console.log").write_text(log)
    return tmp_path / "ok", tmp_path / "bad"


# -- what is found -------------------------------------------------------------------------------------------------


def test_every_kind_of_change_is_found(runs: tuple[Path, Path], capsys: Captured) -> None:
    found = changes(compared(*runs, capsys))
    assert found["failure", "failure"] == ("none", "MEM001 device-out-of-memory")
    assert found["config", "ds_config.json: train_micro_batch_size_per_gpu"] == ("4", "16")
    assert found["version", "torch"] == ("2.1.0", "2.2.0")
    assert found["environment", "NCCL_IB_DISABLE"] == (None, "1")
    assert found["argument", "lr"] == ("0.1", "0.2")
    assert found["launch", "--master-port"] == ("29504", "29516")
    assert found["code", "train.py"] == ("5 lines", "5 lines, +1 -1 lines")
    assert found["pace", "last step"] == ("8", "3")
    assert ("statement", "global batch <n>, seed <n>") in found
    assert [key for kind, key in found if kind == "warning"] == ["UserWarning: <n> samples were dropped from <path>"]
    same = {"zero_optimization", "numpy", "NCCL_DEBUG", "PWD", "RANK", "names", "layers", "resume"}
    assert not [key for _, key in found if any(word in key for word in same)]


def test_the_most_relevant_comes_first_and_says_why(runs: tuple[Path, Path], capsys: Captured) -> None:
    document = compared(*runs, capsys)
    order = [(one["kind"], one["key"]) for one in document["differences"]]
    assert order[:2] == [("failure", "failure"), ("config", "ds_config.json: train_micro_batch_size_per_gpu")]
    assert order.index(("launch", "--master-port")) > order.index(("version", "torch"))
    shares = [one["relevance"] for one in document["differences"]]
    assert shares == sorted(shares, reverse=True)
    assert "device memory overcommit" in document["differences"][1]["why"]
    assert document["differences"][1]["where"]["bad"]["source"].endswith("ds_config.json")


def test_no_secret_leaves(runs: tuple[Path, Path], capsys: Captured) -> None:
    (runs[1] / "env.txt").write_text(f"NCCL_DEBUG=INFO\nHF_TOKEN={SECRET[::-1]}x9\n")
    (runs[0] / "conf" / "ds_config.json").write_text(json.dumps({"hub": {"api_key": SECRET, "stage": 1}}))
    (runs[1] / "conf" / "ds_config.json").write_text(json.dumps({"hub": {"api_key": "S3cr3tS3cr3tS3cr3t", "stage": 2}}))
    (runs[1] / "train.py").write_text(f"import torch\nlogin(token='{SECRET}')\n")
    for more in (["--format", "json"], ["-v"]):
        main(["diff", *map(str, runs), *more])
        page = capsys.readouterr().out
        assert SECRET not in page
        assert SECRET[::-1] not in page
        assert "S3cr3t" not in page


def test_the_address_of_a_launch_command_says_no_password(tmp_path: Path, capsys: Captured) -> None:
    for name, ranks in (("a", 4), ("b", 8)):
        (tmp_path / name).mkdir()
        command = f"srun torchrun --nproc_per_node {ranks} https://u:hunter2x@h:1 train.py --password hunter2x\n"
        (tmp_path / name / "run.sh").write_text(f"#!/bin/bash\n{command}")
        (tmp_path / name / "job.log").write_text("step 1 loss 2.0\n")
    for form in ("text", "json"):
        main(["diff", str(tmp_path / "a"), str(tmp_path / "b"), "--format", form])
        said = capsys.readouterr()
        assert "nproc" in said.out
        assert "hunter2x" not in said.out + said.err


def test_the_same_run_has_no_differences(runs: tuple[Path, Path], capsys: Captured) -> None:
    assert compared(runs[1], runs[1], capsys, code=0)["differences"] == []
    assert main(["diff", str(runs[1]), str(runs[1])]) == 0
    assert "No differences" in capsys.readouterr().out


def test_archives_and_recorded_runs_are_compared(runs: tuple[Path, Path], tmp_path: Path, capsys: Captured) -> None:
    for run in runs:
        with tarfile.open(tmp_path / f"{run.name}.tar.gz", "w:gz") as archive:
            archive.add(run, arcname="job")
        assert main(["bundle", str(run), "-o", str(tmp_path / f"{run.name}.tar.zst")]) == 0
    capsys.readouterr()
    packed = changes(compared(tmp_path / "ok.tar.gz", tmp_path / "bad.tar.gz", capsys))
    assert packed["config", "ds_config.json: train_micro_batch_size_per_gpu"] == ("4", "16")
    assert ("code", "job/train.py") in packed
    recorded = changes(compared(tmp_path / "ok.tar.zst", tmp_path / "bad.tar.zst", capsys))
    assert recorded["failure", "failure"][1] == "MEM001 device-out-of-memory"
    mixed = changes(compared(tmp_path / "ok.tar.zst", runs[1], capsys))
    assert ("failure", "failure") in mixed


# -- recordings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "variant", "expected"),
    [
        ("nan-loss", "merged-4", ("failure", "failure", "none", "NUM001 numerical-instability")),
        ("ds-rank-killed", "merged-2", ("argument", "steps", "4", "500")),
        ("ddp-fewer-ranks-than-planned", "merged-2", ("world size", "world size", "4", "2")),
        ("batch-arithmetic", "merged-4", ("failure", "failure", "none", None)),
    ],
)
def test_a_recording_against_its_cure(case: str, variant: str, expected: tuple[str, ...], capsys: Captured) -> None:
    document = compared(CORPUS / case / "cured" / "input", CORPUS / case / variant / "input", capsys)
    kind, key, ok, bad = expected
    found = changes(document)[kind, key]
    assert found[0] == ok
    assert bad is None or found[1] == bad


def test_a_batch_that_is_multiplied_by_the_world_size_is_not_the_world_size(capsys: Captured) -> None:
    case = CORPUS / "ds-batch-arithmetic"
    found = changes(compared(case / "cured" / "input", case / "merged-2" / "input", capsys))
    assert ("world size", "world size") not in found


def test_a_recording_does_not_differ_from_itself(capsys: Captured) -> None:
    for case in ("nan-loss", "ds-rank-killed", "rank-killed"):
        folder = next(path for path in sorted((CORPUS / case).iterdir()) if path.name != "cured") / "input"
        assert compared(folder, folder, capsys, code=0)["differences"] == []


# -- single readers ------------------------------------------------------------------------------------------------


def stated(tmp_path: Path, text: str, name: str = "job.log") -> dict[tuple[str, str], str]:
    (tmp_path / name).write_text(text)
    found = read_settings(str(tmp_path / name))
    return {key: ", ".join(one.values) for key, one in found.stated.items()}


def test_dumps_in_logs_are_read(tmp_path: Path) -> None:
    text = (
        "------------------------ arguments ------------------------\n"
        "  accumulate_allreduce_grads_in_fp32 .............. False\n"
        "  adam_beta1 ...................................... 0.9\n"
        "[2026-01-01 10:00:00,000] [INFO] [config.py:1003:print]   train_batch_size ............. 8\n"
        "TrainingArguments(\n_n_gpu=1,\nlearning_rate=5e-05,\noutput_dir='x',\n)\n"
        'Model config LlamaConfig {\n  "hidden_size": 64,\n  "rope": {"theta": 1.5}\n}\n'
        "***** Running training *****\n  Num examples = 1,000\n"
        "2026-11-15 06:21:43,367 INFO train: rank 3 plan {'ranks': 4, 'rate': 0.1}\n"
        "NCCL version 2.18.5+cuda12.2\ntorch 2.1.0\n"
        "[2026-01-01 10:00:00,000] [INFO] [runner.py:618:main] cmd = /opt/bin/python -u -m deepspeed.launcher.launch "
        "--master_port=42757 train.py --steps 4 --resume\n"
        "[INFO] [launch.py:10:main] 0 NCCL_VERSION=2.18\n+ export OMP_NUM_THREADS=4\n"
    )
    found = stated(tmp_path, text)
    assert found["argument", "accumulate_allreduce_grads_in_fp32"] == "False"
    assert found["argument", "train_batch_size"] == "8"
    assert found["argument", "learning_rate"] == "5e-05"
    assert found["argument", "hidden_size"] == "64"
    assert found["argument", "rope.theta"] == "1.5"
    assert found["argument", "Num examples"] == "1000"
    assert found["argument", "rate"] == "0.1"
    assert found["version", "nccl"] == "2.18.5+cuda12.2"
    assert found["version", "torch"] == "2.1.0"
    assert found["launch", "--master-port"] == "42757"
    assert found["argument", "steps"] == "4"
    assert found["argument", "resume"] == "given"
    assert found["environment", "OMP_NUM_THREADS"] == "4"


def test_listings_of_packages_and_collect_env(tmp_path: Path) -> None:
    conda = "# packages in environment\nnumpy    1.26.4    py311_0    defaults\npytorch  2.1.0     py3.11_cuda\n"
    assert stated(tmp_path, conda, "conda.txt")["version", "torch"] == "2.1.0"
    env = "PyTorch version: 2.1.0+cu118\nNvidia driver version: 535.1\nGPU 0: NVIDIA A100\n[pip3] numpy==1.26.4\n[conda] blas 1.0 mkl\n"
    found = stated(tmp_path, env, "collect_env.txt")
    assert found["version", "torch"] == "2.1.0+cu118"
    assert found["version", "driver"] == "535.1"
    assert found["version", "numpy"] == "1.26.4"


def test_pace_is_read_and_noise_is_not_a_difference(tmp_path: Path, capsys: Captured) -> None:
    for name, seconds in (("a", 1.0), ("b", 1.1), ("c", 3.0)):
        lines = "".join(
            f" iteration {n}/ 100 | elapsed time per iteration (ms): {seconds * 1000} | loss: 1.5\n" for n in range(9)
        )
        (tmp_path / f"{name}.log").write_text(lines)
    assert compared(tmp_path / "a.log", tmp_path / "b.log", capsys, code=0)["differences"] == []
    slow = changes(compared(tmp_path / "a.log", tmp_path / "c.log", capsys))
    assert slow == {("pace", "seconds a step"): ("1", "3")}


def test_masked_messages_are_the_same_message() -> None:
    one = template("W at 0x7f3a12bc in /home/a/x.py: rank 3 of 10.0.0.1:29500 took 3.5 s")
    assert one == template("W at 0x7f3a99bc in /data/b/y.py: rank 7 of 10.0.0.2:29501 took 12 s")
    assert "<n>" in one


def test_every_cause_has_its_kinds() -> None:
    assert set(_relevance()) - {*EFFECTS} == set(load_taxonomy().causes)
    for rows in _relevance().values():
        assert rows
        for kind, _, weight in rows:
            assert kind in KINDS
            assert 0 <= weight <= 1


def pair(folder: Path, ok: dict[str, str], bad: dict[str, str]) -> tuple[Path, Path]:
    for name, files in (("ok", ok), ("bad", bad)):
        for file, text in files.items():
            (folder / name / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / name / file).write_text(text)
    return folder / "ok", folder / "bad"


def best(document: dict[str, Any]) -> tuple[str, str]:
    first = next(one for one in document["differences"] if one["kind"] not in ("failure", "pace", "warning"))
    return first["kind"], first["key"]


def test_what_a_job_script_asks_the_scheduler_for_is_compared(tmp_path: Path, capsys: Captured) -> None:
    def script(cpus: int, cuda: str, seed: int) -> str:
        return (
            f"#!/bin/bash\n#SBATCH --cpus-per-task={cpus}\n#SBATCH -t 10:00:00\nmodule load gcc/12.2 CUDA/{cuda}\n"
            f"srun python train.py --seed {seed}\n"
        )

    found = changes(
        compared(*pair(tmp_path, {"j.sbatch": script(12, "12.1.1", 1)}, {"j.sbatch": script(2, "11.8.0", 2)}), capsys)
    )
    assert found["launch", "--cpus-per-task"] == ("12", "2")
    assert found["version", "cuda"] == ("12.1.1", "11.8.0")
    assert ("version", "gcc") not in found and ("launch", "--time") not in found


def test_a_slower_run_is_explained_by_what_makes_runs_slow(tmp_path: Path, capsys: Captured) -> None:
    def log(seconds: float, workers: int) -> str:
        steps = "".join(f"step {n} loss 2.{9 - n} step_time (s): {seconds}\n" for n in range(9))
        return f"Namespace(seed={workers}, num_workers={workers}, run_name='a{workers}')\n{steps}"

    document = compared(*pair(tmp_path, {"a.log": log(0.5, 8)}, {"a.log": log(1.9, 0)}), capsys)
    assert document["bad"]["failure"] is None
    assert best(document) == ("argument", "num_workers")
    assert (
        next(one for one in document["differences"] if one["key"] == "num_workers")["why"] == "can be why it is slower"
    )


def test_a_launcher_that_was_left_out_explains_fewer_ranks(tmp_path: Path, capsys: Captured) -> None:
    ok = {
        "run.sh": "accelerate launch --num_processes 2 train.py\n",
        "a.log": "rank 0 of 2\nrank 1 of 2\nstep 1 loss 2.0\n",
    }
    bad = {"run.sh": "python train.py\n", "a.log": "rank 0 of 1\nstep 1 loss 2.0\n"}
    assert best(compared(*pair(tmp_path, ok, bad), capsys)) == ("launch", "launcher")


def test_the_host_on_which_it_failed_comes_first(tmp_path: Path, capsys: Captured) -> None:
    def logs(last: str, text: str) -> dict[str, str]:
        nodes = f"NodeList=n[1-2],{last}\n"
        ranks = {
            f"rank-{n}.log": f"{host}:7:8 [0] NCCL INFO Bootstrap : Using eth0\nstep 1 loss 2.0\n"
            for n, host in enumerate(("n1", "n2"))
        }
        return {
            "job.txt": nodes,
            **ranks,
            "rank-2.log": f"{last}:7:8 [0] NCCL INFO Bootstrap : Using eth0\n{text}",
            "c.yaml": f"seed: {last[1:]}\n",
        }

    broken = (
        'Traceback (most recent call last):\n  File "/a/train.py", line 3, in <module>\n    main()\n'
        "FileNotFoundError: [Errno 2] No such file or directory: '/local/data'\n"
    )
    document = compared(*pair(tmp_path, logs("n3", "step 1 loss 2.0\n"), logs("n9", broken)), capsys)
    assert best(document) == ("hosts", "hosts")
    assert changes(document)["hosts", "hosts"] == ("n3 beside 2 others", "n9 beside 2 others")


def test_the_revision_of_the_code_is_compared(tmp_path: Path, capsys: Captured) -> None:
    ok, bad = (
        {"a.log": f"commit {revision} of main, world 8\nstep 1 loss 2.0\n"} for revision in ("3fa02c6", "b7e41d9")
    )
    assert changes(compared(*pair(tmp_path, ok, bad), capsys))["code", "revision"] == ("3fa02c6", "b7e41d9")


def test_a_run_that_broke_off_does_not_lack_what_it_had_no_time_to_say(tmp_path: Path, capsys: Captured) -> None:
    def log(lines: int) -> str:
        dots = "".join(f"  option_{n} ............. {n}\n" for n in range(lines))
        return f"Namespace(lr=0.1, width=8)\n{dots}"

    ok, bad = pair(tmp_path, {"a.log": log(40)}, {"a.log": log(3) + OOM})
    assert not [key for kind, key in changes(compared(ok, bad, capsys)) if kind == "argument"]


def test_items_of_a_manifest_are_compared_by_their_names() -> None:
    volumes = [{"name": "data", "mountPath": "/data"}, {"name": "dshm", "mountPath": "/dev/shm"}]
    assert dict(leaves({"mounts": volumes}))["mounts[dshm].mountPath"] == "/dev/shm"
    assert dict(leaves({"mounts": [{"name": "a"}, {"name": "a"}]})) == {"mounts[0].name": "a", "mounts[1].name": "a"}


def test_a_configuration_that_a_log_shows_as_yaml_is_read(tmp_path: Path) -> None:
    text = "[main] - resolved config:\ndata:\n  root: /a\n  size: 512\n  sizes:\n  - 1\n  - 2\nmodel:\n  width: 8\noptim:\n  lr: 0.1\nseed: 7\nstep 1 loss 2.0\n"
    (tmp_path / "a.log").write_text(text)
    stated = read_settings(str(tmp_path)).stated
    assert {key: said.values for (kind, key), said in stated.items() if kind == "argument"} == {
        "data.root": ("/a",), "data.size": ("512",), "model.width": ("8",), "optim.lr": ("0.1",), "seed": ("7",),
    }  # fmt: skip


def test_overrides_on_a_command_line_and_what_an_image_is_made_of_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(
        "$ torchrun --nproc-per-node 8 train.py data.root=/a +trainer.steps=4 --fp16\nstep 1 loss 2.0\n"
    )
    (tmp_path / "Dockerfile").write_text(
        "FROM torch/torch:2.3-devel AS made\nENV NCCL_DEBUG=INFO\nRUN pip install \\\n 'numpy==1.26.4'\n"
    )
    stated = {name: said.values[0] for name, said in read_settings(str(tmp_path)).stated.items()}
    assert stated["argument", "data.root"] == "/a"
    assert stated["argument", "trainer.steps"] == "4"
    assert stated["config", "Dockerfile: FROM image"] == "torch/torch:2.3-devel"
    assert stated["environment", "NCCL_DEBUG"] == "INFO"
    assert stated["version", "numpy"] == "1.26.4"


def test_masked_numbers_leave_no_part_of_a_secret(tmp_path: Path) -> None:
    said = "global batch 64, HF_TOKEN=hf_4C8TbEgyTUPYumqJZ8WtBAzFUawjEnfyhg"
    (tmp_path / "a.log").write_text(f"{said}\nUserWarning: {said}\nstep 1 loss 2.0\n")
    stated = read_settings(str(tmp_path)).stated
    assert {kind for kind, _ in stated} >= {"statement", "warning"}
    assert "WtBAzFUawjEnfyhg" not in repr(stated)


def test_an_address_that_is_taken_apart_shows_no_password(tmp_path: Path) -> None:
    found = Settings()
    found.add("argument", "postgres", "//u:Munmn8fEHejkXaSg5tzk@db/x", "a.log")
    assert "Munmn8fEHejkXaSg5tzk" not in repr(found.stated)
    (value,) = found.stated["argument", "postgres"].values
    assert value.endswith("@db/x")


def test_what_differs_in_every_run_explains_nothing(tmp_path: Path, capsys: Captured) -> None:
    def files(number: int, end: str) -> dict[str, str]:
        config = {"seed": number, "run_name": f"lm-{number}", "out": f"/runs/lm-{number}"}
        return {"c.json": json.dumps(config), "a.log": f"step 1 loss 2.0\n{end}"}

    fault = "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, GPU has fallen off the bus.\n"
    ok, bad = pair(tmp_path, files(50981, ""), files(51207, fault))
    assert main(["diff", str(ok), str(bad)]) == 1
    assert "Nothing that differs is known to bring this about." in capsys.readouterr().out


def test_the_best_explanation_stands_at_the_top(runs: tuple[Path, Path], capsys: Captured) -> None:
    assert main(["diff", *map(str, runs)]) == 1
    assert "Most likely it is the config ds_config.json: train_micro_batch_size_" in capsys.readouterr().out


# -- the command ---------------------------------------------------------------------------------------------------


def test_exit_codes(runs: tuple[Path, Path], tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "empty.log").write_text("")
    os.mkfifo(tmp_path / "pipe")
    ok = str(runs[0])
    assert main(["diff", ok, str(tmp_path / "empty.log")]) == 3
    assert "Nothing to compare" in capsys.readouterr().out
    compared(ok, tmp_path / "empty.log", capsys, code=3)
    for wrong in (str(tmp_path / "missing"), str(tmp_path / "pipe"), "-"):
        assert main(["diff", ok, wrong]) == 2
        page = capsys.readouterr()
        assert (page.out, page.err.count("\n")) == ("", 1)


def test_text_output_quiet_and_file(runs: tuple[Path, Path], tmp_path: Path, capsys: Captured) -> None:
    assert main(["diff", *map(str, runs)]) == 1
    page = capsys.readouterr().out
    assert page.startswith("ok   no failure found")
    assert "memory › device out of memory" in page
    assert "train_micro_batch_size" in page
    assert max(map(len, page.split("\n"))) <= 140
    assert main(["diff", *map(str, runs), "-v"]) == 1
    assert "-batch = 4" in capsys.readouterr().out
    assert main(["diff", *map(str, runs), "--quiet"]) == 1
    assert capsys.readouterr() == ("", "")
    assert main(["diff", *map(str, runs), "--output", str(tmp_path / "d.json")]) == 1
    jsonschema.validate(json.loads((tmp_path / "d.json").read_text()), SCHEMA)


def test_abbreviated_settings_count_as_much_and_memory_is_compared(tmp_path: Path, capsys: Captured) -> None:
    for name, checkpointing, memory, end in (("ok", True, "41.0GB", ""), ("bad", False, "76.5GB", OOM)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "requirements.txt").write_text("torch==2.5.1\ntransformers==4.49.0\n")
        steps = "".join(f"step {n} loss 2.{9 - n} mem {memory}\n" for n in range(4))
        (tmp_path / name / "train.log").write_text(f"Namespace(lr=0.1, grad_ckpt={checkpointing})\n{steps}{end}")
    document = compared(tmp_path / "ok", tmp_path / "bad", capsys)
    assert changes(document)["pace", "memory in GB"] == ("41", "76.5")
    _, first = document["differences"][:2]
    assert first["key"] == "grad_ckpt"
    assert first["why"].startswith("can bring about device memory overcommit")
    assert "transformers" not in document["bad"]["run"]["frameworks"]


def test_a_line_that_only_states_the_versions_is_told_once(tmp_path: Path, capsys: Captured) -> None:
    for name, version, batch in (("ok", "2.5.1", 8), ("bad", "2.6.0", 16)):
        (tmp_path / f"{name}.log").write_text(
            f"torch {version}+cu124 on this machine\nglobal batch {batch}, seed 7, torch {version}\nstep 1 loss 2.0\n"
        )
    found = changes(compared(tmp_path / "ok.log", tmp_path / "bad.log", capsys))
    assert ("version", "torch") in found
    assert [ok for (kind, _), (ok, _) in found.items() if kind == "statement"] == [
        "global batch 8, seed 7, torch 2.5.1"
    ]


def test_who_names_the_failed_run_first_is_told_so(runs: tuple[Path, Path], capsys: Captured) -> None:
    hint = "the one that worked is to be named first"
    assert main(["diff", *map(str, runs)]) == 1
    assert hint not in capsys.readouterr().out
    assert main(["diff", *map(str, reversed(runs))]) == 1
    assert hint in capsys.readouterr().out


def test_a_narrow_screen_breaks_no_word(
    runs: tuple[Path, Path], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["diff", *map(str, runs)]) == 1
    page = capsys.readouterr().out
    assert "failure: none → MEM001 device-out-of-memory" in page
    assert "      can bring about device memory overcommit" in page


# -- hostile input -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("deep.json", "[" * 100_000),
        ("deep2.json", '{"a":' * 500 + "1" + "}" * 500),
        ("number.json", '{"a": 1' + "0" * 10_000 + "}"),
        ("nan.json", '{"a": NaN, "b": 1e999}'),
        (
            "bomb.yaml",
            "a: &a [x, x]\n" + "".join(f"b{n}: &b{n} [*{'a' if not n else f'b{n - 1}'}, *a]\n" for n in range(60)),
        ),
        ("tag.yaml", "a: !!python/object/apply:os.system ['touch hacked']\n"),
        ("loop.yaml", "a: &a\n  b: *a\n"),
        ("dup.yaml", "a: 1\na: 2\n"),
        ("bad.toml", "a = [[[["),
        ("wide.json", json.dumps({f"k{n}": n for n in range(50_000)})),
        ("evil\x1b[31m.json", '{"\\u001b[31mkey": "\\u001b[31m", "x": "[bold]"}'),
        ("train.py", "\x1b[31m" * 1000 + "\n" * 30_000),
        ("job.log", "Namespace(" + "(" * 100_000 + "\nTrainingArguments(\n" + "a=1,\n" * 5_000),
        ("job.log", "x = {" * 1000 + "\n" + "--a " * 10_000 + "\ntorchrun " + "-" * 5_000 + " x.py\n" + "1 " * 50_000),
        ("requirements.txt", "a==" + "1" * 100_000 + "\n" + "b==1\n" * 1000),
        ("env.txt", "A=1\nB=" + "x" * 1_000_000 + "\n" + "C=\x1b]0;x\x07\n"),
        ("binary.json", "\0" * 100),
    ],
    ids=lambda value: value if len(value) < 20 and value.isprintable() else "…",
)
def test_a_hostile_file_does_no_harm(in_tmp: Path, name: str, text: str, capsys: Captured) -> None:
    for side in ("ok", "bad"):
        (in_tmp / side).mkdir()
        (in_tmp / side / "console.log").write_text("step 1 loss 0.5\n")
    (in_tmp / "ok" / name).write_text(text)
    (in_tmp / "bad" / name).write_text(text.replace("1", "2"))
    for more in ([], ["-v"], ["--format", "json"]):
        assert main(["diff", "ok", "bad", *more]) in (0, 1)
        page = capsys.readouterr()
        assert page.err == ""
        assert "\x1b" not in page.out
        assert len(page.out) < 3_000_000
    assert not (in_tmp / "hacked").exists()


def test_nested_values_have_paths_and_bounds() -> None:
    assert dict(leaves({"a": {"b": [1, 2], "c": [{"d": 1}]}, "e": {}})) == {"a.b": "[1, 2]", "a.c[0].d": 1, "e": "{}"}
    found = Settings()
    for number in range(30):
        found.add("argument", "x", number, "-")
    assert len(found.stated["argument", "x"].values) == 8


def test_every_line_fits_a_narrow_screen(
    runs: tuple[Path, Path], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["diff", *map(str, runs)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert max(map(cell_len, lines)) <= 60
    assert any(line.startswith("     ") for line in lines[1:3])  # goes on below its name
