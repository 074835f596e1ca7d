"""`paramedic memory`: estimates without a GPU, what they rest on, and what happens with bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from paramedic.commands import main
from paramedic.errors import ParamedicError
from paramedic.memory import compare, guard, outside, page, picture, process
from paramedic.memory.cards import GIB, card_of, size_of
from paramedic.memory.document import document
from paramedic.memory.estimate import Estimate, estimates
from paramedic.memory.request import Request, check
from paramedic.memory.show import text

SCHEMA = json.loads(resources.files("paramedic.memory").joinpath("memory.schema.json").read_text("utf-8"))
GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_embd": 256,
    "n_layer": 4,
    "n_head": 4,
    "vocab_size": 5000,
    "n_positions": 256,
}
LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
         "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 5000, "max_position_embeddings": 512}  # fmt: skip
MIXTRAL = {
    **LLAMA,
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
T5 = {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "d_model": 128, "d_ff": 256, "num_layers": 2, "num_heads": 4,
      "vocab_size": 1000, "decoder_start_token_id": 0}  # fmt: skip
VIT = {"architectures": ["ViTForImageClassification"], "model_type": "vit", "num_hidden_layers": 2, "hidden_size": 192, "intermediate_size": 384,
       "num_attention_heads": 3}  # fmt: skip
RESNET = {"architectures": ["ResNetForImageClassification"], "model_type": "resnet", "depths": [1, 1, 1, 1]}
ENTRY = """
import torch
def build():
    model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(), torch.nn.Linear(4096, 1024)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return model, optimizer, torch.randn(64, 1024, device="cuda"), lambda model, batch: model(batch).pow(2).mean()
"""


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing of the user's; the stand-in is compiled once for all tests here."""
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("configs")
    found = {}
    for name, config in {
        "gpt2": GPT2,
        "llama": LLAMA,
        "mixtral": MIXTRAL,
        "t5": T5,
        "vit": VIT,
        "resnet": RESNET,
    }.items():
        (folder / f"{name}.json").write_text(json.dumps(config))
        found[name] = str(folder / f"{name}.json")
    return found


@pytest.fixture(scope="module")
def made(configs: dict[str, str]) -> dict[str, Estimate]:
    """All in one child: importing transformers is what takes long."""
    base = Request(model=configs["llama"], batch=2, seq=256, gpu="h200")
    eight = replace(base, world_size=8)
    asked = {
        "plain": base,
        "fp32": replace(base, dtype="fp32"),
        "checkpointing": replace(base, checkpointing=True, batch=8),
        "no checkpointing": replace(base, batch=8),
        "fused": replace(base, optimizer="adamw-fused"),
        "loop": replace(base, optimizer="adamw-loop"),
        "sgd": replace(base, optimizer="sgd"),
        "eager": replace(base, attention="eager", batch=8),
        "ddp": replace(eight, strategy="ddp"),
        "view": replace(eight, strategy="ddp", bucket_view=True),
        "fsdp2": replace(eight, strategy="fsdp2"),
        "zero1": replace(eight, strategy="zero1"),
        "zero2": replace(eight, strategy="zero2"),
        "zero3": replace(eight, strategy="zero3"),
        "offload": replace(eight, strategy="zero3", offload="parameters"),
        "tp": replace(base, tp=4, world_size=4),
        "pp": replace(base, pp=2, world_size=2, batch=8, micro_batches=4),
        "mixtral": replace(base, model=configs["mixtral"]),
        "t5": replace(base, model=configs["t5"]),
        "vit": replace(base, model=configs["vit"], seq=None),
        "resnet": replace(base, model=configs["resnet"], seq=None),
    }
    return dict(zip(asked, estimates(list(asked.values()), print), strict=True))


# -- estimates -----------------------------------------------------------------------------------------------------


