#include "fake.h"
#include <pthread.h>
#include "interposers/client/table.h"

#define PUBLIC __attribute__((visibility("default")))
#define MOST 4096

PUBLIC struct fake fake = {.context = 0x1000100000001ull, .split_ranks = 2};
static struct message *messages[MOST], *open_message;
static int count;
static uint64_t next_handle = 0x1000;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER, ring = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static struct message *nth(uint32_t op, int n)
{
    for (int i = 0; i < count; i++)
        if (messages[i]->op == op && n-- == 0)
            return messages[i];
    return NULL;
}

PUBLIC int fake_count(uint32_t op)
{
    int found = 0;
    pthread_mutex_lock(&lock);
    while (nth(op, found))
        found++;
    pthread_mutex_unlock(&lock);
    return found;
}

PUBLIC const struct message *fake_message(uint32_t op, int n)
{
    struct message *found;
    pthread_mutex_lock(&lock);
    while (!(found = nth(op, n)))
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return found;
}

PUBLIC void fake_release(void)
{
    pthread_mutex_lock(&lock);
    fake.hold_joins = false;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static int32_t context(uint64_t *context, int *ordinal)
{
    *context = fake.context;
    *ordinal = 0;
    return fake.enter;
}
static int context_known(uint64_t context) { return context == fake.context; }
static int32_t enter(void) { return fake.enter; }
static int32_t stream(void *stream, uint64_t *wire)
{
    *wire = (uint64_t)(uintptr_t)stream;
    return fake.stream;
}
static int captures(uint64_t stream) { return stream != 0 && fake.captures; }

static void *begin(uint32_t op, uint64_t context, uint32_t bytes)
{
    if (fake.dead)
        return NULL;
    pthread_mutex_lock(&ring);
    open_message = calloc(1, sizeof *open_message + bytes);
    open_message->op = op;
    open_message->context = context;
    open_message->bytes = bytes;
    return open_message->payload;
}

static struct message *publish(bool waits)
{
    struct message *message = open_message;
    message->waits = waits;
    pthread_mutex_lock(&lock);
    messages[count++] = message;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    pthread_mutex_unlock(&ring);
    return message;
}

static void post(void) { (void)publish(false); }

static int32_t call(void *reply, uint32_t capacity, uint32_t *got)
{
    struct message *message = publish(true);
    struct sg_reply_communicator_join join = {0};
    struct sg_reply_communicator_split split = {0};
    struct sg_reply_communicator_error error = {0};
    const void *answer = NULL;
    pthread_mutex_lock(&lock);
    if (message->op == SG_OP_communicator_join) {
        while (fake.hold_joins)
            pthread_cond_wait(&changed, &lock);
        join.handle = ++next_handle;
        join.result = fake.join_result;
        snprintf(join.said, sizeof join.said, "%s", join.result ? "no room" : "");
        answer = &join;
    } else if (message->op == SG_OP_communicator_split) {
        split = (struct sg_reply_communicator_split){.handle = ++next_handle, .ranks = fake.split_ranks, .rank = fake.split_rank, .result = fake.split_result};
        answer = &split;
    } else if (message->op == SG_OP_communicator_error) {
        error.result = fake.error_result;
        snprintf(error.said, sizeof error.said, "%s", error.result ? "rank 1 has ended" : "");
        answer = &error;
    }
    pthread_mutex_unlock(&lock);
    if (answer)
        memcpy(reply, answer, capacity);
    if (got)
        *got = capacity;
    return fake.call_status;
}

static const char *lost(const char *call)
{
    (void)call;
    return "the proxy ended";
}
static int reachable(uint64_t address) { return address >= 0x200000000000ull; }
static int32_t memory_alloc(uint64_t *address, uint64_t bytes)
{
    *address = bytes < 1u << 30 ? 0x200000000000ull : 0;
    return *address ? 0 : 2;
}
static int32_t memory_free(uint64_t address) { return address == 0x200000000000ull ? 0 : 1; }
static int32_t read_device(void *to, uint64_t address, uint64_t bytes, void *stream)
{
    (void)stream;
    memset(to, (int)(address & 0xff), bytes);
    return 0;
}
static const char *error_name(int32_t error) { return error == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR"; }

static const int tracing = 1;
static void trace(const char *call, const char *names, const char *codes, const uint64_t *values, int result, const char *result_name)
{
    pthread_mutex_lock(&lock);
    snprintf(fake.traced, sizeof fake.traced, "%s %s %s %llx %d %s", call, names, codes, (unsigned long long)values[0], result, result_name);
    pthread_mutex_unlock(&lock);
}

static const struct sg_client_table table = {context, context_known, enter, stream, captures, begin, post, call, lost, reachable,
                                             memory_alloc, memory_free, read_device, error_name, &tracing, trace};

PUBLIC const struct sg_client_table *singularity_client_table(uint64_t hash);
PUBLIC const struct sg_client_table *singularity_client_table(uint64_t hash) { return hash == SG_CALLS_HASH ? &table : NULL; }
