/* doors DIRECTORY RANK SCENARIO DIRECTORY: one process that comes through two doors of one proxy, the second of which is in the
 * last directory; exits 0 when all was as it should be.  Ranks from RANK on are its own. */
#include "rank.h"

#include <errno.h>
#include <unistd.h>

enum { SESSIONS = 64 /* as many as may share a device */, BYTES = 300000 };
static const char *doors[2];
static uint32_t rank_;

static int try(sg_link **link, uint32_t door, uint32_t rank, uint32_t sub, char why[128]) {
    return sg_link_open(link, doors[door], rank, sub, why);
}

/* A session that ended lately may still be in the way, without the proxy having noticed that. */
static sg_link *open_at(uint32_t door, uint32_t rank) {
    char why[128] = "";
    sg_link *link;
    int error = -ECONNREFUSED;
    for (int tries = 0; tries < 1000 && error == -ECONNREFUSED; tries++) {
        error = try(&link, door, rank, 0, why);
        if (error == -ECONNREFUSED) usleep(5000);
    }
    if (error != 0) fprintf(stderr, "door %u: %s\n", door, why);
    CHECK(error == 0);
    return link;
}

static uint64_t fill(sg_link *link, uint8_t value) {
    static uint8_t bytes[BYTES];
    uint64_t address = ASK(link, OP_ALLOC, 0, BYTES);
    memset(bytes, value, BYTES);
    sg_link_bulk_lock(link);
    CHECK(BEGIN(link, OP_WRITE, 0, address, BYTES) && sg_link_call_send(link, bytes, BYTES) == 0);
    sg_link_bulk_unlock(link);
    return address;
}

static void check_filled(sg_link *link, uint64_t address, uint8_t value) {
    static uint8_t bytes[BYTES];
    sg_link_bulk_lock(link);
    CHECK(BEGIN(link, OP_READ, 0, address, BYTES) && sg_link_call_receive(link, bytes, BYTES) == 0);
    sg_link_bulk_unlock(link);
    for (uint32_t i = 0; i < BYTES; i++) CHECK(bytes[i] == value);
}

/* Each has the whole device for itself, at the same addresses, and finds there what it left. */
static void scenario_share(void) {
    sg_link *a = open_at(0, rank_), *b = open_at(1, rank_ + 1);
    uint64_t at_a = fill(a, 17), at_b = fill(b, 42);
    CHECK(at_a == at_b);
    for (int i = 0; i < 3; i++) {
        check_filled(a, at_a, 17);
        check_filled(b, at_b, 42);
    }
    sg_link_close(a);
    check_filled(b, at_b, 42);
    sg_link_close(b);
}

/* A rank has one session, whatever door it came through. */
static void scenario_window(void) {
    char why[128], said[128];
    sg_link *first = open_at(0, rank_), *other;
    snprintf(said, sizeof said, "rank %u, child 0 has a session already (process %d)", rank_, getpid());
    for (uint32_t door = 0; door < 2; door++) {
        CHECK(try(&other, door, rank_, 0, why) == -ECONNREFUSED);
        CHECK(strcmp(why, said) == 0);
    }
    CHECK(try(&other, 1, rank_, 1, why) == 0); /* its child has another window */
    CHECK(ASK(other, OP_ECHO, 0, 5) == 5 && ASK(first, OP_ECHO, 0, 6) == 6);
    sg_link_close(other);
    sg_link_close(first);
    first = open_at(1, rank_);
    CHECK(ASK(first, OP_ECHO, 0, 7) == 7);
    sg_link_close(first);
}

/* As many as may share a device, at both doors; one more comes in nowhere, until one goes. */
static void scenario_full(void) {
    char why[128];
    sg_link *links[SESSIONS], *late;
    for (uint32_t i = 0; i < SESSIONS; i++) links[i] = open_at(i % 2, rank_ + i);
    for (uint32_t door = 0; door < 2; door++) {
        CHECK(try(&late, door, rank_ + SESSIONS, 0, why) == -ECONNREFUSED);
        CHECK(strcmp(why, "all 64 sessions of this device proxy are taken") == 0);
    }
    for (uint32_t i = 0; i < SESSIONS; i++) CHECK(ASK(links[i], OP_ECHO, 0, i) == i);
    sg_link_close(links[11]); /* came through the second door */
    links[11] = open_at(0, rank_ + SESSIONS);
    for (uint32_t i = 0; i < SESSIONS; i++) CHECK(ASK(links[i], OP_ECHO, 0, i) == i);
    for (uint32_t i = 0; i < SESSIONS; i++) sg_link_close(links[i]);
}

/* Comes and goes at both doors until nobody opens any more. */
static void scenario_knock(void) {
    char why[128] = "";
    int error = 0, said = 0;
    for (uint32_t i = 0; error == 0; i++) {
        sg_link *link;
        error = try(&link, i % 2, rank_, 0, why);
        if (error == -ECONNREFUSED) {
            error = 0;
            usleep(1000);
            continue;
        }
        if (error != 0) break;
        if (!said) puts("knocking"), fflush(stdout);
        said = 1;
        error = CALL(link, OP_NOTHING, 0);
        sg_link_close(link);
    }
    if (error != -EPIPE && error != -ENOENT) fprintf(stderr, "%s (%s)\n", strerror(-error), why);
    CHECK(error == -EPIPE || error == -ENOENT);
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    doors[0] = argv[1];
    doors[1] = argv[4];
    rank_ = (uint32_t)atoi(argv[2]);
    if (strcmp(argv[3], "share") == 0) scenario_share();
    else if (strcmp(argv[3], "window") == 0) scenario_window();
    else if (strcmp(argv[3], "full") == 0) scenario_full();
    else if (strcmp(argv[3], "knock") == 0) scenario_knock();
    else return 2;
    return 0;
}
