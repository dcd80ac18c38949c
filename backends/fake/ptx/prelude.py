"""Helper functions that every object carries as needed: the slow side of memory checks.

The fast check is conservative (it takes all lanes as active, and a group of accesses as one range); these
look again, lane by lane and access by access.
"""

from __future__ import annotations

from .multiply import multiply_text

ATTRIBUTES = """
attributes #0 = { nounwind "no-trapping-math"="true" "frame-pointer"="none" %s }
attributes #1 = { nounwind cold noinline minsize }
attributes #2 = { nounwind noinline %s }
!0 = !{}
!1 = !{!"branch_weights", i32 10000, i32 1}
!2 = !{!"branch_weights", i32 1, i32 10000}
!3 = distinct !{!3, !4}
!4 = !{!"llvm.loop.unroll.disable"}
"""

CHECK_ONE = """
define internal void @sg.check(ptr %env, i64 %address, i32 %bytes, i32 %kind, i32 %align) #1 {
  %mask.s = sub i32 %align, 1
  %mask = zext i32 %mask.s to i64
  %low = and i64 %address, %mask
  %odd = icmp ne i64 %low, 0
  br i1 %odd, label %misaligned, label %range
misaligned:
  %fault.at = getelementptr i8, ptr %env, i64 112
  %fault = load ptr, ptr %fault.at
  call void %fault(ptr %env, i32 716, i64 %address)
  br label %range
range:
  %lo = load i64, ptr %env
  %hi.at = getelementptr i8, ptr %env, i64 8
  %hi = load i64, ptr %hi.at
  %size = zext i32 %bytes to i64
  %last = sub i64 %hi, %size
  %above = icmp uge i64 %address, %lo
  %below = icmp ule i64 %address, %last
  %inside = and i1 %above, %below
  br i1 %inside, label %done, label %outside
outside:
  %out.at = getelementptr i8, ptr %env, i64 104
  %out = load ptr, ptr %out.at
  call void %out(ptr %env, i64 %address, i32 %bytes, i32 %kind)
  br label %done
done:
  ret void
}
"""

CHECK_LIMIT = """
define internal void @sg.limit(ptr %env, i64 %address, i64 %size, i32 %bytes, i32 %align) #1 {
  %mask.s = sub i32 %align, 1
  %mask = zext i32 %mask.s to i64
  %low = and i64 %address, %mask
  %odd = icmp ne i64 %low, 0
  %wide = zext i32 %bytes to i64
  %small = icmp ult i64 %size, %wide
  %last = sub i64 %size, %wide
  %above = icmp ugt i64 %address, %last
  %bad = or i1 %small, %above
  %wrong = or i1 %odd, %bad
  br i1 %wrong, label %fail, label %done
fail:
  %what = select i1 %bad, i32 700, i32 716
  %fault.at = getelementptr i8, ptr %env, i64 112
  %fault = load ptr, ptr %fault.at
  call void %fault(ptr %env, i32 %what, i64 %address)
  br label %done
done:
  ret void
}
"""

CHECK_LANES = """
define internal void @sg.check.lanes(ptr %env, ptr %addresses, i32 %mask, i64 %offset, i32 %bytes,
                                      i32 %kind, i32 %align) #1 {
  br label %loop
loop:
  %left = phi i32 [ %mask, %0 ], [ %rest, %body ]
  %none = icmp eq i32 %left, 0
  br i1 %none, label %done, label %body
body:
  %lane = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %less = sub i32 %left, 1
  %rest = and i32 %left, %less
  %at = getelementptr i64, ptr %addresses, i32 %lane
  %base = load i64, ptr %at
  %address = add i64 %base, %offset
  call void @sg.check(ptr %env, i64 %address, i32 %bytes, i32 %kind, i32 %align)
  br label %loop
done:
  ret void
}
"""

LIMIT_LANES = """
define internal void @sg.limit.lanes(ptr %env, ptr %addresses, i32 %mask, i64 %offset, i64 %size,
                                      i32 %bytes, i32 %align) #1 {
  br label %loop
loop:
  %left = phi i32 [ %mask, %0 ], [ %rest, %body ]
  %none = icmp eq i32 %left, 0
  br i1 %none, label %done, label %body
body:
  %lane = call i32 @llvm.cttz.i32(i32 %left, i1 true)
  %less = sub i32 %left, 1
  %rest = and i32 %left, %less
  %at = getelementptr i64, ptr %addresses, i32 %lane
  %base = load i64, ptr %at
  %address = add i64 %base, %offset
  call void @sg.limit(ptr %env, i64 %address, i64 %size, i32 %bytes, i32 %align)
  br label %loop
done:
  ret void
}
"""

NEEDS = {"sg.check": [], "sg.limit": [], "sg.check.lanes": ["sg.check"], "sg.limit.lanes": ["sg.limit"]}
TEXT = {
    "sg.check": CHECK_ONE,
    "sg.limit": CHECK_LIMIT,
    "sg.check.lanes": CHECK_LANES,
    "sg.limit.lanes": LIMIT_LANES,
}


def helpers(used: set[str], declared: dict[str, str]) -> str:
    """The text of the helpers in `used` and of those they need; adds their declarations."""
    wanted = set(used)
    for name in used:
        wanted |= set(NEEDS.get(name, []))
    if any(name.endswith("lanes") for name in wanted):
        declared["llvm.cttz.i32"] = "declare i32 @llvm.cttz.i32(i32, i1)"
    if any(name.startswith("sg.mma") for name in wanted):
        declared["llvm.fma.v8f32"] = (
            "declare <8 x float> @llvm.fma.v8f32(<8 x float>, <8 x float>, <8 x float>)"
        )
    return "".join(TEXT.get(name) or multiply_text(name) for name in sorted(wanted))
