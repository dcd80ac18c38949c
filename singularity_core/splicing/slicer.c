/* The rules of slicer.h.  Why the pause on the host is learnt: a rank whose framework takes 10 ms between two launches
 * must not lose the device at each of them, and one that has gone to sleep must not keep it.  What was seen lately
 * tells them apart better than any constant; the first turn waits longest. */
#include "slicer.h"

#include <string.h>

void sg_slicer_init(struct sg_slicer *slicer, uint64_t wait_ns, uint64_t quantum_ns) {
    memset(slicer, 0, sizeof *slicer);
    slicer->resident = SG_SLICER_NOBODY;
    slicer->last = SG_SLICER_SLOTS - 1;
    slicer->wait_ns = wait_ns;
    slicer->quantum_ns = quantum_ns;
}

static uint64_t larger(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* An end of a pause: how long was it, if the rank spent it on the host? */
static void learn(struct sg_slicer *slicer, uint32_t slot, uint64_t now) {
    uint64_t pause = now - slicer->since[slot];
    if (slicer->state[slot] & SG_SLICE_WAITS) return;
    if (pause > SG_SLICER_HOST_NS) pause = SG_SLICER_HOST_NS;
    slicer->pause[slot] = larger(slicer->pause[slot], pause);
}

void sg_slicer_set(struct sg_slicer *slicer, uint32_t slot, uint32_t state, uint64_t now) {
    uint32_t before = slicer->state[slot], changes = before ^ state;
    if (changes & SG_SLICE_PRESENT) {
        slicer->pause[slot] = slicer->pause_before[slot] = SG_SLICER_HOST_NS;
        slicer->since[slot] = now;
    } else if (changes & SG_SLICE_WANTS) {
        if (state & SG_SLICE_WANTS) learn(slicer, slot, now);
        slicer->since[slot] = now;
    }
    slicer->state[slot] = state;
}

/* The next session after `slot` that wants the device; NOBODY: none. */
static uint32_t next_after(const struct sg_slicer *slicer, uint32_t slot) {
    for (uint32_t i = 1; i <= SG_SLICER_SLOTS; i++) {
        uint32_t at = (slot + i) % SG_SLICER_SLOTS;
        if (at != slicer->resident && (slicer->state[at] & (SG_SLICE_PRESENT | SG_SLICE_WANTS | SG_SLICE_ENDS)) ==
                                          (SG_SLICE_PRESENT | SG_SLICE_WANTS))
            return at;
    }
    return SG_SLICER_NOBODY;
}

/* When the resident session has had its time; 0: now. */
static uint64_t due(const struct sg_slicer *slicer) {
    uint32_t at = slicer->resident, state = slicer->state[at];
    if (state & SG_SLICE_WANTS) return slicer->resident_since + larger(slicer->quantum_ns, 100 * slicer->swap_ns);
    if ((state & SG_SLICE_WAITS) && (state & SG_SLICE_MISSES)) return 0;
    uint64_t patience = larger(slicer->wait_ns, slicer->swap_ns);
    if (!(state & SG_SLICE_WAITS)) {
        uint64_t pause = 2 * larger(slicer->pause[at], slicer->pause_before[at]);
        patience = larger(patience, pause < SG_SLICER_HOST_NS ? pause : SG_SLICER_HOST_NS);
    }
    return slicer->since[at] + patience;
}

struct sg_slice_decision sg_slicer_decide(const struct sg_slicer *slicer, uint64_t now) {
    struct sg_slice_decision stay = {SG_SLICE_STAY, slicer->resident, 0};
    uint32_t next = next_after(slicer, slicer->last);
    if (slicer->held || next == SG_SLICER_NOBODY) return stay;
    struct sg_slice_decision go = {SG_SLICE_SWITCH, next, 0};
    if (slicer->resident == SG_SLICER_NOBODY) return go;
    if (slicer->state[slicer->resident] & SG_SLICE_ENDS) return stay;
    stay.again_ns = due(slicer);
    return now >= stay.again_ns ? go : stay;
}

void sg_slicer_switched(struct sg_slicer *slicer, uint32_t to, uint64_t now, uint64_t cost_ns) {
    uint32_t from = slicer->resident;
    slicer->resident = to;
    if (to == SG_SLICER_NOBODY) return;
    if (from != SG_SLICER_NOBODY) slicer->switches++;
    if (cost_ns != 0) slicer->swap_ns = slicer->swap_ns == 0 ? cost_ns : (3 * slicer->swap_ns + cost_ns) / 4;
    slicer->last = to;
    slicer->resident_since = now;
    slicer->since[to] = now;
    slicer->pause_before[to] = larger(slicer->pause[to], slicer->pause_before[to] / 4 * 3);
    slicer->pause[to] = 0;
}
