"""``dispatch.c`` and ``driver.h``: the proxy's half, which turns messages into calls of the driver."""

from __future__ import annotations

from interposers.generator.annotations import Annotations, Call, InternalOp, Rule
from interposers.generator.shared import NOTICE, is_client_chosen, reply_fields, request_fields, wrong_handle

_HANDLER = "sg_session *session, const struct sg_request *request, struct sg_answer *answer"


def emit_driver(annotations: Annotations) -> str:
    """The text of ``generated/driver.h``: one function pointer per driver call that a handler makes."""
    lines = [NOTICE, '#ifndef SG_DRIVER_H\n#define SG_DRIVER_H\n\n#include "calls.h"\n\n']
    lines.append(
        "/* A call that the library lacks points to a function that returns CUDA_ERROR_NOT_SUPPORTED. */\n"
    )
    lines.append("struct sg_driver {\n")
    for name in annotations.driver:
        function = annotations.call(name).function
        lines.append(f"    CUresult (CUDAAPI *{name})({function.prototype});\n")
    lines.append("};\n\n#endif\n")
    return "".join(lines)


def emit_dispatch(annotations: Annotations) -> str:
    """The text of ``generated/dispatch.c``: handlers, the op table, the loader."""
    parts = [
        NOTICE,
        "#include <dlfcn.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n"
        '#include "driver.h"\n'
        '#include "../../singularity_core/proxy/server.h"\n#include "../server/handlers.h"\n\n',
    ]
    sent = [c for c in annotations.calls if c.sends]
    for op in annotations.ops:
        parts.append(_hand_made(op.name))
    parts += [_hand_made(c.name) for c in sent if c.serve]
    parts.append("\n")
    parts += [_handler(c) for c in sent if not c.serve]
    parts.append("const struct sg_op sg_ops[] = {\n")
    for op in annotations.ops:
        parts.append(_row(op, f"sg_serve_{op.name}"))
    for call in sent:
        handler = f"sg_serve_{call.name}" if call.serve else f"serve_{call.name}"
        parts.append(_row(call, handler))
    parts.append("};\nconst uint32_t sg_op_count = SG_OP_COUNT;\n\n")
    parts += [_missing(annotations.call(n)) for n in annotations.driver]
    parts.append(_loader(annotations))
    parts.append(_destroyer(annotations))
    return "".join(parts)


def _hand_made(name: str) -> str:
    return f"int32_t sg_serve_{name}({_HANDLER});\n"


def _row(op: Call | InternalOp, handler: str) -> str:
    flags = {
        "SG_OP_BLOCKS": op.blocks,
        "SG_OP_NO_CONTEXT": not op.context,
        "SG_OP_TOUCHES": op.touches,
        "SG_OP_WAITS": op.waits,
        "SG_OP_LAUNCHES": op.launches,
    }
    return f'    {{"{op.name}", {handler}, {" | ".join(f for f, on in flags.items() if on) or "0"}}},\n'


def _missing(call: Call) -> str:
    names = "".join(f"    (void){p.name};\n" for p in call.function.parameters)
    return (
        f"static CUresult CUDAAPI missing_{call.name}({call.function.prototype})\n{{\n{names}"
        "    return CUDA_ERROR_NOT_SUPPORTED;\n}\n"
    )


def _loader(annotations: Annotations) -> str:
    rows = "".join(
        f'    *(void **)&d->{n} = dlsym(library, "{n}");\n    if (!d->{n})\n        d->{n} = missing_{n};\n'
        for n in annotations.driver
    )
    return (
        "\nint sg_driver_load(struct sg_driver **out, void *library, char why[256])\n{\n"
        "    struct sg_driver *d = calloc(1, sizeof *d);\n"
        '    if (!d) {\n        snprintf(why, 256, "out of memory");\n        return -1;\n    }\n'
        f"{rows}"
        "    if (d->cuInit == missing_cuInit || d->cuLaunchKernel == missing_cuLaunchKernel) {\n"
        '        snprintf(why, 256, "no cuInit or no cuLaunchKernel: it is no CUDA driver");\n'
        "        free(d);\n        return -1;\n    }\n"
        "    *out = d;\n    return 0;\n}\n\n"
    )


def _destroyer(annotations: Annotations) -> str:
    cases = "".join(
        f"    case SG_KIND_{kind.upper()}:\n        (void)driver->{function}(physical);\n        break;\n"
        for kind, function in sorted(annotations.destroy.items())
    )
    return (
        "void sg_handle_destroy_physical(const struct sg_driver *driver, uint32_t kind, void *physical)\n{\n"
        f"    switch (kind) {{\n{cases}    default:\n        break;\n    }}\n}}\n"
    )


