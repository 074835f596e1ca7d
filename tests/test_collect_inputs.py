"""What the user may name: files, folders, globs, archives, pipes. Hostile ones are survived, and said."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import re
import sys
import tarfile
import threading
import tracemalloc
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paramedic import diagnose
from paramedic.collect import archives, blocks, streams
from paramedic.collect.files import collect
from paramedic.collect.inputs import open_inputs
from paramedic.errors import ParamedicError
from paramedic.model import Skipped
from paramedic.prefilter import Prefilter

LOG = b"".join(b"line %d of a log\n" % n for n in range(5000))

Pack = Callable[[bytes], bytes]
PACKERS: dict[str, Pack] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


def opened(*paths: str | Path) -> tuple[dict[str, bytes], list[Skipped]]:
    skipped: list[Skipped] = []
    found = {item.name: item.stream.read() for item in open_inputs(map(str, paths), skipped)}
    return found, skipped


def tar_of(members: dict[str, bytes], **more: tarfile.TarInfo) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
        for info in more.values():
            archive.addfile(info)
    return raw.getvalue()


def zip_of(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return raw.getvalue()


def put(folder: Path, name: str, data: bytes = b"x\n") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


# -- files, folders, globs -----------------------------------------------------------------------------------------


def test_a_folder_is_walked_in_order_and_says_what_it_passed_over(tmp_path: Path) -> None:
    names = ["b.log", "a/2.log", "a/10.log", "out.txt", "attempt_0/1/error.json", "no_suffix"]
    others = [
        "train.py",
        "model.pt",
        "conf.json",
        ".hidden.log",
        ".git/x.log",
        "__pycache__/x.log",
        "e.tfevents.1.host",
    ]
    for name in (*names, *others, "other.py"):
        put(tmp_path, name)
    found, skipped = opened(tmp_path)
    assert [os.path.relpath(name, tmp_path) for name in found] == [
        "b.log", "no_suffix", "out.txt", "a/10.log", "a/2.log", "attempt_0/1/error.json",
    ]  # fmt: skip
    assert [(s.what, s.why) for s in skipped] == [
        (str(tmp_path), "not logs by their names: 1 × .host, 1 × .json, 1 × .pt, 1 × hidden")
    ]


def test_a_file_named_by_the_user_is_read_whatever_its_name(tmp_path: Path) -> None:
    path = put(tmp_path, ".train.py")
    assert opened(path) == ({str(path): b"x\n"}, [])


def test_globs_are_expanded_and_sorted(tmp_path: Path) -> None:
    for name in ("rank2.log", "rank10.log", "deep/er/rank1.log"):
        put(tmp_path, name)
    found, _ = opened(f"{tmp_path}/**/rank*.log")
    assert [os.path.relpath(name, tmp_path) for name in found] == ["deep/er/rank1.log", "rank10.log", "rank2.log"]


def test_a_name_with_glob_characters_is_a_name_first(tmp_path: Path) -> None:
    path = put(tmp_path, "log[1].txt")
    assert list(opened(path)[0]) == [str(path)]


@pytest.mark.parametrize("name", ["missing.log", "missing/*.log", "nul\0.log", "nul\0*.log", ""])
def test_what_is_missing_is_an_error_before_anything_is_read(tmp_path: Path, name: str) -> None:
    present = put(tmp_path, "present.log")
    items = open_inputs([str(present), name and f"{tmp_path}/{name}"], [])
    with pytest.raises(ParamedicError, match="no such file or folder"):
        next(items)


def test_the_same_file_is_read_once(tmp_path: Path) -> None:
    path = put(tmp_path, "a.log")
    (tmp_path / "latest.log").symlink_to("a.log")
    os.link(path, tmp_path / "z.log")
    found, skipped = opened(path, tmp_path, path)
    assert list(found) == [str(path)]
    assert [s.why for s in skipped] == [f"the same file as {path}"] * 4


def test_links_that_lead_nowhere_or_in_circles_are_skipped(tmp_path: Path) -> None:
    put(tmp_path, "a.log")
    (tmp_path / "loop.log").symlink_to("loop.log")
    (tmp_path / "gone.log").symlink_to("nothing")
    (tmp_path / "circle").symlink_to(tmp_path)
    found, skipped = opened(tmp_path)
    assert [os.path.basename(name) for name in found] == ["a.log"]
    assert {(os.path.basename(s.what), s.why) for s in skipped} == {
        ("circle", "a link to a folder is not followed"),
        ("gone.log", "cannot be read: No such file or directory"),
        ("loop.log", "cannot be read: Too many levels of symbolic links"),
    }
    with pytest.raises(ParamedicError, match="No such file"):
        opened(tmp_path / "gone.log")


def deny(monkeypatch: pytest.MonkeyPatch, denied: Path) -> None:
    """Root may read everything, so the refusal is acted."""
    import builtins

    real = builtins.open

    def refusing(file: object, *args: object, **more: object) -> object:
        if str(file) == str(denied):
            raise PermissionError(13, "Permission denied", str(file))
        return real(file, *args, **more)  # type: ignore[call-overload]

    monkeypatch.setattr("builtins.open", refusing)


def test_an_unreadable_file_is_an_error_when_named_and_skipped_in_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = put(tmp_path, "a.log"), put(tmp_path, "b.log")
    deny(monkeypatch, path)
    with pytest.raises(ParamedicError, match=r"a\.log: cannot be read: Permission denied"):
        opened(path)
    found, skipped = opened(tmp_path)
    assert list(found) == [str(other)]
    assert skipped == [Skipped(str(path), "cannot be read: Permission denied")]


def test_an_unreadable_folder_inside_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "locked/a.log")
    real = os.scandir

    def refusing(path: str) -> object:
        if str(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", refusing)
    assert opened(tmp_path) == ({}, [Skipped(str(tmp_path / "locked"), "cannot be read: Permission denied")])
    with pytest.raises(ParamedicError, match="Permission denied"):
        opened(tmp_path / "locked")


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null", "/dev/full"])
def test_devices_are_refused(device: str) -> None:
    with pytest.raises(ParamedicError, match="neither a file nor a folder"):
        opened(device)


def test_a_pipe_may_be_named_but_is_skipped_in_a_folder(tmp_path: Path) -> None:
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    assert opened(tmp_path) == ({}, [Skipped(str(fifo), "neither a file nor a folder")])
    writer = threading.Thread(target=lambda: fifo.write_bytes(LOG))
    writer.start()
    assert opened(fifo) == ({str(fifo): LOG}, [])
    writer.join()


def test_a_file_that_fails_while_being_read_gives_what_came_before(tmp_path: Path) -> None:
    class Failing(io.RawIOBase):
        done = False

        def readinto(self, buffer: object) -> int:
            if self.done:
                raise OSError(5, "Input/output error")
            self.done = True
            memoryview(buffer)[:5] = b"hello"  # type: ignore[arg-type]
            return 5

    skipped: list[Skipped] = []
    found = [item.stream.read() for item in archives.unpack("x.log", Failing(), skipped)]
    assert found == [b"hello"]
    assert skipped == [Skipped("x.log", "damaged or truncated: Input/output error; what could be read was used")]


@pytest.mark.parametrize("pack", [bytes, *PACKERS.values(), lambda data: tar_of({"a.log": data})])
def test_standard_input_may_be_text_or_packed(pack: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    class Trickle(io.RawIOBase):
        """A slow writer: a few bytes at a time, and no way back."""

        def __init__(self, data: bytes) -> None:
            self.data = io.BytesIO(data)

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: object) -> int:
            return self.data.readinto(memoryview(buffer)[:100])  # type: ignore[arg-type]

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Trickle(pack(LOG)))))
    found, skipped = opened("-")
    assert (list(found.values()), skipped) == ([LOG], [])


def test_a_zip_archive_cannot_come_through_a_pipe(tmp_path: Path) -> None:
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    writer = threading.Thread(target=lambda: fifo.write_bytes(zip_of({"a.log": b"x\n"})))
    writer.start()
    assert opened(fifo) == ({}, [Skipped(str(fifo), "a zip archive cannot be read from a pipe: name the file")])
    writer.join()


def test_closed_standard_input_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(ParamedicError, match="standard input is closed"):
        opened("-")


# -- archives ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", PACKERS)
def test_a_packed_log_is_unpacked_by_its_content_not_its_name(tmp_path: Path, suffix: str) -> None:
    path = put(tmp_path, "train.log", PACKERS[suffix](LOG))
    assert opened(path) == ({str(path): LOG}, [])


@pytest.mark.parametrize("suffix", ["", *PACKERS])
def test_a_tar_archive_is_walked(tmp_path: Path, suffix: str) -> None:
    inner = {"logs/a.log": LOG, "logs/b.log.gz": gzip.compress(LOG), "logs/code.py": b"x", "logs/.hidden": b"x"}
    path = put(tmp_path, f"logs.tar{suffix}", PACKERS.get(suffix, bytes)(tar_of(inner)))
    found, skipped = opened(path)
    assert found == {f"{path}!/logs/a.log": LOG, f"{path}!/logs/b.log.gz": LOG}
    assert skipped == [Skipped(str(path), "not logs by their names: 1 × .py, 1 × hidden")]


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_archive_is_walked(tmp_path: Path, method: int) -> None:
    inner = {"logs/a.log": LOG, "b.log.zst": PACKERS[".zst"](LOG), "code.py": b"x", "folder/": b""}
    path = put(tmp_path, "logs.zip", zip_of(inner, method))
    found, skipped = opened(path)
    assert found == {f"{path}!/logs/a.log": LOG, f"{path}!/b.log.zst": LOG}
    assert skipped == [Skipped(str(path), "not logs by their names: 1 × .py")]


@pytest.mark.parametrize("suffix", PACKERS)
@pytest.mark.parametrize("keep", [0.0, 0.2, 0.7, 0.99])
def test_a_truncated_packed_log_gives_what_is_there(tmp_path: Path, suffix: str, keep: float) -> None:
    noise = b"".join(b"%d\n" % (n * 7919 % 100_003) for n in range(60_000))
    whole = PACKERS[suffix](noise) if suffix != ".zst" else zstandard.ZstdCompressor(level=1).compress(noise)
    path = put(tmp_path, "cut.log", whole[: max(int(len(whole) * keep), 8)])
    found, skipped = opened(path)
    (data,) = found.values()
    assert noise.startswith(data)
    assert len(data) >= (keep - 0.5) * len(noise) or suffix == ".bz2", "bzip2 packs 900 kB at once"
    assert "damaged or truncated" in skipped[0].why


@pytest.mark.parametrize("suffix", ["", *PACKERS])
def test_a_truncated_tar_archive_gives_what_is_there(tmp_path: Path, suffix: str) -> None:
    noise = b"".join(b"%d\n" % (n * 7919 % 100_003) for n in range(60_000))
    whole = PACKERS.get(suffix, bytes)(tar_of({"a.log": LOG, "b.log": noise}))
    path = put(tmp_path, "cut.tar", whole[: int(len(whole) * 0.9)])
    found, skipped = opened(path)
    first, second = found.values() if len(found) == 2 else (*found.values(), b"")
    assert first == LOG or suffix == ".bz2"
    assert noise.startswith(second)
    assert second or suffix == ".bz2", "bzip2 packs 900 kB at once"
    assert any("damaged or truncated" in s.why for s in skipped)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_truncated_zip_archive_gives_what_is_there(tmp_path: Path, method: int) -> None:
    whole = zip_of({"a.log": LOG, "../x.log": LOG, "code.py": LOG, "b.log": LOG}, method)
    path = put(tmp_path, "cut.zip", whole[: whole.rindex(b"b.log", 0, whole.index(b"PK\x01\x02")) + 2000])
    found, skipped = opened(path)
    assert found.pop(f"{path}!/a.log") == LOG
    (rest,) = found.values()
    assert LOG.startswith(rest)
    assert len(rest) > 1000
    assert [s.why for s in skipped] == [
        "damaged or truncated: File is not a zip file; what could be read was used",
        "the name points out of the archive: not read",
        "not logs by their names: 1 × .py",
    ]


def link(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def test_members_that_lead_out_and_links_and_devices_are_not_read(tmp_path: Path) -> None:
    names = ["../x.log", "/etc/x.log", "a/../../x.log", "..\\x.log", "\\abs.log", "good.log"]
    links = {
        "a": link("s.log", tarfile.SYMTYPE, "/etc/passwd"),
        "b": link("h.log", tarfile.LNKTYPE, "good.log"),
        "c": link("d.log", tarfile.CHRTYPE),
        "d": link("f.log", tarfile.FIFOTYPE),
    }
    path = put(tmp_path, "evil.tar", tar_of(dict.fromkeys(names, b"x\n"), **links))
    found, skipped = opened(path)
    assert list(found) == [f"{path}!/good.log"]
    assert [s.why for s in skipped if "out of the archive" in s.why] == [
        "the name points out of the archive: not read"
    ] * 5
    assert [s.why for s in skipped[5:]] == ["a link inside an archive is not followed"] * 2 + [
        "a device inside an archive is not followed"
    ] * 2
    path = put(tmp_path, "evil.zip", zip_of(dict.fromkeys(names, b"x\n")))
    assert list(opened(path)[0]) == [f"{path}!/good.log"]


@pytest.mark.parametrize(
    "inner", [tar_of({"b.log": LOG}), zip_of({"b.log": LOG}), gzip.compress(tar_of({"b.log": LOG}))]
)
def test_an_archive_inside_an_archive_is_not_opened(tmp_path: Path, inner: bytes) -> None:
    for outer in (put(tmp_path, "o.tar", tar_of({"i": inner})), put(tmp_path, "o.zip", zip_of({"i": inner}))):
        assert opened(outer) == ({}, [Skipped(f"{outer}!/i", "an archive inside an archive is not opened")])


def test_an_encrypted_zip_member_is_skipped_by_name(tmp_path: Path) -> None:
    data = bytearray(zip_of({"a.log": LOG, "b.log": LOG}))
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + offset] |= 1
    path = put(tmp_path, "locked.zip", bytes(data))
    found, skipped = opened(path)
    assert list(found) == [f"{path}!/b.log"]
    assert "password required" in skipped[0].why


def test_a_damaged_zip_member_does_not_hide_the_others(tmp_path: Path) -> None:
    data = bytearray(zip_of({"a.log": LOG, "b.log": LOG}))
    data[200:220] = b"\xff" * 20
    found, skipped = opened(put(tmp_path, "bad.zip", bytes(data)))
    assert list(found.values())[1] == LOG
    assert "damaged" in skipped[0].why


@pytest.mark.parametrize("suffix", PACKERS)
def test_a_bomb_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.setattr(streams, "FREE_UNPACKED", 1 << 20)
    bomb = PACKERS[suffix](b"boom\n" * (1 << 20))
    for path in (put(tmp_path, "bomb", bomb), put(tmp_path, "b.tar", tar_of({"bomb.log": bomb}))):
        skipped: list[Skipped] = []
        size = 0
        for item in open_inputs([str(path)], skipped):
            while piece := item.stream.read(1 << 16):
                size += len(piece)
        assert size <= max(1 << 20, 250 * len(bomb))
        assert "suspiciously much" in skipped[0].why


def test_a_bomb_of_many_zip_members_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "FREE_UNPACKED", 1 << 20)
    path = put(tmp_path, "bomb.zip", zip_of({f"{n}.log": b"0" * (1 << 19) for n in range(40)}))
    found, skipped = opened(path)
    assert sum(map(len, found.values())) <= 250 * path.stat().st_size
    assert "suspiciously much" in skipped[0].why


def test_a_bomb_costs_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "FREE_UNPACKED", 32 << 20)
    path = put(tmp_path, "bomb.gz", gzip.compress(gzip.compress(b"boom\n" * (20 << 20))))
    tracemalloc.start()
    for item in open_inputs([str(path)], []):
        while item.stream.read(1 << 20):
            pass
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
def test_a_header_that_asks_for_gigabytes_is_refused(tmp_path: Path, kind: bytes) -> None:
    info = link("pax", kind)
    info.size = 1 << 33
    packer = zstandard.ZstdCompressor().compressobj()
    data = packer.compress(info.tobuf(tarfile.GNU_FORMAT))
    data += b"".join(packer.compress(b"\0" * (1 << 20)) for _ in range(64)) + packer.flush()
    tracemalloc.start()
    found, skipped = opened(put(tmp_path, "x.tar.zst", data))
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()
    assert found == {}
    assert "absurdly large" in skipped[0].why


def test_headers_nested_without_end_are_survived(tmp_path: Path) -> None:
    info = link("pax", tarfile.XHDTYPE)
    info.size = 512
    path = put(tmp_path, "x.tar", (info.tobuf(tarfile.GNU_FORMAT) + b"\0" * 512) * 5000)
    assert opened(path)[0] == {}


def test_an_xz_file_may_not_ask_for_gigabytes_of_dictionary(tmp_path: Path) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 512 << 20}]
    path = put(tmp_path, "x.xz", lzma.LZMACompressor(filters=filters).compress(b"") + b"")
    packer = lzma.LZMACompressor(filters=[{"id": lzma.FILTER_LZMA2, "preset": 0}])
    good = packer.compress(LOG) + packer.flush()
    dictionary = good.index(b"\x21\x01") + 2
    import zlib

    header = bytearray(good[12 : 12 + (good[12] + 1) * 4])
    header[dictionary - 12] = 37  # 1.5 GiB
    header[-4:] = zlib.crc32(header[:-4]).to_bytes(4, "little")
    path.write_bytes(good[:12] + header + good[12 + len(header) :])
    found, skipped = opened(path)
    assert found == {str(path): b""}
    assert "emory" in skipped[0].why


def test_more_files_than_anyone_has_are_not_all_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_FILES", 5)
    for n in range(9):
        put(tmp_path, f"logs/{n}.log")
    path = put(tmp_path, "many.tar", tar_of({f"{n}.log": b"x\n" for n in range(9)}))
    for where in (tmp_path / "logs", path):
        found, skipped = opened(where)
        assert len(found) == 5
        assert skipped == [Skipped(str(where), "more than 5 files: the rest was not read")]


@pytest.mark.parametrize("make", [tar_of, zip_of])
def test_long_and_odd_member_names_are_bounded(tmp_path: Path, make: Callable[[dict[str, bytes]], bytes]) -> None:
    path = put(tmp_path, "x", make({"d/" * 5000 + "a.log": b"x\n", "\x1b[31mred.log": b"x\n"}))
    found, _ = opened(path)
    assert len(found) == 2
    assert max(map(len, found)) < 700


SEEDS = [
    tar_of({"a.log": LOG[:2000], "b.log.gz": gzip.compress(LOG[:2000])}, s=link("s.log", tarfile.SYMTYPE, "x")),
    zip_of({"a.log": LOG[:2000], "b.log": LOG[:3000]}),
    *(pack(LOG[:3000]) for pack in PACKERS.values()),
    *(pack(tar_of({"a.log": LOG[:3000]})) for pack in PACKERS.values()),
]


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.sampled_from(SEEDS),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=6),
    st.integers(0, 12_000),
)
def test_no_damage_to_an_archive_escapes(tmp_path: Path, seed: bytes, flips: list[tuple[int, int]], keep: int) -> None:
    data = bytearray(seed)
    for at, value in flips:
        data[at % len(data)] = value
    opened(put(tmp_path, "x", bytes(data[:keep])))


class Counting(bytes):
    """Counts the bytes that are looked at."""

    looked = 0

    def find(self, sub: Any, start: Any = 0, end: Any = None, /) -> int:
        stop = len(self) if end is None else min(end, len(self))
        found = super().find(sub, start, stop)
        Counting.looked += (stop if found < 0 else found) - start
        return found


@pytest.mark.parametrize(
    ("piece", "ends"), [(b"12%|#\r", 6), (b"12%|#\n", 6), (b"1\r\n", 3), (b"x" * 255 + b"\r\n", 257)]
)
def test_finding_the_pieces_of_a_log_costs_linear_time(
    monkeypatch: pytest.MonkeyPatch, piece: bytes, ends: int
) -> None:
    monkeypatch.setattr(Counting, "looked", 0)
    lines = Counting(piece * 5_000)
    at = pieces = 0
    while at < len(lines):
        end, at = blocks.piece_end(lines, at)
        assert lines[end : end + 1] in b"\r\n"
        pieces += 1
        assert at == pieces * ends
    assert pieces == 5_000
    assert Counting.looked < 600 * pieces


@pytest.mark.parametrize("end", [b"", b"\r", b"\n", b"\r\n", b"\rx", b"\nx\r", b"x\r\ny"])
@pytest.mark.parametrize("size", [0, 1, 254, 255, 256, 257, 1279, 1280, 5000])
def test_a_piece_ends_where_it_always_did(size: int, end: bytes) -> None:
    lines = b"a" * size + end
    stop, following = blocks.piece_end(lines, 0)
    found = re.search(rb"\r\n|\r|\n", lines)
    assert (stop, following) == ((found.start(), found.end()) if found else (len(lines), len(lines) + 1))


@pytest.mark.parametrize("make", [tar_of, zip_of])
@pytest.mark.parametrize("name", ["../{}.log", "{}.py", ".{}"])
def test_members_that_are_refused_count_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[dict[str, bytes]], bytes], name: str
) -> None:
    monkeypatch.setattr(archives, "MAX_FILES", 5)
    path = put(tmp_path, "x", make({name.format(n): b"" for n in range(5)} | {"a.log": b"x\n", "b.log": b"x\n"}))
    found, skipped = opened(path)
    assert found == {}
    assert len(skipped) <= 7 and any("more than 5 files" in left.why for left in skipped)


@pytest.mark.parametrize("make", [tar_of, zip_of])
def test_what_was_skipped_is_named_up_to_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[dict[str, bytes]], bytes]
) -> None:
    monkeypatch.setattr(archives, "MAX_SKIPPED", 3)
    path = put(tmp_path, "x", make({f"../{n}.log": b"x\n" for n in range(9)} | {"a.log": b"x\n"}))
    found, skipped = opened(path)
    assert list(found) == [f"{path}!/a.log"]
    assert len(skipped) == 4 and skipped[-1] == Skipped(str(path), "and 6 more that were not read")


def test_what_was_found_empty_in_a_folder_is_named_up_to_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefilter: Prefilter
) -> None:
    monkeypatch.setattr(archives, "MAX_SKIPPED", 3)
    for n in range(9):
        put(tmp_path, f"logs/{'abcdefghi'[n]}.log", b"")
    put(tmp_path, "logs/z.log", b"x\n")
    run = collect([str(tmp_path / "logs")], prefilter)
    assert len(run.sources) == 1
    assert [left.why for left in run.skipped] == ["empty"] * 3 + ["and 6 more that were not read"]


def test_an_endless_list_of_a_zip_archive_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, "x.zip", zip_of({f"{n}.log": b"x\n" for n in range(9)}))
    monkeypatch.setattr(archives, "MAX_FILES", 5)
    monkeypatch.setattr(zipfile, "ZipFile", None)
    found, skipped = opened(path)
    assert len(found) == 5, "the members themselves still tell"
    assert "more than 5 files" in skipped[0].why


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("packed", [False, True])
def test_utf_16_with_its_mark_is_read(tmp_path: Path, prefilter: Prefilter, encoding: str, packed: bool) -> None:
    """As PowerShell's redirection writes it; also in an archive, and over many blocks."""
    text = "é" * 100 + "\n"
    data = ("\ufeff" + text * 1000 + "[rank3]: CUDA out of memory. Tried to allocate 2.00 GiB\n").encode(encoding)
    (tmp_path / "job.log").write_bytes(gzip.compress(data) if packed else data)
    run = collect([str(tmp_path)], prefilter)
    assert [(event.rank, event.line) for event in run.events if event.kind == "line"] == [(3, 1001)]


