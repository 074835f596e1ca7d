"""What a log says about itself: frameworks, versions, how many ranks there are, and which one it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from paramedic.collect import activity, identity, tables
from paramedic.collect.guarded import Guarded, divides
from paramedic.collect.identity import facts_in, frameworks_in, ranks_stated
from paramedic.model import Event, Source

SOURCE = Source("x.log", "log")


@pytest.mark.parametrize(
    ("line", "size"),
    [
        ("[2026-11-15 06:24:39,854] [INFO] [launch.py:170:main] dist_world_size=8", 8),
        ("Initializing distributed: GLOBAL_RANK: 1, MEMBER: 2/8", 8),
        ("All distributed processes registered. Starting with 8 processes", 8),
        ("Num processes: 8", 8),
        ("using world size: 8, data-parallel size: 4, tensor-model-parallel size: 2", 8),
        ("INFO     colossalai - colossalai - INFO: Distributed environment is initialized, world size: 8", 8),
        ("cluster_spec = {'worker': ['h:1']}, task_type = 'worker', task_id = 0, num_workers = 8, local_devices", 8),
        ("(TrainController pid=2) Started training worker group of size 8: ", 8),
        ("Setting up process group for: env:// [rank=0, world_size=8]", 8),
        ("node:1:2 [0] NCCL INFO comm 0x1 rank 0 nranks 8 cudaDev 0 - Init COMPLETE", 8),
        ("[titan] INFO - Building 3-D device mesh with ['pp', 'dp_shard', 'tp'], [2, 2, 2]", 8),
        ("Building device mesh with parallelism: pp=1, dp_replicate=2, dp_shard=2, cp=1, tp=2, ep=4, etp=1", 8),
        ("DataLoader(num_workers=8)", None),
        ("tensor_model_parallel_world_size 8", None),
    ],
)
def test_every_framework_states_its_size_in_its_own_words(line: str, size: int | None) -> None:
    assert next((fact.value for fact in facts_in([line], SOURCE) if fact.name == "world_size"), None) == size


@pytest.mark.parametrize(
    ("line", "name", "version"),
    [
        ("ray==2.44.1", "ray", "2.44.1"),
        ("colossalai 0.4.9", "colossalai", "0.4.9"),
        ("pytorch-lightning version: 2.5.0", "lightning", "2.5.0"),
        ("Keras version 3.8.0", "keras", "3.8.0"),
        ("megatron-core==0.11.0", "megatron", "0.11.0"),
    ],
)
def test_versions(line: str, name: str, version: str) -> None:
    assert [(fact.name, fact.value) for fact in facts_in([line], SOURCE)] == [(f"version {name}", version)]


@pytest.mark.parametrize(
    ("text", "framework"),
    [
        ("ray.exceptions.ActorDiedError: The actor died", "ray"),
        ("Op at device /job:worker/replica:0/task:1/device:CPU:0 expected shape", "tensorflow"),
        ("jaxlib.xla_extension.XlaRuntimeError: INTERNAL", "jax"),
        ("lightning.pytorch.utilities.exceptions.MisconfigurationException: x", "lightning"),
    ],
)
def test_frameworks(text: str, framework: str) -> None:
    assert framework in frameworks_in([Event("x", 1, "line", text)], [])


@pytest.mark.parametrize(
    ("lines", "ranks"),
    [
        (["Initializing distributed: GLOBAL_RANK: 3, MEMBER: 4/8"], {3}),
        (["Distributed environment: MULTI_CPU  Backend: gloo", "Num processes: 8", "Process index: 3"], {3}),
        (["Process rank: 3, device: cuda:3, n_gpu: 1, distributed training: True"], {3}),
        (["Added key: store_based_barrier_key:1 to store for rank: 3"], {3}),
        (["cluster_spec = {'worker': ['a', 'b']}, task_type = 'worker', task_id = 1, num_workers = 2"], {1}),
        (["cluster_spec = {'chief': ['a'], 'worker': ['b']}, task_type = 'worker', task_id = 0, num_workers = 2"], {1}),
        (["cluster_spec = {'chief': ['a'], 'worker': ['b']}, task_type = 'chief', task_id = 0, num_workers = 2"], {0}),
        (["GLOBAL_RANK: 0, MEMBER: 1/2", "GLOBAL_RANK: 1, MEMBER: 2/2"], {0, 1}),
        (["lora rank: 16", "Process started"], set()),
    ],
)
def test_the_ranks_that_programs_say_they_are(lines: list[str], ranks: set[int]) -> None:
    assert ranks_stated(lines) == ranks


_OWN = [value for module in (activity, identity) for value in vars(module).values()]
GUARDED = [one for one in (*_OWN, *activity._STEPS) if isinstance(one, Guarded)]


@pytest.fixture(scope="module")
def lines() -> set[str]:
    root = Path(__file__).parent.parent
    logs = [*root.glob("corpus/*/*/input/**/*"), *(root / "tests" / "healthy" / "logs").glob("*")]
    return {
        line[:2_000]
        for path in logs
        if path.is_file() and path.suffix != ".gz"
        for line in path.read_text("utf-8", "replace").split("\n")
    }


def test_no_guard_hides_what_its_pattern_finds(lines: set[str]) -> None:
    assert len(GUARDED) == 13
    for one in GUARDED:
        assert not [line for line in lines if not one.may_be_in(line) and one.pattern.search(line)]


def test_no_words_hide_what_a_line_lists_of_all_ranks(lines: set[str]) -> None:
    for way, words in tables._WAYS.items():
        asked = [line for line in lines if tables._WORDS.present(line).isdisjoint(words)]
        assert not [line for line in asked if list(way(line))]


@pytest.mark.parametrize("text", ["3/8", "step 3 /8", "a/b 3 / 8", "tok/s 12/13", "/1/2"])
def test_numbers_on_both_sides_of_a_slash_are_seen(text: str) -> None:
    assert divides(text)


@pytest.mark.parametrize("text", ["", "/", "/8", "3/", "tokens/s 5179", "a/3", "3/a"])
def test_a_rate_or_a_path_divides_no_numbers(text: str) -> None:
    assert not divides(text)


def test_no_word_hides_the_platform_that_its_pattern_finds(lines: set[str]) -> None:
    assert identity._PLATFORM_WORDS.keys() == identity._PLATFORMS.keys()
    for name, pattern in identity._PLATFORMS.items():
        words = identity._PLATFORM_WORDS[name]
        assert not [line for line in lines if pattern.search(line) and not any(word in line for word in words)]
