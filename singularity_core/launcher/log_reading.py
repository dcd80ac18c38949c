"""Reads a log from its end, and what is added to it."""

from __future__ import annotations

import os
from pathlib import Path

_BLOCK = 1 << 16
_LONGEST_TAIL = 1 << 24


class LogReader:
    """One file; it may appear later.  Lines come without line ends, with `prefix` before each."""

    def __init__(self, prefix: str, path: str) -> None:
        self._prefix = prefix.encode()
        self._path = Path(path)
        self._offset = 0
        self._partial = b""

    def tail(self, count: int) -> list[bytes]:
        """The last `count` lines that are there now."""
        try:
            with self._path.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                start, content = end, b""
                while start > 0 and content.count(b"\n") <= count and len(content) < _LONGEST_TAIL:
                    block = min(_BLOCK, start)
                    start -= block
                    file.seek(start)
                    content = file.read(block) + content
        except FileNotFoundError:
            return []
        self._offset = end
        lines = content.split(b"\n")
        self._partial = lines.pop()
        return [self._prefix + line for line in lines[len(lines) - min(count, len(lines)) :]]

    def more(self) -> list[bytes]:
        """Lines that were completed since the last look."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(data)
        lines = (self._partial + data).split(b"\n")
        self._partial = lines.pop()
        return [self._prefix + line for line in lines]

    def rest(self) -> list[bytes]:
        """Once nobody writes any more: what is left, with a last line that has no end."""
        lines = self.more()
        last, self._partial = self._partial, b""
        return lines + ([self._prefix + last] if last else [])
