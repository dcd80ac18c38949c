/* Modules and libraries on the client's side. */
#ifndef SG_IMAGE_H
#define SG_IMAGE_H

#include "client.h"

/* Bytes of an image that is given without its length: PTX text, ELF, or a fatbin (its wrapper is looked
 * through: *start is what to send).  0: not recognised. */
size_t sg_image_bytes(const void *image, const void **start);
/* A function of a module, a kernel of a library, or a kernel's function in the current context. */
CUresult sg_function_get(const char *call, uint64_t from, uint32_t how, const char *name, struct sg_function **out);

#endif
