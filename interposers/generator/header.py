"""Reads the vendor's headers: every function, with its parameters, and the error codes.

``__CUDA_API_VERSION_INTERNAL`` makes ``cuda.h`` declare the old entry points as well, which programs
still bind by name (cuCtxCreate_v2, cuEventElapsedTime, cuGraphInstantiate_v2, ...).
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from pycparser import c_ast, c_generator, c_parser  # type: ignore[import-untyped]

_PRELUDE = """\
#define __CUDA_API_VERSION_INTERNAL
#define __attribute__(x)
#define __extension__
#define __inline inline
#define __restrict restrict
#include <cuda.h>
"""

# Names whose newest entry point bears another name, and since when; the typedefs do not say.
_RENAMED = {"cuGraphInstantiate": (12000, "cuGraphInstantiateWithFlags")}


class HeaderError(Exception):
    """The vendor's header cannot be found or read; the message says what to install or pass."""


@dataclass(frozen=True)
class Parameter:
    """One parameter: its name, its type as C text without the name, and the whole declaration."""

    name: str
    type: str
    declaration: str

    @property
    def is_pointer(self) -> bool:
        """Whether the type is spelled as a pointer (a handle or device address is not)."""
        return self.type.endswith("*")

    @property
    def pointee(self) -> str:
        """The type that the pointer points to, without ``const``."""
        return self.type.removesuffix("*").strip().removeprefix("const ").strip()


@dataclass(frozen=True)
class Function:
    """One function of the driver API."""

    name: str
    result: str
    parameters: tuple[Parameter, ...]

    @property
    def prototype(self) -> str:
        """The parameter list as C text, ``void`` when empty."""
        return ", ".join(p.declaration for p in self.parameters) or "void"


@dataclass(frozen=True)
class Entry:
    """One answer that cuGetProcAddress can give: ``symbol`` from CUDA ``version`` on is ``function``."""

    symbol: str
    version: int
    function: str
    per_thread: str


@dataclass(frozen=True)
class Header:
    """What the generator needs of the vendor's headers."""

    version: int
    functions: tuple[Function, ...]
    errors: tuple[tuple[str, int], ...]
    entries: tuple[Entry, ...]


def read_header(directory: Path) -> Header:
    """Parses ``cuda.h`` and ``cudaTypedefs.h`` in `directory`.

    Raises:
        HeaderError: a file is missing, or the C preprocessor fails.
    """
    for name in ("cuda.h", "cudaTypedefs.h"):
        if not (directory / name).is_file():
            raise HeaderError(
                f"{directory / name} is missing: pass the folder that holds both with --header-dir"
            )
    result = subprocess.run(
        ["gcc", "-E", "-P", "-x", "c", "-I", str(directory), "-"],
        input=_PRELUDE,
        text=True,
        capture_output=True,
        check=False,
    )
    if result.returncode != 0:
        raise HeaderError(f"gcc -E failed on cuda.h: {result.stderr.strip()[:500]}")
    tree = c_parser.CParser().parse(result.stdout)
    functions = tuple(_functions(tree))
    text = (directory / "cuda.h").read_text()
    found = re.search(r"^#define CUDA_VERSION (\d+)", text, re.MULTILINE)
    if found is None:
        raise HeaderError(f"{directory / 'cuda.h'} defines no CUDA_VERSION")
    entries = _entries((directory / "cudaTypedefs.h").read_text(), text, {f.name for f in functions})
    return Header(int(found[1]), functions, tuple(_errors(tree)), entries)


def _functions(tree: c_ast.FileAST) -> list[Function]:
    text = c_generator.CGenerator()
    functions = []
    for node in tree.ext:
        if not (isinstance(node, c_ast.Decl) and isinstance(node.type, c_ast.FuncDecl)):
            continue
        if not node.name.startswith("cu"):
            continue
        parameters = []
        for p in node.type.args.params if node.type.args else ():
            if not isinstance(p, c_ast.Decl):
                continue  # (void)
            declaration = text.visit(p)
            name = str(p.name)
            plain = re.sub(rf"\b{name}\b", "", declaration).strip()
            parameters.append(Parameter(name, plain, declaration))
        functions.append(Function(node.name, text.visit(node.type.type), tuple(parameters)))
    return functions


def _errors(tree: c_ast.FileAST) -> list[tuple[str, int]]:
    for node in tree.ext:
        if not isinstance(node, c_ast.Typedef) or node.name != "CUresult":
            continue
        return [(e.name, int(e.value.value, 0)) for e in node.type.type.values.enumerators]
    raise HeaderError("cuda.h declares no CUresult")


def _entries(typedefs: str, text: str, names: set[str]) -> tuple[Entry, ...]:
    """Pairs the versions in cudaTypedefs.h with the entry points in cuda.h, oldest with oldest.

    ``cuda.h`` maps each unversioned name to its newest entry point (``#define cuMemAlloc cuMemAlloc_v2``);
    the typedefs say since when each existed.  Where there are fewer typedefs than entry points the newest
    ones are paired, as the old ones cannot be asked for by version.
    """
    versions: dict[str, set[int]] = {}
    per_thread: dict[str, set[int]] = {}
    for symbol, version, suffix in re.findall(r"CUDAAPI \*PFN_(cu\w+?)_v(\d+)(_ptsz|_ptds)?\)", typedefs):
        (per_thread if suffix else versions).setdefault(symbol, set()).add(int(version))
    newest = dict(re.findall(r"^\s*#define (cu[A-Z]\w*)\s+(cu[A-Z]\w*)\s*$", text, re.MULTILINE))
    entries = []
    for symbol, known in sorted(versions.items()):
        variants = _variants(symbol, names)
        last = newest.get(symbol)
        if last in variants and len(variants) > len(known):
            variants = variants[: variants.index(last) + 1]
        variants = variants[-len(known) :]
        for version, function in zip(sorted(known)[-len(variants) :], variants, strict=True):
            thread = next((function + s for s in ("_ptsz", "_ptds") if function + s in names), "")
            entries.append(Entry(symbol, version, function, thread))
        if symbol in _RENAMED:
            entries.append(Entry(symbol, *_RENAMED[symbol], ""))
    return tuple(entries)


def _variants(symbol: str, names: set[str]) -> list[str]:
    """``symbol`` and its ``_v2``, ``_v3``... that exist, oldest first."""
    return [n for n in [symbol, *(f"{symbol}_v{i}" for i in range(2, 10))] if n in names]
