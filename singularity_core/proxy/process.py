"""The process around a server: arguments in, readiness out, and an orderly end.

While the server runs, the main thread is in C without the GIL, and no other Python thread exists: a Python
thread that computes would delay the HAL's callbacks by milliseconds.  So nothing here may rely on Python
running: signals reach the server through the interpreter's wake-up descriptor, and the end of the parent
through a pidfd.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from singularity_core.hal import Backend, Device, HalError, Unavailable, Unsupported
from singularity_core.hal.native_table import table_for
from singularity_core.hal.registry import load_backend

PREPARED_LINE: Final = b"prepared\n"
READY_LINE: Final = b"ready\n"
EXIT_USAGE: Final = 2
EXIT_UNAVAILABLE: Final = 69  # EX_UNAVAILABLE: the device or its backend cannot be opened here
STOP_FDS: Final = 4


class ProxyError(Exception):
    """The proxy cannot serve its device.  `cause` says what happened, `remedy` what to do about it."""

    def __init__(self, cause: str, *, remedy: str = "") -> None:
        super().__init__(cause, remedy)
        self.cause = cause
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.cause} {self.remedy}".rstrip()


@dataclass(frozen=True)
class ProxySettings:
    """What one proxy is asked to do."""

    backend: str
    """Name of a registered backend."""
    device: int
    """Ordinal of the device within the backend."""
    directories: tuple[Path, ...]
    """Of each door the existing directory, of mode 0700, for it and its sessions' files: one for each ordinal
    that ranks see and that this device serves."""
    arena_bytes: int = 0
    """Device memory to serve, in bytes; 0: all that the device can back now."""
    ready_fd: int | None = None
    """Descriptor on which ``ready`` and a newline are written once ranks can connect, and that is then
    closed."""
    exchange: Path | None = None
    """Existing directory of mode 0700 that the job's proxies share; None: this is the only one."""
    proxy_index: int = 0
    """Which of them this is."""
    proxy_count: int = 1
    swap_limit: int = 0
    """Host memory for what is swapped out, in bytes; 0: the server's default."""
    slice_wait: float = 0.0
    """Seconds that a rank with nothing to run keeps a device that others want; 0: the server's default."""
    restored: bool = False
    """With `resume_fd`: these sessions come from a checkpoint."""
    resume_fd: int | None = None
    """Takes over the doors and sessions of other proxies: opens the device, says so on `ready_fd`, and waits
    until something comes here: the others have written their sessions.  When it is closed instead: ends."""
    pid_namespace_fd: int = 0
    """Descriptor of the pid namespace that the ranks are in; 0: ours."""


def parse_bytes(text: str) -> int:
    """``"512M"`` as bytes.  Suffixes K, M, G and T are powers of 1024.  ValueError for anything else."""
    factors = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
    number = text.strip().upper().removesuffix("B")
    factor = factors.get(number[-1:], 1)
    value = int(number[:-1] if factor != 1 else number)
    if value < 0:
        raise ValueError(f"{text!r} is negative")
    if value * factor >= 1 << 63:
        raise ValueError(f"{text!r} is more than any machine has")
    return value * factor


def parse_arguments(arguments: Sequence[str] | None = None) -> ProxySettings:
    """The command line as settings; exits with status 2 on a wrong one, as argparse does."""
    parser = argparse.ArgumentParser(
        prog="python -m singularity_core.proxy",
        description="Serves one device to the ranks of one job.  Usually started by singularity-run.",
    )
    option = parser.add_argument
    option("--backend", required=True, help="name of a backend, as singularity-ctl backends lists it")
    option("--device", type=int, required=True, help="ordinal of the device within the backend")
    option(
        "--directory", type=Path, required=True, action="append", metavar="DIR",
        help="private directory (0700) for a door and the files of its sessions; several for several doors",
    )  # fmt: skip
    option("--arena", type=parse_bytes, default=0, help="device memory to serve: bytes, or 512M, 4G")
    option("--ready-fd", type=int, default=None, help="descriptor on which to write 'ready'")
    option(
        "--exchange", type=Path, default=None, help="private directory (0700) that the job's proxies share"
    )
    option("--proxy-index", type=int, default=0, help="which of them this is, from 0")
    option("--proxy-count", type=int, default=1, help="how many share it")
    option(
        "--resume-fd", type=int, default=None, metavar="FD",
        help="take over the doors and sessions of other proxies, once something comes from this descriptor",
    )  # fmt: skip
    option(
        "--restored", action="store_true",
        help="with --resume-fd: doors and sessions come from a checkpoint, memory lies in files beside them",
    )  # fmt: skip
    option("--swap-limit", type=parse_bytes, default=0, help="host memory for what is swapped out")
    option("--slice-wait", type=float, default=0.0, help="seconds that an idle rank keeps a shared device")
    option(
        "--pid-namespace-fd", type=int, default=0, help="descriptor of the ranks' pid namespace, if not ours"
    )
    found = parser.parse_args(arguments)
    if not 0 <= found.proxy_index < found.proxy_count or (found.exchange is None and found.proxy_count > 1):
        parser.error("several proxies need --exchange, and --proxy-index must be below --proxy-count")
    if found.restored and (found.resume_fd is None or not found.pid_namespace_fd):
        parser.error("--restored needs --resume-fd and --pid-namespace-fd")
    return ProxySettings(
        found.backend, found.device, tuple(found.directory), found.arena, found.ready_fd, found.exchange,
        found.proxy_index, found.proxy_count, found.swap_limit, found.slice_wait, found.restored,
        found.resume_fd, found.pid_namespace_fd,
    )  # fmt: skip


