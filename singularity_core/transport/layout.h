/* What rank and proxy share: addresses, files, and the words in them.
 *
 * Everything here is read by both sides of a trust boundary.  A field is *owned* by the side that
 * its comment names; the other side treats it as untrusted: it copies before it checks, and checks
 * before it uses.
 *
 * Files of one door, in a private (0700) directory of /dev/shm; a device proxy has one or more, one for each ordinal that ranks
 * see and that its device serves:
 *   door                 struct sg_door: what the device is, and the slots that ranks claim
 *   <slot>.session       struct sg_session_page, replies, ring, staging (SG_SESSION_BYTES)
 *   <slot>.pinned        the session's page-locked window, sparse (SG_PINNED_WINDOW bytes)
 * The proxy creates all of them (mode 0600); a rank only opens them.
 */
#ifndef SG_LAYOUT_H
#define SG_LAYOUT_H

#include <stdatomic.h>
#include <stdint.h>

#define SG_PROTOCOL 2u
#define SG_DOOR_MAGIC 0x524f4f4447534c41ull    /* "ALSGDOOR" */
#define SG_SESSION_MAGIC 0x53534553474c4148ull /* "HALGSESS" */

/* ---- address windows: reserved PROT_NONE on both sides from the start ------------------------ */
#ifndef SG_DEVICE_BASE /* a TSan build moves the windows into the range TSan allows */
#define SG_DEVICE_BASE 0x200000000000ull
#endif
#ifndef SG_DEVICE_WINDOW
#define SG_DEVICE_WINDOW (1ull << 40) /* bytes of address space per device ordinal */
#endif
#ifndef SG_PINNED_BASE
/* Not a multiple of 256 MiB away from the device window: Zen's L1 cache takes addresses for the same that agree in
 * bits 12 to 27, and copies between the two run at two thirds of their speed. */
#define SG_PINNED_BASE 0x300000a00000ull
#endif
#ifndef SG_PINNED_WINDOW
#define SG_PINNED_WINDOW (1ull << 33) /* page-locked bytes per session: 8 GiB */
#endif
#define SG_WINDOWS_PER_RANK 4u        /* a rank and up to three children that use the device */
#define SG_MAX_WINDOWS 4096u          /* so global ranks 0..1023 */

/* ---- ring: messages of whole 64-byte lines, sequence number in the message's first line ------- */
#define SG_LINE 64u
#define SG_RING_LINES (1u << 16) /* 4 MiB */
#define SG_MAX_MESSAGE_LINES 2048u
#define SG_NO_REPLY 0xffffu
#define SG_OP_PAD 0xffffffffu /* skip to the ring's start */
enum { SG_MESSAGE_ALONE = 1 };/* so far a single thread has used the session, and waits if this asks for a reply */

struct sg_message {          /* written by the rank */
    _Atomic uint64_t seq;    /* line number + 1, stored last with release order */
    uint32_t op;             /* index into the generated table of calls, or SG_OP_PAD */
    uint16_t lines;          /* length of the whole message */
    uint16_t reply;          /* reply slot, or SG_NO_REPLY: fire and forget */
    uint32_t call;           /* per-slot call number, echoed in the reply */
    uint32_t bytes;          /* of payload */
    uint32_t context;        /* index part of the calling thread's current context handle; 0: none */
    uint32_t flags;          /* SG_MESSAGE_* */
    uint8_t payload[32];     /* goes on in the following lines */
};
_Static_assert(sizeof(struct sg_message) == SG_LINE, "a message header is one line");
/* The producer zeroes the seq word of the line *after* a message before it publishes the message,
 * so that stale payload can never look like a published header. */

/* ---- replies: one slot per rank thread --------------------------------------------------------- */
#define SG_REPLY_SLOTS 256u
#define SG_REPLY_PAYLOAD 4064u
struct sg_reply_slot {
    _Atomic uint32_t done;    /* proxy: call number whose reply is complete */
    _Atomic uint32_t waiting; /* rank: 1 while it sleeps on `done`; only the waiter clears it */
    _Atomic uint32_t taken;   /* rank: slot belongs to a live thread */
    int32_t status;           /* proxy: CUresult */
    uint32_t bytes;           /* proxy: of payload */
    uint32_t reserved[3];
    uint8_t payload[SG_REPLY_PAYLOAD];
};

/* ---- staging for pageable copies: a ring of chunks, one transfer at a time --------------------- */
#define SG_STAGING_CHUNK (256u << 10)
#define SG_STAGING_CHUNKS 8u

/* A function of the rank that a stream has come to: the proxy cannot call it, a thread of the rank can.  Not in the ring: a
 * stream must get past its host functions also while the ring's messages wait, because the cut holds them. */
struct sg_host_function { uint64_t stream, function, user; uint32_t is_callback; int32_t status; };

