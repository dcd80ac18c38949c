#include "trace.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "names.h"

int sg_trace_on;
static int trace_file = -1;

void sg_trace_start(void)
{
    const char *where = getenv("SINGULARITY_TRACE");
    if (!where || !*where)
        return;
    trace_file = strcmp(where, "stderr") == 0 ? dup(2) : open(where, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (trace_file < 0) {
        fprintf(stderr, "singularity: SINGULARITY_TRACE=%s cannot be opened: %s\n", where, strerror(errno));
        return;
    }
    sg_trace_on = 1;
}

/* Lower case: the value itself; upper case: what the pointer points to, once the call has succeeded. */
static int print_value(char *to, size_t room, char code, uint64_t value, int result)
{
    const void *at = (const void *)(uintptr_t)value;
    float number;
    uint32_t low = (uint32_t)value;
    if (code >= 'A' && code <= 'Z' && (!at || result != 0))
        code = 'p';
    switch (code) {
    case 'i': return snprintf(to, room, "%d", (int)low);
    case 'u': return snprintf(to, room, "%u", low);
    case 'z': return snprintf(to, room, "%llu", (unsigned long long)value);
    case 'f': memcpy(&number, &low, sizeof number); return snprintf(to, room, "%g", (double)number);
    case 's': return at ? snprintf(to, room, "\"%.64s\"", (const char *)at) : snprintf(to, room, "NULL");
    case 'I': return snprintf(to, room, "[%d]", *(const int *)at);
    case 'U': return snprintf(to, room, "[%u]", *(const unsigned *)at);
    case 'F': return snprintf(to, room, "[%g]", (double)*(const float *)at);
    case 'Z': return snprintf(to, room, "[%llu]", *(const unsigned long long *)at);
    case 'X': return snprintf(to, room, "[%#llx]", *(const unsigned long long *)at);
    case 'S': return snprintf(to, room, "[\"%.64s\"]", *(const char *const *)at);
    default: return value ? snprintf(to, room, "%#llx", (unsigned long long)value) : snprintf(to, room, "0");
    }
}

void sg_trace_line(const char *call, const char *names, const char *codes, const uint64_t *values, int result, const char *result_name)
{
    char line[1024];
    size_t at = 0, room = sizeof line - 80;
    int saved = errno;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    at += (size_t)snprintf(line, room, "%ld.%06ld [%ld] %s(", (long)now.tv_sec, now.tv_nsec / 1000, syscall(SYS_gettid), call);
    for (size_t i = 0; codes[i] && at < room; i++) {
        size_t length = strcspn(names, ",");
        at += (size_t)snprintf(line + at, room - at, "%s%.*s=", i ? ", " : "", (int)length, names);
        if (at < room)
            at += (size_t)print_value(line + at, room - at, codes[i], values[i], result);
        names += length + (names[length] == ',');
    }
    if (at > room)
        at = room;
    at += (size_t)snprintf(line + at, sizeof line - at, ") = %d %s\n", result, result_name ? result_name : "?");
    ssize_t written = write(trace_file, line, at < sizeof line ? at : sizeof line - 1);
    (void)written;
    errno = saved;
}

void sg_trace(const char *call, const char *names, const char *codes, const uint64_t *values, CUresult result)
{
    sg_trace_line(call, names, codes, values, (int)result, sg_error_name((int)result));
}
