"""What a node says of itself before a launch: the probe, many nodes, versions, and the command over all of it."""

from __future__ import annotations

import http.server
import io
import json
import os
import random
import shutil
import subprocess
import sys
import tarfile
import textwrap
import threading
import zipfile
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar

import jsonschema
import pytest

from paramedic.collect import gather, probe, releases
from paramedic.commands import main
from paramedic.detect import detect_facts
from paramedic.errors import ParamedicError
from paramedic.knowledge import load, with_advisories
from paramedic.knowledge.advisories import load_advisories, parse_advisory
from paramedic.knowledge.facts import load_compatibility, load_releases, load_variables, parse_releases
from paramedic.knowledge.taxonomy import load_taxonomy
from paramedic.model import Fact, Run, Source
from paramedic.node.elf import Elf, NotElf

SCHEMA = json.loads(resources.files("paramedic.report").joinpath("report.schema.json").read_text("utf-8"))
needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")
Captured = pytest.CaptureFixture[str]


def facts_of(python: str | None = None) -> dict[str, Any]:
    return {fact.name: fact.value for fact in probe.probe(python)}


def found_in(facts: Mapping[str, Any], host: str = "a") -> dict[str, str]:
    run = Run("r", (Source("s", "probe"),), facts=tuple(Fact(n, v, "case", host=host) for n, v in facts.items()))
    return {one.rule: one.severity for one in detect_facts(run, load(), load_advisories())}


# -- the probe -----------------------------------------------------------------------------------------------------


def test_the_probe_sees_packages_and_the_machine_without_importing_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('imported')")
    (tmp_path / "torch" / "version.py").write_text("__version__ = '9.9.9+cu130'\ncuda: str = '13.0'\nhip = None\n")
    info = tmp_path / "torch-9.9.8.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Name: torch\nVersion: 9.9.8\nRequires-Dist: numpy>99\n\nRequires-Dist: not-a-header\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    facts = facts_of()
    assert facts["torch version"] == "9.9.9+cu130"
    assert facts["package torch"] == "9.9.8"
    assert facts["requires torch"] == ["numpy>99"]
    assert facts["origin torch"].startswith("PYTHONPATH")
    assert facts["host memory"] > 1 << 20
    found = found_in(facts)
    assert found["VER030"] == "error"  # files and metadata of two releases
    assert found["VER020"] == "warning"


def test_the_probe_takes_nothing_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('executed')")
    monkeypatch.chdir(tmp_path)
    assert facts_of()["python version"]


def test_secrets_of_the_environment_stay_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789012345678901234567890123")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "nowhere0")
    facts = facts_of()
    assert facts["variable NCCL_SOCKET_IFNAME"] == "nowhere0"
    assert not any("hf_0123" in str(value) or "HF_TOKEN" in name for name, value in facts.items())
    assert found_in(facts)["ENV039"] == "warning"


def test_a_healthy_environment_has_no_error() -> None:
    assert "error" not in found_in(facts_of()).values()


@pytest.mark.parametrize("answer", ["", "[]", "{}", '{"paramedic_probe": 2}', '{"paramedic_probe": 1, "facts": [1]}'])
def test_an_answer_of_something_else_is_refused(answer: str) -> None:
    with pytest.raises(ParamedicError, match="no answer of the probe"):
        probe.parsed(answer, "node-1")


def test_a_python_that_cannot_be_started_is_named() -> None:
    with pytest.raises(ParamedicError, match=r"/nowhere/python: cannot be started"):
        probe.probe("/nowhere/python")


def test_a_deep_look_computes_on_every_device() -> None:
    pytest.importorskip("torch")
    tested = {fact.name: fact.value for fact in probe.seen(deep=True).facts if fact.name.startswith("selftest")}
    assert tested
    assert all(one["same"] and one["right"] for one in tested.values())


# -- native libraries ----------------------------------------------------------------------------------------------


def shared(folder: Path, name: str, code: str, *more: str) -> Path:
    source, made = folder / f"{name}.c", folder / name
    source.write_text(code)
    made.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(made), str(source), *more], check=True)
    return made


