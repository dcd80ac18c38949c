/* Shapes of the generated tables. */
#ifndef SGF_PROCS_H
#define SGF_PROCS_H

#include "device.h"
/* cudaProfiler.h is not in the wheels that bring cuda.h. */
SGF_EXPORT CUresult cuProfilerStart(void);
SGF_EXPORT CUresult cuProfilerStop(void);

struct sgf_proc { const char *name; int since; void *legacy, *per_thread; };
struct sgf_error_name { int code; const char *name, *description; };
extern const struct sgf_proc sgf_procs[];
extern const size_t sgf_proc_count;
extern const struct sgf_error_name sgf_error_names[];
extern const size_t sgf_error_name_count;

#endif
