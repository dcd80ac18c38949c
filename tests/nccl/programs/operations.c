#include <pthread.h>
#include "cases.h"

enum { COUNT = 6 };

CASE(every_collective_is_one_message, "kind, buffers, count, type, operator, root and stream arrive as called; unused buffers as 0")
{
    cudaStream_t stream = (cudaStream_t)0x2000000000005;
    ncclComm_t comm = join(4, 1);
    void *a = DEVICE(0), *b = DEVICE(4096);
    OK(ncclAllReduce(a, b, COUNT, ncclFloat16, ncclMax, comm, stream));
    OK(ncclReduce(a, b, COUNT, ncclInt32, ncclProd, 1, comm, NULL));
    OK(ncclReduce(a, NULL, COUNT, ncclInt32, ncclProd, 2, comm, NULL));
    OK(ncclBroadcast(NULL, b, COUNT, ncclUint8, 3, comm, NULL));
    OK(ncclBcast(a, COUNT, ncclUint8, 1, comm, NULL));
    OK(ncclAllGather(a, b, COUNT, ncclBfloat16, comm, NULL));
    OK(ncclReduceScatter(a, b, COUNT, ncclFloat64, ncclAvg, comm, NULL));
    OK(ncclAlltoAll(a, b, COUNT, ncclInt64, comm, NULL));
    OK(ncclGather(a, NULL, COUNT, ncclUint64, 0, comm, NULL));
    OK(ncclScatter(NULL, b, COUNT, ncclUint32, 0, comm, NULL));
    OK(ncclSend(a, COUNT, ncclInt8, 2, comm, NULL));
    OK(ncclRecv(b, COUNT, ncclInt8, 3, comm, NULL));
    const struct { uint32_t kind, dtype, reduction, peer; void *send, *receive; } expected[] = {
        {SG_ALL_REDUCE, SG_F16, SG_MAX, 0, a, b}, {SG_REDUCE, SG_I32, SG_PROD, 1, a, b}, {SG_REDUCE, SG_I32, SG_PROD, 2, a, NULL},
        {SG_BROADCAST, SG_U8, 0, 3, NULL, b}, {SG_BROADCAST, SG_U8, 0, 1, a, a}, {SG_ALL_GATHER, SG_BF16, 0, 0, a, b},
        {SG_REDUCE_SCATTER, SG_F64, SG_AVG, 0, a, b}, {SG_ALL_TO_ALL, SG_I64, 0, 0, a, b}, {SG_GATHER, SG_U64, 0, 0, a, NULL},
        {SG_SCATTER, SG_U32, 0, 0, NULL, b}, {SG_SEND, SG_I8, 0, 2, a, NULL}, {SG_RECV, SG_I8, 0, 3, NULL, b}};
    for (int i = 0; i < 12; i++) {
        const struct message *m = fake_message(SG_OP_communicator_submit, i);
        const struct sg_operation *o = submitted(i, 0);
        CHECK(!m->waits && m->context == fake.context && submission(i)->count == 1 && !submission(i)->more);
        CHECK(o->kind == expected[i].kind && o->dtype == expected[i].dtype && o->reduction == expected[i].reduction && o->peer == expected[i].peer);
        CHECK(o->send == (uintptr_t)expected[i].send && o->receive == (uintptr_t)expected[i].receive && o->count == COUNT);
        CHECK(o->stream == (i ? 0 : (uintptr_t)stream) && o->communicator == submitted(0, 0)->communicator);
    }
}

CASE(calls_are_traced, "with the names of the parameters, what they hold, and the result by name")
{
    ncclComm_t comm = join(4, 1);
    OK(ncclSend(DEVICE(0), 3, ncclInt8, 2, comm, NULL));
    CHECK(strcmp(fake.traced, "ncclSend sendbuff,count,datatype,peer,comm,stream pziipp 200000000000 0 ncclSuccess") == 0);
    IS(ncclInvalidArgument, ncclSend(NULL, 3, ncclInt8, 2, comm, NULL));
    CHECK(strstr(fake.traced, " 0 4 ncclInvalidArgument"));
}

