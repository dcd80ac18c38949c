#include "handles.h"

#include <stdlib.h>
#include <string.h>

/* What holds others goes last: a module after its functions, a context after everything. */
static const uint8_t destroy_order[] = {SG_KIND_COMMUNICATOR, SG_KIND_GRAPH_EXEC, SG_KIND_GRAPH_NODE, SG_KIND_GRAPH,
                                        SG_KIND_EVENT,        SG_KIND_STREAM,     SG_KIND_KERNEL,     SG_KIND_FUNCTION,
                                        SG_KIND_MODULE,       SG_KIND_LIBRARY,    SG_KIND_POOL,       SG_KIND_CONTEXT};
_Static_assert(sizeof destroy_order == SG_KIND_COUNT - 1, "every kind has its place");

int sg_handles_open(struct sg_handles *handles) {
    memset(handles, 0, sizeof *handles);
    return -pthread_mutex_init(&handles->lock, NULL);
}

static void table_close(struct sg_handle_table *table) {
    if (table->chunks == NULL) return;
    for (uint32_t i = 0; i < SG_HANDLE_CHUNKS; i++) free(atomic_load(&table->chunks[i]));
    free(table->chunks);
    table->chunks = NULL;
}

void sg_handles_close(struct sg_handles *handles) {
    for (uint32_t kind = 0; kind < SG_KIND_COUNT; kind++) table_close(&handles->client[kind]);
    table_close(&handles->own);
    pthread_mutex_destroy(&handles->lock);
}

static struct sg_handle_table *table_of(struct sg_handles *handles, uint32_t kind, uint32_t index, uint32_t *at) {
    if (kind == SG_KIND_NONE || kind >= SG_KIND_COUNT || index == 0) return NULL;
    if (index < SG_CLIENT_HANDLES) {
        *at = index;
        return &handles->client[kind];
    }
    *at = index - SG_CLIENT_HANDLES;
    return *at < SG_CLIENT_HANDLES ? &handles->own : NULL;
}

static struct sg_handle_entry *entry_at(const struct sg_handle_table *table, uint32_t at) {
    _Atomic(struct sg_handle_entry *) *chunks =
        atomic_load_explicit((_Atomic(_Atomic(struct sg_handle_entry *) *) *)&table->chunks, memory_order_acquire);
    if (chunks == NULL) return NULL;
    struct sg_handle_entry *chunk = atomic_load_explicit(&chunks[at / SG_HANDLE_CHUNK], memory_order_acquire);
    return chunk == NULL ? NULL : &chunk[at % SG_HANDLE_CHUNK];
}

/* As entry_at, making what is missing; the lock is held. */
static struct sg_handle_entry *entry_make(struct sg_handle_table *table, uint32_t at) {
    if (table->chunks == NULL) {
        void *chunks = calloc(SG_HANDLE_CHUNKS, sizeof *table->chunks);
        if (chunks == NULL) return NULL;
        atomic_store_explicit((_Atomic(_Atomic(struct sg_handle_entry *) *) *)&table->chunks, chunks,
                              memory_order_release);
    }
    _Atomic(struct sg_handle_entry *) *chunk = &table->chunks[at / SG_HANDLE_CHUNK];
    if (atomic_load(chunk) == NULL) {
        struct sg_handle_entry *entries = calloc(SG_HANDLE_CHUNK, sizeof *entries);
        if (entries == NULL) return NULL;
        atomic_store_explicit(chunk, entries, memory_order_release);
    }
    return &atomic_load(chunk)[at % SG_HANDLE_CHUNK];
}

static struct sg_handle_entry *find(struct sg_handles *handles, uint32_t kind, uint64_t handle) {
    uint32_t at;
    if (handle == 0 || handle >> 56 != 0 || SG_HANDLE_KIND(handle) != kind) return NULL;
    struct sg_handle_table *table = table_of(handles, kind, SG_HANDLE_INDEX(handle), &at);
    struct sg_handle_entry *entry = table == NULL ? NULL : entry_at(table, at);
    if (entry == NULL || atomic_load_explicit(&entry->handle, memory_order_acquire) != handle) return NULL;
    return entry;
}

void *sg_handles_get(struct sg_handles *handles, uint32_t kind, uint64_t handle) {
    struct sg_handle_entry *entry = find(handles, kind, handle);
    if (entry == NULL) return NULL;
    void *physical = atomic_load_explicit(&entry->physical, memory_order_acquire);
    return atomic_load_explicit(&entry->handle, memory_order_acquire) == handle ? physical : NULL;
}

