/* The library itself: the session that it uses, versions, ids, memory, and the words for what is wrong. */
#include "communicator.h"
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>
#include "../generated/calls.h"

/* ---- words -------------------------------------------------------------------------------------------- */
static __thread char own_error[256], shown[256];
static char any_error[256]; /* of the thread that failed last: watchdogs ask for the errors of others */
static pthread_mutex_t error_lock = PTHREAD_MUTEX_INITIALIZER;

ncclResult_t sg_fail(const char *call, ncclResult_t result, const char *format, ...)
{
    int at = snprintf(own_error, sizeof own_error, "%s: ", call);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(own_error + at, sizeof own_error - (size_t)at, format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&error_lock);
    memcpy(any_error, own_error, sizeof any_error);
    pthread_mutex_unlock(&error_lock);
    sg_group_spoil(result);
    return result;
}

const char *sg_last_error(void) { return own_error; }

static void say(const char *call, const char *reason, const char *remedy)
{
    char line[512];
    const char *rank = getenv("SINGULARITY_RANK");
    int length = snprintf(line, sizeof line, "singularity: rank %s: %s: %s: %s\n", rank ? rank : "0", call, reason, remedy);
    ssize_t written = write(2, line, (size_t)length < sizeof line ? (size_t)length : sizeof line - 1); /* lines do not mix */
    (void)written;
}

ncclResult_t sg_refuse(_Atomic int *said, const char *call, const char *reason, const char *remedy)
{
    if (!atomic_exchange(said, 1))
        say(call, reason, remedy);
    return sg_fail(call, ncclInvalidUsage, "%s: %s", reason, remedy);
}

const char *sg_ncclGetErrorString(ncclResult_t result)
{
    static const char *const texts[ncclNumResults] = {
        "no error", "a CUDA call failed (see ncclGetLastError)", "a system call or the device session failed (see ncclGetLastError)",
        "internal error (see ncclGetLastError)", "invalid argument (see ncclGetLastError)", "invalid usage (see ncclGetLastError)",
        "a remote process has ended or failed", "the operation is in progress", "the operation timed out"};
    return (unsigned)result < ncclNumResults ? texts[result] : "unknown result code";
}

const char *sg_ncclGetLastError(ncclComm_t comm)
{
    struct sg_comm *c = sg_comm_find(comm);
    pthread_mutex_lock(&sg_comm_lock);
    int failed = c && atomic_load(&c->state) != ncclSuccess && c->said[0];
    if (failed)
        snprintf(shown, sizeof shown, "%s", c->said);
    pthread_mutex_unlock(&sg_comm_lock);
    if (failed)
        return shown;
    if (own_error[0])
        return own_error;
    pthread_mutex_lock(&error_lock);
    memcpy(shown, any_error, sizeof shown);
    pthread_mutex_unlock(&error_lock);
    return shown;
}

/* ---- the session ---------------------------------------------------------------------------------------- */
static pthread_once_t finding = PTHREAD_ONCE_INIT;
static const struct sg_client_table *table;

static void find_table(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (!library)
        library = dlopen("libcuda.so.1", RTLD_NOW);
    sg_client_table_function get = NULL;
    if (library)
        *(void **)&get = dlsym(library, SG_CLIENT_TABLE);
    table = get ? get(SG_CALLS_HASH) : NULL;
    atomic_store(&sg_trace_on, table && *table->tracing);
}

_Atomic int sg_trace_on;

void sg_trace_call(const char *call, const char *names, const char *codes, const uint64_t *values, ncclResult_t result)
{
    static const char *const results[ncclNumResults] = {
        "ncclSuccess", "ncclUnhandledCudaError", "ncclSystemError", "ncclInternalError", "ncclInvalidArgument",
        "ncclInvalidUsage", "ncclRemoteError", "ncclInProgress", "ncclTimeout"};
    table->trace(call, names, codes, values, (int)result, (unsigned)result < ncclNumResults ? results[result] : NULL);
}

const struct sg_client_table *sg_session(void) { return table; }

ncclResult_t sg_session_enter(const char *call)
{
    pthread_once(&finding, find_table);
    if (table)
        return ncclSuccess;
    static const char reason[] = "libcuda.so.1 of this process is not the client of Singularity's device proxy",
                      remedy[] = "start the program with singularity-run, without --no-proxy, and without another libcuda.so.1 before it";
    say(call, reason, remedy);
    return sg_fail(call, ncclSystemError, "%s: %s", reason, remedy);
}

