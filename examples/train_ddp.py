"""Trains a small convolutional network on handwritten digits, data-parallel, with plain tinygrad and NCCL.

Nothing here knows of Singularity HAL: every process takes device LOCAL_RANK, computes the gradients of its
part of the batch, and averages them with the other processes' over NCCL.  It needs what train_digits.py does:

    singularity-run --backend fake --nproc-per-node 4 --devices 1 examples/train_ddp.py --steps 50
    torchrun --nproc-per-node 4 examples/train_ddp.py           # on four GPUs

With --loaders, --log, --save and --watch it has what training scripts have besides (bookkeeping.py).

The mean of the parts' gradients is the gradient of the whole batch, because the parts are equal and nothing
in the network looks across images.  So a run with one process and the same `--batch` gives the same losses,
but for rounding; and runs with equally many processes give the same bits on however many devices.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
from bookkeeping import Batches, Log, Saver, Watch
from nccl_ranks import AVERAGE, Communicator, Place
from tinygrad import Context, Device, Tensor, TinyJit, nn
from tinygrad.helpers import Target
from train_digits import split_digits


class DigitNet:
    """Two convolutions with group normalisation, one hidden layer, ten classes; 8 x 8 images.  Smooth, so
    that losses can be compared."""

    def __init__(self) -> None:
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.norm1 = nn.GroupNorm(4, 16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.norm2 = nn.GroupNorm(4, 32)
        self.hidden = nn.Linear(32 * 4, 64)
        self.classes = nn.Linear(64, 10)

    def __call__(self, images: Tensor) -> Tensor:
        x = self.norm1(self.conv1(images)).silu().avg_pool2d()
        x = self.norm2(self.conv2(x)).silu().avg_pool2d()
        return self.classes(self.hidden(x.flatten(1)).silu())


def initialise(model: DigitNet, seed: int) -> None:
    """Gives every weight a value drawn on the host, the same in every process."""
    draw = np.random.default_rng(seed)
    for name, weight in nn.state.get_state_dict(model).items():
        if "norm" not in name:
            fan_in = int(np.prod(weight.shape[1:])) if len(weight.shape) > 1 else 64
            values = draw.uniform(-1.0, 1.0, weight.shape) / np.sqrt(fan_in)
            weight.assign(Tensor(values.astype(np.float32)))
        weight.realize()


def address_of(tensor: Tensor) -> int:
    """Where a realised tensor lies in device memory."""
    return int(tensor.uop.base.buffer.ensure_allocated()._buf.value)


class Trainer:
    """One process's model and optimizer.  A step is three pieces of work on the device's default stream:
    gradients into one flat buffer, with the loss behind them; its average over all processes; the update."""

    def __init__(self, place: Place, optimizer: str, seed: int) -> None:
        self.model = DigitNet()
        initialise(self.model, seed)
        self.parameters = nn.state.get_parameters(self.model)
        self.optimizer = (
            nn.optim.Adam(self.parameters, lr=0.003)
            if optimizer == "adam"
            else nn.optim.SGD(self.parameters, lr=0.05, momentum=0.9)
        )
        self.count = sum(int(np.prod(parameter.shape)) for parameter in self.parameters) + 1
        self.group = Communicator.of_all_ranks(place) if place.world > 1 else None
        self.gradients, self.update = self._make_gradients(), self._make_update()

    def _make_gradients(self) -> Callable[[Tensor, Tensor], Tensor]:
        @TinyJit
        def gradients(images: Tensor, labels: Tensor) -> Tensor:
            loss = self.model(images).sparse_categorical_crossentropy(labels)
            parts = loss.gradient(*self.parameters)
            return Tensor.cat(*[part.flatten() for part in parts], loss.reshape(1)).contiguous().realize()

        return gradients

    def _make_update(self) -> Callable[[Tensor], Tensor]:
        @TinyJit
        def update(flat: Tensor) -> Tensor:
            at = 0
            for parameter in self.parameters:
                size = int(np.prod(parameter.shape))
                parameter.grad = flat[at : at + size].reshape(parameter.shape)
                at += size
            loss = flat[at].contiguous()
            return loss.realize(*self.optimizer.schedule_step())

        return update

    def step(self, images: np.ndarray, labels: np.ndarray) -> float:
        """One step on this process's part of the batch; the loss of the whole batch."""
        flat = self.gradients(Tensor(images).realize(), Tensor(labels).realize())
        if self.group is not None:
            self.group.all_reduce(address_of(flat), self.count, AVERAGE)
        return float(self.update(flat).item())

    def accuracy(self, images: np.ndarray, labels: np.ndarray) -> float:
        """Of this process's copy of the model; all copies are the same."""
        with Context(TRAINING=0):
            predicted = self.model(Tensor(images)).argmax(axis=1).numpy()
        return float((predicted == labels).mean())

    def weights(self) -> dict[str, np.ndarray]:
        """All weights, by name."""
        return {name: weight.numpy() for name, weight in sorted(nn.state.get_state_dict(self.model).items())}


