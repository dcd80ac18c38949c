"""How backends are found: entry points, local plugins, what is blocked, and what is broken."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from singularity_core.hal import InvalidArgument, State, Unavailable, Unsupported
from singularity_core.hal.registry import Registry, list_backends, load_backend, registry

PLUGIN = """
from singularity_core.hal import Availability, Backend, BackendRegistration, Unavailable, hookimpl
__version__ = "7.1"

class Some(Backend):
    name = NAME
    summary = "a backend"
    def availability(self): return Availability.no("it has no device.", "Buy one.")
    def device_count(self): return 0
    def properties(self, ordinal): raise Unavailable("none")
    def open_device(self, ordinal): self.require_available()

@hookimpl
def singularity_register_backends():
    return [BackendRegistration(NAME, Some)]
"""

HOOK = "from singularity_core.hal import hookimpl\n@hookimpl\n"

WritePlugin = Callable[..., Path]


@pytest.fixture
def write_plugin(tmp_path: Path) -> WritePlugin:
    """`write_plugin(name, text=...)` writes a plugin file and answers its path."""

    def write(name: str, text: str = PLUGIN) -> Path:
        path = tmp_path / f"{name}.py"
        path.write_text(text.replace("NAME", repr(name)))
        return path

    return write


def local(*paths: Path, blocked: str = "") -> Registry:
    """A registry of local plugins only."""
    return Registry(plugins=":".join(map(str, paths)), blocked=blocked, entry_points=False)


def test_local_file_needs_no_packaging(write_plugin: WritePlugin) -> None:
    """A file named in SINGULARITY_PLUGINS is a plugin; its version and origin are told."""
    path = write_plugin("local")
    (found,) = local(path).describe()
    assert (found.name, found.summary, found.version, found.device_count) == ("local", "a backend", "7.1", 0)
    assert found.origin == f"SINGULARITY_PLUGINS: {path}"
    assert found.availability.state is State.UNAVAILABLE
    assert (found.availability.reason, found.availability.remedy) == ("it has no device.", "Buy one.")


def test_local_module_is_found_by_name(write_plugin: WritePlugin, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that can be imported is a plugin too."""
    path = write_plugin("module-plugin")
    path.rename(path.with_name("some_local_module.py"))
    monkeypatch.syspath_prepend(path.parent)
    assert Registry(plugins="some_local_module", entry_points=False).names() == ("module-plugin",)


def test_entry_points_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution that declares an entry point is found, with its version."""
    (tmp_path / "packaged_backend.py").write_text(PLUGIN.replace("NAME", "'packaged'"))
    info = tmp_path / "packaged-3.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: packaged\nVersion: 3.2\n")
    (info / "entry_points.txt").write_text("[singularity.backends]\npackaged = packaged_backend\n")
    monkeypatch.syspath_prepend(tmp_path)
    (found,) = [d for d in Registry().describe() if d.name == "packaged"]
    assert found.version == "3.2"
    assert found.origin == "entry point packaged = packaged_backend"
    blocked = Registry(blocked="packaged")
    (found,) = [d for d in blocked.describe() if d.name == "packaged"]
    assert found.availability.state is State.BLOCKED
    with pytest.raises(Unavailable, match="SINGULARITY_BLOCK_BACKENDS"):
        blocked.load("packaged")


def test_blocked_entry_point_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocking keeps a plugin's code from running at all."""
    (tmp_path / "never_imported.py").write_text("raise SystemExit('imported')")
    info = tmp_path / "never-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: never\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[singularity.backends]\nnever = never_imported\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "never" not in Registry(blocked="never").names()
    assert "never_imported" not in sys.modules


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("raise RuntimeError('boom')", "RuntimeError: boom"),
        ("this is no Python", "SyntaxError"),
        ("import a_module_that_is_not_there", "ModuleNotFoundError"),
        ("x = 1", "it implements no hook; singularity_register_backends is expected"),
        (
            HOOK + "def singularity_register_backend(): return []",
            "it implements unknown hooks: singularity_register_backend",
        ),
        (
            HOOK + "def singularity_register_backends(): return [1]",
            "TypeError: singularity_register_backends returned 1",
        ),
        (
            HOOK + "def singularity_register_backends(): 1 / 0",
            "ZeroDivisionError",
        ),
    ],
)
def test_broken_plugin_harms_no_other(write_plugin: WritePlugin, text: str, cause: str) -> None:
    """A broken plugin is reported by name with its error, and the others are there."""
    found = local(write_plugin("good"), write_plugin("broken", text), write_plugin("better"))
    assert found.names() == ("better", "good")
    (problem,) = found.problems
    assert problem.name == "broken"
    assert cause in problem.cause
    (line,) = [d for d in found.describe() if d.name == "broken"]
    assert line.availability.state is State.BROKEN
    assert line.availability.remedy
    with pytest.raises(Unavailable, match="broken"):
        found.load("broken")


