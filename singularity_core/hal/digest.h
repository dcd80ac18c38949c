/* The content digest of the HAL: one function, whatever device computes it, so that digests of different backends,
 * devices and processes can be compared.
 *
 * Content is a sequence of 64-bit little-endian words w[0], w[1]..., the last one padded with zero bytes.  Each word
 * and its position are mixed into two 64-bit values, which are summed over all words: the sum has no order, so any
 * number of threads may share the work.  Not cryptographic: it protects against accidents, not against forgery. */
#ifndef SG_HAL_DIGEST_H
#define SG_HAL_DIGEST_H

#include <stdint.h>
#include <string.h>

#define SG_DIGEST_K1 0x9e3779b97f4a7c15ull
#define SG_DIGEST_K2 0xd1b54a32d192ed03ull

static inline uint64_t sg_digest_mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/* Adds what `words` words, the first of which has position `first`, contribute. */
static inline void sg_digest_words(uint64_t sum[2], const uint64_t *word, uint64_t first, uint64_t words) {
    uint64_t a = sum[0], b = sum[1];
    for (uint64_t i = 0; i < words; i++) {
        uint64_t w = word[i], position = first + i + 1;
        a += sg_digest_mix(w + position * SG_DIGEST_K1);
        b += sg_digest_mix((w << 32 | w >> 32) ^ (position * SG_DIGEST_K2));
    }
    sum[0] = a;
    sum[1] = b;
}

/* Ends the digest of `bytes` bytes; `tail` are the last bytes % 8 ones, `sum` covers the whole words. */
static inline void sg_digest_finish(uint64_t sum[2], uint64_t bytes, const void *tail, uint8_t out[16]) {
    if (bytes % 8) {
        uint64_t last = 0;
        memcpy(&last, tail, bytes % 8);
        sg_digest_words(sum, &last, bytes / 8, 1);
    }
    uint64_t a = sg_digest_mix(sum[0] ^ bytes), b = sg_digest_mix(sum[1] + a);
    memcpy(out, &a, 8);
    memcpy(out + 8, &b, 8);
}

static inline void sg_digest(const void *content, uint64_t bytes, uint8_t out[16]) {
    uint64_t sum[2] = {0, 0};
    sg_digest_words(sum, (const uint64_t *)content, 0, bytes / 8);
    sg_digest_finish(sum, bytes, (const char *)content + bytes / 8 * 8, out);
}

#endif
