/* Settling: does anything run on a device, or could it begin without somebody opening a gate or a host function
 * returning?
 *
 * A stream rests when it is empty, or when its thread is parked at a closed gate, in a host function, or behind a
 * point of another stream that has not come.  Streams never stop to be looked at: all that says whether one rests only
 * counts upwards (submitted, completed, phase), so two looks that saw the same numbers prove that nothing changed in
 * between, and that they all rested at one moment. */
#include "device.h"

#include <stdlib.h>
#include <string.h>

#define FARTHEST 64 /* streams of other devices that one waits behind, one behind the other */

_Atomic uint32_t sgf_settlers; /* threads in sgf_settle; nobody rings the bell without them */
static _Atomic uint32_t bell;

void sgf_settle_ring(void)
{
    atomic_fetch_add(&bell, 1);
    sgf_futex_wake(&bell, INT32_MAX);
}

void sgf_park(struct CUstream_st *stream, enum sgf_phase phase, uint64_t point)
{
    atomic_store(&stream->point, point);
    atomic_store(&stream->phase, (atomic_load_explicit(&stream->phase, memory_order_relaxed) | 3) + 1 + phase);
    sgf_came_to_rest();
}

void sgf_unpark(struct CUstream_st *stream)
{
    atomic_store(&stream->phase, (atomic_load_explicit(&stream->phase, memory_order_relaxed) | 3) + 1 + SGF_MOVING);
}

struct seen { uint64_t submitted, completed, phase; struct CUstream_st *stream; };
struct look { struct seen few[64], *seen; size_t count, room; bool full; };

static void note(struct look *look, struct seen seen)
{
    if (look->count == look->room) {
        struct seen *more = malloc(2 * look->room * sizeof *more);
        if (more == NULL) {
            look->full = true;
            return;
        }
        memcpy(more, look->seen, look->count * sizeof *more);
        if (look->seen != look->few)
            free(look->seen);
        look->seen = more;
        look->room *= 2;
    }
    look->seen[look->count++] = seen;
}

static bool released(struct CUctx_st *context)
{
    return atomic_load(&context->error) != 0 || atomic_load(&context->ending);
}

/* A stream in a host function whose next work waits at a gate that is open: a host function may open it before it
 * returns, and whoever opens a gate must be able to rely on it that the stream does not rest from then on. */
static bool let_go(struct CUstream_st *stream, struct sgf_gate *gate, uint64_t point, uint64_t next)
{
    if (gate == NULL && atomic_load(&stream->queued_seq) == next) {
        gate = atomic_load(&stream->queued_gate);
        point = atomic_load(&stream->queued_point);
    }
    return gate != NULL && sgf_gate_is_open(gate, point);
}

static bool rests(struct look *look, struct CUstream_st *stream, int distance)
{
    struct seen now = { .stream = stream };
    now.phase = atomic_load(&stream->phase);
    now.completed = atomic_load(&stream->completed);
    now.submitted = atomic_load(&stream->submitted);
    note(look, now);
    if (now.completed >= now.submitted)
        return true;
    uint64_t point = atomic_load(&stream->point); /* of a later phase, perhaps: then the second look differs */
    switch ((enum sgf_phase)(now.phase & 3)) {
    case SGF_MOVING:
        return false;
    case SGF_IN_HOST:
        return !let_go(stream, atomic_load(&stream->gate), point, now.completed + 2);
    case SGF_AT_GATE:
        return !sgf_gate_is_open(atomic_load(&stream->gate), point) && !released(atomic_load(&stream->home));
    case SGF_BEHIND: {
        struct CUstream_st *on = atomic_load(&stream->ahead);
        if (sgf_seq_done(on, point))
            return false;
        /* Streams of this device are all looked at in their turn. */
        return atomic_load(&on->ordinal) == atomic_load(&stream->ordinal) || (distance < FARTHEST && rests(look, on, distance + 1));
    }
    }
    return false;
}

static bool all_rest(struct sgf_device *device, struct look *look)
{
    uint64_t done = atomic_load(&device->direct_done), begun = atomic_load(&device->direct_begun);
    note(look, (struct seen){ .submitted = begun, .completed = done });
    bool rest = begun == done;
    for (uint32_t i = 0; rest && i < sgf_slots(SGF_STREAM); i++) {
        struct CUstream_st *stream = sgf_slot(SGF_STREAM, i);
        if (stream != NULL && atomic_load(&stream->ordinal) == (uint32_t)(device - sgf.devices))
            rest = rests(look, stream, 0);
    }
    return rest && !look->full;
}

static bool same(const struct look *a, const struct look *b)
{
    return a->count == b->count && memcmp(a->seen, b->seen, a->count * sizeof *a->seen) == 0;
}

static CUresult settled(struct sgf_device *device)
{
    struct look first = { .room = 64 }, second = { .room = 64 };
    first.seen = first.few;
    second.seen = second.few;
    bool rest, yes;
    do { /* both at rest but different: what happened in between need not ring, so look again */
        first.count = second.count = 0;
        rest = all_rest(device, &first) && all_rest(device, &second);
        yes = rest && same(&first, &second);
    } while (rest && !yes);
    if (first.seen != first.few)
        free(first.seen);
    if (second.seen != second.few)
        free(second.seen);
    return first.full || second.full ? CUDA_ERROR_OUT_OF_MEMORY : yes ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

int32_t sgf_settle(void *state, uint64_t timeout_ns)
{
    uint64_t start = sgf_now(), passed = 0;
    CUresult result;
    atomic_fetch_add(&sgf_settlers, 1);
    for (;;) {
        /* Whatever was not at rest rings after this, when it comes to rest. */
        uint32_t heard = atomic_load(&bell);
        result = settled(state);
        if (result != CUDA_ERROR_NOT_READY || (passed = sgf_now() - start) >= timeout_ns)
            break;
        sgf_futex_wait(&bell, heard, timeout_ns - passed);
    }
    atomic_fetch_sub(&sgf_settlers, 1);
    return (int32_t)result;
}
