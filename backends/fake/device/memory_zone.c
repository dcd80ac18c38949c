/* An allocator of device memory: whole pages of a reserved range, live or PROT_NONE.
 *
 * Every allocation has pages of its own, because a freed allocation must fault; so the granularity is a page,
 * although CUDA promises only 512 bytes.  Two-level segregated fit over boundary tags that lie outside the
 * memory (a stray write on the device cannot hurt them): allocation and free are O(1) plus one system call.
 * A bitmap of block starts, with a summary, finds the block around an interior address. */
#include "device.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { FREE_BLOCK = 1, USED_BLOCK = 2 };
#define SUB_BITS 3u
#define BINS (32u << SUB_BITS)

struct block {
    uint32_t pages, before; /* own length; length of the block before, 0 for the first */
    uint32_t next, previous; /* in the bin: page + 1 */
    uint32_t state, owner, flags, reserved;
    uint64_t bytes, id;
    struct CUmemPoolHandle_st *pool;
};

struct sgf_zone {
    uint64_t base, span, capacity, used, next_id;
    uint32_t pages;
    struct block *blocks;        /* by page; valid at block starts */
    uint64_t *starts, *summary;
    uint32_t bins[BINS];
    uint64_t filled[BINS / 64];
    pthread_mutex_t lock;
};

uint64_t sgf_reserve(uint64_t address, uint64_t bytes)
{
    int fixed = address != 0 ? MAP_FIXED_NOREPLACE : 0;
    void *at = mmap((void *)(uintptr_t)address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | fixed, -1, 0);
    if (at == MAP_FAILED)
        return 0;
    if (address != 0 && (uintptr_t)at != address) { /* a kernel that does not know MAP_FIXED_NOREPLACE */
        munmap(at, bytes);
        return 0;
    }
    return (uintptr_t)at;
}

