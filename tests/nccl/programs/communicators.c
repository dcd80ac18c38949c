#include <pthread.h>
#include "cases.h"

ncclResult_t pncclCommDestroy(ncclComm_t comm); /* the profiling alias */

CASE(joining_sends_the_id_and_gives_a_communicator, "every rank's join carries the key of the unique id, and the answer is a usable communicator")
{
    ncclUniqueId id, other;
    ncclComm_t comm;
    int number;
    OK(ncclGetUniqueId(&id));
    OK(ncclGetUniqueId(&other));
    CHECK(memcmp(&id, &other, sizeof id) != 0);
    OK(ncclCommInitRank(&comm, 4, id, 3));
    const struct message *m = fake_message(SG_OP_communicator_join, 0);
    const struct sg_wire_communicator_join *wire = (const void *)m->payload;
    CHECK(m->waits && m->context == fake.context && wire->ranks == 4 && wire->rank == 3);
    CHECK(memcmp(wire->key, id.internal + 8, sizeof wire->key) == 0);
    OK(ncclCommCount(comm, &number));
    CHECK(number == 4);
    OK(ncclCommUserRank(comm, &number));
    CHECK(number == 3);
    OK(ncclCommCuDevice(comm, &number));
    CHECK(number == 0);
    OK(pncclCommDestroy(comm));
}

CASE(wrong_arguments_of_creations_are_told, "NULL, impossible ranks, foreign ids and configs that were not initialised are ncclInvalidArgument; nothing is sent")
{
    ncclUniqueId id, foreign = {"another library's"};
    ncclComm_t comm = (ncclComm_t)1;
    ncclConfig_t config = CONFIG_UNSET;
    OK(ncclGetUniqueId(&id));
    IS(ncclInvalidArgument, ncclGetUniqueId(NULL));
    IS(ncclInvalidArgument, ncclGetVersion(NULL));
    IS(ncclInvalidArgument, ncclCommInitRank(NULL, 2, id, 0));
    IS(ncclInvalidArgument, ncclCommInitRank(&comm, 0, id, 0));
    IS(ncclInvalidArgument, ncclCommInitRank(&comm, 2, id, 2));
    IS(ncclInvalidArgument, ncclCommInitRank(&comm, 2, id, -1));
    IS(ncclInvalidArgument, ncclCommInitRank(&comm, 2, foreign, 0));
    CHECK(comm == NULL);
    IS(ncclInvalidArgument, ncclCommInitRankScalable(&comm, 2, 0, 0, &id, NULL));
    IS(ncclInvalidArgument, ncclCommInitAll(&comm, 0, NULL));
    IS(ncclInvalidUsage, ncclCommInitAll(&comm, 2, NULL));
    config.magic = 0;
    IS(ncclInvalidArgument, ncclCommInitRankConfig(&comm, 1, id, 0, &config));
    config = (ncclConfig_t)CONFIG_UNSET;
    config.blocking = 2;
    IS(ncclInvalidArgument, ncclCommInitRankConfig(&comm, 1, id, 0, &config));
    config = (ncclConfig_t)CONFIG_UNSET;
    config.minCTAs = 8;
    config.maxCTAs = 4;
    IS(ncclInvalidArgument, ncclCommInitRankConfig(&comm, 1, id, 0, &config));
    CHECK(fake_count(SG_OP_communicator_join) == 0);
    config.minCTAs = 4;
    config.size = offsetof(ncclConfig_t, commName); /* of a program that was built with an older header */
    OK(ncclCommInitRankConfig(&comm, 1, id, 0, &config));
    OK(ncclCommDestroy(comm));
}

CASE(a_refused_join_gives_its_code_and_words, "what the proxy answers is the result; the program's variable is NULL")
{
    ncclUniqueId id;
    ncclComm_t comm = (ncclComm_t)1;
    OK(ncclGetUniqueId(&id));
    fake.join_result = ncclInvalidUsage;
    IS(ncclInvalidUsage, ncclCommInitRank(&comm, 2, id, 0));
    CHECK(comm == NULL && strstr(ncclGetLastError(NULL), "ncclCommInitRank: no room"));
    fake.join_result = 1000; /* an untrue answer */
    IS(ncclInternalError, ncclCommInitRank(&comm, 2, id, 0));
    fake.join_result = 0;
    fake.call_status = 700;
    IS(ncclUnhandledCudaError, ncclCommInitRank(&comm, 2, id, 0));
    CHECK(strstr(ncclGetLastError(NULL), "CUDA_ERROR_ILLEGAL_ADDRESS"));
}

