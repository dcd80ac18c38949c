/* Modules and libraries: images in contexts, their functions and variables. */
#include "device.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static CUresult place_globals(struct CUmod_st *m)
{
    const struct sgf_image *image = m->image;
    m->globals = calloc(image->global_count + 1, sizeof *m->globals);
    if (m->globals == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < image->global_count; i++) {
        const struct sgf_global *g = &image->globals[i];
        if (g->bytes == 0)
            continue;
        CUresult result = sgf_zone_alloc(m->context->device->heap, g->bytes, m->context->id, 0, &m->globals[i]);
        if (result != CUDA_SUCCESS)
            return result;
        if (g->init != NULL)
            memcpy((void *)(uintptr_t)m->globals[i], g->init, g->bytes);
    }
    for (uint32_t i = 0; i < image->fixup_count; i++) {
        const struct sgf_fixup *f = &image->fixups[i];
        uint64_t value = m->globals[f->target] + f->addend;
        memcpy((void *)(uintptr_t)(m->globals[f->global] + f->offset), &value, 8);
    }
    return CUDA_SUCCESS;
}

static void free_functions(struct CUfunc_st *f)
{
    while (f != NULL) {
        struct CUfunc_st *next = f->next;
        free(f->name);
        sgf_delete(f);
        f = next;
    }
}

static void module_free(struct CUmod_st *m)
{
    free_functions(m->functions);
    for (uint32_t i = 0; m->globals != NULL && i < m->image->global_count; i++)
        if (m->globals[i] != 0)
            sgf_zone_free(m->context->device->heap, m->globals[i]);
    free(m->globals);
    sgf_image_release(m->image);
    pthread_mutex_destroy(&m->lock);
    atomic_store(&m->object.live, 1u + SGF_MODULE); /* it may have lost its handle before: see unload */
    sgf_delete(m);
}

