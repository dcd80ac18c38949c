/* Functions and kernels: attributes and parameter layout come along with the handle and are kept here, so
 * that queries are local and a launch can be checked and packed without asking. */
#include <stdlib.h>
#include "../wire.h"
#include "client.h"
#include "image.h"

struct sg_function *sg_function_find(CUfunction function)
{
    uint64_t handle = SG_VALUE(function);
    uint32_t kind = SG_HANDLE_KIND(handle); /* the driver takes a CUkernel wherever it takes a CUfunction */
    return kind == SG_KIND_FUNCTION || kind == SG_KIND_KERNEL ? sg_handle_data(kind, handle) : NULL;
}

static int32_t attribute_of(const struct sg_function *f, int attribute)
{
    return atomic_load_explicit(&f->attributes[attribute], memory_order_relaxed);
}

static int limit(CUdevice_attribute which)
{
    const struct sg_device_info *info = sg_device(sg_client.ordinal);
    return info->attributes[which];
}

CUresult sg_function_check(const struct sg_function *f, const uint32_t grid[3], const uint32_t block[3], uint32_t shared)
{
    const int32_t *most = sg_device(sg_client.ordinal)->attributes;
    uint64_t threads = 1;
    int wrong = 0;
    for (int i = 0; i < 3; i++) {
        /* 0 is too large, too */
        wrong |= grid[i] - 1 >= (uint32_t)most[CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + i];
        wrong |= block[i] - 1 >= (uint32_t)most[CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + i];
        threads *= block[i];
    }
    if (SG_UNLIKELY(wrong || threads > (uint64_t)most[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK]))
        return CUDA_ERROR_INVALID_VALUE;
    if (SG_UNLIKELY(f->opaque))
        return CUDA_SUCCESS;
    if (SG_UNLIKELY(threads > (uint64_t)attribute_of(f, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)))
        return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    if (SG_UNLIKELY(shared > (uint32_t)attribute_of(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult sg_params_find(const struct sg_function *f, void **params, void **extra, struct sg_packed *out)
{
    *out = (struct sg_packed){.bytes = f->param_bytes, .each = params};
    if (params && extra)
        return CUDA_ERROR_INVALID_VALUE;
    if (params || !f->param_count) {
        for (uint32_t i = 0; params && i < f->param_count; i++)
            if (SG_UNLIKELY(!params[i]))
                return CUDA_ERROR_INVALID_VALUE;
        return CUDA_SUCCESS;
    }
    if (!extra)
        return CUDA_ERROR_INVALID_VALUE;
    size_t bytes = 0;
    for (int i = 0; i < 8 && extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
        if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
            out->ready = extra[i + 1];
        else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE)
            memcpy(&bytes, extra[i + 1], sizeof bytes);
        else
            return CUDA_ERROR_INVALID_VALUE;
    }
    return out->ready && bytes >= f->param_bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

void sg_params_copy(const struct sg_function *f, const struct sg_packed *packed, void *to)
{
    if (packed->ready) {
        memcpy(to, packed->ready, packed->bytes);
        return;
    }
    const struct sg_param *param = f->params, *end = param + f->param_count;
    for (void **from = packed->each; param < end; param++, from++) {
        uint8_t *at = (uint8_t *)to + param->offset;
        if (SG_LIKELY(param->size == 8)) /* sizes the compiler can inline */
            memcpy(at, *from, 8);
        else if (SG_LIKELY(param->size == 4))
            memcpy(at, *from, 4);
        else
            memcpy(at, *from, param->size);
    }
}

/* ---- getting one --------------------------------------------------------------------------------------- */
static struct sg_function *build(const struct sg_reply_function_get *reply, const struct sg_param *layout, const char *name)
{
    uint32_t kept = reply->param_count == UINT32_MAX ? 0 : reply->param_count;
    struct sg_function *f = calloc(1, sizeof *f);
    if (!f)
        return NULL;
    f->params = malloc(kept * sizeof *layout + 1);
    f->name = strdup(name);
    if (!f->params || !f->name) {
        free(f->params);
        free(f->name);
        free(f);
        return NULL;
    }
    memcpy(f->params, layout, kept * sizeof *layout);
    f->handle = reply->handle;
    f->module = reply->module;
    f->param_count = kept;
    f->param_bytes = reply->param_bytes;
    f->opaque = reply->param_count == UINT32_MAX;
    for (int i = 0; i < SG_FUNCTION_ATTRIBUTES; i++)
        atomic_store_explicit(&f->attributes[i], reply->attributes[i], memory_order_relaxed);
    return f;
}

CUresult sg_function_get(const char *call, uint64_t from, uint32_t how, const char *name, struct sg_function **out)
{
    size_t name_bytes = strlen(name) + 1;
    if (name_bytes > SG_STRING_LIMIT)
        return CUDA_ERROR_NOT_FOUND;
    struct sg_wire_function_get *wire = sg_begin(SG_OP_function_get, (uint32_t)(sizeof *wire + name_bytes));
    if (!wire)
        return sg_lost(call);
    *wire = (struct sg_wire_function_get){.from = from, .how = how, .name_bytes = (uint32_t)name_bytes};
    memcpy(wire + 1, name, name_bytes);
    struct {
        struct sg_reply_function_get head;
        struct sg_param layout[(SG_REPLY_PAYLOAD - sizeof(struct sg_reply_function_get)) / sizeof(struct sg_param)];
    } reply;
    uint32_t got;
    CUresult error = sg_call_got(call, &reply, sizeof reply, &got);
    if (error)
        return error;
    uint32_t kept = reply.head.param_count == UINT32_MAX ? 0 : reply.head.param_count;
    if (got < sizeof reply.head || (got - sizeof reply.head) / sizeof(struct sg_param) < kept)
        return CUDA_ERROR_UNKNOWN;
    for (uint32_t i = 0; i < kept; i++)
        if (reply.layout[i].offset + (uint32_t)reply.layout[i].size > reply.head.param_bytes)
            return CUDA_ERROR_UNKNOWN;
    struct sg_function *f = build(&reply.head, reply.layout, name);
    uint32_t kind = how == SG_GET_KERNEL ? SG_KIND_KERNEL : SG_KIND_FUNCTION;
    if (!f || sg_handle_note(kind, f->handle, how == SG_GET_FUNCTION_OF_KERNEL ? f->module : from, f))
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = f;
    return CUDA_SUCCESS;
}

/* ---- attributes ----------------------------------------------------------------------------------------- */
static CUresult get_attribute(int *pi, CUfunction_attribute attribute, const struct sg_function *f)
{
    if (!f)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!pi || (int)attribute < 0 || (int)attribute >= SG_FUNCTION_ATTRIBUTES)
        return CUDA_ERROR_INVALID_VALUE;
    *pi = attribute_of(f, (int)attribute);
    return CUDA_SUCCESS;
}

static CUresult set_attribute(const char *call, struct sg_function *f, CUfunction_attribute attribute, int value)
{
    if (!f)
        return CUDA_ERROR_INVALID_HANDLE;
    int known = 0;
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        int most = limit(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
        if (value < 0 || value > most - attribute_of(f, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES))
            return CUDA_ERROR_INVALID_VALUE;
        known = 1;
    } else if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) {
        if (value < -1 || value > 100)
            return CUDA_ERROR_INVALID_VALUE;
        known = 1;
    } else if ((int)attribute < CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT || (int)attribute >= SG_FUNCTION_ATTRIBUTES) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct sg_wire_function_set *wire = sg_begin(SG_OP_function_set, sizeof *wire);
    if (!wire)
        return sg_lost(call);
    *wire = (struct sg_wire_function_set){.function = f->handle, .attribute = (int32_t)attribute, .value = value};
    CUresult error = CUDA_SUCCESS;
    if (known)
        sg_post();
    else
        error = sg_call(call, NULL, 0);
    if (!error)
        atomic_store_explicit(&f->attributes[attribute], value, memory_order_relaxed);
    return error;
}

CUresult sg_hand_cuFuncGetAttribute(int *pi, CUfunction_attribute attrib, CUfunction hfunc)
{
    CUresult error = sg_enter();
    return error ? error : get_attribute(pi, attrib, sg_function_find(hfunc));
}

CUresult sg_hand_cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value)
{
    CUresult error = sg_enter();
    return error ? error : set_attribute("cuFuncSetAttribute", sg_function_find(hfunc), attrib, value);
}

CUresult sg_hand_cuKernelGetAttribute(int *pi, CUfunction_attribute attrib, CUkernel kernel, CUdevice dev)
{
    CUresult error = sg_enter_bare();
    if (error)
        return error;
    return sg_visible(dev) ? get_attribute(pi, attrib, sg_function_find((CUfunction)kernel)) : CUDA_ERROR_INVALID_DEVICE;
}

CUresult sg_hand_cuKernelSetAttribute(CUfunction_attribute attrib, int val, CUkernel kernel, CUdevice dev)
{
    CUresult error = sg_enter_bare();
    if (error)
        return error;
    if (dev != sg_client.ordinal)
        return CUDA_ERROR_INVALID_DEVICE;
    return set_attribute("cuKernelSetAttribute", sg_function_find((CUfunction)kernel), attrib, val);
}

/* ---- what else is asked about a function ------------------------------------------------------------------- */
static CUresult param_info(const struct sg_function *f, size_t index, size_t *offset, size_t *size)
{
    if (!f)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!offset || index >= f->param_count)
        return CUDA_ERROR_INVALID_VALUE;
    *offset = f->params[index].offset;
    if (size)
        *size = f->params[index].size;
    return CUDA_SUCCESS;
}