CASE(wrong_arguments_are_told, "each wrong argument is ncclInvalidArgument from the call, and nothing is sent")
{
    ncclComm_t comm = join(4, 1);
    void *a = DEVICE(0);
    IS(ncclInvalidArgument, ncclAllReduce(NULL, a, 1, ncclInt8, ncclSum, comm, NULL));
    IS(ncclInvalidArgument, ncclAllReduce(a, NULL, 1, ncclInt8, ncclSum, comm, NULL));
    IS(ncclInvalidArgument, ncclAllReduce(HOST, a, 1, ncclInt8, ncclSum, comm, NULL));
    IS(ncclInvalidArgument, ncclAllReduce(a, a, 1, ncclNumTypes, ncclSum, comm, NULL));
    IS(ncclInvalidArgument, ncclAllReduce(a, a, 1, (ncclDataType_t)-1, ncclSum, comm, NULL));
    IS(ncclInvalidArgument, ncclAllReduce(a, a, 1, ncclFloat8e4m3, ncclSum, comm, NULL));
    CHECK(strstr(ncclGetLastError(comm), "8-bit floating point"));
    IS(ncclInvalidArgument, ncclAllReduce(a, a, 1, ncclInt8, ncclNumOps, comm, NULL));
    IS(ncclInvalidArgument, ncclAllReduce(a, a, 1, ncclInt8, (ncclRedOp_t)-1, comm, NULL));
    IS(ncclInvalidArgument, ncclAllReduce(a, a, SIZE_MAX / 2, ncclInt64, ncclSum, comm, NULL));
    IS(ncclInvalidArgument, ncclAllGather(a, a, 1ull << 61, ncclInt32, comm, NULL));
    IS(ncclInvalidArgument, ncclBroadcast(a, a, 1, ncclInt8, 4, comm, NULL));
    IS(ncclInvalidArgument, ncclReduce(a, a, 1, ncclInt8, ncclSum, -1, comm, NULL));
    IS(ncclInvalidArgument, ncclSend(a, 1, ncclInt8, 4, comm, NULL));
    IS(ncclInvalidArgument, ncclRecv(a, 1, ncclInt8, -1, comm, NULL));
    IS(ncclInvalidArgument, ncclAllReduce(a, a, 1, ncclInt8, ncclSum, NULL, NULL));
    fake.stream = CUDA_ERROR_INVALID_HANDLE;
    IS(ncclUnhandledCudaError, ncclAllReduce(a, a, 1, ncclInt8, ncclSum, comm, (cudaStream_t)99));
    CHECK(fake_count(SG_OP_communicator_submit) == 0);
}

CASE(operations_at_the_wrong_time_are_told, "in a captured stream, after the context's end, alone to oneself: ncclInvalidUsage")
{
    ncclComm_t comm = join(4, 1);
    void *a = DEVICE(0);
    fake.captures = true;
    IS(ncclInvalidUsage, ncclAllReduce(a, a, 1, ncclInt8, ncclSum, comm, (cudaStream_t)99));
    CHECK(strstr(ncclGetLastError(comm), "captures a graph"));
    fake.captures = false;
    IS(ncclInvalidUsage, ncclSend(a, 1, ncclInt8, 1, comm, NULL));
    uint64_t before = fake.context;
    fake.context = 5;
    IS(ncclInvalidUsage, ncclAllReduce(a, a, 1, ncclInt8, ncclSum, comm, NULL));
    fake.context = before;
    CHECK(fake_count(SG_OP_communicator_submit) == 0);
}

CASE(no_elements_still_take_part, "a count of 0 needs no buffers and is sent: the ranks stay in step")
{
    ncclComm_t comm = join(4, 1);
    OK(ncclAllReduce(NULL, NULL, 0, ncclInt8, ncclSum, comm, NULL));
    OK(ncclSend(NULL, 0, ncclInt8, 2, comm, NULL));
    CHECK(submitted(0, 0)->count == 0 && submitted(1, 0)->kind == SG_SEND);
}

CASE(eight_bit_floats_are_moved, "they are bytes to whatever does not reduce")
{
    ncclComm_t comm = join(4, 1);
    OK(ncclAllGather(DEVICE(0), DEVICE(64), 5, ncclFloat8e5m2, comm, NULL));
    CHECK(submitted(0, 0)->dtype == SG_U8 && submitted(0, 0)->count == 5);
}

