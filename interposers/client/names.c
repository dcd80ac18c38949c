/* Names of errors, and entry points by name. */
#include "names.h"
#include "client.h"

static const struct sg_error_name *find_error(int value)
{
    unsigned low = 0, high = sg_error_name_count;
    while (low < high) {
        unsigned middle = (low + high) / 2;
        if (sg_error_names[middle].value < value)
            low = middle + 1;
        else
            high = middle;
    }
    return low < sg_error_name_count && sg_error_names[low].value == value ? &sg_error_names[low] : NULL;
}

const char *sg_error_name(int value)
{
    const struct sg_error_name *error = find_error(value);
    return error ? error->name : NULL;
}

static CUresult error_text(CUresult value, const char **out, int want_text)
{
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    const struct sg_error_name *error = find_error((int)value);
    *out = error ? (want_text ? error->text : error->name) : NULL;
    return error ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sg_hand_cuGetErrorString(CUresult error, const char **pStr) { return error_text(error, pStr, 1); }
CUresult sg_hand_cuGetErrorName(CUresult error, const char **pStr) { return error_text(error, pStr, 0); }

/* The first entry of `symbol`, or sg_entry_count. */
static unsigned first_entry(const char *symbol)
{
    unsigned low = 0, high = sg_entry_count;
    while (low < high) {
        unsigned middle = (low + high) / 2;
        if (strcmp(sg_entries[middle].symbol, symbol) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < sg_entry_count && strcmp(sg_entries[low].symbol, symbol) == 0 ? low : sg_entry_count;
}

CUresult sg_hand_cuGetProcAddress_v2(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                                     CUdriverProcAddressQueryResult *symbolStatus)
{
    if (!symbol || !pfn || flags > CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
        return CUDA_ERROR_INVALID_VALUE;
    int per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    unsigned at = first_entry(symbol);
    *pfn = NULL;
    CUdriverProcAddressQueryResult status = at == sg_entry_count ? CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND
                                                                 : CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
    for (; at < sg_entry_count && strcmp(sg_entries[at].symbol, symbol) == 0 && sg_entries[at].version <= cudaVersion; at++) {
        const struct sg_entry *entry = &sg_entries[at];
        *pfn = per_thread && entry->per_thread ? entry->per_thread : entry->function;
        status = CU_GET_PROC_ADDRESS_SUCCESS;
    }
    if (symbolStatus)
        *symbolStatus = status;
    return CUDA_SUCCESS; /* also when nothing was found: *pfn says so */
}

/* The first form, of CUDA 11, has no status: what is not found is an error. */
CUresult sg_hand_cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags)
{
    CUresult error = sg_hand_cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, NULL);
    return !error && !*pfn ? CUDA_ERROR_NOT_FOUND : error;
}

/* Private tables are not part of the documented interface; callers must do without (NVRTC does). */
CUresult sg_hand_cuGetExportTable(const void **ppExportTable, const CUuuid *pExportTableId)
{
    (void)pExportTableId;
    if (ppExportTable)
        *ppExportTable = NULL;
    return CUDA_ERROR_NOT_FOUND;
}

/* Declared in cudaProfiler.h. */
SG_EXPORT CUresult CUDAAPI cuProfilerStart(void);
SG_EXPORT CUresult CUDAAPI cuProfilerStop(void);
CUresult CUDAAPI cuProfilerStart(void) { return sg_enter(); }
CUresult CUDAAPI cuProfilerStop(void) { return sg_enter(); }
