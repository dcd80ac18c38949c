/* Virtual handles of one session.
 *
 * Looking up is lock-free, because each launch does it several times: an entry's handle word is read, then
 * its object, then the handle word again.  Making and taking lock the table.  Client-chosen handles have a
 * table per kind, so that the client's counters of different kinds need not know of each other. */
#ifndef SG_HANDLES_H
#define SG_HANDLES_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "../transport/layout.h"

#define SG_HANDLE_CHUNK 1024u
#define SG_HANDLE_CHUNKS (SG_CLIENT_HANDLES / SG_HANDLE_CHUNK)

struct sg_handle_entry {
    _Atomic uint64_t handle; /* 0: free */
    _Atomic(void *) physical;
    void *context; /* physical context that was current when it was made: needed to destroy it */
    struct sg_handle_entry *parent, *child, *next, *before; /* a parent's children: a doubly linked list */
    uint32_t generation; /* of the last handle here, so that the next one differs */
    uint32_t next_free;
};

struct sg_handle_table {
    _Atomic(struct sg_handle_entry *) *chunks; /* SG_HANDLE_CHUNKS pointers, made with the first handle */
};

struct sg_handles {
    pthread_mutex_t lock;
    struct sg_handle_table client[SG_KIND_COUNT];
    struct sg_handle_table own;    /* index - SG_CLIENT_HANDLES */
    uint32_t own_used, own_free;   /* high-water mark; head of the free list (index + 1) */
    uint64_t live;
};

typedef void (*sg_handle_destroyer)(void *argument, uint32_t kind, void *physical, void *context);

int sg_handles_open(struct sg_handles *handles);
void sg_handles_close(struct sg_handles *handles); /* frees the tables, destroys nothing */
/* 0: no room, or a stale parent. */
uint64_t sg_handles_put(struct sg_handles *handles, uint32_t kind, void *physical, void *context, uint64_t parent);
/* At a given handle, client's or own range.  0 or -1: taken, malformed, or a stale parent. */
int sg_handles_put_at(struct sg_handles *handles, uint64_t handle, void *physical, void *context, uint64_t parent);
void *sg_handles_get(struct sg_handles *handles, uint32_t kind, uint64_t handle);
/* The live own-range handle at `index`, of `kind`; 0: none. */
uint64_t sg_handles_at(struct sg_handles *handles, uint32_t kind, uint32_t index);
/* Forgets `handle`; `destroy` is called for each descendant, youngest kinds first. NULL: no such handle. */
void *sg_handles_take(struct sg_handles *handles, uint32_t kind, uint64_t handle, sg_handle_destroyer destroy,
                      void *argument);
/* Calls `each` for all handles of one kind, with the table locked.  `context` is the one that the object was made in. */
typedef void (*sg_handle_visitor)(void *argument, uint64_t handle, void *physical, void *context);
void sg_handles_visit(struct sg_handles *handles, uint32_t kind, sg_handle_visitor each, void *argument);
/* From now on no new handle takes an index below `used`: where others had handles that are gone, the generations are not known. */
void sg_handles_skip(struct sg_handles *handles, uint32_t used);
/* Takes all handles of one kind, destroying them too. */
void sg_handles_take_kind(struct sg_handles *handles, uint32_t kind, sg_handle_destroyer destroy, void *argument);
/* Takes everything, in an order in which nothing outlives what it lives in. */
void sg_handles_take_all(struct sg_handles *handles, sg_handle_destroyer destroy, void *argument);

#endif
