"""Whether jobs can be taken into checkpoints here."""

from __future__ import annotations

import pytest

from singularity_core.box.errors import BoxUnavailableError
from singularity_core.box.trial import try_box
from singularity_core.checkpoint.criu import CriuUnavailableError, find_criu


@pytest.fixture(scope="session")
def movable() -> None:
    """Skips where they cannot, and says why."""
    try:
        try_box()
        find_criu()
    except (BoxUnavailableError, CriuUnavailableError) as error:
        pytest.skip(f"no checkpoints of jobs here: {error}")