def test_utf_16_is_converted_before_secrets_are_looked_for(tmp_path: Path, prefilter: Prefilter) -> None:
    from paramedic.collect.copies import copies
    from paramedic.redact import redact

    secret = "hf_" + "abcdefghijklmnopqrstuvwxyzABCDEF12"
    (tmp_path / "job.log").write_bytes(f"login with {secret}\n".encode("utf-16"))
    run = collect([str(tmp_path)], prefilter)
    packed = b"".join(data for _, data in copies([str(tmp_path)], run, redact))
    assert secret.encode() not in packed
    assert secret.encode("utf-16-le") not in packed
    assert b"login with" in packed


def test_half_a_character_at_the_end_of_utf_16_is_survived(tmp_path: Path, prefilter: Prefilter) -> None:
    (tmp_path / "job.log").write_bytes("CUDA out of memory\n".encode("utf-16") + b"\x41")
    assert len(collect([str(tmp_path)], prefilter).sources) == 1


def test_folders_that_torchrun_left_empty_tell_what_to_ask_of_it(tmp_path: Path) -> None:
    (tmp_path / "none_5w37" / "attempt_0" / "1").mkdir(parents=True)
    skipped: list[Skipped] = []
    assert list(open_inputs([str(tmp_path)], skipped)) == []
    assert skipped == [Skipped(str(tmp_path), "holds no files; torchrun writes to --log-dir only with -r 3 or --tee 3")]


