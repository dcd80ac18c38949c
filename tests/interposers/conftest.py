"""Programs as ranks: through the installed client, proxy and in-memory device, or, under a sanitizer
(tests/sanitizers.py), through all three as they are built here."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import pytest

from singularity_core.hal.cuda_wheels import header_directory

from ..sanitizers import PREFIX, ROOT, SANITIZER, SLOW, compile_c, sanitizer_options

PROGRAMS = Path(__file__).parent / "programs"
CORE = ROOT / "singularity_core"
LIBRARY = ["-shared", "-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic"]


@dataclass(frozen=True)
class Stack:
    """What stands between a rank and its memory."""

    client: Path
    """Directory of the rank's libcuda.so.1."""
    device: Path
    """The in-memory device's library."""
    proxy: list[str]
    """Command of a proxy that says "ready" on its standard output; the directory to serve and the device's
    library are appended.  It ends when its standard input does."""


def build_stack(out: Path) -> Stack:
    """Client, proxy and device, all under the sanitizer."""
    headers = ["-isystem", str(header_directory())]
    for place in ("client", "device"):
        (out / place).mkdir()
    interposers = ROOT / "interposers"
    client = [*interposers.glob("client/*.c"), *interposers.glob("generated/client*.c")]
    compile_c(out / "client" / "libcuda.so.1", [*client, *CORE.glob("transport/*.c")], *headers, *LIBRARY)
    # generated code, and copies of what programs pass, need no alignment
    device = sorted((ROOT / "backends" / "fake" / "device").glob("*.c"))
    compile_c(out / "device" / "libcuda.so.1", device, *headers, *LIBRARY, "-fno-sanitize=alignment")
    core = [path for path in CORE.glob("*/*.c") if path.parent.name not in ("transport", "box")]
    server = [*core, *interposers.glob("server/*.c")]
    main = [ROOT / "tests" / "proxy" / "programs" / "stub_proxy.c", PROGRAMS / "device_hal.c"]
    compile_c(out / "proxy", [*server, interposers / "generated" / "dispatch.c", *main], *headers)
    return Stack(out / "client", out / "device" / "libcuda.so.1", [*PREFIX, str(out / "proxy")])


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Stack:
    """The installed one, or the sanitized one."""
    if SANITIZER:
        return build_stack(tmp_path_factory.mktemp("stack"))
    device = Path(str(files("singularity_backend_fake") / "lib" / "libcuda.so.1"))
    proxy = [sys.executable, "-P", str(PROGRAMS / "replaying_proxy.py")]
    return Stack(Path(str(files("singularity_core") / "lib" / "rank")), device, proxy)


@dataclass(frozen=True)
class Served:
    """A proxy that serves: programs can be its ranks."""

    stack: Stack
    environment: dict[str, str]
    """Of a rank."""

    def run(self, *command: str, timeout: float, **more: str) -> subprocess.CompletedProcess[str]:
        """A program to its end; the caller looks at the outcome."""
        return subprocess.run(
            [*PREFIX, *command],
            env=self.environment | more,
            capture_output=True,
            text=True,
            timeout=timeout * SLOW,
        )


@contextmanager
def serving(stack: Stack, settings: dict[str, str]) -> Iterator[Served]:
    """A proxy with `settings` in its environment and its ranks'.  It must end in good order: what a sanitizer
    found in it, or a file that it leaves, fails the test."""
    of_device = sanitizer_options(
        asan="detect_leaks=0:use_sigaltstack=0:allow_user_segv_handler=1:handle_sigbus=0"
    )
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory, tempfile.TemporaryFile("w+") as said:
        proxy = subprocess.Popen(
            [*stack.proxy, directory, str(stack.device)],
            env=os.environ | settings | of_device,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        )
        rank = {
            "SINGULARITY_DEVICES": directory,
            "SINGULARITY_RANK": "0",
            "LD_LIBRARY_PATH": str(stack.client),
        }
        try:
            assert proxy.stdout is not None
            assert proxy.stdout.readline() == "ready\n"
            yield Served(stack, os.environ | settings | rank)
            proxy.communicate(timeout=30 * SLOW)
            assert proxy.returncode == 0
            assert os.listdir(directory) == []
        except BaseException as error:
            proxy.kill()
            proxy.communicate()
            said.seek(0)
            error.add_note(f"The proxy ended with {proxy.returncode} and said: {said.read()[-8000:]}")
            raise
