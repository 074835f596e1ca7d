"""A Run on disk: the same answer as from the logs, readable after a crash, hostile ones survived, secrets absent."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paramedic import run_folder
from paramedic.collect import copies
from paramedic.commands import main
from paramedic.errors import ParamedicError
from paramedic.knowledge import load
from paramedic.model import Event, Fact, Run, Skipped, Source
from paramedic.pipeline import Options, compile_prefilter, diagnose, examine
from paramedic.redact import Anonymizer

pytestmark = pytest.mark.usefixtures("rules_loaded_once")
KNOWLEDGE = load()
PREFILTER = compile_prefilter(KNOWLEDGE)
RECORDINGS = Path(__file__).parents[1] / "corpus"
CASES = ["graceful-late/log-dir-4", "rank-killed/merged-4", "loader-bad-sample/srun-l-4", "missing-collective/tee-4"]
RUN = Run(
    id="abc",
    sources=(Source("a/rank0.log", "log", 0, "node-1", 1, 10, 100), Source("-", "log")),
    events=(
        Event(
            "a/rank0.log",
            1,
            "line",
            "é CUDA out of memory",
            1,
            0,
            "node-1",
            1,
            10**18,
            5,
            "t",
            {"before": ["x"], "after": []},
        ),
        Event("-", 2, "exit", "x", 2, 3, fields={"exitcode": -9, "pid": 4, "host": "node-1", "first_observed": True}),
        Event("-", 3, "traceback", "ValueError: x", 3, fields={"frames": ["a:1 in f"], "types": ["ValueError"]}),
    ),
    facts=(Fact("version torch", "2.13.0", "-", 3), Fact("world_size", 4, "-")),
    skipped=(Skipped("b", "empty"),),
    world_size=4,
    frameworks=("pytorch",),
)

Put = Callable[[Run, Path], None]
PUTS = pytest.mark.parametrize(
    ("put", "name"), [(run_folder.write, "run"), (run_folder.pack, "run.tar.zst")], ids=["folder", "archive"]
)


@PUTS
def test_what_is_written_is_read_back(tmp_path: Path, put: Put, name: str) -> None:
    put(RUN, tmp_path / name)
    assert run_folder.is_run(str(tmp_path / name))
    assert run_folder.read(str(tmp_path / name)) == RUN
    assert [path.name for path in tmp_path.iterdir()] == [name], "nothing is left beside it"


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", ["run", "run.tar.zst"])
def test_a_bundle_gives_the_same_document_as_the_logs(tmp_path: Path, case: str, name: str) -> None:
    logs, bundle = str(RECORDINGS / case / "input"), str(tmp_path / name)
    assert main(["bundle", logs, "--output", bundle]) == 0
    assert diagnose([bundle]).to_dict() == diagnose([logs]).to_dict()


def test_a_bundle_can_be_bundled_again(tmp_path: Path) -> None:
    first, second = str(tmp_path / "a.zst"), str(tmp_path / "b")
    main(["bundle", str(RECORDINGS / CASES[1] / "input"), "--output", first])
    assert main(["bundle", first, "--output", second]) == 0
    assert run_folder.read(second) == run_folder.read(first)


def test_the_archive_is_named_after_the_input(in_tmp: Path) -> None:
    assert run_folder.archive_name(["logs/"]) == "logs.paramedic.tar.zst"
    assert run_folder.archive_name(["-"]) == "logs.paramedic.tar.zst"
    assert run_folder.archive_name(["logs/rank*.log", "x"]) == "rank_.log.paramedic.tar.zst"
    assert run_folder.archive_name(["."]) == f"{in_tmp.name}.paramedic.tar.zst"
    assert "/" not in run_folder.archive_name(["/", "a/b"])


def test_sources_that_are_files_get_their_hash(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("x")
    sources = tuple(Source(name, "log") for name in (str(tmp_path / "a.log"), "-", "/dev/zero", str(tmp_path), "a\0"))
    found = run_folder.with_hashes(Run("x", sources=sources))
    assert [source.sha256 is not None for source in found.sources] == [True, False, False, False, False]


# -- writing -------------------------------------------------------------------------------------------------------


def test_a_run_is_never_written_over(tmp_path: Path) -> None:
    run_folder.write(RUN, tmp_path / "run")
    with pytest.raises(ParamedicError, match="exists already"):
        run_folder.write(RUN, tmp_path / "run")
    with pytest.raises(ParamedicError, match="holds a Run already"):
        run_folder.RunWriter(tmp_path / "run")
    (tmp_path / "file").write_text("x")
    with pytest.raises(ParamedicError, match="exists already"):
        run_folder.write(RUN, tmp_path / "file")
    (tmp_path / "empty").mkdir()
    run_folder.write(RUN, tmp_path / "empty")


@PUTS
def test_what_cannot_be_written_leaves_nothing_behind(tmp_path: Path, put: Put, name: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ParamedicError, match="cannot be written"):
        put(RUN, tmp_path / "file" / name)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@PUTS
def test_a_failure_in_the_middle_leaves_nothing_behind(tmp_path: Path, put: Put, name: str) -> None:
    def failing(text: str) -> str:
        if "ValueError" in text:
            raise KeyboardInterrupt
        return text

    with pytest.raises(KeyboardInterrupt):
        put(RUN, tmp_path / name, failing)  # type: ignore[call-arg]
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_replaced_whole_and_links_are_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "report", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    with run_folder.whole(link) as file:
        file.write(b"new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert link.is_symlink()


def test_a_device_is_written_to_not_replaced(tmp_path: Path) -> None:
    with run_folder.whole("/dev/null") as file:
        file.write(b"x")
    assert not Path("/dev/null").is_file()


# -- crashes -------------------------------------------------------------------------------------------------------


def test_an_unfinished_recording_is_readable_at_any_moment(tmp_path: Path) -> None:
    writer = run_folder.RunWriter(tmp_path / "run")
    assert run_folder.read(str(tmp_path / "run")).events == ()
    for number, event in enumerate(RUN.events, 1):
        writer.append(event)
        found = run_folder.read(str(tmp_path / "run"))
        assert found.events == RUN.events[:number]
        assert [s.why for s in found.skipped] == ["the recording was cut off; what was written before is used"]
    writer.finish(RUN)
    assert run_folder.read(str(tmp_path / "run")).skipped == ()


def test_a_cut_at_any_byte_loses_only_the_line_that_was_cut(tmp_path: Path) -> None:
    run_folder.write(RUN, tmp_path / "run")
    file = tmp_path / "run" / "events.jsonl"
    whole = file.read_bytes()
    ends = [n + 1 for n, byte in enumerate(whole) if byte == 10]
    for size in range(len(whole)):
        file.write_bytes(whole[:size])
        found = run_folder.read(str(tmp_path / "run"))
        lines = sum(end <= size + 1 for end in ends)  # the last byte of a line is only its end
        assert found.events == RUN.events[:lines]
        cut = size not in (0, *ends, *(end - 1 for end in ends))
        assert ["the last line was cut off" in s.why for s in found.skipped[1:]] == [True] * cut


def test_damage_in_the_middle_is_counted_not_listed(tmp_path: Path) -> None:
    run_folder.write(RUN, tmp_path / "run")
    file = tmp_path / "run" / "events.jsonl"
    file.write_text("garbage\n" * 1000 + file.read_text() + "{}\n")
    found = run_folder.read(str(tmp_path / "run"))
    assert found.events == RUN.events
    assert found.skipped[1].why == "1001 damaged lines left out, the first is line 1"


def test_a_truncated_archive_gives_what_is_there_or_an_error(tmp_path: Path) -> None:
    path = tmp_path / "run.tar.zst"
    run_folder.pack(RUN, path)
    whole = path.read_bytes()
    for size in range(4, len(whole), 7):
        path.write_bytes(whole[:size])
        try:
            found = run_folder.read(str(path))
        except ParamedicError:
            continue
        assert found.events == RUN.events
        assert "damaged or truncated" in found.skipped[-1].why


# -- strangers' recordings -----------------------------------------------------------------------------------------


def folder_with(folder: Path, **files: object) -> str:
    run_folder.write(RUN, folder / "run")
    for name, content in files.items():
        path = (
            folder
            / "run"
            / {"head": "run.json", "events": "events.jsonl", "facts": "facts.jsonl", "sources": "sources/index.jsonl"}[
                name
            ]
        )
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(folder / "run")


@pytest.mark.parametrize(
    ("head", "says"),
    [
        ("", "no JSON"),
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ([], "not of a Paramedic Run"),
        ({"format": "another-tool", "version": 1}, "not of a Paramedic Run"),
        ({"format": "paramedic-run"}, "version None"),
        ({"format": "paramedic-run", "version": 2}, "version 2; this Paramedic reads version 1: upgrade it"),
        ({"format": "paramedic-run", "version": "1" * 999}, "upgrade"),
    ],
)
def test_what_is_no_run_of_this_version_is_refused(tmp_path: Path, head: object, says: str) -> None:
    with pytest.raises(ParamedicError, match=says):
        run_folder.read(folder_with(tmp_path, head=head))


@pytest.mark.parametrize("size", [10**30, -1, 0, True, "4", 4.5, [], None, 2_000_000])
def test_an_absurd_world_size_is_unknown(tmp_path: Path, size: object) -> None:
    head = {
        "format": "paramedic-run",
        "version": 1,
        "finished": True,
        "world_size": size,
        "frameworks": 3,
        "id": ["x" * 99],
    }
    found = run_folder.read(folder_with(tmp_path, head=head))
    assert (found.world_size, found.frameworks) == (None, ())
    assert len(found.id) <= 64


EVENT: dict[str, Any] = {"source": "x", "seq": 1, "kind": "line", "text": "t"}


@pytest.mark.parametrize(
    "change",
    [
        {"seq": "1"}, {"seq": None}, {"seq": 1.5}, {"seq": True}, {"seq": -1}, {"seq": 10**30}, {"text": None}, {"text": 3},
        {"source": None}, {"kind": []}, {"rank": -1}, {"rank": 10**9}, {"rank": "0"}, {"line": -5}, {"utc_ns": 10**30},
        {"utc_ns": "now"}, {"uncertainty_ns": None}, {"host": 3}, {"attempt": None}, {"fields": None}, {"fields": []},
        {"fields": {"frames": "x"}}, {"fields": {"frames": [1]}}, {"fields": {"types": None}}, {"fields": {"before": {}}},
        {"kind": "exit"}, {"kind": "exit", "fields": {"exitcode": 1}}, {"kind": "exit", "fields": {"exitcode": "1", "pid": 1}},
        {"kind": "exit", "fields": {"exitcode": 10**30, "pid": 1}}, {"fields": {"host": 3}}, {"fields": {"x": [[]]}}, {"more": 1},
    ],
)  # fmt: skip
def test_an_event_of_the_wrong_shape_is_left_out(tmp_path: Path, change: dict[str, object]) -> None:
    lines = json.dumps(EVENT | change) + "\n" + json.dumps(EVENT) + "\n"
    found = run_folder.read(folder_with(tmp_path, events=lines))
    assert [event.text for event in found.events] == ["t"]
    assert found.skipped[-1].why == "1 damaged lines left out, the first is line 1"


def test_what_a_node_tells_of_itself_is_read_back_whole_and_without_secrets(tmp_path: Path) -> None:
    port = {"up": True, "addresses": [{"address": "10.77.0.1", "prefix": 24}, {"token": "hf_" + "a1B2" * 9}]}
    run = Run("x", facts=(Fact("interface data0", port, "job.net.json", host="n1"),))
    run_folder.write(run, tmp_path / "run")
    again = run_folder.read(str(tmp_path / "run"))
    assert not again.skipped and again.facts[0].value["addresses"][0] == port["addresses"][0]  # type: ignore[index]
    assert "a1B2a1B2" not in str(again.facts)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
keys = st.sampled_from(
    ["source", "seq", "kind", "text", "line", "rank", "host", "attempt", "utc_ns", "uncertainty_ns", "time_text"]
)
fields = st.dictionaries(
    st.sampled_from(
        ["exitcode", "pid", "frames", "types", "before", "after", "host", "uncaught", "traceback", "at", "stepless"]
    ),
    values,
    max_size=4,
)
kinds = st.sampled_from(["line", "exit", "traceback", "progress", "last", "?"])


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(kinds, st.dictionaries(keys, values, max_size=2), fields), min_size=1, max_size=6))
def test_no_recording_breaks_the_diagnosis(tmp_path_factory: pytest.TempPathFactory, items: list[Any]) -> None:
    text = "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 10.00 GiB total capacity)"
    events = [EVENT | {"text": text, "kind": kind, "fields": more} | changed for kind, changed, more in items]
    path = folder_with(tmp_path_factory.mktemp("run"), events="".join(json.dumps(event) + "\n" for event in events))
    examine(run_folder.read(path), KNOWLEDGE, PREFILTER, Options())


def test_progress_without_a_line_of_its_own_is_progress(tmp_path: Path) -> None:
    read = {"source": "x", "value": 1}
    facts = [read | {"name": name} for name in ("numbered lines", "trained", "begun anew", "appended")]
    events = [EVENT | {"rank": 0}, EVENT | {"kind": "progress", "seq": 2, "fields": {"at": []}}]
    written = {"facts": facts, "events": events}
    lines = {name: "".join(json.dumps(one) + "\n" for one in ones) for name, ones in written.items()}
    found = run_folder.read(folder_with(tmp_path, **lines))
    assert len(found.facts) == len(facts) and found.of_kind("progress")[0].fields == {"at": []}
    assert examine(found, KNOWLEDGE, PREFILTER, Options()).verdict is None


def test_odd_members_of_an_archive_are_ignored(tmp_path: Path) -> None:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        run_folder._add(
            archive, "run.json", json.dumps({"format": "paramedic-run", "version": 1, "finished": True}).encode()
        )
        run_folder._add(archive, "../../evil", b"x")
        run_folder._add(archive, "/etc/evil", b"x")
        run_folder._add(archive, "events.jsonl", (json.dumps(EVENT) + "\n").encode())
        run_folder._add(archive, "events.jsonl", b"a second one\n")
        link = tarfile.TarInfo("facts.jsonl")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    path = tmp_path / "x.tar.zst"
    path.write_bytes(zstandard.ZstdCompressor().compress(raw.getvalue()))
    found = run_folder.read(str(path))
    assert ([event.text for event in found.events], found.facts) == (["t"], ())
    assert [p.name for p in tmp_path.iterdir()] == ["x.tar.zst"]


def test_a_recording_too_large_to_be_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "_MAX_MEMBER", 100)
    path = folder_with(tmp_path)
    run_folder.pack(RUN, tmp_path / "x.tar.zst")
    for place in (path, str(tmp_path / "x.tar.zst")):
        with pytest.raises(ParamedicError, match="larger than"):
            run_folder.read(place)


def test_other_archives_and_folders_are_no_runs(tmp_path: Path) -> None:
    (tmp_path / "log.zst").write_bytes(zstandard.ZstdCompressor().compress(b'a log about "paramedic-run"'))
    (tmp_path / "cut.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    (tmp_path / "run.json").write_text('{"runs": []}')
    names = [str(tmp_path), *(str(path) for path in tmp_path.iterdir()), "missing", "nul\0", "-", "/dev/zero"]
    assert not any(map(run_folder.is_run, names))


# -- secrets and names ---------------------------------------------------------------------------------------------

SECRETS = ["hf_" + "Q" * 34, "pa55w0rdpa55w0rd", "AKIAIOSFODNN7EXAMPLE"]
PRIVATE = ["alice", "gpu-node-07", "10.11.12.13", "alice@corp.example.org", "fe80::1ff:fe23:4567:890a"]


@pytest.fixture
def private_logs(in_tmp: Path) -> Path:
    logs = in_tmp / "logs" / f"token={SECRETS[0]}"
    logs.mkdir(parents=True)
    lines = [
        f"HF_TOKEN={SECRETS[0]} password={SECRETS[1]} host=gpu-node-07 mail alice@corp.example.org",
        "[rank1]: Traceback (most recent call last):",
        '[rank1]:   File "/home/alice/train.py", line 3, in f',
        f"[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. key {SECRETS[2]}",
        f"gpu-node-07:12:13 [0] NCCL WARN connect to 10.11.12.13<4000> failed : {SECRETS[2]}",
        "[rank0]: RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [fe80::1ff:fe23:4567:890a]:22242",
    ]
    for name in ("console.log", "alice.log"):
        (logs / name).write_text("\n".join(lines) + "\n")
    return in_tmp / "logs"


def content(path: Path) -> bytes:
    if path.is_dir():
        return b"".join(
            str(p.relative_to(path)).encode() + (p.read_bytes() if p.is_file() else b"") for p in path.rglob("*")
        )
    return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(path.read_bytes())).read()


@pytest.mark.parametrize("name", ["run", "run.tar.zst"])
@pytest.mark.parametrize("more", [(), ("--with-logs",)])
def test_secrets_are_in_no_byte_of_a_bundle(private_logs: Path, name: str, more: tuple[str, ...]) -> None:
    assert main(["bundle", str(private_logs), "--output", name, *more]) == 0
    data = content(Path(name))
    assert [secret for secret in SECRETS if secret.encode() in data] == []
    assert b"gpu-node-07" in data


@pytest.mark.parametrize("name", ["run", "run.tar.zst"])
def test_an_anonymous_bundle_names_nobody_and_gives_the_same_verdict(private_logs: Path, name: str) -> None:
    assert main(["bundle", "logs", "--output", name, "--anonymous", "--with-logs"]) == 0
    data = content(Path(name))
    assert [secret for secret in (*SECRETS, *PRIVATE) if secret.encode() in data.replace(b"alice.log", b"")] == []
    plain, anonymous = diagnose(["logs"]).verdict, diagnose([name]).verdict
    assert plain is not None
    assert anonymous is not None
    for what in ("rule", "symptom", "ranks", "confidence", "causes", "fixes"):
        assert getattr(anonymous, what) == getattr(plain, what)


@pytest.mark.parametrize("case", CASES)
def test_anonymity_does_not_change_the_verdict(tmp_path: Path, case: str) -> None:
    logs, bundle = str(RECORDINGS / case / "input"), str(tmp_path / "run")
    main(["bundle", logs, "--output", bundle, "--anonymous"])
    a, b = diagnose([logs]).to_dict()["verdict"], diagnose([bundle]).to_dict()["verdict"]
    for document in (a, b):
        del document["evidence"], document["summary"]
    assert (a["hosts"], b["hosts"]) in (([], []), (["node-01"], ["host-1"]))
    assert json.loads(json.dumps(a).replace("node-01", "host-1")) == b


# -- with the logs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_the_logs_in_a_bundle_can_be_collected_again(tmp_path: Path, case: str) -> None:
    logs, bundle = str(RECORDINGS / case / "input"), tmp_path / "run"
    assert main(["bundle", logs, "--output", str(bundle), "--with-logs"]) == 0
    again, before = diagnose([str(bundle / "sources" / "logs")]), diagnose([logs])
    assert again.verdict is not None
    assert before.verdict is not None
    assert (again.verdict.rule, again.verdict.ranks) == (before.verdict.rule, before.verdict.ranks)
    index = [json.loads(line) for line in (bundle / "sources" / "copies.jsonl").read_text().splitlines()]
    assert all((bundle / entry["copy"]).is_file() and entry["bytes_left_out"] == 0 for entry in index)
    assert diagnose([str(bundle)]).to_dict() == before.to_dict()


def test_a_copy_is_the_end_of_a_long_log_in_whole_lines(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "EACH", 1000)
    monkeypatch.setattr(copies, "_CHUNK", 64)
    Path("a.log").write_text("".join(f"line {n}\n" for n in range(1000)))
    main(["bundle", "a.log", "--output", "run", "--with-logs"])
    copy = Path("run/sources/logs/a.log").read_text()
    assert copy.startswith("line ")
    assert copy.endswith("line 999\n")
    assert 980 <= len(copy) <= 1000
    index = json.loads(Path("run/sources/copies.jsonl").read_text())
    assert index == {
        "source": "a.log",
        "copy": "sources/logs/a.log",
        "bytes_left_out": Path("a.log").stat().st_size - len(copy),
    }


def test_all_copies_together_are_bounded_and_every_log_has_its_share(
    in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "TOTAL", 10_000)
    for rank in range(20):
        Path(f"rank{rank}.log").write_text("a line of the log\n" * 500)
    main(["bundle", "rank*.log", "--output", "run", "--with-logs"])
    sizes = [path.stat().st_size for path in Path("run/sources/logs").iterdir()]
    assert len(sizes) == 20
    assert min(sizes) > 400
    assert sum(sizes) <= 10_000


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("logs/attempt_0/3/stderr.log", "logs/attempt_0/3/stderr.log"),
        ("/var/log/x.log", "var/log/x.log"),
        ("../../x.log", "x.log"),
        ("..\\..\\x.log", "x.log"),
        ("a.tar.gz!/b/c.log.gz", "a.tar.gz_/b/c.log"),
        ("-", "stdin.log"),
        ("/", "stdin.log"),
        (".hidden", "_.hidden"),
        ("train.py", "train.py.log"),
        ("x\0\n\x1b[31m .log", "x____31m_.log"),
        ("a/" * 50 + "x.log", "a/" * 11 + "x.log"),
    ],
)
def test_the_name_of_a_copy_stays_inside(source: str, name: str) -> None:
    assert copies._name(source, set()) == f"sources/logs/{name}"


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(st.text(alphabet="a./\\\0 ~é!", max_size=12), max_size=6))
def test_names_of_copies_never_lead_out_and_never_meet(sources: list[str]) -> None:
    taken: set[str] = set()
    names = [copies._name(source, taken) for source in sources]
    assert len(set(names)) == len(names)
    for name in names:
        assert name.startswith("sources/logs/")
        assert not {"", ".", ".."} & set(name.split("/"))
        assert name.isascii()


def test_logs_of_a_recorded_run_are_not_there_to_be_packed(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_folder.write(RUN, in_tmp / "run")
    assert main(["bundle", "run", "--with-logs"]) == 2
    assert "--with-logs needs the logs themselves" in capsys.readouterr().err


def test_standard_input_cannot_be_copied_but_the_rest_can(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"piped\n")))
    Path("a.log").write_text("x\n")
    assert main(["bundle", "-", "a.log", "--output", "run", "--with-logs"]) == 0
    assert [path.name for path in Path("run/sources/logs").iterdir()] == ["a.log"]


def test_nothing_to_bundle_is_said(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty.log").write_text("")
    assert main(["bundle", "empty.log"]) == 3
    assert "nothing in it could be read as a log" in capsys.readouterr().err
    assert [path.name for path in in_tmp.iterdir()] == ["empty.log"]


def test_an_anonymizer_serves_a_whole_run(tmp_path: Path) -> None:
    run_folder.write(RUN, tmp_path / "run", Anonymizer(run_folder.hosts(RUN)))
    found = run_folder.read(str(tmp_path / "run"))
    assert {found.sources[0].host, found.events[0].host, found.events[1].fields["host"]} == {"host-1"}


def test_a_recorded_run_beside_other_paths_is_one_clear_error(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("step 1 loss 2.0\n")
    run_folder.write(diagnose([str(log)]).run, tmp_path / "run")
    with pytest.raises(ParamedicError, match="name it alone"):
        diagnose([str(log), str(tmp_path / "run")])


# -- a stranger's recording ----------------------------------------------------------------------------------------

SECRET = "hunter2xyz"


def test_a_recording_is_redacted_when_it_is_read(tmp_path: Path) -> None:
    leak = f"password={SECRET}"
    leaking = Run(
        id="abc",
        sources=(Source(f"{leak}.log", "log", host=leak),),
        events=(
            Event(f"{leak}.log", 1, "line", leak, 1, time_text=leak, fields={"before": [leak], "after": ["x", leak]}),
            Event(
                "-", 2, "traceback", leak, 2, fields={"frames": [leak], "types": [leak], "traceback": leak, leak: leak}
            ),
        ),
        facts=(Fact(leak, leak, leak),),
        skipped=(Skipped(leak, leak),),
        frameworks=(leak,),
    )
    run_folder.write(leaking, tmp_path / "run", clean=str)
    assert SECRET in (tmp_path / "run" / "events.jsonl").read_text()
    read = run_folder.read(str(tmp_path / "run"))
    assert SECRET not in repr(read)
    assert len(read.events) == 2 and read.sources[0].id == read.events[0].source


def test_a_recording_is_clipped_when_it_is_read(tmp_path: Path) -> None:
    long = "x y " * 10_000
    event = Event(long, 1, "line", long, 1, host=long, time_text=long, fields={
        "frames": [long] * 1_000, "types": [long] * 1_000, "before": [long] * 100, "after": ["first", *[long] * 100],
        "at": list(range(1_000)), "other": long, **{f"k{n}": n for n in range(1_000)},
    })  # fmt: skip
    run_folder.write(Run("abc", (Source(long, "log"),), (event,)), tmp_path / "run")
    read = run_folder.read(str(tmp_path / "run")).events[0]
    fields = read.fields
    assert len(read.text) == 16_000 and len(read.source) == len(fields["other"]) == 4_000
    assert len(fields["frames"]) == 60 and max(map(len, fields["frames"])) == 750
    assert len(fields["before"]) <= 8 and max(map(len, fields["before"])) == 400
    assert fields["after"][0] == "first" and max(map(len, fields["after"])) == 400
    assert fields["at"][-1] == 999 and len(fields["at"]) == 64 and len(fields) <= 40


@PUTS
def test_a_planted_link_is_not_followed(tmp_path: Path, put: Put, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name beside the target cannot be guessed; where it is there all the same, nothing is written through it."""
    monkeypatch.setattr("secrets.token_hex", lambda size: "00" * size)
    (tmp_path / "victim").mkdir()
    victim = tmp_path / "victim" / "file"
    victim.write_text("precious")
    planted = tmp_path / f".{name}.{'00' * 8}.new"
    planted.symlink_to(victim if name.endswith(".zst") else victim.parent)
    with pytest.raises(ParamedicError, match="cannot be written"):
        put(RUN, tmp_path / name)
    assert victim.read_text() == "precious" and planted.is_symlink()
    assert [path.name for path in victim.parent.iterdir()] == ["file"]


