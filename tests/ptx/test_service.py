"""LOAD, COMPILE and the cache, and the service as a process."""

from __future__ import annotations

import os
import signal
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from singularity_backend_fake.ptx.cache import Cache
from singularity_backend_fake.ptx.errors import PtxError
from singularity_backend_fake.ptx.service import Service

PTX = """.version 8.0
.target sm_80
.address_size 64
.const .align 4 .u32 table[2] = {1, 0x10};
.global .align 8 .u64 pointer = table + 4;
.global .align 4 .f32 zeros[16];
.visible .entry add(.param .u64 a, .param .align 4 .b8 s[12], .param .u16 n) .maxntid 64, 2, 1
{
  .reg .b32 %r<4>; .reg .b64 %a<3>;
  .shared .align 16 .b8 tile[256];
  ld.param.u64 %a0, [a]; mov.u32 %r0, %tid.x; mul.wide.u32 %a1, %r0, 4; add.u64 %a1, %a1, %a0;
  red.global.add.u32 [%a1], 1; mov.u32 %r1, tile; st.shared.u32 [%r1], %r0;
  ret;
}
.visible .entry sum(.param .u64 a) { .reg .b64 %a; ld.param.u64 %a, [a]; red.global.add.f32 [%a], 0f3F800000;
  ret; }
"""


@pytest.fixture
def service(cache_dir: Path) -> Service:
    return Service()


def words(answer: str, head: str) -> list[list[str]]:
    return [line.split() for line in answer.splitlines() if line.split()[0] == head]


def test_load_describes_kernels_parameters_and_variables(service: Service) -> None:
    """LOAD lists what the device must know, in the order of kernel_abi.h."""
    answer = service.load(PTX.encode())
    assert words(answer, "target") == [["target", "80", "8.0"]]
    add, total = words(answer, "kernel")
    assert add[1:12] == ["add", "22", "256", "0", "0", "64", "2", "1", "0", "0", "0"]
    assert total[1] == "sum"
    assert total[5] == "1", "a floating-point atomic depends on the order of blocks"
    assert words(answer, "param") == [
        ["param", "0", "8"],
        ["param", "8", "12"],
        ["param", "20", "2"],
        ["param", "0", "8"],
    ]
    assert words(answer, "global") == [
        ["global", "table", "const", "8", "4", "0100000010000000"],
        ["global", "pointer", "global", "8", "8", "0000000000000000"],
        ["global", "zeros", "global", "64", "4", "-"],
    ]
    assert words(answer, "fixup") == [["fixup", "1", "0", "0", "4"]]


def compiled(service: Service, kernel: str = "add", shape: str = "32 1 1") -> str:
    module = words(service.load(PTX.encode()), "module")[0][1]
    return service.compile(f"{module} {kernel} {shape} 0\n".encode())


def test_compile_names_an_object_in_the_private_cache(service: Service, cache_dir: Path) -> None:
    """COMPILE answers with a file below the cache, which nobody else may read."""
    answer = compiled(service)
    path = Path(words(answer, "object")[0][1])
    assert path.read_bytes()[:4] == b"\x7fELF"
    assert cache_dir in path.parents
    assert stat.S_IMODE(cache_dir.stat().st_mode) == 0o700
    assert words(answer, "mode") == [["mode", "block"]]
    assert words(answer, "shared") == [["shared", "256"]]


def test_another_process_finds_what_was_compiled(
    service: Service, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Module and object outlive the service that made them; nothing is compiled anew."""
    answer = compiled(service)
    monkeypatch.setattr(Service, "build", lambda *a: pytest.fail("compiled again"))
    assert compiled(Service()) == answer


def test_objects_of_other_shapes_are_other_objects(service: Service) -> None:
    """The block shape is part of what is compiled for."""
    assert words(compiled(service), "object") != words(compiled(service, shape="64 1 1"), "object")


def test_a_lost_object_is_made_again(service: Service) -> None:
    """Emptying the cache under a running service is no error."""
    path = Path(words(compiled(service), "object")[0][1])
    path.unlink()
    compiled(service)
    assert path.exists()


@pytest.mark.parametrize(
    ("request_text", "status"),
    [
        ("0 add 1 1 1 0", 500),
        ("nonsense", 1),
        ("{module} add 0 1 1 0", 1),
        ("{module} add 2000 1 1 0", 1),
        ("{module} nobody 1 1 1 0", 500),
        ("{module} add 1 1 1 ff", 1),
    ],
)
def test_impossible_compile_requests_are_refused(service: Service, request_text: str, status: int) -> None:
    """A request for what is not there, or is no shape of a block, has a CUresult of its own."""
    module = words(service.load(PTX.encode()), "module")[0][1]
    with pytest.raises(PtxError) as caught:
        service.compile(request_text.format(module=module).encode())
    assert caught.value.status == status


def test_cache_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies in the cache is run as code, so it must be one's own."""
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(Exception, match="another user"):
        Cache(tmp_path)


class Process:
    def __init__(self) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-m", "singularity_backend_fake.ptx", "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def ask(self, verb: int, payload: bytes) -> tuple[int, str]:
        return self.raw(struct.pack("<II", len(payload) + 4, verb) + payload)

    def raw(self, request: bytes) -> tuple[int, str]:
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write(request)
        self.child.stdin.flush()
        length, status = struct.unpack("<II", self.child.stdout.read(8))
        return status, self.child.stdout.read(length - 4).decode()


@pytest.fixture
def process(cache_dir: Path) -> Iterator[Process]:
    found = Process()
    yield found
    found.child.kill()
    found.child.wait()
    for stream in (found.child.stdin, found.child.stdout):
        assert stream is not None
        stream.close()


@pytest.mark.timeout(120)
def test_service_survives_whatever_it_is_asked(process: Process) -> None:
    """Bad requests get an error, and the next good one is served."""
    assert process.raw(struct.pack("<I", 0))[0] == 1
    assert process.raw(struct.pack("<I", 2) + b"\1\2")[0] == 1
    assert process.ask(9, b"")[0] == 1
    assert process.ask(1, b"")[0] == 209
    assert process.ask(1, b"\xff\xfe\0 not PTX")[0] == 218
    assert process.ask(1, b"(" * 100_000)[0] == 218
    assert process.ask(1, PTX.replace("8.0", "99.0").encode())[0] == 222
    assert process.ask(2, b"\xff\xff")[0] == 1
    assert process.ask(1, PTX.encode())[0] == 0


@pytest.mark.timeout(120)
def test_service_ignores_interrupts_and_ends_with_its_input(process: Process) -> None:
    """Ctrl-C is meant for the job; the end of the input ends the service."""
    assert process.ask(1, PTX.encode())[0] == 0
    process.child.send_signal(signal.SIGINT)
    assert process.ask(1, PTX.encode())[0] == 0
    assert process.child.stdin is not None
    process.child.stdin.close()
    assert process.child.wait(60) == 0
