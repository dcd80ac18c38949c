"""Each ordinal that ranks see has a door of its own, whichever proxy is behind it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from singularity_core._native import ffi

from singularity_core.launcher.job_directory import ordinal_path
from singularity_core.launcher.settings import ordinals_of, visible_devices

from .conftest import Launcher, wait_for
from .test_proxies import OPEN_DEVICE, SMALL, proxy_pid

OPEN_THE_NEXT = (
    OPEN_DEVICE.replace('int(os.environ["LOCAL_RANK"])', '(int(os.environ["LOCAL_RANK"]) + 1) % count.value')
    + """
name, buses = ctypes.create_string_buffer(32), []
for ordinal in range(count.value):
    check(cuda.cuDeviceGetPCIBusId(name, 32, ordinal))
    buses.append(name.value.decode())
door = pathlib.Path(os.environ["SINGULARITY_DEVICES"].split(":")[device.value])
sessions = len(list(door.glob("*.session")))
os.write(1, f"rank {os.environ['RANK']} in {door.name} with {sessions} of {' '.join(buses)}\\n".encode())
"""
)

AND_WATCH_THE_DOOR = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # who watches is told by the door alone
doors = os.environ["SINGULARITY_DEVICES"].split(":")
door = os.open(doors[int(os.environ["LOCAL_RANK"])] + "/door", os.O_RDONLY)
pathlib.Path("up-" + os.environ["RANK"]).touch()
while os.pread(door, 4, int(sys.argv[1])) == bytes(4):
    time.sleep(0.01)
pathlib.Path("told-" + os.environ["RANK"]).touch()
"""


@pytest.mark.parametrize(
    ("options", "devices"),
    [
        pytest.param(["--nproc-per-node", "3", "--rank-devices", "0,2/1"], [0, 1, 0], id="of others"),
        pytest.param(["--nproc-per-node", "2", "--devices", "3"], [0, 1, 2], id="without a rank"),
    ],
)
def test_a_rank_may_open_any_ordinal(launcher: Launcher, options: list[str], devices: list[int]) -> None:
    """A rank that opens the ordinal of another, or of a device without ranks, comes through the door of that
    ordinal to the device behind it."""
    done = launcher.run(
        *options, launcher.script(OPEN_THE_NEXT), backend="fake", SINGULARITY_FAKE_DEVICES="3", **SMALL
    )
    assert done.returncode == 0, done.stderr
    lines = sorted(line.split() for line in done.stdout.splitlines() if " in " in line)
    assert [line[:6] for line in lines] == [
        ["rank", str(rank), "in", f"ordinal-{(rank + 1) % 3}", "with", "1"] for rank in range(len(lines))
    ]
    (buses,) = {tuple(line[7:]) for line in lines}
    first_with = {bus: buses.index(bus) for bus in buses}
    assert [first_with[bus] for bus in buses] == [devices.index(device) for device in devices]


def test_all_doors_of_a_dead_proxy_say_so(launcher: Launcher) -> None:
    """When a proxy is killed the launcher writes that on each of its doors, where its ranks look."""
    script = launcher.script(OPEN_DEVICE + AND_WATCH_THE_DOOR)
    process = launcher.start(
        "--nproc-per-node", "2", "--devices", "1", script, str(ffi.offsetof("struct sg_door", "dead")),
        backend="fake", **SMALL,
    )  # fmt: skip
    ups = [launcher.folder / f"up-{rank}" for rank in range(2)]
    wait_for(lambda: all(up.exists() for up in ups) or process.poll() is not None, "the ranks")
    os.kill(proxy_pid(launcher, 0), signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 137, err
    assert [(launcher.folder / f"told-{rank}").exists() for rank in range(2)] == [True, True]


@pytest.mark.parametrize(
    ("device_of_rank", "devices"), [((0,), 1), ((0, 1, 0, 1), 2), ((2, 0), 4), ((3, 3, 3), 4)]
)
def test_each_ordinal_is_one_devices(device_of_rank: tuple[int, ...], devices: int) -> None:
    """Every ordinal belongs to exactly one of the devices that ranks see, and each of these has one."""
    visible = visible_devices(device_of_rank, devices)
    found = {device: ordinals_of(device, visible) for device in set(visible)}
    assert all(found.values())
    assert sorted(ordinal for some in found.values() for ordinal in some) == list(range(len(visible)))


def test_doors_of_a_job_have_places_of_their_own() -> None:
    """No two ordinals have one directory."""
    assert len({ordinal_path(Path("/job"), ordinal) for ordinal in range(1024)}) == 1024
