/* Faults: what happens when a kernel or a copy touches memory that it must not.
 *
 * Dead pages of the windows are PROT_NONE, so a bad access raises SIGSEGV in the thread that made it.  The handler
 * leaves generated code for its executor's scheduler (sgf_leave_kernel), and a guarded copy by siglongjmp; whatever
 * is not ours goes to the handler that was there before us.  Generated code holds no locks, so leaving is safe. */
#include "device.h"

#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HANDLER_STACK (64u << 10)

__thread void *volatile sgf_guard_here __attribute__((tls_model("initial-exec")));
static __thread volatile int chaining __attribute__((tls_model("initial-exec")));
static struct sigaction before_segv, before_bus;
static pthread_key_t stack_key;

static void chain(const struct sigaction *before, int number, siginfo_t *info, void *context)
{
    if (!chaining && (before->sa_flags & SA_SIGINFO) != 0 && before->sa_sigaction != NULL) {
        chaining = 1;
        before->sa_sigaction(number, info, context);
        chaining = 0;
        return;
    }
    if (!chaining && before->sa_handler != SIG_DFL && before->sa_handler != SIG_IGN) {
        chaining = 1;
        before->sa_handler(number);
        chaining = 0;
        return;
    }
    signal(number, SIG_DFL); /* returning repeats the access, which now ends the process as it should */
}

static void handler(int number, siginfo_t *info, void *context)
{
    sigjmp_buf *guard = sgf_guard_here;
#if defined(__SANITIZE_THREAD__) /* its runtime blocks all signals around a handler, and we do not return to it */
    sigset_t faults;
    sigemptyset(&faults);
    sigaddset(&faults, SIGSEGV);
    sigaddset(&faults, SIGBUS);
    pthread_sigmask(SIG_UNBLOCK, &faults, NULL);
#endif
    uint64_t address = info->si_code > 0 ? (uint64_t)(uintptr_t)info->si_addr : 0;
    if (guard != NULL)
        siglongjmp(*guard, 1);
    if (sgf_in_kernel())
        sgf_leave_kernel(CUDA_ERROR_ILLEGAL_ADDRESS, address);
    chain(number == SIGBUS ? &before_bus : &before_segv, number, info, context);
}

static void free_stack(void *stack)
{
    stack_t off = { .ss_flags = SS_DISABLE };
    sigaltstack(&off, NULL);
    sgf_stack_clean(stack, HANDLER_STACK);
    munmap(stack, HANDLER_STACK);
}

void sgf_fault_install(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER; /* we leave without returning */
    sigemptyset(&action.sa_mask);
    pthread_key_create(&stack_key, free_stack);
    sigaction(SIGSEGV, &action, &before_segv);
    sigaction(SIGBUS, &action, &before_bus);
}

/* A handler that someone installed after us (faulthandler, a debugger's) is put behind ours again. */
static void reinstall(int number, struct sigaction *before)
{
    struct sigaction now, action;
    if (sigaction(number, NULL, &now) != 0 || ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == handler))
        return;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigemptyset(&action.sa_mask);
    if (sigaction(number, &action, &now) == 0)
        *before = now;
}

void sgf_fault_thread(void)
{
    stack_t now;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    reinstall(SIGSEGV, &before_segv);
    reinstall(SIGBUS, &before_bus);
    pthread_mutex_unlock(&lock);
    if (sigaltstack(NULL, &now) == 0 && (now.ss_flags & SS_DISABLE) == 0)
        return; /* the thread has one, perhaps the application's */
    void *stack = mmap(NULL, HANDLER_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED)
        return;
    sgf_stack_clean(stack, HANDLER_STACK);
    stack_t on = { .ss_sp = stack, .ss_size = HANDLER_STACK };
    if (sigaltstack(&on, NULL) != 0)
        munmap(stack, HANDLER_STACK);
    else
        pthread_setspecific(stack_key, stack);
}

CUresult sgf_guarded_copy(void *dst, const void *src, size_t bytes)
{
    sigjmp_buf guard;
    void *outer = sgf_guard_here;
    if (sigsetjmp(guard, 0) != 0) {
        sgf_guard_here = outer;
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    sgf_guard_here = &guard;
    memmove(dst, src, bytes);
    sgf_guard_here = outer;
    return CUDA_SUCCESS;
}

CUresult sgf_guarded_fill(void *dst, uint32_t value, uint32_t element, uint64_t count)
{
    sigjmp_buf guard;
    void *outer = sgf_guard_here;
    if (sigsetjmp(guard, 0) != 0) {
        sgf_guard_here = outer;
        return CUDA_ERROR_ILLEGAL_ADDRESS;
    }
    sgf_guard_here = &guard;
    uint8_t *bytes = dst;
    if (element == 1 || (element == 4 && value == (value & 0xff) * 0x01010101u) ||
        (element == 2 && value == (value & 0xff) * 0x0101u))
        memset(bytes, (int)(value & 0xff), count * element);
    else if (element == 2)
        for (uint64_t i = 0; i < count; i++)
            ((uint16_t *)dst)[i] = (uint16_t)value;
    else
        for (uint64_t i = 0; i < count; i++)
            ((uint32_t *)dst)[i] = value;
    sgf_guard_here = outer;
    return CUDA_SUCCESS;
}

/* ---- host memory that the device may use ------------------------------------------------------------- */
#define MAX_RANGES 4096
static struct range { _Atomic uint64_t lo, hi; } ranges[MAX_RANGES];
static _Atomic uint32_t range_count;
static pthread_mutex_t range_lock = PTHREAD_MUTEX_INITIALIZER;

bool sgf_host_registered(uint64_t address, uint64_t bytes)
{
    uint32_t count = atomic_load_explicit(&range_count, memory_order_acquire);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t lo = atomic_load_explicit(&ranges[i].lo, memory_order_relaxed);
        uint64_t hi = atomic_load_explicit(&ranges[i].hi, memory_order_acquire);
        if (address >= lo && address < hi && bytes <= hi - address)
            return true;
    }
    return false;
}

CUresult sgf_host_register(uint64_t host, uint64_t bytes)
{
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (host == 0 || bytes == 0 || host + bytes < host || sgf_device_of(host) != NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&range_lock);
    uint32_t count = atomic_load(&range_count), free_slot = MAX_RANGES;
    bool overlaps = false;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t lo = atomic_load(&ranges[i].lo), hi = atomic_load(&ranges[i].hi);
        if (hi == 0)
            free_slot = i;
        else if (host < hi && lo < host + bytes)
            overlaps = true;
    }
    if (free_slot == MAX_RANGES && count < MAX_RANGES)
        free_slot = count;
    if (overlaps) {
        result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    } else if (free_slot < MAX_RANGES) {
        atomic_store(&ranges[free_slot].lo, host);
        atomic_store(&ranges[free_slot].hi, host + bytes);
        if (free_slot == count)
            atomic_store_explicit(&range_count, count + 1, memory_order_release);
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&range_lock);
    return result;
}

CUresult sgf_host_unregister(uint64_t host)
{
    CUresult result = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    pthread_mutex_lock(&range_lock);
    for (uint32_t i = 0; i < atomic_load(&range_count); i++)
        if (atomic_load(&ranges[i].hi) != 0 && atomic_load(&ranges[i].lo) == host) {
            atomic_store(&ranges[i].hi, 0);
            result = CUDA_SUCCESS;
        }
    pthread_mutex_unlock(&range_lock);
    return result;
}
