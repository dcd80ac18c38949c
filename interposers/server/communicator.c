/* Handlers of the NCCL interposer's messages (wire_nccl.h): check what the rank says, and give it to the exchange
 * (singularity_core/exchange/engine.h).  A group is, in each of its streams, an arrival (a host function) and a gate. */
#include <stdio.h>
#include "handlers.h"
#include "../../singularity_core/exchange/engine.h"
#include "../../singularity_core/exchange/reduce.h"

#define GROUP_MOST 65536u

static void say(char *out, size_t room, const char *said) { snprintf(out, room, "%s", said); }

/* ---- coming together ------------------------------------------------------------------------------------------------ */
/* Why this session has no collectives; NULL: it has. */
static const char *refusal(sg_session *session)
{
    if (!sg_session_party(session))
        return "a child process of a rank has no collectives: call NCCL in the rank itself";
    if (!sg_session_has_gates(session))
        return "this backend lacks the capability 'gates', which collectives need: use another backend";
    return NULL;
}

/* Joins and waits for all; the handle, or 0 with `result` and `said`. */
static uint64_t join(sg_session *session, const uint8_t key[16], uint32_t ranks, uint32_t rank, int32_t *result, char said[SG_SAID])
{
    sg_member *member;
    *result = sg_member_join(sg_session_party(session), key, ranks, rank, &member, said);
    if (*result)
        return 0;
    int ready;
    while ((ready = sg_member_ready(member, said)) == 0)
        sg_member_await(member, NULL);
    sg_member_awaited(member);
    uint64_t handle = ready > 0 ? sg_handle_put(session, SG_KIND_COMMUNICATOR, member, 0) : 0;
    if (handle)
        return handle;
    *result = ready > 0 ? SG_FAIL_SYSTEM : -ready;
    if (ready > 0)
        say(said, SG_SAID, "the device proxy has no more handles");
    sg_member_leave(member, 1);
    return 0;
}

