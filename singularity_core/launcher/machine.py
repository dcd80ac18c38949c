"""What of a machine the processes of a job depend on without saying so, and whether another offers it.

Libraries choose code by the processor's features when they are loaded, and do not ask again."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

_CPU_INFO = Path("/proc/cpuinfo")
_X86_INSTRUCTIONS = re.compile(
    r"fpu|mmx|mmxext|fxsr|fxsr_opt|s?sse\w*|pni|avx\w*|amx\w*|fma4?|f16c|bmi[12]|abm|popcnt|tbm|xop|v?aes|v?pclmulqdq"
    r"|sha_ni|sha512|sm[34]|gfni|movbe|adx|rdrand|rdseed|rdpid|rdtscp|xsave\w*|xgetbv1|fsgsbase|cx8|cx16|cmov|lm"
    r"|lahf_lm|3dnow\w*|clflush(?:opt)?|clwb|cldemote|movdiri|movdir64b|serialize|waitpkg|rtm|hle|tsxldtrk|pku|ospke"
    r"|erms|fsrm|fsrs|fsrc|fzrm|user_shstk|lam|syscall"
)
"""Of the flags that Linux shows, those that say what a program may execute."""
_RELEASE = re.compile(r"(\d{1,4})\.(\d{1,4})")


class Machine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine, as far as it matters to processes that run already."""

    architecture: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    kernel: Annotated[str, msgspec.Meta(pattern=r"^\d{1,4}\.\d{1,4}", max_length=128)]
    """Its release."""
    cpu_flags: tuple[str, ...]
    """What its processors can execute, by Linux' names, sorted."""


@dataclass(frozen=True)
class Misfit:
    """Something that a job needs and that is not here."""

    cause: str
    remedy: str


def this_machine() -> Machine:
    """The one that we are on."""
    here = os.uname()
    try:
        flags = instructions(_CPU_INFO.read_text(errors="replace"), here.machine)
    except OSError:  # no /proc: then CRIU will not work, either
        flags = ()
    return Machine(architecture=here.machine, kernel=here.release, cpu_flags=flags)


def instructions(cpu_info: str, architecture: str) -> tuple[str, ...]:
    """What all processors in /proc/cpuinfo can execute."""
    found: set[str] | None = None
    for line in cpu_info.splitlines():
        name, _, values = line.partition(":")
        if name.strip() in ("flags", "Features"):
            flags = set(values.split())
            found = flags if found is None else found & flags
    x86 = architecture in ("x86_64", "i386", "i686")
    return tuple(sorted(flag for flag in found or () if not x86 or _X86_INSTRUCTIONS.fullmatch(flag)))


def machine_misfits(needed: Machine, here: Machine) -> list[Misfit]:
    """What `needed` has and `here` lacks."""
    if here.architecture != needed.architecture:
        return [
            Misfit(
                f"The job ran on {needed.architecture}; this machine is {here.architecture}.",
                "Resume it on a machine of that architecture.",
            )
        ]
    found = []
    missing = [flag for flag in needed.cpu_flags if flag not in here.cpu_flags]
    if missing:
        found.append(
            Misfit(
                f"The processors here lack what the job's processes may use: {_listed(missing)}.",
                "Resume it on a machine whose processors have these features.",
            )
        )
    if _release(here.kernel) < _release(needed.kernel):
        found.append(
            Misfit(
                f"The job ran on Linux {needed.kernel}; here is {here.kernel}, which is older.",
                "Resume it on a machine whose kernel is at least as new.",
            )
        )
    return found


def _release(kernel: str) -> tuple[int, ...]:
    found = _RELEASE.match(kernel)
    return tuple(map(int, found.groups())) if found else ()


def _listed(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
