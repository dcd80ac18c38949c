"""With --box a job's output, logs, exit codes and results are those of the same job without."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ..launcher.conftest import Launcher
from ..multirank.generate import programs
from ..multirank.jobs import run_job

SCRIPTS = {
    "prints": """
for i in range(2000): os.write(1 + i % 2, b"%d of %s\\n" % (i, rank))
os.write(1, b"no end")
os.write(2, b"none either")
""",
    "fails": "sys.exit('what happened') if rank == b'1' else time.sleep(60)",
    "is killed": "os.kill(os.getpid(), 11) if rank == b'1' else time.sleep(60)",
    "leaves a child": "subprocess.Popen(['sleep', '60'])\nos.write(1, b'done\\n')",
}
BEGIN = "import os, subprocess, sys, time\nrank = os.environb[b'RANK']\n"
VARIES = r"pid \d+|\d\d:\d\d:\d\d|\d{8}-\d{6}-[0-9a-f]{8}|logs-\w+"
"""From run to run."""


def streams(done: subprocess.CompletedProcess[str]) -> list[Any]:
    """Exit code, and the lines that were written; how ranks' lines mix is left to chance."""
    errors = [re.sub(VARIES, "...", line) for line in done.stderr.splitlines() if "in a box" not in line]
    return [done.returncode, sorted(done.stdout.splitlines()), sorted(errors)]


def logs(folder: Path) -> dict[str, bytes]:
    """Of the ranks."""
    found = {path: path.parent.name for path in folder.rglob("*.log")}
    return {f"{rank}/{path.name}": path.read_bytes() for path, rank in found.items() if rank.isdigit()}


@pytest.mark.parametrize("what", SCRIPTS)
def test_output_logs_and_exit_codes(launcher: Launcher, what: str) -> None:
    """Output with prefixes, log files and the launcher's exit code are the same in the box and outside."""
    script = launcher.script(BEGIN + SCRIPTS[what])
    options = ["--nproc-per-node", "2", "--grace-seconds", "5"]
    kept = [
        launcher.run(*options, "--log-dir", f"logs-{box}", *["--box"] * box, script) for box in (False, True)
    ]
    assert streams(kept[1]) == streams(kept[0])
    assert logs(launcher.folder / "logs-True") == logs(launcher.folder / "logs-False")
    assert len(logs(launcher.folder / "logs-True")) == 4


def test_output_without_logs(launcher: Launcher) -> None:
    """Without --log-dir all output comes through, in order, and more of it than is kept in memory at once."""
    script = launcher.script("import os\nfor i in range(20000): os.write(1, b'%0200d\\n' % i)")
    done = launcher.run("--box", script)
    assert done.returncode == 0, done.stderr
    assert [int(line) for line in done.stdout.splitlines()] == list(range(20000))


@pytest.mark.parametrize(("program", "code"), [("./missing", 127), ("./script.py", 126)])
def test_what_cannot_be_started(launcher: Launcher, program: str, code: int) -> None:
    """A program that is missing or no executable is named with the same message and exit code."""
    launcher.script("")
    inside, outside = (launcher.run(*["--box"] * box, "--no-python", program) for box in (True, False))
    assert inside.returncode == outside.returncode == code
    assert inside.stderr.splitlines()[-1] == outside.stderr.splitlines()[-1]


def test_a_work_directory_in_shared_memory(launcher: Launcher) -> None:
    """A job that starts below /dev/shm finds its directory and logs there, though the box has its own."""
    place = Path(f"/dev/shm/singularity-test-{launcher.folder.name}")
    place.mkdir()
    try:
        launcher.folder = place
        script = launcher.script("import os, pathlib\npathlib.Path('made').touch()\nos.write(1, b'hello\\n')")
        done = launcher.run("--box", "--log-dir", "logs", script)
        assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
        assert (place / "made").exists()
        assert logs(place / "logs")["0/stdout.log"] == b"hello\n"
    finally:
        shutil.rmtree(place)


@pytest.mark.long  # test_control.py has a smaller one
@pytest.mark.usefixtures("box")
def test_ranks_compute_the_same(tmp_path: Path) -> None:
    """Random programs (memory, kernels, streams, events, graphs, host functions, collectives, threads) of two
    ranks that share a device read the same bytes in the box and outside."""
    interpreter = Path(__file__).parent.parent / "multirank" / "programs" / "interpreter.py"

    @settings(
        max_examples=1, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.lists(programs(2), min_size=3, max_size=3))
    def compare(batch: list[dict[str, Any]]) -> None:
        found = []
        for name in ("inside", "outside"):
            folder = tmp_path / name
            folder.mkdir()
            (folder / "programs.json").write_text(json.dumps(batch))
            options = ["--box"] if name == "inside" else []
            run_job(interpreter, str(folder / "programs.json"), str(folder),
                    ranks=2, devices=1, options=options)  # fmt: skip
            found.append([json.loads((folder / f"result.{rank}").read_text()) for rank in range(2)])
        assert found[0] == found[1]

    compare()