CASE(a_dead_session_is_a_system_error, "every kind of call fails with ncclSystemError and says so; a communicator can still be dropped")
{
    ncclResult_t state;
    ncclComm_t comm = join(2, 0), other;
    ncclUniqueId id;
    OK(ncclGetUniqueId(&id));
    fake.dead = true;
    fake.enter = CUDA_ERROR_DEVICE_UNAVAILABLE;
    IS(ncclSystemError, ncclCommInitRank(&other, 2, id, 0));
    IS(ncclSystemError, ncclAllReduce(DEVICE(0), DEVICE(0), 1, ncclInt8, ncclSum, comm, NULL));
    CHECK(strstr(ncclGetLastError(NULL), "the proxy ended"));
    OK(ncclCommGetAsyncError(comm, &state));
    CHECK(state == ncclSystemError);
    IS(ncclSystemError, ncclCommSplit(comm, 0, 0, &other, NULL));
    IS(ncclSystemError, ncclCommAbort(comm));
    IS(ncclInvalidArgument, ncclCommAbort(comm));
}

CASE(a_communicator_that_has_ended_is_known, "after destroy and abort all calls give ncclInvalidArgument, also when the slot serves another communicator")
{
    int number;
    void *handle;
    ncclComm_t first = join(2, 0), second;
    OK(ncclCommDestroy(first));
    second = join(2, 1);
    CHECK(first != second);
    IS(ncclInvalidArgument, ncclCommCount(first, &number));
    IS(ncclInvalidArgument, ncclCommDestroy(first));
    IS(ncclInvalidArgument, ncclAllReduce(DEVICE(0), DEVICE(0), 1, ncclInt8, ncclSum, first, NULL));
    IS(ncclInvalidArgument, ncclCommRegister(first, DEVICE(0), 1, &handle));
    IS(ncclInvalidArgument, ncclCommCount(NULL, &number));
    IS(ncclInvalidArgument, ncclCommCount((ncclComm_t)0x7f0012345678, &number));
    OK(ncclCommDestroy(NULL));
    OK(ncclCommAbort(second));
    IS(ncclInvalidArgument, ncclCommUserRank(second, &number));
    const struct sg_wire_communicator_end *how = (const void *)fake_message(SG_OP_communicator_end, 1)->payload;
    CHECK(how->how == SG_END_ABORT);
}

CASE(finalizing_ends_operations, "after finalize operations and a second finalize are refused; destroy is what is left")
{
    ncclComm_t comm = join(2, 0), child;
    OK(ncclCommFinalize(comm));
    IS(ncclInvalidArgument, ncclCommFinalize(comm));
    IS(ncclInvalidArgument, ncclAllReduce(DEVICE(0), DEVICE(0), 1, ncclInt8, ncclSum, comm, NULL));
    IS(ncclInvalidArgument, ncclCommSplit(comm, 0, 0, &child, NULL));
    OK(ncclCommDestroy(comm));
    const struct sg_wire_communicator_end *first = (const void *)fake_message(SG_OP_communicator_end, 0)->payload;
    const struct sg_wire_communicator_end *second = (const void *)fake_message(SG_OP_communicator_end, 1)->payload;
    CHECK(first->how == SG_END_FINALIZE && second->how == SG_END_DESTROY && first->handle == second->handle);
}

