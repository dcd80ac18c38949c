"""Reads ``annotations.toml``: what each function of the driver API means (docs/annotating.md)."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from interposers.generator.header import Function, Header, Parameter

HANDLES = {
    "CUcontext": "context",
    "CUstream": "stream",
    "CUevent": "event",
    "CUmodule": "module",
    "CUfunction": "function",
    "CUgraph": "graph",
    "CUgraphNode": "graph_node",
    "CUgraphExec": "graph_exec",
    "CUlibrary": "library",
    "CUkernel": "kernel",
}
CLIENT_CHOSEN = ("stream", "event")
MODES = ("post", "call", "local", "same", "declined")
_KEYS = {
    "mode",
    "params",
    "blocks",
    "touches",
    "waits",
    "launches",
    "context",
    "hook",
    "serve",
    "log",
    "same",
    "note",
    "default_stream",
    "reason",
    "remedy",
    "op",
}


class AnnotationError(Exception):
    """An annotation contradicts the header or itself; the message names the call and the remedy."""


@dataclass(frozen=True)
class Rule:
    """How one parameter travels.

    ``how`` is one of value, handle, create, destroy, out, in, string, null; ``kind`` the handle's kind.
    ``optional``: NULL is allowed.  ``parent``: for create, ``context``, a parameter's name, or empty.
    """

    parameter: Parameter
    how: str
    kind: str = ""
    optional: bool = False
    parent: str = ""


@dataclass(frozen=True)
class Call:
    """One function of the header together with its annotation."""

    function: Function
    mode: str
    rules: tuple[Rule, ...] = ()
    blocks: bool = False
    touches: bool = False
    waits: bool = False
    launches: bool = False
    context: bool = True
    hook: bool = False
    serve: bool = False
    default_stream: bool = False
    log: str = ""
    same: str = ""
    op: str = ""
    note: str = ""
    reason: str = ""
    remedy: str = ""

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.name

    @property
    def sends(self) -> bool:
        """Whether the call has a message of its own (not a shared one, ``op``)."""
        return self.mode in ("post", "call") and not self.op


@dataclass(frozen=True)
class InternalOp:
    """A message that is no driver call by itself, with a hand-written handler."""

    name: str
    blocks: bool
    touches: bool
    waits: bool
    launches: bool
    context: bool
    note: str


@dataclass(frozen=True)
class Annotations:
    """The whole of ``annotations.toml``, checked against the header."""

    calls: tuple[Call, ...]
    ops: tuple[InternalOp, ...]
    driver: tuple[str, ...]
    destroy: dict[str, str] = field(default_factory=dict)

    def call(self, name: str) -> Call:
        """The call of that name.

        Raises:
            AnnotationError: the header has none.
        """
        for call in self.calls:
            if call.name == name:
                return call
        raise AnnotationError(f"{name} is not in cuda.h")


def read_annotations(path: Path, header: Header) -> Annotations:
    """Reads and checks `path`.

    Raises:
        AnnotationError: it names what the header lacks, or leaves open what a pointer means.
    """
    raw = tomllib.loads(path.read_text())
    table: dict[str, dict[str, Any]] = dict(raw.get("call", {}))
    for group in raw.get("declined", ()):
        for name in group["calls"]:
            _put(table, name, {"mode": "declined", "reason": group["reason"], "remedy": group["remedy"]})
    functions = {f.name: f for f in header.functions}
    _expand_patterns(table, functions)
    for name in table:
        if name not in functions:
            raise AnnotationError(f"annotations.toml: {name} is not in cuda.h: remove it or fix its spelling")
    calls = [_call(f, _inherited(f, table, functions)) for f in header.functions]
    ops = tuple(
        InternalOp(
            name=n,
            blocks=bool(o.get("blocks")),
            touches=bool(o.get("touches")),
            waits=bool(o.get("waits")),
            launches=bool(o.get("launches")),
            context=bool(o.get("context", True)),
            note=str(o.get("note", "")),
        )
        for n, o in raw["op"].items()
    )
    for made in (*ops, *calls):
        if made.touches and made.blocks:
            raise AnnotationError(
                f"{made.name}: a call that blocks enters and leaves the device in its handler (residency.h); "
                "remove touches"
            )
        if made.waits and not made.blocks:
            raise AnnotationError(f"{made.name}: who waits for device work blocks; add blocks = true")
    for call in calls:
        if call.op and call.op not in raw["op"]:
            raise AnnotationError(f"{call.name}: there is no [op.{call.op}] in annotations.toml")
    driver = sorted({*raw["driver"]["calls"], *(c.name for c in calls if c.sends and not c.serve)})
    for name in driver:
        if name not in functions:
            raise AnnotationError(f"annotations.toml [driver]: {name} is not in cuda.h")
    return Annotations(tuple(calls), ops, tuple(driver), dict(raw["destroy"]))


def _put(table: dict[str, dict[str, Any]], name: str, entry: dict[str, Any]) -> None:
    if name in table:
        raise AnnotationError(f"annotations.toml: {name} is annotated twice")
    table[name] = entry


def _expand_patterns(table: dict[str, dict[str, Any]], functions: dict[str, Function]) -> None:
    for pattern in [n for n in table if "*" in n]:
        entry = table.pop(pattern)
        matches = [n for n in functions if re.fullmatch(pattern.replace("*", ".*"), n)]
        if not matches:
            raise AnnotationError(f"annotations.toml: {pattern} matches nothing in cuda.h")
        for name in matches:
            table.setdefault(name, entry)


def _inherited(
    function: Function, table: dict[str, dict[str, Any]], functions: dict[str, Function]
) -> dict[str, Any]:
    """The entry of `function`; a ``_ptsz``/``_ptds`` variant follows its base."""
    if function.name in table:
        return table[function.name]
    base = re.sub(r"_pts[z]$|_ptds$", "", function.name)
    if base == function.name or base not in table:
        return {}
    entry = table[base]
    if entry["mode"] == "declined":
        return entry
    return {"mode": "same", "same": base}


def _call(function: Function, entry: dict[str, Any]) -> Call:
    unknown = set(entry) - _KEYS
    if unknown:
        raise AnnotationError(f"{function.name}: unknown keys {sorted(unknown)} in annotations.toml")
    mode = entry.get("mode", "")
    if mode and mode not in MODES:
        raise AnnotationError(f"{function.name}: mode {mode!r} is none of {', '.join(MODES)}")
    params = entry.get("params", {})
    known = {p.name for p in function.parameters}
    if not set(params) <= known:
        raise AnnotationError(
            f"{function.name}: no parameters {sorted(set(params) - known)}; it has {sorted(known)}"
        )
    op = str(entry.get("op", ""))
    sends = mode in ("post", "call") and not op
    hand_made = bool(entry.get("serve"))
    rules = (
        tuple(_rule(function, p, params.get(p.name)) for p in function.parameters)
        if sends and not hand_made
        else ()
    )
    if mode == "post" and any(r.how == "out" for r in rules):
        raise AnnotationError(
            f'{function.name}: a call with results cannot be fire and forget; use mode = "call"'
        )
    if mode == "post" and entry.get("blocks"):
        raise AnnotationError(f'{function.name}: only a call that waits may block; use mode = "call"')
    return Call(
        function=function,
        mode=mode,
        rules=rules,
        blocks=bool(entry.get("blocks")),
        touches=bool(entry.get("touches")),
        launches=bool(entry.get("launches")),
        waits=bool(entry.get("waits")),
        context=bool(entry.get("context", True)),
        hook=bool(entry.get("hook")) or mode == "local" or bool(op) or (sends and hand_made),
        serve=hand_made,
        default_stream=bool(entry.get("default_stream")),
        log=str(entry.get("log", "")),
        same=str(entry.get("same", "")),
        op=op,
        note=str(entry.get("note", "")),
        reason=str(entry.get("reason", "")),
        remedy=str(entry.get("remedy", "")),
    )


def _rule(function: Function, parameter: Parameter, text: str | None) -> Rule:
    if text is None:
        if parameter.type in HANDLES:
            return Rule(parameter, "handle", HANDLES[parameter.type])
        if parameter.is_pointer:
            raise AnnotationError(
                f"{function.name}: say what {parameter.declaration} is: "
                f'params.{parameter.name} = "out", "in", ...'
            )
        return Rule(parameter, "value")
    words = text.split()
    how = words[0].removesuffix("?")
    optional = words[0].endswith("?")
    if how == "create":
        kind = words[1]
        parent = words[3] if words[2:3] == ["of"] else ""
        return Rule(parameter, how, kind, optional, parent)
    if how == "destroy":
        return Rule(parameter, how, HANDLES[parameter.type])
    if how in ("out", "in", "string", "null"):
        kind = HANDLES.get(parameter.pointee, "") if how == "out" else ""
        return Rule(parameter, how, kind, optional)
    raise AnnotationError(
        f"{function.name}: params.{parameter.name} = {text!r} is not understood (docs/annotating.md)"
    )
