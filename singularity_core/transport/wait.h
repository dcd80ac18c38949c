/* Waiting on words in shared memory: bounded spin, then sched_yield, then a futex.
 *
 * Why three steps: an answer that comes within microseconds must not cost a system call; with more
 * runnable threads than CPUs an unbounded spin starves the very thread that is waited for; and who
 * has nothing to do must sleep.  Discipline: only the waiter sets and clears its own `waiting` flag,
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

#define SG_WAIT_MS 50u /* the longest sleep before the dead words are looked at again */

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
    uint32_t rounds, yields;
    uint64_t until;
};
#define SG_SPIN_NS 20000u
#define SG_YIELDS 24u

/* 1: look again; 0: time to sleep. */
static inline int sg_patience_left(struct sg_patience *patience) {
    if (patience->yields == 0) {
        sg_pause();
        if (++patience->rounds % 32 != 0) return 1;
        uint64_t now = sg_now_ns();
        if (patience->until == 0) patience->until = now + SG_SPIN_NS;
        if (now < patience->until) return 1;
    }
    if (++patience->yields > SG_YIELDS) return 0;
    sched_yield();
    return 1;
}

#endif