ncclResult_t sg_lost(const char *call) { return sg_fail(call, ncclSystemError, "the device session is gone: %s", table->lost(call)); }

ncclResult_t sg_cuda_failed(const char *call, int32_t error)
{
    const char *name = table->error_name(error);
    return sg_fail(call, ncclUnhandledCudaError, "%s (%d)", name ? name : "unknown CUDA error", (int)error);
}

ncclResult_t sg_session_alive(const char *call)
{
    int32_t error = table->enter();
    if (__builtin_expect(error == CUDA_SUCCESS, 1))
        return ncclSuccess;
    if (error == CUDA_ERROR_NOT_INITIALIZED || error == CUDA_ERROR_DEVICE_UNAVAILABLE || error == CUDA_ERROR_INVALID_CONTEXT)
        return sg_lost(call);
    return sg_cuda_failed(call, error);
}

ncclResult_t sg_send(const char *call, uint32_t op, uint64_t context, const void *wire, uint32_t bytes, void *reply, uint32_t reply_bytes)
{
    uint32_t got = 0;
    void *payload = table->begin(op, context, bytes);
    if (!payload)
        return sg_lost(call);
    memcpy(payload, wire, bytes);
    int32_t status = table->call(reply, reply_bytes, &got);
    if (status < 0)
        return sg_lost(call);
    if (status)
        return sg_cuda_failed(call, status);
    return got < reply_bytes ? sg_fail(call, ncclInternalError, "the device proxy's answer is too short") : ncclSuccess;
}

/* ---- what needs no communicator ----------------------------------------------------------------------------- */
#define ID_MAGIC "SG-NCCL1"

ncclResult_t sg_ncclGetVersion(int *version)
{
    if (!version)
        return sg_fail("ncclGetVersion", ncclInvalidArgument, "version is NULL");
    *version = SG_NCCL_VERSION;
    return ncclSuccess;
}

ncclResult_t sg_ncclGetUniqueId(ncclUniqueId *uniqueId)
{
    if (!uniqueId)
        return sg_fail("ncclGetUniqueId", ncclInvalidArgument, "uniqueId is NULL");
    memset(uniqueId, 0, sizeof *uniqueId);
    memcpy(uniqueId->internal, ID_MAGIC, 8);
    if (getrandom(uniqueId->internal + 8, 16, 0) != 16)
        return sg_fail("ncclGetUniqueId", ncclSystemError, "getrandom failed: %s", strerror(errno));
    return ncclSuccess;
}

ncclResult_t sg_unique_read(const char *call, const ncclUniqueId *id, uint8_t unique[16])
{
    if (memcmp(id->internal, ID_MAGIC, 8) != 0)
        return sg_fail(call, ncclInvalidArgument, "the unique id is not one of this library: all ranks must run under singularity-run and call ncclGetUniqueId");
    memcpy(unique, id->internal + 8, 16);
    return ncclSuccess;
}

void sg_ncclResetDebugInit(void) {}
void sg_ncclParamDumpAll(void) {}

/* ---- memory --------------------------------------------------------------------------------------------------- */
ncclResult_t sg_ncclMemAlloc(void **ptr, size_t size)
{
    uint64_t address = 0;
    if (!ptr)
        return sg_fail("ncclMemAlloc", ncclInvalidArgument, "ptr is NULL");
    *ptr = NULL;
    ncclResult_t result = sg_session_enter("ncclMemAlloc");
    if (result || size == 0)
        return result;
    int32_t error = table->memory_alloc(&address, size);
    if (error)
        return sg_cuda_failed("ncclMemAlloc", error);
    *ptr = (void *)(uintptr_t)address;
    return ncclSuccess;
}

ncclResult_t sg_ncclMemFree(void *ptr)
{
    ncclResult_t result = sg_session_enter("ncclMemFree");
    if (result || !ptr)
        return result;
    int32_t error = table->memory_free((uint64_t)(uintptr_t)ptr);
    return error ? sg_cuda_failed("ncclMemFree", error) : ncclSuccess;
}
