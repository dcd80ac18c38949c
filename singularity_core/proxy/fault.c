/* A rank can truncate the files that it shares with us; touching a page that is gone raises SIGBUS.
 * The handler puts zero pages over the whole mapping, sets the session's flag, and lets the access go on: the
 * session is ended by its own threads, and nobody else notices.  Faults elsewhere go to the handler before. */
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "session.h"

#define GUARDS (4 * (int)SG_SLICER_SLOTS + (int)SG_MAX_DOORS) /* two for each session, for those that go too; one for each door */

static struct guard {
    _Atomic uint64_t base, bytes; /* base is stored last and cleared first */
    _Atomic(_Atomic uint32_t *) flag;
} guards[GUARDS];
static struct sigaction before;
static pthread_mutex_t guards_lock = PTHREAD_MUTEX_INITIALIZER;
static int installed;

static int cover(uint64_t address) {
    for (int i = 0; i < GUARDS; i++) {
        uint64_t base = atomic_load(&guards[i].base), bytes = atomic_load(&guards[i].bytes);
        if (base == 0 || address - base >= bytes) continue;
        atomic_store(atomic_load(&guards[i].flag), 1);
        /* The bare call: ThreadSanitizer takes what mmap maps for written by this thread, and others look at these pages now. */
        return syscall(SYS_mmap, base, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != -1;
    }
    return 0;
}

static void on_sigbus(int number, siginfo_t *info, void *context) {
    int saved = errno;
    int covered = info->si_code > 0 && cover((uint64_t)info->si_addr); /* > 0: raised by the kernel */
    errno = saved;
    if (covered) return;
    if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(number, info, context);
    } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
        before.sa_handler(number);
    } else {
        signal(number, SIG_DFL); /* the access happens again, and kills us as it should */
    }
}

int sg_fault_install(void) {
    int error = 0;
    pthread_mutex_lock(&guards_lock);
    if (!installed) {
        struct sigaction action = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
        sigemptyset(&action.sa_mask);
        error = sigaction(SIGBUS, &action, &before) == 0 ? 0 : -errno;
        installed = error == 0;
    }
    pthread_mutex_unlock(&guards_lock);
    return error;
}

int sg_fault_guard(void *base, uint64_t bytes, _Atomic uint32_t *flag) {
    int error = -ENOSPC;
    pthread_mutex_lock(&guards_lock);
    for (int i = 0; i < GUARDS && error != 0; i++) {
        if (atomic_load(&guards[i].base) != 0) continue;
        atomic_store(&guards[i].bytes, bytes);
        atomic_store(&guards[i].flag, flag);
        atomic_store(&guards[i].base, (uint64_t)base);
        error = 0;
    }
    pthread_mutex_unlock(&guards_lock);
    return error;
}

void sg_fault_forget(void *base) {
    pthread_mutex_lock(&guards_lock);
    for (int i = 0; i < GUARDS; i++)
        if (atomic_load(&guards[i].base) == (uint64_t)base) atomic_store(&guards[i].base, 0);
    pthread_mutex_unlock(&guards_lock);
}