@needs_gcc
def test_symbols_are_looked_up_as_the_linker_does(tmp_path: Path) -> None:
    shared(tmp_path, "libc10.so", "int _ZN3c104goodEv(void) { return 1; } int other(void) { return 2; }")
    code = "extern int _ZN3c104goodEv(void); extern int _ZN3c103badEv(void); int f(void){return _ZN3c104goodEv()+_ZN3c103badEv();}"
    extension = Elf(
        str(shared(tmp_path, "ext.so", code, f"-L{tmp_path}", "-lc10", "-Wl,--unresolved-symbols=ignore-all"))
    )
    library = Elf(str(tmp_path / "libc10.so"))
    assert "libc10.so" in extension.needed
    assert {"_ZN3c104goodEv", "_ZN3c103badEv"} <= set(extension.undefined())
    assert library.defines("_ZN3c104goodEv")
    assert not library.defines("_ZN3c103badEv")


@needs_gcc
def test_an_extension_for_another_torch_and_another_nccl_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lib = tmp_path / "torch" / "lib"
    lib.mkdir(parents=True)
    (tmp_path / "torch" / "version.py").write_text("__version__ = '2.8.0'\ncuda = '12.8'\n")
    shared(lib, "libc10.so", "int _ZN3c104goodEv(void) { return 1; }")
    other = tmp_path / "system"
    other.mkdir()
    shared(other, "libnccl.so.2", "int ncclGetVersion(int *v) { *v = 21803; return 0; }", "-Wl,-soname,libnccl.so.2")
    shared(lib, "libtorch_cuda.so", "int x(void) { return 1; }", "-Wl,--no-as-needed", str(other / "libnccl.so.2"))
    (tmp_path / "torchvision").mkdir()
    code = "extern int _ZN3c103badEv(void); int f(void) { return _ZN3c103badEv(); }"
    shared(
        tmp_path,
        "torchvision/_C.so",
        code,
        f"-L{lib}",
        "-Wl,--no-as-needed",
        "-lc10",
        "-Wl,--unresolved-symbols=ignore-all",
    )
    info = tmp_path / "torch-2.8.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: torch\nVersion: 2.8.0\nRequires-Dist: nvidia-nccl-cu12==2.27.3\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))  # with no extensions that others have compiled
    monkeypatch.setenv("LD_LIBRARY_PATH", str(other))
    facts = facts_of()
    assert facts["nccl loaded"] == "2.18.3"
    assert facts["extension torchvision/_C.so"]["missing symbols"] == ["_ZN3c103badEv"]
    found = found_in(facts)
    assert found["VER022"] == "error"
    assert found["VER028"] == "error"  # older than torch pins


def test_damaged_libraries_end_in_one_kind_of_error(tmp_path: Path) -> None:
    real = Path(sys.executable).resolve().read_bytes()[:200_000]
    dice = random.Random(4)
    path = tmp_path / "x.so"
    for _ in range(300):
        data = bytearray(real[: dice.randrange(4, len(real))])
        for _ in range(30):
            data[dice.randrange(len(data))] = dice.randrange(256)
        data[:6] = real[:6]
        path.write_bytes(data)
        try:
            elf = Elf(str(path))
            elf.defines("x")
            elf.undefined()
        except (NotElf, ValueError, IndexError, ArithmeticError, __import__("struct").error):
            pass


# -- facts ---------------------------------------------------------------------------------------------------------


def test_every_fact_has_its_source_and_date() -> None:
    table, variables = load_compatibility(), load_variables()
    rows = [*table.torch, *table.driver, *table.compiler, *table.architectures, *table.lookalike, *variables.family]
    assert all(row["source"].startswith("https://") and row["date"].startswith("202") for row in rows)
    named = [*variables.renamed, *variables.debugging, *variables.values, *variables.contradiction]
    assert all(row["source"].startswith("https://") for row in named)
    assert {row["release"].rsplit(".", 1)[0] for row in table.torch} >= {f"2.{minor}" for minor in range(16)}
    assert len(load_releases().projects) >= 20


def test_our_nvcc_pairs_are_those_of_the_torch_that_is_installed() -> None:
    source = Path(sys.prefix, "lib", f"python3.{sys.version_info[1]}", "site-packages/torch/utils/cpp_extension.py")
    if not source.exists():
        pytest.skip("torch is not installed")
    text = source.read_text("utf-8").split("CUDA_GCC_VERSIONS: VersionMap = {")[1].split("}")[0]
    for row in load_compatibility().compiler:
        assert f"'{row['cuda']}': (" in text
        assert f"({row['gcc_below']}, 0))" in next(line for line in text.split("\n") if f"'{row['cuda']}'" in line)


