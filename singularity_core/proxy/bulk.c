/* Pageable copies through the staging ring; transport/link.c has the other side and says how the counters work.
 * The rank's counter is only ever a reason to look; our own index says where. */
#include "session.h"

static int32_t await_count(sg_session *s, _Atomic uint32_t *word, uint32_t count) {
    struct sg_patience patience = {0};
    for (;;) {
        uint32_t seen = atomic_load_explicit(word, memory_order_acquire);
        if ((int32_t)(seen - count) > 0) return SG_CUDA_SUCCESS;
        if (atomic_load(&s->ending) == SG_ABORTS || atomic_load(&s->faulted)) return SG_CUDA_UNKNOWN;
        if (!sg_patience_left(&patience)) sg_futex_wait(word, seen, SG_WAIT_MS);
    }
}

static uint32_t chunk_bytes(uint64_t left) { return left < SG_STAGING_CHUNK ? (uint32_t)left : SG_STAGING_CHUNK; }
static uint8_t *chunk_at(sg_session *s, uint64_t i) { return s->staging + (i % SG_STAGING_CHUNKS) * SG_STAGING_CHUNK; }

int32_t sg_bulk_receive(sg_session *s, uint64_t bytes, sg_chunk each, void *argument) {
    struct sg_session_page *page = s->page;
    int32_t result = SG_CUDA_SUCCESS;
    if (atomic_load(&s->replaying)) return SG_CUDA_NOT_SUPPORTED; /* no rank sends anything */
    pthread_mutex_lock(&s->bulk);
    for (uint64_t done = 0, i = 0; done < bytes && result == SG_CUDA_SUCCESS; i++) {
        uint32_t part = chunk_bytes(bytes - done);
        result = await_count(s, &page->chunks_filled, (uint32_t)i);
        if (result == SG_CUDA_SUCCESS) result = each(argument, done, chunk_at(s, i), part);
        if (result != SG_CUDA_SUCCESS) break;
        atomic_store_explicit(&page->chunks_drained, (uint32_t)i + 1, memory_order_release);
        sg_futex_wake(&page->chunks_drained, 1);
        done += part;
    }
    pthread_mutex_unlock(&s->bulk);
    if (result == SG_CUDA_SUCCESS) sg_count(s, SG_COUNT_BYTES_IN, bytes);
    return result;
}

int32_t sg_bulk_send(sg_session *s, uint64_t bytes, sg_chunk each, void *argument) {
    struct sg_session_page *page = s->page;
    int32_t result = SG_CUDA_SUCCESS;
    if (atomic_load(&s->replaying)) return SG_CUDA_NOT_SUPPORTED;
    pthread_mutex_lock(&s->bulk);
    for (uint64_t done = 0, i = 0; done < bytes && result == SG_CUDA_SUCCESS; i++) {
        uint32_t part = chunk_bytes(bytes - done);
        if (i >= SG_STAGING_CHUNKS) result = await_count(s, &page->chunks_drained, (uint32_t)i - SG_STAGING_CHUNKS);
        if (result == SG_CUDA_SUCCESS) result = each(argument, done, chunk_at(s, i), part);
        if (result != SG_CUDA_SUCCESS) break;
        atomic_store_explicit(&page->chunks_filled, (uint32_t)i + 1, memory_order_release);
        sg_futex_wake(&page->chunks_filled, 1);
        done += part;
    }
    pthread_mutex_unlock(&s->bulk);
    if (result == SG_CUDA_SUCCESS) sg_count(s, SG_COUNT_BYTES_OUT, bytes);
    return result;
}

void sg_bulk_wake(sg_session *s) {
    sg_futex_wake(&s->page->chunks_filled, INT_MAX);
    sg_futex_wake(&s->page->chunks_drained, INT_MAX);
}
