/* The log buffers among the options of cuModuleLoadDataEx and cuLibraryLoadData.  The other options are about an assembler
 * for a card, and have no meaning here. */
#include "device.h"

#include <string.h>

/* Writes text and size; a size in `values` is how many bytes there are, then how many were filled, the NUL included. */
static void write_log(unsigned count, const CUjit_option *options, void **values, CUjit_option buffer, CUjit_option size,
                      const char *text)
{
    char *to = NULL;
    void **room = NULL;
    for (unsigned i = 0; i < count; i++) {
        if (options[i] == buffer)
            to = values[i];
        else if (options[i] == size)
            room = &values[i];
    }
    if (room == NULL)
        return;
    size_t bytes = (uint32_t)(uintptr_t)*room, filled = 0;
    if (to != NULL && bytes != 0) {
        filled = strnlen(text, bytes - 1);
        memcpy(to, text, filled);
        to[filled] = 0;
        filled += filled != 0;
    }
    *room = (void *)(uintptr_t)filled;
}

void sgf_jit_log(unsigned count, const CUjit_option *options, void **values, const char *error)
{
    if (options == NULL || values == NULL)
        return;
    write_log(count, options, values, CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, error);
    write_log(count, options, values, CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, "");
}
