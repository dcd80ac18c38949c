/* The replay log: what it takes to make a session's objects again, no more.
 *
 * Objects are named by 64-bit keys: virtual handles and device addresses.  A creation is an entry; destroying
 * its object removes it, every setting of it, and whatever needed it.  So the log's size is bounded by what is
 * alive, however long the job runs.  Entries keep their order; a setting that supersedes an older one goes
 * to the end.  Pure logic: no I/O, no locks (session.h's log_lock guards it in the proxy). */
#ifndef SG_REPLAY_H
#define SG_REPLAY_H

#include <stdint.h>

struct sg_log;
enum { SG_LOG_CREATE = 1, SG_LOG_SET = 2 };

struct sg_log_record {
    uint32_t type, op;
    uint64_t context;           /* virtual handle that was current, or 0 */
    uint64_t object;            /* CREATE: what it made; SET: whose property */
    uint64_t key;               /* SET: which property */
    const uint64_t *made;       /* CREATE: all handles and addresses that it made, in order */
    const uint64_t *needs;      /* CREATE: what must exist before */
    const uint8_t *payload;
    uint32_t made_count, need_count, bytes;
};

struct sg_log *sg_log_new(void);
void sg_log_free(struct sg_log *log);
int sg_log_add(struct sg_log *log, const struct sg_log_record *record); /* 0 or -ENOMEM; copies everything */
void sg_log_remove(struct sg_log *log, uint64_t object);
uint64_t sg_log_entries(const struct sg_log *log);

/* Flat, versioned, little-endian as the host.  Returns the bytes needed; writes only when they fit. */
uint64_t sg_log_serialise(const struct sg_log *log, uint8_t *buffer, uint64_t room);
/* Calls `each` for every record of a serialised log, in order; stops at the first result that is not 0 and
 * returns it.  -EPROTO: not a log, another version, or cut off.  Trusts no length in the buffer. */
typedef int (*sg_log_visitor)(void *argument, const struct sg_log_record *record);
int sg_log_walk(const uint8_t *buffer, uint64_t bytes, sg_log_visitor each, void *argument);

#endif
