/* The process's view of the device(s): settings, initialisation, fork, injected failures. */
#include "device.h"

#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct sgf_globals sgf;
static pthread_mutex_t start_lock = PTHREAD_MUTEX_INITIALIZER;

#define MAX_RULES 32
static struct rule { char name[64]; long nth, count; CUresult error; } rules[MAX_RULES];
static int rule_count;
static pthread_mutex_t rule_lock = PTHREAD_MUTEX_INITIALIZER;

void sgf_say(const char *format, ...)
{
    char line[1024];
    va_list arguments;
    int used = snprintf(line, sizeof line, "singularity: in-memory device: ");
    va_start(arguments, format);
    vsnprintf(line + used, sizeof line - (size_t)used - 1, format, arguments);
    va_end(arguments);
    size_t length = strlen(line);
    line[length++] = '\n';
    ssize_t ignored = write(STDERR_FILENO, line, length); /* one call: lines of threads do not mix */
    (void)ignored;
}

void sgf_once(const char *function)
{
    static const char *_Atomic said[1024];
    uintptr_t start = 0;
    for (const char *c = function; *c != 0; c++)
        start = start * 31u + (unsigned char)*c;
    for (uintptr_t i = 0; i < 1024; i++) {
        const char *expected = NULL, *_Atomic *slot = &said[(start + i) % 1024];
        if (atomic_compare_exchange_strong(slot, &expected, function))
            break;
        if (strcmp(expected, function) == 0)
            return;
    }
    sgf_say("%s is not supported (CUDA_ERROR_NOT_SUPPORTED); docs/in-memory-device.md lists what is", function);
}

CUresult sgf_unsupported(const char *function)
{
    CUresult result = sgf_enter(function);
    if (result != CUDA_SUCCESS)
        return result;
    sgf_once(function);
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult sgf_not_ready(void)
{
    return CUDA_ERROR_NOT_INITIALIZED;
}

/* ---- injected failures: SINGULARITY_FAKE_FAIL="cuMemAlloc:3=2,kernel:5=700" ------------------------- */
static void add_rule(const char *text, size_t length)
{
    char copy[128];
    long nth, error;
    if (length == 0 || length >= sizeof copy || rule_count == MAX_RULES)
        return;
    memcpy(copy, text, length);
    copy[length] = 0;
    struct rule *rule = &rules[rule_count];
    if (sscanf(copy, "%63[A-Za-z0-9_]:%ld=%ld", rule->name, &nth, &error) != 3 || nth < 1) {
        sgf_say("SINGULARITY_FAKE_FAIL: cannot read `%s`; write NAME:NTH=CODE, as in cuMemAlloc:3=2", copy);
        return;
    }
    rule->nth = nth;
    rule->count = 0;
    rule->error = (CUresult)error;
    rule_count++;
}

/* For tests: replaces all rules; NULL or "" ends injection.  Counting starts anew. */
SGF_EXPORT void sgf_inject_failures(const char *text)
{
    pthread_mutex_lock(&rule_lock);
    rule_count = 0;
    for (const char *at = text == NULL ? "" : text; *at != 0;) {
        size_t length = strcspn(at, ",");
        add_rule(at, length);
        at += length + (at[length] == ',');
    }
    atomic_store(&sgf.injecting, rule_count > 0);
    pthread_mutex_unlock(&rule_lock);
}

/* "cuMemAlloc" means cuMemAlloc, cuMemAlloc_v2, cuMemAlloc_v2_ptds... */
static bool names(const char *rule, const char *function)
{
    size_t length = strlen(rule);
    return strncmp(rule, function, length) == 0 && (function[length] == 0 || function[length] == '_');
}

static CUresult count_call(const char *function)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&rule_lock);
    for (int i = 0; i < rule_count; i++)
        if (names(rules[i].name, function) && ++rules[i].count == rules[i].nth)
            result = rules[i].error;
    pthread_mutex_unlock(&rule_lock);
    return result;
}

CUresult sgf_injected(const char *function)
{
    return count_call(function);
}

bool sgf_injected_kernel(CUresult *result)
{
    *result = count_call("kernel");
    return *result != CUDA_SUCCESS;
}

/* ---- settings --------------------------------------------------------------------------------------- */
static bool read_size(const char *text, uint64_t *out)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || end == text)
        return false;
    unsigned shift = 0;
    switch (*end) {
    case 'k': case 'K': shift = 10; end++; break;
    case 'm': case 'M': shift = 20; end++; break;
    case 'g': case 'G': shift = 30; end++; break;
    default: break;
    }
    if (*end != 0 || value == 0 || value > (SGF_HEAP_OFFSET >> shift) / 4)
        return false;
    *out = value << shift;
    return true;
}

static uint64_t setting(const char *name, uint64_t fallback)
{
    const char *text = getenv(name);
    uint64_t value = fallback;
    if (text != NULL && *text != 0 && !read_size(text, &value))
        sgf_say("%s=%s is not a size that fits; using %llu", name, text, (unsigned long long)fallback);
    return value;
}

static int processors(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set);
    return 1;
}

