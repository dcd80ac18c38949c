"""Makes the box around the calling process: what its ranks see of the machine.

Outside nothing changes: mounts are made in a mount namespace of their own, whose changes do not propagate
out, and which the kernel takes down with the last process in it.  The file system is the machine's: what
ranks write is there at once (decision 0009 says why).  Private are /dev/shm, /proc, /dev/pts, POSIX message
queues, System V IPC, pids, the host name, clocks, and the network unless the plan says otherwise."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from . import system_calls as kernel
from .errors import BoxUnavailableError, step_failed
from .messages import Plan, Share

SHM = Path("/dev/shm")
HOSTS = Path("/etc/hosts")
LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
FIRST_PID = 1000
"""Of the ranks' parent.  Those below are left for the tools in the box of a restored job: what they restore
must get its old numbers."""
_SIOCSIFADDR = 0x8916
_SIOCSIFNETMASK = 0x891C
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1


@contextlib.contextmanager
def _step(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise step_failed(name, error) from error


def prepare_children() -> None:
    """From now on, children of this process are in pid and time namespaces of the box.

    :raises BoxUnavailableError: The system does not let us."""
    with _step("make a time namespace"):
        kernel.unshare(kernel.CLONE_NEWTIME)  # as long as nothing is restored, with the machine's clocks
    with _step("make a pid namespace"):
        kernel.unshare(kernel.CLONE_NEWPID)


def enter(plan: Plan) -> None:
    """Makes the other namespaces around this process, the first of its pid namespace.

    :raises BoxUnavailableError: The system does not let us, or the work directory would be out of sight."""
    with _step("make mount, IPC and UTS namespaces"):
        kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS)
        # What is mounted outside later appears inside as well, and not the other way round.
        kernel.mount("none", "/", flags=kernel.MS_REC | kernel.MS_SLAVE)
    before = os.stat(".")
    for bind in plan.binds:
        with _step(
            f"show {os.fsdecode(bind.outside)} as {os.fsdecode(bind.inside)}, which must be a directory"
        ):
            kernel.mount(os.fsdecode(bind.outside), os.fsdecode(bind.inside), flags=kernel.MS_BIND)
    _mount_shm(plan.shared)
    _mount_others()
    if not plan.restored:
        with _step("set the number of the next process"):
            LAST_PID.write_text(str(FIRST_PID - 1))
    with _step(f"set the host name {plan.hostname!r}"):
        kernel.sethostname(plan.hostname)
    if plan.address is not None:
        _make_network(plan.address)
        _mount_hosts(Path(os.fsdecode(plan.directory)) / "hosts", plan.hostname, plan.address)
    if plan.restored:  # what is restored is where it was
        os.chdir("/")
    else:
        _return_to(os.fsdecode(plan.work_directory), before)


def _mount_shm(shared: list[Share]) -> None:
    with _step(f"mount a {SHM}"):
        size = os.statvfs(SHM)
        flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        kept = {Path(os.fsdecode(share.inside)): os.open(share.outside, flags) for share in shared}
        options = f"mode=1777,size={size.f_blocks * size.f_frsize}"
        kernel.mount("shm", str(SHM), "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)
        for path, descriptor in kept.items():
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            kernel.mount(f"/proc/self/fd/{descriptor}", str(path), flags=kernel.MS_BIND)
            os.close(descriptor)


def _mount_others() -> None:
    strict = kernel.MS_NOSUID | kernel.MS_NOEXEC
    mounted = _mount_points()
    with _step("mount /proc"):
        kernel.mount("proc", "/proc", "proc", strict | kernel.MS_NODEV)
    if "/dev/pts" in mounted:  # ptys of its own, with numbers that nobody else has taken
        with _step("mount /dev/pts"):
            kernel.mount("devpts", "/dev/pts", "devpts", strict, "mode=620,ptmxmode=666,gid=5")
    if "/dev/mqueue" in mounted:
        with _step("mount /dev/mqueue"):
            kernel.mount("mqueue", "/dev/mqueue", "mqueue", strict | kernel.MS_NODEV)


def _mount_points() -> set[str]:
    return {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}


def _make_network(address: str) -> None:
    """One interface, lo, with 127.0.0.1, ::1, and the job's address."""
    with _step("make a network namespace"):
        kernel.unshare(kernel.CLONE_NEWNET)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:

            def set_address(request: int, value: str) -> None:
                packed = struct.pack("16sHH4s16x", b"lo:job", socket.AF_INET, 0, socket.inet_aton(value))
                fcntl.ioctl(any_socket, request, packed)

            fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", _IFF_UP))
            set_address(_SIOCSIFADDR, address)
            set_address(_SIOCSIFNETMASK, "255.255.255.255")


def hosts_with(text: str, hostname: str, address: str) -> str:
    """A hosts file in which `hostname` means `address` only, and everything else what it meant in `text`."""
    lines = [f"{address}\t{hostname}"]
    for line in text.splitlines():
        entry, _, _ = line.partition("#")
        words = entry.split()
        if hostname in words[1:]:
            words = [words[0], *(word for word in words[1:] if word != hostname)]
            line = "\t".join(words) if len(words) > 1 else ""
        if line.strip():
            lines.append(line)
    return "\n".join(lines) + "\n"


def _mount_hosts(copy: Path, hostname: str, address: str) -> None:
    """The machine's own address is not in the job's network: what asks for its host name gets the job's."""
    if not HOSTS.is_file():
        return
    with _step(f"put a file in the place of {HOSTS}"):
        copy.write_text(hosts_with(HOSTS.read_text(errors="surrogateescape"), hostname, address),
                        errors="surrogateescape")  # fmt: skip
        copy.chmod(0o644)
        kernel.mount(str(copy), str(HOSTS), flags=kernel.MS_BIND)


def _return_to(work_directory: str, before: os.stat_result) -> None:
    """Mounts may lie over the old one."""
    try:
        os.chdir(work_directory)
        found = os.stat(".")
        same = (found.st_dev, found.st_ino) == (before.st_dev, before.st_ino)
    except OSError:
        same = False
    if not same:
        raise BoxUnavailableError(
            f"The work directory {work_directory} cannot be seen in the job box, which has its own {SHM}, "
            f"/proc and /dev/pts.",
            remedy="Start the job in another directory, or leave out --box.",
        )
