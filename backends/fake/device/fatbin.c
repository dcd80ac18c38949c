/* The container in which CUDA C++ programs carry code: finds the PTX inside.
 *
 * Compressed entries (zstd, LZ4) are handed to the compile service (verb 3), which has decompressors; the device
 * itself needs only libc. */
#include "device.h"

#include <stdlib.h>
#include <string.h>

#define WRAPPER_MAGIC 0x466243b1u
#define CONTAINER_MAGIC 0xba55ed50u
#define ENTRY_PTX 1u
#define FLAG_LZ4 0x2000u
#define FLAG_ZSTD 0x8000u

static uint32_t word32(const uint8_t *at)
{
    uint32_t value;
    memcpy(&value, at, 4);
    return value;
}

static uint64_t word64(const uint8_t *at)
{
    uint64_t value;
    memcpy(&value, at, 8);
    return value;
}

bool sgf_fatbin_is(const void *data)
{
    uint32_t magic = word32(data);
    return magic == WRAPPER_MAGIC || magic == CONTAINER_MAGIC;
}

struct choice { const uint8_t *data; uint64_t stored, raw; uint32_t arch; uint64_t flags; };

/* The PTX entry for the highest architecture that the device has. */
static bool choose(const uint8_t *container, struct choice *best)
{
    uint64_t header = container[6] | (uint64_t)container[7] << 8, left = word64(container + 8);
    const uint8_t *at = container + header;
    bool found = false;
    while (left >= 64) {
        uint32_t kind = at[0] | (uint32_t)at[1] << 8, entry_header = word32(at + 4), arch = word32(at + 28);
        uint64_t padded = word64(at + 8);
        if (entry_header < 64 || entry_header > left || padded > left - entry_header)
            return found;
        uint64_t flags = word64(at + 40), packed = word32(at + 16);
        bool compressed = (flags & (FLAG_LZ4 | FLAG_ZSTD)) != 0;
        if (kind == ENTRY_PTX && arch <= 120 && (!found || arch > best->arch) && packed <= padded) {
            *best = (struct choice){ at + entry_header, compressed ? packed : padded, word64(at + 56), arch, flags };
            found = true;
        }
        at += entry_header + padded;
        left -= entry_header + padded;
    }
    return found;
}

static CUresult expand(const struct choice *c, char **text, size_t *bytes)
{
    struct { uint32_t method; uint32_t reserved; uint64_t raw; } head = { (c->flags & FLAG_ZSTD) != 0 ? 1 : 2, 0, c->raw };
    uint8_t *request = malloc(sizeof head + c->stored);
    uint32_t service;
    char *answer = NULL;
    if (request == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(request, &head, sizeof head);
    memcpy(request + sizeof head, c->data, c->stored);
    CUresult result = sgf_service_ask(3, request, sizeof head + c->stored, &answer, &service);
    free(request);
    if (result != CUDA_SUCCESS) {
        sgf_say("compressed PTX in a fatbin: %s", answer != NULL ? answer : "no answer");
        free(answer);
        return result;
    }
    *text = answer;
    *bytes = strlen(answer);
    return CUDA_SUCCESS;
}

static CUresult take(const struct choice *c, char **text, size_t *bytes)
{
    if ((c->flags & (FLAG_LZ4 | FLAG_ZSTD)) != 0)
        return expand(c, text, bytes);
    *bytes = strnlen((const char *)c->data, c->stored);
    *text = malloc(*bytes + 1);
    if (*text == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(*text, c->data, *bytes);
    (*text)[*bytes] = 0;
    return CUDA_SUCCESS;
}

CUresult sgf_fatbin_ptx(const void *data, char **text, size_t *bytes)
{
    const uint8_t *at = data;
    struct choice best;
    *text = NULL;
    *bytes = 0;
    if (word32(at) == WRAPPER_MAGIC)
        at = (const uint8_t *)(uintptr_t)word64(at + 8);
    if (at == NULL || word32(at) != CONTAINER_MAGIC)
        return CUDA_ERROR_INVALID_IMAGE;
    return choose(at, &best) ? take(&best, text, bytes) : CUDA_SUCCESS;
}