def digest(weights: dict[str, np.ndarray]) -> str:
    """Of all weights, bit for bit."""
    return hashlib.sha256(b"".join(weight.tobytes() for weight in weights.values())).hexdigest()[:32]


class Observer:
    """Tells people, files and other ranks how each step went, as far as they were asked for."""

    def __init__(self, place: Place, arguments: argparse.Namespace, trainer: Trainer) -> None:
        self._trainer, self._steps, self._every = trainer, arguments.steps, arguments.save_every
        self._talks = place.rank == 0 and not arguments.quiet
        log_name = arguments.log if place.rank == 0 else f"{arguments.log}.{place.rank}"
        self._log = Log(Path(log_name)) if arguments.log else None
        self._saver = Saver(Path(arguments.save)) if arguments.save and place.rank == 0 else None
        self._watch = Watch(place) if arguments.watch and place.world > 1 else None

    def step(self, number: int, loss: float, order: str) -> None:
        """After each step."""
        if self._log is not None:
            self._log.step(number, loss, order)
        if self._watch is not None:
            self._watch.step(number, loss)
        if self._saver is not None and number % self._every == 0:
            self._saver.save(number, self._trainer.weights())
        if self._talks and (number % 20 == 0 or number in (1, self._steps)):
            print(f"step {number:4d}  loss {loss:.4f}", flush=True)

    def close(self) -> None:
        """After the last step: returns when all is written, and all ranks agree."""
        for part in (self._log, self._saver, self._watch):
            if part is not None:
                part.close()


def train(
    place: Place, arguments: argparse.Namespace, batches: Batches, test: tuple[np.ndarray, np.ndarray]
) -> tuple[dict[str, object], dict[str, np.ndarray]]:
    """What is worth telling, and the weights."""
    trainer = Trainer(place, arguments.optimizer, arguments.seed)
    losses, step_seconds = [], []
    with Context(TRAINING=1):
        observer = Observer(place, arguments, trainer)
        for number, batch in enumerate(batches, 1):
            started = time.perf_counter()
            loss = trainer.step(batch.images, batch.labels)
            step_seconds.append(time.perf_counter() - started)
            losses.append(loss)
            observer.step(number, loss, batch.order)
    observer.close()
    accuracy, weights = trainer.accuracy(*test), trainer.weights()
    if place.rank == 0 and not arguments.quiet:
        print(f"test accuracy {100 * accuracy:.2f} %", flush=True)
    if not arguments.quiet:
        print(f"rank {place.rank}: weights {digest(weights)}", flush=True)
    if trainer.group is not None:
        trainer.group.close()
    found = {
        "world": place.world,
        "losses": [loss.hex() for loss in losses],
        "accuracy": accuracy,
        "weights": digest(weights),
        "step_seconds": step_seconds,
    }
    return found, weights


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a digit classifier in several processes.")
    parser.add_argument("--steps", type=int, default=100, help="training steps (default 100)")
    parser.add_argument(
        "--batch", type=int, default=64, help="images per step, of all processes (default 64)"
    )
    parser.add_argument("--optimizer", choices=("adam", "sgd"), default="sgd")
    parser.add_argument("--seed", type=int, default=1, help="of split, weights and batches (default 1)")
    parser.add_argument(
        "--json",
        metavar="DIR",
        help="write rank-N.json there (exact losses, digest, accuracy), and the weights as rank-N.npz",
    )
    parser.add_argument(
        "--loaders", type=int, default=0, help="processes per rank that load data (default 0)"
    )
    parser.add_argument(
        "--log", metavar="FILE", help="append number, loss and data order of each step (rank N: FILE.N)"
    )
    parser.add_argument("--save", metavar="DIR", help="write weights there, as step-N.npz")
    parser.add_argument("--save-every", type=int, default=10, help="after so many steps (default 10)")
    parser.add_argument("--watch", action="store_true", help="compare all ranks' losses, over TCP")
    parser.add_argument("--quiet", action="store_true", help="print nothing")
    arguments = parser.parse_args()
    place = Place.from_environment()
    if arguments.batch % place.world != 0:
        parser.error(f"--batch {arguments.batch} cannot be dealt to {place.world} processes evenly")
    if arguments.json:
        Path(arguments.json).mkdir(parents=True, exist_ok=True)  # now, not after the training
    train_images, train_labels, *test = split_digits(arguments.seed)
    batches = Batches(
        (train_images, train_labels), seed=arguments.seed + 1, size=arguments.batch, count=arguments.steps,
        place=place, loaders=arguments.loaders,
    )  # fmt: skip
    with closing(batches), Context(DEV=[Target(device=f"CUDA:{place.local_rank}")]):
        Device[Device.DEFAULT]  # opens it: its context is current from here on
        result, weights = train(place, arguments, batches, (test[0], test[1]))
    if arguments.json:
        path = Path(arguments.json) / f"rank-{place.rank}.json"
        np.savez(path.with_suffix(".npz"), **weights)
        path.write_text(json.dumps(result) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
