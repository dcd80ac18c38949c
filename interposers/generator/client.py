"""``client.c`` and ``hooks.h``: what the rank loads as ``libcuda.so.1``."""

from __future__ import annotations

from interposers.generator.annotations import Annotations, Call, Rule
from interposers.generator.shared import NOTICE, is_client_chosen, reply_fields, request_fields, wrong_handle

# One letter per parameter: how the tracer prints it.
_TRACE_VALUES = {"float": "f", "int": "i", "unsigned int": "u", "CUdevice": "i"}
_TRACE_POINTEES = {
    "int": "I",
    "unsigned int": "U",
    "float": "F",
    "size_t": "Z",
    "CUdeviceptr": "X",
    "CUdevice": "I",
    "unsigned long long": "Z",
    "cuuint64_t": "Z",
}


def emit_hooks(annotations: Annotations) -> str:
    """The text of ``generated/hooks.h``: prototypes that the hand-written client implements or calls."""
    lines = [NOTICE, '#ifndef SG_HOOKS_H\n#define SG_HOOKS_H\n\n#include "calls.h"\n\n']
    for call in annotations.calls:
        if call.sends and not call.serve:
            lines.append(f"CUresult sg_send_{call.name}({call.function.prototype});\n")
        if call.hook:
            lines.append(f"CUresult sg_hand_{call.name}({_hand_prototype(call)});\n")
    lines.append("\n#endif\n")
    return "".join(lines)


def _hand_prototype(call: Call) -> str:
    if not call.default_stream:
        return call.function.prototype
    return f"{call.function.prototype}, CUstream default_stream"


def emit_client(annotations: Annotations) -> str:
    """The text of ``generated/client.c``: senders, then every function that the header declares."""
    parts = [
        NOTICE,
        '#include "hooks.h"\n#include <string.h>\n'
        '#include "../client/client.h"\n#include "../client/trace.h"\n\n',
        "/* ---- senders: one message each "
        "------------------------------------------------------------------ */\n",
    ]
    parts += [_sender(call) for call in annotations.calls if call.sends and not call.serve]
    parts.append(
        "\n/* ---- exported functions "
        "--------------------------------------------------------------------------- */\n"
    )
    parts += [_exported(call, annotations) for call in annotations.calls]
    return "".join(parts)


def _sender(call: Call) -> str:
    out = [f"CUresult sg_send_{call.name}({call.function.prototype})\n{{\n"]
    out.append(f"    CUresult error = {'sg_enter()' if call.context else 'sg_enter_bare()'};\n")
    out.append("    if (error)\n        return error;\n")
    for rule in call.rules:
        out.append(_check(rule))
    string = next((r.parameter.name for r in call.rules if r.how == "string"), None)
    has_wire = bool(request_fields(call))
    size = f"sizeof(struct sg_wire_{call.name})" if has_wire else "0"
    if string:
        out.append(f"    size_t {string}_bytes = strlen({string}) + 1;\n")
        out.append(f"    if ({string}_bytes > SG_STRING_LIMIT)\n        return CUDA_ERROR_INVALID_VALUE;\n")
        size += f" + {string}_bytes"
    for rule in call.rules:
        if is_client_chosen(call, rule):
            kind = f"SG_KIND_{rule.kind.upper()}"
            out.append(f"    uint64_t new_{rule.parameter.name} = sg_handle_new({kind}, sg_self.current);\n")
            out.append(f"    if (!new_{rule.parameter.name})\n        return CUDA_ERROR_OUT_OF_MEMORY;\n")
    declared = f"struct sg_wire_{call.name} *wire" if has_wire else "void *wire"
    out.append(f"    {declared} = sg_begin(SG_OP_{call.name}, (uint32_t)({size}));\n")
    out.append(f'    if (!wire)\n        return sg_lost("{call.name}");\n')
    out += [_fill(call, rule) for rule in call.rules]
    out.append(_finish(call))
    out.append("}\n\n")
    return "".join(out)


def _check(rule: Rule) -> str:
    name = rule.parameter.name
    if rule.how in ("handle", "destroy") and rule.kind == "stream":
        refuse = ""
        if rule.how == "destroy":
            refuse = f"    if (wire_{name} <= 2)\n        return CUDA_ERROR_INVALID_HANDLE;\n"
        return (
            f"    uint64_t wire_{name};\n    if ((error = sg_stream_wire({name}, &wire_{name})))\n"
            f"        return error;\n{refuse}"
        )
    if rule.how in ("handle", "destroy"):
        allow = f"{name} && " if rule.optional else ""
        wrong = wrong_handle(rule.kind)
        return (
            f"    if ({allow}!sg_handle_known(SG_KIND_{rule.kind.upper()}, (uint64_t)(uintptr_t){name}))\n"
            f"        return {wrong};\n"
        )
    if rule.how == "null":
        return f"    if ({name})\n        return CUDA_ERROR_NOT_SUPPORTED;\n"
    if rule.how in ("out", "in", "string", "create") and not rule.optional:
        return f"    if (!{name})\n        return CUDA_ERROR_INVALID_VALUE;\n"
    return ""


