/* The HAL's native function table: the same contract as singularity_core.hal.Device, for the calls
 * that the proxy makes without Python.  A backend fills it once per device.
 *
 * Every function returns 0 or a CUresult-compatible error code, may be called from any thread, and
 * blocks no longer than the operation takes.  Optional functions are NULL when the backend lacks
 * the capability that their comment names. */
#ifndef SG_HAL_NATIVE_H
#define SG_HAL_NATIVE_H

#include <stdint.h>

#define SG_HAL_ABI 1u

struct sg_hal_table {
    uint32_t struct_size;  /* sizeof, as the backend was compiled: a smaller table lacks the tail */
    uint32_t abi;          /* SG_HAL_ABI */
    void *state;           /* the backend's; first argument of every function */

    /* Backs [address, address + bytes) with device memory; `address` 0 lets the device choose once.
     * All of it starts dead when the backend has range_live, live otherwise. */
    int32_t (*arena_open)(void *state, uint64_t address, uint64_t bytes, uint64_t *actual);
    int32_t (*arena_close)(void *state);
    int32_t (*arena_limit)(void *state, uint64_t *bytes); /* the largest arena the device can back now */

    /* Optional (capability "range_tracking"): the sub-allocator says what is in use, so that the
     * device can report accesses to the rest.  Addresses and sizes are multiples of 512. */
    int32_t (*range_live)(void *state, uint64_t address, uint64_t bytes);
    int32_t (*range_dead)(void *state, uint64_t address, uint64_t bytes);

    /* Makes host memory of this process (a session's page-locked window, or a part of it) readable
     * and writable by the device at the same address, or ends that.  The end waits for nothing: the caller has
     * waited for the work that uses it. */
    int32_t (*host_register)(void *state, void *host, uint64_t bytes);
    int32_t (*host_unregister)(void *state, void *host);

    /* Content: 128-bit digest of device memory, computed on the device (capability "checksum").  The same
     * function on every backend: digest.h.  `address` is a multiple of 8. */
    int32_t (*digest)(void *state, uint64_t address, uint64_t bytes, uint8_t out[16]);
    /* Waits until all that was asked for through this table is done.  Other contexts of the process may go on: see `settle`. */
    int32_t (*quiesce)(void *state);

    /* ---- since table size 2: what sharing a device needs (decision 0005) ---- */
    /* Copies that are ordered with nothing: done when they return.  The device range is live memory of the arena. */
    int32_t (*copy_to_host)(void *state, void *host, uint64_t device, uint64_t bytes);
    int32_t (*copy_to_device)(void *state, uint64_t device, const void *host, uint64_t bytes);

    /* Optional (capability "gates"): a gate holds streams until it is opened, once, from any thread.  `stream` is
     * a physical stream of the driver ABI, in the context that is current in the calling thread; not one that
     * captures (900).  `wait` may be called for several streams, before `open` or after it (then nothing waits).
     * `drop`: no more waits come; the gate's memory goes when it is open too.  A context that fails or is
     * destroyed stops waiting at gates, and does not run what is behind them. */
    int32_t (*gate_make)(void *state, uint64_t *gate);
    int32_t (*gate_wait)(void *state, uint64_t gate, void *stream);
    int32_t (*gate_open)(void *state, uint64_t gate);
    int32_t (*gate_drop)(void *state, uint64_t gate);
    /* Optional (capability "settle"): waits until nothing runs on the device or could begin by itself: every
     * stream is empty, or its next work waits at a gate, in a host function, or for such a stream.  A host function
     * that is followed by a wait at a gate is none when the gate is open: it may have opened it, before it returns.
     * CUDA_ERROR_NOT_READY (600) when that is not so after `timeout_ns` (0: only looks). */
    int32_t (*settle)(void *state, uint64_t timeout_ns);
    /* Optional (capability "settle"): gives up what the context that is current in the calling thread has queued.
     * What runs ends; nothing else begins, not even after a gate or a host function; gates hold its streams no
     * longer, so that they empty and the context can be destroyed.  Nothing succeeds in the context afterwards. */
    int32_t (*discard)(void *state);

    /* ---- since table size 3 ---- */
    /* Optional, and only in tables that are native: the content of the arena is a file's, which another process of the user can go on
     * with (decision 0013), so that it need not be copied.
     * file: its descriptor, which stays the device's; an offset there is one in the arena.
     * exchange: nothing runs.  The arena's content is from now on that of `file`, which is as wide; all of it is dead until
     * range_live says otherwise.  Takes the descriptor, and gives away the one from before.  On an error all is as it was. */
    int32_t (*arena_file)(void *state, int32_t *file);
    int32_t (*arena_exchange)(void *state, int32_t file, int32_t *before);
};

/* A driver-ABI library whose devices have a native table exports this; others (a vendor's) do not, and the core
 * builds a table over singularity_core.hal.Device.  The table stays valid for the life of the process, and asking
 * again answers the same one.  CUDA_ERROR_INVALID_DEVICE (101) for an ordinal that does not exist,
 * CUDA_ERROR_NOT_SUPPORTED (801) for a device that has none. */
int32_t sg_hal_open_table(int32_t ordinal, const struct sg_hal_table **table);

#endif
