"""What /proc says about real processes, and that the guard then refuses what leads out of them."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from ipaddress import IPv6Address
from pathlib import Path

import pytest

from singularity_core.checkpoint.host import TreeGoneError, judge, scan
from singularity_core.checkpoint.host.cgroup import FreezerUnavailableError, cgroup_of
from singularity_core.checkpoint.host.facts import Connection
from singularity_core.checkpoint.host.hold_names import is_abandoned, is_hold_name, new_hold_name
from singularity_core.checkpoint.host.process_tree import (
    ProcessStatus,
    all_processes,
    descendants,
    parse_status,
    read_status,
    tree_of,
)
from singularity_core.checkpoint.host.room import estimate_image, unlinked_bytes
from singularity_core.checkpoint.host.sockets import parse_connections, parse_unix_socket

UNSUPPORTED = 77
PROGRAM = f"""
import ctypes, mmap, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def system_call(*arguments):
    if (result := libc.syscall(*arguments)) < 0:
        print("unsupported", os.strerror(ctypes.get_errno()), flush=True)
        sys.exit({UNSUPPORTED})
    return result
given = int(sys.argv[2])
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """`start(lines, given)` runs Python lines in a session of their own, with one descriptor of ours.

    It returns when they have run; the process then waits to be ended."""
    started: list[subprocess.Popen[str]] = []

    def start_it(lines: str, given: int = -1, *, own_session: bool = True) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-c",
                PROGRAM + lines + "\nprint('ready', flush=True)\nos.read(0, 1)",
                "",
                str(given),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            pass_fds=[] if given < 0 else [given],
            start_new_session=own_session,
        )
        started.append(process)
        assert process.stdout is not None
        said = process.stdout.readline().split()
        if said[:1] == ["unsupported"]:
            pytest.skip(f"needs a kernel that allows it: {' '.join(said[1:])}")
        assert said == ["ready"]
        return process

    yield start_it
    for process in started:
        process.kill()
        process.communicate()


def verdicts(pid: int) -> list[str]:
    """Of the guard, but for its standard input and output, which are pipes of ours."""
    found = [it.what for it in judge(scan(pid))]
    stdio = [it for it in found if re.match(r"descriptor [01] \(pipe:", it)]
    assert len(stdio) == 2
    return [it for it in found if it not in stdio]


US = rf"process {os.getpid()} "


def memfd(stack: contextlib.ExitStack, place: Path) -> int:
    """Memory without a name, held open here."""
    descriptor = os.memfd_create("ours")
    os.truncate(descriptor, mmap.PAGESIZE)
    stack.callback(os.close, descriptor)
    return descriptor


def nameless(stack: contextlib.ExitStack, place: Path) -> int:
    """A deleted file, held open here."""
    file = stack.enter_context((place / "nameless").open("w+b"))
    (place / "nameless").unlink()
    return file.fileno()


def named(stack: contextlib.ExitStack, place: Path) -> int:
    """A file that is mapped here, and not open."""
    with (place / "named").open("w+b") as file:
        file.truncate(mmap.PAGESIZE)
        memory = mmap.mmap(file.fileno(), mmap.PAGESIZE)
    stack.callback(memory.close)
    descriptor = os.open(place / "named", os.O_RDWR)
    stack.callback(os.close, descriptor)
    return descriptor


def one_end(ends: tuple[int, int], stack: contextlib.ExitStack) -> int:
    """The second; both stay open here."""
    for end in ends:
        stack.callback(os.close, end)
    return ends[1]


def unix_socket(stack: contextlib.ExitStack, place: Path) -> int:
    """A pair's one socket."""
    ours, theirs = socket.socketpair()
    return one_end((ours.detach(), theirs.detach()), stack)


