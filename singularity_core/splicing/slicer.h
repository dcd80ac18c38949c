/* Which session has the device: pure logic, no I/O, no clock of its own (design.md, "Time-slicing").
 *
 * The caller tells what happened (with its time, in ns) and then asks what to do.  Sessions are slots 0..63 of the
 * door.  Everything here is deterministic and is explored exhaustively by tests/splicing. */
#ifndef SG_SLICER_H
#define SG_SLICER_H

#include <stdint.h>

#define SG_SLICER_SLOTS 64u
#define SG_SLICER_NOBODY 0xffffffffu

/* What is known of a session now.  Bits; the caller keeps them true. */
enum {
    SG_SLICE_PRESENT = 1,  /* the session exists */
    SG_SLICE_WANTS = 2,    /* it has work that needs residency: a touching call at its head or inside, running device work, or a
                              gate that could open now */
    SG_SLICE_WAITS = 4,    /* a thread of its rank waits in a call for device work behind a gate */
    SG_SLICE_MISSES = 8,   /* a pending operation of it misses a contribution of another session on this device */
};

struct sg_slicer {
    uint32_t state[SG_SLICER_SLOTS];
    uint64_t since[SG_SLICER_SLOTS]; /* when WANTS was last lost (resident) or gained (others) */
    uint32_t resident;               /* slot, or NOBODY */
    uint32_t held;                   /* 1: no switches (a cut is acquired) */
    uint64_t resident_since, switches;
    uint64_t swap_ns;                /* measured cost of a switch, smoothed */
    uint64_t wait_ns, quantum_ns;    /* rule (c): floor of the wait; fairness among sessions that always want */
};
enum { SG_SLICE_STAY = 0, SG_SLICE_SWITCH = 1 };
struct sg_slice_decision {
    uint32_t what, to;
    uint64_t again_ns; /* STAY: ask again at this time at the latest (0: only when something happens) */
};

void sg_slicer_init(struct sg_slicer *slicer, uint64_t wait_ns, uint64_t quantum_ns);
void sg_slicer_set(struct sg_slicer *slicer, uint32_t slot, uint32_t state, uint64_t now);
struct sg_slice_decision sg_slicer_decide(const struct sg_slicer *slicer, uint64_t now);
void sg_slicer_switched(struct sg_slicer *slicer, uint32_t to, uint64_t now, uint64_t cost_ns);
#endif
