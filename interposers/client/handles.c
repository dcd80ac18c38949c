/* The client's own table of virtual handles, so that a wrong one is refused here, not in the proxy.
 *
 * Indices below SG_CLIENT_HANDLES are given out here (streams, events), the rest by the proxy; both
 * index spaces are chunked tables whose chunks, once made, stay.  Looking up takes no lock: an entry
 * is valid while its handle word equals the handle asked for. */
#include <pthread.h>
#include <stdlib.h>
#include "client.h"

#define CHUNK 1024u
#define CHUNKS (SG_CLIENT_HANDLES / CHUNK)

struct entry {
    _Atomic uint64_t handle; /* 0: free */
    uint64_t parent;
    void *_Atomic data;
    uint32_t generation, next_free; /* of client-chosen ones */
    uint32_t child, sibling; /* slots (see slot_of) of what hangs on this one; 0: none */
};
static struct entry *_Atomic tables[2][CHUNKS]; /* 0: client-chosen, 1: the proxy's */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t free_head, used = 1; /* index 0 is never given out */

/* A slot numbers entries of both tables. */
static struct entry *entry_of(uint32_t slot)
{
    uint32_t at = slot % SG_CLIENT_HANDLES;
    if (slot >= 2 * SG_CLIENT_HANDLES)
        return NULL;
    struct entry *chunk = atomic_load_explicit(&tables[slot / SG_CLIENT_HANDLES][at / CHUNK], memory_order_acquire);
    return chunk ? &chunk[at % CHUNK] : NULL;
}

static struct entry *make_entry(uint32_t slot)
{
    struct entry *entry = entry_of(slot);
    if (entry || slot >= 2 * SG_CLIENT_HANDLES)
        return entry;
    struct entry *chunk = calloc(CHUNK, sizeof *chunk);
    if (!chunk)
        return NULL;
    atomic_store_explicit(&tables[slot / SG_CLIENT_HANDLES][slot % SG_CLIENT_HANDLES / CHUNK], chunk, memory_order_release);
    return entry_of(slot);
}

static struct entry *find(uint32_t kind, uint64_t handle)
{
    if (SG_HANDLE_KIND(handle) != kind || handle >> 56 != 0)
        return NULL;
    struct entry *entry = entry_of(SG_HANDLE_INDEX(handle));
    return entry && atomic_load_explicit(&entry->handle, memory_order_acquire) == handle ? entry : NULL;
}

/* Lock held. */
static void hang(uint32_t slot, struct entry *entry, uint64_t handle, uint64_t parent, void *data)
{
    struct entry *above = parent ? find(SG_HANDLE_KIND(parent), parent) : NULL;
    entry->parent = parent;
    entry->child = 0;
    entry->sibling = above ? above->child : 0;
    if (above)
        above->child = slot;
    atomic_store_explicit(&entry->data, data, memory_order_release);
    atomic_store_explicit(&entry->handle, handle, memory_order_release);
}

uint64_t sg_handle_new(uint32_t kind, uint64_t parent)
{
    uint64_t handle = 0;
    pthread_mutex_lock(&lock);
    uint32_t index = free_head ? free_head : used;
    struct entry *entry = index < SG_CLIENT_HANDLES ? make_entry(index) : NULL;
    if (entry) {
        if (free_head)
            free_head = entry->next_free;
        else
            used++;
        handle = SG_HANDLE(kind, ++entry->generation, index);
        hang(index, entry, handle, parent, NULL);
    }
    pthread_mutex_unlock(&lock);
    return handle;
}

int sg_handle_note(uint32_t kind, uint64_t handle, uint64_t parent, void *data)
{
    if (SG_HANDLE_KIND(handle) != kind || SG_HANDLE_INDEX(handle) < SG_CLIENT_HANDLES)
        return -1;
    pthread_mutex_lock(&lock);
    struct entry *entry = make_entry(SG_HANDLE_INDEX(handle));
    if (entry && atomic_load(&entry->handle) != handle) /* the proxy may hand out what is known already */
        hang(SG_HANDLE_INDEX(handle), entry, handle, parent, data);
    pthread_mutex_unlock(&lock);
    return entry ? 0 : -1;
}

int sg_handle_known(uint32_t kind, uint64_t handle) { return handle && find(kind, handle) != NULL; }

void *sg_handle_data(uint32_t kind, uint64_t handle)
{
    struct entry *entry = handle ? find(kind, handle) : NULL;
    return entry ? atomic_load_explicit(&entry->data, memory_order_acquire) : NULL;
}

uint64_t sg_handle_parent(uint64_t handle)
{
    struct entry *entry = handle ? find(SG_HANDLE_KIND(handle), handle) : NULL;
    return entry ? entry->parent : 0;
}

static void drop(uint32_t slot, struct entry *entry)
{
    for (uint32_t child = entry->child; child;) {
        struct entry *below = entry_of(child);
        uint32_t next = below->sibling;
        drop(child, below);
        child = next;
    }
    entry->child = 0;
    sg_range_drop_globals(atomic_load_explicit(&entry->handle, memory_order_relaxed));
    atomic_store_explicit(&entry->handle, 0, memory_order_release);
    if (slot < SG_CLIENT_HANDLES) {
        entry->next_free = free_head;
        free_head = slot;
    }
}

void sg_handle_forget(uint32_t kind, uint64_t handle)
{
    pthread_mutex_lock(&lock);
    struct entry *entry = find(kind, handle);
    if (entry) {
        uint32_t slot = SG_HANDLE_INDEX(handle);
        struct entry *above = entry->parent ? find(SG_HANDLE_KIND(entry->parent), entry->parent) : NULL;
        uint32_t *link = above ? &above->child : NULL;
        while (link && *link && *link != slot)
            link = &entry_of(*link)->sibling;
        if (link && *link == slot)
            *link = entry->sibling;
        drop(slot, entry);
    }
    pthread_mutex_unlock(&lock);
}
