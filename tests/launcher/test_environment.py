"""What the launcher puts into the environment of ranks, and leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from singularity_core.checkpoint.file_log import LOG_VARIABLE
from singularity_core.launcher import settings
from singularity_core.launcher.settings import JobSettings, job_environment, rank_environment


def job(**changes: object) -> JobSettings:
    """Four ranks, dealt alternately to two devices."""
    usual = {
        "backend": "fake", "command": ("true",), "ranks": 4, "devices": 2, "device_of_rank": (0, 1, 0, 1),
        "proxied": True, "run_id": "r", "master_addr": "127.0.0.1", "master_port": 1,
    }  # fmt: skip
    return JobSettings(**{**usual, **changes})  # type: ignore[arg-type]


@pytest.fixture
def preload(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """An installation that has the libraries to preload."""
    libraries = [tmp_path / "libsingularity_preload.so", tmp_path / "libsingularity_files.so"]
    monkeypatch.setattr(settings, "preload_library", lambda: libraries[0])
    monkeypatch.setattr(settings, "files_library", lambda: libraries[1])
    return libraries


@pytest.mark.parametrize(
    ("inherited", "rest"),
    [(None, []), ("/a.so:/b.so", ["/a.so", "/b.so"]), ("/a.so /b.so", ["/a.so", "/b.so"])],
)
def test_preload_is_prepended(preload: list[Path], inherited: str | None, rest: list[str]) -> None:
    """Our libraries come first in LD_PRELOAD, and the user's stay, however they are separated."""
    before = {} if inherited is None else {"LD_PRELOAD": inherited}
    assert job_environment(job(), "j", before, None)["LD_PRELOAD"].split(":") == [*map(str, preload), *rest]


def test_nothing_is_preloaded_without_proxies(preload: list[Path]) -> None:
    """With --no-proxy LD_PRELOAD stays as it is."""
    found = job_environment(job(proxied=False), "j", {"LD_PRELOAD": "/a.so"}, None)
    assert found["LD_PRELOAD"] == "/a.so"


def test_without_the_library_preload_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation without the library adds no LD_PRELOAD."""
    monkeypatch.setattr(settings, "preload_library", lambda: None)
    monkeypatch.setattr(settings, "files_library", lambda: None)
    assert "LD_PRELOAD" not in job_environment(job(), "j", {}, None)


def test_processes_know_where_to_note_files() -> None:
    """A rank behind a proxy finds the log in its job's directory; the checkpoint looks for the same name."""
    assert rank_environment(job(), {}, 0, Path("/j"))[LOG_VARIABLE] == "/j/files.log"
    assert LOG_VARIABLE not in rank_environment(job(proxied=False), {}, 0, Path("/j"))


@pytest.mark.parametrize("rank", range(4))
def test_own_ordinal_whatever_the_map(rank: int) -> None:
    """The entry at LOCAL_RANK in a rank's list of doors is a door of its own, shared device or not."""
    environment = rank_environment(job(), {}, rank, Path("/dev/shm/x"))
    devices = environment["SINGULARITY_DEVICES"].split(":")
    assert len(devices) == 4
    assert devices[int(environment["LOCAL_RANK"])] == f"/dev/shm/x/ordinal-{rank}"
