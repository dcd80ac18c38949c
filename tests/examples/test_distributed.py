"""The distributed examples compute the same bits however their ranks share devices."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from singularity_core.hal.cuda_wheels import header_directory

from ..multirank.jobs import LAUNCHER, finish, run_job, start_job
from ..sanitizers import ROOT

EXAMPLES = ROOT / "examples"
Results = list[dict[str, Any]]
Train = Callable[..., Results]
STEPS = 8
ALONE = {"PARALLEL": "0"}
"""Eight ranks need no pools of compilers of their own."""

pytestmark = pytest.mark.timeout(600)


def written(folder: Path, ranks: int) -> Results:
    """What the ranks of an example wrote there; `folder` says where their weights lie."""
    read = (json.loads((folder / f"rank-{k}.json").read_text()) for k in range(ranks))
    return [{**result, "folder": folder} for result in read]


@pytest.fixture(scope="module")
def train(rank_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Train:
    """`train(example, *arguments, ranks, devices, options=())`: what each rank wrote; each run once."""
    known: dict[tuple[object, ...], Results] = {}

    def run(
        example: str, *arguments: str, ranks: int, devices: int, options: tuple[str, ...] = ()
    ) -> Results:
        key = (example, arguments, ranks, devices, options)
        if key not in known:
            folder = tmp_path_factory.mktemp("results")
            run_job(
                EXAMPLES / example,
                *("--steps", str(STEPS), *arguments, "--json", str(folder)),
                ranks=ranks,
                devices=devices,
                options=options,
                env={**rank_environment, **ALONE},
                timeout=400,
            )
            known[key] = written(folder, ranks)
        return known[key]

    return run


def losses(result: dict[str, Any]) -> list[float]:
    return [float.fromhex(text) for text in result["losses"]]


def test_data_parallel_training_agrees_with_one_process(train: Train) -> None:
    """Four ranks on four devices end with one model; its losses and weights are within 1e-4 of what one
    process gets from the whole batch."""
    whole = train("train_ddp.py", ranks=1, devices=1)[0]
    parts = train("train_ddp.py", ranks=4, devices=4)
    assert len({part["weights"] for part in parts}) == 1
    for part in parts:
        assert losses(part) == pytest.approx(losses(whole), rel=1e-4)
    ours, wanted = (np.load(result["folder"] / "rank-0.npz") for result in (parts[0], whole))
    assert sorted(ours) == sorted(wanted)
    for name in wanted:
        near = 1e-4 * float(np.abs(wanted[name]).max())
        assert ours[name] == pytest.approx(wanted[name], rel=1e-4, abs=near)


def test_bookkeeping_does_not_change_training(
    train: Train, rank_environment: dict[str, str], tmp_path: Path
) -> None:
    """With loader processes, log, saved weights and a watch over TCP, four ranks get the same losses and
    weights; each log has a line per step, with one order of the data in all of them."""
    plain = train("train_ddp.py", ranks=4, devices=1)
    run_job(
        EXAMPLES / "train_ddp.py",
        *("--steps", str(STEPS), "--json", str(tmp_path)),
        *("--loaders", "2", "--log", str(tmp_path / "log"), "--watch"),
        *("--save", str(tmp_path / "saved"), "--save-every", str(STEPS)),
        ranks=4,
        devices=1,
        env={**rank_environment, **ALONE},
        timeout=400,
    )
    for ours, theirs in zip(written(tmp_path, 4), plain, strict=True):
        assert ours["losses"] == theirs["losses"]
        assert ours["weights"] == theirs["weights"]
    logs = [(tmp_path / name).read_text() for name in ("log", "log.1", "log.2", "log.3")]
    assert len(set(logs)) == 1
    lines = [line.split() for line in logs[0].splitlines()]
    assert [line[0] for line in lines] == [str(number) for number in range(1, STEPS + 1)]
    assert [line[1] for line in lines] == plain[0]["losses"]
    assert len({line[2] for line in lines}) == STEPS
    saved = np.load(tmp_path / "saved" / f"step-{STEPS}.npz")
    last = np.load(plain[0]["folder"] / "rank-0.npz")
    assert {name: saved[name].tobytes() for name in saved} == {name: last[name].tobytes() for name in last}


def test_pauses_do_not_change_training(
    train: Train, rank_environment: dict[str, str], tmp_path: Path
) -> None:
    """Training that was paused again and again ends with the weights and losses of training that was not."""
    quiet = train("train_ddp.py", ranks=4, devices=1)
    name = f"paused-{tmp_path.name}"
    process = start_job(
        EXAMPLES / "train_ddp.py",
        *("--steps", str(STEPS), "--json", str(tmp_path)),
        ranks=4,
        devices=1,
        options=[f"--rdzv-id={name}"],
        env={**rank_environment, **ALONE},
    )
    assert process.stdout is not None
    while "step    1" not in process.stdout.readline():
        assert process.poll() is None, finish(process)
    pauses = 0
    while control("pause", "--timeout=60", name) and control("continue", name):
        pauses += 1
    code, _, stderr = finish(process, 300)
    assert code == 0, stderr
    assert pauses >= 2
    for ours, theirs in zip(written(tmp_path, 4), quiet, strict=True):
        assert ours["losses"] == theirs["losses"]
        assert ours["weights"] == theirs["weights"]


def resized(
    example: str,
    *arguments: str,
    ranks: int,
    sizes: list[int],
    options: tuple[str, ...],
    folder: Path,
    environment: dict[str, str],
) -> Results:
    """What the ranks of an example wrote that got `sizes` devices, one after another and once at least, while
    it trained."""  # fmt: skip
    process = start_job(
        EXAMPLES / example,
        *("--steps", str(STEPS), *arguments, "--json", str(folder)),
        ranks=ranks,
        devices=ranks,
        options=[f"--rdzv-id={folder.name}", *options],
        env={**environment, **ALONE},
    )
    assert process.stdout is not None
    while "step    1" not in process.stdout.readline():
        assert process.poll() is None, finish(process)
    done = 0
    while control("resize", "--timeout=60", folder.name, str(sizes[done % len(sizes)])):
        done += 1
    code, _, stderr = finish(process, 400)
    assert code == 0, stderr
    assert done >= len(sizes), "the training was over too early"
    return written(folder, ranks)


@pytest.mark.long
def test_resizes_do_not_change_data_parallel_training(
    train: Train, rank_environment: dict[str, str], tmp_path: Path
) -> None:
    """Training on 4, 2, 1, 4 ... devices ends with the losses and weights of training on four."""
    quiet = train("train_ddp.py", ranks=4, devices=4)
    ours = resized(
        "train_ddp.py", ranks=4, sizes=[2, 1, 4], options=(), folder=tmp_path, environment=rank_environment
    )
    for one, other in zip(ours, quiet, strict=True):
        assert {**one, "folder": other["folder"], "step_seconds": other["step_seconds"]} == other


@pytest.mark.long
def test_resizes_do_not_change_three_dimensional_training(
    train: Train, rank_environment: dict[str, str], tmp_path: Path
) -> None:
    """Training in a grid of 2x2x2 on 8, 4, 8 ... devices is training on eight."""
    arguments, options = parallel(2, 2)
    quiet = train("train_3d.py", *arguments, ranks=8, devices=8, options=options)
    ours = resized(
        "train_3d.py", *arguments, ranks=8, sizes=[4, 8], options=options, folder=tmp_path,
        environment=rank_environment,
    )  # fmt: skip
    for one, other in zip(ours, quiet, strict=True):
        assert {**one, "folder": other["folder"]} == other


@pytest.mark.parametrize(
    ("devices", "options"),
    [(2, ()), (1, ()), (2, ("--rank-devices", "0,1,0,1"))],
    ids=["two", "one", "two-dealt-out"],
)
def test_data_parallel_bits_do_not_depend_on_devices(
    train: Train, devices: int, options: tuple[str, ...]
) -> None:
    """Losses and weights of four ranks on fewer devices are those of four devices, bit for bit."""
    dedicated = train("train_ddp.py", ranks=4, devices=4)
    shared = train("train_ddp.py", ranks=4, devices=devices, options=options)
    for ours, theirs in zip(shared, dedicated, strict=True):
        assert ours["losses"] == theirs["losses"]
        assert ours["weights"] == theirs["weights"]
        assert ours["accuracy"] == theirs["accuracy"]


def control(*arguments: str) -> bool:
    """Whether `singularity-ctl` could do it; not, once the job has ended."""
    command = [str(LAUNCHER.with_name("singularity-ctl")), *arguments]
    return subprocess.run(command, capture_output=True, timeout=120, check=False).returncode == 0


def parallel(tensor: int, pipeline: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The example's arguments, and the launcher's."""
    sizes = str(tensor), str(pipeline)
    return ("--tensor", sizes[0], "--pipeline", sizes[1]), (
        *("--tensor-parallel", sizes[0]),
        *("--pipeline-parallel", sizes[1]),
    )


