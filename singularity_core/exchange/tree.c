#include "tree.h"

uint32_t sg_tree_place(const uint32_t *places, uint32_t first, uint32_t count) {
    for (uint32_t i = 1; i < count; i++)
        if (places[first + i] != places[first]) return SG_TREE_MIXED;
    return places[first];
}

static uint32_t largest_power_below(uint32_t n) {
    uint32_t power = 1;
    while (power * 2 < n) power *= 2;
    return power;
}

static uint32_t emit(const uint32_t *places, uint32_t first, uint32_t count, int merge, struct sg_tree_step *out) {
    uint32_t place = sg_tree_place(places, first, count);
    if (count == 1 || (merge && place != SG_TREE_MIXED)) {
        *out = (struct sg_tree_step){first, count, place, 0};
        return 1;
    }
    uint32_t left = largest_power_below(count);
    uint32_t used = emit(places, first, left, merge, out);
    used += emit(places, first + left, count - left, merge, out + used);
    out[used] = (struct sg_tree_step){0, 0, 0, 0};
    return used + 1;
}

uint32_t sg_tree_program(const uint32_t *places, uint32_t first, uint32_t count, int merge, struct sg_tree_step *out) {
    uint32_t used = emit(places, first, count, merge, out);
    for (uint32_t i = 0; i < used; i++) /* atoms are few where programs are long: no table of places */
        for (uint32_t before = i; out[i].count != 0 && before-- > 0;)
            if (out[before].count != 0 && out[before].place == out[i].place) {
                out[i].index = out[before].index + 1;
                break;
            }
    return used;
}

uint32_t sg_tree_depth(const struct sg_tree_step *steps, uint32_t count) {
    uint32_t now = 0, most = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (steps[i].count == 0) now--;
        else if (++now > most) most = now;
    }
    return most;
}
