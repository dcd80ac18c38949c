#include "tempo.h"

enum { LEAST = 3 }; /* so often in a row at least; otherwise two equal operations would look like a period */

void sg_tempo_note(struct sg_tempo *t, uint32_t mark, uint32_t work, uint64_t now) {
    mark = mark * 2654435761u ^ (work + 1) * 2246822519u;
    uint32_t longest = t->count < SG_TEMPO_LONGEST ? (uint32_t)t->count : SG_TEMPO_LONGEST;
    for (uint32_t period = 1; period <= longest; period++) {
        uint32_t *cover = &t->covers[period - 1];
        *cover = t->marks[(t->count - period) % SG_TEMPO_LONGEST] != mark ? 0 : *cover + (*cover != UINT32_MAX);
    }
    uint32_t at = t->count++ % SG_TEMPO_LONGEST;
    t->marks[at] = mark;
    t->works[at] = work;
    t->times[at] = now;
}

/* The one that explains most; of equals the shortest. */
static uint32_t period_of(const struct sg_tempo *t) {
    uint32_t best = 0, most = 0;
    for (uint32_t period = 1; period <= SG_TEMPO_LONGEST; period++) {
        uint32_t cover = t->covers[period - 1];
        if (cover < period || cover < LEAST || cover <= most) continue;
        best = period;
        most = cover;
    }
    return best;
}

struct sg_tempo_beat sg_tempo_beat(const struct sg_tempo *t) {
    struct sg_tempo_beat beat = {.period = period_of(t)};
    if (beat.period == 0) return beat;
    uint64_t first = t->count - beat.period;
    for (uint64_t n = first; n < t->count; n++) {
        uint32_t work = t->works[n % SG_TEMPO_LONGEST], end = (uint32_t)(n % beat.period);
        if (n != first && (work < beat.work || (work == beat.work && end > beat.end))) continue;
        beat.work = work;
        beat.end = end; /* n operations come before operation n */
    }
    uint64_t before = beat.period < SG_TEMPO_LONGEST ? first - 1 : first; /* of the longest, the last time is gone */
    beat.ns = t->times[(t->count - 1) % SG_TEMPO_LONGEST] - t->times[before % SG_TEMPO_LONGEST];
    return beat;
}

uint64_t sg_tempo_next(uint64_t clock, uint32_t period, uint32_t end) {
    if (period == 0) return clock;
    uint64_t over = clock % period;
    return clock + (end % period + period - over) % period;
}
