"""Jobs with real proxies of the in-memory device: what happens when one dies, and what ranks see."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from singularity_core.launcher.settings import visible_devices

from .conftest import MARK, Launcher, processes_with, wait_for

OPEN_DEVICE = """
import ctypes, os, pathlib, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
def check(status):
    if status:
        print(f"cuda status {status}", file=sys.stderr, flush=True)
        sys.exit(3)
check(cuda.cuInit(0))
count, device, context, address = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
check(cuda.cuDeviceGetCount(ctypes.byref(count)))
check(cuda.cuDeviceGet(ctypes.byref(device), int(os.environ["LOCAL_RANK"])))
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
check(cuda.cuCtxSetCurrent(context))
check(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(1 << 20)))
check(cuda.cuMemsetD8_v2(address, ctypes.c_ubyte(7 + int(os.environ["RANK"])), ctypes.c_size_t(1 << 20)))
back = (ctypes.c_ubyte * (1 << 20))()
check(cuda.cuMemcpyDtoH_v2(back, address, ctypes.c_size_t(1 << 20)))
assert set(back) == {7 + int(os.environ["RANK"])}
os.write(1, f"rank {os.environ['RANK']} sees {count.value} devices\\n".encode())
"""
AND_STAY = """
pathlib.Path("up-" + os.environ["RANK"]).touch()
while True:
    time.sleep(0.05)
    if "use" in sys.argv: check(cuda.cuMemcpyDtoH_v2(back, address, ctypes.c_size_t(1 << 20)))
"""
SMALL = {"SINGULARITY_FAKE_MEMORY": "256M"}


def start_ranks(
    launcher: Launcher, count: int, argument: str, *options: str, **environment: str
) -> subprocess.Popen[str]:
    """Starts ranks that hold memory on their devices, and waits until they do."""
    script = launcher.script(OPEN_DEVICE + AND_STAY)
    process = launcher.start(
        "--nproc-per-node", str(count), "--grace-seconds", "1", *options, script, argument,
        backend="fake", **SMALL, **environment,
    )  # fmt: skip
    ups = [launcher.folder / f"up-{rank}" for rank in range(count)]
    wait_for(lambda: all(up.exists() for up in ups) or process.poll() is not None, "the ranks")
    assert process.poll() is None, process.communicate()[1]
    return process


def proxy_pid(launcher: Launcher, device: int) -> int:
    """The proxy of a device."""
    for pid in processes_with(MARK, launcher.mark):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"singularity_core.proxy" not in words:
            continue
        if words[words.index(b"--proxy-index") + 1] == b"%d" % device:
            return pid
    raise AssertionError(f"device {device} has no proxy")


def test_rank_per_device(launcher: Launcher) -> None:
    """Each rank uses the device with its local rank's ordinal, through that device's proxy."""
    done = launcher.run(
        "--nproc-per-node", "2", launcher.script(OPEN_DEVICE),
        backend="fake", SINGULARITY_FAKE_DEVICES="2", **SMALL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0 sees 2 devices", "rank 1 sees 2 devices"]


def test_ranks_share_a_device(launcher: Launcher) -> None:
    """With more ranks than devices a device serves several ranks, each sees an ordinal of its own, and the
    launcher says in one line who shares."""
    done = launcher.run(
        "--nproc-per-node", "3", "--devices", "1", launcher.script(OPEN_DEVICE), backend="fake", **SMALL
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"rank {rank} sees 3 devices" for rank in range(3)]
    assert "singularity-run: 3 ranks share 1 device, time-sliced (device 0: ranks 0-2)\n" in done.stderr


@pytest.mark.parametrize("argument", ["use", "idle"])
def test_killed_proxy_is_the_root_cause(launcher: Launcher, argument: str) -> None:
    """A proxy that is killed is named with its device and signal, though its ranks may notice first."""
    process = start_ranks(launcher, 2, argument, SINGULARITY_FAKE_DEVICES="2")
    os.kill(proxy_pid(launcher, 1), signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 137
    report = err[err.index("root cause") :]
    assert "the proxy of device 1" in report
    assert "SIGKILL" in report
    assert "rank 1" in report
    assert "rank 0" not in report
    assert launcher.leftovers() == []


@pytest.mark.parametrize(("proxy_dies", "code"), [(False, 143), (True, 137)])
def test_job_directory_that_vanishes(launcher: Launcher, proxy_dies: bool, code: int) -> None:
    """A job whose directory somebody removed (rm, logind) still ends with the exit code that is due, and
    leaves nothing."""
    process = start_ranks(launcher, 2, "idle", "--devices", "1")
    shutil.rmtree(next(iter(launcher.jobs())))
    os.kill(
        proxy_pid(launcher, 0) if proxy_dies else process.pid,
        signal.SIGKILL if proxy_dies else signal.SIGTERM,
    )
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert "Traceback" not in err
    assert launcher.leftovers() == []


def test_killed_launcher_takes_proxies_along(launcher: Launcher) -> None:
    """SIGKILL of the launcher ends proxies and ranks, and removes doors and sessions."""
    process = start_ranks(launcher, 1, "idle")
    process.kill()
    wait_for(lambda: not launcher.leftovers(), "the guardian's work")


def test_everything_killed_at_once(launcher: Launcher) -> None:
    """When launcher, proxy and rank are killed together, the guardian removes the rest."""
    process = start_ranks(launcher, 1, "idle")
    victims = [process.pid, proxy_pid(launcher, 0), *launcher.ranks()]
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not launcher.leftovers(), "the guardian's work")


def test_proxy_that_cannot_start(launcher: Launcher) -> None:
    """A proxy that cannot open its device ends the job before any rank starts, with its reason."""
    done = launcher.run("--no-python", "touch", "started", backend="fake", SINGULARITY_FAKE_MEMORY="nonsense")
    assert done.returncode not in (0, 2)
    assert "SINGULARITY_FAKE_MEMORY" in done.stderr
    assert not (launcher.folder / "started").exists()


def test_visible_devices_variable_is_applied_once(launcher: Launcher) -> None:
    """CUDA_VISIBLE_DEVICES is the proxies' business and does not reach the ranks."""
    done = launcher.run(
        "--no-python", "sh", "-c", "echo ${CUDA_VISIBLE_DEVICES-unset}",
        backend="fake", CUDA_VISIBLE_DEVICES="0", **SMALL,
    )  # fmt: skip
    assert done.stdout == "unset\n", done.stderr


