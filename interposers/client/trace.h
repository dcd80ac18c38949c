/* The tracer: one line per call, like strace, when SINGULARITY_TRACE names a file or is `stderr`. */
#ifndef SG_TRACE_H
#define SG_TRACE_H

#include "../generated/calls.h"

extern int sg_trace_on;
void sg_trace_start(void);
/* `names`: comma-separated; `codes`: one letter per parameter (see trace.c); `values`: bits of each. */
void sg_trace(const char *call, const char *names, const char *codes, const uint64_t *values, CUresult result);
/* The same for a call of another library, whose results have other names. */
void sg_trace_line(const char *call, const char *names, const char *codes, const uint64_t *values, int result, const char *result_name);

/* Any parameter's bits, also those of a float or a small struct. */
#define SG_TRACE_VALUE(x) sg_trace_bits(&(x), sizeof(x))
static inline uint64_t sg_trace_bits(const void *at, unsigned long bytes)
{
    uint64_t bits = 0;
    __builtin_memcpy(&bits, at, bytes < sizeof bits ? bytes : sizeof bits);
    return bits;
}

#endif
