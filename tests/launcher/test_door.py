"""The launcher's view of the door agrees with the C header."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
from pathlib import Path

from singularity_core.launcher.door import Dead, DoorHead, mark_dead

TRANSPORT = Path(__file__).parents[2] / "singularity_core" / "transport"


def test_offsets_are_those_of_the_header(tmp_path: Path) -> None:
    """gcc lays the fields of struct sg_door out where the launcher writes them."""
    names = [name for name, *_ in DoorHead._fields_]
    lines = [f'printf("{name} %zu\\n", offsetof(struct sg_door, {name}));' for name in names]
    source = tmp_path / "offsets.c"
    source.write_text(
        '#include <stddef.h>\n#include <stdio.h>\n#include "layout.h"\n'
        f"int main(void) {{ {''.join(lines)} "
        'printf("PROXY %d\\nJOB %d\\n", SG_DEAD_PROXY, SG_DEAD_JOB); return 0; }\n'
    )
    program = tmp_path / "offsets"
    subprocess.run(["gcc", "-std=c11", f"-I{TRANSPORT}", source, "-o", program], check=True)
    said = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()
    expected = {name: getattr(DoorHead, name).offset for name in names}
    expected |= {why.name: why.value for why in Dead}
    assert {name: int(value) for name, value in zip(said[::2], said[1::2], strict=True)} == expected


def test_mark_dead_writes_one_word(tmp_path: Path) -> None:
    """Only the word `dead` changes."""
    door = tmp_path / "door"
    before = os.urandom(8192)
    door.write_bytes(before)
    assert mark_dead(tmp_path, Dead.PROXY)
    after = door.read_bytes()
    offset = DoorHead.dead.offset
    assert struct.unpack_from("<I", after, offset) == (Dead.PROXY,)
    assert after[:offset] + after[offset + 4 :] == before[:offset] + before[offset + 4 :]


def test_mark_dead_without_a_door(tmp_path: Path) -> None:
    """A proxy that died before it made a door, or before the door had its size, is nothing to mark."""
    assert not mark_dead(tmp_path, Dead.PROXY)
    (tmp_path / "door").write_bytes(b"\0" * (ctypes.sizeof(DoorHead) - 1))
    assert not mark_dead(tmp_path, Dead.PROXY)