def test_our_own_answers_beside_a_recording_are_not_spoken_of(tmp_path: Path) -> None:
    for name in ("report.html", "report.json", "report.txt", "verdict.json"):
        (tmp_path / name).write_text("{}", "utf-8")
    assert diagnose(tmp_path).skipped == (Skipped(str(tmp_path), "holds reports of Paramedic, and no logs"),)
    (tmp_path / "console.log").write_text("step 1 loss 2.0\n", "utf-8")
    (tmp_path / "rank-0.box").write_bytes(b"paramedic-box 1\n")
    assert diagnose(tmp_path).skipped == ()


RAISED = ["Traceback (most recent call last):", '  File "/srv/train.py", line 3, in <module>', "ValueError: bad"]


def notebook(*outputs: Mapping[str, object]) -> str:
    return json.dumps({"cells": [{"cell_type": "code", "outputs": list(outputs), "source": []}], "nbformat": 4})


def test_of_a_notebook_its_outputs_are_read(tmp_path: Path) -> None:
    printed = {"output_type": "stream", "text": ["step 1 loss 2.5\n", "step 2 loss 2.4"]}
    raised = {"output_type": "error", "traceback": ["\x1b[0;31m---\x1b[0m", *RAISED]}
    (tmp_path / "train.ipynb").write_text(notebook(printed, raised), "utf-8")
    (item,) = open_inputs([str(tmp_path / "train.ipynb")], [])
    assert item.stream.read().decode().splitlines() == [
        "step 1 loss 2.5",
        "step 2 loss 2.4",
        "\x1b[0;31m---\x1b[0m",
        *RAISED,
    ]


