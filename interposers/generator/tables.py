"""The client's tables: error names and texts, and what cuGetProcAddress knows."""

from __future__ import annotations

from interposers.generator.header import Header
from interposers.generator.shared import NOTICE

# What programs show to people, where the name alone says too little.
_TEXTS = {
    "CUDA_SUCCESS": "no error",
    "CUDA_ERROR_INVALID_VALUE": "invalid argument",
    "CUDA_ERROR_NOT_INITIALIZED": "initialization error",
    "CUDA_ERROR_DEINITIALIZED": "driver shutting down",
    "CUDA_ERROR_NO_DEVICE": "no CUDA-capable device is detected",
    "CUDA_ERROR_INVALID_DEVICE": "invalid device ordinal",
    "CUDA_ERROR_DEVICE_UNAVAILABLE": "device unavailable: the device proxy of this rank is gone",
    "CUDA_ERROR_INVALID_CONTEXT": "invalid device context",
    "CUDA_ERROR_INVALID_HANDLE": "invalid resource handle",
    "CUDA_ERROR_NOT_FOUND": "named symbol not found",
    "CUDA_ERROR_NOT_READY": "device not ready",
    "CUDA_ERROR_NOT_SUPPORTED": "operation not supported",
    "CUDA_ERROR_INVALID_PTX": "a PTX compilation failed",
    "CUDA_ERROR_NO_BINARY_FOR_GPU": "no kernel image is available for this device",
    "CUDA_ERROR_ILLEGAL_ADDRESS": "an illegal memory access was encountered",
    "CUDA_ERROR_MISALIGNED_ADDRESS": "misaligned address",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES": "too many resources requested for launch",
    "CUDA_ERROR_LAUNCH_TIMEOUT": "the launch timed out and was terminated",
    "CUDA_ERROR_LAUNCH_FAILED": "unspecified launch failure",
    "CUDA_ERROR_ASSERT": "device-side assert triggered",
    "CUDA_ERROR_UNKNOWN": "unknown error",
}


def emit_names(header: Header) -> str:
    """The text of ``generated/client_names.c``."""
    rows = "".join(
        f'    {{{value}, "{name}", "{_TEXTS.get(name, _plain(name))}"}},\n'
        for name, value in sorted(header.errors, key=lambda e: e[1])
    )
    return (
        f'{NOTICE}#include "../client/names.h"\n\n'
        f"const struct sg_error_name sg_error_names[] = {{\n{rows}}};\n"
        "const unsigned sg_error_name_count = sizeof sg_error_names / sizeof *sg_error_names;\n"
    )


def _plain(name: str) -> str:
    return name.removeprefix("CUDA_ERROR_").replace("_", " ").lower()


def emit_entries(header: Header) -> str:
    """The text of ``generated/client_entries.c``: sorted by symbol, then by version."""
    rows = []
    for entry in sorted(header.entries, key=lambda e: (e.symbol, e.version)):
        thread = f"SG_ENTRY({entry.per_thread})" if entry.per_thread else "NULL"
        rows.append(f'    {{"{entry.symbol}", {entry.version}, SG_ENTRY({entry.function}), {thread}}},\n')
    return (
        f'{NOTICE}#include "calls.h"\n#include <stddef.h>\n#include "../client/names.h"\n\n'
        "#define SG_ENTRY(function) (void *)(uintptr_t)(function)\n\n"
        f"const struct sg_entry sg_entries[] = {{\n{''.join(rows)}}};\n"
        "const unsigned sg_entry_count = sizeof sg_entries / sizeof *sg_entries;\n"
    )
