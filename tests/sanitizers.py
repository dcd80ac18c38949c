"""How tests build C code and run it: plain, or under sanitizers.

SINGULARITY_TEST_SANITIZER=address|thread builds with ASan and UBSan, or with TSan; the run_sanitized.sh
beside the tests do both.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SANITIZER = os.environ.get("SINGULARITY_TEST_SANITIZER", "")
PREFIX = ["setarch", "-R"] if SANITIZER == "thread" else []
"""Starts a program: ThreadSanitizer needs addresses as they are without randomisation; see setarch(8)."""
SUPPRESSIONS = Path(__file__).parent / "suppressions"
"""Of sanitizers' reports; each says why."""
SLOW = 4 if SANITIZER else 1
"""Factor for time limits."""

WARNINGS = ["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror"]
FLAGS = {
    "": [],
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
    # the windows move to where ThreadSanitizer allows mappings
    "thread": [
        "-fsanitize=thread",
        "-DSG_DEVICE_BASE=0x1000000000ull",
        "-DSG_DEVICE_WINDOW=(1ull<<34)",
        "-DSG_PINNED_BASE=0x2000000000ull",
        "-DSG_PINNED_WINDOW=(1ull<<26)",
        "-DSGF_PINNED_ZONE=(1ull<<32)",
    ],
}
COMPILE = ["gcc", *WARNINGS, "-O2", "-g", "-fvisibility=hidden", "-fPIC", *FLAGS[SANITIZER], f"-I{ROOT}"]


def compile_c(out: Path, sources: Sequence[Path], *options: str) -> None:
    """One program or library of the given C files; a compiler warning fails the test that needs it."""
    command = [*COMPILE, *map(str, sources), *options, "-o", str(out), "-lpthread", "-ldl", "-lm"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def sanitizer_options(**more: str) -> dict[str, str]:
    """Environment that makes a program fail (66) at the first thing that a sanitizer finds; `more` adds
    options by the sanitizer's name, as in `asan="detect_leaks=0"`."""
    options = {
        "asan": "exitcode=66",
        "lsan": f"suppressions={SUPPRESSIONS / 'leaks.txt'}:print_suppressions=0",
        "tsan": f"exitcode=66:halt_on_error=1:suppressions={SUPPRESSIONS / 'threads.txt'}",
        "ubsan": "print_stacktrace=1",
    }
    for name, text in more.items():
        options[name] += f":{text}"
    return {f"{name.upper()}_OPTIONS": text for name, text in options.items()}