struct sg_session_page { /* 4 KiB; groups that different sides write lie on different lines */
    uint64_t magic;
    uint32_t protocol;
    uint32_t generation;      /* proxy: grows with each proxy that serves this session */
    uint32_t rank, window;    /* proxy: copied from the claim */
    uint32_t barriers;        /* proxy: 1 when it makes all ranks' stores visible (membarrier) before it
                                 sleeps, so that a post needs no barrier of its own */
    uint32_t reserved0[9];
    _Alignas(64) _Atomic uint64_t head; /* proxy: first line not consumed */
    _Alignas(64) _Atomic uint32_t doorbell;  /* rank: bumped to wake the proxy */
    _Alignas(64) _Atomic uint32_t sleeping;  /* proxy: not 0 while nobody polls the ring; another value each time,
                                                so that ranks ring the doorbell once for each */
    _Atomic uint32_t room;                   /* proxy: bumped after head moves while `full` is set */
    _Alignas(64) _Atomic uint32_t full;      /* rank: 1 while a producer sleeps on `room` */
    _Alignas(64) _Atomic uint32_t async_error; /* proxy: first error of a fire-and-forget call or of
                                                  asynchronous work; CUresult.  rank: back to 0 once
                                                  reported, unless sticky */
    _Atomic uint32_t dead;                   /* agent or proxy: SG_DEAD_*; nothing will answer again */
    _Alignas(64) _Atomic uint32_t chunks_filled;  /* staging: by the sender of the transfer */
    _Alignas(64) _Atomic uint32_t chunks_drained; /* staging: by the receiver */
    _Alignas(64) _Atomic uint32_t host_offered;   /* proxy: how many host functions it has put here; one at a time */
    struct sg_host_function host;                 /* proxy: the last of them */
    _Alignas(64) _Atomic uint32_t host_called;    /* rank: how many have returned */
    _Alignas(64) uint64_t counters[32];      /* proxy: enum sg_counter, see server.h */
};
_Static_assert(sizeof(struct sg_session_page) <= 4096, "the session page is one page");

/* CUDA's errors after which nothing more succeeds in the process; any other is reported once. */
static inline int sg_sticky(uint32_t error) {
    return error == 214 || error == 220 || error == 700 || error == 702 || error == 710 || (error >= 714 && error <= 719);
}

enum { SG_DEAD_NO = 0, SG_DEAD_PROXY = 1, SG_DEAD_CLOSED = 2, SG_DEAD_PROTOCOL = 3, SG_DEAD_JOB = 4 };

#define SG_REPLIES_OFFSET 4096u
#define SG_RING_OFFSET (SG_REPLIES_OFFSET + SG_REPLY_SLOTS * 4096u)
#define SG_STAGING_OFFSET (SG_RING_OFFSET + SG_RING_LINES * SG_LINE)
#define SG_SESSION_BYTES (SG_STAGING_OFFSET + SG_STAGING_CHUNKS * SG_STAGING_CHUNK)
_Static_assert(sizeof(struct sg_reply_slot) == 4096, "reply slots are pages");

/* ---- the door: how a rank gets a session -------------------------------------------------------- */
#define SG_DOOR_SLOTS 64u
#define SG_ATTRIBUTES 192u
enum { SG_SLOT_FREE = 0, SG_SLOT_CLAIMING = 1, SG_SLOT_CLAIMED = 2, SG_SLOT_OPEN = 3,
       SG_SLOT_CLOSING = 4, SG_SLOT_REFUSED = 5 };

struct sg_claim {
    _Atomic uint32_t state;  /* rank: FREE->CLAIMING->CLAIMED, OPEN->CLOSING; proxy: the rest */
    uint32_t pid;            /* rank */
    uint64_t pid_start;      /* rank: field 22 of /proc/self/stat, against reuse of the pid */
    uint32_t rank, sub;      /* rank: global rank; 0 for the rank itself, 1.. for its children */
    int32_t why;             /* proxy: CUresult when REFUSED */
    uint32_t reserved;
    char said[96];           /* proxy: why, in words */
};

struct sg_device_info {      /* proxy: what cuDeviceGet* answer, without a round trip */
    char name[256];
    uint8_t uuid[16];
    uint64_t total_bytes;
    int32_t driver_version;
    int32_t attribute_count; /* attributes[0] is unused, as in CUdevice_attribute */
    int32_t attributes[SG_ATTRIBUTES];
    int32_t pool_supported;
    int32_t reserved[15];
};

struct sg_door {
    uint64_t magic;
    uint32_t protocol;
    uint32_t proxy_pid;
    uint64_t proxy_start;
    _Atomic uint32_t ready;  /* proxy: 1 once it serves */
    _Atomic uint32_t dead;   /* agent: SG_DEAD_PROXY or SG_DEAD_JOB */
    _Atomic uint32_t bell;   /* rank: bumped after a claim; the proxy sleeps on it */
    uint32_t reserved[7];
    struct sg_device_info device;
    _Alignas(64) struct sg_claim slots[SG_DOOR_SLOTS];
};

/* ---- virtual handles --------------------------------------------------------------------------- */
/* bits 0-31 index (never 0), 32-47 generation, 48-55 kind.  Never a canonical user pointer that the
 * rank has mapped, and never 0, 1 or 2, which CUDA gives a meaning as streams. */
enum sg_kind { SG_KIND_NONE = 0, SG_KIND_CONTEXT = 1, SG_KIND_STREAM, SG_KIND_EVENT, SG_KIND_MODULE,
               SG_KIND_FUNCTION, SG_KIND_GRAPH, SG_KIND_GRAPH_NODE, SG_KIND_GRAPH_EXEC,
               SG_KIND_LIBRARY, SG_KIND_KERNEL, SG_KIND_POOL, SG_KIND_COMMUNICATOR, SG_KIND_COUNT };
#define SG_HANDLE(kind, generation, index) \
    (((uint64_t)(kind) << 48) | ((uint64_t)((generation) & 0xffffu) << 32) | (uint32_t)(index))
#define SG_HANDLE_KIND(h) ((uint32_t)((h) >> 48) & 0xffu)
#define SG_HANDLE_GENERATION(h) ((uint32_t)((h) >> 32) & 0xffffu)
#define SG_HANDLE_INDEX(h) ((uint32_t)(h))
/* Client-chosen handles (streams, events) have indices below SG_CLIENT_HANDLES, the proxy's start there. */
#define SG_CLIENT_HANDLES (1u << 20)

#endif