static CUresult param_count(const struct sg_function *f, size_t *count)
{
    if (!f || !count)
        return f ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    *count = f->param_count;
    return CUDA_SUCCESS;
}

static CUresult name_of(const struct sg_function *f, const char **name)
{
    if (!f || !name)
        return f ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    *name = f->name;
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuFuncGetParamInfo(CUfunction func, size_t paramIndex, size_t *paramOffset, size_t *paramSize)
{
    return param_info(sg_function_find(func), paramIndex, paramOffset, paramSize);
}
CUresult sg_hand_cuKernelGetParamInfo(CUkernel kernel, size_t paramIndex, size_t *paramOffset, size_t *paramSize)
{
    return param_info(sg_function_find((CUfunction)kernel), paramIndex, paramOffset, paramSize);
}
CUresult sg_hand_cuFuncGetParamCount(CUfunction func, size_t *paramCount) { return param_count(sg_function_find(func), paramCount); }
CUresult sg_hand_cuKernelGetParamCount(CUkernel kernel, size_t *paramCount)
{
    return param_count(sg_function_find((CUfunction)kernel), paramCount);
}
CUresult sg_hand_cuFuncGetName(const char **name, CUfunction hfunc) { return name_of(sg_function_find(hfunc), name); }
CUresult sg_hand_cuKernelGetName(const char **name, CUkernel hfunc) { return name_of(sg_function_find((CUfunction)hfunc), name); }

CUresult sg_hand_cuFuncGetModule(CUmodule *hmod, CUfunction hfunc)
{
    const struct sg_function *f = sg_function_find(hfunc);
    if (!f || !hmod)
        return f ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    if (SG_HANDLE_KIND(f->handle) == SG_KIND_KERNEL)
        return CUDA_ERROR_INVALID_HANDLE;
    *hmod = (CUmodule)(uintptr_t)f->module;
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuKernelGetLibrary(CUlibrary *pLib, CUkernel kernel)
{
    const struct sg_function *f = sg_function_find((CUfunction)kernel);
    if (!f || !pLib)
        return f ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
    *pLib = (CUlibrary)(uintptr_t)sg_handle_parent(f->handle);
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction function)
{
    if (!state || !sg_function_find(function))
        return state ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
    *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return CUDA_SUCCESS;
}

static CUresult hint(CUfunction f) { return sg_function_find(f) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE; }
CUresult sg_hand_cuFuncLoad(CUfunction function) { return hint(function); }
CUresult sg_hand_cuFuncSetCacheConfig(CUfunction hfunc, CUfunc_cache config)
{
    (void)config;
    return hint(hfunc);
}
CUresult sg_hand_cuFuncSetSharedMemConfig(CUfunction hfunc, CUsharedconfig config)
{
    (void)config;
    return hint(hfunc);
}
CUresult sg_hand_cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice dev)
{
    (void)config, (void)dev;
    return hint((CUfunction)kernel);
}