/* CUDA_VISIBLE_DEVICES: ordinals in order; the list ends at the first that does not exist. */
static int visible(int count, int ordinals[SGF_MAX_DEVICES])
{
    const char *text = getenv("CUDA_VISIBLE_DEVICES");
    int used = 0;
    if (text == NULL) {
        for (int i = 0; i < count; i++)
            ordinals[i] = i;
        return count;
    }
    while (*text != 0 && used < SGF_MAX_DEVICES) {
        char *end;
        long ordinal = strtol(text, &end, 10);
        if (end == text || ordinal < 0 || ordinal >= count || (*end != 0 && *end != ','))
            break;
        bool twice = false;
        for (int i = 0; i < used; i++)
            twice = twice || ordinals[i] == ordinal;
        if (twice)
            return 0; /* as the vendor's driver: no device at all */
        ordinals[used++] = (int)ordinal;
        text = *end == ',' ? end + 1 : end;
    }
    return used;
}

static CUresult open_device(struct sgf_device *device, int ordinal)
{
    device->ordinal = ordinal;
    /* By position among the visible: a proxy that sees one device has the same window whichever that is. */
    device->lo = SG_DEVICE_BASE + (uint64_t)(device - sgf.devices) * SG_DEVICE_WINDOW;
    device->hi = device->lo + SG_DEVICE_WINDOW;
    pthread_mutex_init(&device->lock, NULL);
    pthread_mutex_init(&device->arena.lock, NULL);
    pthread_mutex_init(&device->kernels, NULL);
    if (sgf_reserve(device->lo, SG_DEVICE_WINDOW) == 0) {
        sgf_say("cannot reserve the device window at 0x%llx (%s); is another device library loaded, or `ulimit -v` set?",
                (unsigned long long)device->lo, strerror(errno));
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    uint64_t span = sgf.memory * 4;
    span = (span < SGF_HEAP_OFFSET ? span : SGF_HEAP_OFFSET) & ~(uint64_t)(SGF_PAGE - 1);
    device->heap = sgf_zone_create(device->lo + SGF_HEAP_OFFSET, span, sgf.memory & ~(uint64_t)(SGF_PAGE - 1));
    return device->heap == NULL ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static void forked(void)
{
    if (atomic_load(&sgf.state) == SGF_READY)
        atomic_store(&sgf.state, SGF_FORKED); /* threads and queues are gone: as with the real driver */
}

static void stay_loaded(void)
{
    Dl_info info;
    if (dladdr((void *)(uintptr_t)&sgf_initialise, &info) != 0 && info.dli_fname != NULL)
        dlopen(info.dli_fname, RTLD_NOW | RTLD_NODELETE | RTLD_NOLOAD); /* our threads run its code */
}

static CUresult start(void)
{
    int ordinals[SGF_MAX_DEVICES];
    const char *text = getenv("SINGULARITY_FAKE_DEVICES");
    long count = text != NULL && *text != 0 ? strtol(text, NULL, 10) : 1;
    count = count < 0 ? 0 : count > SGF_MAX_DEVICES ? SGF_MAX_DEVICES : count;
    sgf.device_count = visible((int)count, ordinals);
    if (sgf.device_count == 0)
        return CUDA_ERROR_NO_DEVICE;
    sgf.memory = setting("SINGULARITY_FAKE_MEMORY", 4ull << 30);
    sgf.threads = (int)setting("SINGULARITY_FAKE_THREADS", (uint64_t)processors());
    sgf.threads = sgf.threads > 256 ? 256 : sgf.threads;
    text = getenv("SINGULARITY_FAKE_PARALLEL_ATOMICS");
    sgf.parallel_atomics = text != NULL && *text != 0 && strcmp(text, "0") != 0;
    text = getenv("SINGULARITY_FAKE_EXCLUSIVE");
    sgf.exclusive = text != NULL && *text != 0 && strcmp(text, "0") != 0;
    for (int i = 0; i < sgf.device_count; i++) {
        CUresult result = open_device(&sgf.devices[i], ordinals[i]);
        if (result != CUDA_SUCCESS)
            return result;
    }
    sgf.pinned_lo = sgf_reserve(0, SGF_PINNED_ZONE);
    if (sgf.pinned_lo == 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    sgf.pinned_hi = sgf.pinned_lo + SGF_PINNED_ZONE;
    sgf.pinned = sgf_zone_create(sgf.pinned_lo, SGF_PINNED_ZONE, SGF_PINNED_ZONE);
    if (sgf.pinned == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    sgf_fault_install();
    pthread_atfork(NULL, NULL, forked);
    stay_loaded();
    sgf_inject_failures(getenv("SINGULARITY_FAKE_FAIL"));
    return CUDA_SUCCESS;
}

CUresult sgf_initialise(void)
{
    static CUresult failed;
    int state = atomic_load_explicit(&sgf.state, memory_order_acquire);
    if (state == SGF_READY)
        return CUDA_SUCCESS;
    if (state == SGF_FORKED)
        return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&start_lock);
    if (atomic_load(&sgf.state) == SGF_COLD && failed == CUDA_SUCCESS) {
        failed = start();
        if (failed == CUDA_SUCCESS)
            atomic_store_explicit(&sgf.state, SGF_READY, memory_order_release);
    }
    pthread_mutex_unlock(&start_lock);
    return failed;
}

CUresult cuInit(unsigned int Flags)
{
    if (Flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    return sgf_initialise();
}

struct sgf_device *sgf_device_of(uint64_t address)
{
    for (int i = 0; i < sgf.device_count; i++)
        if (address >= sgf.devices[i].lo && address < sgf.devices[i].hi)
            return &sgf.devices[i];
    return NULL;
}
