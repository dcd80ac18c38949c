/* Modules and libraries: the image goes to the proxy once; what it answers is kept. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include "../wire.h"
#include "client.h"
#include "image.h"

#define INLINE_LIMIT (96u << 10)

struct named { struct named *next; struct sg_function *function; };
struct image { struct named *functions; }; /* of a module or library; guarded by `lock` */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- loading ------------------------------------------------------------------------------------------------ */
struct logs { char *info, *error; void **info_size, **error_size; uint32_t info_room, error_room; };

static uint32_t log_room(void *value)
{
    uintptr_t asked = (uintptr_t)value;
    return asked > 1800 ? 1800 : (uint32_t)asked; /* two logs fit into one reply */
}

/* Options with plain numbers travel; the logs' buffers stay here. */
static CUresult read_options(const char *call, unsigned count, const CUjit_option *options, void **values,
                             struct sg_wire_module_load *wire, struct logs *logs)
{
    if (count && (!options || !values))
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        switch ((int)options[i]) {
        case CU_JIT_INFO_LOG_BUFFER: logs->info = values[i]; break;
        case CU_JIT_ERROR_LOG_BUFFER: logs->error = values[i]; break;
        case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES: logs->info_size = &values[i]; logs->info_room = log_room(values[i]); break;
        case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: logs->error_size = &values[i]; logs->error_room = log_room(values[i]); break;
        case CU_JIT_WALL_TIME: {
            float none = 0;
            memcpy(&values[i], &none, sizeof none);
            break;
        }
        case CU_JIT_GLOBAL_SYMBOL_NAMES:
        case CU_JIT_GLOBAL_SYMBOL_ADDRESSES: return sg_declined(call, "linking against host symbols is not supported", "use globals of the module");
        default:
            if (wire->option_count == 16)
                return CUDA_ERROR_INVALID_VALUE;
            wire->options[wire->option_count] = (uint32_t)options[i];
            wire->values[wire->option_count++] = (uint64_t)(uintptr_t)values[i];
        }
    }
    if (logs->info && logs->info_size)
        wire->info_bytes = logs->info_room;
    if (logs->error && logs->error_size)
        wire->error_bytes = logs->error_room;
    return CUDA_SUCCESS;
}

static void write_log(char *to, void **size, uint32_t room, const char *from, uint32_t bytes)
{
    if (!to || !size || !room)
        return;
    uint32_t kept = bytes < room - 1 ? bytes : room - 1;
    memcpy(to, from, kept);
    to[kept] = 0;
    *size = (void *)(uintptr_t)(kept ? kept + 1 : 0);
}

/* Sends the image.  The proxy's status comes inside of the reply, so that the logs of a failure do, too. */
static CUresult send_image(const char *call, uint32_t op, struct sg_wire_module_load *wire, const void *image, struct logs *logs, uint64_t *handle)
{
    struct { struct sg_reply_module_load head; char text[SG_REPLY_PAYLOAD - sizeof(struct sg_reply_module_load)]; } reply;
    uint32_t got = 0;
    memset(&reply.head, 0, sizeof reply.head);
    CUresult error;
    static _Atomic uint64_t next_stage = 1;
    if (wire->bytes > INLINE_LIMIT) { /* streamed into the proxy first, which keeps it for the call that follows */
        wire->stage = atomic_fetch_add(&next_stage, 1);
        error = sg_bulk(call, SG_OP_module_stage, wire, sizeof *wire, (void *)(uintptr_t)image, wire->bytes, 1);
        if (error)
            return error;
    } else {
        wire->inline_bytes = (uint32_t)wire->bytes;
    }
    struct sg_wire_module_load *at = sg_begin(op, (uint32_t)sizeof *wire + wire->inline_bytes);
    if (!at)
        return sg_lost(call);
    *at = *wire;
    memcpy(at + 1, image, wire->inline_bytes);
    error = sg_call_got(call, &reply, sizeof reply, &got);
    if (error)
        return error;
    if (got < sizeof reply.head || (uint64_t)reply.head.info_bytes + reply.head.error_bytes > got - sizeof reply.head)
        return CUDA_ERROR_UNKNOWN;
    write_log(logs->info, logs->info_size, logs->info_room, reply.text, reply.head.info_bytes);
    write_log(logs->error, logs->error_size, logs->error_room, reply.text + reply.head.info_bytes, reply.head.error_bytes);
    *handle = reply.head.handle;
    return (CUresult)reply.head.status;
}

