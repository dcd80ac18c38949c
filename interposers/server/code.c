/* Modules, libraries, functions, launches on the proxy's side. */
#include "handlers.h"
#include <elf.h>

/* ---- images ---------------------------------------------------------------------------------------------- */
static int32_t chunk_stage(void *argument, uint64_t offset, void *chunk, uint32_t bytes)
{
    struct sg_stage *stage = argument;
    memcpy(stage->data + offset, chunk, bytes);
    return CUDA_SUCCESS;
}

/* Keeps a large image until the load that names it. */
SG_HANDLER(module_stage)
{
    struct sg_wire_module_load wire;
    (void)answer;
    SG_READ(wire);
    struct sg_calls *calls = sg_calls_of(session);
    if (!wire.bytes || wire.bytes > (1ull << 32))
        return CUDA_ERROR_INVALID_IMAGE;
    struct sg_stage *stage = calls ? malloc(sizeof *stage + wire.bytes) : NULL;
    if (!stage)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *stage = (struct sg_stage){.id = wire.stage, .bytes = wire.bytes};
    int32_t error = sg_bulk_receive(session, wire.bytes, chunk_stage, stage);
    if (error) {
        free(stage);
        return error;
    }
    pthread_mutex_lock(&calls->lock);
    stage->next = calls->stages;
    calls->stages = stage;
    pthread_mutex_unlock(&calls->lock);
    return CUDA_SUCCESS;
}

static struct sg_stage *take_stage(sg_session *session, uint64_t id)
{
    struct sg_calls *calls = sg_calls_of(session);
    struct sg_stage *found = NULL;
    if (!calls)
        return NULL;
    pthread_mutex_lock(&calls->lock);
    for (struct sg_stage **at = &calls->stages; *at && !found;) {
        if ((*at)->id == id) {
            found = *at;
            *at = found->next;
        } else {
            at = &(*at)->next;
        }
    }
    pthread_mutex_unlock(&calls->lock);
    return found;
}

/* The driver trusts an image's own lengths, so they are compared with what has come. */
static int image_fits(const uint8_t *image, uint64_t bytes)
{
    uint32_t magic = 0;
    memcpy(&magic, image, bytes < sizeof magic ? bytes : sizeof magic);
    if (magic == 0xba55ed50u) { /* fatbin container */
        uint16_t header;
        uint64_t files;
        if (bytes < 16)
            return 0;
        memcpy(&header, image + 6, sizeof header);
        memcpy(&files, image + 8, sizeof files);
        return header >= 16 && header <= bytes && files <= bytes - header;
    }
    if (magic == 0x466243b1u)
        return 0; /* a wrapper holds a pointer of the rank's */
    if (bytes >= sizeof(Elf64_Ehdr) && memcmp(image, ELFMAG, SELFMAG) == 0) {
        Elf64_Ehdr header;
        memcpy(&header, image, sizeof header);
        return header.e_shoff <= bytes && (uint64_t)header.e_shnum * header.e_shentsize <= bytes - header.e_shoff;
    }
    return 1; /* text, which gets a NUL */
}

/* A request that holds its image, as the log wants it; NULL: not understood.  Freed by the caller. */
static uint8_t *whole_request(sg_session *session, const struct sg_request *request, struct sg_wire_module_load *wire, uint64_t *bytes)
{
    if (request->bytes < sizeof *wire)
        return NULL;
    memcpy(wire, request->payload, sizeof *wire);
    struct sg_stage *stage = wire->inline_bytes ? NULL : take_stage(session, wire->stage);
    const uint8_t *image = stage ? stage->data : request->payload + sizeof *wire;
    uint64_t image_bytes = stage ? stage->bytes : wire->inline_bytes;
    int sound = image_bytes && image_bytes == wire->bytes && wire->option_count <= 16 && wire->info_bytes <= 1800 && wire->error_bytes <= 1800 &&
                (stage || image_bytes <= request->bytes - sizeof *wire) && image_fits(image, image_bytes);
    uint8_t *whole = sound ? malloc(sizeof *wire + image_bytes + 1) : NULL;
    if (whole) {
        wire->inline_bytes = (uint32_t)image_bytes;
        memcpy(whole, wire, sizeof *wire);
        memcpy(whole + sizeof *wire, image, image_bytes);
        whole[sizeof *wire + image_bytes] = 0;
        *bytes = sizeof *wire + image_bytes;
    }
    free(stage);
    return whole;
}