CASE(configs_of_calls_are_checked, "hints have no effect; what would change the result or cannot be done is refused")
{
    ncclComm_t comm = join(4, 1);
    void *a = DEVICE(0);
    ncclCollConfig_t config = {.size = sizeof config, .magic = SG_NCCL_MAGIC, .version = SG_NCCL_VERSION, .minCTAs = 4, .maxCTAs = INT_MIN,
                               .nvlsCTAs = INT_MIN, .cgaClusterSize = INT_MIN, .forceAlgSelection = 1, .CTAPolicy = INT_MIN};
    OK(ncclAllReduceConfig(a, a, 1, ncclInt8, ncclSum, comm, NULL, &config));
    OK(ncclAllReduceConfig(a, a, 1, ncclInt8, ncclSum, comm, NULL, NULL));
    config.algSelection = "ring";
    IS(ncclInvalidUsage, ncclGatherConfig(a, a, 1, ncclInt8, 0, comm, NULL, &config));
    config.forceAlgSelection = 0;
    OK(ncclGatherConfig(a, a, 1, ncclInt8, 0, comm, NULL, &config));
    config.launchCompletionEvent = (cudaEvent_t)7;
    IS(ncclInvalidUsage, ncclGatherConfig(a, a, 1, ncclInt8, 0, comm, NULL, &config));
    config.magic = 0;
    IS(ncclInvalidArgument, ncclGatherConfig(a, a, 1, ncclInt8, 0, comm, NULL, &config));
    CHECK(fake_count(SG_OP_communicator_submit) == 3);
}

CASE(operators_belong_to_a_communicator_and_a_type, "a factor travels in the operation, from the host or the device; other communicators and types do not know it")
{
    ncclComm_t comm = join(4, 1), other = join(4, 1);
    ncclRedOp_t half, device, third;
    float factor = 0.5f;
    uint32_t bits;
    memcpy(&bits, &factor, sizeof bits);
    OK(ncclRedOpCreatePreMulSum(&half, &factor, ncclFloat32, ncclScalarHostImmediate, comm));
    factor = 3;
    OK(ncclRedOpCreatePreMulSum(&device, DEVICE(0x42), ncclInt64, ncclScalarDevice, comm));
    OK(ncclAllReduce(DEVICE(0), DEVICE(0), 1, ncclFloat32, half, comm, NULL));
    OK(ncclAllReduce(DEVICE(0), DEVICE(0), 1, ncclInt64, device, comm, NULL));
    CHECK(submitted(0, 0)->reduction == SG_PREMUL_SUM && submitted(0, 0)->scalar == bits);
    CHECK(submitted(1, 0)->reduction == SG_PREMUL_SUM && submitted(1, 0)->scalar == 0x4242424242424242ull);
    IS(ncclInvalidArgument, ncclAllReduce(DEVICE(0), DEVICE(0), 1, ncclFloat64, half, comm, NULL));
    IS(ncclInvalidArgument, ncclAllReduce(DEVICE(0), DEVICE(0), 1, ncclFloat32, half, other, NULL));
    IS(ncclInvalidArgument, ncclRedOpDestroy(half, other));
    IS(ncclInvalidArgument, ncclRedOpDestroy(ncclSum, comm));
    OK(ncclRedOpDestroy(half, comm));
    IS(ncclInvalidArgument, ncclRedOpDestroy(half, comm));
    IS(ncclInvalidArgument, ncclAllReduce(DEVICE(0), DEVICE(0), 1, ncclFloat32, half, comm, NULL));
    IS(ncclInvalidArgument, ncclRedOpCreatePreMulSum(&third, &factor, ncclFloat8e4m3, ncclScalarHostImmediate, comm));
    IS(ncclInvalidArgument, ncclRedOpCreatePreMulSum(&third, NULL, ncclFloat32, ncclScalarHostImmediate, comm));
    for (int i = 0; i < 20; i++)
        OK(ncclRedOpCreatePreMulSum(&third, &factor, ncclFloat32, ncclScalarHostImmediate, comm));
    CHECK((int)third == ncclNumOps + 20);
}

