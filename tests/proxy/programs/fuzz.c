/* fuzz DIRECTORY RANK SEED MESSAGES SECONDS: a hostile rank, which fails when the seconds were too few.  It speaks to the proxy with valid, mutated and
 * random messages, scribbles over everything it can write, and takes a new session whenever it loses one. */
#include <time.h>
#include <unistd.h>

#include "rank.h"
#include "singularity_core/transport/ring.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>

static uint64_t seed;
static uint64_t rnd(void) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}
static uint64_t below(uint64_t n) { return n == 0 ? 0 : rnd() % n; }
/* Numbers that hurt: edges of ranges, and sometimes anything. */
static uint64_t nasty(void) {
    static const uint64_t edges[] = {0, 1, 2, 3, 511, 512, 4095, 4096, 65535, 65536, 0x7fffffff, 0x80000000u, 0xffffffffu,
                                     1ull << 33, 1ull << 47, SG_DEVICE_BASE, SG_PINNED_BASE, UINT64_MAX, UINT64_MAX - 511,
                                     SG_CLIENT_HANDLES, SG_HANDLE(SG_KIND_STREAM, 1, 1), SG_HANDLE(SG_KIND_CONTEXT, 1, SG_CLIENT_HANDLES),
                                     SG_HANDLE(SG_KIND_MODULE, 1, SG_CLIENT_HANDLES + 1), SG_HANDLE(255, 1, 1)};
    uint64_t pick = below(8);
    if (pick == 0) return rnd();
    if (pick < 4) return below(70);
    return edges[below(sizeof edges / sizeof *edges)] + (pick == 4 ? below(9) : 0);
}

struct session {
    struct sg_session_page *page;
    struct sg_producer producer;
    sg_link *link;
};

static int slot_of(const char *directory, uint32_t rank) {
    const struct sg_door *door = sg_door_map(directory);
    int found = -1;
    CHECK(door != NULL);
    for (int i = 0; i < (int)SG_DOOR_SLOTS; i++)
        if (door->slots[i].pid == (uint32_t)getpid() && door->slots[i].rank == rank &&
            atomic_load((_Atomic uint32_t *)&door->slots[i].state) == SG_SLOT_OPEN)
            found = i;
    munmap((void *)door, sizeof *door);
    return found;
}

/* Opens a session the regular way, and maps its file once more to misuse it. */
static int connect_(struct session *s, const char *directory, uint32_t rank, uint32_t sub) {
    char why[128], path[4200];
    if (sg_link_open(&s->link, directory, rank, sub, why) != 0) return -1;
    int slot = slot_of(directory, rank);
    if (slot < 0) return -1;
    snprintf(path, sizeof path, "%s/%d.session", directory, slot);
    int fd = open(path, O_RDWR);
    if (fd < 0) return -1;
    uint8_t *at = mmap(NULL, SG_SESSION_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    CHECK(at != MAP_FAILED);
    s->page = (struct sg_session_page *)at;
    s->producer = (struct sg_producer){.page = s->page, .ring = at + SG_RING_OFFSET,
                                       .head = s->page->head, .tail = s->page->head};
    return 0;
}

/* Operations that would end the fuzzing by design (they wait for ever) are left out. */
static uint32_t some_op(void) {
    uint32_t op = (uint32_t)(below(40) == 0 ? nasty() : below(OP_COUNT));
    return op == OP_GATE_WAIT || op == OP_HANG || op == OP_WRITE || op == OP_READ || op == OP_VIEW ? OP_ECHO : op;
}

/* 0: the session is over, or its ring too spoilt to take another message. */
static int one_message(struct session *s) {
    uint32_t bytes = (uint32_t)(below(50) == 0 ? below(SG_MAX_PAYLOAD) : below(64));
    uint32_t lines = sg_ring_lines(bytes);
    struct sg_message *message;
    for (int tries = 0; (message = sg_ring_reserve(&s->producer, lines)) == NULL; tries++) {
        if (atomic_load(&s->page->dead) != 0 || tries > 2000) return 0;
        usleep(100);
    }
    message->op = some_op();
    message->lines = (uint16_t)lines;
    message->reply = (uint16_t)(below(2) ? SG_NO_REPLY : below(SG_REPLY_SLOTS));
    message->call = (uint32_t)rnd();
    message->bytes = bytes;
    message->context = (uint32_t)(below(3) == 0 ? nasty() : 0);
    for (uint32_t i = 0; i + 8 <= bytes && i < 64; i += 8) {
        uint64_t word = nasty();
        memcpy(message->payload + i, &word, 8);
    }
    if (message->op == OP_PIN_ADD && bytes >= 16) memset(message->payload + 8, 0, 8);
    if (message->op == OP_ALLOC && bytes >= 8 && below(4)) memcpy(message->payload, &(uint64_t){below(100000)}, 8);
    uint64_t mutate = below(3000);
    if (mutate == 0) message->lines = (uint16_t)nasty();
    if (mutate == 1) message->bytes = (uint32_t)nasty();
    if (mutate == 2) message->reply = (uint16_t)nasty();
    if (mutate == 3) message->op = SG_OP_PAD;
    if (mutate == 4) for (int i = 8; i < 64; i++) ((uint8_t *)message)[i] = (uint8_t)rnd();
    sg_ring_publish(&s->producer, message, lines, 0);
    /* time of check, time of use: change the message while the proxy may be reading it */
    if (below(20) == 0) {
        message->lines = (uint16_t)nasty();
        message->bytes = (uint32_t)nasty();
        message->op = (uint32_t)nasty();
    }
    if (below(2000) == 0) {
        uint8_t *page = (uint8_t *)s->page;
        for (int i = 0; i < 40; i++) page[below(4096)] = (uint8_t)rnd(); /* head, flags, counters, everything */
    }
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 6) return 2;
    uint32_t rank = (uint32_t)atoi(argv[2]);
    seed = strtoull(argv[3], NULL, 10) * 0x9e3779b97f4a7c15ull + 1;
    uint64_t messages = strtoull(argv[4], NULL, 10), sent = 0, sessions = 0;
    time_t until = time(NULL) + atoi(argv[5]);
    pid_t child = -1;
    while (sent < messages && time(NULL) < until) {
        /* each session in a process of its own, because its end is part of what is tried */
        int pipe_[2];
        CHECK(pipe(pipe_) == 0);
        rnd();
        child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            struct session s;
            uint64_t mine = 0;
            if (connect_(&s, argv[1], rank, 0) == 0)
                while (mine < 60000 && sent + mine < messages && atomic_load(&s.page->dead) == 0 && time(NULL) < until &&
                       one_message(&s))
                    mine++;
            if (write(pipe_[1], &mine, sizeof mine) != sizeof mine) _exit(1);
            _exit(0);
        }
        uint64_t theirs = 0;
        CHECK(read(pipe_[0], &theirs, sizeof theirs) == sizeof theirs);
        close(pipe_[0]);
        close(pipe_[1]);
        int status;
        CHECK(wait(&status) == child && status == 0);
        sent += theirs;
        sessions += theirs != 0;
    }
    printf("seed %s: %llu of %llu messages in %llu sessions\n", argv[3], (unsigned long long)sent,
           (unsigned long long)messages, (unsigned long long)sessions);
    return sent >= messages ? 0 : 1;
}
