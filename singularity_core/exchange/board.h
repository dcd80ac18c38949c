/* What the proxies of a job, and its agent, know of each other: words in files that all of them map.
 *
 * Files of the exchange directory (0700, made by the launcher; the files are 0600):
 *   board      struct sg_board: proxies, and one block per global rank
 *   c-<key>    struct sg_roster and what follows it: one communicator
 *   o-<index>  outbox of a proxy (transport.h)
 * A job with one proxy and no directory has the same structures in memory of its own.
 *
 * Except where a comment says otherwise, each word has one writer, so that a transport between hosts can mirror it.  Words
 * that are read by others are accessed with the functions at the end.  Proxies trust one another with content, not with
 * lengths.  Files are made under another name and then linked: whoever sees one sees it whole. */
#ifndef SG_BOARD_H
#define SG_BOARD_H

#include <stdint.h>

#define SG_BOARD_MAGIC 0x4452414f42474c41ull  /* "ALGBOARD" */
#define SG_ROSTER_MAGIC 0x5245545352474c41ull /* "ALGRSTER" */
#define SG_BOARD_VERSION 4u
#define SG_EXCHANGE_PROXIES 64u
#define SG_BOARD_RANKS 1024u
#define SG_BOARD_MISSING 8u
#define SG_NO_TARGET UINT64_MAX
#define SG_MEMBER_RING 16u /* collectives that a rank may announce before the first of them is done */
#define SG_PAIR_RING 8u
#define SG_SAID 160u

/* ---- the board ------------------------------------------------------------------------------------------------- */
enum { SG_PROXY_ABSENT = 0, SG_PROXY_ALIVE = 1, SG_PROXY_ENDED = 2, SG_PROXY_DEAD = 3 /* written by who notices */ };
struct sg_board_proxy {
    uint32_t state, pid;
    uint64_t start;    /* field 22 of /proc/<pid>/stat: another process may have the pid by now */
    uint32_t bell;     /* any proxy: bumped when words that this one looks at have changed; futex */
    uint32_t sleeping; /* 1 while its engine sleeps on the bell */
    uint32_t frozen;   /* the value of the board's `freeze` that it has obeyed */
    uint32_t rests;    /* 1: it can tell when its device has come to rest; else no cut can be completed */
    uint32_t handed;   /* the value of the board's `hand` that it has obeyed */
    uint32_t reserved[7];
};

enum { SG_RANK_ABSENT = 0, SG_RANK_RUNNING = 1, SG_RANK_BLOCKED = 2 /* its oldest collective lacks ranks */,
       SG_RANK_HELD = 3 /* by the cut */, SG_RANK_JOINING = 4 /* waits for ranks to join or split */, SG_RANK_ENDED = 5 };
struct sg_board_rank { /* written by the proxy that serves the rank */
    uint32_t state, proxy, pid, last_op; /* last_op: index into the generated table of calls */
    uint64_t since_ns;                   /* CLOCK_MONOTONIC when `state` was last set */
    uint64_t issued, completed;          /* operations, on all communicators */
    uint32_t issuing;                    /* 1 while the rank decides whether it may issue: clocks may be about to move */
    uint32_t wake;                       /* agent: bumped after targets changed; futex */
    uint8_t waits_key[16];               /* BLOCKED, JOINING, HELD: on which communicator */
    uint64_t waits_number;               /* BLOCKED: of which operation of the rank there */
    uint32_t waits_kind;                 /* enum sg_operation_kind */
    uint32_t missing_count;              /* how many ranks have not come, and the first of them, as global ranks */
    uint32_t missing[SG_BOARD_MISSING];
    uint32_t reserved[4];
};

struct sg_board {
    uint64_t magic;
    uint32_t version, proxy_count;
    uint32_t cut;    /* agent: 0: no target counts; or the number of the cut that is being made or held */
    uint32_t freeze; /* agent: odd: proxies stop all sessions and let their devices come to rest; even: they go on */
    uint32_t hand;   /* agent: the value of `freeze` at which proxies shall write down their sessions, for others to go on with */
    uint32_t refusing, refused; /* any proxy: the first to set `refusing` writes `said`, then the value of `hand` that it cannot obey */
    char said[SG_SAID];
    uint32_t reserved[7];
    struct sg_board_proxy proxies[SG_EXCHANGE_PROXIES];
    struct sg_board_rank ranks[SG_BOARD_RANKS];
};

/* `directory` NULL: in memory of our own.  The first who opens makes it.  NULL: `why` says why not. */
struct sg_board *sg_board_open(const char *directory, uint32_t proxy_count, char why[256]);
void sg_board_close(struct sg_board *board);

/* ---- a communicator ---------------------------------------------------------------------------------------------- */
/* What one rank says that it does; all must say the same. */
struct sg_described { uint32_t kind, dtype, reduction, root; uint64_t count; };