def test_there_are_sixty_advisories_and_each_has_both_sides() -> None:
    advisories = load_advisories()
    assert len(advisories) >= 60
    assert len({one.rule.id for one in advisories}) == len(advisories)
    for one in advisories:
        assert one.affected.contains(one.seen_in, prereleases=True), one.rule.id
        assert not one.fixed or not one.affected.contains(one.fixed, prereleases=True), one.rule.id
        assert all(reference.startswith("https://") for reference in one.rule.references)


def test_an_advisory_speaks_only_where_all_of_it_holds() -> None:
    assert "ADV001" in found_in({"package deepspeed": "0.14.0", "package torch": "2.4.0"})
    assert "ADV001" not in found_in({"package deepspeed": "0.14.0", "package torch": "2.3.1"})
    assert "ADV001" not in found_in({"package deepspeed": "0.14.1", "package torch": "2.4.0"})
    assert "ADV001" not in found_in({"package torch": "2.4.0"})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('affected = "<0.14.1"', 'affected = "<0.1"'), "seen_in"),
        (('fixed = "0.14.1"', 'fixed = "0.13"'), "still in"),
        (('severity = "error"', 'severity = "fatal"'), "severity"),
        (("## Do instead", "## Else"), "heading"),
        (('cause = "framework-version-incompatibility"', 'cause = "bad-luck"'), "cause"),
    ],
)  # fmt: skip
def test_a_broken_advisory_says_what_is_wrong(change: tuple[str, str], says: str) -> None:
    name = "ADV001-deepspeed-import-log-torch-2-4.md"
    text = resources.files("paramedic.knowledge").joinpath("advisories", name).read_text("utf-8")
    with pytest.raises(ParamedicError, match=says):
        parse_advisory(text.replace(*change), name, load_taxonomy())


def test_advisories_are_explained_like_rules(capsys: Captured) -> None:
    assert main(["explain", "ADV001", "--format", "json"]) == 0
    entry = json.loads(capsys.readouterr().out)
    assert "cannot import name 'log'" in entry["What happens"]
    assert "ADV001" in with_advisories(load()).rules


@pytest.mark.parametrize(
    "text", ["", "[]", '{"version": 1}', '{"version": 1, "date": "x", "source": "y", "projects": {"a": [{}]}}']
)
def test_a_damaged_table_of_releases_is_said_to_be_so(text: str) -> None:
    with pytest.raises(ParamedicError, match="refresh-facts"):
        parse_releases(text, "releases.json")


class Index(http.server.BaseHTTPRequestHandler):
    """A package index with two projects: one with a wheel that is read by ranges, one with a source archive."""

    files: ClassVar[dict[str, bytes]] = {}

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        data = self.files.get(self.path)
        if data is None:
            self.send_error(404)
            return
        start, end = 0, len(data) - 1
        if asked := self.headers.get("Range"):
            start, end = map(int, asked.removeprefix("bytes=").split("-"))
            end = min(end, len(data) - 1)
        self.send_response(206 if asked else 200)
        self.send_header("Content-Length", str(end - start + 1))
        self.end_headers()
        if body:
            self.wfile.write(data[start : end + 1])

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    wheel, source = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("bulk", random.Random(1).randbytes(300_000))
        archive.writestr(
            "ray-2.0.dist-info/METADATA", "Name: ray\nLicense: x\n  \n  y\nRequires-Dist: torch>=2\n\nRequires-Dist: no"
        )
    with tarfile.open(fileobj=source, mode="w:gz") as tar:
        text = b"torch<=2.5.1\nclick\n\n[dev]\npytest\n"
        entry = tarfile.TarInfo("deepspeed-0.1/deepspeed.egg-info/requires.txt")
        entry.size = len(text)
        tar.addfile(entry, io.BytesIO(text))
    rows: dict[str, dict[str, Any]] = {
        "ray": {"filename": "ray-2.0-py3-none-any.whl", "packagetype": "bdist_wheel", "requires_python": ">=3.11"},
        "deepspeed": {"filename": "deepspeed-0.1.tar.gz", "packagetype": "sdist", "yanked": True, "yanked_reason": "broken"},
    }  # fmt: skip
    for name, version, file in (("ray", "2.0", wheel), ("deepspeed", "0.1", source)):
        row = {**rows[name], "url": f"../../files/{name}", "upload_time": "2026-01-02T03:04:05", "size": 1}
        said = {"info": {"version": "9"}, "releases": {version: [row], "3.0rc1": [row], "odd": [row]}}
        Index.files[f"/pypi/{name}/json"] = json.dumps(said).encode()
        Index.files[f"/files/{name}"] = file.getvalue()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_address[1]}/simple")
    yield str(server.server_address[1])
    server.shutdown()
    server.server_close()