def tcp_socket(stack: contextlib.ExitStack, place: Path) -> int:
    """A client's, of a server that is here."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    return one_end((ours.detach(), client.detach()), stack)


MAP = "libc.mmap(None, ctypes.c_size_t(mmap.PAGESIZE), 3, 1, given, ctypes.c_long(0)); os.close(given)"
OUTLETS: dict[str, tuple[Callable[[contextlib.ExitStack, Path], int], str, str]] = {
    "memfd": (memfd, "", rf"descriptor \d+ \(/memfd:ours.* {US}.* has it too"),
    "mapped memfd": (memfd, MAP, rf"mapping at 0x.*/memfd:ours.* {US}.*has it too"),
    "nameless file": (nameless, "", rf"descriptor \d+ \(.*/nameless \(deleted\)\).* {US}"),
    "named file": (named, MAP, rf"mapping at 0x\w+ \(.*/named\) is shared.* {US}"),
    "pipe": (lambda stack, _: one_end(os.pipe(), stack), "", rf"descriptor \d+ \(pipe:.* {US}"),
    "eventfd": (lambda stack, _: one_end((os.dup(0), os.eventfd(0)), stack), "", rf"eventfd.* with {US}"),
    "terminal": (lambda stack, _: one_end(pty.openpty(), stack), "", r"\(/dev/pts/\d+\) is a terminal of"),
    "Unix socket": (unix_socket, "", r"is a Unix socket that is connected to a process outside"),
    "TCP socket": (tcp_socket, "", r"is a TCP connection \(ESTABLISHED\) from 127.0.0.1:\d+ to 127.0"),
}  # fmt: skip


@pytest.mark.parametrize("name", OUTLETS)
def test_what_is_shared_with_this_process_is_refused(name: str, start: Start, tmp_path: Path) -> None:
    """One verdict names the descriptor or mapping by which a process is tied to another."""
    make, lines, wanted = OUTLETS[name]
    with contextlib.ExitStack() as stack:
        process = start(lines, make(stack, tmp_path))
        found = verdicts(process.pid)
    assert len(found) == 1, found
    assert re.search(wanted, found[0]), found
    if name not in ("terminal", "TCP socket", "Unix socket"):  # these do not forget who was there
        assert verdicts(process.pid) == []  # nobody else has it any more


KINDS = {
    "io_uring": ("system_call(425, 4, bytes(120))", r"io_uring\]\) is a kernel object of a kind"),
    "userfaultfd": ("system_call(323, 1)", r"userfaultfd\]\) is a kernel object of a kind"),
    "perf": (
        "import struct; event = struct.pack('=IIQQQQQ', 1, 112, 0, 0, 0, 0, 3 << 5).ljust(112, b'\\0')\n"
        "system_call(298, event, 0, -1, -1, 0)",
        r"perf_event\]\) is a kernel object of a kind",
    ),
    "vsock": (
        "try:\n channel = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)\n"
        f"except OSError as error:\n print('unsupported', error, flush=True); sys.exit({UNSUPPORTED})",
        r"is a socket of the kind (AF_)?VSOCK",
    ),
    "pidfd": ("it = os.pidfd_open(os.getppid())", rf"refers to process {os.getpid()}, which"),
    "System V memory": (
        "libc.shmat.restype = ctypes.c_void_p\nnumber = libc.shmget(0, 4096, 0o600)\n"
        "libc.shmat(number, None, 0)\nlibc.shmctl(number, 0, None)",
        r"/SYSV\w+ \(deleted\)\) is System V",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_what_no_process_can_take_along_is_refused(name: str, start: Start) -> None:
    """Kinds of kernel objects that CRIU does not know are refused when one is open."""
    if name in ("io_uring", "userfaultfd", "perf") and os.uname().machine != "x86_64":
        pytest.skip("needs x86-64: the numbers of system calls")
    lines, wanted = KINDS[name]
    found = verdicts(start(lines).pid)
    assert found
    assert all(re.search(wanted, it) for it in found), found


def test_a_process_without_ties_is_carried(start: Start) -> None:
    """Threads, children and what they share among themselves make no verdict."""
    lines = (
        "import select, threading\n"
        "threading.Thread(target=lambda: os.read(os.pipe()[0], 1), daemon=True).start()\n"
        "shared, event, poll = mmap.mmap(-1, mmap.PAGESIZE), os.eventfd(0), select.epoll()\n"
        "left, right = socket.socketpair()\nlistener = socket.create_server(('127.0.0.1', 0))\n"
        "end, held = os.pipe()\n"
        "if os.fork() == 0: os.close(held); os.read(end, 1); os._exit(0)"
    )
    process = start(lines)
    found = judge(scan(process.pid))
    assert all(re.match(r"descriptor [01] \(pipe:", it.what) for it in found), found
    assert len(found) == 4


def test_a_session_of_another(start: Start) -> None:
    """A child without its parent, who leads its session and its group, is refused for both."""
    parent = start("if os.fork() == 0: os.read(0, 1); os._exit(0)")
    (child,) = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    found = verdicts(int(child))
    for kind in ("session", "process group"):
        assert f"its {kind} is led by process {parent.pid}, which is not part of the job" in found


def test_a_file_that_lost_its_first_name(start: Start, tmp_path: Path) -> None:
    """One on a disk, open or mapped, that has another name is refused: CRIU would want it back where the dump
    was made.  One that has no name at all is carried."""
    if os.statvfs(tmp_path).f_fsid == os.statvfs("/dev/shm").f_fsid:
        pytest.skip("needs temporary files on a disk")
    lines = f"""
