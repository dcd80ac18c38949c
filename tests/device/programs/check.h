/* Test programs of the in-memory device: cases by name, checks that say what they saw. */
#ifndef CHECK_H
#define CHECK_H

#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition) \
    do { if (!(condition)) { fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); exit(1); } } while (0)
#define IS(expected, call) \
    do { CUresult got_ = (call); if (got_ != (expected)) { \
        fprintf(stderr, "%s:%d: %s gave %d, not %s\n", __FILE__, __LINE__, #call, (int)got_, #expected); exit(1); } } while (0)
#define OK(call) IS(CUDA_SUCCESS, call)

/* CASE(name, "the behaviour it pins") { body } */
struct test_case { const char *name; void (*run)(void); struct test_case *next; };
extern struct test_case *test_cases;
#define CASE(name, behaviour) \
    static void name(void); \
    __attribute__((constructor)) static void add_##name(void) \
    { static struct test_case c = { #name, name, NULL }; c.next = test_cases; test_cases = &c; } \
    static void name(void)

extern CUcontext context;   /* current when a case begins */
extern CUmodule module;     /* kernels.image, loaded */
CUfunction function(const char *name);
CUmodule load_image(void);
void *text_of(const char *path);

#endif
