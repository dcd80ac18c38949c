/* The engine's insides.  Unless said otherwise, everything belongs to the engine's thread. */
#ifndef SG_PARTS_H
#define SG_PARTS_H

#include <pthread.h>

#include "../barrier/tempo.h"
#include "engine.h"
#include "reduce.h"
#include "transport.h"
#include "tree.h"

#define SG_PIECE_BYTES (128u << 10) /* what is worked on at once: fits into the second-level cache, several times */
#define SG_TURN_BYTES (8u << 20)    /* moved for one operation before others get their turn */

struct sg_communicator;

enum sg_request_kind { SG_REQUEST_MEMBER, SG_REQUEST_GROUP, SG_REQUEST_LEAVE, SG_REQUEST_QUIT, SG_REQUEST_END };
struct sg_request_item { struct sg_request_item *next; uint32_t kind, argument; void *subject; int *done; /* engine->lock */ };

struct sg_op {
    struct sg_op *next; /* in the queue of its member or pair */
    struct sg_part *part;
    struct sg_issue issue;
    uint64_t number;    /* on the communicator, or on the pair */
    int finished;
};
/* A group's operations on one communicator. */
struct sg_part {
    struct sg_part *next;
    struct sg_group *group;
    sg_member *member;
    struct sg_op *ops;
    uint32_t count, unfinished;
    int active;
};
struct sg_group {
    struct sg_request_item request;
    sg_party *party;
    struct sg_group *next, **before; /* the party's list; engine->lock */
    struct sg_group *later;
    uint64_t gate;
    uint32_t waiting; /* streams that have not arrived, and the issuer; atomic */
    uint32_t part_count, unfinished;
    int failed, opened;
    struct sg_part *parts;
    struct sg_op *ops;
    uint32_t count;
};

struct sg_queue { struct sg_op *first, **end; };

struct sg_pair { /* sends of `from` to `to`, at least one of which is served here */
    struct sg_pair *next;
    uint32_t from, to;
    sg_member *sender, *receiver; /* NULL: not here */
    struct sg_roster_pair *shared;
    struct sg_queue sends, receives; /* active */
    uint64_t announced_sends, announced_receives, done; /* how many; done: by this side */
    uint64_t at;                     /* bytes of the current operation moved */
    int running;
    int64_t blocks[2];
};

struct sg_member {
    struct sg_request_item request; /* to be added, later to leave */
    sg_party *party;
    struct sg_communicator *communicator; /* NULL: it has left; changed by the engine's thread under engine->lock */
    uint32_t rank, ranks;
    sg_member *next_of_party;       /* engine->lock */
    uint64_t clock;                 /* engine->lock: collectives issued, */
    uint64_t launches;              /* the party's, at the last of them, */
    struct sg_tempo tempo;          /* and how they repeat themselves */
    uint8_t *used;                  /* engine->lock: by peer, 1: it was sent to, 2: received from */
    pthread_mutex_t splitting;
    uint64_t splits;
    uint32_t busy;                  /* parts not finished; atomic */
    struct sg_part *parts, **parts_end;
    struct sg_queue collectives;    /* active, not finished */
    uint64_t activated, announced;  /* collectives */
    struct sg_op *unannounced;      /* first active collective that the roster does not show */
    struct sg_pair **sends, **receives; /* by peer */
    int resumes;                    /* it was another proxy's: `activated` is the number of the communicator's next collective */
    int stranded;                   /* its operations wait, because a peer has aborted */
    int gone;                       /* engine->lock: nobody else may begin to use it */
    uint32_t users;                 /* engine->lock: who does */
};

struct sg_party {
    sg_engine *engine;
    struct sg_party *next, **before; /* engine->lock, from here to `joining` */
    void *owner;
    uint32_t rank;
    sg_member *members;
    struct sg_group *groups;
    int quit, held, joining;
    uint32_t seen; /* the board's `wake` of the rank when it was last asked whether it may issue */
    uint64_t launches;              /* by the rank so far */
    uint32_t state; /* as on the board */
    struct sg_board_rank *status;
    int misses;
    struct sg_request_item request;
};

/* One segment that a rank's contribution is, for a destination or (SG_EVERYONE) all. */
#define SG_EVERYONE UINT32_MAX
struct sg_segment { uint32_t from, to; };

struct sg_run { /* the collective that is being moved */
    int active, phase;
    struct sg_described what;
    uint32_t bytes;              /* per element */
    /* movement */
    struct sg_segment *segments; /* ordered by place, `first[place]` .. */
    uint32_t *first, local_count, local_at;
    struct sg_segment *local;    /* both ends here */
    uint64_t length, local_offset, steps, step;
    /* reduction */
    uint64_t tile, tile_end, tile_most, elements;
    uint32_t mode, accumulator, acc_bytes;
    uint8_t *own_block;
    uint32_t own_index;
    uint64_t own_bytes;
};

struct sg_communicator {
    struct sg_communicator *next; /* engine->lock: the list and `locals` */
    uint32_t locals;
    sg_engine *engine;
    uint32_t ranks;
    struct sg_roster_map map;
    sg_member **members;          /* by rank; NULL: not served here */
    int ready;                    /* all have joined; the rest is filled */
    uint32_t *places;             /* by rank: index into proxies */
    uint32_t proxies[SG_EXCHANGE_PROXIES], place_count, here;
    struct sg_tree_step *program; /* atoms are what places hold whole */
    uint32_t program_steps, most_atoms, atom_count[SG_EXCHANGE_PROXIES];
    uint64_t number;              /* of the next collective */
    uint64_t published;
    int64_t blocks[2];
    struct sg_run run;
    struct sg_pair *pairs;
    int failed;
};

