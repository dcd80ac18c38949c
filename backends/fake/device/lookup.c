/* Looking things up by name or code: entry points, errors. */
#include "procs.h"

#include <string.h>

CUresult cuGetErrorName(CUresult error, const char **pStr)
{
    if (pStr == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *pStr = NULL;
    for (size_t i = 0; i < sgf_error_name_count; i++)
        if (sgf_error_names[i].code == (int)error)
            *pStr = sgf_error_names[i].name;
    return *pStr == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **pStr)
{
    if (pStr == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *pStr = NULL;
    for (size_t i = 0; i < sgf_error_name_count; i++)
        if (sgf_error_names[i].code == (int)error)
            *pStr = sgf_error_names[i].description;
    return *pStr == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

/* The newest variant that a program built for `version` knows. */
static CUresult find(const char *symbol, void **pfn, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
    const struct sgf_proc *best = NULL;
    bool known = false;
    if (symbol == NULL || pfn == NULL || (flags & ~(cuuint64_t)3) != 0 || flags == 3)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < sgf_proc_count; i++) {
        const struct sgf_proc *p = &sgf_procs[i];
        if (strcmp(p->name, symbol) != 0)
            continue;
        known = true;
        if (p->since <= version && (best == NULL || p->since >= best->since))
            best = p;
    }
    *pfn = NULL;
    if (best != NULL)
        *pfn = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0 && best->per_thread != NULL ? best->per_thread
                                                                                                : best->legacy;
    if (status != NULL)
        *status = best != NULL ? CU_GET_PROC_ADDRESS_SUCCESS
                  : known      ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                               : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_SUCCESS; /* also when nothing was found: *pfn says so */
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *symbolStatus)
{
    return find(symbol, pfn, cudaVersion, flags, symbolStatus);
}

/* The first form, of CUDA 11, has no status: what is not found is an error. */
CUresult cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags)
{
    CUresult result = find(symbol, pfn, cudaVersion, flags, NULL);
    return result == CUDA_SUCCESS && *pfn == NULL ? CUDA_ERROR_NOT_FOUND : result;
}