@pytest.mark.parametrize(
    ("tensor", "pipeline", "devices"),
    [
        pytest.param(2, 2, 4, id="2x2x2-on-4"),
        pytest.param(1, 2, 2, id="1x2x4-on-2", marks=pytest.mark.long),
    ],
)
def test_three_dimensional_bits_do_not_depend_on_devices(
    train: Train, tensor: int, pipeline: int, devices: int
) -> None:
    """Eight ranks in a grid compute on fewer devices what they compute on eight, bit for bit."""
    arguments, options = parallel(tensor, pipeline)
    dedicated = train("train_3d.py", *arguments, ranks=8, devices=8, options=options)
    shared = train("train_3d.py", *arguments, ranks=8, devices=devices, options=options)
    for ours, theirs in zip(shared, dedicated, strict=True):
        assert {**ours, "folder": theirs["folder"]} == theirs


def test_three_dimensional_training_agrees_with_one_process(train: Train) -> None:
    """Tensor, pipeline and data parallel, the embedding group included, learn what one process learns."""
    arguments, options = parallel(2, 2)
    whole = train("train_3d.py", "--tensor", "1", "--pipeline", "1", ranks=1, devices=1)[0]
    parts = train("train_3d.py", *arguments, ranks=8, devices=8, options=options)
    assert [bool(part["losses"]) for part in parts] == [False] * 4 + [True] * 4
    for part in parts[4:]:
        assert losses(part) == pytest.approx(losses(whole), rel=1e-3)