/* While a session is taken over from another proxy, which has taken part: nobody is waited for. */
static int32_t resume(sg_session *session, const struct sg_wire_communicator_join *wire)
{
    sg_member *member;
    char said[SG_SAID];
    sg_party_launched(sg_session_party(session), sg_counted(session, SG_COUNT_LAUNCHES));
    if (sg_member_resume(sg_session_party(session), wire->key, wire->ranks, wire->rank, &member, said)) {
        fprintf(stderr, "singularity: %s\n", said);
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (sg_handle_put(session, SG_KIND_COMMUNICATOR, member, 0))
        return CUDA_SUCCESS;
    sg_member_leave(member, 1);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* However the rank came to be a member, this is how it is one again. */
static void log_membership(sg_session *session, const struct sg_request *request, const struct sg_wire_communicator_join *wire, uint64_t handle)
{
    struct sg_request logged = *request;
    logged.op = SG_OP_communicator_join;
    logged.payload = (const uint8_t *)wire;
    logged.bytes = sizeof *wire;
    sg_log_create(session, &logged, handle, NULL, 0);
}

SG_HANDLER(communicator_join)
{
    struct sg_wire_communicator_join wire;
    struct sg_reply_communicator_join reply = {0};
    char said[SG_SAID] = "";
    const char *refused = refusal(session);
    SG_READ(wire);
    if (sg_session_replaying(session))
        return refused ? CUDA_ERROR_NOT_SUPPORTED : resume(session, &wire);
    if (refused) {
        reply.result = SG_FAIL_USAGE;
        say(said, sizeof said, refused);
    } else {
        reply.handle = join(session, wire.key, wire.ranks, wire.rank, &reply.result, said);
    }
    if (reply.handle)
        log_membership(session, request, &wire, reply.handle);
    say(reply.said, sizeof reply.said, said);
    SG_REPLY(reply);
    return CUDA_SUCCESS;
}

/* What to join with; `split.ranks` 0: nothing. */
static int32_t split_parent(sg_member *parent, const struct sg_wire_communicator_split *wire, struct sg_split *split, char said[SG_SAID])
{
    int ready;
    say(said, SG_SAID, "the communicator has ended");
    if (sg_split_begin(parent, wire->color, wire->key, split))
        return SG_FAIL_REMOTE;
    while ((ready = sg_split_ready(parent, split, said)) == 0)
        sg_member_await(parent, split);
    sg_member_awaited(parent);
    sg_split_end(parent);
    return ready < 0 ? -ready : SG_FAIL_NONE;
}

SG_HANDLER(communicator_split)
{
    struct sg_wire_communicator_split wire;
    struct sg_reply_communicator_split reply = {0};
    struct sg_split split = {0};
    char said[SG_SAID] = "";
    SG_READ(wire);
    if (sg_session_replaying(session))
        return CUDA_ERROR_NOT_SUPPORTED;
    sg_member *parent = sg_handle_get(session, SG_KIND_COMMUNICATOR, wire.parent);
    if (!parent)
        return CUDA_ERROR_INVALID_HANDLE;
    reply.result = split_parent(parent, &wire, &split, said);
    if (!reply.result && split.ranks) {
        reply.ranks = split.ranks;
        reply.rank = split.rank;
        reply.handle = join(session, split.key, split.ranks, split.rank, &reply.result, said);
    }
    if (reply.handle) {
        struct sg_wire_communicator_join made = {.ranks = reply.ranks, .rank = reply.rank};
        memcpy(made.key, split.key, sizeof made.key);
        log_membership(session, request, &made, reply.handle);
    }
    if (reply.result)
        say(reply.said, sizeof reply.said, said);
    SG_REPLY(reply);
    return CUDA_SUCCESS;
}

/* ---- checking a group -------------------------------------------------------------------------------------------------- */
struct sg_submission {
    uint32_t count, stream_count;
    struct sg_issue *issues;
    void **streams;
    sg_group *group;
    uint64_t gate;
};

static int owned(sg_session *session, uint64_t address, uint64_t bytes)
{
    int device = address - SG_DEVICE_BASE < SG_DEVICE_WINDOW;
    return !bytes || (device ? sg_memory_owned(session, address, bytes) : sg_pinned_owned(session, address, bytes)) == 0;
}

static int reduces(uint32_t kind) { return kind == SG_ALL_REDUCE || kind == SG_REDUCE || kind == SG_REDUCE_SCATTER; }

/* How many times `count` elements the rank gives and gets. */
static void shares(const struct sg_operation *op, uint32_t rank, uint32_t ranks, uint32_t *send, uint32_t *receive)
{
    int root = op->peer == rank;
    *send = *receive = 1;
    switch (op->kind) {
    case SG_REDUCE: *receive = root; break;
    case SG_BROADCAST: *send = root; break;
    case SG_ALL_GATHER: *receive = ranks; break;
    case SG_REDUCE_SCATTER: *send = ranks; break;
    case SG_ALL_TO_ALL: *send = *receive = ranks; break;
    case SG_GATHER: *receive = root ? ranks : 0; break;
    case SG_SCATTER: *send = root ? ranks : 0; break;
    case SG_SEND: *receive = 0; break;
    case SG_RECV: *send = 0; break;
    default: break;
    }
}

/* Where NCCL allows input and output to be the same memory. */
static int in_place(const struct sg_operation *op, uint32_t rank, uint64_t bytes)
{
    switch (op->kind) {
    case SG_ALL_GATHER: case SG_GATHER: return op->send == op->receive + rank * bytes;
    case SG_REDUCE_SCATTER: case SG_SCATTER: return op->receive == op->send + rank * bytes;
    case SG_ALL_TO_ALL: return 0;
    default: return op->send == op->receive;
    }
}

static int overlaps(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes) { return a_bytes && b_bytes && a < b + b_bytes && b < a + a_bytes; }

/* 0 or a CUresult with what is wrong. */
static int32_t check(sg_session *session, const struct sg_operation *op, const sg_member *member, char said[SG_SAID])
{
    uint32_t ranks = sg_member_ranks(member), rank = sg_member_rank(member), size = sg_dtype_bytes(op->dtype), send, receive;
    const char *name = sg_kind_name(op->kind);
    if (op->kind < SG_ALL_REDUCE || op->kind > SG_RECV || !size || (reduces(op->kind) && op->reduction > SG_PREMUL_SUM) || op->peer >= ranks) {
        snprintf(said, SG_SAID, "rank %u: %s with data type %u, reduction %u and peer %u of %u", rank, name, op->dtype, op->reduction, op->peer, ranks);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (op->count > SG_DEVICE_WINDOW / size / ranks) {
        snprintf(said, SG_SAID, "rank %u: %s of %llu elements", rank, name, (unsigned long long)op->count);
        return CUDA_ERROR_INVALID_VALUE;
    }
    shares(op, rank, ranks, &send, &receive);
    uint64_t bytes = op->count * size;
    if (!owned(session, op->send, send * bytes) || !owned(session, op->receive, receive * bytes)) {
        snprintf(said, SG_SAID, "rank %u: %s of %llu elements from %#llx to %#llx: that is not all live memory of this rank", rank, name,
                 (unsigned long long)op->count, (unsigned long long)op->send, (unsigned long long)op->receive);
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    if (overlaps(op->send, send * bytes, op->receive, receive * bytes) && !in_place(op, rank, bytes)) {
        snprintf(said, SG_SAID, "rank %u: %s: input %#llx and output %#llx overlap, and not as NCCL's in-place form", rank, name,
                 (unsigned long long)op->send, (unsigned long long)op->receive);
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static int32_t add_stream(sg_session *session, struct sg_submission *s, uint64_t handle)
{
    void *stream;
    CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
    if (sg_stream_get(session, handle, &stream))
        return CUDA_ERROR_INVALID_HANDLE;
    for (uint32_t i = 0; i < s->stream_count; i++)
        if (s->streams[i] == stream)
            return CUDA_SUCCESS;
    CUresult error = sg_session_driver(session)->cuStreamIsCapturing(stream, &capturing);
    if (!error && capturing != CU_STREAM_CAPTURE_STATUS_NONE)
        error = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; /* a gate opens once, a graph runs often */
    s->streams[s->stream_count++] = stream;
    return (int32_t)error;
}

/* Everyone who takes part in the group learns that it has failed, instead of waiting. */
static void break_all(const struct sg_submission *s, int failure, const char *said)
{
    for (uint32_t i = 0; i < s->count; i++)
        if (s->issues[i].member)
            sg_member_break(s->issues[i].member, failure, said);
}

static int32_t prepare(sg_session *session, const struct sg_operation *operations, struct sg_submission *s)
{
    char said[SG_SAID] = "";
    int32_t error = CUDA_SUCCESS;
    for (uint32_t i = 0; i < s->count && !error; i++) {
        const struct sg_operation *op = &operations[i];
        sg_member *member = sg_handle_get(session, SG_KIND_COMMUNICATOR, op->communicator);
        if (!member) {
            error = CUDA_ERROR_INVALID_HANDLE;
            snprintf(said, SG_SAID, "a rank's group names a communicator that it does not have");
            break;
        }
        s->issues[i] = (struct sg_issue){.member = member, .what = {op->kind, op->dtype, op->reduction, op->peer, op->count},
                                         .send = op->send, .receive = op->receive, .scalar = op->scalar};
        error = add_stream(session, s, op->stream);
        if (error == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) {
            fprintf(stderr, "singularity: collectives cannot be captured in a graph: launch them outside of the capture\n");
            return error; /* refused before it began: the communicator lives */
        }
        if (!error)
            error = check(session, op, member, said);
    }
    if (error)
        break_all(s, SG_FAIL_ARGUMENT, said[0] ? said : "a rank named a stream that it does not have");
    return error;
}

/* ---- into the streams ---------------------------------------------------------------------------------------------------- */
static void CUDA_CB arrived(void *group) { sg_group_arrived(group); }

static int32_t enqueue(sg_session *session, const struct sg_submission *s)
{
    const struct sg_hal_table *hal = sg_session_hal(session);
    const struct sg_driver *driver = sg_session_driver(session);
    int32_t error = CUDA_SUCCESS;
    for (uint32_t i = 0; i < s->stream_count && !error; i++) {
        sg_group_expect(s->group);
        error = (int32_t)driver->cuLaunchHostFunc(s->streams[i], arrived, s->group);
        if (error)
            sg_group_arrived(s->group);
    }
    for (uint32_t i = 0; i < s->stream_count && !error; i++) /* all arrive before any waits: they may depend on each other */
        error = hal->gate_wait(hal->state, s->gate, s->streams[i]);
    return error;
}

static int32_t submit(sg_session *session, struct sg_submission *s)
{
    const struct sg_hal_table *hal = sg_session_hal(session);
    char said[SG_SAID] = "";
    int32_t error = hal->gate_make(hal->state, &s->gate);
    if (error)
        return error;
    sg_party_launched(sg_session_party(session), sg_counted(session, SG_COUNT_LAUNCHES));
    s->group = sg_group_new(sg_session_party(session), s->issues, s->count, s->gate);
    int result = s->group ? sg_group_issue(s->group, said) : -SG_FAIL_SYSTEM;
    if (result <= 0) {
        if (s->group)
            sg_group_free(s->group);
        (void)hal->gate_open(hal->state, s->gate);
        (void)hal->gate_drop(hal->state, s->gate);
        return !result ? SG_HELD : s->group ? CUDA_ERROR_LAUNCH_FAILED : CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct sg_calls *calls = sg_calls_of(session); /* the group's operations were kept there */
    pthread_mutex_lock(&calls->joint);
    error = enqueue(session, s);
    pthread_mutex_unlock(&calls->joint);
    if (error)
        break_all(s, SG_FAIL_DEVICE, "the driver refused to queue a collective");
    (void)hal->gate_drop(hal->state, s->gate);
    sg_group_arrived(s->group); /* may be gone now */
    return error;
}

static int32_t run_group(sg_session *session, const struct sg_operation *operations, uint32_t count)
{
    struct sg_submission s = {.count = count};
    s.issues = calloc(count, sizeof *s.issues);
    s.streams = calloc(count, sizeof *s.streams);
    int32_t error = s.issues && s.streams ? prepare(session, operations, &s) : CUDA_ERROR_OUT_OF_MEMORY;
    if (!error)
        error = submit(session, &s);
    free(s.issues);
    free(s.streams);
    return error;
}

static void break_handle(sg_session *session, uint64_t handle)
{
    sg_member *member = sg_handle_get(session, SG_KIND_COMMUNICATOR, handle);
    if (member)
        sg_member_break(member, SG_FAIL_ARGUMENT, "a rank's group has more than 65536 operations");
}

/* Everyone who takes part in a group that is too large learns it, and what is left of it on its way here is not the next one. */
static int32_t refuse_group(sg_session *session, struct sg_calls *calls, const uint8_t *operations,
                            const struct sg_wire_communicator_submit *wire)
{
    for (uint32_t i = 0; i < calls->operation_count; i++)
        break_handle(session, calls->operations[i].communicator);
    for (uint32_t i = 0; i < wire->count; i++) {
        struct sg_operation operation;
        memcpy(&operation, operations + i * sizeof operation, sizeof operation);
        break_handle(session, operation.communicator);
    }
    calls->operation_count = 0;
    calls->too_many = wire->more != 0;
    return CUDA_ERROR_INVALID_VALUE;
}

SG_HANDLER(communicator_submit)
{
    struct sg_wire_communicator_submit wire;
    struct sg_calls *calls = sg_calls_of(session);
    (void)answer;
    SG_READ(wire);
    uint64_t bytes = (uint64_t)wire.count * sizeof(struct sg_operation);
    if (!calls)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (refusal(session) || bytes > request->bytes - sizeof wire)
        return CUDA_ERROR_INVALID_VALUE;
    if (calls->too_many || wire.count + (uint64_t)calls->operation_count > GROUP_MOST)
        return refuse_group(session, calls, request->payload + sizeof wire, &wire);
    /* only the session's leader runs this, so the group needs no lock */
    struct sg_operation *grown = realloc(calls->operations, (calls->operation_count + (size_t)wire.count + 1) * sizeof *grown);
    if (!grown)
        return CUDA_ERROR_OUT_OF_MEMORY;
    calls->operations = grown;
    memcpy(grown + calls->operation_count, request->payload + sizeof wire, bytes);
    calls->operation_count += wire.count;
    if (wire.more)
        return CUDA_SUCCESS;
    uint32_t count = calls->operation_count;
    int32_t error = count ? run_group(session, grown, count) : CUDA_SUCCESS;
    calls->operation_count = error == SG_HELD ? count - wire.count : 0; /* held: this message comes again, those before it do not */
    return error;
}

/* ---- parting ------------------------------------------------------------------------------------------------------------------ */
SG_HANDLER(communicator_end)
{
    struct sg_wire_communicator_end wire;
    char said[SG_SAID];
    (void)answer;
    SG_READ(wire);
    sg_member *member = sg_handle_get(session, SG_KIND_COMMUNICATOR, wire.handle);
    if (!member)
        return CUDA_ERROR_INVALID_HANDLE;
    int32_t lost = CUDA_SUCCESS; /* a context that has failed: the arrivals behind the fault never come */
    while (wire.how != SG_END_ABORT && sg_member_busy(member) && sg_member_error(member, said) == 0 && !(lost = sg_session_lost(session)))
        sg_member_await_idle(member);
    if (wire.how == SG_END_FINALIZE)
        return lost;
    if (!sg_handle_take(session, SG_KIND_COMMUNICATOR, wire.handle))
        return CUDA_ERROR_INVALID_HANDLE; /* another thread was faster */
    sg_log_destroy(session, wire.handle);
    sg_member_leave(member, wire.how == SG_END_ABORT || lost);
    return lost;
}

SG_HANDLER(communicator_error)
{
    struct sg_wire_handle wire;
    struct sg_reply_communicator_error reply = {0};
    char said[SG_SAID] = "";
    SG_READ(wire);
    sg_member *member = sg_handle_get(session, SG_KIND_COMMUNICATOR, wire.handle);
    if (!member)
        return CUDA_ERROR_INVALID_HANDLE;
    reply.result = sg_member_error(member, said);
    say(reply.said, sizeof reply.said, said);
    SG_REPLY(reply);
    return CUDA_SUCCESS;
}