/* ---- groups ------------------------------------------------------------------------------------------------ */
CASE(a_group_is_one_message, "nested, over several communicators and streams, in the order of the calls; nothing is sent before its end")
{
    ncclComm_t one = join(4, 1), two = join(2, 0);
    OK(ncclGroupStart());
    OK(ncclSend(DEVICE(0), 1, ncclInt8, 2, one, NULL));
    OK(ncclGroupStart());
    OK(ncclRecv(DEVICE(8), 1, ncclInt8, 3, one, (cudaStream_t)1));
    OK(ncclAllReduce(DEVICE(0), DEVICE(8), 3, ncclInt8, ncclSum, two, NULL));
    OK(ncclGroupEnd());
    CHECK(fake_count(SG_OP_communicator_submit) == 0);
    OK(ncclGroupEnd());
    CHECK(fake_count(SG_OP_communicator_submit) == 1 && submission(0)->count == 3);
    CHECK(submitted(0, 0)->kind == SG_SEND && submitted(0, 1)->kind == SG_RECV && submitted(0, 2)->kind == SG_ALL_REDUCE);
    CHECK(submitted(0, 0)->communicator == submitted(0, 1)->communicator && submitted(0, 1)->communicator != submitted(0, 2)->communicator);
    CHECK(submitted(0, 1)->stream == 1);
    IS(ncclInvalidUsage, ncclGroupEnd());
    OK(ncclGroupStart());
    OK(ncclGroupEnd());
    CHECK(fake_count(SG_OP_communicator_submit) == 1);
}

CASE(a_long_group_comes_in_several_messages, "all but the last say that more follows; order and content are kept")
{
    enum { TOTAL = 2500 };
    ncclComm_t comm = join(4, 1);
    OK(ncclGroupStart());
    for (int i = 0; i < TOTAL; i++)
        OK(ncclSend(DEVICE((uint64_t)i), 1, ncclInt8, 2, comm, NULL));
    OK(ncclGroupEnd());
    uint64_t seen = 0;
    for (int n = 0; n < fake_count(SG_OP_communicator_submit); n++) {
        const struct message *m = fake_message(SG_OP_communicator_submit, n);
        CHECK(submission(n)->more == (seen + submission(n)->count < TOTAL));
        CHECK(m->bytes == sizeof(struct sg_wire_communicator_submit) + submission(n)->count * sizeof(struct sg_operation));
        for (uint32_t i = 0; i < submission(n)->count; i++, seen++)
            CHECK(submitted(n, i)->send == (uintptr_t)DEVICE(seen));
    }
    CHECK(seen == TOTAL);
}

static void *send_many(void *argument)
{
    uint64_t base = (uint64_t)(uintptr_t)argument << 32;
    ncclComm_t comm = join(4, 1);
    for (int round = 0; round < 5; round++) {
        OK(ncclGroupStart());
        for (uint64_t i = 0; i < 1500; i++)
            OK(ncclSend(DEVICE(base + i), 1, ncclInt8, 2, comm, NULL));
        OK(ncclGroupEnd());
    }
    return NULL;
}

CASE(groups_of_threads_do_not_mix, "the parts of a long group follow each other, whatever other threads submit")
{
    pthread_t threads[3];
    uint64_t communicator = 0;
    for (uintptr_t i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, send_many, (void *)i) == 0);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    CHECK(fake_count(SG_OP_communicator_submit) == 30);
    for (int n = 0; n < 30; n++) {
        for (uint32_t i = 0; i < submission(n)->count; i++)
            CHECK(n % 2 == 0 || submitted(n, i)->communicator == communicator);
        communicator = submitted(n, 0)->communicator;
        CHECK(submission(n)->more == (n % 2 == 0));
    }
}

CASE(a_wrong_call_spoils_its_group, "the call says what is wrong, the group's end again, and nothing of the group is sent; the next group is sound")
{
    ncclComm_t comm = join(4, 1);
    OK(ncclGroupStart());
    OK(ncclSend(DEVICE(0), 1, ncclInt8, 2, comm, NULL));
    IS(ncclInvalidArgument, ncclSend(DEVICE(0), 1, ncclInt8, 9, comm, NULL));
    OK(ncclSend(DEVICE(0), 1, ncclInt8, 3, comm, NULL));
    IS(ncclInvalidArgument, ncclGroupEnd());
    CHECK(fake_count(SG_OP_communicator_submit) == 0);
    OK(ncclGroupStart());
    OK(ncclSend(DEVICE(0), 1, ncclInt8, 2, comm, NULL));
    OK(ncclGroupEnd());
    CHECK(submission(0)->count == 1);
}

