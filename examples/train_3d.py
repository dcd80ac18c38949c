"""Trains a toy transformer with tensor, pipeline and data parallelism at once, by plain tinygrad and NCCL.

Nothing here knows of Singularity HAL.  Ranks are numbered as in Megatron: tensor parallel varies fastest,
then data parallel, then the pipeline stage.

    singularity-run --backend fake --nproc-per-node 8 --devices 4 \\
        --tensor-parallel 2 --pipeline-parallel 2 examples/train_3d.py --tensor 2 --pipeline 2

What each dimension does, as in Megatron-LM:

* tensor: attention heads and hidden units are dealt out; each half of a layer ends with an all-reduce,
  forward of its output and backward of its input's gradient;
* pipeline: each stage has some of the layers; activations go on by send and receive, gradients come back;
* data: each replica has its part of the batch, and gradients are averaged;
* the first and the last stage share the embedding: an embedding group adds up its two gradients;
* the loss is known, and averaged, on the last stage only.

The first rank of the last stage prints the losses, rank 0 a digest of all ranks' weights.  The task: predict
the next token of sequences that follow a fixed permutation.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from bookkeeping import Log
from nccl_ranks import AVERAGE, NO_COLOR, SUM, Communicator, Place
from tinygrad import Context, Device, Tensor, TinyJit, dtypes
from tinygrad.helpers import Target

VOCABULARY, LENGTH, WIDTH, HEADS, HIDDEN = 32, 16, 32, 4, 64
LEARNING_RATE = 0.5


def address_of(tensor: Tensor) -> int:
    """Where a realised tensor lies in device memory."""
    return int(tensor.uop.base.buffer.ensure_allocated()._buf.value)


# ---- the model, in pieces that need no other rank --------------------------------------------------------


def normalised(x: Tensor) -> Tensor:
    """Root-mean-square normalisation without weights: then no gradient of it needs a group of its own."""
    return x * (x.square().mean(axis=-1, keepdim=True) + 1e-5).rsqrt()


def attention(x: Tensor, qkv: Tensor, out: Tensor) -> Tensor:
    """What this rank's heads add to the sum that the tensor group makes."""
    batch, size = x.shape[0], WIDTH // HEADS
    heads = qkv.shape[1] // (3 * size)
    q, k, v = (normalised(x) @ qkv).reshape(batch, LENGTH, 3, heads, size).permute(2, 0, 3, 1, 4)
    future = Tensor.full((LENGTH, LENGTH), -1e9).triu(1)
    mixed = (q @ k.transpose(-2, -1) * size**-0.5 + future).softmax(-1) @ v
    return mixed.permute(0, 2, 1, 3).reshape(batch, LENGTH, heads * size) @ out