def test_facts_are_renewed_from_the_index(index: str) -> None:
    said = releases.renewed("2026-11-15", ["ray", "deepspeed", "unknown-project"])
    table = parse_releases(json.dumps(said), "x")
    (ray,), (deepspeed,) = table.projects["ray"], table.projects["deepspeed"]
    assert (str(ray.version), ray.python, ray.requires, ray.wheels) == (
        "2.0",
        ">=3.11",
        ("torch>=2",),
        ("py3-none-any",),
    )
    assert (deepspeed.yanked, deepspeed.source, deepspeed.requires) == ("broken", True, ("click", "torch<=2.5.1"))
    assert "unknown-project" not in table.projects


def test_without_an_index_it_is_said(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    assert main(["check", "--refresh-facts"]) == 2
    assert "the package index" in capsys.readouterr().err


# -- many nodes ----------------------------------------------------------------------------------------------------


def test_answers_come_through_prefixes_and_in_any_order() -> None:
    first, second = "a" * 20_000 + "é", json.dumps({"x": list(range(5000))})
    lines = [f"{number}: {line}" for number, text in enumerate((first, second)) for line in gather.as_lines(text)]
    random.Random(1).shuffle(lines)
    answers, broken = gather.from_lines(["srun: job 5 queued", *lines])
    assert (sorted(answers), broken) == (sorted([first, second]), 0)
    assert gather.from_lines(lines[1:])[1] == 1
    assert (
        gather.from_lines(["paramedic-answer 0123456789abcdef 1/1 ####", "paramedic-answer 0123456789abcdef 1/1 QUJD"])[
            0
        ]
        == []
    )


def starter(folder: Path, change: str, network: str = "pass") -> str:
    """A starter like `srun -N3`: two nodes like this one, and one that differs. `network` may change `net`."""
    script = folder / "srun.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import json, subprocess, sys
            sys.path.insert(0, {str(Path(__file__).parents[1] / "src")!r})
            from paramedic.collect.gather import as_lines, from_lines
            said = subprocess.run(sys.argv[1:], capture_output=True, text=True, check=True).stdout
            (answer,), _ = from_lines(said.split("\\n"))
            for host in ("node-1", "node-2", "node-3"):
                facts = json.loads(answer)
                for row in facts["facts"]:
                    if row[0] == "host name": row[1] = host
                    {change}
                (net,) = facts["network"]["nodes"].values()
                {network}
                facts["network"]["nodes"] = {{host: net}}
                for line in as_lines(json.dumps(facts)): print(host + ":", line)
            """
        )
    )
    return f"{sys.executable} {script}"


def test_only_the_node_that_differs_is_printed(in_tmp: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "src"))
    via = starter(in_tmp, 'if row[0] == "python version" and host == "node-3": row[1] = "3.9.1"')
    assert main(["check", "--via", via, "--select", "ENV044,ENV046,HOST021", "--format", "json"]) == 1
    report = json.loads(capsys.readouterr().out)
    jsonschema.validate(report, SCHEMA)
    (finding,) = report["findings"]
    assert (finding["rule"], finding["hosts"]) == ("ENV044", ["node-3"])
    assert "python version is 3.9.1; 2 of 3 nodes have" in finding["summary"]


def test_a_clock_that_is_off_is_named(in_tmp: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "src"))
    via = starter(in_tmp, 'if row[0] == "host time" and host == "node-2": row[1] -= 3600')
    main(["check", "--via", via, "--select", "HOST021", "--format", "json"])
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert finding["hosts"] == ["node-2"]
    assert "behind" in finding["summary"]


def test_the_network_of_all_nodes_is_part_of_the_check(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "src"))
    network = (
        'number = host[-1]; net = {"hostname": host,'
        ' "interface eth0": {"up": True, "mtu": 1500, "addresses": [{"address": "10.0.0." + number, "prefix": 24,'
        ' "scope": "global"}]},'
        ' "resolve " + host: {"addresses": ["127.0.1.1" if number == "2" else "10.0.0." + number]},'
        ' "launch": net["launch"]}'
    )
    via = starter(tmp_path, "pass", network)
    launch = [str(tmp_path), "--", "torchrun", "--nnodes", "2", "--master-addr", "10.0.0.1", "train.py"]
    assert main(["check", "--via", via, "--select", "NET", "--format", "json", *launch]) == 1
    found = {one["rule"]: one for one in json.loads(capsys.readouterr().out)["findings"]}
    assert found["NET040"]["hosts"] == ["node-2"]
    assert "GLOO_SOCKET_IFNAME" in json.dumps(found["NET040"]["fixes"])
    assert "--nnodes=2 and 3 hosts" in json.dumps(found["NET052"])


def test_a_master_that_this_node_does_not_know_is_found(tmp_path: Path, capsys: Captured) -> None:
    launch = [str(tmp_path), "--", "torchrun", "--nnodes", "2", "--master-addr", "nowhere.invalid", "train.py"]
    main(["check", "--select", "NET", "--format", "json", *launch])
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert "nowhere.invalid" in finding["summary"]


def test_a_node_speaks_of_its_own_network_alone() -> None:
    facts = [["host name", "node-1", "probe"]]
    nodes = {"node-1": {"hostname": "node-1"}, "node-2": {"hostname": "node-2"}}
    said = {"paramedic_probe": 1, "facts": facts, "skipped": [], "network": {"paramedic_net": 1, "nodes": nodes}}
    assert {fact.host for fact in probe.parsed(json.dumps(said), "--via").facts} == {"node-1"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--via", "no-such-starter"], "no such command"),
        (["--via", "'"], "No closing quotation"),
        (["--via", "true"], "no node answered"),
        (["--checkpoint", "/nowhere"], "no such folder"),
        (["--python", "/nowhere/python"], "cannot be started"),
    ],
)
def test_wrong_usage_is_one_sentence(arguments: list[str], says: str, in_tmp: Path, capsys: Captured) -> None:
    assert main(["check", *arguments]) == 2
    page = capsys.readouterr()
    assert says in page.err
    assert page.out == ""


# -- silently old --------------------------------------------------------------------------------------------------

HERE = {"python version": "3.11.7", "host architecture": "x86_64", "host glibc": "2.36", "package torch": "2.13.0+cpu"}


def test_an_old_release_that_pip_chose_silently_is_named_with_its_reason() -> None:
    run = Run("r", facts=tuple(Fact(n, v, "s", host="a") for n, v in {**HERE, "package colossalai": "0.3.8"}.items()))
    (one,) = [f for f in detect_facts(run, load()) if f.rule == "VER031"]
    assert one.fields["newest"] == "0.5.0"
    assert "needs torch" in one.fields["why"]


def test_a_release_that_somebody_chose_is_not() -> None:
    assert "VER031" not in found_in({**HERE, "package megatron-core": "0.12.0"})  # 0.16.1 would have fitted
    assert "VER031" not in found_in({**HERE, "package megatron-core": "0.19.2", "python version": "3.12.1"})
    assert "VER031" in found_in({**HERE, "package megatron-core": "0.16.1"})


def test_the_whole_command_passes_on_this_node_and_keeps_the_schema(in_tmp: Path, capsys: Captured) -> None:
    (in_tmp / "train.py").write_text("import torch\ntorch.distributed.init_process_group('gloo')\n")
    assert main(["check", "--format", "json", "--ignore", "VER020"]) in (0, 1)
    jsonschema.validate(json.loads(capsys.readouterr().out), SCHEMA)


def test_check_ends_without_torch_in_memory(in_tmp: Path) -> None:
    (in_tmp / "train.py").write_text("import torch\ntorch.distributed.init_process_group('gloo')\n")
    code = "import sys; from paramedic.commands import main; main(['check', '--quiet']); print('torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "src")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "False"
