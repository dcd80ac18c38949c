"""Runs one of the examples, no step of which begins before it may (gate.py): gated.py FOLDER EXAMPLE ..."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))
from gate import Gate


def main() -> None:
    gate, name = Gate(Path(sys.argv[1])), sys.argv[2]
    del sys.argv[1:3]
    example = importlib.import_module(name)
    if name == "train_ddp":
        example.Trainer.step = _held(example.Trainer.step, gate)
    elif name == "train_3d":
        example.Stage.step = _held(example.Stage.step, gate)
    elif name == "train_digits":
        make = example.make_step
        example.make_step = lambda *arguments: _held(make(*arguments), gate)
    else:
        sys.exit(f"who steps in {name}?")
    example.main()


def _held(step: Callable[..., Any], gate: Gate) -> Callable[..., Any]:
    """`step`, when it may begin."""

    def run(*arguments: Any) -> Any:
        gate.begin()
        return step(*arguments)

    return run


if __name__ == "__main__":
    main()