import mmap
for name in ("open", "mapped", "nameless"):
    file = open("{tmp_path}/" + name, "w+b")
    file.write(b"x" * mmap.PAGESIZE)
    file.flush()
    if name != "nameless":
        os.link(file.name, file.name + ".other")
    os.unlink(file.name)
    if name == "open":
        kept = file
    elif name == "mapped":
        memory = mmap.mmap(file.fileno(), mmap.PAGESIZE)
    else:
        also_kept = file
    if name == "mapped":
        file.close()
        memory[0]
"""
    found = verdicts(start(lines).pid)
    for what in (r"descriptor \d+ \(.*/open \(deleted\)\)", r"the mapping at \S+ \(.*/mapped \(deleted\)\)"):
        assert any(re.match(what + " lost the name", it) for it in found), found
    assert not any("nameless" in it for it in found), found


def test_a_traced_process(start: Start) -> None:
    """A debugger is named."""
    process = start("")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if libc.ptrace(0x4206, process.pid, None, None) != 0:  # PTRACE_SEIZE
        pytest.skip(f"needs the right to trace: {os.strerror(ctypes.get_errno())}")
    assert verdicts(process.pid) == [f"process {os.getpid()} traces it"]


def test_a_tree_that_has_ended_is_no_tree(start: Start) -> None:
    """Neither a zombie nor a number that nobody has can be checkpointed."""
    process = start("")
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    for pid in (process.pid, 2**22 + 1):
        with pytest.raises(TreeGoneError, match=f"{pid}.*has ended"):
            scan(pid)


def test_the_estimate_covers_what_is_dumped(start: Start) -> None:
    """Memory that was written counts, shared memory without a name once for all processes, files by size."""
    lines = (
        "own = bytearray(b'x') * (32 << 20); shared = mmap.mmap(-1, 64 << 20)\n"
        "import tempfile; file = tempfile.TemporaryFile(); file.truncate(5 << 20)\n"
        "end, held = os.pipe()\n"
        "if os.fork() == 0: os.close(held); os.read(end, 1); os._exit(0)"
    )
    process = start(lines)
    empty = estimate_image(start("").pid)
    grown = estimate_image(process.pid) - empty
    assert (2 * 32 + 64) << 20 <= grown < (2 * 32 + 64 + 40) << 20
    assert unlinked_bytes(process.pid) == 5 << 20


def status(pid: int, parent: int, state: str = "S") -> ProcessStatus:
    """Of a process of which only this matters."""
    return ProcessStatus(pid, "x", state, parent, pid, pid, 0, 0)


def test_a_name_can_be_anything() -> None:
    """The kernel does not quote the name of a process."""
    fields = "S 10 20 30 34816 -1 " + " ".join(["0"] * 13) + " 777 0"
    found = parse_status(f"4711 (a) S 1 (b) {fields}")
    assert found == ProcessStatus(4711, "a) S 1 (b", "S", 10, 20, 30, 34816, 777)


def test_descendants_come_after_their_parents() -> None:
    """In whatever order they are listed; strangers, and trees whose root is not there, are left out."""
    listed = [status(7, 5), status(5, 3), status(3, 1), status(4, 3), status(9, 8), status(1, 0)]
    assert [it.pid for it in descendants(listed, 3)] == [3, 5, 4, 7]
    assert descendants(listed, 8) == []
    assert [it.pid for it in descendants([status(1, 0), status(0, 0)], 0)] == [0, 1]


def test_this_process_is_in_its_tree(start: Start) -> None:
    """A child is found with its parent, name and session."""
    process = start("")
    [mine] = tree_of(process.pid)
    assert (mine.parent, mine.session, mine.group) == (os.getpid(), process.pid, process.pid)
    assert all_processes()[process.pid].started == mine.started
    assert process.pid in {it.pid for it in tree_of(os.getpid())}
    assert read_status(2**22 + 1) is None


def test_the_name_of_a_hold_says_whether_it_is_abandoned(start: Start) -> None:
    """It is as soon as its keeper is dead, and never for another namespace's."""
    process = start("")
    name = new_hold_name(process.pid)
    assert is_hold_name(name)
    assert not is_hold_name(f"{name}x")
    assert not is_abandoned(name)
    foreign = re.sub(r"(?<=hold-)\d+", "1", name)
    reused = re.sub(r"\d+(?=-\w+$)", "1", name)
    assert is_abandoned(reused)
    process.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert is_abandoned(name)
    assert not is_abandoned(foreign)
    assert not is_abandoned("singularity-hold-of-somebody")


