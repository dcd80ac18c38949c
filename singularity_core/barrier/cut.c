#include "cut.h"

int sg_cut_may_issue(const struct sg_cut_standing *standings, uint32_t count) {
    int beyond = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (standings[i].clock < standings[i].target) return 1; /* behind: nothing may hold it */
        beyond |= standings[i].wants != 0;
    }
    return !beyond;
}

static int raise_to(struct sg_cut_channel *channel, uint64_t clock) {
    if (clock <= channel->target) return 0;
    channel->target = clock;
    return 1;
}

static void follow_clocks(struct sg_cut *cut) {
    for (uint32_t i = 0; i < cut->member_count; i++)
        raise_to(&cut->channels[cut->members[i].channel], cut->members[i].clock);
}

/* Anything that a rank can do, or be let do, changes this. */
static uint64_t sum_of(const struct sg_cut *cut) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < cut->member_count; i++) sum += cut->members[i].clock;
    for (uint32_t i = 0; i < cut->channel_count; i++) sum += cut->channels[i].target;
    for (uint32_t i = 0; i < cut->rank_count; i++) sum = sum * 31 + cut->ranks[i].flags;
    return sum;
}

static void start_from_clocks(struct sg_cut *cut, uint64_t now) {
    for (uint32_t i = 0; i < cut->channel_count; i++) cut->channels[i].target = 0;
    follow_clocks(cut);
    cut->align_until = 0;
    cut->moved_at = now;
    cut->sum = sum_of(cut);
}

void sg_cut_begin(struct sg_cut *cut, uint64_t patience_ns, uint64_t now) {
    start_from_clocks(cut, now);
    cut->raises = 0;
    cut->patience_ns = patience_ns;
}

void sg_cut_align(struct sg_cut *cut, uint64_t align_ns, uint64_t now) {
    int raised = 0;
    follow_clocks(cut);
    for (uint32_t i = 0; i < cut->channel_count && align_ns != 0; i++) raised |= raise_to(&cut->channels[i], cut->channels[i].aligned);
    if (raised) cut->align_until = now + align_ns;
}

/* 1: some rank is behind. */
static int find_behind(struct sg_cut *cut) {
    int any = 0;
    for (uint32_t i = 0; i < cut->rank_count; i++) any |= cut->ranks[i].behind = (cut->ranks[i].flags & SG_CUT_JOINING) != 0;
    for (uint32_t i = 0; i < cut->member_count; i++) {
        const struct sg_cut_member *member = &cut->members[i];
        if (member->clock < cut->channels[member->channel].target) any |= cut->ranks[member->rank].behind = 1;
    }
    return any;
}

static int let_go_on(struct sg_cut *cut) {
    int any = 0;
    for (uint32_t i = 0; i < cut->member_count; i++) {
        const struct sg_cut_member *member = &cut->members[i];
        if ((cut->ranks[member->rank].flags & SG_CUT_HELD) && member->wants != 0)
            any |= raise_to(&cut->channels[member->channel], member->clock + member->wants);
    }
    return any;
}

int sg_cut_update(struct sg_cut *cut, uint64_t now) {
    follow_clocks(cut);
    if (!find_behind(cut)) return SG_CUT_REACHED;
    if (cut->align_until != 0 && now >= cut->align_until) {
        start_from_clocks(cut, now);
        find_behind(cut);
        return SG_CUT_GOING; /* also when nobody is behind: ranks may pass these targets until they are published */
    }
    uint64_t sum = sum_of(cut);
    if (sum != cut->sum) {
        cut->sum = sum;
        cut->moved_at = now;
    } else if (now - cut->moved_at >= cut->patience_ns && let_go_on(cut)) {
        cut->raises++;
        cut->patience_ns *= 2;
        cut->moved_at = now;
        cut->sum = sum_of(cut);
        find_behind(cut);
    }
    return SG_CUT_GOING;
}
