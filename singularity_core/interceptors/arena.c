/* A treap over all blocks, live and free, ordered by address.  Two free blocks are never neighbours.
 * `largest` of a node is the largest free block of its subtree, so the lowest (or highest) block that fits is
 * found by one walk down.  Priorities come from a fixed pseudo-random sequence: same calls, same tree. */
#include "arena.h"

#include <stdlib.h>

struct node {
    struct node *left, *right;
    uint64_t address, bytes, owner; /* owner 0: free */
    uint64_t largest;
    uint32_t priority;
};

struct sg_arena {
    struct node *root;
    uint64_t base, bytes, free_bytes;
    uint32_t random;
};

static uint32_t next_random(sg_arena *arena) {
    uint32_t x = arena->random;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    return arena->random = x;
}

static uint64_t largest_of(const struct node *node) { return node == NULL ? 0 : node->largest; }

static void refresh(struct node *node) {
    uint64_t largest = node->owner == 0 ? node->bytes : 0;
    if (largest_of(node->left) > largest) largest = node->left->largest;
    if (largest_of(node->right) > largest) largest = node->right->largest;
    node->largest = largest;
}

/* Below `address` to *low, the rest to *high. */
static void split(struct node *tree, uint64_t address, struct node **low, struct node **high) {
    if (tree == NULL) {
        *low = *high = NULL;
    } else if (tree->address < address) {
        split(tree->right, address, &tree->right, high);
        refresh(*low = tree);
    } else {
        split(tree->left, address, low, &tree->left);
        refresh(*high = tree);
    }
}

static struct node *merge(struct node *low, struct node *high) {
    if (low == NULL) return high;
    if (high == NULL) return low;
    if (low->priority > high->priority) {
        low->right = merge(low->right, high);
        refresh(low);
        return low;
    }
    high->left = merge(low, high->left);
    refresh(high);
    return high;
}

static struct node *node_new(sg_arena *arena, uint64_t address, uint64_t bytes, uint64_t owner) {
    struct node *node = calloc(1, sizeof *node);
    if (node == NULL) return NULL;
    node->address = address;
    node->bytes = bytes;
    node->owner = owner;
    node->priority = next_random(arena);
    refresh(node);
    return node;
}

/* Takes the node that starts at `address` out of the tree. */
static struct node *extract(sg_arena *arena, uint64_t address) {
    struct node *low, *node, *high;
    split(arena->root, address, &low, &high);
    split(high, address + 1, &node, &high);
    arena->root = merge(low, high);
    return node;
}

static void insert(sg_arena *arena, struct node *node) {
    struct node *low, *high;
    split(arena->root, node->address, &low, &high);
    arena->root = merge(merge(low, node), high);
}

sg_arena *sg_arena_create(uint64_t base, uint64_t bytes) {
    uint64_t first = (base + SG_ARENA_GRAIN - 1) & ~(uint64_t)(SG_ARENA_GRAIN - 1);
    uint64_t end = (base + bytes) & ~(uint64_t)(SG_ARENA_GRAIN - 1);
    if (base + bytes < base || first < base || end <= first) return NULL;
    sg_arena *arena = calloc(1, sizeof *arena);
    if (arena == NULL) return NULL;
    arena->base = first;
    arena->bytes = arena->free_bytes = end - first;
    arena->random = 0x9e3779b9u;
    arena->root = node_new(arena, first, end - first, 0);
    if (arena->root == NULL) {
        free(arena);
        return NULL;
    }
    return arena;
}

static void free_tree(struct node *node) {
    if (node == NULL) return;
    free_tree(node->left);
    free_tree(node->right);
    free(node);
}

void sg_arena_destroy(sg_arena *arena) {
    if (arena == NULL) return;
    free_tree(arena->root);
    free(arena);
}

/* Makes [address, address + bytes) of the free block `node` (out of the tree) live, and the rest free again. */
static int carve(sg_arena *arena, struct node *node, uint64_t address, uint64_t bytes, uint64_t owner) {
    uint64_t before = address - node->address, after = node->bytes - before - bytes;
    struct node *low = before == 0 ? NULL : node_new(arena, node->address, before, 0);
    struct node *high = after == 0 ? NULL : node_new(arena, address + bytes, after, 0);
    if ((before != 0 && low == NULL) || (after != 0 && high == NULL)) {
        free(low);
        free(high);
        insert(arena, node);
        return SG_ARENA_NO_MEMORY;
    }
    node->address = address;
    node->bytes = bytes;
    node->owner = owner;
    refresh(node);
    if (low != NULL) insert(arena, low);
    insert(arena, node);
    if (high != NULL) insert(arena, high);
    arena->free_bytes -= bytes;
    return SG_ARENA_OK;
}

static uint64_t round_up(uint64_t bytes) {
    if (bytes > UINT64_MAX - SG_ARENA_GRAIN) return 0;
    return (bytes + SG_ARENA_GRAIN - 1) & ~(uint64_t)(SG_ARENA_GRAIN - 1);
}