def test_missing_file_is_a_problem_by_name(tmp_path: Path) -> None:
    """A path that is not there is reported, not raised."""
    (problem,) = local(tmp_path / "absent.py").problems
    assert problem.name == "absent"
    assert "there is no file" in problem.cause


def test_factory_that_fails_is_told(write_plugin: WritePlugin) -> None:
    """A backend that cannot even be made is broken in the list, and Unavailable when loaded."""
    text = PLUGIN.replace(
        "    name = NAME", '    name = NAME\n    def __init__(self): raise OSError("no luck")'
    )
    found = local(write_plugin("unlucky", text), write_plugin("good"))
    states = {d.name: d.availability.state for d in found.describe()}
    assert states == {"unlucky": State.BROKEN, "good": State.UNAVAILABLE}
    with pytest.raises(Unavailable, match="no luck"):
        found.load("unlucky")


def test_unknown_name_lists_the_candidates(write_plugin: WritePlugin) -> None:
    """Loading a name that nothing registered says which there are."""
    with pytest.raises(InvalidArgument, match="installed are: one, two"):
        local(write_plugin("one"), write_plugin("two")).load("three")


def test_same_name_twice_is_a_problem(write_plugin: WritePlugin, tmp_path: Path) -> None:
    """The first registration of a name stays, and the second is reported with both origins."""
    first, second = write_plugin("first"), tmp_path / "second.py"
    second.write_text(first.read_text())
    found = local(first, second)
    assert found.names() == ("first",)
    (problem,) = found.problems
    assert str(first) in problem.cause
    assert str(second) in problem.origin


@pytest.mark.parametrize("name", ["Upper", "under_score", "", "-dash", "white space"])
def test_bad_names_are_refused(write_plugin: WritePlugin, name: str) -> None:
    """A backend's name is what users type: lower case letters, digits and dashes."""
    found = local(write_plugin("plugin", PLUGIN.replace("NAME", repr(name))))
    assert found.names() == ()
    assert "no backend name" in found.problems[0].cause


def test_blocked_name_of_a_local_plugin(write_plugin: WritePlugin) -> None:
    """Blocking works on the registered name as well; several names may be given."""
    found = local(write_plugin("one"), write_plugin("two"), write_plugin("three"), blocked="one,three")
    assert found.names() == ("two",)
    assert {d.name for d in found.describe() if d.availability.state is State.BLOCKED} == {"one", "three"}


def test_loading_gives_one_object(write_plugin: WritePlugin) -> None:
    """The same backend object is answered each time."""
    found = local(write_plugin("one"))
    assert found.load("one") is found.load("one")


def test_unavailable_backend_says_why(write_plugin: WritePlugin) -> None:
    """An unavailable backend loads; using it raises its reason and remedy."""
    with pytest.raises(Unavailable) as caught:
        local(write_plugin("one")).load("one").open_device(0)
    assert caught.value.cause == "Backend 'one' is not available: it has no device."
    assert caught.value.remedy == "Buy one."


def test_backend_without_groups_says_so(write_plugin: WritePlugin) -> None:
    """Collectives are refused by name unless the backend has them."""
    with pytest.raises(Unsupported, match="collectives"):
        local(write_plugin("one")).load("one").open_group([])


def test_environment_is_followed(write_plugin: WritePlugin, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module's functions follow the environment, also when it changes."""
    path = write_plugin("from-environment")
    monkeypatch.setenv("SINGULARITY_PLUGINS", str(path))
    assert load_backend("from-environment").name == "from-environment"
    assert "from-environment" in {d.name for d in list_backends()}
    assert registry() is registry()
    monkeypatch.setenv("SINGULARITY_BLOCK_BACKENDS", "from-environment")
    with pytest.raises(Unavailable):
        load_backend("from-environment")
    monkeypatch.delenv("SINGULARITY_PLUGINS")
    assert "from-environment" not in {d.name for d in list_backends()}


def test_own_backends_are_installed() -> None:
    """The two backends of this project are found by their entry points."""
    assert {"cuda", "fake"} <= {d.name for d in Registry().describe()}
