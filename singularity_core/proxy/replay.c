#include "replay.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LOG_MAGIC 0x00474f4c50455253ull /* "SREPLOG" */
#define LOG_VERSION 1u

struct entry {
    struct entry *before, *after; /* the log's order */
    struct entry *next_set;       /* the owner's settings */
    struct edge *needs_head;      /* edges to what this entry needs */
    struct sg_log_record record;  /* its pointers lead into `data` */
    uint8_t data[];
};

/* One "entry needs object": in the object's list of dependents, and in the entry's list of needs. */
struct edge {
    struct edge *next_dependent, **link_dependent;
    struct edge *next_need;
    struct entry *entry;
    struct object *object;
};

/* Whatever was named as made, needed or owner.  Kept while anything hangs on it. */
struct object {
    struct object *next; /* in its bucket */
    uint64_t name;
    struct entry *create;
    struct entry *sets;
    struct edge *dependents;
};

struct sg_log {
    struct entry *first, *last;
    struct object **buckets;
    uint64_t bucket_count, object_count, entry_count;
};

/* ---- objects by name -------------------------------------------------------------------------------- */
static uint64_t bucket_of(const struct sg_log *log, uint64_t name) {
    return (name * 0x9e3779b97f4a7c15ull >> 20) & (log->bucket_count - 1);
}

static struct object *object_find(const struct sg_log *log, uint64_t name) {
    struct object *object = log->buckets[bucket_of(log, name)];
    while (object != NULL && object->name != name) object = object->next;
    return object;
}

static void grow(struct sg_log *log) {
    uint64_t count = log->bucket_count;
    struct object **old = log->buckets, **buckets = calloc(count * 2, sizeof(struct object *));
    if (buckets == NULL) return; /* slower, not wrong */
    log->buckets = buckets;
    log->bucket_count = count * 2;
    for (uint64_t i = 0; i < count; i++) {
        for (struct object *object = old[i], *next; object != NULL; object = next) {
            next = object->next;
            struct object **bucket = &log->buckets[bucket_of(log, object->name)];
            object->next = *bucket;
            *bucket = object;
        }
    }
    free(old);
}

static struct object *object_make(struct sg_log *log, uint64_t name) {
    struct object *object = object_find(log, name);
    if (object != NULL) return object;
    if (log->object_count >= log->bucket_count) grow(log);
    object = calloc(1, sizeof *object);
    if (object == NULL) return NULL;
    object->name = name;
    struct object **bucket = &log->buckets[bucket_of(log, name)];
    object->next = *bucket;
    *bucket = object;
    log->object_count++;
    return object;
}

static void object_drop_if_bare(struct sg_log *log, struct object *object) {
    if (object->create != NULL || object->sets != NULL || object->dependents != NULL) return;
    struct object **at = &log->buckets[bucket_of(log, object->name)];
    while (*at != object) at = &(*at)->next;
    *at = object->next;
    free(object);
    log->object_count--;
}

/* ---- life ------------------------------------------------------------------------------------------- */
struct sg_log *sg_log_new(void) {
    struct sg_log *log = calloc(1, sizeof *log);
    if (log == NULL) return NULL;
    log->bucket_count = 256;
    log->buckets = calloc(log->bucket_count, sizeof *log->buckets);
    if (log->buckets != NULL) return log;
    free(log);
    return NULL;
}

static void entry_free(struct entry *entry) {
    for (struct edge *edge = entry->needs_head, *next; edge != NULL; edge = next) {
        next = edge->next_need;
        free(edge);
    }
    free(entry);
}

void sg_log_free(struct sg_log *log) {
    if (log == NULL) return;
    for (struct entry *entry = log->first, *next; entry != NULL; entry = next) {
        next = entry->after;
        entry_free(entry);
    }
    for (uint64_t i = 0; i < log->bucket_count; i++) {
        for (struct object *object = log->buckets[i], *next; object != NULL; object = next) {
            next = object->next;
            free(object);
        }
    }
    free(log->buckets);
    free(log);
}

uint64_t sg_log_entries(const struct sg_log *log) { return log->entry_count; }

