"""A keeper that cannot begin, or not undo all, says so and leaves nothing."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from singularity_core.checkpoint.host import hold
from singularity_core.checkpoint.host.errors import HoldError
from singularity_core.checkpoint.host.hold import Hold
from singularity_core.checkpoint.host.keeper_link import KeeperLink
from singularity_core.checkpoint.host.messages import Finish, Held


def test_a_keeper_without_a_place_says_why(tmp_path: Path) -> None:
    """Where no directory for images can be made, that is the reason, and not that the keeper was killed."""
    with pytest.raises(HoldError, match=r"images can be made in .*/missing: No such file"):
        KeeperLink(tmp_path / "missing")


def test_images_go_though_something_else_cannot_be_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a keeper that was killed, an error in what its owner undoes leaves no memory in use."""
    link = KeeperLink(tmp_path)
    assert os.listdir(tmp_path)
    link._process.kill()

    def fail() -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(link, "_undo", fail)
    with pytest.raises(OSError, match="Input/output"):
        link.close()
    assert os.listdir(tmp_path) == []


def test_a_hold_that_cannot_let_go_gives_its_keeper_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keeper undoes at its end what it could not do when it was asked to; so it is ended all the same."""
    said: list[str] = []

    class Keeper:
        def __init__(self, place: Path, *, cgroup: Path | None) -> None:
            said.append("begin")

        def ask(self, request: object, answer: type[Held]) -> Held:
            if isinstance(request, Finish):
                raise HoldError("It does not go on.", remedy="none")
            return Held()

        def close(self) -> None:
            said.append("end")

    monkeypatch.setattr(hold, "KeeperLink", Keeper)
    monkeypatch.setattr(hold, "check_room", lambda *_: None)
    held = Hold(os.getpid(), place=tmp_path, with_cgroup=False)
    with pytest.raises(HoldError, match="does not go on"), held:
        pass
    assert said == ["begin", "end"]
