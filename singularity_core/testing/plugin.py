"""The pytest plugin of the conformance kit; installed with the package (entry point ``pytest11``).

It adds options, the marker ``hal_requires``, and turns exclusions into skips and strict expected failures.
It imports neither numpy nor a backend, because every pytest run of the environment loads it."""

from __future__ import annotations

import pytest

from ..hal.capabilities import Capability
from .requirements import MARKER, Exclusion, Verdict


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options of the kit."""
    group = parser.getgroup("singularity", "Singularity HAL conformance")
    group.addoption("--hal-backend", metavar="NAME", default=None, help="backend whose devices are tested")
    group.addoption("--hal-device", metavar="ORDINAL", type=int, default=0, help="device to test (default 0)")
    group.addoption(
        "--hal-must-run",
        action="store_true",
        help="fail, instead of skip, when the backend is unavailable: for machines that must have the device",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker."""
    config.addinivalue_line(
        "markers", f"{MARKER}(*capabilities): skip unless the tested device has all these HAL capabilities"
    )


def pytest_report_header(config: pytest.Config) -> str | None:
    """Says which backend is tested."""
    name = config.getoption("--hal-backend")
    return f"hal backend: {name}, device {config.getoption('--hal-device')}" if name else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Applies the exclusions of each suite class to its tests."""
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        for exclusion in getattr(item.cls, "exclusions", ()) if item.cls is not None else ():
            if isinstance(exclusion, Exclusion) and exclusion.fits(item.name):
                item.add_marker(_mark(exclusion))


def _mark(exclusion: Exclusion) -> pytest.MarkDecorator:
    if exclusion.verdict is Verdict.UNSUPPORTED:
        return pytest.mark.skip(reason=f"unsupported: {exclusion.reason}")
    return pytest.mark.xfail(reason=exclusion.reason, strict=True)


def missing_capabilities(item: pytest.Item, present: frozenset[Capability]) -> list[str]:
    """Names of the capabilities that `item` requires and that are not present."""
    wanted = {capability for mark in item.iter_markers(MARKER) for capability in mark.args}
    return sorted(capability.value for capability in wanted - present)
