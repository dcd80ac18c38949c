"""Hand-written CUDA C and PTX on the in-memory device, against numpy; natively and through a proxy."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parent / "programs"
MODES = ("native", "proxied")
# read from the text, so that collecting tests neither imports nor runs what belongs into a rank
CASES = sorted(
    name
    for source in PROGRAMS.glob("*.py")
    for name in re.findall(r"^@case\ndef (\w+)\(", source.read_text(), re.MULTILINE)
)


@dataclass
class Outcomes:
    """Error text by case (None: passed), of one mode; a crash ends one case, and the rest is run again."""

    mode: str
    errors: dict[str, str | None] = field(default_factory=dict)


def _run_all(run_rank: Any, mode: str, results: Path) -> Outcomes:
    outcomes, remaining = Outcomes(mode), list(CASES)
    while remaining:
        done = run_rank(mode, PROGRAMS / "run_cases.py", str(results), *remaining, timeout=280, check=False)
        lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
        results.unlink(missing_ok=True)
        outcomes.errors |= {line["case"]: line["error"] for line in lines if "error" in line}
        if lines and "started" in lines[-1]:
            outcomes.errors[lines[-1]["case"]] = (
                f"the rank ended with {done.returncode}\n{done.stderr[-3000:]}"
            )
        elif not lines:
            pytest.fail(
                f"no case ran ({mode}); the rank ended with {done.returncode}\n"
                f"{done.stdout}\n{done.stderr[-3000:]}"
            )
        remaining = [name for name in remaining if name not in outcomes.errors]
    return outcomes


@pytest.fixture(scope="module", params=MODES)
def outcomes(
    request: pytest.FixtureRequest, run_rank: Any, tmp_path_factory: pytest.TempPathFactory
) -> Outcomes:
    return _run_all(run_rank, request.param, tmp_path_factory.mktemp("kernels") / "results.jsonl")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES)
def test_kernel_agrees_with_numpy(outcomes: Outcomes, case: str) -> None:
    """A kernel's results are numpy's, bit for bit or within the bound that the CUDA manual gives."""
    error = outcomes.errors[case]
    assert error is None, f"{case} ({outcomes.mode})\n{error}"
