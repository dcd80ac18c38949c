"""A rank that does one tinygrad training step whenever it is told to.

    tinygrad_steps.py SOCKET EXAMPLES_DIRECTORY

Each byte that arrives is one step of examples/train_digits.py; the answer is its nanoseconds and a newline.
"""

from __future__ import annotations

import socket
import sys
import time

sys.path.insert(0, sys.argv[2])
import train_digits
from tinygrad import Context, Tensor, nn


def main() -> None:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(sys.argv[1])
    images, labels, _, _ = train_digits.split_digits(1)
    model = train_digits.DigitNet()
    train_digits.initialise(model, 1)
    step = train_digits.make_step(model, nn.optim.Adam(nn.state.get_parameters(model), lr=0.003))
    with Context(TRAINING=1):
        while connection.recv(1):
            start = time.perf_counter_ns()
            step(Tensor(images[:64]).realize(), Tensor(labels[:64]).realize()).item()
            connection.sendall(f"{time.perf_counter_ns() - start}\n".encode())


if __name__ == "__main__":
    main()