CUresult sgf_module_create(struct CUctx_st *context, struct sgf_image *image, struct CUlib_st *library, CUmodule *out)
{
    struct CUmod_st *m = sgf_new(SGF_MODULE);
    if (m == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_init(&m->lock, NULL);
    m->context = context;
    m->image = image;
    m->library = library;
    atomic_fetch_add(&image->references, 1);
    CUresult result = place_globals(m);
    if (result != CUDA_SUCCESS) {
        module_free(m);
        return result;
    }
    pthread_mutex_lock(&context->lock);
    m->next = context->modules;
    context->modules = m;
    pthread_mutex_unlock(&context->lock);
    *out = m;
    return CUDA_SUCCESS;
}

static void leave_library(struct CUmod_st *m)
{
    struct CUlib_st *library = m->library;
    m->library = NULL;
    if (library == NULL || !sgf_valid(SGF_LIBRARY, library))
        return;
    pthread_mutex_lock(&library->lock);
    for (uint32_t i = 0; i < library->module_count; i++)
        if (library->modules[i] == m)
            library->modules[i] = library->modules[--library->module_count];
    pthread_mutex_unlock(&library->lock);
}

/* The caller has waited for the context's work. */
void sgf_module_destroy(struct CUmod_st *m)
{
    pthread_mutex_lock(&m->context->lock);
    struct CUmod_st **at = &m->context->modules;
    while (*at != NULL && *at != m)
        at = &(*at)->next;
    if (*at == m)
        *at = m->next;
    pthread_mutex_unlock(&m->context->lock);
    leave_library(m);
    module_free(m);
}

static struct sgf_kernel *find_kernel(struct sgf_image *image, const char *name)
{
    for (uint32_t i = 0; i < image->kernel_count; i++)
        if (strcmp(image->kernels[i].name, name) == 0)
            return &image->kernels[i];
    return NULL;
}

/* One handle per name.  An image without PTX tells no names: any is accepted, and fails when it is launched. */
static CUresult function_named(struct CUfunc_st **list, struct sgf_image *image, const char *name, struct CUmod_st *module,
                               struct CUlib_st *library, struct CUfunc_st **out)
{
    for (struct CUfunc_st *f = *list; f != NULL; f = f->next)
        if (strcmp(f->name, name) == 0) {
            *out = f;
            return CUDA_SUCCESS;
        }
    struct sgf_kernel *kernel = find_kernel(image, name);
    if (kernel == NULL && !image->binary_only)
        return CUDA_ERROR_NOT_FOUND;
    struct CUfunc_st *f = sgf_new(SGF_FUNCTION);
    if (f == NULL || (f->name = strdup(name)) == NULL) {
        if (f != NULL)
            sgf_delete(f);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    f->image = image;
    f->kernel = kernel;
    f->module = module;
    f->library = library;
    f->dynamic_limit = SGF_SHARED_DEFAULT - (kernel != NULL ? (int)kernel->shared : 0);
    f->dynamic_limit = f->dynamic_limit < 0 ? 0 : f->dynamic_limit;
    f->carveout = -1;
    f->next = *list;
    *list = f;
    *out = f;
    return CUDA_SUCCESS;
}

CUresult sgf_module_function(struct CUmod_st *m, const char *name, CUfunction *out)
{
    pthread_mutex_lock(&m->lock);
    CUresult result = function_named(&m->functions, m->image, name, m, NULL, out);
    pthread_mutex_unlock(&m->lock);
    return result;
}

static CUresult load_module(const char *function, CUmodule *module, const void *image_data, char reason[SGF_REASON_BYTES])
{
    struct CUctx_st *context;
    struct sgf_image *image;
    reason[0] = 0;
    CUresult result = sgf_enter_context(function, &context);
    if (result != CUDA_SUCCESS)
        return result;
    if (module == NULL || image_data == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if ((result = sgf_image_load(image_data, reason, &image)) != CUDA_SUCCESS)
        return result;
    result = sgf_module_create(context, image, NULL, module);
    sgf_image_release(image);
    return result;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    char reason[SGF_REASON_BYTES];
    return load_module(__func__, module, image, reason);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int numOptions, CUjit_option *options,
                            void **optionValues)
{
    char reason[SGF_REASON_BYTES];
    CUresult result = load_module(__func__, module, image, reason);
    sgf_jit_log(numOptions, options, optionValues, reason);
    return result;
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *fatCubin)
{
    char reason[SGF_REASON_BYTES];
    return load_module(__func__, module, fatCubin, reason);
}

static CUresult read_whole(const char *path, char **out)
{
    int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    struct stat info;
    if (fd < 0 || fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        if (fd >= 0)
            close(fd);
        return CUDA_ERROR_FILE_NOT_FOUND;
    }
    char *data = calloc(1, (size_t)info.st_size + 64);
    size_t used = 0;
    while (data != NULL && used < (size_t)info.st_size) {
        ssize_t n = read(fd, data + used, (size_t)info.st_size - used);
        if (n <= 0)
            break;
        used += (size_t)n;
    }
    close(fd);
    *out = data;
    return data == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

CUresult cuModuleLoad(CUmodule *module, const char *fname)
{
    SGF_ENTER();
    char *data, reason[SGF_REASON_BYTES];
    CUresult result = read_whole(fname, &data);
    if (result != CUDA_SUCCESS)
        return result;
    result = load_module(__func__, module, data, reason);
    free(data);
    return result;
}

/* Streams that were destroyed may still run the module's code: then it only loses its handle, and goes with its
 * context. */
static CUresult unload(struct CUmod_st *m)
{
    CUresult result = sgf_context_drain(m->context);
    if (sgf_context_idle(m->context)) {
        sgf_module_destroy(m);
    } else {
        leave_library(m);
        atomic_store(&m->object.live, 0);
    }
    return result;
}

CUresult cuModuleUnload(CUmodule hmod)
{
    SGF_ENTER();
    if (!sgf_valid(SGF_MODULE, hmod))
        return CUDA_ERROR_INVALID_HANDLE;
    if (hmod->library != NULL)
        return CUDA_ERROR_INVALID_HANDLE; /* cuLibraryUnload ends it */
    return unload(hmod);
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    SGF_ENTER();
    if (mode == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name)
{
    SGF_ENTER();
    if (hfunc == NULL || name == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sgf_valid(SGF_MODULE, hmod))
        return CUDA_ERROR_INVALID_HANDLE;
    return sgf_module_function(hmod, name, hfunc);
}

CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule mod)
{
    SGF_ENTER();
    if (count == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sgf_valid(SGF_MODULE, mod))
        return CUDA_ERROR_INVALID_HANDLE;
    *count = mod->image->kernel_count;
    return CUDA_SUCCESS;
}

CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int numFunctions, CUmodule mod)
{
    SGF_ENTER();
    if (functions == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sgf_valid(SGF_MODULE, mod))
        return CUDA_ERROR_INVALID_HANDLE;
    for (uint32_t i = 0; i < numFunctions && i < mod->image->kernel_count; i++) {
        CUresult result = sgf_module_function(mod, mod->image->kernels[i].name, &functions[i]);
        if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}

static CUresult global_named(struct CUmod_st *m, const char *name, CUdeviceptr *address, size_t *bytes)
{
    if (name == NULL || (address == NULL && bytes == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    for (uint32_t i = 0; i < m->image->global_count; i++)
        if (strcmp(m->image->globals[i].name, name) == 0) {
            if (address != NULL)
                *address = m->globals[i];
            if (bytes != NULL)
                *bytes = m->image->globals[i].bytes;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_FOUND;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *dptr, size_t *bytes, CUmodule hmod, const char *name)
{
    SGF_ENTER();
    return sgf_valid(SGF_MODULE, hmod) ? global_named(hmod, name, dptr, bytes) : CUDA_ERROR_INVALID_HANDLE;
}

/* ---- libraries: an image without a context, made a module of a context when needed -------------------------- */
CUresult sgf_library_module(struct CUlib_st *library, struct CUctx_st *context, CUmodule *out)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&library->lock);
    for (uint32_t i = 0; i < library->module_count; i++)
        if (library->modules[i]->context == context) {
            *out = library->modules[i];
            pthread_mutex_unlock(&library->lock);
            return CUDA_SUCCESS;
        }
    if (library->module_count == sizeof library->modules / sizeof library->modules[0])
        result = CUDA_ERROR_OUT_OF_MEMORY;
    else
        result = sgf_module_create(context, library->image, library, out);
    if (result == CUDA_SUCCESS)
        library->modules[library->module_count++] = *out;
    pthread_mutex_unlock(&library->lock);
    return result;
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jitOptions, void **jitOptionsValues,
                           unsigned int numJitOptions, CUlibraryOption *libraryOptions, void **libraryOptionValues,
                           unsigned int numLibraryOptions)
{
    SGF_ENTER();
    struct sgf_image *image;
    char reason[SGF_REASON_BYTES];
    (void)libraryOptions, (void)libraryOptionValues, (void)numLibraryOptions;
    if (library == NULL || code == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sgf_image_load(code, reason, &image);
    sgf_jit_log(numJitOptions, jitOptions, jitOptionsValues, reason);
    if (result != CUDA_SUCCESS)
        return result;
    struct CUlib_st *made = sgf_new(SGF_LIBRARY);
    if (made == NULL) {
        sgf_image_release(image);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_init(&made->lock, NULL);
    made->image = image;
    *library = made;
    return CUDA_SUCCESS;
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *fileName, CUjit_option *jitOptions, void **jitOptionsValues,
                               unsigned int numJitOptions, CUlibraryOption *libraryOptions, void **libraryOptionValues,
                               unsigned int numLibraryOptions)
{
    SGF_ENTER();
    char *data;
    CUresult result = read_whole(fileName, &data);
    if (result != CUDA_SUCCESS)
        return result;
    result = cuLibraryLoadData(library, data, jitOptions, jitOptionsValues, numJitOptions, libraryOptions, libraryOptionValues,
                               numLibraryOptions);
    free(data);
    return result;
}

CUresult cuLibraryUnload(CUlibrary library)
{
    SGF_ENTER();
    if (!sgf_valid(SGF_LIBRARY, library))
        return CUDA_ERROR_INVALID_HANDLE;
    while (library->module_count > 0)
        unload(library->modules[0]);
    free_functions(library->kernels);
    sgf_image_release(library->image);
    pthread_mutex_destroy(&library->lock);
    sgf_delete(library);
    return CUDA_SUCCESS;
}

static CUresult kernel_named(struct CUlib_st *library, const char *name, CUkernel *out)
{
    struct CUfunc_st *f;
    pthread_mutex_lock(&library->lock);
    CUresult result = function_named(&library->kernels, library->image, name, NULL, library, &f);
    pthread_mutex_unlock(&library->lock);
    if (result == CUDA_SUCCESS)
        *out = (CUkernel)f;
    return result;
}

CUresult cuLibraryGetKernel(CUkernel *pKernel, CUlibrary library, const char *name)
{
    SGF_ENTER();
    if (pKernel == NULL || name == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return sgf_valid(SGF_LIBRARY, library) ? kernel_named(library, name, pKernel) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary lib)
{
    SGF_ENTER();
    if (count == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sgf_valid(SGF_LIBRARY, lib))
        return CUDA_ERROR_INVALID_HANDLE;
    *count = lib->image->kernel_count;
    return CUDA_SUCCESS;
}

CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int numKernels, CUlibrary lib)
{
    SGF_ENTER();
    if (kernels == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!sgf_valid(SGF_LIBRARY, lib))
        return CUDA_ERROR_INVALID_HANDLE;
    for (uint32_t i = 0; i < numKernels && i < lib->image->kernel_count; i++) {
        CUresult result = kernel_named(lib, lib->image->kernels[i].name, &kernels[i]);
        if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetModule(CUmodule *pMod, CUlibrary library)
{
    SGF_ENTER_CONTEXT(context);
    if (pMod == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return sgf_valid(SGF_LIBRARY, library) ? sgf_library_module(library, context, pMod) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuLibraryGetGlobal(CUdeviceptr *dptr, size_t *bytes, CUlibrary library, const char *name)
{
    SGF_ENTER_CONTEXT(context);
    CUmodule m;
    if (!sgf_valid(SGF_LIBRARY, library))
        return CUDA_ERROR_INVALID_HANDLE;
    CUresult result = sgf_library_module(library, context, &m);
    return result != CUDA_SUCCESS ? result : global_named(m, name, dptr, bytes);
}
