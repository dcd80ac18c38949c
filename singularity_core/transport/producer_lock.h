/* The producer lock, biased towards the thread that posts most: a lock instruction per message would cost
 * more than the message.  The owner takes it with plain stores; any other thread first revokes the bias
 * (with a barrier that the kernel puts into the owner), and from then on all use the mutex, until one
 * thread has had it many times in a row. */
#ifndef SG_PRODUCER_LOCK_H
#define SG_PRODUCER_LOCK_H

#include <pthread.h>
#include <sched.h>

#include "wait.h"

struct sg_producer_lock {
    pthread_mutex_t mutex;
    int can_bias;
    _Atomic uint64_t owner; /* thread that may take the short way; 0: none */
    _Atomic uint32_t held;  /* by the owner, the short way */
    /* what follows belongs to the holder */
    int short_way;          /* how it was taken */
    uint64_t last;          /* who had the mutex last, and how often in a row */
    uint32_t streak;
    int crowded, newcomer;  /* a second thread has come; it has it now, for the first time */
};
#define SG_BIAS_AFTER 256u

static inline void sg_lock_init(struct sg_producer_lock *lock) {
    pthread_mutex_init(&lock->mutex, NULL);
    lock->can_bias = sg_membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;
}

__attribute__((noinline)) static void sg_lock_take_long(struct sg_producer_lock *lock, uint64_t me) {
    pthread_mutex_lock(&lock->mutex);
    if (atomic_load_explicit(&lock->owner, memory_order_relaxed) != 0) {
        atomic_store(&lock->owner, 0);
        sg_membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
        while (atomic_load_explicit(&lock->held, memory_order_acquire)) sched_yield();
        lock->streak = 0;
    }
    lock->streak = lock->last == me ? lock->streak + 1 : 0;
    if (lock->last != me && lock->last != 0 && !lock->crowded) lock->crowded = lock->newcomer = 1;
    lock->last = me;
    lock->short_way = 0;
}

static inline void sg_lock_take(struct sg_producer_lock *lock) {
    uint64_t me = (uint64_t)pthread_self();
    if (atomic_load_explicit(&lock->owner, memory_order_relaxed) == me) {
        atomic_store_explicit(&lock->held, 1, memory_order_relaxed);
        atomic_signal_fence(memory_order_seq_cst);
        if (atomic_load_explicit(&lock->owner, memory_order_acquire) == me) {
            lock->short_way = 1;
            return;
        }
        atomic_store_explicit(&lock->held, 0, memory_order_release);
    }
    sg_lock_take_long(lock, me);
}

static inline void sg_lock_release(struct sg_producer_lock *lock) {
    if (lock->short_way) {
        atomic_store_explicit(&lock->held, 0, memory_order_release);
        return;
    }
    if (lock->streak >= SG_BIAS_AFTER && lock->can_bias) atomic_store(&lock->owner, lock->last);
    pthread_mutex_unlock(&lock->mutex);
}

#endif
