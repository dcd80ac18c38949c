"""What a rank in a box sees of the machine, and what it does not."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from singularity_core.box.namespaces import FIRST_PID
from singularity_core.box.trial import ADDRESS

from ..launcher.conftest import Launcher

LOOK = """
import ctypes, errno, json, multiprocessing, os, pathlib, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall(425, 1, None)  # io_uring_setup
io_uring = errno.errorcode[ctypes.get_errno()]
def bind(address):
    with socket.socket() as listener:
        listener.bind((address, 0))
        return True
def reached():
    with socket.socket() as leaving:
        leaving.settimeout(5)
        return leaving.connect_ex(("192.0.2.1", 9)) == 0
seen = {
    "pid": os.getpid(),
    "parent": os.getppid(),
    "processes": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
    "shm": os.listdir("/dev/shm"),
    "hostname": socket.gethostname(),
    "own address": socket.gethostbyname(socket.gethostname()),
    "interfaces": [name for _, name in socket.if_nameindex()],
    "namespaces": {name: os.readlink(f"/proc/self/ns/{name}") for name in "pid mnt ipc uts net time".split()},
    "clock": time.clock_gettime(time.CLOCK_BOOTTIME),
    "fixed": int(pathlib.Path("/proc/self/personality").read_text(), 16) & 0x40000 != 0,
    "object": id(object),
    "hash": hash("a word"),
    "io_uring": io_uring,
    "work directory": os.getcwd(),
    "descriptors": sorted(int(name) for name in os.listdir("/proc/self/fd")),
    "seed": os.environ.get("PYTHONHASHSEED"),
}
pathlib.Path("seen-" + os.environ["RANK"]).write_text(json.dumps(seen))
"""


def look(launcher: Launcher, *options: str) -> list[dict[str, Any]]:
    """What two ranks see."""
    script = launcher.script(LOOK)
    done = launcher.run("--nproc-per-node", "2", "--box", *options, script)
    assert done.returncode == 0, done.stderr
    return [json.loads((launcher.folder / f"seen-{rank}").read_text()) for rank in range(2)]


def outside(name: str) -> str:
    return os.readlink(f"/proc/self/ns/{name}")


def test_a_box_is_a_machine_of_its_own(launcher: Launcher) -> None:
    """A rank sees processes, shared memory, network and System V IPC of its job only; the host name, the work
    directory and the clocks are the machine's; and nothing differs from one run to the next."""
    here = time.clock_gettime(time.CLOCK_BOOTTIME)
    first, second = look(launcher)
    assert first["parent"] == second["parent"] == FIRST_PID
    assert set(first["processes"]) <= {1, FIRST_PID, first["pid"], second["pid"]}
    assert min(first["pid"], second["pid"]) > FIRST_PID
    assert first["shm"] == [f"singularity-{os.getuid()}"]
    assert first["hostname"] == socket.gethostname()
    assert first["own address"] == ADDRESS
    assert first["interfaces"] == ["lo"]
    assert 0 <= first["clock"] - here < 60
    assert first["work directory"] == str(launcher.folder)
    assert first["io_uring"] == "ENOSYS"
    assert first["descriptors"] == [0, 1, 2, 3]  # the last is the listing's own
    for name, inside in first["namespaces"].items():
        assert inside != outside(name), name
        assert inside == second["namespaces"][name]
    assert first["fixed"]
    assert second["fixed"]
    assert first["seed"] == "0"
    again = look(launcher)[0]
    for name in ("object", "hash", "pid"):
        assert again[name] == first[name], name


def test_what_can_be_declined(launcher: Launcher) -> None:
    """--box-network host leaves ranks the machine's network, --box-random-addresses fixes nothing."""
    first, _ = look(launcher, "--box-network", "host", "--box-random-addresses")
    assert first["namespaces"]["net"] == outside("net")
    assert first["namespaces"]["pid"] != outside("pid")
    assert not first["fixed"]
    assert first["seed"] is None


def test_shared_memory_and_semaphores_stay_inside(launcher: Launcher) -> None:
    """Python's shared memory, semaphores and queues work among a rank's children, also spawned ones, and the
    machine's /dev/shm never sees them."""
    script = launcher.script("""
import multiprocessing as mp, os
from multiprocessing import shared_memory
def work(name, lock, queue):
    memory = shared_memory.SharedMemory(name)
    for _ in range(100):
        with lock:
            memory.buf[0] += 1
    memory.close()
    queue.put(os.getpid())
if __name__ == "__main__":
    for kind in ("fork", "spawn"):
        here = mp.get_context(kind)
        memory = shared_memory.SharedMemory("psm_singularity_box_test", create=True, size=1)
        lock, queue = here.Lock(), here.Queue()
        children = [here.Process(target=work, args=(memory.name, lock, queue)) for _ in range(2)]
        for child in children: child.start()
        assert sorted(queue.get() for _ in children) == sorted(child.pid for child in children)
        for child in children: child.join()
        print(kind, memory.buf[0], os.path.exists("/dev/shm/psm_singularity_box_test"))
        memory.close()
        memory.unlink()
""")
    done = launcher.run("--box", script)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["fork 200 True", "spawn 200 True"]
    assert not Path("/dev/shm/psm_singularity_box_test").exists()


@pytest.mark.parametrize("of", ["file", "pipe"])
def test_standard_input_is_the_launchers(launcher: Launcher, of: str) -> None:
    """A rank reads what the launcher is given, from where the launcher is in it."""
    script = launcher.script("import os, sys\nos.write(1, os.read(0, 100))")
    given = "one\ntwo\n"
    if of == "file":
        done = launcher.run("--box", script, standard_input=given)
        assert (done.returncode, done.stdout) == (0, given)
        return
    command = ["sh", "-c", 'printf "one\ntwo\n" | exec "$@"', "sh", *launcher.program]
    launcher.program = command
    done = launcher.run("--box", script)
    assert (done.returncode, done.stdout) == (0, given)


def test_files_are_the_machines(launcher: Launcher) -> None:
    """What a rank writes outside of /dev/shm is there at once, while it runs."""
    script = launcher.script("""
import pathlib, tempfile, time
folder = pathlib.Path(tempfile.mkdtemp(dir="."))
(folder / "made").write_text("by a rank")
pathlib.Path("where").write_text(folder.name)
while (folder / "made").exists(): time.sleep(0.01)
""")
    process = launcher.start("--box", script)
    deadline = time.monotonic() + 60
    while not (launcher.folder / "where").exists() or not (launcher.folder / "where").read_text():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    made = launcher.folder / (launcher.folder / "where").read_text() / "made"
    assert made.read_text() == "by a rank"
    made.unlink()
    assert process.wait(timeout=60) == 0