def _handler(call: Call) -> str:
    fields, replies = request_fields(call), reply_fields(call)
    out = [f"static int32_t serve_{call.name}({_HANDLER})\n{{\n"]
    unused = ["answer"] if not replies else []
    if not fields:
        unused.append("request") if not _uses_request(call) else None
    out += [f"    (void){u};\n" for u in unused]
    if fields:
        out.append(f"    struct sg_wire_{call.name} wire;\n")
        out.append("    if (request->bytes < sizeof wire)\n        return CUDA_ERROR_INVALID_VALUE;\n")
        out.append("    memcpy(&wire, request->payload, sizeof wire);\n")
    out += [_unwrap(rule) for rule in call.rules]
    arguments = ", ".join(_argument(call, rule) for rule in call.rules)
    out.append(f"    int32_t result = (int32_t)sg_session_driver(session)->{call.name}({arguments});\n")
    out.append("    if (result)\n        return result;\n")
    out += [_record(call, rule) for rule in call.rules]
    if call.log.startswith("set"):
        owner, key = (part.partition("=")[2] for part in call.log.split()[1:])
        owner = f"wire.{owner}" if owner != "context" else "sg_session_context(session, request)"
        key = f"(uint64_t)wire.{key}" if key in {r.parameter.name for r in call.rules} else key
        out.append(
            f"    sg_log_set(session, request, {owner}, SG_LOG_KEY(SG_OP_{call.name}, {key or '0'}));\n"
        )
    if replies:
        out.append(f"    struct sg_reply_{call.name} reply;\n    memset(&reply, 0, sizeof reply);\n")
        for rule in call.rules:
            name = rule.parameter.name
            if rule.how == "out":
                out.append(f"    reply.{name} = out_{name};\n")
            elif rule.how == "create" and not is_client_chosen(call, rule):
                out.append(f"    reply.{name} = handle_{name};\n")
        out.append("    memcpy(answer->payload, &reply, sizeof reply);\n    answer->bytes = sizeof reply;\n")
    out.append("    return CUDA_SUCCESS;\n}\n\n")
    return "".join(out)


def _uses_request(call: Call) -> bool:
    return any(r.how == "create" for r in call.rules) or bool(call.log)


def _unwrap(rule: Rule) -> str:
    name = rule.parameter.name
    if rule.how == "handle" and rule.kind == "stream":
        return (
            f"    void *real_{name};\n    if (sg_stream_get(session, wire.{name}, &real_{name}))\n"
            "        return CUDA_ERROR_INVALID_HANDLE;\n"
        )
    if rule.how in ("handle", "destroy"):
        get = f"sg_handle_get(session, SG_KIND_{rule.kind.upper()}, wire.{name})"
        wrong = wrong_handle(rule.kind)
        if rule.optional:
            return (
                f"    void *real_{name} = wire.{name} ? {get} : NULL;\n    if (wire.{name} && !real_{name})\n"
                f"        return {wrong};\n"
            )
        return f"    void *real_{name} = {get};\n    if (!real_{name})\n        return {wrong};\n"
    if rule.how == "out":
        kind = rule.parameter.pointee
        return f"    {kind} out_{name};\n    memset(&out_{name}, 0, sizeof out_{name});\n"
    if rule.how == "create":
        return f"    {rule.parameter.pointee} made_{name} = NULL;\n"
    if rule.how == "string":
        return (
            f"    const char *text_{name} = sg_text(request, sizeof wire, wire.{name}_bytes);\n"
            f"    if (!text_{name})\n        return CUDA_ERROR_INVALID_VALUE;\n"
        )
    return ""


def _argument(call: Call, rule: Rule) -> str:
    name = rule.parameter.name
    if rule.how in ("handle", "destroy"):
        return f"real_{name}"
    if rule.how == "in":
        return f"wire.{name}_given ? &wire.{name} : NULL" if rule.optional else f"&wire.{name}"
    if rule.how == "null":
        return "NULL"
    return {
        "value": f"wire.{name}",
        "out": f"&out_{name}",
        "create": f"&made_{name}",
        "string": f"text_{name}",
    }[rule.how]


def _record(call: Call, rule: Rule) -> str:
    """What happens to the tables and to the log once the driver has agreed."""
    name = rule.parameter.name
    kind = f"SG_KIND_{rule.kind.upper()}"
    if rule.how == "destroy":
        return (
            f"    (void)sg_handle_take(session, {kind}, wire.{name});\n"
            f"    sg_log_destroy(session, wire.{name});\n"
        )
    if rule.how != "create":
        return ""
    parent = {"": "0", "context": "sg_session_context(session, request)"}.get(
        rule.parent, f"wire.{rule.parent}"
    )
    needs = ["sg_session_context(session, request)"] if call.context else []
    needs += [f"wire.{r.parameter.name}" for r in call.rules if r.how == "handle"]
    destroy = f"        sg_handle_destroy_physical(sg_session_driver(session), {kind}, made_{name});\n"
    if is_client_chosen(call, rule):
        put = (
            f"    if ((result = sg_handle_put_at(session, wire.{name}, made_{name}, {parent}))) {{\n{destroy}"
            "        return result;\n    }\n"
        )
        handle = f"wire.{name}"
    else:
        put = (
            f"    uint64_t handle_{name} = sg_handle_put(session, {kind}, made_{name}, {parent});\n"
            f"    if (!handle_{name}) {{\n{destroy}        return CUDA_ERROR_OUT_OF_MEMORY;\n    }}\n"
        )
        handle = f"handle_{name}"
    array = f"(const uint64_t[]){{{', '.join(needs)}}}" if needs else "NULL"
    return put + f"    sg_log_create(session, request, {handle}, {array}, {len(needs)});\n"
