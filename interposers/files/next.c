/* Found when the library is loaded: later may be too late, in a signal handler or in a child of vfork, because dlsym
 * takes the loader's lock.  Only libraries whose constructors come before ours find theirs at the first call. */
#include "interposers/files/next.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>

static const char *const names[SG_WRAPPED_COUNT] = {
#define SG_NAME(name) #name,
    SG_WRAPPED(SG_NAME)
#undef SG_NAME
};
static void *_Atomic found[SG_WRAPPED_COUNT];

static long not_there(void)
{
    errno = ENOSYS;
    return -1;
}

void *sg_next(enum sg_wrapped which)
{
    void *next = atomic_load_explicit(&found[which], memory_order_relaxed);
    if (!next) {
        next = dlsym(RTLD_NEXT, names[which]);
        if (!next)
            next = (void *)not_there;
        atomic_store_explicit(&found[which], next, memory_order_relaxed);
    }
    return next;
}

static __attribute__((constructor)) void find_all(void)
{
    for (int which = 0; which < SG_WRAPPED_COUNT; which++)
        sg_next((enum sg_wrapped)which);
}