static CUresult load(const char *call, uint32_t op, uint32_t kind, const void *image, size_t bytes, unsigned count, const CUjit_option *options,
                     void **values, uint64_t *handle)
{
    struct sg_wire_module_load wire = {0};
    struct logs logs = {0};
    if (!image)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult error = read_options(call, count, options, values, &wire, &logs);
    if (error)
        return error;
    const void *start = image;
    wire.bytes = bytes ? bytes : sg_image_bytes(image, &start);
    if (!wire.bytes || wire.bytes > (1ull << 32)) {
        static const char reason[] = "the image is neither PTX nor a cubin nor a fat binary";
        write_log(logs.info, logs.info_size, logs.info_room, "", 0);
        write_log(logs.error, logs.error_size, logs.error_room, reason, sizeof reason - 1);
        return CUDA_ERROR_INVALID_IMAGE;
    }
    if ((error = send_image(call, op, &wire, start, &logs, handle)))
        return error;
    struct image *object = calloc(1, sizeof *object);
    uint64_t parent = kind == SG_KIND_MODULE ? sg_self.current : 0;
    return object && !sg_handle_note(kind, *handle, parent, object) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult read_file(const char *name, char **out, size_t *bytes)
{
    FILE *file = name ? fopen(name, "rbe") : NULL;
    if (!file)
        return name ? CUDA_ERROR_FILE_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
    CUresult error = CUDA_ERROR_INVALID_IMAGE;
    char *text = NULL;
    long length = fseek(file, 0, SEEK_END) ? -1 : ftell(file);
    if (length > 0 && !fseek(file, 0, SEEK_SET) && (text = malloc((size_t)length + 1)) && fread(text, 1, (size_t)length, file) == (size_t)length) {
        text[length] = 0; /* PTX on disk has no NUL */
        *out = text;
        *bytes = (size_t)length + 1;
        error = CUDA_SUCCESS;
    } else {
        free(text);
    }
    fclose(file);
    return error;
}

static CUresult load_module(const char *call, CUmodule *module, const void *image, size_t bytes, unsigned count, const CUjit_option *options, void **values)
{
    uint64_t handle = 0;
    CUresult error = sg_enter();
    if (error)
        return error;
    if (!module)
        return CUDA_ERROR_INVALID_VALUE;
    error = load(call, SG_OP_module_load, SG_KIND_MODULE, image, bytes, count, options, values, &handle);
    if (!error)
        *module = (CUmodule)(uintptr_t)handle;
    return error;
}

CUresult sg_hand_cuModuleLoadData(CUmodule *module, const void *image) { return load_module("cuModuleLoadData", module, image, 0, 0, NULL, NULL); }
CUresult sg_hand_cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin)
{
    return load_module("cuModuleLoadFatBinary", module, fatCubin, 0, 0, NULL, NULL);
}
CUresult sg_hand_cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions, CUjit_option *options, void **optionValues)
{
    return load_module("cuModuleLoadDataEx", module, image, 0, numOptions, options, optionValues);
}
CUresult sg_hand_cuModuleLoad(CUmodule *module, const char *fname)
{
    char *text;
    size_t bytes;
    CUresult error = read_file(fname, &text, &bytes);
    if (error)
        return error;
    error = load_module("cuModuleLoad", module, text, bytes, 0, NULL, NULL);
    free(text);
    return error;
}

static CUresult load_library(const char *call, CUlibrary *library, const void *code, size_t bytes, CUjit_option *options, void **values, unsigned count)
{
    uint64_t handle = 0;
    CUresult error = sg_enter_bare();
    if (error || (error = sg_open(sg_client.ordinal < 0 ? 0 : sg_client.ordinal)))
        return error;
    if (!library)
        return CUDA_ERROR_INVALID_VALUE;
    error = load(call, SG_OP_library_load, SG_KIND_LIBRARY, code, bytes, count, options, values, &handle);
    if (!error)
        *library = (CUlibrary)(uintptr_t)handle;
    return error;
}

CUresult sg_hand_cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions, void **jitOptionsValues, unsigned int numJitOptions,
                                   CUlibraryOption *libraryOptions, void **libraryOptionValues, unsigned int numLibraryOptions)
{
    (void)libraryOptions, (void)libraryOptionValues, (void)numLibraryOptions; /* the image is always copied */
    return load_library("cuLibraryLoadData", library, code, 0, jitOptions, jitOptionsValues, numJitOptions);
}
CUresult sg_hand_cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, CUjit_option *jitOptions, void **jitOptionsValues,
                                       unsigned int numJitOptions, CUlibraryOption *libraryOptions, void **libraryOptionValues,
                                       unsigned int numLibraryOptions)
{
    char *text;
    size_t bytes;
    (void)libraryOptions, (void)libraryOptionValues, (void)numLibraryOptions;
    CUresult error = read_file(fileName, &text, &bytes);
    if (error)
        return error;
    error = load_library("cuLibraryLoadFromFile", library, text, bytes, jitOptions, jitOptionsValues, numJitOptions);
    free(text);
    return error;
}

static void forget(uint32_t kind, uint64_t handle)
{
    struct image *object = sg_handle_data(kind, handle);
    pthread_mutex_lock(&lock);
    while (object && object->functions) { /* the functions themselves stay: another thread may be launching one */
        struct named *first = object->functions;
        object->functions = first->next;
        free(first);
    }
    pthread_mutex_unlock(&lock);
}

CUresult sg_hand_cuModuleUnload(CUmodule hmod)
{
    if (sg_handle_known(SG_KIND_MODULE, SG_VALUE(hmod)))
        forget(SG_KIND_MODULE, SG_VALUE(hmod));
    return sg_send_cuModuleUnload(hmod);
}