CASE(splitting_asks_the_proxy, "a split sends color and key; without a color the result is NULL; other negative colors are wrong")
{
    int number;
    ncclComm_t comm = join(4, 0), child;
    fake.split_ranks = 2;
    fake.split_rank = 1;
    OK(ncclCommSplit(comm, 7, -3, &child, NULL));
    const struct sg_wire_communicator_split *wire = (const void *)fake_message(SG_OP_communicator_split, 0)->payload;
    CHECK(wire->color == 7 && wire->key == -3);
    OK(ncclCommCount(child, &number));
    CHECK(number == 2);
    OK(ncclCommUserRank(child, &number));
    CHECK(number == 1);
    OK(ncclCommSplit(comm, -1, 0, &child, NULL));
    CHECK(child == NULL);
    IS(ncclInvalidArgument, ncclCommSplit(comm, -2, 0, &child, NULL));
    IS(ncclInvalidArgument, ncclCommSplit(comm, 0, 0, NULL, NULL));
    fake.split_result = ncclInvalidUsage;
    IS(ncclInvalidUsage, ncclCommSplit(comm, 0, 0, &child, NULL));
    CHECK(child == NULL);
    OK(ncclCommCount(comm, &number)); /* the parent is as before */
}

CASE(a_join_that_does_not_block_is_in_progress, "until the ranks have joined the communicator is ncclInProgress, for questions as for operations")
{
    int number;
    fake.hold_joins = true;
    ncclResult_t state;
    ncclComm_t comm = join_without_waiting(2, 0);
    OK(ncclCommGetAsyncError(comm, &state));
    CHECK(state == ncclInProgress);
    IS(ncclInvalidArgument, ncclCommCount(comm, &number));
    IS(ncclInvalidArgument, ncclCommDestroy(comm));
    CHECK(strstr(ncclGetLastError(NULL), "in progress"));
    fake_release();
    CHECK(poll_until_settled(comm) == ncclSuccess);
    OK(ncclCommCount(comm, &number));
    ncclComm_t child;
    IS(ncclInProgress, ncclCommSplit(comm, 0, 0, &child, NULL));
    CHECK(poll_until_settled(comm) == ncclSuccess);
    OK(ncclCommCount(child, &number)); /* parent and child settle together */
    IS(ncclInProgress, ncclCommFinalize(comm));
    CHECK(poll_until_settled(comm) == ncclSuccess);
    OK(ncclCommDestroy(comm));
    OK(ncclCommDestroy(child));
}

CASE(a_failed_join_that_did_not_block_is_told_later, "its error is the asynchronous one, with the proxy's words; it can be aborted")
{
    fake.join_result = ncclRemoteError;
    ncclComm_t comm = join_without_waiting(2, 0);
    int number;
    CHECK(poll_until_settled(comm) == ncclRemoteError);
    CHECK(strstr(ncclGetLastError(comm), "no room"));
    IS(ncclRemoteError, ncclCommCount(comm, &number));
    OK(ncclCommAbort(comm));
}

CASE(aborting_a_join_ends_it_when_it_is_through, "abort returns at once, and the proxy's communicator is aborted as soon as there is one")
{
    fake.hold_joins = true;
    ncclComm_t comm = join_without_waiting(2, 0);
    OK(ncclCommAbort(comm));
    IS(ncclInvalidArgument, ncclCommAbort(comm));
    CHECK(fake_count(SG_OP_communicator_end) == 0);
    fake_release();
    const struct sg_wire_communicator_end *how = (const void *)fake_message(SG_OP_communicator_end, 0)->payload;
    CHECK(how->how == SG_END_ABORT && how->handle > 0x1000);
}

CASE(asynchronous_errors_are_told_and_stay, "what the proxy reports is the communicator's error from then on")
{
    ncclResult_t state;
    ncclComm_t comm = join(2, 0);
    OK(ncclCommGetAsyncError(comm, &state));
    CHECK(state == ncclSuccess);
    IS(ncclInvalidArgument, ncclCommGetAsyncError(comm, NULL));
    fake.error_result = ncclRemoteError;
    OK(ncclCommGetAsyncError(comm, &state));
    CHECK(state == ncclRemoteError && strstr(ncclGetLastError(comm), "rank 1 has ended"));
    IS(ncclRemoteError, ncclAllReduce(DEVICE(0), DEVICE(0), 1, ncclInt8, ncclSum, comm, NULL));
    fake.error_result = 0;
    OK(ncclCommGetAsyncError(comm, &state));
    CHECK(state == ncclRemoteError);
    OK(ncclCommDestroy(comm)); /* as an abort: what failed cannot be flushed */
    const struct sg_wire_communicator_end *how = (const void *)fake_message(SG_OP_communicator_end, 0)->payload;
    CHECK(how->how == SG_END_ABORT);
}