@pytest.mark.parametrize(
    ("mounts", "cgroup", "found"),
    [
        ("30 1 0:25 / {m} rw - cgroup2 cgroup2 rw", "0::/a/b", "a/b"),
        ("30 1 0:25 /a {m} rw shared:4 - cgroup2 cgroup2 rw", "1:cpu:/z\n0::/a/b", "b"),
        ("30 1 0:25 /a {m} rw - cgroup2 cgroup2 rw", "0::/ab", None),
        ("30 1 0:25 / {m} rw - cgroup cgroup rw", "0::/a/b", None),
        ("30 1 0:25 / {m} rw - cgroup2 cgroup2 rw", "0::/../b", None),
        ("30 1 0:25 / {m} rw - cgroup2 cgroup2 rw", "0::/gone", None),
        ("30 1 0:25 / {m} rw - cgroup2 cgroup2 rw", "1:cpu:/a/b", None),
    ],
)
def test_where_a_cgroup_is(tmp_path: Path, mounts: str, cgroup: str, found: str | None) -> None:
    """The directory follows from the mount and the path, also where only a part is mounted."""
    mount = tmp_path / "mount"
    for folder in ("a/b", "b", "ab"):
        (mount / folder).mkdir(parents=True)
    for pid, name, text in (("self", "mountinfo", mounts.format(m=mount)), ("4711", "cgroup", cgroup)):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / name).write_text(f"{text}\n")
    if found is None:
        with pytest.raises(FreezerUnavailableError):
            cgroup_of(4711, tmp_path)
    else:
        assert cgroup_of(4711, tmp_path) == mount / found


TCP_TABLE = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt uid timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 555 1
   1: 0100007F:1F90 0100007F:D431 01 00000000:0000002A 00:00000000 00000000     0        0 556 1
"""
TCP6_TABLE = """  sl  local_address remote_address st
   0: 0000000000000000FFFF00000100007F:1F90 00000000000000000000000001000000:0050 0C 0:0 0:0 0 0 0 7 1
   1: 00000000000000000000000001000000:0050 00000000000000000000000001000000:0051 63 0:0 0:0 0 0 0 8 1
"""


@pytest.mark.skipif(sys.byteorder == "big", reason="needs a little-endian machine: the table is of one")
def test_the_table_of_connections() -> None:
    """Addresses, ports, states and inodes as the kernel prints them."""
    assert list(parse_connections(TCP_TABLE)) == [
        Connection(555, ("127.0.0.1", 8080), ("0.0.0.0", 0), "LISTEN"),
        Connection(556, ("127.0.0.1", 8080), ("127.0.0.1", 54321), "ESTABLISHED", 42),
    ]
    assert list(parse_connections(TCP6_TABLE)) == [
        Connection(7, (str(IPv6Address("::ffff:127.0.0.1")), 8080), ("::1", 80), "NEW_SYN_RECV"),
        Connection(8, ("::1", 80), ("::1", 81), "state 99"),
    ]


def test_the_answer_about_a_unix_socket() -> None:
    """The peer is one of several attributes, each padded to words; one that is cut off is none."""
    head = bytes(4) + (4711).to_bytes(4, sys.byteorder) + bytes(8)

    def attribute(kind: int, data: bytes) -> bytes:
        size = (4 + len(data)).to_bytes(2, sys.byteorder)
        return size + kind.to_bytes(2, sys.byteorder) + data + bytes(-len(data) % 4)

    peer = attribute(2, (42).to_bytes(4, sys.byteorder))
    assert parse_unix_socket(head + attribute(0, b"name!") + peer) == (4711, 42)
    assert parse_unix_socket(head) == (4711, 0)
    assert parse_unix_socket(head + bytes(4)) == (4711, 0)