CASE(a_send_to_oneself_needs_its_receive, "in one group both are fine; a lone one is ncclInvalidUsage")
{
    ncclComm_t comm = join(4, 1), other = join(4, 1);
    OK(ncclGroupStart());
    OK(ncclSend(DEVICE(0), 1, ncclInt8, 1, comm, NULL));
    OK(ncclRecv(DEVICE(8), 1, ncclInt8, 1, comm, NULL));
    OK(ncclGroupEnd());
    OK(ncclGroupStart());
    OK(ncclSend(DEVICE(0), 1, ncclInt8, 1, comm, NULL));
    OK(ncclRecv(DEVICE(8), 1, ncclInt8, 1, other, NULL));
    IS(ncclInvalidUsage, ncclGroupEnd());
    CHECK(fake_count(SG_OP_communicator_submit) == 1);
}

static void *release_after_three(void *unused)
{
    (void)unused;
    (void)fake_message(SG_OP_communicator_join, 2);
    fake_release();
    return NULL;
}

CASE(creations_of_a_group_run_side_by_side, "ranks may list them in any order: none waits for another; all are usable after the end")
{
    ncclUniqueId id[3];
    ncclComm_t comms[3];
    int number;
    fake.hold_joins = true; /* until all three are there */
    OK(ncclGroupStart());
    for (int i = 0; i < 3; i++) {
        OK(ncclGetUniqueId(&id[i]));
        OK(ncclCommInitRank(&comms[i], 2, id[i], 0));
    }
    CHECK(fake_count(SG_OP_communicator_join) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, release_after_three, NULL) == 0);
    OK(ncclGroupEnd());
    pthread_join(thread, NULL);
    for (int i = 0; i < 3; i++) {
        OK(ncclCommCount(comms[i], &number));
        OK(ncclCommDestroy(comms[i]));
    }
}

CASE(splits_of_one_parent_keep_their_order, "so that the ranks match them; those of another parent do not wait")
{
    ncclComm_t comm = join(4, 0), children[5];
    OK(ncclGroupStart());
    for (int i = 0; i < 5; i++)
        OK(ncclCommSplit(comm, i, 0, &children[i], NULL));
    OK(ncclGroupEnd());
    for (int i = 0; i < 5; i++) {
        const struct sg_wire_communicator_split *wire = (const void *)fake_message(SG_OP_communicator_split, i)->payload;
        CHECK(wire->color == i);
        OK(ncclCommDestroy(children[i]));
    }
}

CASE(creations_and_operations_do_not_share_a_group, "ncclInvalidUsage from the end; the creations are undone and nothing is sent")
{
    ncclUniqueId id;
    ncclComm_t comm = join(4, 1), made;
    OK(ncclGetUniqueId(&id));
    OK(ncclGroupStart());
    OK(ncclCommInitRank(&made, 2, id, 0));
    OK(ncclSend(DEVICE(0), 1, ncclInt8, 2, comm, NULL));
    IS(ncclInvalidUsage, ncclGroupEnd());
    CHECK(made == NULL && fake_count(SG_OP_communicator_join) == 1 && fake_count(SG_OP_communicator_submit) == 0);
}

CASE(ends_in_a_group_come_after_its_operations, "destroy in a group ends the communicator for the program at once, and in the proxy after what came before")
{
    ncclComm_t comm = join(4, 1);
    OK(ncclGroupStart());
    OK(ncclSend(DEVICE(0), 1, ncclInt8, 2, comm, NULL));
    OK(ncclCommDestroy(comm));
    CHECK(fake_count(SG_OP_communicator_end) == 0);
    OK(ncclGroupEnd());
    CHECK(fake_count(SG_OP_communicator_submit) == 1 && fake_count(SG_OP_communicator_end) == 1);
    IS(ncclInvalidArgument, ncclCommDestroy(comm));
}

CASE(a_simulated_end_is_refused_and_ends_the_group, "nothing of the group is sent, and no group is open after it")
{
    ncclSimInfo_t info;
    ncclComm_t comm = join(4, 1);
    OK(ncclGroupStart());
    OK(ncclSend(DEVICE(0), 1, ncclInt8, 2, comm, NULL));
    IS(ncclInvalidUsage, ncclGroupSimulateEnd(&info));
    IS(ncclInvalidUsage, ncclGroupEnd());
    CHECK(fake_count(SG_OP_communicator_submit) == 0);
}
