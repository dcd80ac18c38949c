"""Trains a small convolutional network on scikit-learn's handwritten digits with plain tinygrad.

Nothing here knows of Singularity HAL: the device is whatever tinygrad picks (``DEV=CUDA`` for a GPU or
for the in-memory device).  It needs ``tinygrad``, ``scikit-learn`` and, for ``DEV=CUDA``, NVRTC:

    pip install tinygrad scikit-learn nvidia-cuda-nvrtc nvidia-cuda-runtime
    DEV=CUDA singularity-run --backend fake examples/train_digits.py --steps 200

With the CUDA wheels from PyPI, tell tinygrad where they are: ``NVRTC_PATH`` (libnvrtc.so.13) and
``CUDA_PATH`` (the directory that holds include/).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import numpy as np
from sklearn.datasets import load_digits
from tinygrad import Context, Tensor, TinyJit, nn

TEST_IMAGES = 360


class DigitNet:
    """Two convolutions with batch normalisation, one hidden layer, ten classes; 8 x 8 images.

    Everything in it is smooth (SiLU, average pooling).  With ReLU and maxima the last bit decides, every few
    steps, where a gradient goes, and a run could not be compared with that of another device."""

    def __init__(self) -> None:
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.norm1 = nn.BatchNorm(16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.norm2 = nn.BatchNorm(32)
        self.hidden = nn.Linear(32 * 4, 64)
        self.classes = nn.Linear(64, 10)

    def __call__(self, images: Tensor) -> Tensor:
        x = self.norm1(self.conv1(images)).silu().avg_pool2d()
        x = self.norm2(self.conv2(x)).silu().avg_pool2d()
        return self.classes(self.hidden(x.flatten(1)).silu())


def split_digits(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns shuffled (train images, train labels, test images, test labels), images in 0..1."""
    digits = load_digits()
    order = np.random.default_rng(seed).permutation(len(digits.target))
    images = (digits.images[order] / 16.0).astype(np.float32)[:, None]
    labels = digits.target[order].astype(np.int32)
    return images[TEST_IMAGES:], labels[TEST_IMAGES:], images[:TEST_IMAGES], labels[:TEST_IMAGES]


def initialise(model: DigitNet, seed: int) -> None:
    """Gives every weight a value drawn on the host, so that a run starts the same on every device."""
    draw = np.random.default_rng(seed)
    for name, weight in nn.state.get_state_dict(model).items():
        if "norm" in name or "num_batches" in name:
            continue
        fan_in = int(np.prod(weight.shape[1:])) if len(weight.shape) > 1 else 64
        values = draw.uniform(-1.0, 1.0, weight.shape) / np.sqrt(fan_in)
        weight.assign(Tensor(values.astype(np.float32))).realize()


def make_step(model: DigitNet, optimizer: nn.optim.Optimizer) -> Callable[[Tensor, Tensor], Tensor]:
    @TinyJit
    def step(images: Tensor, labels: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(images).sparse_categorical_crossentropy(labels).backward()
        return loss.realize(*optimizer.schedule_step())

    return step


def accuracy(model: DigitNet, images: np.ndarray, labels: np.ndarray) -> float:
    with Context(TRAINING=0):
        predicted = model(Tensor(images)).argmax(axis=1).numpy()
    return float((predicted == labels).mean())


def train(steps: int, optimizer_name: str, seed: int, batch: int, quiet: bool) -> dict[str, object]:
    train_images, train_labels, test_images, test_labels = split_digits(seed)
    model = DigitNet()
    initialise(model, seed)
    parameters = nn.state.get_parameters(model)
    optimizer = (
        nn.optim.Adam(parameters, lr=0.003)
        if optimizer_name == "adam"
        else nn.optim.SGD(parameters, lr=0.05, momentum=0.9)
    )
    step = make_step(model, optimizer)
    draw = np.random.default_rng(seed + 1)
    losses: list[float] = []
    step_seconds: list[float] = []
    with Context(TRAINING=1):
        for number in range(1, steps + 1):
            chosen = draw.integers(0, len(train_labels), batch)
            started = time.perf_counter()
            loss = step(Tensor(train_images[chosen]).realize(), Tensor(train_labels[chosen]).realize()).item()
            step_seconds.append(time.perf_counter() - started)
            losses.append(float(loss))
            if not quiet and (number % 20 == 0 or number == 1 or number == steps):
                print(f"step {number:4d}  loss {loss:.4f}", flush=True)
    final = accuracy(model, test_images, test_labels)
    if not quiet:
        print(f"test accuracy {100 * final:.2f} %", flush=True)
    return {
        "optimizer": optimizer_name,
        "steps": steps,
        "seed": seed,
        "batch": batch,
        "losses": [loss.hex() for loss in losses],
        "accuracy": final,
        "step_seconds": step_seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a digit classifier with tinygrad.")
    parser.add_argument("--steps", type=int, default=150, help="training steps (default 150)")
    parser.add_argument("--batch", type=int, default=64, help="images per step (default 64)")
    parser.add_argument("--optimizer", choices=("adam", "sgd"), default="adam")
    parser.add_argument("--seed", type=int, default=1, help="of split, weights and batches (default 1)")
    parser.add_argument(
        "--json", metavar="FILE", help="write losses (hexadecimal floats, exact) and accuracy there"
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing")
    arguments = parser.parse_args()
    result = train(arguments.steps, arguments.optimizer, arguments.seed, arguments.batch, arguments.quiet)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as output:
            json.dump(result, output)
            output.write("\n")


if __name__ == "__main__":
    main()
