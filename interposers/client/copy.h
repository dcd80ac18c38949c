/* Copies and fills in general form, for the calls themselves and for graph nodes. */
#ifndef SG_COPY_H
#define SG_COPY_H

#include "../wire.h"
#include "client.h"

enum sg_place { SG_PLACE_HOST, SG_PLACE_PINNED, SG_PLACE_DEVICE };
enum sg_place sg_place_of(uint64_t address);
/* Bytes from the first to the last that one side touches; UINT64_MAX when that overflows. */
uint64_t sg_copy_extent(const struct sg_wire_copy *c, uint64_t pitch, uint64_t slice);
/* From CUDA's description; addresses as the program gave them.  Arrays are refused. */
CUresult sg_copy_describe(const char *call, const CUDA_MEMCPY3D *p, struct sg_wire_copy *out);
CUresult sg_copy_run(const char *call, struct sg_wire_copy *c, CUstream stream, int sync);
CUresult sg_fill_check(const struct sg_wire_fill *f);
/* 1 while the stream (wire value) captures; asks the proxy only when some stream does. */
int sg_stream_captures(uint64_t stream);

#endif
