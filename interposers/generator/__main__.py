"""``python -m interposers.generator [--check] [--header-dir DIR]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from interposers.generator.annotations import AnnotationError, read_annotations
from interposers.generator.client import emit_client, emit_hooks
from interposers.generator.dispatch import emit_dispatch, emit_driver
from interposers.generator.header import HeaderError, read_header
from interposers.generator.nccl import NcclAnnotationError, generate_nccl
from interposers.generator.reference import emit_reference
from interposers.generator.shared import emit_calls
from interposers.generator.tables import emit_entries, emit_names
from singularity_core.hal.cuda_wheels import HeaderNotFoundError, header_directory

HERE = Path(__file__).resolve().parent.parent


def generate(headers: Path, annotations_file: Path) -> dict[str, str]:
    """All generated texts, by path relative to the repository's root.

    Raises:
        HeaderError: the vendor's header is missing or unreadable.
        AnnotationError: the annotations do not fit the header.
    """
    header = read_header(headers)
    annotations = read_annotations(annotations_file, header)
    return {
        "interposers/generated/calls.h": emit_calls(header, annotations),
        "interposers/generated/hooks.h": emit_hooks(annotations),
        "interposers/generated/driver.h": emit_driver(annotations),
        "interposers/generated/client.c": emit_client(annotations),
        "interposers/generated/client_names.c": emit_names(header),
        "interposers/generated/client_entries.c": emit_entries(header),
        "interposers/generated/dispatch.c": emit_dispatch(annotations),
        "docs/reference-supported-calls.md": emit_reference(header, annotations),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the generated files, or with ``--check`` says which are stale; 0, 1 (stale) or 2 (error)."""
    parser = argparse.ArgumentParser(prog="python -m interposers.generator", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is not current")
    parser.add_argument(
        "--header-dir", type=Path, help="folder of cuda.h (default: the nvidia-cuda-runtime wheel)"
    )
    parser.add_argument(
        "--nccl-header-dir", type=Path, help="folder of nccl.h (default: what was read of it, and committed)"
    )
    parser.add_argument("--root", type=Path, default=HERE.parent, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    try:
        texts = generate(options.header_dir or header_directory(), HERE / "annotations.toml")
        texts |= generate_nccl(options.root, options.nccl_header_dir)
    except HeaderNotFoundError as error:
        print(f"interposers.generator: {error}, or pass --header-dir DIR", file=sys.stderr)
        return 2
    except (HeaderError, AnnotationError, NcclAnnotationError) as error:
        print(f"interposers.generator: {error}", file=sys.stderr)
        return 2
    stale = [
        p
        for p, text in texts.items()
        if not (options.root / p).is_file() or (options.root / p).read_text() != text
    ]
    if options.check:
        for path in stale:
            print(f"{path} is not current: run `python -m interposers.generator`", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        (options.root / path).parent.mkdir(parents=True, exist_ok=True)
        (options.root / path).write_text(texts[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
