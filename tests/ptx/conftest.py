"""Fixtures of the PTX compiler's tests: a cache of their own, and the vendor's compiler."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty object cache, named by the environment as users name it."""
    path = tmp_path / "objects"
    monkeypatch.setenv("SINGULARITY_FAKE_CACHE", str(path))
    return path