def _fill(call: Call, rule: Rule) -> str:
    name = rule.parameter.name
    if rule.how in ("handle", "destroy"):
        value = f"wire_{name}" if rule.kind == "stream" else f"(uint64_t)(uintptr_t){name}"
        return f"    wire->{name} = {value};\n"
    if rule.how == "value":
        return f"    wire->{name} = {name};\n"
    if rule.how == "in" and rule.optional:
        return f"    wire->{name}_given = {name} != NULL;\n    if ({name})\n        wire->{name} = *{name};\n"
    if rule.how == "in":
        return f"    wire->{name} = *{name};\n"
    if rule.how == "string":
        return (
            f"    wire->{name}_bytes = (uint32_t){name}_bytes;\n    memcpy(wire + 1, {name}, {name}_bytes);\n"
        )
    if is_client_chosen(call, rule):
        return f"    wire->{name} = new_{name};\n"
    return ""


def _finish(call: Call) -> str:
    forget = "".join(
        f"    sg_handle_forget(SG_KIND_{r.kind.upper()}, (uint64_t)(uintptr_t){r.parameter.name});\n"
        for r in call.rules
        if r.how == "destroy"
    )
    if call.mode == "post":
        created = "".join(
            f"    *{r.parameter.name} = ({r.parameter.pointee})(uintptr_t)new_{r.parameter.name};\n"
            for r in call.rules
            if r.how == "create"
        )
        return f"    sg_post();\n{created}{forget}    return CUDA_SUCCESS;\n"
    fields = reply_fields(call)
    if not fields:
        return f'    error = sg_call("{call.name}", NULL, 0);\n' + (
            f"    if (!error) {{\n{_indent(forget)}    }}\n    return error;\n"
            if forget
            else "    return error;\n"
        )
    out = [
        f"    struct sg_reply_{call.name} reply = {{0}};\n",
        f'    error = sg_call("{call.name}", &reply, sizeof reply);\n    if (error)\n        return error;\n',
    ]
    for rule in call.rules:
        name = rule.parameter.name
        if rule.how == "create":
            parent = {"": "0", "context": "sg_self.current"}.get(
                rule.parent, f"(uint64_t)(uintptr_t){rule.parent}"
            )
            out.append(f"    sg_handle_note(SG_KIND_{rule.kind.upper()}, reply.{name}, {parent}, NULL);\n")
            out.append(f"    *{name} = ({rule.parameter.pointee})(uintptr_t)reply.{name};\n")
        elif rule.how == "out":
            guard = f"    if ({name})\n    " if rule.optional else ""
            value = f"({rule.parameter.pointee})(uintptr_t)reply.{name}" if rule.kind else f"reply.{name}"
            out.append(f"{guard}    *{name} = {value};\n")
    return "".join(out) + forget + "    return CUDA_SUCCESS;\n"


def _indent(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


def _exported(call: Call, annotations: Annotations) -> str:
    names = [p.name for p in call.function.parameters]
    body = _body(call, annotations)
    codes = "".join(_trace_code(p.type) for p in call.function.parameters)
    values = ", ".join(_trace_value(p.name, p.type) for p in call.function.parameters)
    words = ",".join(names)
    array = f"(const uint64_t[]){{{values}}}" if names else "NULL"
    return (
        f"SG_EXPORT CUresult CUDAAPI {call.name}({call.function.prototype})\n{{\n"
        f"    CUresult sg_result = {body};\n"
        "    if (SG_UNLIKELY(sg_trace_on))\n"
        f'        sg_trace("{call.name}", "{words}", "{codes}", {array}, sg_result);\n'
        "    return sg_result;\n}\n\n"
    )


def _body(call: Call, annotations: Annotations) -> str:
    if call.mode == "declined":
        return f'sg_declined("{call.name}", "{call.reason}", "{call.remedy}")'
    if not call.mode:
        return f'sg_unknown("{call.name}")'
    target, per_thread = call, False
    while target.mode == "same":
        per_thread = per_thread or target.name.endswith(("_ptsz", "_ptds"))
        target = annotations.call(target.same)
    if target.mode == "declined":
        return f'sg_declined("{call.name}", "{target.reason}", "{target.remedy}")'
    if not target.mode:
        return f'sg_unknown("{call.name}")'
    arguments = []
    for parameter in call.function.parameters:
        stream = parameter.type == "CUstream" and per_thread
        arguments.append(f"SG_PER_THREAD({parameter.name})" if stream else parameter.name)
    if target.default_stream:
        arguments.append("CU_STREAM_PER_THREAD" if per_thread else "NULL")
    prefix = "hand" if target.hook else "send"
    return f"sg_{prefix}_{target.name}({', '.join(arguments)})"


def _trace_code(type_text: str) -> str:
    if type_text == "const char *":
        return "s"
    if type_text.endswith("**"):
        return "P" if not type_text.startswith("const char") else "S"
    if type_text.endswith("*"):
        pointee = type_text.removesuffix("*").strip()
        if pointee.startswith("CU") and pointee[2:] in (
            "context",
            "stream",
            "event",
            "module",
            "function",
            "graph",
            "graphNode",
            "graphExec",
            "library",
            "kernel",
        ):
            return "X"
        return _TRACE_POINTEES.get(pointee, "p")
    return _TRACE_VALUES.get(type_text, "x")


def _trace_value(name: str, type_text: str) -> str:
    if type_text.endswith("*") or type_text.startswith(("CUgraphNode", "CUstream")):
        return f"(uint64_t)(uintptr_t){name}"
    return f"SG_TRACE_VALUE({name})"