uint64_t sg_handles_at(struct sg_handles *handles, uint32_t kind, uint32_t index) {
    if (index < SG_CLIENT_HANDLES || index - SG_CLIENT_HANDLES >= SG_CLIENT_HANDLES) return 0;
    struct sg_handle_entry *entry = entry_at(&handles->own, index - SG_CLIENT_HANDLES);
    uint64_t handle = entry == NULL ? 0 : atomic_load_explicit(&entry->handle, memory_order_acquire);
    return SG_HANDLE_KIND(handle) == kind ? handle : 0;
}

/* ---- making; the lock is held --------------------------------------------------------------------- */
static int link_entry(struct sg_handles *handles, struct sg_handle_entry *entry, uint64_t handle, void *physical,
                      void *context, uint64_t parent) {
    struct sg_handle_entry *above = parent == 0 ? NULL : find(handles, SG_HANDLE_KIND(parent), parent);
    if (parent != 0 && above == NULL) return -1;
    entry->context = context;
    entry->parent = above;
    entry->child = entry->before = NULL;
    entry->next = above == NULL ? NULL : above->child;
    if (entry->next != NULL) entry->next->before = entry;
    if (above != NULL) above->child = entry;
    entry->generation = SG_HANDLE_GENERATION(handle);
    atomic_store_explicit(&entry->physical, physical, memory_order_release);
    atomic_store_explicit(&entry->handle, handle, memory_order_release);
    handles->live++;
    return 0;
}

uint64_t sg_handles_put(struct sg_handles *handles, uint32_t kind, void *physical, void *context, uint64_t parent) {
    uint64_t handle = 0;
    if (kind == SG_KIND_NONE || kind >= SG_KIND_COUNT || physical == NULL) return 0;
    pthread_mutex_lock(&handles->lock);
    struct sg_handle_entry *entry = NULL;
    uint32_t at = 0;
    /* put_at may have filled entries of the free list: those are skipped */
    while (handles->own_free != 0 && entry == NULL) {
        at = handles->own_free - 1;
        entry = entry_at(&handles->own, at);
        handles->own_free = entry->next_free;
        if (atomic_load(&entry->handle) != 0) entry = NULL;
    }
    while (entry == NULL && handles->own_used < SG_CLIENT_HANDLES) {
        at = handles->own_used;
        entry = entry_make(&handles->own, at);
        if (entry == NULL) break;
        handles->own_used++;
        if (atomic_load(&entry->handle) != 0) entry = NULL;
    }
    if (entry != NULL) {
        handle = SG_HANDLE(kind, entry->generation + 1, SG_CLIENT_HANDLES + at);
        if (link_entry(handles, entry, handle, physical, context, parent) != 0) {
            entry->next_free = handles->own_free;
            handles->own_free = at + 1;
            handle = 0;
        }
    }
    pthread_mutex_unlock(&handles->lock);
    return handle;
}

int sg_handles_put_at(struct sg_handles *handles, uint64_t handle, void *physical, void *context, uint64_t parent) {
    uint32_t at;
    if (handle >> 56 != 0 || physical == NULL) return -1;
    struct sg_handle_table *table = table_of(handles, SG_HANDLE_KIND(handle), SG_HANDLE_INDEX(handle), &at);
    if (table == NULL) return -1;
    pthread_mutex_lock(&handles->lock);
    struct sg_handle_entry *entry = entry_make(table, at);
    int result = entry == NULL || atomic_load(&entry->handle) != 0
                     ? -1
                     : link_entry(handles, entry, handle, physical, context, parent);
    pthread_mutex_unlock(&handles->lock);
    return result;
}

/* ---- taking ------------------------------------------------------------------------------------------- */
static void unlink_entry(struct sg_handles *handles, struct sg_handle_entry *entry) {
    uint64_t handle = atomic_load(&entry->handle);
    if (entry->before != NULL) entry->before->next = entry->next;
    else if (entry->parent != NULL) entry->parent->child = entry->next;
    if (entry->next != NULL) entry->next->before = entry->before;
    entry->parent = entry->next = entry->before = NULL;
    atomic_store_explicit(&entry->handle, 0, memory_order_release);
    uint32_t index = SG_HANDLE_INDEX(handle);
    if (index >= SG_CLIENT_HANDLES && index - SG_CLIENT_HANDLES < handles->own_used) {
        entry->next_free = handles->own_free;
        handles->own_free = index - SG_CLIENT_HANDLES + 1;
    }
    handles->live--;
}

/* What was taken, to be destroyed once the lock is free: the driver may block. */
struct taken { uint32_t kind; void *physical, *context; };
struct haul { struct taken *list; uint64_t count, room; };