def open_driver(backend: Backend) -> Path:
    """The driver-ABI library of the backend; `HalError` when it has none, or none here."""
    backend.require_available()
    library = backend.driver_library()
    if library is None:
        raise Unsupported(
            f"Backend {backend.name!r} has no library with the CUDA driver ABI.",
            remedy="A proxy serves only backends whose driver_library() names one.",
        )
    if not Path(library).is_file():
        raise Unavailable(
            f"The driver library of backend {backend.name!r} is not there: {library}.",
            remedy="Install the backend again, or the driver that it needs.",
        )
    return Path(library)


class StopSources:
    """Descriptors that end the server: a signal, and the parent's end."""

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._sender.setblocking(False)
        self._pidfd = self._watch_parent()
        signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._ignore)

    @staticmethod
    def _ignore(number: int, frame: FrameType | None) -> None:
        """The wake-up descriptor has done what there is to do."""

    @staticmethod
    def _watch_parent() -> int:
        parent = os.getppid()
        if parent == 0:  # started from outside of our pid namespace: nobody to watch
            return -1
        try:
            descriptor = os.pidfd_open(parent)
        except ProcessLookupError:
            raise ProxyError("The process that started this proxy is gone already.") from None
        if os.getppid() != parent:
            os.close(descriptor)
            raise ProxyError("The process that started this proxy is gone already.")
        return descriptor

    def descriptors(self) -> list[int]:
        """What the server watches: readable or hung up means stop."""
        return ([self._receiver.fileno(), self._pidfd] + [-1] * STOP_FDS)[:STOP_FDS]

    def close(self) -> None:
        """Gives signals back to the interpreter."""
        signal.set_wakeup_fd(-1)
        self._receiver.close()
        self._sender.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)


def announce(ready_fd: int | None) -> None:
    """Says that ranks can connect.  Whoever asked may have gone; that is no reason not to serve."""
    if ready_fd is not None:
        with suppress(BrokenPipeError):
            os.write(ready_fd, READY_LINE)
        os.close(ready_fd)


def _await_sessions(ready_fd: int | None, resume_fd: int, stop: StopSources) -> bool:
    """Says that the device is open, and waits until the sessions are there.  False: nobody wants it now."""
    if ready_fd is not None:
        with suppress(BrokenPipeError):
            os.write(ready_fd, PREPARED_LINE)
    sources = [source for source in stop.descriptors() if source >= 0]
    ready, _, _ = select.select([resume_fd, *sources], [], [])
    return ready == [resume_fd] and bool(os.read(resume_fd, 1))


def serve(settings: ProxySettings) -> None:
    """Serves until told to stop, then removes the files that it made.

    Raises `HalError` when the backend or device cannot be opened, `ProxyError` when the server cannot
    start."""
    stop = StopSources()
    try:
        backend = load_backend(settings.backend)
        library = open_driver(backend)
        with backend.open_device(settings.device) as device:
            _serve_device(settings, library, device, stop)
    finally:
        stop.close()


def _serve_device(settings: ProxySettings, library: Path, device: Device, stop: StopSources) -> None:
    from singularity_core._native import ffi, lib

    why: Any = ffi.new("char[256]")
    names = [ffi.new("char[]", os.fsencode(directory)) for directory in settings.directories]
    directories = ffi.new("char *[]", names)
    path = ffi.new("char[]", os.fsencode(library))
    options: Any = ffi.new("struct sg_server_options *")
    options.struct_size = ffi.sizeof("struct sg_server_options")
    options.device = settings.device
    options.directory_count, options.directories = len(names), directories
    options.driver_library = path
    options.hal = ffi.cast("struct sg_hal_table *", table_for(device))
    options.arena_bytes = settings.arena_bytes
    options.stop_fds = stop.descriptors()
    exchange = ffi.new("char[]", os.fsencode(settings.exchange or ""))
    options.exchange = ffi.NULL if settings.exchange is None else exchange
    options.proxy_index, options.proxy_count = settings.proxy_index, settings.proxy_count
    options.swap_limit = settings.swap_limit
    options.slice_wait_ns = int(settings.slice_wait * 1e9)
    options.resumes = 0 if settings.resume_fd is None else 2 if settings.restored else 1
    options.pid_namespace = settings.pid_namespace_fd
    server = lib.sg_server_create(options, why)
    if server == ffi.NULL:
        raise ProxyError(
            f"Device {settings.device} of backend {settings.backend!r} cannot be served: "
            f"{ffi.string(why).decode(errors='replace')}."
        )
    try:
        if settings.resume_fd is not None:
            if not _await_sessions(settings.ready_fd, settings.resume_fd, stop):
                return
            if lib.sg_server_resume(server, why) != 0:
                said = ffi.string(why).decode(errors="replace")
                raise ProxyError(f"The sessions cannot go on here: {said}.")
        announce(settings.ready_fd)
        error = lib.sg_server_run(server)
        if error != 0:
            raise ProxyError(f"The proxy's loop failed: {os.strerror(-error)}.")
    finally:
        lib.sg_server_destroy(server)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command.  0 after an orderly stop; 69 when the device cannot be served here."""
    settings = parse_arguments(arguments)
    try:
        serve(settings)
    except (HalError, ProxyError) as error:
        print(f"singularity proxy: {error}", file=sys.stderr, flush=True)
        return EXIT_UNAVAILABLE
    return 0
