/* The ring of transport/ring.h between two processes with nothing at its ends, and a bare ping-pong on two words in shared
 * memory: what dispatch would cost if all else were free.  Usage: ring_pair SOCKET; slices: e (nanoseconds per message in
 * bursts of 400), r (nanoseconds per ping-pong). */
#include "rank.h"

#include <sys/mman.h>
#include <sys/wait.h>

#include "singularity_core/transport/ring.h"

/* A launch with three parameters carries 76 bytes: two lines, as here. */
enum { BURST = 400, BURSTS = 25, WARM_UP = 5, ROUNDS = 2000, PAYLOAD = 76 };

struct shared {
    struct sg_session_page page __attribute__((aligned(4096)));
    uint8_t ring[SG_RING_LINES * SG_LINE] __attribute__((aligned(4096)));
    _Alignas(64) _Atomic uint64_t ping;
    _Alignas(64) _Atomic uint64_t pong;
};
static struct shared *s;
static struct sg_producer producer;
static uint64_t rounds;
static int orders;

/* The other process: sleeps until a slice begins, and spins while it lasts. */
static void answer(int from) {
    static _Alignas(64) uint8_t copy[SG_MAX_MESSAGE_LINES * SG_LINE];
    uint64_t head = 0;
    for (char what; read(from, &what, 1) == 1;) {
        for (int left = what == 'e' ? BURST * (BURSTS + WARM_UP) : 0; left > 0;) {
            int got = sg_ring_take(&s->page, s->ring, &head, (struct sg_message *)copy);
            if (got < 0) exit(1);
            if (got == 0) sg_pause();
            left -= got;
        }
        for (int left = what == 'r' ? ROUNDS : 0; left > 0; left--) {
            uint64_t next = ++rounds;
            while (atomic_load_explicit(&s->ping, memory_order_acquire) != next) sg_pause();
            atomic_store_explicit(&s->pong, next, memory_order_release);
        }
    }
    exit(0);
}

static void post(int k) {
    uint32_t lines = sg_ring_lines(PAYLOAD);
    struct sg_message *message = sg_ring_reserve(&producer, lines);
    if (message == NULL) exit(1); /* the ring holds far more than a burst */
    message->op = 1;
    message->lines = (uint16_t)lines;
    message->reply = SG_NO_REPLY;
    message->call = message->context = message->flags = 0;
    message->bytes = PAYLOAD;
    memset(message->payload, k, PAYLOAD);
    sg_ring_publish(&producer, message, lines, 1);
}

static double burst(void) {
    double start = now_ns();
    for (int k = 0; k < BURST; k++) post(k);
    double end = now_ns();
    while (atomic_load(&s->page.head) != producer.tail) sg_pause();
    return (end - start) / BURST;
}

static double ping_pong(void) {
    double start = now_ns();
    atomic_store_explicit(&s->ping, ++rounds, memory_order_release);
    while (atomic_load_explicit(&s->pong, memory_order_acquire) != rounds) sg_pause();
    return now_ns() - start;
}

static double slice(char what) {
    static double times[ROUNDS];
    if (write(orders, &what, 1) != 1) exit(1);
    if (what == 'e') {
        for (int k = -WARM_UP; k < BURSTS; k++) times[k < 0 ? 0 : k] = burst();
        return median(times, BURSTS);
    }
    for (int k = 0; k < ROUNDS; k++) times[k] = ping_pong();
    return median(times, ROUNDS);
}

int main(int argc, char **argv) {
    int ends[2], status;
    s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (argc < 2 || s == MAP_FAILED || pipe(ends) != 0) return 1;
    memset(s->ring, 0, sizeof s->ring); /* no page faults while we measure */
    pid_t child = fork();
    if (child == 0) {
        close(ends[1]);
        answer(ends[0]);
    }
    orders = ends[1];
    producer = (struct sg_producer){.page = &s->page, .ring = s->ring};
    int failed = serve_slices(argv[1], slice);
    close(ends[1]);
    waitpid(child, &status, 0);
    return failed || status != 0;
}