enum { SG_MEMBER_ABSENT = 0, SG_MEMBER_JOINING = 1, SG_MEMBER_JOINED = 2, SG_MEMBER_LEFT = 3, SG_MEMBER_DEAD = 4,
       SG_MEMBER_ABORTED = 5 /* gave the communicator up, and lives */ };
struct sg_roster_member {
    union {
        struct { uint32_t state, proxy; };
        uint64_t place; /* both at once: a proxy that dies while it takes a place must be found in it */
    };
    uint32_t global_rank, wants;               /* wants: while held, how many collectives it is about to issue */
    uint64_t clock;                            /* collectives issued */
    uint64_t arrived;                          /* collectives whose inputs are final */
    uint64_t splits;                           /* calls of split */
    int32_t split[2][2];                       /* colour and key of the last two */
    uint32_t period, end, work, reserved;      /* its beat (barrier/tempo.h) */
    uint64_t period_ns;
    struct sg_described ring[SG_MEMBER_RING];  /* of collective n at n % SG_MEMBER_RING */
};
/* What a proxy has offered to the others of this communicator, in order. */
struct sg_roster_lane {
    uint64_t published, offers[2];             /* offer n at n & 1: (block + 1) << 32 | bytes; 0: nothing */
    uint64_t consumed[SG_EXCHANGE_PROXIES];    /* how many offers of each proxy this one has done with */
    uint64_t reserved[5];
};
/* Sends of rank `from` to rank `to`.  None lies on two pages, so that the agent sees in the file's holes which were used. */
struct sg_roster_pair {
    uint64_t target;                           /* agent */
    uint64_t send_clock, receive_clock;        /* issued */
    uint32_t send_wants, receive_wants;
    uint64_t sends, receives;                  /* arrived */
    uint64_t published, offers[2], consumed;
    struct sg_described send_ring[SG_PAIR_RING], receive_ring[SG_PAIR_RING];
    uint64_t reserved[6];
};
_Static_assert(sizeof(struct sg_roster_pair) == 512, "a page holds whole pairs");
struct sg_roster {
    uint64_t magic;
    uint32_t version, ranks;
    uint8_t key[16];
    uint64_t target;                           /* agent: SG_NO_TARGET, or the clock that no member may pass */
    uint32_t joined, left;                     /* any proxy: counted up */
    uint32_t wake;                             /* any proxy: bumped when joined, splits or error change; futex */
    uint32_t failing, error;                   /* any proxy: the first to set `failing` writes `said`, then `error` */
    uint32_t failed_rank;                      /* whose fault, as a rank of the communicator; UINT32_MAX: nobody's */
    char said[SG_SAID];
    uint64_t reserved[8];
};

struct sg_roster_map {
    struct sg_roster *roster;
    struct sg_roster_member *members;
    struct sg_roster_lane *lanes;
    struct sg_roster_pair *pairs; /* [from * ranks + to] */
    uint64_t bytes;
    int file; /* -1: memory of our own */
};
/* Takes the communicators of a job at rest into another exchange directory, for proxies that go on with their members:
 * `proxy_of_rank` says which one that will be, for each global rank (SG_BOARD_RANKS).  0, or -errno with `why`. */
int sg_rosters_carry(const char *from, const char *to, const uint32_t *proxy_of_rank, char why[256]);
/* Calls `each` for all pairs that were ever used.  The table of all pairs is sparse; a look at a hole would take memory, or SIGBUS
 * where there is none. */
typedef void (*sg_pair_visitor)(void *argument, const struct sg_roster_map *map, uint32_t from, uint32_t to);
void sg_roster_each_pair(const struct sg_roster_map *map, sg_pair_visitor each, void *argument);
/* Opens or makes the communicator's file.  0, or -errno: -EINVAL when it has another number of ranks. */
int sg_roster_open(const char *directory, const uint8_t key[16], uint32_t ranks, struct sg_roster_map *out);
/* For the agent: only looks; `name` is a file's name in the directory. */
int sg_roster_look(const char *directory, const char *name, struct sg_roster_map *out);
void sg_roster_close(struct sg_roster_map *map);
void sg_roster_remove(const char *directory, const uint8_t key[16]);
/* Makes sure that the pair's page is there: 0 or -errno. */
int sg_roster_back_pair(const struct sg_roster_map *map, uint32_t from, uint32_t to);
/* Takes the member's place for a rank of `proxy`: 1, or 0: it is taken. */
int sg_roster_claim(struct sg_roster_member *member, uint32_t proxy);
/* The first failure counts.  `error`: enum sg_failure. */
void sg_roster_fail(struct sg_roster *roster, uint32_t error, uint32_t rank, const char *said);
void sg_roster_wake(struct sg_roster *roster);

#define sg_load(word) __atomic_load_n((word), __ATOMIC_SEQ_CST)
#define sg_store(word, value) __atomic_store_n((word), (value), __ATOMIC_SEQ_CST)
#define sg_add(word, value) __atomic_add_fetch((word), (value), __ATOMIC_SEQ_CST)

#endif
