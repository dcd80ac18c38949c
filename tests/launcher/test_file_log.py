"""The log of files of a job, which its ranks and their children keep."""

from __future__ import annotations

import json
from pathlib import Path

from singularity_core.checkpoint.files import log_changes
from singularity_core.launcher.settings import FILE_LOG_VARIABLE

from .conftest import Launcher
from .test_proxies import SMALL

WRITES = """
import os, subprocess, sys, tempfile
rank = os.environ["RANK"]
os.chdir(sys.argv[1])
open(f"by-rank-{rank}", "w").close()
subprocess.run(["sh", "-c", 'echo 1 >"by-shell-$0"; rm "old-$0"', rank])
with open(os.environ["SINGULARITY_FILE_LOG"], "rb") as log, open(f"log-{rank}", "wb") as copy:
    copy.write(log.read())
"""


def test_ranks_and_their_children_note_what_they_change(launcher: Launcher, tmp_path: Path) -> None:
    """What a rank and the programs that it starts write and remove is in the log of their job."""
    for rank in ("0", "1"):
        (tmp_path / f"old-{rank}").touch()
    done = launcher.run(
        "--nproc-per-node", "2", launcher.script(WRITES), str(tmp_path), backend="fake", **SMALL
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, bool] = {}
    for rank in ("0", "1"):
        changes = log_changes(tmp_path / f"log-{rank}")
        found |= {path: each.existed for path, each in changes.items() if path.startswith(f"{tmp_path}/")}
    for rank in ("0", "1"):
        assert found[f"{tmp_path}/by-rank-{rank}"] is found[f"{tmp_path}/by-shell-{rank}"] is False
        assert found[f"{tmp_path}/old-{rank}"] is True


def test_without_proxies_nothing_is_noted(launcher: Launcher) -> None:
    """A job that no checkpoint is taken of keeps no log."""
    script = launcher.script("import json, os; print(json.dumps(dict(os.environ)))")
    seen = json.loads(launcher.run("--no-proxy", script).stdout)
    assert FILE_LOG_VARIABLE not in seen
