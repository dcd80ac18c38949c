"""bindings.py DIRECTORY: a rank that uses NVIDIA's own Python bindings, nccl4py, for all that is NCCL's."""

from __future__ import annotations

import ctypes as c

from nccl.bindings import nccl
from rank import RANK, WORLD, UniqueId, allocate, equal, read, start, unique_id


def main() -> None:
    """Sums over all ranks; the id is exchanged as plain bytes."""
    start()
    plain: UniqueId = unique_id("bindings", 0)
    comm = nccl.comm_init_rank(WORLD, nccl.UniqueId.from_ptr(c.addressof(plain), owner=plain), RANK)
    assert (nccl.comm_count(comm), nccl.comm_user_rank(comm)) == (WORLD, RANK)
    memory = allocate((1 << RANK).to_bytes(4, "little"))
    nccl.all_reduce(memory, memory, 1, 3, 0, comm, 0)
    equal(read(memory, 4), ((1 << WORLD) - 1).to_bytes(4, "little"), "all_reduce")
    nccl.comm_destroy(comm)
    print("bindings passed", flush=True)


if __name__ == "__main__":
    main()