static void haul_add(struct haul *haul, struct sg_handle_entry *entry) {
    if (haul->count == haul->room) {
        uint64_t room = haul->room == 0 ? 16 : haul->room * 2;
        struct taken *list = realloc(haul->list, room * sizeof *list);
        if (list == NULL) return; /* the object outlives its handle until the context ends */
        haul->list = list;
        haul->room = room;
    }
    haul->list[haul->count++] =
        (struct taken){SG_HANDLE_KIND(atomic_load(&entry->handle)), atomic_load(&entry->physical), entry->context};
}

/* Takes all descendants.  Iterative: chains may be long (a rank chooses parents only through handlers, but
 * depth is nothing to rely on). */
static void haul_children(struct sg_handles *handles, struct sg_handle_entry *top, struct haul *haul) {
    struct sg_handle_entry *entry = top;
    for (;;) {
        while (entry->child != NULL) entry = entry->child;
        if (entry == top) return;
        struct sg_handle_entry *above = entry->parent;
        haul_add(haul, entry);
        unlink_entry(handles, entry);
        entry = above;
    }
}

static void haul_destroy(struct haul *haul, sg_handle_destroyer destroy, void *argument) {
    for (uint32_t i = 0; i < sizeof destroy_order && destroy != NULL; i++)
        for (uint64_t j = 0; j < haul->count; j++)
            if (haul->list[j].kind == destroy_order[i])
                destroy(argument, haul->list[j].kind, haul->list[j].physical, haul->list[j].context);
    free(haul->list);
}

void *sg_handles_take(struct sg_handles *handles, uint32_t kind, uint64_t handle, sg_handle_destroyer destroy,
                      void *argument) {
    struct haul haul = {0};
    pthread_mutex_lock(&handles->lock);
    struct sg_handle_entry *entry = find(handles, kind, handle);
    void *physical = NULL;
    if (entry != NULL) {
        physical = atomic_load(&entry->physical);
        haul_children(handles, entry, &haul);
        unlink_entry(handles, entry);
    }
    pthread_mutex_unlock(&handles->lock);
    haul_destroy(&haul, destroy, argument);
    return physical;
}

static void haul_table(struct sg_handles *handles, struct sg_handle_table *table, uint32_t kind, struct haul *haul) {
    if (table->chunks == NULL) return;
    for (uint32_t i = 0; i < SG_HANDLE_CHUNKS; i++) {
        struct sg_handle_entry *chunk = atomic_load(&table->chunks[i]);
        for (uint32_t j = 0; chunk != NULL && j < SG_HANDLE_CHUNK; j++) {
            uint64_t handle = atomic_load(&chunk[j].handle);
            if (handle == 0 || SG_HANDLE_KIND(handle) != kind) continue;
            haul_children(handles, &chunk[j], haul);
            haul_add(haul, &chunk[j]);
            unlink_entry(handles, &chunk[j]);
        }
    }
}

static void visit_table(struct sg_handle_table *table, uint32_t kind, sg_handle_visitor each, void *argument) {
    for (uint32_t i = 0; table->chunks != NULL && i < SG_HANDLE_CHUNKS; i++) {
        struct sg_handle_entry *chunk = atomic_load(&table->chunks[i]);
        for (uint32_t j = 0; chunk != NULL && j < SG_HANDLE_CHUNK; j++) {
            uint64_t handle = atomic_load(&chunk[j].handle);
            if (handle != 0 && SG_HANDLE_KIND(handle) == kind) each(argument, handle, atomic_load(&chunk[j].physical), chunk[j].context);
        }
    }
}

void sg_handles_skip(struct sg_handles *handles, uint32_t used) {
    pthread_mutex_lock(&handles->lock);
    handles->own_free = 0;
    if (used > handles->own_used) handles->own_used = used < SG_CLIENT_HANDLES ? used : SG_CLIENT_HANDLES;
    pthread_mutex_unlock(&handles->lock);
}

void sg_handles_visit(struct sg_handles *handles, uint32_t kind, sg_handle_visitor each, void *argument) {
    pthread_mutex_lock(&handles->lock);
    visit_table(&handles->client[kind], kind, each, argument);
    visit_table(&handles->own, kind, each, argument);
    pthread_mutex_unlock(&handles->lock);
}

void sg_handles_take_kind(struct sg_handles *handles, uint32_t kind, sg_handle_destroyer destroy, void *argument) {
    struct haul haul = {0};
    pthread_mutex_lock(&handles->lock);
    haul_table(handles, &handles->client[kind], kind, &haul);
    haul_table(handles, &handles->own, kind, &haul);
    pthread_mutex_unlock(&handles->lock);
    haul_destroy(&haul, destroy, argument);
}

void sg_handles_take_all(struct sg_handles *handles, sg_handle_destroyer destroy, void *argument) {
    for (uint32_t i = 0; i < sizeof destroy_order; i++)
        sg_handles_take_kind(handles, destroy_order[i], destroy, argument);
}