@pytest.mark.parametrize(
    "text", ['{"cells": [', '{"cells": 3}', '{"cells": [{"outputs": [[], 1, {"text": 7}]}, null]}']
)
def test_what_only_looks_like_a_notebook_is_read_as_it_is_or_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.ipynb").write_text(text, "utf-8")
    (item,) = open_inputs([str(tmp_path / "a.ipynb")], [])
    assert item.stream.read().decode() in (text, "")


def test_notes_are_read_where_a_folder_holds_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "paste.md").write_text("\n".join(RAISED), "utf-8")
    skipped: list[Skipped] = []
    assert [item.name for item in open_inputs([str(tmp_path)], skipped)] == [str(tmp_path / "paste.md")]
    assert not skipped
    (tmp_path / "train.py").write_text("", "utf-8")
    assert not list(open_inputs([str(tmp_path)], []))
    (tmp_path / "train.py").rename(tmp_path / "train.log")
    assert [item.name for item in open_inputs([str(tmp_path)], [])] == [str(tmp_path / "train.log")]


def test_a_table_of_what_ranks_did_is_read_whatever_its_name(tmp_path: Path, prefilter: Prefilter) -> None:
    rows = "".join(f"{step},{rank},{1.0 + rank}\n" for step in range(8) for rank in range(3))
    (tmp_path / "profile.csv").write_text(f"\ufeffstep,Rank,fwd_ms\n{rows}", "utf-8")
    (tmp_path / "data.csv").write_text("title,rank,price\na,1,2\n", "utf-8")
    run = collect([str(tmp_path)], prefilter)
    assert [Path(source.id).name for source in run.sources] == ["profile.csv"]
    assert {event.fields["rank"] for event in run.of_kind("metric")} == {0, 1, 2}
    assert [skipped.why for skipped in run.skipped] == ["not logs by their names: 1 × .csv"]
