"""What CRIU is told, and what its failures are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from singularity_core.checkpoint.criu import _HOW_TO_GET_IT
from singularity_core.checkpoint.host.criu_lines import (
    _OTHER_REMEDY,
    describe_failure,
    dump_command,
    error_lines,
    explain,
    restore_command,
)

CRIU = Path("/opt/criu")
LINES = {
    "Error (criu/image.c:1): Can't write: No space left on device": "no room left",
    "1: Error (criu/cr-restore.c:1237): Can't fork for 3: File exists": "number of one of its processes",
    "3: Error (criu/files-reg.c:2175): File tmp/x has bad size 75 (expect 72)": "tmp/x is not what it was",
    "3: Error (criu/files-reg.c:2226): File usr/lib/a.so has bad build-ID": "its build-ID differs",
    "3: Error (criu/files-reg.c:2130): Can't open file tmp/x on restore: No such file": "tmp/x cannot be",
    "3: Error (criu/sk-inet.c:1050): inet: Can't bind inet socket (id 3): Address in use": "network address",
    "Error (compel/ptrace.c:1): Unable to seize task 7: Operation not permitted": "traced, or protected",
    "Error (x.c:1): A session leader of 7(7) is outside of its pid namespace": "its session is led",
    "Error (x.c:1): unix: Can't dump half of stream unix connection.": "a Unix socket that is connected",
    "Error (criu/files-reg.c:1): Can't dump ghost file /tmp/x of 9 size": "a nameless file that is too large",
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_of_the_log_is_explained(line: str) -> None:
    """What happens in practice is said in terms of the job, with something to do about it."""
    found = explain(f"(00.1) Warn: something\n(00.2) {line}\n(00.3) Error: Dumping FAILED.\n")
    assert found is not None
    cause, remedy = found
    assert LINES[line] in cause
    assert remedy.endswith(".")


def test_what_is_not_known_is_quoted() -> None:
    """Without an explanation, CRIU's own words and the manual remain."""
    assert explain("(00.1) Error (x.c:1): Strange\n") is None
    cause, remedy = describe_failure("dumped", "ended with 1", "Error: Strange", "Error: Strange")
    assert cause == "The job cannot be dumped. CRIU ended with 1. CRIU says: Error: Strange."
    assert "docs/checkpoints.md" in remedy


def test_the_manual_treats_what_it_is_said_to_treat() -> None:
    """Where CRIU comes from, and what can be carried."""
    manual = (Path(__file__).parents[2] / "docs" / "checkpoints.md").read_text()
    assert "docs/checkpoints.md says how to get it on Debian" in _HOW_TO_GET_IT
    assert "Debian" in manual.partition("**CRIU**")[2].partition("**A store**")[0]
    assert "docs/checkpoints.md names what can be carried" in _OTHER_REMEDY
    assert "\n## What can be carried\n" in manual


def test_an_error_that_is_none_is_not_shown() -> None:
    """CRIU says something about its own limits each time."""
    log = "Error (x.c:1): Can't set RLIMIT_NOFILE for self\nPie: fine\n7: Error (y.c:1): Bad"
    assert error_lines(log) == ["7: Error (y.c:1): Bad"]


def test_commands() -> None:
    """A command that enters namespaces comes first, descriptors that are given last."""
    dump = dump_command(CRIU, 7, ghost_bytes=5 << 20, enter=("nsenter", "-a"))
    assert dump[:6] == ("nsenter", "-a", "/opt/criu", "dump", "--tree", "7")
    assert dump[dump.index("--ghost-limit") + 1] == str(5 << 20)
    assert not {"--leave-running", "--tcp-close"} & set(dump)
    restore = restore_command(CRIU, inherit={"pipe:[5]": 9, "dev/shm/ring": 10})
    assert restore[:3] == ("/opt/criu", "restore", "--restore-detached")
    assert restore[-2:] == ("--inherit-fd=fd[9]:pipe:[5]", "--inherit-fd=fd[10]:dev/shm/ring")
