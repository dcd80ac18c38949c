"""What the launcher writes and reads in shared files is where gcc puts it for the C side."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

import pytest

from singularity_core.launcher.agent_messages import Counters
from singularity_core.launcher.door import Dead, mark_dead
from singularity_core.launcher.sessions import read_arena_bytes, read_sessions, sum_counters

CORE = Path(__file__).parents[2]
FACTS = {
    "dead": "offsetof(struct sg_door, dead)",
    "door_bytes": "sizeof(struct sg_door)",
    "door_magic": "SG_DOOR_MAGIC",
    "door_protocol": "offsetof(struct sg_door, protocol)",
    "ready": "offsetof(struct sg_door, ready)",
    "total": "offsetof(struct sg_door, device) + offsetof(struct sg_device_info, total_bytes)",
    "page_bytes": "sizeof(struct sg_session_page)",
    "session_magic": "SG_SESSION_MAGIC",
    "page_protocol": "offsetof(struct sg_session_page, protocol)",
    "protocol": "SG_PROTOCOL",
    "rank": "offsetof(struct sg_session_page, rank)",
    "counters": "offsetof(struct sg_session_page, counters)",
    "PROXY": "SG_DEAD_PROXY",
    "JOB": "SG_DEAD_JOB",
    "device_ns": "SG_COUNT_DEVICE_NS",
    "queue_ns": "SG_COUNT_QUEUE_NS",
    "switches": "SG_COUNT_SWITCHES",
    "swapped_bytes": "SG_COUNT_SWAPPED",
    "live_bytes": "SG_COUNT_LIVE_BYTES",
    "launches": "SG_COUNT_LAUNCHES",
    "messages": "SG_COUNT_MESSAGES",
}


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """What a C program says of the headers."""
    folder = tmp_path_factory.mktemp("header")
    lines = "".join(f'printf("%llu\\n", (unsigned long long)({value}));' for value in FACTS.values())
    (folder / "facts.c").write_text(
        '#include <stddef.h>\n#include <stdio.h>\n#include "singularity_core/proxy/server.h"\n'
        f"int main(void) {{ {lines} return 0; }}\n"
    )
    program = folder / "facts"
    subprocess.run(["gcc", "-std=c11", f"-I{CORE}", folder / "facts.c", "-o", program], check=True)
    said = subprocess.run([program], check=True, capture_output=True, text=True).stdout.split()
    return dict(zip(FACTS, map(int, said), strict=True))


def door(header: dict[str, int], *, ready: int = 1, total: int = 77 << 20) -> bytearray:
    """A door as a proxy writes it."""
    content = bytearray(header["door_bytes"])
    struct.pack_into("<Q", content, 0, header["door_magic"])
    struct.pack_into("<I", content, header["door_protocol"], header["protocol"])
    struct.pack_into("<I", content, header["ready"], ready)
    struct.pack_into("<Q", content, header["total"], total)
    return content


def session(header: dict[str, int], rank: int, counters: Counters) -> bytes:
    """A session page as a proxy writes it."""
    content = bytearray(header["page_bytes"])
    struct.pack_into("<Q", content, 0, header["session_magic"])
    struct.pack_into("<I", content, header["page_protocol"], header["protocol"])
    struct.pack_into("<I", content, header["rank"], rank)
    for name in Counters.__struct_fields__:
        struct.pack_into("<Q", content, header["counters"] + 8 * header[name], getattr(counters, name))
    return bytes(content)


ONE = Counters(
    device_ns=1,
    queue_ns=2,
    switches=3,
    swapped_bytes=1 << 40,
    live_bytes=5,
    launches=6,
    messages=(1 << 64) - 1,
)


def test_reasons_are_those_of_the_header(header: dict[str, int]) -> None:
    """The words that say why a door is dead have C's values."""
    assert {why.name: why.value for why in Dead} == {name: header[name] for name in ("PROXY", "JOB")}


def test_mark_dead_writes_one_word(tmp_path: Path, header: dict[str, int]) -> None:
    """Only the word `dead` changes."""
    before = os.urandom(header["door_bytes"] + 100)
    (tmp_path / "door").write_bytes(before)
    assert mark_dead(tmp_path, Dead.PROXY)
    after = (tmp_path / "door").read_bytes()
    offset = header["dead"]
    assert struct.unpack_from("<I", after, offset) == (Dead.PROXY,)
    assert after[:offset] + after[offset + 4 :] == before[:offset] + before[offset + 4 :]


def test_mark_dead_without_a_door(tmp_path: Path, header: dict[str, int]) -> None:
    """A proxy that died before it made a door, or before the door had its size, is nothing to mark."""
    assert not mark_dead(tmp_path, Dead.PROXY)
    (tmp_path / "door").write_bytes(b"\0" * (header["door_bytes"] - 1))
    assert not mark_dead(tmp_path, Dead.PROXY)


def test_counters_are_read_from_where_they_are(tmp_path: Path, header: dict[str, int]) -> None:
    """Each counter is found, also one with all bits set, and a rank's sessions can be added up."""
    (tmp_path / "3.session").write_bytes(session(header, 17, ONE) + b"ring")
    (tmp_path / "40.session").write_bytes(session(header, 2, Counters(switches=9)))
    found = {facts.rank: facts.counters for facts in read_sessions(tmp_path)}
    assert found == {17: ONE, 2: Counters(switches=9)}
    total = sum_counters([ONE, Counters(switches=9, launches=1)])
    assert total is not None
    assert (total.switches, total.launches, total.live_bytes) == (12, 7, 5)
    assert sum_counters([]) is None


def test_arena_is_read_from_the_door(tmp_path: Path, header: dict[str, int]) -> None:
    """The arena's size is known once the door is open."""
    assert read_arena_bytes(tmp_path) is None
    (tmp_path / "door").write_bytes(door(header, ready=0))
    assert read_arena_bytes(tmp_path) is None
    (tmp_path / "door").write_bytes(door(header))
    assert read_arena_bytes(tmp_path) == 77 << 20


def test_what_is_no_session_is_left_out(tmp_path: Path, header: dict[str, int]) -> None:
    """Short files, other content, links, pipes and other names are passed over, without waiting."""
    good = session(header, 1, ONE)
    (tmp_path / "0.session").write_bytes(good[:-1])
    (tmp_path / "1.session").write_bytes(b"x" * len(good))
    (tmp_path / "good").write_bytes(good)
    (tmp_path / "2.session").symlink_to(tmp_path / "good")
    (tmp_path / "x.session").write_bytes(good)
    os.mkfifo(tmp_path / "4.session")
    (tmp_path / "5.session").mkdir()
    assert read_sessions(tmp_path) == []
    assert read_sessions(tmp_path / "nowhere") == []
