"""Logs are read from their end, and followed without losing or repeating a byte."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from singularity_core.launcher import log_reading
from singularity_core.launcher.log_reading import LogReader

chunks = st.lists(st.text(alphabet="ab\n", max_size=12).map(str.encode), max_size=8)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.text(alphabet="ab\n", max_size=60).map(str.encode), chunks, st.integers(0, 5), st.integers(1, 9))
def test_tail_and_follow(tmp_path: Path, before: bytes, later: list[bytes], count: int, block: int) -> None:
    """The tail is the last complete lines; after it, each line comes once, whatever pieces it was written
    in."""
    path = tmp_path / "log"
    path.write_bytes(before)
    reader = LogReader("> ", str(path))
    usual, log_reading._BLOCK = log_reading._BLOCK, block
    try:
        tail = reader.tail(count)
    finally:
        log_reading._BLOCK = usual
    complete = before.split(b"\n")[:-1]
    assert tail == [b"> " + line for line in complete[max(0, len(complete) - count) :]]
    seen = []
    for piece in later:
        with path.open("ab") as file:
            file.write(piece)
        seen += reader.more()
    seen += reader.rest()
    everything = (before + b"".join(later)).split(b"\n")
    expected = everything[len(complete) :]
    assert seen == [b"> " + line for line in (expected if expected[-1] else expected[:-1])]


def test_file_that_comes_later(tmp_path: Path) -> None:
    """A file that is not there yet has no lines."""
    reader = LogReader("", str(tmp_path / "log"))
    assert reader.tail(5) == reader.more() == reader.rest() == []
    (tmp_path / "log").write_bytes(b"one\ntwo")
    assert reader.more() == [b"one"]
    assert reader.rest() == [b"two"]