def test_visible_devices_variable_chooses_devices(launcher: Launcher) -> None:
    """With CUDA_VISIBLE_DEVICES=1 the job's only device is the second one."""
    show_bus = (
        "\nname = ctypes.create_string_buffer(32)\ncheck(cuda.cuDeviceGetPCIBusId(name, 32, device))\n"
        "os.write(1, name.value)\n"
    )
    seen = [
        launcher.run(
            launcher.script(OPEN_DEVICE + show_bus),
            backend="fake", SINGULARITY_FAKE_DEVICES="2", CUDA_VISIBLE_DEVICES=choice, **SMALL,
        )
        for choice in ("0", "1")
    ]  # fmt: skip
    assert [done.returncode for done in seen] == [0, 0], seen
    assert seen[0].stdout != seen[1].stdout
    assert all("sees 1 devices" in done.stdout for done in seen)


@pytest.mark.parametrize(
    ("device_of_rank", "devices", "expected"),
    [
        ((0,), 1, [0]), ((0, 1), 4, [0, 1, 2, 3]), ((0, 0, 1, 1), 2, [0, 0, 1, 1]), ((2, 0), 3, [2, 0, 1]),
        ((0, 1, 0, 1), 2, [0, 1, 0, 1]), ((3, 3, 3), 4, [3, 3, 3, 0]), ((1, 1, 1), 2, [1, 1, 1]),
    ],
)  # fmt: skip
def test_ordinals_are_those_of_dedicated_devices(
    device_of_rank: tuple[int, ...], devices: int, expected: list[int]
) -> None:
    """Ordinal n is the device of local rank n, whatever the map; there are as many as on dedicated
    devices."""
    assert visible_devices(device_of_rank, devices) == expected


WHERE = (
    OPEN_DEVICE
    + """
name = ctypes.create_string_buffer(32)
check(cuda.cuDeviceGetPCIBusId(name, 32, device))
os.write(1, b"rank %s on %s\\n" % (os.environ["RANK"].encode(), name.value))
"""
)


def places(launcher: Launcher, *arguments: str) -> dict[str, str]:
    """The physical device (bus address) on which each rank found its memory."""
    done = launcher.run(
        *arguments, launcher.script(WHERE), backend="fake", SINGULARITY_FAKE_DEVICES="3", **SMALL
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines() if " on " in line]
    return {rank: where for _, rank, _, where in lines}


def test_ranks_go_where_the_map_says(launcher: Launcher) -> None:
    """Ranks dealt 0,2 / 1,3 use two devices, each with LOCAL_RANK as its ordinal."""
    at = places(launcher, "--nproc-per-node", "4", "--rank-devices", "0,2/1,3")
    assert at["0"] == at["2"] != at["1"] == at["3"]


def test_fewer_ranks_than_devices(launcher: Launcher) -> None:
    """A device without a rank is served too, because ranks see its ordinal."""
    at = places(launcher, "--nproc-per-node", "2", "--devices", "3")
    assert len(at) == len(set(at.values())) == 2


LAUNCH = """
ptx = b'''.version 8.0
.target sm_80
.address_size 64
.visible .entry nothing() { ret; }
'''
module, function = ctypes.c_void_p(), ctypes.c_void_p()
check(cuda.cuModuleLoadData(ctypes.byref(module), ptx))
check(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"nothing"))
check(cuda.cuLaunchKernel(function, *map(ctypes.c_uint, (1, 1, 1, 32, 1, 1, 0)), None, None, None))
check(cuda.cuCtxSynchronize())
"""


@pytest.mark.parametrize("mode", [[], ["--no-proxy"]], ids=["proxied", "native"])
def test_packages_of_the_job_do_not_shadow_ours(launcher: Launcher, mode: list[str]) -> None:
    """Kernels compile though the job's working directory holds packages that are named as what we import."""
    for name in ("singularity_core", "singularity_backend_fake", "llvmlite"):
        (launcher.folder / name).mkdir()
        (launcher.folder / name / "__init__.py").write_text("raise SystemExit('the wrong package')\n")
    done = launcher.run(*mode, launcher.script(OPEN_DEVICE + LAUNCH), backend="fake", **SMALL)
    assert done.returncode == 0, done.stderr


SHOW_EXCHANGE = """
import os, pathlib
exchange = pathlib.Path(os.environ["SINGULARITY_DEVICES"].split(":")[0]).parent / "exchange"
print(oct(exchange.stat().st_mode & 0o777))
"""


def test_proxies_share_a_private_directory(launcher: Launcher) -> None:
    """The job's directory has an exchange for its proxies, for this user alone."""
    done = launcher.run(launcher.script(SHOW_EXCHANGE), backend="fake", **SMALL)
    assert done.stdout == "0o700\n", done.stderr
