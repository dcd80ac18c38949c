/* Stack switching.  x86-64 has its own switch (callee-saved registers and rounding modes, about 5 ns); other
 * machines use ucontext. */
#include "device.h"

#include <stdlib.h>
#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

/* Frames that were left by a fault never took their marks off the sanitizer's map. */
void sgf_stack_clean(void *stack, size_t bytes)
{
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(stack, bytes);
#endif
    (void)stack, (void)bytes;
}

void *sgf_stack_new(size_t bytes)
{
    char *at = mmap(NULL, bytes + SGF_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (at == MAP_FAILED)
        return NULL;
    mprotect(at, SGF_PAGE, PROT_NONE); /* overflow faults instead of spreading */
    return at + SGF_PAGE;
}

void sgf_stack_free(void *stack, size_t bytes)
{
    munmap((char *)stack - SGF_PAGE, bytes + SGF_PAGE);
}

#if defined(__x86_64__)
/* void switch_stack(void **from, void *to): saves the callee-saved state, changes stacks, restores. */
__asm__(".text\n.p2align 4\n.type sgf_switch_stack,@function\n"
        "sgf_switch_stack:\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  subq $8, %rsp\n  stmxcsr (%rsp)\n  fnstcw 4(%rsp)\n"
        "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
        "  ldmxcsr (%rsp)\n  fldcw 4(%rsp)\n  addq $8, %rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n  ret\n"
        ".size sgf_switch_stack,.-sgf_switch_stack\n"
        /* First entry of a fiber: r12 = entry, r13 = argument; the frame below it is a dead end. */
        ".type sgf_fiber_start,@function\n"
        "sgf_fiber_start:\n  movq %r13, %rdi\n  xorl %ebp, %ebp\n  callq *%r12\n  ud2\n"
        ".size sgf_fiber_start,.-sgf_fiber_start\n");
extern void sgf_switch_stack(void **from, void *to);
extern void sgf_fiber_start(void);

struct first_frame { uint32_t mxcsr; uint16_t x87, pad; uint64_t r15, r14; void *r13; void *r12; uint64_t rbx, rbp; void *ret; };

static void make(struct sgf_fiber_context *fiber, void *stack, size_t bytes, void (*entry)(void *), void *argument)
{
    uintptr_t top = ((uintptr_t)stack + bytes) & ~(uintptr_t)63;
    /* After `ret` the stack pointer must be 16-byte aligned, so that the call in the start code aligns as the ABI asks. */
    struct first_frame *frame = (struct first_frame *)(top - 64 - sizeof *frame);
    *frame = (struct first_frame){ .mxcsr = 0x1f80, .x87 = 0x37f, .r13 = argument, .ret = (void *)(uintptr_t)sgf_fiber_start };
    frame->r12 = (void *)(uintptr_t)entry;
    fiber->sp = frame;
}

static inline void change(struct sgf_fiber_context *from, struct sgf_fiber_context *to)
{
    sgf_switch_stack(&from->sp, to->sp);
}
#else
#include <ucontext.h>

struct box { ucontext_t context; void (*entry)(void *); void *argument; };

static void start(unsigned high, unsigned low)
{
    struct box *box = (struct box *)(((uintptr_t)high << 32) | low);
    box->entry(box->argument);
    abort();
}

static void make(struct sgf_fiber_context *fiber, void *stack, size_t bytes, void (*entry)(void *), void *argument)
{
    struct box *box = stack; /* lies at the far end of the stack it describes */
    getcontext(&box->context);
    box->entry = entry;
    box->argument = argument;
    box->context.uc_stack.ss_sp = (char *)stack + sizeof *box;
    box->context.uc_stack.ss_size = bytes - sizeof *box;
    box->context.uc_link = NULL;
    makecontext(&box->context, (void (*)(void))start, 2, (unsigned)((uintptr_t)box >> 32), (unsigned)(uintptr_t)box);
    fiber->sp = box;
}

static void change(struct sgf_fiber_context *from, struct sgf_fiber_context *to)
{
    struct box here; /* lives on the stack that is left, until it is resumed */
    from->sp = &here;
    swapcontext(&here.context, &((struct box *)to->sp)->context);
}
#endif

void sgf_fiber_make(struct sgf_fiber_context *fiber, void *stack, size_t bytes, void (*entry)(void *), void *argument)
{
    fiber->stack = stack;
    fiber->stack_bytes = bytes;
    sgf_stack_clean(stack, bytes);
    make(fiber, stack, bytes, entry, argument);
#if defined(__SANITIZE_THREAD__)
    fiber->sanitizer = __tsan_create_fiber(0);
#endif
}

void sgf_fiber_adopt(struct sgf_fiber_context *thread)
{
#if defined(__SANITIZE_THREAD__)
    thread->sanitizer = __tsan_get_current_fiber();
#endif
#if defined(__SANITIZE_ADDRESS__)
    pthread_attr_t attributes;
    void *stack = NULL;
    size_t bytes = 0;
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
        pthread_attr_getstack(&attributes, &stack, &bytes);
        pthread_attr_destroy(&attributes);
    }
    thread->stack = stack;
    thread->stack_bytes = bytes;
#endif
    (void)thread;
}

void sgf_fiber_end(struct sgf_fiber_context *fiber)
{
#if defined(__SANITIZE_THREAD__)
    if (fiber->sanitizer != NULL)
        __tsan_destroy_fiber(fiber->sanitizer);
    fiber->sanitizer = NULL;
#endif
    (void)fiber;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
__attribute__((no_sanitize("address", "thread")))
#endif
void sgf_fiber_switch(struct sgf_fiber_context *from, struct sgf_fiber_context *to)
{
#if defined(__SANITIZE_ADDRESS__)
    void *fake = NULL;
    __sanitizer_start_switch_fiber(&fake, to->stack, to->stack_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
    __tsan_switch_to_fiber(to->sanitizer, 0);
#endif
    change(from, to);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, NULL, NULL);
#endif
}

void sgf_fiber_entered(void)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(NULL, NULL, NULL);
#endif
}