def test_two_stages_on_one_device_are_refused(rank_environment: dict[str, str]) -> None:
    """A map that puts two stages on one device is refused at once, and names them."""
    arguments, options = parallel(2, 2)
    dealt = "--rank-devices=0,1,2,3,0,1,2,3"  # ranks of both stages are on each of the four devices
    process = start_job(
        EXAMPLES / "train_3d.py",
        *arguments,
        ranks=8,
        devices=4,
        options=[*options, dealt],
        env=rank_environment,
    )
    code, stdout, stderr = finish(process)
    assert code == 2
    assert stdout == ""
    assert "pipeline stages 0 and 1" in stderr


@pytest.mark.parametrize("devices", [4, 2, 1])
def test_c_program_reduces(tmp_path: Path, devices: int) -> None:
    """The example in C, run without Python, gets the sum of all ranks."""
    from singularity_core.launcher.settings import client_library_directory

    library = client_library_directory()
    program = tmp_path / "allreduce"
    subprocess.run(
        [
            *("cc", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O2"),
            *(str(EXAMPLES / "allreduce.c"), "-o", str(program), f"-I{Path(__file__).parent / 'include'}"),
            *("-isystem", str(header_directory()), f"-L{library}", "-l:libcuda.so.1", "-l:libnccl.so.2"),
        ],
        check=True,
        timeout=60,
    )
    stdout, _ = run_job(program, ranks=4, devices=devices, options=["--no-python"])
    assert sorted(stdout.splitlines()) == [f"rank {k} of 4: 1048576 values, 0 wrong" for k in range(4)]
