"""Just enough of ELF to ask what the dynamic linker would ask: needed libraries, search paths, symbols."""

from __future__ import annotations

import mmap
import struct

_DYNAMIC, _STRTAB, _SYMTAB, _NEEDED, _RPATH, _RUNPATH, _GNU_HASH, _HASH = 2, 5, 6, 1, 15, 29, 0x6FFFFEF5, 4
_WEAK = 2
MOST_SYMBOLS = 200_000


class NotElf(Exception):  # noqa: N818
    """No 64-bit little-endian ELF file, or a damaged one."""


class Elf:
    """Raises NotElf. All offsets come from the file: every read is bounds-checked by struct or a slice."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            with open(path, "rb") as file:
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self._segments()
            self._dynamic()
        except (OSError, ValueError, struct.error, IndexError) as error:
            raise NotElf(f"{path}: {error}") from None

    def _segments(self) -> None:
        if self.data[:6] != b"\x7fELF\x02\x01":
            raise NotElf(f"{self.path}: no 64-bit little-endian ELF")
        (offset,) = struct.unpack_from("<Q", self.data, 32)
        size, count = struct.unpack_from("<HH", self.data, 54)
        self.loads: list[tuple[int, int, int]] = []
        self.dynamic = (0, 0)
        for index in range(count):
            kind, _, start, address, _, length = struct.unpack_from("<IIQQQQ", self.data, offset + index * size)
            if kind == 1:
                self.loads.append((address, start, length))
            elif kind == _DYNAMIC:
                self.dynamic = (start, length)

    def _dynamic(self) -> None:
        tags: list[tuple[int, int]] = []
        start, length = self.dynamic
        for at in range(start, start + min(length, 1 << 16), 16):
            tag, value = struct.unpack_from("<QQ", self.data, at)
            if tag == 0:
                break
            tags.append((tag, value))
        self.tags = dict(tags)
        self.strings = self._at(self.tags[_STRTAB]) if _STRTAB in self.tags else 0
        self.symbols = self._at(self.tags[_SYMTAB]) if _SYMTAB in self.tags else 0
        self.needed = [self._string(value) for tag, value in tags if tag == _NEEDED]
        self.rpath = self._string(self.tags[_RPATH]) if _RPATH in self.tags else ""
        self.runpath = self._string(self.tags[_RUNPATH]) if _RUNPATH in self.tags else ""

    def _at(self, address: int) -> int:
        for base, start, length in self.loads:
            if base <= address < base + length:
                return address - base + start
        raise NotElf(f"{self.path}: address outside of the file")

    def _string(self, offset: int) -> str:
        start = self.strings + offset
        end = self.data.find(b"\0", start, start + 8192)
        return self.data[start : max(end, start)].decode("utf-8", "replace")

    def undefined(self) -> list[str]:
        """Symbols that somebody else must bring; weak ones may stay away."""
        found = []
        for index in range(1, min(self._count(), MOST_SYMBOLS)):
            name, info, _, section = struct.unpack_from("<IBBH", self.data, self.symbols + index * 24)
            if section == 0 and name and info >> 4 != _WEAK:
                found.append(self._string(name))
        return found

    def _count(self) -> int:
        """The GNU table leaves undefined symbols out: they come first, so its first index is their number at least."""
        if _HASH in self.tags:
            return int(struct.unpack_from("<II", self.data, self._at(self.tags[_HASH]))[1])
        if _GNU_HASH in self.tags:
            return int(struct.unpack_from("<II", self.data, self._at(self.tags[_GNU_HASH]))[1])
        return 0

    def defines(self, name: str) -> bool:
        """As the linker looks it up: Bloom filter, bucket, chain."""
        if _GNU_HASH not in self.tags:
            return False
        table = self._at(self.tags[_GNU_HASH])
        buckets, first, words, shift = struct.unpack_from("<IIII", self.data, table)
        raw, wanted = name.encode(), 5381
        for byte in raw:
            wanted = (wanted * 33 + byte) & 0xFFFFFFFF
        (word,) = struct.unpack_from("<Q", self.data, table + 16 + 8 * (wanted // 64 % max(words, 1)))
        if not (word >> (wanted % 64)) & (word >> ((wanted >> shift) % 64)) & 1:
            return False
        at = table + 16 + 8 * words
        (index,) = struct.unpack_from("<I", self.data, at + 4 * (wanted % max(buckets, 1)))
        chain = at + 4 * buckets
        for number in range(index, index + MOST_SYMBOLS) if index >= first else ():
            (value,) = struct.unpack_from("<I", self.data, chain + 4 * (number - first))
            if value | 1 == wanted | 1 and self._named(number, raw):
                return True
            if value & 1:
                break
        return False

    def _named(self, number: int, raw: bytes) -> bool:
        name, _, _, section = struct.unpack_from("<IBBH", self.data, self.symbols + number * 24)
        start = self.strings + name
        return section != 0 and self.data[start : start + len(raw) + 1] == raw + b"\0"
