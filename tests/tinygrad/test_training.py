"""A tinygrad network trained on the in-memory device: proxied as natively, and as tinygrad's CPU does."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_digits.py"
STEPS = 60


def _read(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(path.read_text())
    result["losses"] = [float.fromhex(text) for text in result["losses"]]
    return result


@pytest.fixture(scope="module")
def trained(run_rank: Any, rank_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """`trained(where, optimizer)`: a run's losses and accuracy: native, proxied, or on tinygrad's CPU."""
    directory, known = tmp_path_factory.mktemp("training"), {}

    def train(where: str, optimizer: str) -> dict[str, Any]:
        if (where, optimizer) not in known:
            answer = directory / f"{where}-{optimizer}.json"
            arguments = ["--steps", str(STEPS), "--optimizer", optimizer, "--json", str(answer), "--quiet"]
            if where == "cpu":
                if shutil.which("clang") is None:
                    pytest.skip("tinygrad's CPU device needs clang")
                subprocess.run(
                    [sys.executable, str(EXAMPLE), *arguments],
                    check=True,
                    timeout=240,
                    env={**rank_environment, "DEV": "CPU"},
                )
            else:
                run_rank(where, EXAMPLE, *arguments, timeout=280)
            known[where, optimizer] = _read(answer)
        return known[where, optimizer]

    return train


OPTIMIZERS = pytest.mark.parametrize("optimizer", [pytest.param("sgd", marks=pytest.mark.long), "adam"])


@pytest.mark.timeout(600)
@OPTIMIZERS
def test_proxied_losses_are_native_losses_bit_for_bit(trained: Any, optimizer: str) -> None:
    """With TinyJit and CUDA graphs on, every loss through the proxy equals the native one exactly."""
    native, proxied = trained("native", optimizer), trained("proxied", optimizer)
    assert proxied["losses"] == native["losses"]
    assert proxied["accuracy"] == native["accuracy"]


@pytest.mark.timeout(600)
@OPTIMIZERS
def test_losses_and_accuracy_agree_with_the_cpu_device(trained: Any, optimizer: str) -> None:
    """50 losses stay within 1e-4 of those of tinygrad's CPU device; the accuracy ends within 1 %."""
    ours, theirs = trained("native", optimizer), trained("cpu", optimizer)
    assert ours["losses"][:50] == pytest.approx(theirs["losses"][:50], rel=1e-4)
    assert ours["accuracy"] == pytest.approx(theirs["accuracy"], abs=0.01)


@pytest.mark.timeout(600)
def test_training_learns_the_digits(run_rank: Any, tmp_path: Path) -> None:
    """The example as shipped recognises more than 95 % of digits that it never saw."""
    answer = tmp_path / "full.json"
    run_rank("proxied", EXAMPLE, "--json", str(answer), timeout=280)
    assert _read(answer)["accuracy"] > 0.95
