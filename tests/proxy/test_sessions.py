"""Ranks and a proxy over a stub driver: what a session does, and that its end leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from ..sanitizers import PREFIX, SLOW
from .conftest import StubProxy, environment


@pytest.mark.parametrize(
    "scenario",
    ["echo", "posts", "threads", "blocking", "handover", "bulk", "handles", "pinned", "errors", "sticky",
     "unknown", "fork", "reopen", "twice", "newcomer", "withdraw", "unawaited"],
)  # fmt: skip
def test_scenario(proxy: StubProxy, scenario: str) -> None:
    """Each scenario of rank.c holds, and afterwards the driver holds nothing."""
    proxy.run(1, scenario)
    proxy.await_clean()


def test_sessions_do_not_mix(proxy: StubProxy) -> None:
    """Several ranks at once see only their own sums, answers and handles."""
    running = [proxy.start(rank, "posts", "threads", "bulk", "handles") for rank in range(1, 5)]
    for process in running:
        out, err = process.communicate(timeout=120 * SLOW)
        assert process.returncode == 0, out + err
    proxy.await_clean()


@pytest.mark.parametrize("close", [True, False])
def test_what_a_rank_leaves_is_freed(proxy: StubProxy, close: bool) -> None:
    """Contexts, streams, modules, memory and page-locked memory of an ended rank are gone from the driver,
    whether it said good-bye or not."""
    for _ in range(3):
        proxy.run(1, "litter", close=close)
        proxy.await_clean()


def test_hung_rank_harms_nobody(proxy: StubProxy) -> None:
    """While one rank is stuck behind endless device work others go on, and killing it frees what it had."""
    hung = proxy.start(1, "hang")
    assert hung.stdout is not None
    assert hung.stdout.readline() == "hanging\n"
    proxy.run(2, "echo", "posts", "blocking", "bulk")
    hung.kill()
    proxy.run(3, "echo")
    proxy.await_clean()


def test_truncated_files_end_one_session(proxy: StubProxy) -> None:
    """A rank that truncates its shared files loses its session; the proxy and other ranks do not notice."""
    other = proxy.start(2, "threads", "posts", "bulk")
    hostile = proxy.start(1, "truncate")
    out, err = other.communicate(timeout=60 * SLOW)
    assert other.returncode == 0, out + err
    assert proxy.process.stderr is not None
    said = proxy.process.stderr.readline()
    assert "rank 1 broke the protocol (it truncated a shared file)" in said
    proxy.run(3, "echo")
    hostile.kill()
    proxy.await_clean()


def test_protocol_violation_is_said_once(proxy: StubProxy) -> None:
    """An unknown call ends that session with one line on stderr that names the rank."""
    proxy.run(7, "unknown")
    assert proxy.stop().splitlines() == [
        "singularity: rank 7 broke the protocol (unknown call): its session on device 0 is closed"
    ]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_waiting_rank_notices_the_proxys_end(proxy: StubProxy, number: signal.Signals) -> None:
    """A rank blocked in a call learns that the proxy is gone, stopped or killed, with nobody to tell it."""
    rank = proxy.start(1, "until-death")
    assert rank.stdout is not None
    assert rank.stdout.readline() == "waiting\n"
    proxy.process.send_signal(number)
    proxy.process.wait(timeout=30 * SLOW)
    out, err = rank.communicate(timeout=30 * SLOW)
    assert rank.returncode == 0, out + err
    for path in proxy.directory.iterdir():  # what a killed proxy leaves is the launcher's to remove
        assert number == signal.SIGKILL
        path.unlink()


def test_proxy_ends_with_its_parent(proxy: StubProxy) -> None:
    """The end of whoever holds the proxy's stdin ends the proxy, and its files go too."""
    assert proxy.process.stdin is not None
    proxy.process.stdin.close()
    assert proxy.process.wait(timeout=30 * SLOW) == 0
    assert list(proxy.directory.iterdir()) == []


def test_door_opens_to_many_at_once(proxy: StubProxy) -> None:
    """Ranks that claim at the same moment get different slots, and slots are used again."""
    for _ in range(3):
        running = [proxy.start(rank, "echo") for rank in range(1, 25)]
        for process in running:
            out, err = process.communicate(timeout=60 * SLOW)
            assert process.returncode == 0, out + err


def test_directory_must_be_private(programs: Path, tmp_path: Path) -> None:
    """A proxy refuses a directory that others can enter, and says why."""
    os.chmod(tmp_path, 0o755)
    command = [*PREFIX, str(programs / "stub_proxy"), str(tmp_path), str(programs / "libstub.so")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=30 * SLOW, env=environment())
    assert result.returncode == 69
    assert "must be a directory of ours with mode 0700" in result.stderr


def test_second_proxy_is_refused(proxy: StubProxy) -> None:
    """Two proxies cannot serve one directory, and the refused one does not harm the first."""
    command = [
        *PREFIX,
        str(proxy.programs / "stub_proxy"),
        str(proxy.directory),
        str(proxy.programs / "libstub.so"),
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=30 * SLOW, env=environment())
    assert result.returncode == 69
    assert "is another proxy serving this directory?" in result.stderr
    proxy.run(1, "echo")


def test_replay_makes_the_same_objects(proxy: StubProxy, tmp_path: Path) -> None:
    """A session's log, played into a fresh session, gives objects under the same handles and addresses."""
    log = tmp_path / "log"
    rank = proxy.start(1, "objects")
    assert rank.stdout is not None
    lines = []
    while not lines or lines[-1] != "end 0 0\n":
        lines.append(rank.stdout.readline())
        assert lines[-1], rank.communicate()
    assert proxy.command(f"export 1 {log}") == "done"
    rank.communicate("\n", timeout=30 * SLOW)
    proxy.await_clean()
    fresh = proxy.start(1, "verify")
    assert fresh.stdout is not None
    assert fresh.stdout.readline() == "ready\n"
    assert proxy.command(f"import 1 {log}") == "done"
    out, err = fresh.communicate("".join(lines), timeout=30 * SLOW)
    assert fresh.returncode == 0, out + err
    proxy.await_clean()


@pytest.mark.parametrize("cut", [0, 5, 40, 200, -8])
def test_damaged_log_is_refused(proxy: StubProxy, tmp_path: Path, cut: int) -> None:
    """A log that was cut off is refused with a reason, and the proxy goes on."""
    log = tmp_path / "log"
    rank = proxy.start(1, "objects")
    assert rank.stdout is not None
    while rank.stdout.readline() != "end 0 0\n":
        pass
    assert proxy.command(f"export 1 {log}") == "done"
    rank.communicate("\n", timeout=30 * SLOW)
    proxy.await_clean()
    log.write_bytes(log.read_bytes()[:cut])
    fresh = proxy.start(1, "verify")
    assert fresh.stdout is not None
    assert fresh.stdout.readline() == "ready\n"
    assert proxy.command(f"import 1 {log}").startswith("failed: this is no replay log")
    fresh.communicate("", timeout=30 * SLOW)
    proxy.run(2, "echo")
