/* Arithmetic of reductions over host memory (pure).
 *
 * A reduction loads each contribution into its accumulation type, joins by the tree (tree.h), and finishes into the
 * type of the elements.  What it means:
 *   16-bit floats  are accumulated in float32, and rounded once, to nearest even, at the end
 *   integers       wrap in their type
 *   max, min       answer NaN when either side is NaN; of +0 and -0, which are equal, the left one
 *   avg            divides after the whole tree, in the accumulation type; integers truncate towards zero
 *   premul sum     multiplies each contribution by the factor, in the accumulation type, before it is joined
 * Ranges are aligned to their elements, and do not overlap unless they are the same. */
#ifndef SG_REDUCE_H
#define SG_REDUCE_H

#include <stdint.h>
#include "../interceptors/communication.h"

uint32_t sg_dtype_bytes(uint32_t dtype);       /* 0: no such type */
uint32_t sg_dtype_accumulator(uint32_t dtype); /* the type to accumulate in; `dtype` is one */
/* out: in the accumulation type.  scalar: the bits of the factor, in dtype, for SG_PREMUL_SUM. */
void sg_reduce_load(uint32_t dtype, uint32_t reduction, uint64_t scalar, void *out, const void *in, uint64_t count);
/* left[i] = left[i] (+) right[i]; `accumulator`: an accumulation type. */
void sg_reduce_join(uint32_t accumulator, uint32_t reduction, void *left, const void *right, uint64_t count);
/* out: in dtype; may be `in` when the accumulation type is dtype.  `ranks`: what an average divides by. */
void sg_reduce_finish(uint32_t dtype, uint32_t reduction, uint32_t ranks, void *out, const void *in, uint64_t count);

#endif
