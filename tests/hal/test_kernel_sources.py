"""The committed PTX is what its source compiles to, and asks for no more than it needs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from singularity_core.hal.kernels import build
from singularity_core.hal.types import DType


def test_every_type_has_kernels() -> None:
    """Each element type of the contract has a PTX file with a kernel per operation."""
    for dtype in DType:
        text = (build.HERE / f"reduce_{dtype.value}.ptx").read_text()
        assert set(re.findall(r"\.entry (\w+)\(", text)) == {
            "sg_reduce_sum", "sg_reduce_product", "sg_reduce_min", "sg_reduce_max",
        }  # fmt: skip


def test_ptx_suits_every_target() -> None:
    """The PTX names the oldest version and target that will do, and fuses no multiplication with an
    addition."""
    for path in build.HERE.glob("*.ptx"):
        text = path.read_text()
        assert f".version {build.PTX_VERSION}\n.target sm_{build.TARGET}\n" in text
        assert not re.search(r"\b(fma|mad)\.(rn\.)?f(16|32|64)\b", text), path.name


def test_ptx_is_current() -> None:
    """NVRTC makes the committed files from the committed source."""
    if not Path(build.find_nvrtc()).is_absolute():
        pytest.skip("unavailable: nvidia-cuda-nvrtc is not installed")
    assert build.main(["--check"]) == 0
