#ifndef PURE_H
#define PURE_H

#include <stdint.h>

#include "singularity_core/proxy/handles.h"

struct pure_ring;
struct pure_destroyed { uint32_t count; uint32_t kind[256]; uint64_t physical[256]; };

struct pure_ring *pure_ring_new(void);
void pure_ring_free(struct pure_ring *r);
int pure_ring_push(struct pure_ring *r, uint32_t op, uint32_t bytes, uint8_t fill);
int pure_ring_take(struct pure_ring *r, uint32_t *op, uint32_t *bytes, uint8_t *fill, int *same);
void pure_ring_spoil(struct pure_ring *r, uint32_t at, const uint8_t *bytes, uint32_t count);
uint64_t pure_ring_used(struct pure_ring *r);

struct sg_handles *pure_handles_new(void);
void pure_handles_free(struct sg_handles *handles);
uint64_t pure_handles_put(struct sg_handles *h, uint32_t kind, uint64_t physical, uint64_t parent);
int pure_handles_put_at(struct sg_handles *h, uint64_t handle, uint64_t physical, uint64_t parent);
uint64_t pure_handles_get(struct sg_handles *h, uint32_t kind, uint64_t handle);
uint64_t pure_handles_take(struct sg_handles *h, uint32_t kind, uint64_t handle, struct pure_destroyed *list);
void pure_handles_take_all(struct sg_handles *h, struct pure_destroyed *list);

#endif
