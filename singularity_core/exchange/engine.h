/* The engine: runs the collectives of the ranks that one proxy serves, together with the engines of its peers.
 *
 * Sans device: a rank's memory and gates are reached through `struct sg_exchange_calls`, so tests drive the same code with
 * memory of their own.  One thread (or a test that calls sg_engine_turn) moves all operations.  It never waits for one of them:
 * each is a state machine on counters, so operations of crossing groups cannot lock each other.  `read` and `write` may wait
 * while the session's memory is being moved (one switch of the device), which waits for no operation.  The other functions may be called from any thread.
 *
 *   party   a session: one rank of the job, as served here
 *   member  a rank's place in a communicator
 *   group   operations that a rank issues together, which complete together: one gate
 *
 * Order: per rank and communicator, groups are begun one after the other (as in NCCL); a group is begun when all its
 * streams have arrived.  Collectives match by number, sends and receives by number per ordered pair.  Communicators are
 * independent of each other. */
#ifndef SG_ENGINE_H
#define SG_ENGINE_H

#include <stdint.h>
#include "../interceptors/communication.h"
#include "board.h"

typedef struct sg_engine sg_engine;
typedef struct sg_party sg_party;
typedef struct sg_member sg_member;
typedef struct sg_group sg_group;

/* All called by the engine's thread, never after sg_party_quit has returned. */
struct sg_exchange_calls {
    int32_t (*read)(void *owner, uint64_t address, void *out, uint64_t bytes);        /* 0, or a CUresult */
    int32_t (*write)(void *owner, uint64_t address, const void *in, uint64_t bytes);
    void (*open)(void *owner, uint64_t gate);                  /* once per group */
    void (*misses)(void *owner, int misses);                   /* changed: lacks the arrival of another party here */
    void (*fail)(void *owner, const char *said);               /* before `open`: the group has no result */
    void (*strand)(void *owner, const char *said);             /* it waits until the rank aborts the communicator itself */
};
struct sg_engine_options {
    const char *directory; /* the job's exchange directory; NULL: this proxy is the only one */
    uint32_t proxy_index, proxy_count;
    struct sg_exchange_calls calls;
};
sg_engine *sg_engine_create(const struct sg_engine_options *options, char why[256]);
int sg_engine_start(sg_engine *engine);    /* its thread; 0 or -errno */
void sg_engine_destroy(sg_engine *engine); /* all parties have ended */
int sg_engine_turn(sg_engine *engine);     /* without the thread: 1 when something has moved */
struct sg_board *sg_engine_board(sg_engine *engine);
int sg_engine_idle(sg_engine *engine);     /* 1: no operation that was issued here is pending */

/* ---- parties --------------------------------------------------------------------------------------------------- */
sg_party *sg_party_begin(sg_engine *engine, void *owner, uint32_t global_rank, uint32_t pid); /* NULL: no memory */
/* The session ends: its pending operations fail, its gates open, its members leave.  Returns when that is done. */
void sg_party_quit(sg_party *party);
void sg_party_end(sg_party *party); /* after quit, and when no stream can call sg_group_arrived any more */
struct sg_board_rank *sg_party_status(sg_party *party);

/* ---- members ------------------------------------------------------------------------------------------------------ */
/* Joins as `rank` of `ranks`; 0 or enum sg_failure with `said`.  All have joined when `ready` says so. */
int sg_member_join(sg_party *party, const uint8_t key[16], uint32_t ranks, uint32_t rank, sg_member **out, char said[SG_SAID]);
/* Goes on as the member that another proxy had, at rest, once sg_rosters_carry has given its place to this one; as join otherwise, but
 * all have joined. */
int sg_member_resume(sg_party *party, const uint8_t key[16], uint32_t ranks, uint32_t rank, sg_member **out, char said[SG_SAID]);
/* 1: all are there; 0: not yet; else -(enum sg_failure), with `said`. */
int sg_member_ready(sg_member *member, char said[SG_SAID]);
/* Every member calls this: 0, or SG_FAIL_REMOTE when the member is gone.  `ready`, as above, then fills what to join
 * with (ranks 0: colour < 0).  `end` lets another thread begin. */
struct sg_split { uint64_t number; uint8_t key[16]; uint32_t ranks, rank; };
int sg_split_begin(sg_member *member, int32_t colour, int32_t key, struct sg_split *out);
int sg_split_ready(sg_member *member, struct sg_split *split, char said[SG_SAID]);
void sg_split_end(sg_member *member);
/* Sleeps until `ready` of the split (NULL: of the member) may say something else, or for 50 ms, and shows on the board who is
 * missing; `awaited` ends that. */
void sg_member_await(sg_member *member, const struct sg_split *split);
void sg_member_awaited(sg_member *member);
int sg_member_busy(sg_member *member);     /* 1: some of its operations are not complete */
void sg_member_await_idle(sg_member *member); /* sleeps until it may not be busy any more, or for 50 ms */
/* 0, or the communicator's asynchronous error, with `said`. */
int sg_member_error(sg_member *member, char said[SG_SAID]);
/* Pending operations end without a result and without an error of this rank.  The member is gone when this returns. */
void sg_member_leave(sg_member *member, int aborts);
uint32_t sg_member_ranks(const sg_member *member);
uint32_t sg_member_rank(const sg_member *member);
/* The communicator is broken by this rank; the others learn it. */
void sg_member_break(sg_member *member, int failure, const char *said);

/* ---- groups --------------------------------------------------------------------------------------------------------- */
struct sg_issue {
    sg_member *member;
    struct sg_described what; /* root: or the other side of a send or receive */
    uint64_t send, receive, scalar;
};
sg_group *sg_group_new(sg_party *party, const struct sg_issue *issues, uint32_t count, uint64_t gate); /* NULL: no memory */
void sg_group_free(sg_group *group); /* one that was not issued */
/* By whom groups are issued: how many launches the rank has made so far. */
void sg_party_launched(sg_party *party, uint64_t launches);
/* Gives the operations their numbers.  1: issued; 0: held by the cut, which the board shows; else -(enum sg_failure).  Who is held
 * asks again, with the same operations, until the answer is another: the group may be another then. */
int sg_group_issue(sg_group *group, char said[SG_SAID]);
void sg_party_await(sg_party *party); /* held: sleeps until the cut may have changed, or for 50 ms */
/* Once per stream before its arrival is queued; `arrived` once for each, and once for the issuer when it is done. */
void sg_group_expect(sg_group *group);
void sg_group_arrived(sg_group *group);

const char *sg_kind_name(uint32_t kind);
const char *sg_dtype_name(uint32_t dtype);

#endif
