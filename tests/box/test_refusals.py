"""Where no box can be made, and what cannot be in one, is refused by name, with a remedy."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest

from singularity_core.box.errors import BoxUnavailableError
from singularity_core.box.trial import ADDRESS
from singularity_core.launcher.boxing import box_settings

from ..launcher.conftest import Launcher
from .conftest import MakeBox

_WITHOUT_THE_RIGHT = """import ctypes, os, sys
PR_CAPBSET_DROP, CAP_SYS_ADMIN = 24, 21
ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
_TRY = "from singularity_core.box.trial import try_box\ntry_box()"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give up a right of it")
def test_without_the_right(tmp_path: Path) -> None:
    """A launcher that may not make namespaces (root in a plain container) says so and what helps,
    starts no rank, and leaves nothing."""
    launcher = Launcher(tmp_path)
    script = launcher.script("import pathlib\npathlib.Path('ran').touch()")
    launcher.program = [sys.executable, "-c", _WITHOUT_THE_RIGHT, *launcher.program]
    done = launcher.run("--box", script)
    assert launcher.end() == []
    assert done.returncode == 1
    assert "No job box can be made: cannot make a time namespace: Operation not permitted" in done.stderr
    assert "--privileged" in done.stderr
    assert "leave out --box" in done.stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
def test_without_root() -> None:
    """Somebody who is not root is told that it takes root."""
    become = "import os\nos.setuid(65534)\n"
    done = subprocess.run(
        [sys.executable, "-c", f"from singularity_core.box import trial\n{become}{_TRY}"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "BoxUnavailableError: No job box can be made for user 65534" in done.stderr


def options(**given: object) -> dict[str, object]:
    return {"box": True, "box_network": None, "box_random_addresses": False, **given}


@pytest.mark.parametrize(
    ("given", "address", "said"),
    [
        (
            {"box": False, "box_network": "host"},
            "127.0.0.1",
            "--box-network says what a box is like; add --box",
        ),
        ({"box": False, "box_random_addresses": True}, "127.0.0.1", "--box-random-addresses says"),
        ({}, "192.0.2.1", "192.0.2.1 is not in the network of the job's box"),
    ],
)
def test_options_that_do_not_go_together(given: dict[str, object], address: str, said: str) -> None:
    """Options about a box without one, and a rendezvous outside of the job's network, are refused."""
    with pytest.raises(click.UsageError, match=re.escape(said)):
        box_settings(options(**given), address)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost", ADDRESS, socket.gethostname()])
def test_rendezvous_inside(address: str) -> None:
    """Each name for the job's own node is one in its box, too."""
    assert box_settings(options(), address) is not None


@pytest.mark.parametrize("place", ["/proc/self", "/dev/pts"])
def test_a_work_directory_that_the_box_hides(make_box: MakeBox, place: str) -> None:
    """A box around a work directory that it does not show is refused: ranks would be elsewhere."""
    if not Path(place).is_dir():
        pytest.skip(f"no {place} here")
    with pytest.raises(BoxUnavailableError, match=f"work directory {place} cannot be seen"):
        make_box(work_directory=Path(place))
