/* Waiting on words in shared memory: a bounded spin that lets others run, then a futex.
 *
 * Why so: an answer that comes within microseconds must not cost a system call; with more runnable
 * threads than CPUs a spin starves the very thread that is waited for (or one that computes), so it
 * yields every few microseconds, and ends when a yield shows that the CPU is wanted; and who has
 * nothing to do must sleep.  Discipline: only the waiter sets and clears its own `waiting` flag,
 * because a waker that clears it loses the next wake-up.  All flags and the words that they guard
 * use sequentially consistent accesses ("store mine, then load yours", on both sides), no fences:
 * ThreadSanitizer cannot see fences.
 *
 * One exception: a barrier per posted message would cost several times the post, because it waits until the
 * line has come over from the other CPU.  So, where the kernel can do it, a post is ordered only for the
 * compiler, and the proxy, before it sleeps, has the kernel put a barrier into every running rank
 * (membarrier): the rare side pays for both. */
#ifndef SG_WAIT_H
#define SG_WAIT_H

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef SG_WAIT_MS /* a test makes this long, so that a lost wake-up is seen */
#define SG_WAIT_MS 50u /* the longest sleep before the dead words are looked at again */
#endif

/* Not FUTEX_PRIVATE: the words lie in files that two processes map. */
static inline void sg_futex_wait(_Atomic uint32_t *word, uint32_t seen, unsigned milliseconds) {
    struct timespec limit = {milliseconds / 1000, (long)(milliseconds % 1000) * 1000000L};
    int saved = errno;
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &limit, NULL, 0);
    errno = saved;
}

static inline void sg_futex_wake(_Atomic uint32_t *word, int threads) {
    int saved = errno;
    syscall(SYS_futex, word, FUTEX_WAKE, threads, NULL, NULL, 0);
    errno = saved;
}

static inline int sg_membarrier(int command) { return (int)syscall(SYS_membarrier, command, 0, 0); }

static inline void sg_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline uint64_t sg_now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* How much longer to poll.  `= {0}` before the first look; again after every success. */
struct sg_patience {
    uint32_t rounds;
    uint64_t until, yield_at;
};
#define SG_SPIN_NS 40000u
#define SG_YIELD_NS 4000u  /* the longest that a spin keeps the CPU from a thread with work */
#define SG_AWAY_NS 10000u  /* a yield that takes longer has found one */

/* 1: look again; 0: time to sleep. */
static inline int sg_patience_left(struct sg_patience *patience) {
    sg_pause();
    if (++patience->rounds % 32 != 0) return 1;
    uint64_t now = sg_now_ns();
    if (patience->until == 0) {
        patience->until = now + SG_SPIN_NS;
        patience->yield_at = now + SG_YIELD_NS;
    }
    if (now >= patience->until) return 0;
    if (now < patience->yield_at) return 1;
    sched_yield();
    uint64_t back = sg_now_ns();
    if (back - now > SG_AWAY_NS) patience->until = back; /* the CPU is wanted: one more look */
    patience->yield_at = back + SG_YIELD_NS;
    return 1;
}

#endif