def perceptron(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """What this rank's hidden units add to the sum that the tensor group makes."""
    return (normalised(x) @ up).silu() @ down


def cross_entropy(x: Tensor, targets: Tensor, embedding: Tensor) -> Tensor:
    """The loss of a microbatch; `targets` are one-hot."""
    logits = normalised(x) @ embedding.transpose()
    return -(targets * logits.log_softmax(-1)).sum(-1).mean()


def together(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Realises all of them at once."""
    whole = [tensor.contiguous() for tensor in tensors]
    Tensor.realize(*whole)
    return whole


def kept(tensor: Tensor) -> Tensor:
    """A copy: what a TinyJit answers is overwritten by its next call."""
    return tensor.clone().realize()


class Half:
    """Half of a layer: y = x + the sum over the tensor group of part(x).  Backward, it computes part(x)
    again."""

    def __init__(
        self, part: Callable[[Tensor, Tensor, Tensor], Tensor], weights: Sequence[Tensor], group: Communicator
    ) -> None:
        self.weights, self._group = list(weights), group
        self._part = TinyJit(lambda x: together([part(x, *weights)])[0])
        self._gradients = TinyJit(
            lambda x, dy: together(part(x, *weights).gradient(x, *weights, gradient=dy))
        )
        self._sum = TinyJit(lambda x, y: together([x + y])[0])

    def forward(self, x: Tensor) -> Tensor:
        """The output, the same on all ranks of the tensor group."""
        partial = self._part(x)
        self._group.all_reduce(address_of(partial), partial.numel(), SUM)
        return kept(self._sum(x, partial))

    def backward(self, x: Tensor, dy: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The gradient of the input, the same on all ranks of the tensor group; and those of the weights."""
        dx, *gradients = self._gradients(x, dy)
        self._group.all_reduce(address_of(dx), dx.numel(), SUM)
        return kept(self._sum(dy, dx)), [kept(gradient) for gradient in gradients]


# ---- the ranks -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Grid:
    """Sizes of the three dimensions, and this rank's place in them."""

    tensor: int
    data: int
    pipeline: int
    rank: int

    @property
    def t(self) -> int:
        return self.rank % self.tensor

    @property
    def d(self) -> int:
        return self.rank // self.tensor % self.data

    @property
    def p(self) -> int:
        return self.rank // (self.tensor * self.data)

    @property
    def first(self) -> bool:
        return self.p == 0

    @property
    def last(self) -> bool:
        return self.p == self.pipeline - 1

    def neighbour(self, step: int) -> int:
        """The rank that does the same in the stage after (1) or before (-1)."""
        return self.rank + step * self.tensor * self.data


class Stage:
    """This rank's layers, and all that it shares with others."""

    def __init__(self, grid: Grid, layers: int, seed: int, world: Communicator) -> None:
        self.grid, self.world = grid, world
        self.tensor_group = world.split(grid.d + grid.data * grid.p)
        self.data_group = world.split(grid.t + grid.tensor * grid.p)
        ends = grid.first or grid.last
        self.embedding_group = world.split(grid.t + grid.tensor * grid.d if ends else NO_COLOR)
        self.last_stage = world.split(0 if grid.last else NO_COLOR)
        draw = np.random.default_rng(seed)
        embedding = draw.standard_normal((VOCABULARY, WIDTH)) * 0.5
        self.embedding = on_device(embedding) if ends else None
        self.halves: list[Half] = []
        for layer in range(layers):
            halves = self._layer(draw)
            if layer * grid.pipeline // layers == grid.p:
                self.halves += halves()
        self.weights = [weight for half in self.halves for weight in half.weights]
        self._embed = TinyJit(lambda tokens: together([tokens @ self.embedding])[0])
        self._embed_gradient = TinyJit(
            lambda tokens, dx: together((tokens @ self.embedding).gradient(self.embedding, gradient=dx))[0]
        )
        self._head = TinyJit(self._head_gradients)
        self._collect, self._update = TinyJit(self._flat), TinyJit(self._apply)

    def _layer(self, draw: np.random.Generator) -> Callable[[], list[Half]]:
        """Draws a whole layer, as every rank does; answers how to make this rank's part of it."""
        t, parts, size = self.grid.t, self.grid.tensor, WIDTH // HEADS
        qkv = draw.standard_normal((WIDTH, 3, HEADS, size)) / WIDTH**0.5
        out = draw.standard_normal((HEADS, size, WIDTH)) / WIDTH**0.5
        up = draw.standard_normal((WIDTH, HIDDEN)) / WIDTH**0.5
        down = draw.standard_normal((HIDDEN, WIDTH)) / HIDDEN**0.5
        heads = slice(t * HEADS // parts, (t + 1) * HEADS // parts)
        units = slice(t * HIDDEN // parts, (t + 1) * HIDDEN // parts)

        def make() -> list[Half]:
            mine = on_device(qkv[:, :, heads].reshape(WIDTH, -1)), on_device(out[heads].reshape(-1, WIDTH))
            return [
                Half(attention, mine, self.tensor_group),
                Half(perceptron, (on_device(up[:, units]), on_device(down[units])), self.tensor_group),
            ]

        return make

    def _head_gradients(self, x: Tensor, targets: Tensor) -> list[Tensor]:
        loss = cross_entropy(x, targets, self.embedding)
        return together([loss, *loss.gradient(x, self.embedding)])

    def _flat(self, *gradients: Tensor) -> Tensor:
        """Mean over microbatches, all weights one behind the other."""
        count = len(self.weights) + (self.embedding is not None)
        each = len(gradients) // count
        sums = [sum(gradients[i * each + 1 : (i + 1) * each], gradients[i * each]) for i in range(count)]
        return together([Tensor.cat(*[total.flatten() for total in sums]) / self.microbatches])[0]

    def _apply(self, flat: Tensor) -> None:
        at, changed = 0, []
        for weight in [*self.weights, *([self.embedding] if self.embedding is not None else [])]:
            size = weight.numel()
            changed.append(weight.assign(weight - LEARNING_RATE * flat[at : at + size].reshape(weight.shape)))
            at += size
        Tensor.realize(*changed)

    # ---- one step ----

    def step(self, batches: Sequence[tuple[np.ndarray, np.ndarray]]) -> float | None:
        """Trains on this replica's microbatches; the loss of all replicas, on the last stage."""
        self.microbatches = len(batches)
        tokens = [on_device(one_hot(given)) for given, _ in batches] if self.grid.first else []
        targets = [on_device(one_hot(wanted)) for _, wanted in batches] if self.grid.last else []
        shape = (*batches[0][0].shape, WIDTH)
        saved: list[list[Tensor]] = []
        for number in range(len(batches)):
            x = kept(self._embed(tokens[number])) if self.grid.first else self._receive(shape, -1)
            saved.append([x])
            for half in self.halves:
                saved[number].append(half.forward(saved[number][-1]))
            if not self.grid.last:
                self.world.send(
                    address_of(saved[number][-1]), saved[number][-1].numel(), self.grid.neighbour(1)
                )
        gradients: list[list[Tensor]] = [[] for _ in self.weights]
        shared: list[Tensor] = []
        losses: list[Tensor] = []
        for number, inputs in enumerate(saved):
            if self.grid.last:
                loss, dx, of_embedding = map(kept, self._head(inputs[-1], targets[number]))
                losses.append(loss)
                shared.append(of_embedding)
            else:
                dx = self._receive(shape, 1)
            dx = self._backward(inputs, dx, gradients)
            if self.grid.first:
                shared.append(kept(self._embed_gradient(tokens[number], dx)))
            else:
                self.world.send(address_of(dx), dx.numel(), self.grid.neighbour(-1))
        self._learn([*gradients, *([shared] if shared else [])])
        return self._mean_loss(losses)

    def _backward(self, inputs: Sequence[Tensor], dx: Tensor, gradients: list[list[Tensor]]) -> Tensor:
        at = len(self.weights)
        for half, x in zip(reversed(self.halves), reversed(inputs[:-1]), strict=True):
            dx, found = half.backward(x, dx)
            at -= len(found)
            for offset, gradient in enumerate(found):
                gradients[at + offset].append(gradient)
        return dx

    def _receive(self, shape: tuple[int, ...], step: int) -> Tensor:
        x = Tensor.empty(*shape).contiguous().realize()
        self.world.receive(address_of(x), x.numel(), self.grid.neighbour(step))
        return x

    def _learn(self, gradients: list[list[Tensor]]) -> None:
        if self.grid.first and self.grid.last:  # both uses of the embedding are here
            gradients = [*gradients[:-1], self._pairs(gradients[-1])]
        flat = self._collect(*[gradient for several in gradients for gradient in several])
        if self.embedding is not None:
            size = self.embedding.numel()
            self.embedding_group.all_reduce(address_of(flat) + 4 * (flat.numel() - size), size, SUM)
        self.data_group.all_reduce(address_of(flat), flat.numel(), AVERAGE)
        self._update(flat)

    @staticmethod
    def _pairs(gradients: list[Tensor]) -> list[Tensor]:
        return [(a + b).realize() for a, b in zip(gradients[::2], gradients[1::2], strict=True)]

    def _mean_loss(self, losses: list[Tensor]) -> float | None:
        if self.last_stage is None:
            return None
        mean = (sum(losses[1:], losses[0]) / len(losses)).reshape(1).contiguous().realize()
        self.last_stage.all_reduce(address_of(mean), 1, AVERAGE)
        return float(mean.item())

    def digest(self) -> str:
        """Of the weights of all ranks, by rank."""
        weights = [*self.weights, *([self.embedding] if self.embedding is not None else [])]
        mine = hashlib.sha256(b"".join(weight.numpy().tobytes() for weight in weights)).digest()
        source = Tensor(np.frombuffer(mine, dtype=np.uint8).copy()).contiguous().realize()
        whole = Tensor.empty(self.world.size * len(mine), dtype=dtypes.uint8).contiguous().realize()
        self.world.all_gather(address_of(source), address_of(whole), len(mine))
        return hashlib.sha256(whole.numpy().tobytes()).hexdigest()[:32]

    def close(self) -> None:
        """Ends all communicators."""
        for group in (self.tensor_group, self.data_group, self.embedding_group, self.last_stage, self.world):
            if group is not None:
                group.close()


def on_device(values: np.ndarray) -> Tensor:
    """A float tensor of its own memory."""
    return Tensor(np.ascontiguousarray(values, dtype=np.float32)).realize()


def one_hot(tokens: np.ndarray) -> np.ndarray:
    """Zeroes and ones, VOCABULARY wide."""
    return np.eye(VOCABULARY, dtype=np.float32)[tokens]


def sequences(draw: np.random.Generator, count: int, next_token: np.ndarray) -> np.ndarray:
    """Sequences that begin anywhere and follow the permutation."""
    rows = [draw.integers(0, VOCABULARY, count)]
    for _ in range(LENGTH):
        rows.append(next_token[rows[-1]])
    return np.stack(rows, axis=1)


def train(grid: Grid, arguments: argparse.Namespace, place: Place) -> dict[str, object]:
    stage = Stage(grid, arguments.layers, arguments.seed, Communicator.of_all_ranks(place))
    draw = np.random.default_rng(arguments.seed + 1)
    next_token = draw.permutation(VOCABULARY)
    losses: list[float] = []
    log = Log(Path(f"{arguments.log}.{grid.rank}")) if arguments.log else None
    for number in range(1, arguments.steps + 1):
        rows = sequences(draw, arguments.batch, next_token)
        mine = np.split(np.split(rows, grid.data)[grid.d], arguments.microbatches)
        loss = stage.step([(part[:, :-1], part[:, 1:]) for part in mine])
        if log is not None:
            log.step(number, loss, hashlib.sha256(rows.tobytes()).hexdigest()[:16])
        if loss is not None:
            losses.append(loss)
            if grid.t == grid.d == 0 and (number % 5 == 0 or number in (1, arguments.steps)):
                print(f"step {number:4d}  loss {loss:.4f}", flush=True)
    digest = stage.digest()
    if grid.rank == 0:
        print(f"weights {digest}", flush=True)
    stage.close()
    return {"losses": [loss.hex() for loss in losses], "weights": digest}


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a toy transformer in three dimensions.")
    parser.add_argument("--tensor", type=int, default=2, help="ranks that share each layer (default 2)")
    parser.add_argument("--pipeline", type=int, default=2, help="stages (default 2)")
    parser.add_argument("--layers", type=int, default=2, help="of the whole model (default 2)")
    parser.add_argument("--steps", type=int, default=20, help="training steps (default 20)")
    parser.add_argument("--batch", type=int, default=32, help="sequences per step, of all ranks (default 32)")
    parser.add_argument("--microbatches", type=int, default=2, help="of each replica (default 2)")
    parser.add_argument("--seed", type=int, default=1, help="of weights and sequences (default 1)")
    parser.add_argument("--json", metavar="DIR", help="write rank-N.json there: exact losses and digest")
    parser.add_argument("--log", metavar="FILE", help="append number, loss and data of each step to FILE.N")
    arguments = parser.parse_args()
    place = Place.from_environment()
    data, rest = divmod(place.world, arguments.tensor * arguments.pipeline)
    if rest or arguments.layers % arguments.pipeline or HEADS % arguments.tensor:
        parser.error(f"{place.world} ranks or {arguments.layers} layers cannot be dealt out evenly")
    if arguments.batch % (max(data, 1) * arguments.microbatches):
        parser.error(f"--batch {arguments.batch} cannot be dealt to {data} replicas evenly")
    grid = Grid(arguments.tensor, data, arguments.pipeline, place.rank)
    if arguments.json:
        Path(arguments.json).mkdir(parents=True, exist_ok=True)  # now, not after the training
    with Context(DEV=[Target(device=f"CUDA:{place.local_rank}")]):
        Device[Device.DEFAULT]  # opens it: its context is current from here on
        result = train(grid, arguments, place)
    if arguments.json:
        path = Path(arguments.json) / f"rank-{place.rank}.json"
        path.write_text(json.dumps(result) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
