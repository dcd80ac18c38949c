"""`python -m singularity_backend_fake.ptx`: the PTX compiler of the in-memory device.

FILE.ptx                                 what LOAD says about the module
FILE.ptx --kernel K --block x,y,z        compiles; --emit llvm|opt|asm prints, --emit obj writes the object to
-o FILE --serve                                  the service that the device talks to
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .errors import PtxError


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="ptx-compile", description="Compiles PTX kernels for the in-memory device."
    )
    parser.add_argument("file", nargs="?", type=Path, help="PTX text")
    parser.add_argument(
        "--serve", action="store_true", help="answer requests on standard input until it ends"
    )
    parser.add_argument("--kernel", help="kernel to compile (default: all that the module holds)")
    parser.add_argument("--block", default="128,1,1", help="block shape x,y,z (default: %(default)s)")
    parser.add_argument("--emit", choices=("llvm", "opt", "asm", "obj"), help="what to write")
    parser.add_argument("-o", "--output", type=Path, help="file for --emit (default: standard output)")
    return parser.parse_args()


def emit(options: argparse.Namespace) -> bytes:
    from .compiler import generate
    from .parser import parse
    from .target import assembly, object_code, optimise

    module = parse(options.file.read_text())
    names = [options.kernel] if options.kernel else [f.name for f in module.functions.values() if f.is_entry]
    sizes = [int(n) for n in options.block.split(",")]
    x, y, z = ([*sizes, 1, 1])[:3]
    texts = []
    for name in names:
        compiled = generate(module, name, (x, y, z))
        if options.emit == "llvm":
            texts.append(compiled.text.encode())
            continue
        optimised = optimise(compiled.text)
        if options.emit == "opt":
            texts.append(str(optimised).encode())
        elif options.emit == "asm":
            texts.append(assembly(optimised).encode())
        elif len(names) == 1:
            return object_code(optimised)
        else:
            raise PtxError("--emit obj needs --kernel: an object holds one kernel")
    return b"\n".join(texts)


def main() -> int:
    options = arguments()
    if options.serve:
        from .serve import serve

        return serve()
    if options.file is None:
        print("ptx-compile: no file given (see --help)", file=sys.stderr)
        return 2
    try:
        if options.emit:
            data = emit(options)
            if options.output:
                options.output.write_bytes(data)
            else:
                sys.stdout.buffer.write(data)
        else:
            from .service import Service

            answer = Service().load(options.file.read_bytes())
            sys.stdout.write(answer)
            if options.kernel:
                name = answer.split()[1]
                shape = options.block.replace(",", " ")
                sys.stdout.write(Service().compile(f"{name} {options.kernel} {shape} 0".encode()))
    except (PtxError, OSError) as error:
        print(f"ptx-compile: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