/* ---- adding ------------------------------------------------------------------------------------------ */
static struct entry *entry_new(const struct sg_log_record *record) {
    uint64_t words = (uint64_t)record->made_count + record->need_count;
    struct entry *entry = calloc(1, sizeof *entry + words * 8 + record->bytes);
    if (entry == NULL) return NULL;
    uint64_t *made = (uint64_t *)entry->data, *needs = made + record->made_count;
    uint8_t *payload = (uint8_t *)(needs + record->need_count);
    entry->record = *record;
    if (record->made_count != 0) memcpy(made, record->made, record->made_count * 8ull);
    if (record->need_count != 0) memcpy(needs, record->needs, record->need_count * 8ull);
    if (record->bytes != 0) memcpy(payload, record->payload, record->bytes);
    entry->record.made = made;
    entry->record.needs = needs;
    entry->record.payload = payload;
    return entry;
}

static void append(struct sg_log *log, struct entry *entry) {
    entry->before = log->last;
    if (log->last != NULL) log->last->after = entry;
    else log->first = entry;
    log->last = entry;
    log->entry_count++;
}

static void detach(struct sg_log *log, struct entry *entry) {
    if (entry->before != NULL) entry->before->after = entry->after;
    else log->first = entry->after;
    if (entry->after != NULL) entry->after->before = entry->before;
    else log->last = entry->before;
    log->entry_count--;
}

static int add_edge(struct sg_log *log, struct entry *entry, uint64_t name) {
    struct object *object = object_make(log, name);
    struct edge *edge = calloc(1, sizeof *edge);
    if (object == NULL || edge == NULL) {
        free(edge);
        if (object != NULL) object_drop_if_bare(log, object);
        return -ENOMEM;
    }
    edge->entry = entry;
    edge->object = object;
    edge->next_dependent = object->dependents;
    edge->link_dependent = &object->dependents;
    if (edge->next_dependent != NULL) edge->next_dependent->link_dependent = &edge->next_dependent;
    object->dependents = edge;
    edge->next_need = entry->needs_head;
    entry->needs_head = edge;
    return 0;
}

static void drop_edges(struct sg_log *log, struct entry *entry) {
    for (struct edge *edge = entry->needs_head, *next; edge != NULL; edge = next) {
        next = edge->next_need;
        *edge->link_dependent = edge->next_dependent;
        if (edge->next_dependent != NULL) edge->next_dependent->link_dependent = edge->link_dependent;
        object_drop_if_bare(log, edge->object);
        free(edge);
    }
    entry->needs_head = NULL;
}

static int add_create(struct sg_log *log, struct entry *entry) {
    if (object_find(log, entry->record.object) != NULL && object_find(log, entry->record.object)->create != NULL)
        sg_log_remove(log, entry->record.object); /* the name was reused: what it named before is gone */
    struct object *object = object_make(log, entry->record.object);
    if (object == NULL) return -ENOMEM;
    object->create = entry; /* from here on `object` cannot be dropped as bare */
    for (uint32_t i = 0; i < entry->record.need_count; i++) {
        uint64_t need = entry->record.needs[i];
        if (need == 0 || need == entry->record.object) continue;
        if (add_edge(log, entry, need) != 0) {
            drop_edges(log, entry);
            object->create = NULL;
            object_drop_if_bare(log, object);
            return -ENOMEM;
        }
    }
    append(log, entry);
    return 0;
}

static int add_set(struct sg_log *log, struct entry *entry) {
    struct object *owner = object_make(log, entry->record.object);
    if (owner == NULL) return -ENOMEM;
    for (struct entry **at = &owner->sets; *at != NULL; at = &(*at)->next_set) {
        struct entry *old = *at;
        if (old->record.key != entry->record.key) continue;
        *at = old->next_set;
        detach(log, old);
        entry_free(old);
        break;
    }
    entry->next_set = owner->sets;
    owner->sets = entry;
    append(log, entry);
    return 0;
}

int sg_log_add(struct sg_log *log, const struct sg_log_record *record) {
    struct entry *entry = entry_new(record);
    if (entry == NULL) return -ENOMEM;
    int error = record->type == SG_LOG_CREATE ? add_create(log, entry) : add_set(log, entry);
    if (error != 0) free(entry);
    return error;
}

/* ---- removing: a work list instead of recursion, because chains of needs may be long -------------------- */
/* Takes a creation out of the log and puts it on the list, which is linked through `after`. */
static void condemn(struct sg_log *log, struct entry *entry, struct entry **list) {
    detach(log, entry);
    drop_edges(log, entry);
    entry->after = *list;
    *list = entry;
}

