"""The installed libnccl.so.2: exports, needs, generated files, and life without our driver client."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from ..sanitizers import ROOT

LIBRARY = Path(str(files("singularity_core"))) / "lib" / "rank" / "libnccl.so.2"
API = ROOT / "interposers" / "generated" / "nccl_api.h"

HEADER = """\
#include <cuda_runtime.h>
#define NCCL_API_MAGIC 0xcafebeef
#define NCCL_VERSION_CODE 29900
typedef struct ncclComm* ncclComm_t;
typedef enum { ncclSuccess = 0 } ncclResult_t;
ncclResult_t  ncclNew(ncclComm_t comm, cudaStream_t stream); // as NCCL writes them
ncclResult_t pncclNew(ncclComm_t comm, cudaStream_t stream);
"""

INITIALISE = """\
import ctypes, os
nccl = ctypes.CDLL("libnccl.so.2")
class Id(ctypes.Structure):
    _fields_ = [("internal", ctypes.c_char * 128)]
unique, comm = Id(), ctypes.c_void_p()
assert nccl.ncclGetUniqueId(ctypes.byref(unique)) == 0
print(nccl.ncclCommInitRank(ctypes.byref(comm), 1, unique, 0))
print(nccl.ncclCommInitAll(ctypes.byref(comm), 1, None))
nccl.ncclGetLastError.restype = ctypes.c_char_p
print(nccl.ncclGetLastError(None).decode())
"""


def generator(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The generator, in the checkout `root`."""
    command = [sys.executable, "-m", "interposers.generator", *arguments]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120)


def test_exports_are_the_headers() -> None:
    """Exactly the functions of the vendor's header are exported, each with its pnccl alias."""
    names = set(re.findall(r"^[\w *]+?\b(nccl\w+)\(", API.read_text(), re.MULTILINE))
    assert len(names) > 70
    listing = subprocess.run(["nm", "-D", "--defined-only", str(LIBRARY)], capture_output=True, text=True)
    assert {line.split()[2] for line in listing.stdout.splitlines()} == names | {f"p{n}" for n in names}


def test_needs_only_libc() -> None:
    """A rank gets nothing but the C library with it, and finds it by the vendor's name."""
    listing = subprocess.run(["readelf", "-d", str(LIBRARY)], capture_output=True, text=True).stdout
    needed = set(re.findall(r"\(NEEDED\).*\[(\S+)\]", listing))
    assert needed - {"ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"} == {"libc.so.6"}
    assert re.findall(r"\(SONAME\).*\[(\S+)\]", listing) == ["libnccl.so.2"]


def test_creations_fail_at_once_without_our_driver_client(tmp_path: Path) -> None:
    """With another libcuda.so.1 every creation fails and says what to do; nothing waits."""
    shutil.copy(LIBRARY, tmp_path)
    subprocess.run(
        ["gcc", "-shared", "-x", "c", "/dev/null", "-o", str(tmp_path / "libcuda.so.1")], check=True
    )
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, "-P", "-c", INITIALISE], env=environment, capture_output=True, text=True, timeout=60
    )
    assert result.stdout.splitlines()[:2] == ["2", "2"], result.stderr
    assert "start the program with singularity-run" in result.stdout
    assert [line.split(": ")[2] for line in result.stderr.splitlines()] == [
        "ncclCommInitRank",
        "ncclCommInitAll",
    ]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the generator reads and writes, and a vendor's header with one function."""
    pytest.importorskip("pycparser")
    shutil.copytree(ROOT / "interposers", tmp_path / "interposers")
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    (tmp_path / "nccl.h").write_text(HEADER)
    return tmp_path


def test_every_function_must_be_annotated(checkout: Path) -> None:
    """A function that only the header or only nccl.toml has is an error that names it."""
    result = generator(checkout, "--nccl-header-dir", str(checkout))
    assert result.returncode == 2
    assert "nccl.toml: ncclGetVersion is not in nccl.h" in result.stderr
    (checkout / "interposers" / "nccl.toml").write_text("refused = []\n[implemented]\n")
    result = generator(checkout, "--nccl-header-dir", str(checkout))
    assert "nccl.toml: ncclNew of nccl.h is missing: implement or refuse it" in result.stderr


def test_a_new_header_is_taken_over(checkout: Path) -> None:
    """Prototypes, version, exports and page come from the header that is given, and are kept."""
    (checkout / "interposers" / "nccl.toml").write_text('refused = []\n[implemented]\nncclNew = "new"\n')
    assert generator(checkout, "--nccl-header-dir", str(checkout)).returncode == 0
    assert generator(checkout, "--check").returncode == 0
    assert "NCCL 2.99.0" in (checkout / "docs" / "reference-supported-nccl.md").read_text()
    exports = (checkout / "interposers" / "generated" / "nccl_exports.c").read_text()
    assert "pncclNew(ncclComm_t comm, cudaStream_t stream)" in exports


def test_a_function_without_its_alias_is_refused(checkout: Path) -> None:
    """NCCL declares every function twice; a header that does not is another kind of header."""
    (checkout / "nccl.h").write_text(HEADER.replace("ncclResult_t pncclNew", "int unrelated"))
    result = generator(checkout, "--nccl-header-dir", str(checkout))
    assert result.returncode == 2
    assert "ncclNew has no pnccl twin" in result.stderr
