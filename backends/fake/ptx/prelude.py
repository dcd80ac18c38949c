"""What every module holds besides its kernel: attributes, metadata, and the helpers that the kernel calls."""

from __future__ import annotations

from .multiply import multiply_text

ATTRIBUTES = """
attributes #0 = { nounwind "no-trapping-math"="true" "frame-pointer"="none" %s }
attributes #1 = { nounwind cold }
attributes #2 = { nounwind noinline %s }
!0 = !{}
!1 = !{!"branch_weights", i32 10000, i32 1}
!2 = !{!"branch_weights", i32 1, i32 10000}
!3 = distinct !{!3, !4}
!4 = !{!"llvm.loop.unroll.disable"}
"""


def helpers(used: set[str], declared: dict[str, str]) -> str:
    """The text of the helpers in `used`; adds the declarations that they need."""
    if used:
        declared["llvm.fma.v8f32"] = (
            "declare <8 x float> @llvm.fma.v8f32(<8 x float>, <8 x float>, <8 x float>)"
        )
    return "".join(multiply_text(name) for name in sorted(used))
