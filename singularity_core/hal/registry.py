"""Finds the backends that are installed, and opens one by name.

Plugins come from two places: entry points of the group ``singularity.backends``, and, without any packaging,
the environment variable SINGULARITY_PLUGINS (module names or paths of .py files, colon-separated).
SINGULARITY_BLOCK_BACKENDS names backends (comma- or colon-separated) that are not even imported from entry
points.

A plugin that does not load is listed as broken, by name and with its error, and harms no other.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import pluggy

from . import hookspecs
from .backend import Backend
from .errors import HalError, InvalidArgument, Unavailable
from .hookspecs import ENTRY_POINT_GROUP, PROJECT, BackendRegistration
from .types import Availability, State

PLUGINS_VARIABLE = "SINGULARITY_PLUGINS"
BLOCK_VARIABLE = "SINGULARITY_BLOCK_BACKENDS"


@dataclass(frozen=True)
class BackendDescription:
    """One line of ``singularity-ctl backends``."""

    name: str
    summary: str
    version: str
    """Version of the distribution or module that brings the plugin; empty when it has none."""
    origin: str
    """Where the plugin came from: ``entry point NAME = MODULE`` or ``SINGULARITY_PLUGINS: ITEM``."""
    availability: Availability
    device_count: int


@dataclass(frozen=True)
class PluginProblem:
    """A plugin, or one of its backends, that could not be used."""

    name: str
    origin: str
    cause: str


@dataclass
class _Source:
    name: str
    origin: str
    version: str


@dataclass
class _Known:
    registration: BackendRegistration
    source: _Source
    backend: Backend | None = field(default=None, repr=False)

    def get(self) -> Backend:
        if self.backend is None:
            self.backend = self.registration.factory()
        return self.backend


class Registry:
    """The backends of one environment.  Most callers use the functions of this module instead."""

    def __init__(self, *, plugins: str = "", blocked: str = "", entry_points: bool = True) -> None:
        self.problems: list[PluginProblem] = []
        self.blocked = tuple(sorted(filter(None, re.split(r"[,:\s]+", blocked))))
        self._known: dict[str, _Known] = {}
        self._blocked_sources: dict[str, _Source] = {}
        self._sources: dict[str, _Source] = {}
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(hookspecs)
        for item in filter(None, plugins.split(":")):
            self._load_local(item)
        if entry_points:
            self._load_entry_points()
        self._check_pending()
        for plugin_name, _ in list(self._manager.list_name_plugin()):
            self._collect(plugin_name)

    # ---- loading: each plugin on its own, so that one broken plugin is one problem -----------------

    def _load_entry_points(self) -> None:
        for point in sorted(importlib.metadata.entry_points(group=ENTRY_POINT_GROUP), key=lambda p: p.name):
            version = point.dist.version if point.dist is not None else ""
            source = _Source(point.name, f"entry point {point.name} = {point.value}", version)
            if point.name in self.blocked:
                self._blocked_sources[point.name] = source
                continue
            try:
                self._register(point.load(), source)
            except Exception as error:  # a plugin may fail in any way
                self._problem(source, error)

    def _load_local(self, item: str) -> None:
        name = Path(item).stem if item.endswith(".py") else item
        source = _Source(name, f"{PLUGINS_VARIABLE}: {item}", "")
        try:
            module = _import_file(Path(item)) if item.endswith(".py") else importlib.import_module(item)
            source.version = str(getattr(module, "__version__", ""))
            self._register(module, source)
        except Exception as error:  # a plugin may fail in any way
            self._problem(source, error)

    def _register(self, plugin: object, source: _Source) -> None:
        if self._manager.is_registered(plugin):
            return  # named by an entry point and by the environment
        name = self._manager.register(plugin, f"{source.name} ({source.origin})")
        assert name is not None
        self._sources[name] = source

    def _check_pending(self) -> None:
        """Reports hooks that no specification knows (`PluginManager.check_pending`, but by plugin)."""
        for name, plugin in list(self._manager.list_name_plugin()):
            unknown = [
                caller.name
                for caller in self._manager.get_hookcallers(plugin) or ()
                if not caller.has_spec() and not all(i.optionalhook for i in caller.get_hookimpls())
            ]
            if unknown or not self._manager.get_hookcallers(plugin):
                cause = (
                    f"it implements unknown hooks: {', '.join(sorted(unknown))}" if unknown
                    else "it implements no hook; singularity_register_backends is expected"
                )  # fmt: skip
                self._manager.unregister(plugin)
                self.problems.append(
                    PluginProblem(self._sources[name].name, self._sources[name].origin, cause)
                )
        self._manager.check_pending()

    def _collect(self, plugin_name: str) -> None:
        source = self._sources[plugin_name]
        plugin = self._manager.get_plugin(plugin_name)
        others = [p for p in self._manager.get_plugins() if p is not plugin]
        try:
            caller = self._manager.subset_hook_caller("singularity_register_backends", remove_plugins=others)
            for registrations in caller():
                for registration in registrations:
                    self._add(registration, source)
        except Exception as error:  # a plugin may fail in any way
            self._problem(source, error)

    def _add(self, registration: BackendRegistration, source: _Source) -> None:
        if not isinstance(registration, BackendRegistration):
            raise TypeError(
                f"singularity_register_backends returned {registration!r}, not a BackendRegistration"
            )
        name = registration.name
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name):
            raise ValueError(f"{name!r} is no backend name: lower case letters, digits and dashes only")
        if name in self.blocked:
            self._blocked_sources[name] = source
        elif name in self._known:
            first = self._known[name].source.origin
            self.problems.append(
                PluginProblem(
                    name,
                    source.origin,
                    f"backend {name!r} is already registered by {first}; that one is used",
                )
            )
        else:
            self._known[name] = _Known(registration, source)

    def _problem(self, source: _Source, error: Exception) -> None:
        self.problems.append(PluginProblem(source.name, source.origin, f"{type(error).__name__}: {error}"))

    # ---- answers ----------------------------------------------------------------------------------

    def names(self) -> tuple[str, ...]:
        """Names that `load` accepts, sorted."""
        return tuple(sorted(self._known))

    def load(self, name: str) -> Backend:
        """The backend of that name; the same object each time.

        Raises `InvalidArgument` for a name that nothing registered, listing the candidates and the broken
        plugins, and `Unavailable` for a blocked or broken one.  Does not check that devices can be opened."""
        known = self._known.get(name)
        if known is None:
            raise self._unknown(name)
        try:
            return known.get()
        except HalError:
            raise
        except Exception as error:
            raise Unavailable(
                f"Backend {name!r} ({known.source.origin}) failed to start: {type(error).__name__}: {error}.",
                remedy="Update or uninstall the plugin.",
            ) from error

    def _unknown(self, name: str) -> HalError:
        if name in self.blocked:
            return Unavailable(
                f"Backend {name!r} is blocked by {BLOCK_VARIABLE}.",
                remedy=f"Take {name!r} out of {BLOCK_VARIABLE}.",
            )
        for problem in self.problems:
            if problem.name == name:
                return Unavailable(
                    f"Backend {name!r} ({problem.origin}) is broken: {problem.cause}.",
                    remedy="Update or uninstall the plugin, or correct what its error names.",
                )
        candidates = ", ".join(self.names()) or "none"
        broken = "; ".join(f"{p.name} ({p.cause})" for p in self.problems)
        return InvalidArgument(
            f"There is no backend {name!r}; installed are: {candidates}."
            + (f" Not loaded: {broken}." if broken else ""),
            remedy="Choose one of these, or install the package that brings it.",
        )

    def describe(self) -> list[BackendDescription]:
        """All backends by name, with those that are blocked or broken."""
        found = [self._describe(name, known) for name, known in self._known.items()]
        for name, source in self._blocked_sources.items():
            reason = Availability(
                State.BLOCKED, f"{BLOCK_VARIABLE} names it.", f"Take {name!r} out of {BLOCK_VARIABLE}."
            )
            found.append(BackendDescription(name, "", source.version, source.origin, reason, 0))
        for problem in self.problems:
            reason = Availability(State.BROKEN, problem.cause, "Update or uninstall the plugin.")
            found.append(BackendDescription(problem.name, "", "", problem.origin, reason, 0))
        return sorted(found, key=lambda d: (d.name, d.origin))

    def _describe(self, name: str, known: _Known) -> BackendDescription:
        source = known.source
        try:
            backend = known.get()
            availability = backend.availability()
            count = backend.device_count() if availability.available else 0
            return BackendDescription(
                name, backend.summary, source.version, source.origin, availability, count
            )
        except Exception as error:  # the plugin breaks its promise; the others must still be listed
            reason = Availability(
                State.BROKEN, f"{type(error).__name__}: {error}", "Update or uninstall the plugin."
            )
            return BackendDescription(name, "", source.version, source.origin, reason, 0)


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    name = f"singularity_local_plugin_{re.sub(r'[^0-9A-Za-z]', '_', str(path.resolve()))}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python source file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@functools.lru_cache(maxsize=8)
def _registry(plugins: str, blocked: str) -> Registry:
    return Registry(plugins=plugins, blocked=blocked)


def registry(environ: Mapping[str, str] = os.environ) -> Registry:
    """The registry that `environ` describes; kept for as long as the two variables do not change."""
    return _registry(environ.get(PLUGINS_VARIABLE, ""), environ.get(BLOCK_VARIABLE, ""))


def list_backends() -> list[BackendDescription]:
    """All backends of this environment by name, with whether they can be used, why not, and what would
    help."""
    return registry().describe()


def list_problems() -> list[PluginProblem]:
    """Plugins that did not load, and backends that were registered twice."""
    return list(registry().problems)


def load_backend(name: str) -> Backend:
    """The backend of that name.  Errors name the candidates; see `Registry.load`.

    It may be unavailable on this machine: `Backend.require_available` says so with reason and remedy."""
    return registry().load(name)
