"""System calls that Python 3.11 lacks."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable

CLONE_NEWTIME = 0x00000080
CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_BIND = 4096
MS_REC = 16384
MS_SLAVE = 1 << 19

_ADDR_NO_RANDOMIZE = 0x0040000
_QUERY_PERSONALITY = 0xFFFFFFFF
_FALLOC_FL_KEEP_SIZE_PUNCH_HOLE = 1 | 2
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> int:
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def unshare(flags: int) -> None:
    """New namespaces for this process, or for its children (pid, time)."""
    _check(_libc.unshare(ctypes.c_int(flags)))


def mount(source: str | bytes, target: str | bytes, kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2)."""
    _check(
        _libc.mount(
            ctypes.c_char_p(os.fsencode(source)),
            ctypes.c_char_p(os.fsencode(target)),
            ctypes.c_char_p(kind.encode() or None),
            ctypes.c_ulong(flags),
            ctypes.c_char_p(data.encode() or None),
        )
    )


def sethostname(name: str) -> None:
    """Python's raises no error that says why."""
    encoded = name.encode()
    _check(_libc.sethostname(ctypes.c_char_p(encoded), ctypes.c_size_t(len(encoded))))


def fix_address_layout() -> None:
    """Programs that this process and its children execute from now on get the same addresses each time."""
    now = _check(_libc.personality(ctypes.c_ulong(_QUERY_PERSONALITY)))
    _check(_libc.personality(ctypes.c_ulong(now | _ADDR_NO_RANDOMIZE)))


def free_pages(descriptor: int, start: int, end: int) -> None:
    """Gives back what a file takes for these bytes, which then are zero; its size stays."""
    _check(
        _libc.fallocate64(
            ctypes.c_int(descriptor),
            ctypes.c_int(_FALLOC_FL_KEEP_SIZE_PUNCH_HOLE),
            ctypes.c_int64(start),
            ctypes.c_int64(end - start),
        )
    )


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def install_filter(instructions: Iterable[bytes]) -> None:
    """Lets a BPF program judge all system calls of this process and of its children from now on.  Takes
    CAP_SYS_ADMIN, and so leaves set-user-id programs as they are."""
    code = list(instructions)
    program = _FilterProgram(len(code), b"".join(code))
    _check(
        _libc.prctl(
            ctypes.c_int(_PR_SET_SECCOMP),
            ctypes.c_ulong(_SECCOMP_MODE_FILTER),
            ctypes.byref(program),
            ctypes.c_ulong(0),
            ctypes.c_ulong(0),
        )
    )


def bpf(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """One instruction: ``struct sock_filter``."""
    return struct.pack("=HBBI", code, if_true, if_false, value)


_IN_MODIFY = 0x00000002


def inotify_open() -> int:
    """An inotify descriptor that does not block."""
    return _check(_libc.inotify_init1(ctypes.c_int(os.O_NONBLOCK | os.O_CLOEXEC)))


def inotify_modified(descriptor: int, path: str | os.PathLike[str]) -> int:
    """Watches for writes to a file; returns the number that its events bear."""
    encoded = ctypes.c_char_p(os.fsencode(path))
    return _check(_libc.inotify_add_watch(ctypes.c_int(descriptor), encoded, ctypes.c_uint32(_IN_MODIFY)))