CASE(a_device_fault_is_a_cuda_error, "a sticky error of the session is ncclUnhandledCudaError for all calls")
{
    ncclResult_t state;
    ncclComm_t comm = join(2, 0);
    fake.enter = CUDA_ERROR_ILLEGAL_ADDRESS;
    IS(ncclUnhandledCudaError, ncclAllReduce(DEVICE(0), DEVICE(0), 1, ncclInt8, ncclSum, comm, NULL));
    OK(ncclCommGetAsyncError(comm, &state));
    CHECK(state == ncclUnhandledCudaError);
    fake.error_result = ncclRemoteError; /* what the communicator knows says more */
    IS(ncclRemoteError, ncclAllReduce(DEVICE(0), DEVICE(0), 1, ncclInt8, ncclSum, comm, NULL));
    CHECK(strstr(ncclGetLastError(comm), "rank 1 has ended"));
}

CASE(registrations_are_counted, "a handle that was not given out, or was given back, is ncclInvalidArgument")
{
    void *first, *second;
    ncclComm_t comm = join(2, 0);
    OK(ncclCommRegister(comm, DEVICE(0), 8, &first));
    OK(ncclCommRegister(comm, DEVICE(8), 8, &second));
    IS(ncclInvalidArgument, ncclCommRegister(comm, DEVICE(0), 8, NULL));
    OK(ncclCommDeregister(comm, first));
    IS(ncclInvalidArgument, ncclCommDeregister(comm, first));
    IS(ncclInvalidArgument, ncclCommDeregister(comm, comm));
    OK(ncclCommDestroy(comm)); /* takes the second with it */
}

CASE(memory_is_the_drivers, "ncclMemAlloc and ncclMemFree are cuMemAlloc and cuMemFree, with NCCL's codes")
{
    void *at = HOST;
    OK(ncclMemAlloc(&at, 0));
    CHECK(at == NULL);
    OK(ncclMemFree(at));
    OK(ncclMemAlloc(&at, 100));
    CHECK(at == DEVICE(0));
    OK(ncclMemFree(at));
    IS(ncclUnhandledCudaError, ncclMemAlloc(&at, 1ull << 40));
    CHECK(at == NULL);
    IS(ncclUnhandledCudaError, ncclMemFree(DEVICE(4096)));
    IS(ncclInvalidArgument, ncclMemAlloc(NULL, 100));
}

CASE(refused_functions_say_why, "ncclInvalidUsage, with the remedy in the last error")
{
    ncclComm_t comm = join(2, 0), other;
    IS(ncclInvalidUsage, ncclCommShrink(comm, NULL, 0, &other, NULL, 0));
    CHECK(strstr(ncclGetLastError(comm), "use ncclCommAbort"));
    IS(ncclInvalidUsage, ncclCommShrink(comm, NULL, 0, &other, NULL, 0));
    IS(ncclInvalidUsage, ncclSignal(0, 0, 0, 0, comm, NULL));
    CHECK(strcmp(ncclGetErrorString(ncclInvalidUsage), ncclGetErrorString((ncclResult_t)99)) != 0);
}

static void *destroy(void *comm)
{
    for (int i = 0; i < 200; i++) {
        ncclComm_t own = join(2, 0);
        OK(ncclAllReduce(DEVICE(0), DEVICE(0), 1, ncclInt8, ncclSum, own, NULL));
        (void)ncclAllReduce(DEVICE(0), DEVICE(0), 1, ncclInt8, ncclSum, comm, NULL);
        OK(ncclCommDestroy(own));
    }
    return NULL;
}

CASE(threads_make_use_and_end_communicators, "many at once, also of one that another thread ends meanwhile")
{
    pthread_t threads[4];
    ncclComm_t comm = join(2, 0);
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&threads[i], NULL, destroy, comm) == 0);
    OK(ncclCommDestroy(comm));
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
}
