/* What link.c and link_open.c share.
 *
 * Nothing here is ever unmapped while the process lives: a daemon thread may still be inside a call
 * when the library is told to close at exit, and a crash at exit is worse than a few megabytes.
 * The windows at fixed addresses are reserved once per process and reused by a later session. */
#ifndef SG_LINK_STATE_H
#define SG_LINK_STATE_H

#include "link.h"
#include "process_start.h"
#include "producer_lock.h"
#include "ring.h"

struct sg_link {
    struct sg_door *door;
    struct sg_claim *claim;
    struct sg_session_page *page;
    struct sg_reply_slot *replies;
    uint8_t *staging, *pinned;
    int pinned_file;
    int proxy_visible; /* /proc shows the proxy to us (else it lives in another pid namespace) */
    _Atomic uint32_t closed;
    pthread_key_t slot_key;
    pthread_mutex_t shared_slot, bulk;
    struct sg_producer_lock lock; /* from begin to post or call: guards what follows */
    int light;                    /* posts need no barrier, see wait.h ... */
    _Atomic uint32_t calls;       /* ... unless a call is in flight: then the proxy lends its lead without one */
    struct sg_producer producer;
    uint32_t posted;              /* messages since the last call */
    struct sg_message *open;
    struct sg_message head; /* of `open`: written to the ring as late as can be, see publish */
    struct sg_link *before; /* all links of this process, as none is ever freed */
};

static inline void sg_slot_release(void *slot) { atomic_store(&((struct sg_reply_slot *)slot)->taken, 0); }

static inline int sg_proxy_alive(const struct sg_door *door) {
    uint64_t start = __atomic_load_n(&door->proxy_start, __ATOMIC_SEQ_CST); /* 0: it is being written */
    uint32_t pid = __atomic_load_n(&door->proxy_pid, __ATOMIC_SEQ_CST);
    return start == 0 || sg_process_start(pid) == start || __atomic_load_n(&door->proxy_start, __ATOMIC_SEQ_CST) != start;
}

#endif
