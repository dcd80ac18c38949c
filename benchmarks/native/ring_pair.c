/* The ring of transport/ring.h between two processes with nothing at its ends, and a bare ping-pong on two words in shared
 * memory: what dispatch would cost if all else were free.  Usage: ring_pair RESULT */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "singularity_core/transport/ring.h"

enum { BURST = 400, BURSTS = 300, ROUNDS = 20000, PAYLOAD = 96 /* about a launch with three parameters */ };

struct shared {
    struct sg_session_page page __attribute__((aligned(4096)));
    uint8_t ring[SG_RING_LINES * SG_LINE] __attribute__((aligned(4096)));
    _Alignas(64) _Atomic uint64_t ping;
    _Alignas(64) _Atomic uint64_t pong;
};

static double now(void) { return (double)sg_now_ns(); }
static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median(double *values, size_t count) {
    qsort(values, count, sizeof *values, ascending);
    return values[count / 2];
}

static void consume(struct shared *s) {
    static _Alignas(64) uint8_t copy[SG_MAX_MESSAGE_LINES * SG_LINE];
    uint64_t head = 0;
    for (long left = (long)BURST * BURSTS; left > 0;) {
        int got = sg_ring_take(&s->page, s->ring, &head, (struct sg_message *)copy);
        if (got < 0) exit(1);
        if (got == 0) sg_pause();
        left -= got;
    }
    for (uint64_t k = 1; k <= ROUNDS; k++) {
        while (atomic_load_explicit(&s->ping, memory_order_acquire) != k) sg_pause();
        atomic_store_explicit(&s->pong, k, memory_order_release);
    }
    exit(0);
}

int main(int argc, char **argv) {
    FILE *out = argc > 1 ? fopen(argv[1], "w") : NULL;
    struct shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (out == NULL || s == MAP_FAILED) return 1;
    memset(s->ring, 0, sizeof s->ring); /* no page faults while we measure */
    pid_t child = fork();
    if (child == 0) consume(s);
    struct sg_producer producer = {.page = &s->page, .ring = s->ring};
    uint32_t lines = sg_ring_lines(PAYLOAD);
    static double times[ROUNDS];
    for (int burst = 0; burst < BURSTS; burst++) {
        double start = now();
        for (int k = 0; k < BURST; k++) {
            struct sg_message *message = sg_ring_reserve(&producer, lines);
            if (message == NULL) return 1; /* the ring holds far more than a burst */
            message->op = 1;
            message->lines = (uint16_t)lines;
            message->reply = SG_NO_REPLY;
            message->call = message->context = message->reserved = 0;
            message->bytes = PAYLOAD;
            memset(message->payload, k, PAYLOAD);
            sg_ring_publish(&producer, message, lines, 1);
        }
        times[burst] = (now() - start) / BURST;
        while (atomic_load(&s->page.head) != producer.tail) sg_pause();
    }
    fprintf(out, "ring_ns %.2f\n", median(times, BURSTS));
    for (uint64_t k = 1; k <= ROUNDS; k++) {
        double start = now();
        atomic_store_explicit(&s->ping, k, memory_order_release);
        while (atomic_load_explicit(&s->pong, memory_order_acquire) != k) sg_pause();
        times[k - 1] = now() - start;
    }
    fprintf(out, "pingpong_us %.4f\n", median(times, ROUNDS) / 1e3);
    int status;
    waitpid(child, &status, 0);
    return fclose(out) == 0 && status == 0 ? 0 : 1;
}