int sg_arena_alloc(sg_arena *arena, uint64_t bytes, int end, uint64_t owner, uint64_t *address) {
    uint64_t size = round_up(bytes);
    if (size == 0 || owner == 0 || largest_of(arena->root) < size) return SG_ARENA_FULL;
    const struct node *node = arena->root;
    for (;;) {
        const struct node *first = end == SG_ARENA_LOW ? node->left : node->right;
        if (largest_of(first) >= size) node = first;
        else if (node->owner == 0 && node->bytes >= size) break;
        else node = end == SG_ARENA_LOW ? node->right : node->left;
    }
    uint64_t at = end == SG_ARENA_LOW ? node->address : node->address + node->bytes - size;
    int result = carve(arena, extract(arena, node->address), at, size, owner);
    if (result == SG_ARENA_OK) *address = at;
    return result;
}

/* The block, live or free, that holds `address`. */
static struct node *holder(const sg_arena *arena, uint64_t address) {
    struct node *best = NULL;
    for (struct node *node = arena->root; node != NULL;) {
        if (node->address <= address) {
            best = node;
            node = node->right;
        } else {
            node = node->left;
        }
    }
    return best != NULL && address - best->address < best->bytes ? best : NULL;
}

int sg_arena_alloc_at(sg_arena *arena, uint64_t address, uint64_t bytes, uint64_t owner) {
    uint64_t size = round_up(bytes);
    struct node *node = holder(arena, address);
    if (size == 0 || owner == 0 || address % SG_ARENA_GRAIN != 0 || node == NULL || node->owner != 0 ||
        node->bytes - (address - node->address) < size)
        return SG_ARENA_TAKEN;
    return carve(arena, extract(arena, node->address), address, size, owner);
}

int sg_arena_free(sg_arena *arena, uint64_t address) {
    struct node *node = holder(arena, address);
    if (node == NULL || node->owner == 0 || node->address != address) return SG_ARENA_UNKNOWN;
    node = extract(arena, address);
    arena->free_bytes += node->bytes;
    node->owner = 0;
    struct node *before = address == arena->base ? NULL : holder(arena, address - 1);
    if (before != NULL && before->owner == 0) {
        before = extract(arena, before->address);
        node->address = before->address;
        node->bytes += before->bytes;
        free(before);
    }
    struct node *after = holder(arena, node->address + node->bytes);
    if (after != NULL && after->owner == 0) {
        after = extract(arena, after->address);
        node->bytes += after->bytes;
        free(after);
    }
    refresh(node);
    insert(arena, node);
    return SG_ARENA_OK;
}

static int describe(const struct node *node, struct sg_arena_block *block) {
    if (node == NULL || node->owner == 0) return SG_ARENA_UNKNOWN;
    *block = (struct sg_arena_block){node->address, node->bytes, node->owner};
    return SG_ARENA_OK;
}

int sg_arena_find(const sg_arena *arena, uint64_t address, struct sg_arena_block *block) {
    return describe(holder(arena, address), block);
}

int sg_arena_next(const sg_arena *arena, uint64_t address, struct sg_arena_block *block) {
    const struct node *best = NULL;
    for (const struct node *node = arena->root; node != NULL;) {
        if (node->address >= address) {
            best = node;
            node = node->left;
        } else {
            node = node->right;
        }
    }
    if (best != NULL && best->owner == 0) best = holder(arena, best->address + best->bytes); /* never free too */
    return describe(best, block);
}

uint64_t sg_arena_base(const sg_arena *arena) { return arena->base; }
uint64_t sg_arena_bytes(const sg_arena *arena) { return arena->bytes; }
uint64_t sg_arena_free_bytes(const sg_arena *arena) { return arena->free_bytes; }
uint64_t sg_arena_largest(const sg_arena *arena) { return largest_of(arena->root); }

struct walk { uint64_t expected, free_bytes; int last_free, good; };

static void check_tree(const struct node *node, struct walk *walk) {
    if (node == NULL) return;
    check_tree(node->left, walk);
    int is_free = node->owner == 0;
    if (node->address != walk->expected || node->bytes == 0 || node->bytes % SG_ARENA_GRAIN != 0) walk->good = 0;
    if (is_free && walk->last_free) walk->good = 0;
    walk->expected = node->address + node->bytes;
    walk->last_free = is_free;
    walk->free_bytes += is_free ? node->bytes : 0;
    check_tree(node->right, walk);
    struct node copy = *node;
    refresh(&copy);
    if (copy.largest != node->largest) walk->good = 0;
    if ((node->left != NULL && node->left->priority > node->priority) ||
        (node->right != NULL && node->right->priority > node->priority))
        walk->good = 0;
}

int sg_arena_check(const sg_arena *arena) {
    struct walk walk = {.expected = arena->base, .good = 1};
    check_tree(arena->root, &walk);
    return walk.good && walk.expected == arena->base + arena->bytes && walk.free_bytes == arena->free_bytes;
}
