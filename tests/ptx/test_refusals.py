"""What ptx-compile does not know, it refuses by name and line; nothing is guessed."""

from __future__ import annotations

import pytest
from singularity_backend_fake.ptx.compiler import generate
from singularity_backend_fake.ptx.errors import INVALID_PTX, NOT_SUPPORTED, UNSUPPORTED_VERSION, PtxError
from singularity_backend_fake.ptx.parser import parse

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
BODY = (
    ".reg .b16 %h<4>; .reg .b32 %r<8>; .reg .f32 %f<4>; .reg .b64 %a<4>; .reg .pred %p<4>; .reg .f64 %d<2>;\n"
)


def compile_line(line: str, head: str = HEAD) -> None:
    generate(parse(f"{head}.visible .entry k(.param .u64 p) {{\n{BODY}{line}\nret;\n}}"), "k", (32, 1, 1))


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("tcgen05.fence;", "tcgen05"),
        ("frobnicate.b32 %r0, %r1;", "frobnicate"),
        ("add.rn.ftz.weird.f32 %f0, %f0, %f1;", "weird"),
        ("ld.global.strange.u32 %r0, [%a0];", "strange"),
        ("atom.global.add.b128 %a0, [%a1], %a2;", "b128"),
        ("tex.2d.v4.f32.s32 {%f0,%f1,%f2,%f3}, [%a0, {%r0,%r1}];", "[%a0"),
        ("mov.u32 %r0, %envreg3;", "envreg3"),
        ("call (%r0), %a0, (%r1);", "indirect call"),
        ("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%d0,%d1}, {%d0}, {%d1}, {%d0,%d1};", "m8n8k4"),
        ("barrier.cluster.arrive;", "barrier.cluster"),
        ("cp.async.bulk.wait_group 0;", "cp.async.bulk"),
        ("cvt.rn.bf16x2.e8m0 %r0, %h0;", "cvt"),
    ],
)
def test_unknown_constructs_are_not_supported_by_name_and_line(line: str, named: str) -> None:
    """801, with the construct and its line in the message."""
    with pytest.raises(PtxError, match="line 6") as caught:
        compile_line(line)
    assert caught.value.status == NOT_SUPPORTED
    assert named in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        "add.u32 %r0, %r1",
        "add.u32 %r0, %q1, 1;",
        "bra nowhere;",
        "add.u32 %r0, %a1, %r1;",
        "mul.f32 %r9, %f0, %f1;",
        "add %r0, %r1, %r2;",
        "@%r0 add.u32 %r1, %r1, 1;",
        "mov.u32 %r0, 0x;",
        "st.param.u32 [p], %r0;",
        "ld.param.u64 %a0, [p+8];",
        "add.f32 %d0, %d0, %d1;",
    ],
)
def test_malformed_instructions_are_invalid_with_their_line(line: str) -> None:
    """218, as an assembler would say."""
    with pytest.raises(PtxError, match="line") as caught:
        compile_line(line)
    assert caught.value.status == INVALID_PTX


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("", INVALID_PTX),
        ("hello", INVALID_PTX),
        (".version 99.0\n.target sm_80\n", UNSUPPORTED_VERSION),
        (".version 8.0\n", INVALID_PTX),
        (HEAD + ".texref t;", NOT_SUPPORTED),
        (HEAD + ".entry k() {", INVALID_PTX),
        (HEAD.replace("64", "32"), NOT_SUPPORTED),
    ],
)
def test_modules_that_are_none(text: str, status: int) -> None:
    """Not PTX, too new, cut off, or with state that the device does not have."""
    with pytest.raises(PtxError) as caught:
        parse(text)
    assert caught.value.status == status


def test_recursion_is_refused() -> None:
    """Calls are inlined, so a function that calls itself cannot be compiled."""
    text = HEAD + ".func f() { call f; ret; }\n.visible .entry k() { call f; ret; }"
    with pytest.raises(PtxError, match="recursion"):
        generate(parse(text), "k", (1, 1, 1))
