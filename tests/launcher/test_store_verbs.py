"""`singularity-ctl checkpoints|verify|gc` on a store that was written by the library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from singularity_core.checkpoint.store import Store

CONTROL = Path(sys.executable).parent / "singularity-ctl"


def control(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(CONTROL), *arguments], capture_output=True, text=True, timeout=60, check=False)


def answer(*arguments: str) -> Any:
    return json.loads(control(*arguments, "--json").stdout)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Three checkpoints of one job, one of another; each has a part that no other has."""
    place = tmp_path / "store"
    for number, job in enumerate(["a", "b", "a", "a"]):
        with Store.open(place).write(job) as writer:
            writer.add("weights", "test", bytes(100_000))
            writer.add("step", "test", os.urandom(5000))
            writer.commit({"step": str(number)})
    return place


def test_checkpoints_are_listed_newest_first(store: Path) -> None:
    """With job, time, size and labels; one job's on demand."""
    found = answer("checkpoints", str(store))["checkpoints"]
    assert [each["labels"]["step"] for each in found] == ["3", "2", "1", "0"]
    assert {each["bytes"] for each in found} == {105_000}
    assert [each["job"] for each in answer("checkpoints", str(store), "--job", "b")["checkpoints"]] == ["b"]
    lines = control("checkpoints", str(store)).stdout.splitlines()
    assert [line.split("\t")[:3] for line in lines] == [
        ["checkpoint", each["checkpoint"], each["job"]] for each in found
    ]


def test_a_whole_store_is_whole(store: Path) -> None:
    """Exit code 0, and one line that says so."""
    done = control("verify", str(store))
    assert (done.returncode, done.stderr) == (0, "")
    assert "as it was stored" in done.stdout


def test_damage_is_named(store: Path) -> None:
    """A chunk that was changed: exit code 1, and who needs it; the others are whole."""
    newest = answer("checkpoints", str(store))["checkpoints"][0]["checkpoint"]
    with Store.open(store).read(newest) as reader:
        (chunk,) = next(part.chunks for part in reader.manifest.objects if part.name == "step")
    path = store / chunk.key
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    done = control("verify", str(store))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert newest in line
    assert "'step'" in line
    assert answer("verify", str(store))["damage"][0]["object_name"] == "step"
    others = [each["checkpoint"] for each in answer("checkpoints", str(store))["checkpoints"][1:]]
    assert control("verify", str(store), *others).returncode == 0
    assert control("verify", str(store), newest).returncode == 1


def test_old_checkpoints_go(store: Path) -> None:
    """--keep counts per job; --pin keeps one more; --dry-run only says so."""
    ids = [each["checkpoint"] for each in answer("checkpoints", str(store))["checkpoints"]]
    would = answer("gc", str(store), "--keep", "1", "--dry-run")
    assert set(would["checkpoints"]) == {ids[1], ids[3]}
    assert len(answer("checkpoints", str(store))["checkpoints"]) == 4
    done = answer("gc", str(store), "--keep", "1", "--pin", ids[3])
    assert done["checkpoints"] == [ids[1]]
    assert done["chunks"] == 1
    left = [each["checkpoint"] for each in answer("checkpoints", str(store))["checkpoints"]]
    assert left == [ids[0], ids[2], ids[3]]
    assert control("verify", str(store)).returncode == 0
    assert "freed 0B in 0 chunks" in control("gc", str(store)).stdout


@pytest.mark.parametrize("verb", ["checkpoints", "verify", "gc"])
def test_no_store_is_an_error(verb: str, tmp_path: Path) -> None:
    """A place without a store is named, and none is made there."""
    done = control(verb, str(tmp_path / "nothing"))
    assert done.returncode == 1
    assert "there is no store" in done.stderr
    assert list(tmp_path.iterdir()) == []
