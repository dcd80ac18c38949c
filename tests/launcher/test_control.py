"""singularity-ctl: what is installed, and what this machine lacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from singularity_core.checkpoint.criu import CriuFound
from singularity_core.launcher import doctor

from .conftest import on_a_terminal

HERE = Path(__file__).parent
CONTROL = [sys.executable, "-P", "-m", "singularity_core.launcher.ctl"]


def control(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs singularity-ctl with the plugins of these tests."""
    return subprocess.run(
        [*CONTROL, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "SINGULARITY_PLUGINS": str(HERE / "plain_backend.py"), **environment},
    )


def as_json(done: subprocess.CompletedProcess[str]) -> Any:
    """What --json printed."""
    found = json.loads(done.stdout)
    assert found["schema_version"] == 1
    return found


def test_backends_json() -> None:
    """--json lists each backend with its state, reason and remedy."""
    done = control("backends", "--json")
    assert done.returncode == 0, done.stderr
    listed = {backend["name"]: backend for backend in as_json(done)["backends"]}
    assert listed["plain"]["state"] == "available"
    assert listed["plain"]["device_count"] == 4
    assert listed["absent"]["state"] == "unavailable"
    assert listed["absent"]["reason"] == "its hardware is absent."
    assert listed["absent"]["remedy"] == "Plug it in."


def test_backends_lines() -> None:
    """Without a terminal, backends are lines of tab-separated fields, and reasons go to stderr."""
    done = control("backends")
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert ["plain", "available", "4", "no driver library; for tests of the launcher"] in lines
    assert "Plug it in." in done.stderr


def test_table_on_a_terminal() -> None:
    """On a terminal there is a table with a header, and NO_COLOR keeps colours out."""
    plugin = str(HERE / "plain_backend.py")
    shown = on_a_terminal(*CONTROL, "backends", COLUMNS="120", SINGULARITY_PLUGINS=plugin)
    assert b"backend" in shown
    assert b"plain" in shown
    assert b"\x1b[3" not in shown


def test_doctor_json_agrees_with_exit_code() -> None:
    """The exit code is 1 exactly when a required check failed."""
    done = control("doctor", "--json")
    report = as_json(done)
    failed = [check for check in report["checks"] if check["verdict"] == "failed"]
    assert report["healthy"] == (not failed) == (done.returncode == 0)
    checks = {check["check"] for check in report["checks"]}
    assert {"platform", "/dev/shm", "pidfd", "proxy module", "client library", "backend plain"} <= checks


@pytest.mark.parametrize(
    ("files", "user", "warns"),
    [
        ({}, 1000, True),
        ({}, 0, False),
        ({"etc/systemd/logind.conf": "[Login]\n#RemoveIPC=no\n"}, 1000, True),
        ({"etc/systemd/logind.conf": "[Login]\nRemoveIPC = no\n"}, 1000, False),
        ({"usr/lib/systemd/logind.conf.d/10.conf": "RemoveIPC=no", "etc/systemd/logind.conf.d/20.conf":
          "RemoveIPC=yes"}, 1000, True),
        ({"usr/lib/systemd/logind.conf.d/10.conf": "RemoveIPC=yes", "etc/systemd/logind.conf.d/10.conf":
          "RemoveIPC=no"}, 1000, False),
    ],
)  # fmt: skip
def test_doctor_warns_of_logind(tmp_path: Path, files: dict[str, str], user: int, warns: bool) -> None:
    """Where logind would remove a job's files once its user has logged out, the doctor warns; the last word
    of logind's configuration counts, and system users are spared."""
    assert doctor.remove_ipc(tmp_path, user).verdict is doctor.Verdict.OK  # no systemd
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = doctor.remove_ipc(tmp_path, user)
    assert found.verdict is (doctor.Verdict.WARNING if warns else doctor.Verdict.OK)
    assert bool(found.remedy) is warns


def test_doctor_names_a_full_shm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Too little shared memory is a failure with a remedy."""
    monkeypatch.setattr(doctor, "SHM_BYTES", 1 << 60)
    finding = next(finding for finding in doctor.examine() if finding.check == "/dev/shm")
    assert finding.verdict is doctor.Verdict.FAILED
    assert "--shm-size" in finding.remedy


def test_doctor_warns_without_criu() -> None:
    """A CRIU that is not there is a warning with a remedy, and jobs can run nevertheless."""
    done = control("doctor", "--json", SINGULARITY_CRIU="/no/such/criu")
    report = as_json(done)
    found = next(check for check in report["checks"] if check["check"] == "CRIU")
    assert found["verdict"] == "warning"
    assert "/no/such/criu" in found["detail"]
    assert found["remedy"]
    assert report["healthy"] == all(check["verdict"] != "failed" for check in report["checks"])


def test_doctor_says_which_criu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CRIU that works is shown with its version and its path."""
    monkeypatch.setattr(doctor, "find_criu", lambda: CriuFound(Path("/some/criu"), "4.2.1"))
    assert doctor.Finding("CRIU", doctor.Verdict.OK, "4.2.1, /some/criu") in doctor.examine()


def test_doctor_survives_a_broken_plugin() -> None:
    """A plugin that does not load is reported with its error, and the other checks still run."""
    done = control("doctor", "--json", SINGULARITY_PLUGINS="/no/such/plugin.py")
    broken = [check for check in as_json(done)["checks"] if "plugin" in check["check"]]
    assert broken
    assert broken[0]["verdict"] == "warning"
    assert "/no/such/plugin.py" in broken[0]["detail"]


def test_doctor_tries_the_compile_service() -> None:
    """The in-memory device's compiler is started, and what it says instead of an answer is shown."""
    done = control("doctor", "--json", SINGULARITY_PLUGINS="", SINGULARITY_FAKE_PTX_COMPILE="false")
    found = next(check for check in as_json(done)["checks"] if check["check"] == "fake: ptx-compile")
    assert found["verdict"] == "warning"
    assert "does not answer" in found["detail"]
    assert "SINGULARITY_FAKE_PTX_COMPILE" in found["remedy"]
    works = control("doctor", "--json", SINGULARITY_PLUGINS="", SINGULARITY_BLOCK_BACKENDS="cuda")
    assert {"fake: llvmlite", "fake: ptx-compile"} <= {
        check["check"] for check in as_json(works)["checks"] if check["verdict"] == "ok"
    }


@pytest.mark.parametrize("verb", ["checkpoint", "migrate"])
def test_verbs_that_do_not_exist_yet(verb: str) -> None:
    """What this release cannot do is no verb at all."""
    assert control(verb).returncode == 2