def test_the_command_gives_a_document_of_the_schema(
    configs: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(
        ["memory", "estimate", "--model", configs["gpt2"], "--batch", "2", "--seq", "128", "--dtype", "bf16-autocast",
         "--optimizer", "adamw", "--attention", "sdpa", "--gpu", "h200", "--activation-checkpointing", "--format", "json"]
    )  # fmt: skip
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    jsonschema.validate(found, SCHEMA)
    assert found["fits"] == "yes"
    assert found["method"]["way"] == "guard"
    assert found["model"]["parameters"] == 4_505_088
    sizes = [found[f"{name}_bytes"] for name in ("peak_allocated", "peak_reserved", "device_total")]
    assert all(one["low"] <= one["mid"] <= one["high"] for one in sizes)
    assert sizes[0]["mid"] <= sizes[1]["mid"] <= sizes[2]["mid"]


def test_adamw_is_the_multi_tensor_one_that_a_gpu_gets(made: dict[str, Estimate]) -> None:
    """It copies all second moments at once: one more set of parameters at the peak of the step."""
    weights = 4 * made["plain"].result["parameters"]
    plain, fused = (made[name].result["phases"]["optimizer"] for name in ("plain", "fused"))
    assert plain - fused == pytest.approx(weights, rel=0.01)
    assert made["plain"].result["breakdown"]["optimizer"] == pytest.approx(2 * weights, rel=0.01)


def test_optimizers_states_are_counted(made: dict[str, Estimate]) -> None:
    assert made["sgd"].result["breakdown"]["optimizer"] == 0
    assert made["loop"].result["phases"]["optimizer"] < made["plain"].result["phases"]["optimizer"]


def test_parameters_and_gradients_are_exact(made: dict[str, Estimate]) -> None:
    result = made["plain"].result
    assert result["breakdown"]["parameters"] == pytest.approx(4 * result["parameters"], rel=1e-3)


def test_checkpointing_keeps_fewer_activations(made: dict[str, Estimate]) -> None:
    kept, recomputed = (made[name].result["phases"]["forward"] for name in ("no checkpointing", "checkpointing"))
    assert recomputed < 0.85 * kept


def test_eager_attention_keeps_its_score_matrices(made: dict[str, Estimate]) -> None:
    scores = 8 * 8 * 256 * 256 * 2
    assert made["eager"].result["phases"]["forward"] - made["no checkpointing"].result["phases"]["forward"] > 4 * scores


def test_ddp_adds_buckets_as_large_as_the_gradients(made: dict[str, Estimate]) -> None:
    found = made["ddp"].result["breakdown"]["communication"]
    gradients = 4 * made["plain"].result["parameters"]
    assert found == gradients
    ddp, view = (made[name].result["phases"]["optimizer"] for name in ("ddp", "view"))
    assert ddp - view == pytest.approx(gradients, rel=0.01)


def test_sharing_more_takes_less(made: dict[str, Estimate]) -> None:
    states = [
        sum(made[name].result["breakdown"][kind] for kind in ("parameters", "optimizer"))
        for name in ("ddp", "zero1", "zero3", "offload")
    ]
    assert states == sorted(states, reverse=True)
    assert made["fsdp2"].result["breakdown"]["optimizer"] == pytest.approx(
        made["plain"].result["breakdown"]["optimizer"] / 8, rel=0.05
    )
    assert made["zero2"].result["phases"]["backward"] <= made["zero1"].result["phases"]["backward"]


def test_tensor_parallelism_shares_the_projections(made: dict[str, Estimate]) -> None:
    whole = made["plain"].result["breakdown"]["parameters"]
    embedding = 2 * 5000 * 256 * 4
    part = made["tp"].result["breakdown"]["parameters"]
    assert part < whole - (whole - embedding) * 0.6


def test_the_first_stage_of_a_pipeline_holds_the_most_micro_batches(made: dict[str, Estimate]) -> None:
    assert [rank["micro_batches_held"] for rank in made["pp"].ranks] == [2, 1]
    assert any("coarser" in note for note in made["pp"].result["notes"])


@pytest.mark.parametrize("name", ["mixtral", "t5", "vit", "resnet", "fp32", "fsdp2", "zero3", "pp"])
def test_every_kind_of_model_and_strategy_gives_a_valid_document(made: dict[str, Estimate], name: str) -> None:
    found = document(made[name])
    jsonschema.validate(found, SCHEMA)
    assert found["peak"]["at"]["phase"] in ("forward", "backward", "optimizer")
    assert found["timeline"]["points"]


@pytest.mark.slow
def test_a_trace_on_the_cpu_matches_what_the_cpus_allocator_saw() -> None:
    code = Path(__file__).with_name("memory_real.py")
    done = subprocess.run([sys.executable, str(code)], capture_output=True, text=True, timeout=290, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["traced"] == pytest.approx(found["real"], rel=0.005)


@pytest.mark.slow
def test_without_a_compiler_it_is_coarser_and_says_so(
    configs: dict[str, str], made: dict[str, Estimate], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    (found,) = estimates([made["plain"].request], print)
    assert found.result["way"] == "coarse"
    assert "compiler" in found.why_coarse
    assert "Coarser than it might be: no C++ compiler" in text(found)
    assert found.allocated.mid == pytest.approx(made["plain"].allocated.mid, rel=0.05)


# -- the user's own code -------------------------------------------------------------------------------------------


def test_the_users_own_code_is_traced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "train.py"
    file.write_text(ENTRY)
    assert main(["memory", "estimate", "--entry", f"{file}:build", "--gpu", "4090", "--format", "json"]) == 0
    out = capsys.readouterr()
    found = json.loads(out.out)
    assert "child process" in out.err
    assert found["breakdown"]["parameters"] == 4 * found["model"]["parameters"] == 4 * (2 * 1024 * 4096 + 4096 + 1024)
    assert found["peak"]["at"]["phase"] == "optimizer"


def slowly(*values: object) -> Any:
    """A process with torch of its own: a few of a kind are enough for every day."""
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; sys.exit(3)", "ends the program when it is imported"),
        ("def build(): return 1", "returned int"),
        ("import os; os._exit(7)", "ended with code 7"),
        slowly("raise ValueError('no data')", "fails when it is imported: ValueError: no data"),
        slowly("def other(): pass", "has no function build"),
        slowly("def build(): raise RuntimeError('no such file')", "no such file"),
        slowly("def build(): import sys; sys.exit('stop')", "SystemExit: stop"),
        slowly("input('name? ')", "EOFError"),
    ],
)
def test_code_that_does_not_work_is_one_clear_line(
    code: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(code)
    assert main(["memory", "estimate", "--entry", f"{tmp_path / 'train.py'}:build", "--quiet"]) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert said in out.err


# -- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "flags", "said"),
    [
        ({"model_type": "gpt3"}, [], "knows no model_type 'gpt3'"),
        ({}, [], 'no "model_type"'),
        ({**GPT2, "n_layer": 10**8}, [], "n_layer is 100,000,000"),
        ({**GPT2, "n_head": 5}, [], "does not build"),
        slowly(GPT2, ["--seq", "512"], "positions for 256 tokens"),
        slowly(GPT2, ["--seq", "64", "--tp", "3"], "--tp 3"),
    ],
)
def test_a_wrong_config_is_one_clear_line(
    config: dict[str, Any], flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["memory", "estimate", "--model", str(tmp_path), "--format", "json", *flags]) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert said in out.err


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (Request(), "--model config.json or --entry"),
        (Request(model="x", batch=0), "--batch 0"),
        (Request(model="x", seq=-1), "--seq -1"),
        (Request(model="x", world_size=8), "how do the ranks share"),
        (Request(model="x", world_size=8, tp=3), "no multiple"),
        (Request(model="x", offload="optimizer"), "--offload optimizer: needs"),
        (Request(model="x", gpu="h900"), "--gpu h900"),
        (Request(model="x", strategy="zero2", dtype="fp32"), "half precision"),
        (Request(entry="train.py", world_size=1), "FILE:NAME"),
    ],
)
def test_wrong_flags_are_named(request_: Request, said: str) -> None:
    with pytest.raises(ParamedicError, match=said):
        check(request_)
        card_of(request_.gpu)
        if request_.entry:
            estimates([request_], print)


