"""The record of a job in its checkpoints, and what it says about other machines."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from singularity_core.launcher.errors import LaunchError
from singularity_core.launcher.job_record import (
    BoxRecord,
    JobRecord,
    SettingsRecord,
    decode_record,
    describe,
    encode_record,
    misfits,
    settings_of,
)
from singularity_core.launcher.machine import Machine, instructions, machine_misfits, this_machine
from singularity_core.launcher.probe import BackendFacts
from singularity_core.launcher.settings import BoxSettings, JobSettings
from singularity_core.placement import Coordinates

JOB = "20261203-101112-0123abcd"
MACHINE = Machine(architecture="x86_64", kernel="6.8.0-1-amd64", cpu_flags=("avx2", "sse2"))
BACKEND = BackendFacts("fake", 2, True, None, {}, (1 << 30, 1 << 29))
texts = st.text(min_size=1, max_size=20)


@st.composite
def records(draw: st.DrawFn) -> JobRecord:
    """Those of any job."""
    ranks = draw(st.integers(1, 5))
    devices = draw(st.integers(1, 4))
    each = st.integers(0, devices - 1)
    placed = tuple(draw(st.lists(each, min_size=ranks, max_size=ranks)))
    pids = draw(st.lists(st.integers(1, 1 << 22), min_size=ranks + 1, max_size=ranks + 1, unique=True))
    grid = tuple((rank, 0, 0, 0) for rank in range(ranks))
    settings = SettingsRecord(
        backend=draw(texts),
        command=tuple(draw(st.lists(texts, max_size=3))),
        devices=devices,
        device_of_rank=placed,
        behind=draw(st.none() | st.lists(each, max_size=2).map(lambda more: (*placed, *more))),
        run_id=draw(texts),
        master_addr=draw(texts),
        master_port=draw(st.integers(1, 65535)),
        role=draw(st.text(max_size=5)),
        log_dir=draw(st.none() | st.just("/logs/attempt_0")),
        grace_seconds=draw(st.floats(0, 1e6)),
        swap_limit=draw(st.none() | st.integers(1, 1 << 40)),
        slice_wait=draw(st.none() | st.floats(1e-6, 1e3)),
        grid=draw(st.sampled_from([(), grid])),
        box=BoxRecord(
            hostname=draw(texts), address=draw(st.none() | texts), fixed_addresses=draw(st.booleans())
        ),
    )
    return JobRecord(
        version=1,
        job=JOB,
        directory=f"/dev/shm/singularity-0/{JOB}",
        work_directory="/work",
        keeper=pids[0],
        ranks=tuple(draw(st.sampled_from([pid, None])) for pid in pids[1:]),
        arena_bytes=draw(st.integers(1, 1 << 40)),
        settings=settings,
        machine=MACHINE,
    )


@given(records(), st.integers(1, 8))
def test_a_record_holds_what_was_put_into_it(record: JobRecord, available: int) -> None:
    """It comes back as it was, and so do the settings of its job, which describe the same record again."""
    assert decode_record(encode_record(record)) == record
    settings = settings_of(record, available=available)
    again = describe(
        settings,
        job=record.job,
        directory=Path(record.directory),
        work_directory=Path(record.work_directory),
        keeper=record.keeper,
        ranks=record.ranks,
        arena_bytes=record.arena_bytes,
        machine=record.machine,
    )
    assert again == record
    assert settings.available == available


@given(records(), st.data())
def test_a_damaged_record_is_an_error_in_words(record: JobRecord, data: st.DataObject) -> None:
    """Whatever bytes are changed, the answer is a record or a `LaunchError`, never another exception."""
    content = bytearray(encode_record(record))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(LaunchError):
        decode_record(bytes(content))


def changed(record: JobRecord, **changes: Any) -> bytes:
    content = json.loads(encode_record(record))
    for name, value in changes.items():
        inner = content["settings"] if name in content["settings"] else content
        inner[name] = value
    return json.dumps(content).encode()


def example() -> JobRecord:
    settings = JobSettings(
        backend="fake",
        command=("train.py", "\udcff"),
        ranks=2,
        devices=2,
        device_of_rank=(0, 1),
        proxied=True,
        run_id="run",
        master_addr="127.0.0.1",
        master_port=29500,
        grid=(Coordinates(0), Coordinates(1)),
        box=BoxSettings("host", "198.18.0.1"),
    )
    return describe(
        settings,
        job=JOB,
        directory=Path(f"/dev/shm/singularity-0/{JOB}"),
        work_directory=Path("/work"),
        keeper=1000,
        ranks=[1001, None],
        arena_bytes=1 << 29,
        machine=MACHINE,
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "is of version 2; this is singularity-hal for version 1"),
        ({"job": "../../etc"}, "its name is no job's"),
        ({"directory": f"/dev/shm/../{JOB}"}, "its directory is not one of its job in /dev/shm"),
        ({"directory": f"/etc/singularity-0/x/{JOB}"}, "its directory is not one of its job in /dev/shm"),
        ({"work_directory": "here"}, "work_directory"),
        ({"keeper": 1001}, "it names a process twice"),
        ({"keeper": 0}, "keeper"),
        ({"device_of_rank": [0, 2]}, "it names devices that it does not have"),
        ({"device_of_rank": [0]}, "it does not place each rank once"),
        ({"behind": [1, 0]}, "its ordinals do not begin with its ranks'"),
        ({"grid": [[0, 0, 0, 0]]}, "its grid has not a place for each rank"),
        ({"ranks": []}, "it has 0 ranks"),
        ({"more": 1}, "unknown field"),
    ],
)
def test_what_contradicts_itself_is_refused_by_name(change: dict[str, Any], said: str) -> None:
    """A record whose parts do not fit, or of another version, is refused, and says what is wrong."""
    with pytest.raises(LaunchError) as refused:
        decode_record(changed(example(), **change))
    assert said in refused.value.cause


def test_jobs_that_cannot_be_described_are_refused() -> None:
    """One without a box cannot be restored, and a path that is no text cannot be written down."""
    record = example()
    boxless = msgspec.structs.replace(record)
    settings = settings_of(boxless, available=2)
    arguments: dict[str, Any] = {
        "job": JOB,
        "directory": Path(record.directory),
        "keeper": 1000,
        "ranks": record.ranks,
        "arena_bytes": 1,
        "machine": MACHINE,
    }
    with pytest.raises(LaunchError, match="--box"):
        describe(JobSettings(**{**settings.__dict__, "box": None}), work_directory=Path("/work"), **arguments)
    with pytest.raises(LaunchError, match="not UTF-8"):
        describe(settings, work_directory=Path("/work/\udcff"), **arguments)


def test_what_a_machine_lacks_is_named() -> None:
    """Another architecture, missing instructions, an older kernel, a device too small and a backend that is
    not there are named, each with what to do; a newer machine with more fits."""
    record = example()
    newer = Machine(architecture="x86_64", kernel="7.0-rc1", cpu_flags=("avx2", "avx512f", "sse2"))
    assert misfits(record, newer, BACKEND, [0, 1]) == []
    assert machine_misfits(MACHINE, this_machine()) == machine_misfits(MACHINE, this_machine())
    older = Machine(architecture="x86_64", kernel="6.7.99", cpu_flags=("sse2",))
    lacking, old = misfits(record, older, BACKEND, [0])
    assert "avx2" in lacking.cause
    assert "6.7.99, which is older" in old.cause
    other = Machine(architecture="aarch64", kernel="7.0", cpu_flags=())
    assert ["aarch64" in each.cause for each in misfits(record, other, BACKEND, [0])] == [True]
    larger = msgspec.structs.replace(record, arena_bytes=1 << 30)
    assert [each.cause[:8] for each in misfits(larger, MACHINE, BACKEND, [0, 1])] == ["Device 1"]
    gone = misfits(record, MACHINE, LaunchError("No such backend.", remedy="Install it."), [0])
    assert [(each.cause, each.remedy) for each in gone] == [("No such backend.", "Install it.")]


def test_instructions_are_those_of_all_processors() -> None:
    """A flag that one processor lacks cannot be relied on; flags that no program runs by do not count."""
    info = "flags\t: fpu sse2 avx2 md_clear\nflags\t: fpu sse2 arch_capabilities\n"
    assert instructions(info, "x86_64") == ("fpu", "sse2")
    assert instructions("Features : fp asimd\n", "aarch64") == ("asimd", "fp")
    assert instructions("", "x86_64") == ()
