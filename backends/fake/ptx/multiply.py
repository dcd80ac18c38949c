"""The helper behind mma.sync: a 16 x K by K x 8 product on fragments in memory.

Each fragment register is a row of 32 floats, one per lane; a lane is 4 * group + place.  Where elements are
(PTX ISA, "Matrix Fragments for mma.m16n8k16" and its relatives):
    A[r][k], halves: register (k & 1) + 2 * (r >> 3) + 4 * (k >> 3), group r & 7, place (k & 7) >> 1
             tf32:   register (r >> 3) + 2 * (k >> 2),               group r & 7, place k & 3
    B[k][n], halves: register (k & 1) + 2 * (k >> 3), group n, place (k & 7) >> 1;   tf32: k >> 2, n, k & 3
    C[r][n]:         register (n & 1) + 2 * (r >> 3), group r & 7, place n >> 1
"""

from __future__ import annotations

TEXT = """
define internal void @sg.mma.{name}.{k}(ptr noalias %a, ptr noalias %b, ptr noalias %c) #2 {{
{rows}
  br label %row
row:
  %r = phi i64 [ 0, %0 ], [ %following, %row ]
  %upper = lshr i64 %r, 3
  %group = and i64 %r, 7
  %lane = shl i64 %group, 2
  %a.upper = mul i64 %upper, {a_upper}
  %a.offset = add i64 %a.upper, %lane
  %first = getelementptr float, ptr %a, i64 %a.offset
  %c.upper = mul i64 %upper, 64
  %c.offset = add i64 %c.upper, %lane
  %even.at = getelementptr float, ptr %c, i64 %c.offset
  %odd.at = getelementptr float, ptr %even.at, i64 32
  %even = load <4 x float>, ptr %even.at, align 16
  %odd = load <4 x float>, ptr %odd.at, align 16
  %s0 = shufflevector <4 x float> %even, <4 x float> %odd, <8 x i32>
    <i32 0, i32 4, i32 1, i32 5, i32 2, i32 6, i32 3, i32 7>
{steps}
  %even.new = shufflevector <8 x float> %s{k}, <8 x float> poison, <4 x i32> <i32 0, i32 2, i32 4, i32 6>
  %odd.new = shufflevector <8 x float> %s{k}, <8 x float> poison, <4 x i32> <i32 1, i32 3, i32 5, i32 7>
  store <4 x float> %even.new, ptr %even.at, align 16
  store <4 x float> %odd.new, ptr %odd.at, align 16
  %following = add i64 %r, 1
  %more = icmp ult i64 %following, 16
  br i1 %more, label %row, label %done
done:
  ret void
}}
"""


def element_of_a(name: str, k: int) -> int:
    """Index of A[0][k] among the fragments' floats."""
    if name == "tf32":
        return 64 * (k >> 2) + (k & 3)
    return 32 * ((k & 1) + 4 * (k >> 3)) + ((k & 7) >> 1)


def row_of_b(name: str, k: int) -> tuple[int, int]:
    """(register, place) of B[k][*]."""
    return (k >> 2, k & 3) if name == "tf32" else ((k & 1) + 2 * (k >> 3), (k & 7) >> 1)


def multiply_text(helper: str) -> str:
    """The text of @sg.mma.<half|tf32>.<K>."""
    _, _, name, digits = helper.split(".")
    k = int(digits)
    rows, steps = [], []
    for i in range(k):
        register, place = row_of_b(name, i)
        order = ", ".join(f"i32 {4 * n + place}" for n in range(8))
        rows += [
            f"  %p{i} = getelementptr float, ptr %b, i64 {32 * register}",
            f"  %w{i} = load <32 x float>, ptr %p{i}, align 64",
            f"  %b{i} = shufflevector <32 x float> %w{i}, <32 x float> poison, <8 x i32> <{order}>",
        ]
        steps += [
            f"  %q{i} = getelementptr float, ptr %first, i64 {element_of_a(name, i)}",
            f"  %e{i} = load float, ptr %q{i}",
            f"  %i{i} = insertelement <8 x float> poison, float %e{i}, i64 0",
            f"  %v{i} = shufflevector <8 x float> %i{i}, <8 x float> poison, <8 x i32> zeroinitializer",
            f"  %s{i + 1} = call <8 x float> @llvm.fma.v8f32(<8 x float> %v{i}, <8 x float> %b{i}, "
            f"<8 x float> %s{i})",
        ]
    return TEXT.format(
        name=name, k=k, rows="\n".join(rows), steps="\n".join(steps), a_upper=32 if name == "tf32" else 64
    )