def test_sizes_are_read_as_people_write_them() -> None:
    assert [size_of(text, "--x") for text in ("40GiB", "24 GB", "512")] == [40 * GIB, 24 * 10**9, 512]
    with pytest.raises(ParamedicError, match="--x much"):
        size_of("much", "--x")


def test_secrets_do_not_reach_the_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    monkeypatch.setenv("PLAIN", "y")
    kept = process._environment()
    assert "HF_TOKEN" not in kept
    assert kept["PLAIN"] == "y"


# -- compare, picture, outside -------------------------------------------------------------------------------------


def test_an_estimate_beside_memory_stats(made: dict[str, Estimate], tmp_path: Path) -> None:
    one = made["plain"]
    stats = {"allocated_bytes.all.peak": one.allocated.mid, "reserved_bytes.all.peak": one.reserved.mid * 2}
    (tmp_path / "stats.json").write_text(json.dumps(stats))
    found = compare.compare(compare.read(str(tmp_path / "stats.json")), one)
    assert [(row["difference"], row["within"]) for row in found["rows"]] == [(0.0, True), (-0.5, False)]
    assert "outside the range" in compare.text(found)


def test_the_picture_is_one_file_that_loads_nothing(made: dict[str, Estimate]) -> None:
    drawn = page.page("Memory of <script>", "words & <b>", made["plain"])
    assert "<script>" not in drawn
    assert "<!-- " not in drawn
    assert '<polygon class="optimizer"' in drawn
    assert "far above" in drawn
    assert "peak " in drawn
    assert "http" not in drawn.replace("http-equiv", "")
    lines = list(picture.chart(made["plain"].result["series"]))
    assert "forward" in lines[-1]
    assert "backward" in lines[-1]


def test_each_dimension_of_the_mesh_has_its_communicator() -> None:
    base = Request(model="x", strategy="fsdp2")
    assert outside.communicators(replace(base, world_size=1)) == 0
    assert outside.communicators(replace(base, world_size=8)) == 1
    assert outside.communicators(replace(base, world_size=8, tp=2)) == 3


def test_no_torch_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ParamedicError, match=r"pip install 'paramedic\[memory\]'"):
        guard.find_torch()


@pytest.mark.slow
def test_another_architecture_than_the_config_names_is_told(
    configs: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LLAMA | {"architectures": ["TheirOwnForCausalLM"]}))
    assert main(["memory", "estimate", "--model", str(config), "--seq", "64", "--gpu", "h100"]) == 0
    assert "transformers has no TheirOwnForCausalLM: LlamaForCausalLM is taken" in capsys.readouterr().out