CUresult sg_hand_cuLibraryUnload(CUlibrary library)
{
    if (sg_handle_known(SG_KIND_LIBRARY, SG_VALUE(library)))
        forget(SG_KIND_LIBRARY, SG_VALUE(library));
    return sg_send_cuLibraryUnload(library);
}

CUresult sg_hand_cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    if (!mode)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = CU_MODULE_EAGER_LOADING;
    return CUDA_SUCCESS;
}

/* ---- functions by name: the same name gives the same handle -------------------------------------------------- */
static struct sg_function *known_function(struct image *object, const char *name)
{
    struct sg_function *found = NULL;
    pthread_mutex_lock(&lock);
    for (struct named *at = object->functions; at && !found; at = at->next)
        if (strcmp(at->function->name, name) == 0)
            found = at->function;
    pthread_mutex_unlock(&lock);
    return found;
}

static CUresult function_by_name(const char *call, uint32_t kind, uint64_t from, uint32_t how, const char *name, struct sg_function **out)
{
    struct image *object = sg_handle_data(kind, from);
    if (!sg_handle_known(kind, from))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!name)
        return CUDA_ERROR_INVALID_VALUE;
    if (object && (*out = known_function(object, name)))
        return CUDA_SUCCESS;
    CUresult error = sg_function_get(call, from, how, name, out);
    struct named *entry = error || !object ? NULL : malloc(sizeof *entry);
    if (entry) {
        pthread_mutex_lock(&lock);
        *entry = (struct named){object->functions, *out};
        object->functions = entry;
        pthread_mutex_unlock(&lock);
    }
    return error;
}

CUresult sg_hand_cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name)
{
    struct sg_function *f;
    CUresult error = sg_enter();
    if (error || !hfunc)
        return error ? error : CUDA_ERROR_INVALID_VALUE;
    error = function_by_name("cuModuleGetFunction", SG_KIND_MODULE, SG_VALUE(hmod), SG_GET_FUNCTION, name, &f);
    if (!error)
        *hfunc = (CUfunction)(uintptr_t)f->handle;
    return error;
}

CUresult sg_hand_cuLibraryGetKernel(CUkernel *pKernel, CUlibrary library, const char *name)
{
    struct sg_function *f;
    CUresult error = sg_enter_bare();
    if (error || !pKernel)
        return error ? error : CUDA_ERROR_INVALID_VALUE;
    error = function_by_name("cuLibraryGetKernel", SG_KIND_LIBRARY, SG_VALUE(library), SG_GET_KERNEL, name, &f);
    if (!error)
        *pKernel = (CUkernel)(uintptr_t)f->handle;
    return error;
}

CUresult sg_hand_cuKernelGetFunction(CUfunction *pFunc, CUkernel kernel)
{
    struct sg_function *f, *of = sg_function_find((CUfunction)kernel);
    CUresult error = sg_enter();
    if (error)
        return error;
    if (!pFunc || !of || SG_HANDLE_KIND(of->handle) != SG_KIND_KERNEL)
        return pFunc ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    error = sg_function_get("cuKernelGetFunction", of->handle, SG_GET_FUNCTION_OF_KERNEL, of->name, &f);
    if (!error)
        *pFunc = (CUfunction)(uintptr_t)f->handle;
    return error;
}

static CUresult global(const char *call, uint32_t op, uint32_t kind, uint64_t from, const char *name, CUdeviceptr *dptr, size_t *bytes)
{
    CUresult error = sg_enter();
    if (error)
        return error;
    if (!sg_handle_known(kind, from))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!name || (!dptr && !bytes))
        return CUDA_ERROR_INVALID_VALUE;
    size_t name_bytes = strlen(name) + 1;
    if (name_bytes > SG_STRING_LIMIT)
        return CUDA_ERROR_NOT_FOUND;
    struct sg_wire_global *wire = sg_begin(op, (uint32_t)(sizeof *wire + name_bytes));
    if (!wire)
        return sg_lost(call);
    *wire = (struct sg_wire_global){.from = from, .name_bytes = (uint32_t)name_bytes};
    memcpy(wire + 1, name, name_bytes);
    struct sg_reply_global reply;
    error = sg_call(call, &reply, sizeof reply);
    if (error)
        return error;
    struct sg_range range = {.base = reply.address, .bytes = reply.bytes, .id = sg_range_next_id(), .owner = from, .kind = SG_RANGE_GLOBAL};
    if (reply.bytes && sg_range_add(&range))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (dptr)
        *dptr = reply.address;
    if (bytes)
        *bytes = reply.bytes;
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuModuleGetGlobal_v2(CUdeviceptr *dptr, size_t *bytes, CUmodule hmod, const char *name)
{
    return global("cuModuleGetGlobal", SG_OP_cuModuleGetGlobal_v2, SG_KIND_MODULE, SG_VALUE(hmod), name, dptr, bytes);
}
CUresult sg_hand_cuLibraryGetGlobal(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name)
{
    return global("cuLibraryGetGlobal", SG_OP_cuLibraryGetGlobal, SG_KIND_LIBRARY, SG_VALUE(library), name, dptr, bytes);
}
