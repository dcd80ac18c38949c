"""LOAD and COMPILE, as kernel_abi.h defines them, on top of the cache.

A module's text is kept in the cache under its digest, so a COMPILE may come from another process, or after a
restore, than the LOAD.  LLVM and the compiler are imported only when something must be compiled.
"""

from __future__ import annotations

import re
from collections import OrderedDict

from .cache import Cache, compiler_digest, digest
from .errors import NO_BINARY, NOT_FOUND, PtxError, invalid
from .parser import parse
from .syntax import TYPE_SIZE, Function, Instruction, Module

KEEP_PARSED = 64
KNOWN_OPTIONS = 1


def order_sensitive(module: Module, kernel: Function) -> bool:
    """Whether results can depend on the order of blocks: floating-point atomics, or atomics whose result is
    used.
    """
    from .resolve import Resolver

    for function in Resolver(module, kernel).reachable():
        for ins in function.body or ():
            if not isinstance(ins, Instruction) or ins.op not in ("atom", "red"):
                continue
            if "shared" in ins.mods or "shared::cta" in ins.mods:
                continue
            if (
                ins.op == "atom"
                or any(m.startswith(("f", "bf")) for m in ins.mods)
                or {"exch", "cas"} & set(ins.mods)
            ):
                return True
    return False


def describe_kernel(module: Module, kernel: Function) -> list[str]:
    from .resolve import Resolver, align_up

    resolver = Resolver(module, kernel)
    local = 0
    for function in resolver.reachable():
        for variable in function.variables.values():
            if variable.space == "local":
                local = align_up(local, variable.align) + variable.size
    wide = sum(2 if TYPE_SIZE[t] == 8 else 1 for t in kernel.registers.values())
    registers = min(64, max(16, (wide + 7) // 8 * 8))
    words = [
        "kernel",
        kernel.name,
        resolver.flow.param_bytes,
        resolver.flow.static_shared,
        local,
        int(order_sensitive(module, kernel)),
        *kernel.maxntid,
        *kernel.reqntid,
        registers,
    ]
    lines = [" ".join(str(w) for w in words)]
    for parameter in kernel.params:
        lines.append(f"param {resolver.flow.param_offsets[parameter.name]} {parameter.size}")
    return lines


def describe_globals(module: Module) -> list[str]:
    lines = []
    found = [v for v in module.variables.values() if v.space in ("global", "const")]
    index = {v.name: i for i, v in enumerate(found)}
    for variable in found:
        data = variable.data.hex() if variable.data is not None else "-"
        lines.append(f"global {variable.name} {variable.space} {variable.size} {variable.align} {data}")
    for i, variable in enumerate(found):
        for offset, symbol, addend in variable.fixups:
            if symbol not in index:
                raise invalid(
                    f"initialiser of `{variable.name}` refers to `{symbol}`, which is no variable",
                    variable.line,
                )
            lines.append(f"fixup {i} {offset} {index[symbol]} {addend}")
    return lines


class Service:
    def __init__(self, cache: Cache | None = None) -> None:
        self.cache = cache or Cache()
        self.parsed: OrderedDict[str, Module] = OrderedDict()
        self.answers: dict[str, str] = {}

    def load(self, payload: bytes) -> str:
        """The LOAD answer for a PTX text; raises PtxError."""
        payload = payload.split(b"\0", 1)[0]
        try:
            text = payload.decode("utf-8")
        except UnicodeDecodeError:
            text = payload.decode("latin-1")
        if not text.strip():
            raise PtxError("the image holds no PTX", 0, NO_BINARY)
        name = digest("module", compiler_digest(), text)
        known = self.cache.read(name + ".load")
        if known is not None and self.cache.path(name + ".ptx").exists():
            return known.decode()
        module = parse(text)
        lines = [f"module {name}", f"target {module.sm} {module.version}"]
        for function in module.functions.values():
            if function.is_entry and function.body is not None:
                lines += describe_kernel(module, function)
        lines += describe_globals(module)
        answer = "\n".join(lines) + "\n"
        self.remember(name, module)
        self.cache.write(name + ".ptx", text.encode("utf-8", "surrogateescape"))
        self.cache.write(name + ".load", answer.encode())
        return answer

    def remember(self, name: str, module: Module) -> None:
        self.parsed[name] = module
        while len(self.parsed) > KEEP_PARSED:
            self.parsed.popitem(last=False)

    def module(self, name: str) -> Module:
        found = self.parsed.get(name)
        if found is None:
            text = self.cache.read(name + ".ptx") if re.fullmatch(r"[0-9a-f]{40}", name) else None
            if text is None:
                raise PtxError(f"module {name[:60]} is not in the cache; LOAD it again", 0, NOT_FOUND)
            found = parse(text.decode("utf-8", "surrogateescape"))
            self.remember(name, found)
        return found

    def compile(self, payload: bytes) -> str:
        """The COMPILE answer for "MODULE KERNEL x y z options"; raises PtxError."""
        try:
            module_name, kernel, *numbers = payload.decode("utf-8").split()
            x, y, z = (int(n) for n in numbers[:3])
            options = int(numbers[3], 16) if len(numbers) > 3 else 0
        except (ValueError, UnicodeDecodeError) as error:
            raise PtxError("malformed COMPILE request", 0, 1) from error
        if len(numbers) > 4 or options & ~KNOWN_OPTIONS:
            raise PtxError("malformed COMPILE request: unknown options", 0, 1)
        if min(x, y, z) < 1 or x > 1024 or y > 1024 or z > 64 or x * y * z > 1024:
            raise PtxError(f"a block of {x} x {y} x {z} threads is not possible", 0, 1)
        key = self.key(module_name, kernel, (x, y, z), options)
        answer = self.answers.get(key)
        if answer is None:
            known = self.cache.read(key + ".compile")
            if known is not None and self.cache.path(key + ".o").exists():
                answer = known.decode()
            else:
                answer = self.build(key, module_name, kernel, (x, y, z))
            self.answers[key] = answer
        elif not self.cache.path(key + ".o").exists():
            answer = self.build(key, module_name, kernel, (x, y, z))
        return answer

    @staticmethod
    def key(module: str, kernel: str, block: tuple[int, int, int], options: int) -> str:
        from .target import host

        cpu = host()
        return digest(
            "object", compiler_digest(), module, kernel, repr(block), str(options), cpu.cpu, cpu.features
        )

    def build(self, key: str, module_name: str, kernel: str, block: tuple[int, int, int]) -> str:
        from .compiler import compile_kernel

        compiled, code = compile_kernel(self.module(module_name), kernel, block)
        path = self.cache.write(key + ".o", code)
        if re.search(r"\s", str(path)):
            raise PtxError(f"the cache path `{path}` holds white space; set SINGULARITY_FAKE_CACHE", 0)
        answer = (
            f"object {path}\nsymbol {compiled.symbol}\nmode {compiled.mode}\nspill {compiled.spill}\n"
            f"shared {compiled.shared}\nlocal {compiled.local}\n"
        )
        self.cache.write(key + ".compile", answer.encode())
        return answer