struct options { CUjit_option names[20]; void *values[20]; unsigned count; char info[1800], error[1800]; };

static void fill_options(struct options *o, const struct sg_wire_module_load *wire)
{
    memset(o, 0, sizeof *o);
    for (uint32_t i = 0; i < wire->option_count; i++) {
        CUjit_option option = (CUjit_option)wire->options[i];
        if (option == CU_JIT_INFO_LOG_BUFFER || option == CU_JIT_ERROR_LOG_BUFFER || option == CU_JIT_GLOBAL_SYMBOL_NAMES ||
            option == CU_JIT_GLOBAL_SYMBOL_ADDRESSES || option == CU_JIT_WALL_TIME || option == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES ||
            option == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES || option >= CU_JIT_NUM_OPTIONS)
            continue; /* pointers of the rank's */
        o->names[o->count] = option;
        o->values[o->count++] = (void *)(uintptr_t)wire->values[i];
    }
    const struct { CUjit_option buffer, size; char *text; uint32_t bytes; } logs[] = {
        {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, o->info, wire->info_bytes},
        {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, o->error, wire->error_bytes},
    };
    for (int i = 0; i < 2; i++) {
        if (!logs[i].bytes)
            continue;
        o->names[o->count] = logs[i].buffer;
        o->values[o->count++] = logs[i].text;
        o->names[o->count] = logs[i].size;
        o->values[o->count++] = (void *)(uintptr_t)logs[i].bytes;
    }
}

