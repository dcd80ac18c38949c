/* The sub-allocator of device memory: pure logic over an address range, no I/O, no locks.
 *
 * Bidirectional: LOW takes the lowest free address that fits, HIGH the highest.  Temporaries and what lives
 * as long as the job (parameters, optimiser state) then stay apart, and equal call sequences give equal
 * addresses in equal ranks, which is what cheap time-slicing compares.  Address-ordered first fit, from
 * either end, in O(log n): one search tree over all blocks, augmented with the largest free block below.
 * Metadata lies outside of the arena, because the arena is device memory. */
#ifndef SG_ARENA_H
#define SG_ARENA_H

#include <stdint.h>

#define SG_ARENA_GRAIN 512u
enum { SG_ARENA_LOW = 0, SG_ARENA_HIGH = 1 };
enum { SG_ARENA_OK = 0, SG_ARENA_FULL = -1, SG_ARENA_UNKNOWN = -2, SG_ARENA_TAKEN = -3, SG_ARENA_NO_MEMORY = -4 };

typedef struct sg_arena sg_arena;
struct sg_arena_block { uint64_t address, bytes, owner; };

/* `base` and `bytes` are rounded inwards to the grain.  NULL: no memory, or nothing left after rounding. */
sg_arena *sg_arena_create(uint64_t base, uint64_t bytes);
void sg_arena_destroy(sg_arena *arena);

/* Sizes are rounded up to the grain; `owner` is any non-zero tag. */
int sg_arena_alloc(sg_arena *arena, uint64_t bytes, int end, uint64_t owner, uint64_t *address);
int sg_arena_alloc_at(sg_arena *arena, uint64_t address, uint64_t bytes, uint64_t owner); /* TAKEN: not wholly free */
int sg_arena_free(sg_arena *arena, uint64_t address); /* of a block's start; UNKNOWN otherwise */
/* The live block that holds `address` (anywhere in it). */
int sg_arena_find(const sg_arena *arena, uint64_t address, struct sg_arena_block *block);
/* The first live block at or above `address`: walks all blocks in address order. */
int sg_arena_next(const sg_arena *arena, uint64_t address, struct sg_arena_block *block);

uint64_t sg_arena_base(const sg_arena *arena);
uint64_t sg_arena_bytes(const sg_arena *arena);
uint64_t sg_arena_free_bytes(const sg_arena *arena);
uint64_t sg_arena_largest(const sg_arena *arena); /* the largest request that succeeds now */
/* 1 when every internal invariant holds; for tests. */
int sg_arena_check(const sg_arena *arena);

#endif