static void *table(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static uint32_t bin_of(uint32_t pages)
{
    if (pages < (1u << SUB_BITS))
        return pages;
    uint32_t top = 31u - (uint32_t)__builtin_clz(pages);
    return ((top - SUB_BITS + 1u) << SUB_BITS) + ((pages >> (top - SUB_BITS)) & ((1u << SUB_BITS) - 1u));
}

/* The first bin all of whose blocks hold `pages`. */
static uint32_t bin_for(uint32_t pages)
{
    if (pages < (1u << SUB_BITS))
        return pages;
    uint32_t top = 31u - (uint32_t)__builtin_clz(pages);
    return bin_of(pages + (1u << (top - SUB_BITS)) - 1u);
}

static void mark_start(struct sgf_zone *z, uint32_t page, bool on)
{
    uint64_t *word = &z->starts[page / 64];
    *word = on ? *word | 1ull << (page % 64) : *word & ~(1ull << (page % 64));
    uint64_t *above = &z->summary[page / 4096];
    uint64_t bit = 1ull << (page / 64 % 64);
    *above = *word != 0 ? *above | bit : *above & ~bit;
}

/* The block that `page` belongs to. */
static uint32_t start_before(const struct sgf_zone *z, uint32_t page)
{
    uint64_t word = z->starts[page / 64] & (~0ull >> (63 - page % 64));
    if (word != 0)
        return page / 64 * 64 + 63u - (uint32_t)__builtin_clzll(word);
    uint32_t index = page / 64; /* block 0 starts at page 0: the search ends */
    uint64_t above = index % 64 == 0 ? 0 : z->summary[index / 64] & (~0ull >> (64 - index % 64));
    uint32_t line = index / 64;
    while (above == 0)
        above = z->summary[--line];
    index = line * 64 + 63u - (uint32_t)__builtin_clzll(above);
    return index * 64 + 63u - (uint32_t)__builtin_clzll(z->starts[index]);
}

static void bin_add(struct sgf_zone *z, uint32_t page)
{
    struct block *b = &z->blocks[page];
    uint32_t bin = bin_of(b->pages);
    b->previous = 0;
    b->next = z->bins[bin];
    if (b->next != 0)
        z->blocks[b->next - 1].previous = page + 1;
    z->bins[bin] = page + 1;
    z->filled[bin / 64] |= 1ull << (bin % 64);
}

static void bin_remove(struct sgf_zone *z, uint32_t page)
{
    struct block *b = &z->blocks[page];
    uint32_t bin = bin_of(b->pages);
    if (b->previous != 0)
        z->blocks[b->previous - 1].next = b->next;
    else
        z->bins[bin] = b->next;
    if (b->next != 0)
        z->blocks[b->next - 1].previous = b->previous;
    if (z->bins[bin] == 0)
        z->filled[bin / 64] &= ~(1ull << (bin % 64));
}

static void set_length(struct sgf_zone *z, uint32_t page, uint32_t pages)
{
    z->blocks[page].pages = pages;
    if (page + pages < z->pages)
        z->blocks[page + pages].before = pages;
}

struct sgf_zone *sgf_zone_create(uint64_t base, uint64_t span, uint64_t capacity)
{
    struct sgf_zone *z = calloc(1, sizeof *z);
    if (z == NULL)
        return NULL;
    z->base = base;
    z->span = span;
    z->capacity = capacity;
    z->pages = (uint32_t)(span / SGF_PAGE);
    z->blocks = table((size_t)z->pages * sizeof *z->blocks);
    z->starts = table(((size_t)z->pages / 64 + 1) * 8);
    z->summary = table(((size_t)z->pages / 4096 + 1) * 8);
    pthread_mutex_init(&z->lock, NULL);
    if (z->blocks == NULL || z->starts == NULL || z->summary == NULL) {
        free(z);
        return NULL;
    }
    z->blocks[0].state = FREE_BLOCK;
    set_length(z, 0, z->pages);
    mark_start(z, 0, true);
    bin_add(z, 0);
    return z;
}

static bool take_block(struct sgf_zone *z, uint32_t pages, uint32_t *page)
{
    uint32_t bin = bin_for(pages), line = bin / 64;
    uint64_t bits = z->filled[line] & (~0ull << (bin % 64));
    while (bits == 0) {
        if (++line >= BINS / 64)
            return false;
        bits = z->filled[line];
    }
    *page = z->bins[line * 64 + (uint32_t)__builtin_ctzll(bits)] - 1;
    bin_remove(z, *page);
    uint32_t rest = z->blocks[*page].pages - pages;
    if (rest != 0) {
        set_length(z, *page, pages);
        z->blocks[*page + pages].state = FREE_BLOCK;
        set_length(z, *page + pages, rest);
        mark_start(z, *page + pages, true);
        bin_add(z, *page + pages);
    }
    return true;
}

static void give_block(struct sgf_zone *z, uint32_t page)
{
    struct block *b = &z->blocks[page];
    b->state = FREE_BLOCK;
    uint32_t after = page + b->pages;
    if (after < z->pages && z->blocks[after].state == FREE_BLOCK) {
        bin_remove(z, after);
        mark_start(z, after, false);
        set_length(z, page, b->pages + z->blocks[after].pages);
    }
    if (page != 0 && z->blocks[page - b->before].state == FREE_BLOCK) {
        uint32_t first = page - b->before;
        bin_remove(z, first);
        mark_start(z, page, false);
        b->state = 0;
        set_length(z, first, z->blocks[first].pages + b->pages);
        page = first;
    }
    bin_add(z, page);
}

CUresult sgf_zone_alloc(struct sgf_zone *z, uint64_t bytes, uint32_t owner, uint32_t flags, uint64_t *address)
{
    if (bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > z->capacity)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint32_t pages = (uint32_t)((bytes + SGF_PAGE - 1) / SGF_PAGE), page;
    pthread_mutex_lock(&z->lock);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (z->used + (uint64_t)pages * SGF_PAGE <= z->capacity && take_block(z, pages, &page)) {
        uint64_t at = z->base + (uint64_t)page * SGF_PAGE;
        struct block *b = &z->blocks[page];
        if (mprotect((void *)(uintptr_t)at, (size_t)pages * SGF_PAGE, PROT_READ | PROT_WRITE) != 0) {
            sgf_say("cannot make %u pages accessible (%s); raise vm.max_map_count or free memory", pages, strerror(errno));
            give_block(z, page);
        } else {
            b->state = USED_BLOCK;
            b->owner = owner;
            b->flags = flags;
            b->bytes = bytes;
            b->id = ++z->next_id;
            b->pool = NULL;
            z->used += (uint64_t)pages * SGF_PAGE;
            *address = at;
            result = CUDA_SUCCESS;
        }
    }
    pthread_mutex_unlock(&z->lock);
    return result;
}

static void release(struct sgf_zone *z, uint32_t page)
{
    uint64_t at = z->base + (uint64_t)page * SGF_PAGE, length = (uint64_t)z->blocks[page].pages * SGF_PAGE;
    /* A fresh mapping drops content and access in one step: the next owner sees zeroes, never another's data. */
    if (mmap((void *)(uintptr_t)at, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) ==
        MAP_FAILED)
        sgf_say("cannot take back %llu bytes at 0x%llx (%s)", (unsigned long long)length, (unsigned long long)at,
                strerror(errno));
    z->used -= length;
    sgf_pool_returned(z->blocks[page].pool, z->blocks[page].bytes);
    give_block(z, page);
}

static bool find_used(struct sgf_zone *z, uint64_t address, uint32_t *page)
{
    if (address < z->base || address - z->base >= z->span)
        return false;
    *page = start_before(z, (uint32_t)((address - z->base) / SGF_PAGE));
    return z->blocks[*page].state == USED_BLOCK &&
           address - z->base - (uint64_t)*page * SGF_PAGE < z->blocks[*page].bytes;
}

CUresult sgf_zone_free(struct sgf_zone *z, uint64_t address)
{
    uint32_t page;
    pthread_mutex_lock(&z->lock);
    bool found = find_used(z, address, &page) && z->base + (uint64_t)page * SGF_PAGE == address;
    if (found)
        release(z, page);
    pthread_mutex_unlock(&z->lock);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

bool sgf_zone_find(struct sgf_zone *z, uint64_t address, struct sgf_extent *out)
{
    uint32_t page;
    pthread_mutex_lock(&z->lock);
    bool found = find_used(z, address, &page);
    if (found) {
        const struct block *b = &z->blocks[page];
        *out = (struct sgf_extent){ z->base + (uint64_t)page * SGF_PAGE, b->bytes, b->owner, b->flags, b->id, b->pool };
    }
    pthread_mutex_unlock(&z->lock);
    return found;
}

void sgf_zone_set_pool(struct sgf_zone *z, uint64_t address, struct CUmemPoolHandle_st *pool)
{
    uint32_t page;
    pthread_mutex_lock(&z->lock);
    if (find_used(z, address, &page))
        z->blocks[page].pool = pool;
    pthread_mutex_unlock(&z->lock);
}

void sgf_zone_free_owned(struct sgf_zone *z, uint32_t owner)
{
    pthread_mutex_lock(&z->lock);
    for (uint32_t page = 0; page < z->pages;) {
        uint32_t pages = z->blocks[page].pages;
        if (z->blocks[page].state == USED_BLOCK && z->blocks[page].owner == owner)
            release(z, page); /* merges at most into blocks already passed, or free ones ahead */
        page += pages;
    }
    pthread_mutex_unlock(&z->lock);
}

void sgf_zone_info(struct sgf_zone *z, uint64_t *used, uint64_t *capacity)
{
    pthread_mutex_lock(&z->lock);
    *used = z->used;
    *capacity = z->capacity;
    pthread_mutex_unlock(&z->lock);
}

CUresult sgf_zone_charge(struct sgf_zone *z, uint64_t bytes)
{
    pthread_mutex_lock(&z->lock);
    bool fits = bytes <= z->capacity - z->used;
    if (fits)
        z->used += bytes;
    pthread_mutex_unlock(&z->lock);
    return fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void sgf_zone_uncharge(struct sgf_zone *z, uint64_t bytes)
{
    pthread_mutex_lock(&z->lock);
    z->used -= bytes;
    pthread_mutex_unlock(&z->lock);
}
