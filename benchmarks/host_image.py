"""What the processes of a job cost in a checkpoint.

    python benchmarks/host_image.py [--json] [--ranks N] [--steps N]

Keys, each with `aslr_` (addresses and hash seeds at random, as usual) and `fixed_` (as in a job's box:
setarch -R, PYTHONHASHSEED=0):
      stored_over_unique   bytes to store, before compression, by those of the different 4 KiB pages that are
                           not zero; first checkpoint
      second_over_first    bytes that are new in a second checkpoint, so many steps later, by the first's
      host_unique_ratio    different pages by all that are not zero, of all processes
      compressed           bytes in the store by bytes to store
      frozen_s             for how long the job stood still (first checkpoint)
      ingest_s             how long it took after that to store it; the job ran meanwhile
      restore_s            until the job runs again
      image_mib            size of the dump

The job: N ranks that train a network of three layers on handwritten digits with numpy, each with two loader
processes (multiprocessing, fork) and a TCP connection to the first rank, over which gradients are summed.
Frameworks are imported as train_ddp.py does.  No device: what is measured are host pages.  Needs root, CRIU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

BOX = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--net", "--ipc", "--uts")
LOADERS = 2
BATCH = 64
PORT = 7070


def digits() -> tuple[Any, Any]:
    """Images and classes."""
    import numpy as np
    from sklearn.datasets import load_digits

    found = load_digits()
    return found.data.astype(np.float32) / 16, found.target


def load(rank: int, loader: int, batches: Any) -> None:
    """A loader process: batches without end."""
    import numpy as np

    images, classes = digits()
    chosen = np.random.default_rng([rank, loader])
    while True:
        of = chosen.integers(len(images), size=BATCH)
        batches.put((images[of], classes[of]))


def connect(rank: int, ranks: int) -> list[socket.socket]:
    """The first rank with all others, and these with it."""
    if rank:
        while True:
            try:
                return [socket.create_connection(("127.0.0.1", PORT))]
            except ConnectionRefusedError:
                time.sleep(0.05)
    with socket.create_server(("127.0.0.1", PORT), backlog=ranks) as listener:
        return [listener.accept()[0] for _ in range(1, ranks)]


def sum_over_ranks(values: Any, rank: int, connections: list[socket.socket]) -> Any:
    """An all-reduce by way of the first rank."""
    import numpy as np

    def receive(connection: socket.socket) -> Any:
        data = bytearray(values.nbytes)
        got = 0
        while got < len(data):  # MSG_WAITALL returns less when a process is stopped, by whatever means
            got += connection.recv_into(memoryview(data)[got:])
        return np.frombuffer(data, values.dtype)

    if rank:
        connections[0].sendall(values.tobytes())
        return receive(connections[0])
    total = sum((receive(each) for each in connections), values)
    for each in connections:
        each.sendall(total.tobytes())
    return total


def train(rank: int, ranks: int, progress: Path) -> None:
    """A rank.  Each step is a line in its file."""
    import numpy as np
    import tinygrad  # noqa: F401  (for the memory that it takes)

    context = get_context("fork")
    batches = [context.Queue(4) for _ in range(LOADERS)]
    for number, queue in enumerate(batches):
        context.Process(target=load, args=(rank, number, queue), daemon=True).start()
    connections = connect(rank, ranks)
    random = np.random.default_rng(0)
    shapes = [(64, 1024), (1024, 1024), (1024, 10)]
    weights = [random.standard_normal(shape, np.float32) / shape[0] ** 0.5 for shape in shapes]
    with progress.open("a", buffering=1) as log:
        for step in range(1 << 30):
            images, classes = batches[step % LOADERS].get()
            inner = np.maximum(images @ weights[0], 0)
            outer = np.maximum(inner @ weights[1], 0)
            scores = outer @ weights[2]
            scores = np.exp(scores - scores.max(1, keepdims=True))
            error = scores / scores.sum(1, keepdims=True)
            error[np.arange(BATCH), classes] -= 1
            back = (error @ weights[2].T) * (outer > 0)
            gradients = [images.T @ ((back @ weights[1].T) * (inner > 0)), inner.T @ back, outer.T @ error]
            flat = sum_over_ranks(np.concatenate([it.ravel() for it in gradients]), rank, connections)
            at = 0
            for each in weights:
                each -= 0.01 / (BATCH * ranks) * flat[at : at + each.size].reshape(each.shape)
                at += each.size
            log.write(f"{step}\n")


def steps_of(place: Path, ranks: int) -> int:
    """How far the slowest rank is."""
    logs = [place / f"rank-{rank}" for rank in range(ranks)]
    return min(log.read_text().count("\n") if log.exists() else 0 for log in logs)


def wait_for(place: Path, ranks: int, steps: int) -> None:
    """Until all ranks are so far."""
    until = time.monotonic() + 300
    while steps_of(place, ranks) < steps:
        if time.monotonic() > until:
            raise SystemExit(f"The job does not come on:\n{(place / 'output').read_text()}")
        time.sleep(0.02)


def start(place: Path, ranks: int, fixed: bool) -> int:
    """A parent with all ranks; its pid."""
    command = [sys.executable, "-sP", __file__, "--role", "job"]
    with (place / "output").open("a") as output:
        return subprocess.Popen(
            [*(["setarch", "-R"] if fixed else []), *command, "--place", str(place), "--ranks", str(ranks)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            | ({"PYTHONHASHSEED": "0"} if fixed else {}),
            cwd="/",
            start_new_session=True,
        ).pid


def be_job(place: Path, ranks: int) -> None:
    """The parent."""
    command = [
        sys.executable,
        "-sP",
        __file__,
        "--role",
        "rank",
        "--place",
        str(place),
        "--ranks",
        str(ranks),
    ]
    started = [subprocess.Popen([*command, "--rank", str(rank)]) for rank in range(ranks)]
    for each in started:
        each.wait()


def measure(place: Path, ranks: int, steps: int, fixed: bool) -> Iterator[tuple[str, float]]:
    """Two checkpoints, so many steps apart, and a restore of the second."""
    from singularity_core.checkpoint import Store
    from singularity_core.checkpoint.criu import find_criu
    from singularity_core.checkpoint.host import Hold, ingest, restore

    criu = find_criu().command
    memory = Path("/dev/shm")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80%", "tmpfs", str(memory)], check=True)
    store = Store.open(place / "store")
    root = start(place, ranks, fixed)
    wait_for(place, ranks, 10)
    with Hold(root, place=memory) as held:
        held.dump(criu)
        held.go_on()
        yield "frozen_s", held.held_seconds or 0.0
        yield "image_mib", sum(it.stat().st_size for it in held.images.iterdir()) / (1 << 20)
        begun = time.monotonic()
        with store.write("job") as writer:
            first = ingest(writer, held.images)
            writer.commit()
        yield "ingest_s", time.monotonic() - begun
    wait_for(place, ranks, steps_of(place, ranks) + steps)
    with Hold(root, place=memory) as held:
        held.dump(criu)
        done = steps_of(place, ranks)
        with store.write("job") as writer:
            second = ingest(writer, held.images)
            checkpoint = writer.commit().checkpoint
        held.end()
    with contextlib.suppress(ChildProcessError):  # all of them, as this is the first process in here
        while os.waitpid(-1, 0):
            pass
    unique = first.packing.unique_pages * 4096
    yield "stored_over_unique", first.contents_bytes / unique
    yield "second_over_first", second.contents_bytes / first.contents_bytes
    yield "host_unique_ratio", first.packing.unique_pages / (first.packing.pages - first.packing.zero_pages)
    yield "compressed", first.stored_bytes / first.contents_bytes
    begun = time.monotonic()
    with store.read(checkpoint) as reader:
        restore(reader, place=memory, criu=criu)
    yield "restore_s", time.monotonic() - begun
    wait_for(place, ranks, done + 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20, help="between the two checkpoints")
    parser.add_argument("--role", choices=["job", "rank", "measure", "measure-fixed"], help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--place", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.role == "job":
        be_job(given.place, given.ranks)
    elif given.role == "rank":
        train(given.rank, given.ranks, given.place / f"rank-{given.rank}")
    elif given.role:
        from singularity_core.checkpoint.criu_trial import _raise_loopback

        _raise_loopback()
        found = dict(measure(given.place, given.ranks, given.steps, given.role == "measure-fixed"))
        print(json.dumps(found))
    else:
        compare(given)


def compare(given: argparse.Namespace) -> None:
    """Each in a box of its own."""
    from ranks import report

    results: dict[str, float] = {}
    for prefix, role in (("aslr", "measure"), ("fixed", "measure-fixed")):
        place = Path(tempfile.mkdtemp(prefix="host-image-"))
        try:
            inputs = ["--place", str(place), "--ranks", str(given.ranks), "--steps", str(given.steps)]
            ended = subprocess.run(
                [*BOX, sys.executable, __file__, "--role", role, *inputs],
                stdout=subprocess.PIPE,
                text=True,
                check=False,
            )
            if ended.returncode != 0:
                raise SystemExit(f"{role} ended with {ended.returncode}")
            results |= {f"{prefix}_{key}": value for key, value in json.loads(ended.stdout).items()}
        finally:
            shutil.rmtree(place, ignore_errors=True)
    stated = {"ranks": given.ranks, "loaders per rank": LOADERS, "steps between": given.steps}
    report("host image", results, {**stated, "processors": os.cpu_count()}, given.json)


if __name__ == "__main__":
    main()
