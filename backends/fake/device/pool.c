/* The threads that share the blocks of a running kernel with the stream's own thread. */
#include "execute.h"

#include <signal.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sgf_job *jobs;
static _Atomic uint32_t posted; /* bumped with every job; helpers sleep on it */
static int helpers;             /* started */
static _Atomic int sleeping;

static struct sgf_job *join(void)
{
    pthread_mutex_lock(&lock);
    struct sgf_job *job = jobs;
    while (job != NULL && atomic_load(&job->next) >= job->total)
        job = job->following;
    if (job != NULL)
        atomic_fetch_add(&job->helpers, 1); /* under the lock: its owner withdraws it first, then waits for helpers */
    pthread_mutex_unlock(&lock);
    return job;
}

static void *help(void *argument)
{
    (void)argument;
    sgf_fault_thread();
    for (;;) {
        uint32_t seen = atomic_load(&posted);
        struct sgf_job *job = join();
        if (job != NULL) {
            sgf_executor_run(job);
            if (atomic_fetch_sub(&job->helpers, 1) == 1)
                sgf_futex_wake(&posted, INT32_MAX); /* the owner may sleep here too; the job is gone from here on */
            continue;
        }
        for (int i = 0; i < 2000 && atomic_load_explicit(&posted, memory_order_relaxed) == seen; i++)
            atomic_signal_fence(memory_order_seq_cst);
        if (atomic_load(&posted) == seen) {
            atomic_fetch_add(&sleeping, 1);
            sgf_futex_wait(&posted, seen, 0);
            atomic_fetch_sub(&sleeping, 1);
        }
    }
    return NULL;
}

static void start_helpers(void)
{
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGFPE);
    sigdelset(&all, SIGILL);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    while (helpers < sgf.threads - 1) {
        pthread_t thread;
        if (pthread_create(&thread, &attributes, help, NULL) != 0)
            break; /* fewer hands, same result */
        helpers++;
    }
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void sgf_pool_run(struct sgf_job *job)
{
    pthread_mutex_lock(&lock);
    if (helpers < sgf.threads - 1)
        start_helpers();
    job->following = jobs;
    jobs = job;
    pthread_mutex_unlock(&lock);
    atomic_fetch_add(&posted, 1);
    if (atomic_load(&sleeping) != 0)
        sgf_futex_wake(&posted, INT32_MAX);
    sgf_executor_run(job);
    pthread_mutex_lock(&lock);
    struct sgf_job **at = &jobs;
    while (*at != job)
        at = &(*at)->following;
    *at = job->following;
    pthread_mutex_unlock(&lock);
    for (int i = 0; atomic_load(&job->helpers) != 0; i++)
        if (i > 2000) {
            uint32_t seen = atomic_load(&posted);
            if (atomic_load(&job->helpers) != 0)
                sgf_futex_wait(&posted, seen, 100000); /* a wake may have come in between: look again soon */
        }
}
