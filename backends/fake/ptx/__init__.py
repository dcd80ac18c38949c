"""ptx-compile: PTX text to native objects for the in-memory device (see kernel_abi.h for the contract).

    parser (text -> syntax) -> lower (inlined, flat) -> ssa (cut at barriers, SSA) -> shapes (divergence)
    -> linear (order and masks) -> frame, emit* (LLVM text) -> target (object) -> cache, service, serve

It is a separate process: no LLVM and no Python live in the device, and a crash here is an error there.
"""
