"""tinygrad's operations on the in-memory device, against numpy in float64; natively and through a proxy."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PROGRAMS = Path(__file__).parent / "programs"
MODES = ("native", "proxied")


sys.path.insert(0, str(PROGRAMS))
CASES: dict[str, Any] = importlib.import_module("operations").CASES


def _finished(directory: Path, name: str) -> bool:
    return (directory / f"{name}.npy").exists() or (directory / f"{name}.error").exists()


@pytest.fixture(scope="module", params=MODES)
def results(request: pytest.FixtureRequest, run_rank: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of results; a crash ends one case, and the rest is run again."""
    directory = tmp_path_factory.mktemp(f"operations-{request.param}")
    remaining = list(CASES)
    while remaining:
        done = run_rank(
            request.param,
            PROGRAMS / "run_operations.py",
            str(directory),
            *remaining,
            timeout=540,
            check=False,
        )
        started = (directory / "started").read_text() if (directory / "started").exists() else None
        if started is None:
            pytest.fail(
                f"no operation ran; the rank ended with {done.returncode}\n"
                f"{done.stdout}\n{done.stderr[-3000:]}"
            )
        if started and not _finished(directory, started):
            (directory / f"{started}.error").write_text(
                f"the rank ended with {done.returncode}\n{done.stderr[-3000:]}"
            )
        remaining = [name for name in remaining if not _finished(directory, name)]
    return directory


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted(CASES))
def test_operation_agrees_with_numpy(results: Path, name: str) -> None:
    """An operation's result has numpy's shape and values, within its type's tolerance."""
    case = CASES[name]
    error = results / f"{name}.error"
    assert not error.exists(), f"{name} ({results.name})\n{error.read_text()}"
    got, expected = np.load(results / f"{name}.npy"), case.expected()
    assert got.shape == expected.shape
    if expected.dtype.kind in "iub" and got.dtype.kind in "iub":
        np.testing.assert_array_equal(got, expected)
    else:
        np.testing.assert_allclose(
            got.astype(np.float64), expected.astype(np.float64), rtol=case.relative, atol=case.absolute
        )
