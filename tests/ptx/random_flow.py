"""Random control flow as PTX, and its meaning by interpretation, one thread at a time.

Branches go anywhere (loops with several entries included); a fuel register ends every program.  Barriers
change nothing about what a thread computes, so they are strewn in to test that kernels are cut at them
correctly.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

REGISTERS = 5
MASK = 0xFFFFFFFF
OPS = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "xor": lambda a, b: a ^ b,
    "mul.lo": lambda a, b: a * b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
}
TESTS = {
    "lt": lambda a, b: a < b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "ge": lambda a, b: a >= b,
}


@dataclass
class Node:
    ops: list[tuple[str, int, str, str]] = field(default_factory=list)  # (op, target, a, b)
    barrier: bool = False
    test: tuple[str, str, str] | None = None
    targets: tuple[int, int] = (0, 0)


@dataclass
class Program:
    nodes: list[Node]
    fuel: int

    def ptx(self) -> str:
        lines = [
            ".version 8.0",
            ".target sm_80",
            ".address_size 64",
            ".visible .entry flow(.param .u64 out, .param .u32 n) {",
            ".reg .b32 %r<16>; .reg .pred %p<4>; .reg .b64 %a<4>;",
            "mov.u32 %r10, %tid.x; mov.u32 %r11, %ctaid.x; mov.u32 %r12, %ntid.x;",
            "mad.lo.s32 %r13, %r11, %r12, %r10; ld.param.u32 %r14, [n]; ld.param.u64 %a0, [out];",
            f"mov.u32 %r9, {self.fuel};",
            *(f"mov.u32 %r{i}, {i * 7};" for i in range(REGISTERS)),
        ]
        for k, node in enumerate(self.nodes):
            lines.append(f"N{k}:")
            lines += [
                f"{op}.{'b32' if op in ('xor', 'and', 'or') else 'u32'} %r{t}, {a}, {b};"
                for op, t, a, b in node.ops
            ]
            if node.barrier:
                lines.append("bar.sync 0;")
            lines += ["sub.u32 %r9, %r9, 1;", "setp.eq.u32 %p0, %r9, 0;", "@%p0 bra END;"]
            if node.test:
                test, a, b = node.test
                lines += [f"setp.{test}.u32 %p1, {a}, {b};", f"@%p1 bra N{node.targets[0]};"]
            lines.append(f"bra N{node.targets[1]};" if node.targets[1] < len(self.nodes) else "bra END;")
        lines += [
            "END:",
            f"mad.wide.u32 %a1, %r13, {4 * REGISTERS}, %a0;",
            *(f"st.global.u32 [%a1+{4 * i}], %r{i};" for i in range(REGISTERS)),
            "ret;",
            "}",
        ]
        return "\n".join(lines)

    def run(self, tid: int, ctaid: int, ntid: int, n: int) -> list[int]:
        registers = {f"%r{i}": i * 7 for i in range(REGISTERS)}
        registers |= {
            "%r9": self.fuel,
            "%r10": tid,
            "%r11": ctaid,
            "%r12": ntid,
            "%r13": ctaid * ntid + tid,
            "%r14": n,
        }

        def value(text: str) -> int:
            return registers[text] if text[0] == "%" else int(text)

        at = 0
        while at < len(self.nodes):
            node = self.nodes[at]
            for op, t, a, b in node.ops:
                registers[f"%r{t}"] = OPS[op](value(a), value(b)) & MASK
            registers["%r9"] -= 1
            if registers["%r9"] == 0:
                break
            taken = node.test is not None and TESTS[node.test[0]](value(node.test[1]), value(node.test[2]))
            at = node.targets[0] if taken else node.targets[1]
        return [registers[f"%r{i}"] for i in range(REGISTERS)]


def generate(seed: int, barriers: bool) -> Program:
    rng = random.Random(seed)
    count = rng.randint(2, 9)
    sources = [f"%r{i}" for i in range(REGISTERS)] + ["%r10", "%r11", "%r13", "%r14", "1", "3", "12"]
    uniform = ["%r11", "%r14", "2", "5", "%r12"]
    nodes = []
    for k in range(count):
        ops = [
            (rng.choice(list(OPS)), rng.randrange(REGISTERS), rng.choice(sources[:9]), rng.choice(sources))
            for _ in range(rng.randint(0, 4))
        ]
        node = Node(ops, barrier=barriers and rng.random() < 0.3)
        if rng.random() < 0.75:
            pool = uniform if rng.random() < 0.3 else sources
            node.test = (
                rng.choice(list(TESTS)),
                rng.choice(pool[:2] if pool is uniform else sources[:9]),
                rng.choice(pool),
            )
        ahead = [rng.randint(k, count) if rng.random() < 0.7 else rng.randrange(count) for _ in range(2)]
        node.targets = (min(ahead[0], count - 1), ahead[1] if ahead[1] != k else min(k + 1, count))
        nodes.append(node)
    return Program(nodes, rng.randint(3, 40))
