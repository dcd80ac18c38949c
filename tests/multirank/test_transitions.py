"""Whatever is done to a job, it ends with the bytes of one that was left alone."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from singularity_core.hal.cuda_wheels import header_directory
from singularity_core.launcher.settings import client_library_directory

from ..sanitizers import compile_c
from .transitions import RESUMING, Job, Kind, Program, transitions_change_nothing

PROGRAMS = Path(__file__).parent / "programs"
SHORT = [Kind.CHECKPOINT, Kind.PREEMPT, Kind.RESIZE]
LONG = [*SHORT, Kind.PAUSED, Kind.KILL, Kind.NOTICE]


pytestmark = pytest.mark.usefixtures("movable")


def chain_of(count: int, seed: int) -> list[Kind]:
    """So many, of all kinds."""
    return random.Random(seed).choices(LONG, weights=[3, 3, 3, 1, 1, 1], k=count)


# ---- programs ----------------------------------------------------------------------------------------------


@pytest.fixture
def everything(tmp_path: Path) -> Program:
    """One process with all that processes can have."""
    library = tmp_path / "openmp.so"
    source = PROGRAMS / "openmp.c"
    subprocess.run(["cc", "-fopenmp", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)

    def arguments(folder: Path, steps: int) -> list[str]:
        return [str(folder), str(steps), str(library)]

    def results(folder: Path) -> dict[str, bytes]:
        found = {name: (folder / name).read_bytes() for name in ("log", "seen.0", "place/locked")}
        made = sorted(str(path.relative_to(folder)) for path in (folder / "place" / "once").rglob("*"))
        return {**found, "made": "\n".join(made).encode(), "stdout": _output(folder)}

    options = ("--log-dir", "{folder}/logs")
    return Program(PROGRAMS / "everything.py", 1, (2, 1), arguments, results, options, moving=10)


def _output(folder: Path) -> bytes:
    """What the first rank wrote to its log."""
    (path,) = (folder / "logs").glob("*/attempt_0/0/stdout.log")
    return path.read_bytes()


def example(
    name: str,
    environment: dict[str, str],
    caches: Path,
    *,
    ranks: int,
    sizes: tuple[int, ...],
    arguments: tuple[str, ...] = (),
    options: tuple[str, ...] = (),
) -> Program:
    """One of the examples, without a cache of compiled programs, which other jobs would share: a resume sets
    the files of a job back."""

    def of_job(folder: Path, steps: int) -> list[str]:
        own = [word.format(folder=folder) for word in arguments]
        return [str(folder), name, "--steps", str(steps), *own]

    def results(folder: Path) -> dict[str, bytes]:
        found = {}
        for path in sorted(folder.rglob("*")):
            if path.suffix == ".json":
                result = json.loads(path.read_text())
                result.pop("step_seconds", None)
                found[path.name] = json.dumps(result).encode()
            elif path.suffix == ".npz" or path.name.startswith(("log", "seen")):
                found[str(path.relative_to(folder))] = path.read_bytes()
        assert any(path.endswith(".json") for path in found)
        return found

    own = {**environment, "PARALLEL": "0", "CACHELEVEL": "0", "XDG_CACHE_HOME": str(caches)}
    return Program(PROGRAMS / "gated.py", ranks, sizes, of_job, results, options, environment=own)


@pytest.fixture
def data_parallel(rank_environment: dict[str, str], tmp_path: Path) -> Program:
    """Four ranks with data loaders, logs, weights in files, and TCP connections."""
    arguments = (
        *("--json", "{folder}/json", "--log", "{folder}/log", "--loaders", "2", "--watch"),
        *("--save", "{folder}/saved", "--save-every", "3"),
    )
    return example("train_ddp", rank_environment, tmp_path, ranks=4, sizes=(4, 2, 1), arguments=arguments)


@pytest.fixture
def three_dimensional(rank_environment: dict[str, str], tmp_path: Path) -> Program:
    """Eight ranks, in two pipeline stages that cannot share a device."""
    return example(
        "train_3d", rank_environment, tmp_path, ranks=8, sizes=(8, 4),
        arguments=("--json", "{folder}/json", "--log", "{folder}/log"),
        options=("--tensor-parallel", "2", "--pipeline-parallel", "2"),
    )  # fmt: skip


@pytest.fixture
def single_rank(rank_environment: dict[str, str], tmp_path: Path) -> Program:
    """A tinygrad script that knows nothing of other ranks."""
    arguments = ("--json", "{folder}/result.json")
    return example("train_digits", rank_environment, tmp_path, ranks=1, sizes=(2, 1), arguments=arguments)


@pytest.fixture
def c_threads(tmp_path: Path) -> Program:
    """A program in C whose threads use the driver API."""
    library, binary = client_library_directory(), tmp_path / "threads"
    linked = f"-I{header_directory()}", f"-L{library}", "-l:libcuda.so.1"
    compile_c(binary, [PROGRAMS / "threads.c"], *linked)

    def arguments(folder: Path, steps: int) -> list[str]:
        return [str(folder), str(steps)]

    def results(folder: Path) -> dict[str, bytes]:
        return {name: (folder / name).read_bytes() for name in ("log", "seen.0", "stdout")}

    return Program(binary, 1, (2, 1), arguments, results, ("--no-python",), moving=10)


# ---- chains ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2])
def test_a_process_with_everything_does_not_notice(everything: Program, tmp_path: Path, seed: int) -> None:
    """What a process can have, on the host and on a device, is as it was after checkpoints, preemptions and
    resizes."""
    kinds = [*SHORT, Kind.CHECKPOINT, Kind.PREEMPT]
    random.Random(seed).shuffle(kinds)
    transitions_change_nothing(everything, tmp_path, kinds, seed)


def test_a_process_with_everything_survives_kills(everything: Program, tmp_path: Path) -> None:
    """A job one of whose processes is killed goes on from its last checkpoint; a notice preempts it."""
    transitions_change_nothing(everything, tmp_path, [Kind.KILL, Kind.NOTICE, Kind.KILL], 3)


def test_time_away_does_not_pass_for_a_job(everything: Program, tmp_path: Path) -> None:
    """Its monotonic clock, by which it counts to deadlines, stands still while a job is preempted; the wall
    clock does not."""
    job = Job(everything, tmp_path / f"away-{tmp_path.name}", 8)
    job.allow(4)
    job.until(4)
    job.must("preempt", job.name, "--to", str(tmp_path / "store"))
    job.process.wait(60)
    away = 5.0
    time.sleep(away)
    job.resume(tmp_path / "store")
    assert job.end()
    jumps = [json.loads(line) for line in (job.folder / "place" / "jumps").read_text().splitlines()]
    passed, longest = max(jumps, key=lambda jump: jump[1])
    assert longest > away
    assert longest - passed > away - 0.5


def test_a_single_rank_trains_as_if_alone(single_rank: Program, tmp_path: Path) -> None:
    """Losses of a tinygrad script are the same bits."""
    transitions_change_nothing(single_rank, tmp_path, [Kind.PREEMPT, Kind.CHECKPOINT], 1)


def test_threads_in_c_do_not_notice(c_threads: Program, tmp_path: Path) -> None:
    """A program on the driver API, some of whose threads wait while others compute; the tenth checkpoint of a
    process works as the first does, also in one that was restored."""
    kinds = [
        *[Kind.CHECKPOINT] * 10,
        Kind.PREEMPT,
        Kind.CHECKPOINT,
        Kind.RESIZE,
        Kind.PREEMPT,
        Kind.PAUSED,
    ]
    transitions_change_nothing(c_threads, tmp_path, kinds, 1)


def test_data_parallel_training_does_not_notice(data_parallel: Program, tmp_path: Path) -> None:
    """Losses, weights, logs, order of data and saved files of four ranks are the same bits."""
    transitions_change_nothing(data_parallel, tmp_path, [Kind.RESIZE, Kind.PREEMPT, Kind.PAUSED], 1)


def test_training_goes_on_in_another_work_directory(rank_environment: dict[str, str], tmp_path: Path) -> None:
    """With what it had in the one before, of which nothing is left, and on other devices; also when it goes
    on by itself there."""
    arguments = ("--json", "json", "--log", "log", "--loaders", "2", "--watch", "--save", "saved")
    program = example("train_ddp", rank_environment, tmp_path, ranks=4, sizes=(4, 2), arguments=arguments)
    (tmp_path / "there").mkdir()
    quiet = Job(program, tmp_path / f"quiet-{tmp_path.name}", 12, work_directory=tmp_path / "there")
    quiet.succeed()
    here, elsewhere, store = tmp_path / "here", tmp_path / "elsewhere", tmp_path / "store"
    here.mkdir()
    job = Job(program, tmp_path / f"moved-{tmp_path.name}", 12, work_directory=here)
    job.allow(4)
    job.until(4)
    job.must("preempt", job.name, "--to", str(store))
    job.process.wait(60)
    shutil.rmtree(here)
    here.mkdir()
    elsewhere.mkdir()
    by_itself = ["--checkpoint-to", str(store), "--auto-resume"]
    job.resume(store, "--work-directory", str(elsewhere), "--devices", "2", *by_itself)
    job.allow(6)
    job.until(6)
    job.must("checkpoint", job.name, "--to", str(store))
    job.allow(8)
    job.until(8)
    (status,) = json.loads(job.control("status", "--json", job.name).stdout)["jobs"]
    os.kill(status["ranks"][0]["pid"], signal.SIGKILL)
    job.succeed()
    assert job.said().count(RESUMING) == 1
    assert list(here.iterdir()) == []
    assert program.results(elsewhere) == program.results(tmp_path / "there")


def test_pipelines_do_not_notice(three_dimensional: Program, tmp_path: Path) -> None:
    """Losses and logs of eight ranks, data-, tensor- and pipeline-parallel, are the same bits."""
    transitions_change_nothing(three_dimensional, tmp_path, [Kind.PREEMPT], 1)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "job", ["everything", "c_threads", "single_rank", "data_parallel", "three_dimensional"]
)
def test_fifty_transitions_change_nothing(job: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The same for fifty of all kinds in a row."""
    program: Program = request.getfixturevalue(job)
    for line in transitions_change_nothing(program, tmp_path, chain_of(50, 7), 7):
        print(line)
