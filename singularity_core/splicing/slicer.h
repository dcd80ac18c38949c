/* Which session has the device: pure logic, no I/O, no clock of its own (design.md, "Time-slicing").
 *
 * The caller tells what happened (with its time, in ns) and then asks what to do.  Sessions are slots 0..63, which
 * are places at the device and have nothing to do with doors (residency.h).  Everything here is deterministic, and
 * explored exhaustively by tests/splicing.
 *
 *   (a) the resident session has nothing to run, waits, and misses a contribution of another session here: switch
 *   (b) it is locally complete, or waits for other devices: stay
 *   (c) it still has nothing to run after a while: switch.  A while is max(wait_ns, cost of a switch) when its rank
 *       waits in a call.  When the rank computes on the host, its device work may come any moment, and leaving early
 *       costs a switch there and one back: then it is twice the longest pause that this session made lately.
 *   (d) it always has something to run: switch after quantum_ns, which is longer than any step
 * All of this only when another session wants the device; the next one in the order of slots gets it. */
#ifndef SG_SLICER_H
#define SG_SLICER_H

#include <stdint.h>

#define SG_SLICER_SLOTS 64u
#define SG_SLICER_NOBODY 0xffffffffu
#define SG_SLICER_HOST_NS 100000000ull /* the longest that (c) waits for a rank that computes on the host */

/* What is known of a session now.  Bits; the caller keeps them true. */
enum {
    SG_SLICE_PRESENT = 1, /* the session exists */
    SG_SLICE_WANTS = 2,   /* it has work that needs residency: a touching call at its head or inside, running device work, or a
                             gate that could open now */
    SG_SLICE_WAITS = 4,   /* a thread of its rank waits in a call for device work */
    SG_SLICE_MISSES = 8,  /* a pending operation of it misses a contribution of another session on this device */
    SG_SLICE_ENDS = 16,   /* it is being buried: when resident, it stays until it is gone */
};

struct sg_slicer {
    uint32_t state[SG_SLICER_SLOTS];
    uint64_t since[SG_SLICER_SLOTS];       /* when WANTS was last lost or gained */
    uint64_t pause[SG_SLICER_SLOTS];       /* longest pause on the host in this turn, */
    uint64_t pause_before[SG_SLICER_SLOTS]; /* and in those before it, fading */
    uint32_t resident;                     /* slot, or NOBODY */
    uint32_t last;                         /* who was resident last: where the round robin goes on */
    uint32_t held;                         /* 1: no switches (a cut is acquired) */
    uint64_t resident_since, switches;
    uint64_t swap_ns;                      /* measured cost of a switch, smoothed */
    uint64_t wait_ns, quantum_ns;          /* rules (c) and (d): the least that they wait */
};
enum { SG_SLICE_STAY = 0, SG_SLICE_SWITCH = 1 };
struct sg_slice_decision {
    uint32_t what, to;
    uint64_t again_ns; /* STAY: ask again at this time at the latest (0: only when something happens) */
};

void sg_slicer_init(struct sg_slicer *slicer, uint64_t wait_ns, uint64_t quantum_ns);
void sg_slicer_set(struct sg_slicer *slicer, uint32_t slot, uint32_t state, uint64_t now);
struct sg_slice_decision sg_slicer_decide(const struct sg_slicer *slicer, uint64_t now);
/* `to` has the device now (NOBODY: the resident session is gone); cost_ns 0: nothing was moved. */
void sg_slicer_switched(struct sg_slicer *slicer, uint32_t to, uint64_t now, uint64_t cost_ns);
#endif