/* Removes what hangs on a name, and condemns its creation and the creations that need it. */
static void remove_object(struct sg_log *log, uint64_t name, struct entry **list) {
    struct object *object = object_find(log, name);
    if (object == NULL) return;
    struct entry *own = object->create, keep;
    object->create = &keep; /* not bare while we work on it */
    for (struct entry *set = object->sets, *next; set != NULL; set = next) {
        next = set->next_set;
        detach(log, set);
        entry_free(set);
    }
    object->sets = NULL;
    while (object->dependents != NULL) {
        struct entry *entry = object->dependents->entry;
        object_find(log, entry->record.object)->create = NULL; /* its turn on the list comes */
        condemn(log, entry, list);
    }
    if (own != NULL) condemn(log, own, list);
    object->create = NULL;
    object_drop_if_bare(log, object);
}

void sg_log_remove(struct sg_log *log, uint64_t name) {
    struct entry *list = NULL;
    remove_object(log, name, &list);
    while (list != NULL) {
        struct entry *entry = list;
        list = entry->after;
        remove_object(log, entry->record.object, &list);
        /* what it made besides goes too (a module's functions), unless the name has come to mean another thing */
        for (uint32_t i = 0; i < entry->record.made_count; i++) {
            struct object *other = object_find(log, entry->record.made[i]);
            if (other != NULL && other->create == NULL) remove_object(log, entry->record.made[i], &list);
        }
        free(entry);
    }
}

/* ---- flat form ------------------------------------------------------------------------------------------- */
struct flat_header { uint64_t magic; uint32_t version, reserved; uint64_t records, bytes; };
struct flat_record {
    uint32_t type, op, made, needs, bytes, reserved;
    uint64_t context, object, key;
};

static uint64_t padded(uint64_t bytes) { return (bytes + 7) & ~7ull; }

uint64_t sg_log_serialise(const struct sg_log *log, uint8_t *buffer, uint64_t room) {
    uint64_t total = sizeof(struct flat_header);
    for (const struct entry *entry = log->first; entry != NULL; entry = entry->after)
        total += sizeof(struct flat_record) + 8ull * (entry->record.made_count + entry->record.need_count) +
                 padded(entry->record.bytes);
    if (buffer == NULL || total > room) return total;
    struct flat_header header = {LOG_MAGIC, LOG_VERSION, 0, log->entry_count, total};
    memset(buffer, 0, total);
    memcpy(buffer, &header, sizeof header);
    uint8_t *at = buffer + sizeof header;
    for (const struct entry *entry = log->first; entry != NULL; entry = entry->after) {
        const struct sg_log_record *record = &entry->record;
        struct flat_record flat = {record->type,  record->op, record->made_count, record->need_count,
                                   record->bytes, 0,          record->context,    record->object, record->key};
        memcpy(at, &flat, sizeof flat);
        at += sizeof flat;
        memcpy(at, entry->data, 8ull * (flat.made + flat.needs) + flat.bytes);
        at += 8ull * (flat.made + flat.needs) + padded(flat.bytes);
    }
    return total;
}

int sg_log_walk(const uint8_t *buffer, uint64_t bytes, sg_log_visitor each, void *argument) {
    struct flat_header header;
    if (bytes < sizeof header) return -EPROTO;
    memcpy(&header, buffer, sizeof header);
    if (header.magic != LOG_MAGIC || header.version != LOG_VERSION || header.bytes != bytes) return -EPROTO;
    uint64_t at = sizeof header;
    for (uint64_t i = 0; i < header.records; i++) {
        struct flat_record flat;
        if (bytes - at < sizeof flat) return -EPROTO;
        memcpy(&flat, buffer + at, sizeof flat);
        at += sizeof flat;
        uint64_t words = 8ull * ((uint64_t)flat.made + flat.needs), size = words + padded(flat.bytes);
        if (bytes - at < size || (flat.type != SG_LOG_CREATE && flat.type != SG_LOG_SET)) return -EPROTO;
        uint64_t *copy = malloc(size + 8); /* aligned, whatever the buffer is */
        if (copy == NULL) return -ENOMEM;
        memcpy(copy, buffer + at, size);
        at += size;
        struct sg_log_record record = {flat.type, flat.op,           flat.context,
                                       flat.object, flat.key,        copy,
                                       copy + flat.made, (const uint8_t *)(copy + flat.made + flat.needs),
                                       flat.made, flat.needs, flat.bytes};
        int result = each(argument, &record);
        free(copy);
        if (result != 0) return result;
    }
    return at == bytes ? 0 : -EPROTO;
}