static int32_t load(sg_session *session, const struct sg_request *request, struct sg_answer *answer, uint32_t kind)
{
    const struct sg_driver *driver = sg_session_driver(session);
    struct sg_wire_module_load wire;
    uint64_t bytes;
    uint8_t *whole = whole_request(session, request, &wire, &bytes);
    if (!whole)
        return CUDA_ERROR_INVALID_IMAGE;
    struct options options;
    fill_options(&options, &wire);
    const void *image = whole + sizeof wire;
    void *made = NULL;
    CUresult status;
    if (kind == SG_KIND_LIBRARY)
        status = driver->cuLibraryLoadData((CUlibrary *)&made, image, options.names, options.values, options.count, NULL, NULL, 0);
    else if (options.count)
        status = driver->cuModuleLoadDataEx((CUmodule *)&made, image, options.count, options.names, options.values);
    else
        status = driver->cuModuleLoadData((CUmodule *)&made, image);
    struct sg_reply_module_load reply = {.status = (uint32_t)status};
    if (!status) {
        uint64_t context = kind == SG_KIND_MODULE ? sg_session_context(session, request) : 0;
        reply.handle = sg_handle_put(session, kind, made, context);
        if (reply.handle) {
            struct sg_request logged = *request;
            logged.payload = whole;
            logged.bytes = (uint32_t)bytes;
            sg_log_create(session, &logged, reply.handle, context ? &context : NULL, context != 0);
        } else {
            sg_handle_destroy_physical(driver, kind, made);
            reply.status = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    free(whole);
    reply.info_bytes = (uint32_t)strnlen(options.info, sizeof options.info);
    reply.error_bytes = (uint32_t)strnlen(options.error, sizeof options.error);
    SG_REPLY(reply);
    memcpy(answer->payload + sizeof reply, options.info, reply.info_bytes);
    memcpy(answer->payload + sizeof reply + reply.info_bytes, options.error, reply.error_bytes);
    answer->bytes = (uint32_t)sizeof reply + reply.info_bytes + reply.error_bytes;
    return sg_session_replaying(session) ? (int32_t)reply.status : CUDA_SUCCESS;
}

SG_HANDLER(module_load) { return load(session, request, answer, SG_KIND_MODULE); }
SG_HANDLER(library_load) { return load(session, request, answer, SG_KIND_LIBRARY); }

/* ---- functions ----------------------------------------------------------------------------------------------- */
static CUresult param_info(const struct sg_driver *driver, int is_kernel, void *function, size_t i, size_t *offset, size_t *size)
{
    return is_kernel ? driver->cuKernelGetParamInfo(function, i, offset, size) : driver->cuFuncGetParamInfo(function, i, offset, size);
}

/* Offsets and sizes after the head of the reply; bytes written, or 0 with param_count UINT32_MAX: not known. */
static uint32_t write_layout(const struct sg_driver *driver, int is_kernel, void *function, struct sg_reply_function_get *reply, uint8_t *to)
{
    uint32_t most = (SG_REPLY_PAYLOAD - (uint32_t)sizeof *reply) / 4;
    for (uint32_t i = 0; i <= most; i++) {
        size_t offset = 0, size = 0;
        CUresult error = param_info(driver, is_kernel, function, i, &offset, &size);
        if (error == CUDA_ERROR_INVALID_VALUE)
            return i * 4;
        if (error || i == most || offset > UINT16_MAX || size > UINT16_MAX)
            break;
        uint16_t pair[2] = {(uint16_t)offset, (uint16_t)size};
        memcpy(to + i * 4, pair, sizeof pair);
        reply->param_count = i + 1;
        if (offset + size > reply->param_bytes)
            reply->param_bytes = (uint32_t)(offset + size);
    }
    reply->param_count = UINT32_MAX;
    reply->param_bytes = 0;
    return 0;
}

static CUresult find_function(sg_session *session, const struct sg_wire_function_get *wire, const char *name, void **out)
{
    static const uint32_t kinds[] = {SG_KIND_MODULE, SG_KIND_LIBRARY, SG_KIND_KERNEL};
    const struct sg_driver *driver = sg_session_driver(session);
    void *from = wire->how <= SG_GET_FUNCTION_OF_KERNEL ? sg_handle_get(session, kinds[wire->how], wire->from) : NULL;
    if (!from)
        return CUDA_ERROR_INVALID_HANDLE;
    if (wire->how == SG_GET_FUNCTION)
        return driver->cuModuleGetFunction((CUfunction *)out, from, name);
    if (wire->how == SG_GET_KERNEL)
        return driver->cuLibraryGetKernel((CUkernel *)out, from, name);
    return driver->cuKernelGetFunction((CUfunction *)out, from);
}

SG_HANDLER(function_get)
{
    const struct sg_driver *driver = sg_session_driver(session);
    struct sg_wire_function_get wire;
    void *function = NULL;
    SG_READ(wire);
    const char *name = sg_text(request, sizeof wire, wire.name_bytes);
    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult error = find_function(session, &wire, name, &function);
    if (error)
        return (int32_t)error;
    int is_kernel = wire.how == SG_GET_KERNEL;
    struct sg_reply_function_get reply = {.module = wire.from};
    for (int i = 0; i < 16; i++) {
        int value = 0;
        CUresult known = is_kernel ? driver->cuKernelGetAttribute(&value, (CUfunction_attribute)i, function, sg_session_device(session))
                                   : driver->cuFuncGetAttribute(&value, (CUfunction_attribute)i, function);
        reply.attributes[i] = known ? 0 : value;
    }
    uint32_t layout = write_layout(driver, is_kernel, function, &reply, answer->payload + sizeof reply);
    uint64_t needs[] = {wire.from, sg_session_context(session, request)};
    reply.handle = sg_handle_put(session, is_kernel ? SG_KIND_KERNEL : SG_KIND_FUNCTION, function, wire.from);
    if (!reply.handle)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (sg_function_name(session, function, reply.handle))
        return CUDA_ERROR_OUT_OF_MEMORY;
    sg_log_create(session, request, reply.handle, needs, wire.how == SG_GET_FUNCTION_OF_KERNEL && needs[1] ? 2 : 1);
    SG_REPLY(reply);
    answer->bytes += layout;
    return CUDA_SUCCESS;
}

SG_HANDLER(function_set)
{
    const struct sg_driver *driver = sg_session_driver(session);
    struct sg_wire_function_set wire;
    (void)answer;
    SG_READ(wire);
    CUfunction function = sg_function_get_physical(session, wire.function);
    if (!function)
        return CUDA_ERROR_INVALID_HANDLE;
    CUfunction_attribute attribute = (CUfunction_attribute)wire.attribute;
    CUresult error = SG_HANDLE_KIND(wire.function) == SG_KIND_KERNEL
                         ? driver->cuKernelSetAttribute(attribute, wire.value, (CUkernel)function, sg_session_device(session))
                         : driver->cuFuncSetAttribute(function, attribute, wire.value);
    if (!error)
        sg_log_set(session, request, wire.function, SG_LOG_KEY(SG_OP_function_set, (uint32_t)wire.attribute));
    return (int32_t)error;
}

/* ---- globals --------------------------------------------------------------------------------------------------- */
static int32_t global(sg_session *session, const struct sg_request *request, struct sg_answer *answer, uint32_t kind)
{
    const struct sg_driver *driver = sg_session_driver(session);
    struct sg_wire_global wire;
    SG_READ(wire);
    const char *name = sg_text(request, sizeof wire, wire.name_bytes);
    void *from = sg_handle_get(session, kind, wire.from);
    if (!name || !from)
        return from ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    CUdeviceptr address = 0;
    size_t bytes = 0;
    CUresult error = kind == SG_KIND_LIBRARY ? driver->cuLibraryGetGlobal(&address, &bytes, from, name)
                                             : driver->cuModuleGetGlobal_v2(&address, &bytes, from, name);
    if (error)
        return (int32_t)error;
    if (wire.expected && wire.expected != address)
        return CUDA_ERROR_ILLEGAL_STATE; /* replayed, and it lies elsewhere: the rank knows the old address */
    if (sg_global_add(session, address, bytes, wire.from))
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint8_t *logged = malloc(request->bytes);
    if (!logged)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t key = 0;
    for (const char *at = name; *at; at++)
        key = key * 1099511628211ull + (uint8_t)*at;
    wire.expected = address;
    memcpy(logged, request->payload, request->bytes);
    memcpy(logged, &wire, sizeof wire);
    struct sg_request copy = *request;
    copy.payload = logged;
    sg_log_set(session, &copy, wire.from, SG_LOG_KEY(request->op, key & 0xffffffffffffull));
    free(logged);
    struct sg_reply_global reply = {address, bytes};
    SG_REPLY(reply);
    return CUDA_SUCCESS;
}

SG_HANDLER(cuModuleGetGlobal_v2) { return global(session, request, answer, SG_KIND_MODULE); }
SG_HANDLER(cuLibraryGetGlobal) { return global(session, request, answer, SG_KIND_LIBRARY); }

/* ---- launches: the hot path -------------------------------------------------------------------------------------- */
static CUresult launch_with_attributes(const struct sg_driver *driver, const struct sg_wire_launch *w, const struct sg_request *request, CUfunction function,
                                       void *stream, void **extra)
{
    CUlaunchAttribute attributes[32];
    uint32_t at = (uint32_t)sizeof *w + ((w->param_bytes + 7) & ~7u), count = w->attribute_bytes / (uint32_t)sizeof *attributes;
    if (w->attribute_bytes % sizeof *attributes || count > 32 || at > request->bytes || w->attribute_bytes > request->bytes - at)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(attributes, request->payload + at, w->attribute_bytes);
    for (uint32_t i = 0; i < count; i++) /* the client's list of plain ones; others would hold pointers */
        if ((unsigned)attributes[i].id > CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN || attributes[i].id == CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW ||
            attributes[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT)
            return CUDA_ERROR_NOT_SUPPORTED;
    CUlaunchConfig config = {.gridDimX = w->grid[0], .gridDimY = w->grid[1], .gridDimZ = w->grid[2], .blockDimX = w->block[0],
                             .blockDimY = w->block[1], .blockDimZ = w->block[2], .sharedMemBytes = w->shared, .hStream = stream,
                             .attrs = attributes, .numAttrs = count};
    return driver->cuLaunchKernelEx(&config, function, NULL, extra);
}

SG_HANDLER(launch)
{
    const struct sg_driver *driver = sg_session_driver(session);
    struct sg_wire_launch w;
    void *stream;
    (void)answer;
    SG_READ(w);
    CUfunction function = sg_function_get_physical(session, w.function);
    if (!function || sg_stream_get(session, w.stream, &stream))
        return CUDA_ERROR_INVALID_HANDLE;
    if (w.param_bytes > request->bytes - sizeof w)
        return CUDA_ERROR_INVALID_VALUE;
    size_t bytes = w.param_bytes;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, (void *)(uintptr_t)(request->payload + sizeof w), CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                     CU_LAUNCH_PARAM_END};
    if (w.attribute_bytes)
        return (int32_t)launch_with_attributes(driver, &w, request, function, stream, extra);
    return (int32_t)driver->cuLaunchKernel(function, w.grid[0], w.grid[1], w.grid[2], w.block[0], w.block[1], w.block[2], w.shared, stream, NULL, extra);
}