def test_the_name_of_a_file_being_written_is_random(tmp_path: Path) -> None:
    names = set()
    for _ in range(3):
        with run_folder.whole(tmp_path / "out"):
            names |= {path.name for path in tmp_path.iterdir() if path.name != "out"}
    assert len(names) == 3


@pytest.mark.parametrize("more", [(), ("--with-logs",)])
def test_a_secret_in_the_name_of_a_file_is_in_no_output(
    in_tmp: Path, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    (in_tmp / "logs").mkdir()
    for number in range(2):
        (in_tmp / "logs" / f"password={SECRET}{number}.log").write_text(f"CUDA out of memory {number}\n")
    (in_tmp / "logs" / f"password={SECRET}.bin.log").write_bytes(b"\0" * 100)
    (in_tmp / "logs" / f"password={SECRET}link").symlink_to(in_tmp / "logs" / f"password={SECRET}0.log")
    assert main(["bundle", "logs", "-o", "run", *more]) == 0
    run = run_folder.read("run")
    assert len({source.id for source in run.sources}) == 2, "two files stay two sources"
    assert {event.source for event in run.events} == {source.id for source in run.sources}
    if more:
        index = [json.loads(line) for line in (in_tmp / "run" / copies.INDEX).read_text().splitlines()]
        assert [entry["source"] for entry in index] == [source.id for source in run.sources]
    assert not any(SECRET in file.read_text() for file in (in_tmp / "run").rglob("*") if file.is_file())
    main(["diagnose", "logs", "-v"])
    assert SECRET not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["run", "run.tar.zst"])
def test_a_name_that_only_the_last_log_gives_away_is_in_no_byte_of_an_anonymous_bundle(in_tmp: Path, name: str) -> None:
    (in_tmp / "logs").mkdir()
    (in_tmp / "logs" / "a.log").write_text("zebulon started this on quagga\nCUDA out of memory, says zebulon\n")
    (in_tmp / "logs" / "b.log").write_text("cwd /home/zebulon/x, see http://quagga:8080/status\nstep 3\nstep 4\nbye\n")
    assert main(["bundle", "logs", "--output", name, "--anonymous", "--with-logs"]) == 0
    data = content(in_tmp / name)
    assert b"zebulon" not in data and b"quagga" not in data
    assert b"CUDA out of memory, says user-1" in data
