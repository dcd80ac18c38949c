"""The compiler and the device agree on struct sgf_env and on the ABI's number."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from runner import Env
from singularity_backend_fake.ptx.cache import KERNEL_ABI

HEADER = Path(__file__).parents[2] / "backends/fake/device/kernel_abi.h"


def test_offsets_of_the_environment_are_the_headers(tmp_path: Path) -> None:
    """gcc's offsets of every field are those that the emitter has been written for."""
    fields = [name for name, _ in Env._fields_]
    source = tmp_path / "offsets.c"
    prints = "".join(f'printf("%zu\\n", offsetof(struct sgf_env, {name}));' for name in fields)
    source.write_text(
        f'#include <stdio.h>\n#include <stddef.h>\n#include "{HEADER}"\nint main(void) {{ {prints} }}'
    )
    subprocess.run(["gcc", str(source), "-o", str(tmp_path / "offsets")], check=True)
    measured = subprocess.run(
        [str(tmp_path / "offsets")], check=True, capture_output=True, text=True
    ).stdout.split()
    assert [int(n) for n in measured] == [getattr(Env, name).offset for name in fields]
    expected = {
        "lo": 0,
        "hi": 8,
        "shared": 16,
        "shared_bytes": 24,
        "local": 32,
        "local_stride": 40,
        "spill": 48,
        "globals": 56,
        "grid": 64,
        "ctaid": 88,
        "dynamic_shared": 100,
        "outside": 104,
        "fault": 112,
        "barrier": 120,
        "pause": 128,
        "clock": 136,
        "print": 144,
        "smid": 156,
    }
    assert {name: getattr(Env, name).offset for name in expected} == expected


def test_cache_key_holds_the_number_of_the_abi() -> None:
    """An object of another ABI is never taken from the cache."""
    found = re.search(r"#define SGF_KERNEL_ABI (\d+)", HEADER.read_text())
    assert found is not None
    assert int(found[1]) == KERNEL_ABI