struct sg_engine {
    struct sg_engine_options options;
    char *directory;
    struct sg_board *board;
    struct sg_transport transport;
    pthread_t thread;
    int threaded;
    uint32_t stopping;     /* atomic */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct sg_request_item *inbox, **inbox_end;
    sg_party *parties;
    struct sg_communicator *communicators;
    sg_group *retired;     /* failed before all their streams arrived; by `later` */
    uint32_t pair_blocks;
    int pidfds[SG_EXCHANGE_PROXIES];
    uint64_t watched_ns;
    uint8_t *pieces[SG_TREE_STACK + 2]; /* SG_PIECE_BYTES each */
};

/* engine.c */
void sg_engine_ring(sg_engine *engine);
void sg_engine_post(sg_engine *engine, struct sg_request_item *item, uint32_t kind, void *subject);
/* As post, and returns when it is done. */
void sg_engine_call(sg_engine *engine, struct sg_request_item *item, uint32_t kind, void *subject, uint32_t argument);

/* member.c */
int sg_member_hold(sg_member *member); /* 0: it is gone */
void sg_member_let_go(sg_member *member);
void sg_member_free(sg_member *member);

/* group.c */
void sg_op_finish(struct sg_op *op);
void sg_part_drop(struct sg_part *part, const char *said); /* said NULL: no error of this rank */
void sg_group_link(sg_group *group);
/* Frees groups that failed and whose streams have arrived since, or never will, because their party has `ended`. */
void sg_engine_sweep(sg_engine *engine, const sg_party *ended);

/* status.c */
void sg_status_refresh(sg_engine *engine);
void sg_party_refresh(sg_party *party, int only_misses);
void sg_party_show(sg_party *party); /* engine->lock is held */

/* communicator.c */
int sg_communicator_turn(struct sg_communicator *c);
void sg_communicator_fail(struct sg_communicator *c, uint32_t failure, uint32_t rank, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void sg_communicator_drop(struct sg_communicator *c);        /* everything pending here, because of its error */
int sg_communicator_aborted(const struct sg_communicator *c); /* it failed because a rank gave it up; any thread */
static inline const char *sg_gone(uint32_t state) {
    return state == SG_MEMBER_LEFT ? "left the communicator" : state == SG_MEMBER_ABORTED ? "aborted the communicator" : "ended";
}
void sg_member_detach(sg_member *member, int aborts);        /* the engine's side of leaving */
int sg_communicator_spent(const struct sg_communicator *c);  /* nobody needs anything of it any more */
void sg_communicator_free(struct sg_communicator *c);
void sg_communicator_ring(const struct sg_communicator *c);
int32_t sg_member_read(sg_member *member, uint64_t address, void *out, uint64_t bytes);
void sg_member_write(struct sg_op *op, uint64_t address, const void *in, uint64_t bytes);
/* What `op` does, for messages: "all_reduce 3 (float32, sum, 10 elements)". */
void sg_describe(const struct sg_described *what, uint64_t number, char out[96]);

/* lane.c: a proxy's offers within a communicator */
int sg_lane_free(struct sg_communicator *c);                   /* 1: the next offer can be made */
void sg_lane_tidy(struct sg_communicator *c);                  /* gives back the blocks that all others have done with */
uint8_t *sg_lane_reserve(struct sg_communicator *c, uint32_t *block); /* NULL: the communicator failed */
void sg_lane_offer(struct sg_communicator *c, int64_t block, uint32_t bytes); /* block -1: nothing */
int sg_lane_offered(const struct sg_communicator *c, uint64_t number);        /* 1: by all others */
const uint8_t *sg_lane_bytes(struct sg_communicator *c, uint32_t place, uint64_t number, uint64_t bytes); /* NULL: failed */
void sg_lane_consumed(struct sg_communicator *c, uint64_t number);
void sg_lane_release(struct sg_communicator *c);

/* movement.c and reduction.c: begin answers 0 when there is no memory; turn: 1 moved, 0 not, -1 finished or failed */
int sg_movement_begin(struct sg_communicator *c);
int sg_movement_turn(struct sg_communicator *c);
void sg_reduction_begin(struct sg_communicator *c);
int sg_reduction_turn(struct sg_communicator *c);
static inline struct sg_op *sg_run_op(const struct sg_communicator *c, uint32_t rank) {
    return c->members[rank] == NULL ? NULL : c->members[rank]->collectives.first;
}

/* pair.c */
int sg_pair_add(struct sg_op *op); /* 0 or -errno */
int sg_pairs_turn(struct sg_communicator *c);
void sg_pairs_drop(struct sg_communicator *c);

static inline void sg_queue_put(struct sg_queue *queue, struct sg_op *op) {
    op->next = NULL;
    if (queue->first == NULL) queue->end = &queue->first;
    *queue->end = op;
    queue->end = &op->next;
}
static inline struct sg_op *sg_queue_take(struct sg_queue *queue) {
    struct sg_op *op = queue->first;
    queue->first = op->next;
    return op;
}
static inline int sg_is_pairwise(uint32_t kind) { return kind == SG_SEND || kind == SG_RECV; }

#endif
