"""Errors carry what happened, what to do, and a code that survives the way through C."""

from __future__ import annotations

import pickle

import pytest

from singularity_core.hal import errors
from singularity_core.hal.errors import HalError, error_from_code

KINDS = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, HalError)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.__name__)
def test_every_error_has_cause_and_remedy(kind: type[HalError]) -> None:
    """The message is the cause and the remedy; a class has a remedy of its own."""
    error = kind("It broke.")
    assert error.cause == "It broke."
    assert error.remedy
    assert str(error) == f"It broke. {error.remedy}"
    assert kind("It broke.", remedy="Mend it.").remedy == "Mend it."


@pytest.mark.parametrize("kind", [k for k in KINDS if k is not HalError], ids=lambda k: k.__name__)
def test_code_leads_back_to_the_class(kind: type[HalError]) -> None:
    """The code of each class makes an error of that class, with the call and the driver's words in it."""
    error = error_from_code(kind.code, "cuSomething", "words of the driver")
    assert type(error) is kind
    assert error.code == kind.code
    assert "cuSomething" in error.cause
    assert "words of the driver" in error.cause


def test_unknown_code_is_kept() -> None:
    """A code without a class of its own is a plain HalError that carries it."""
    error = error_from_code(12345, "cuSomething")
    assert type(error) is HalError
    assert error.code == 12345


@pytest.mark.parametrize("code", [100, 46, 803, 804])
def test_environment_is_not_called_unsupported(code: int) -> None:
    """What another machine could do is Unavailable, never Unsupported."""
    assert isinstance(error_from_code(code, "cuInit"), errors.Unavailable)


def test_sticky_errors_are_those_of_execution() -> None:
    """Only errors of work on the device stick."""
    sticky = {kind.__name__ for kind in KINDS if kind.sticky}
    assert sticky == {"IllegalAddress", "MisalignedAddress", "ExecutionFailed", "DeviceLost"}


def test_errors_cross_processes() -> None:
    """An error can be pickled, with all that it says."""
    error = error_from_code(703, "cuSomething", remedy="Mend it.")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.cause, again.remedy, again.code) == (type(error), error.cause, "Mend it.", 703)
