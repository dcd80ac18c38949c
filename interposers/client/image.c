/* How long is an image that comes as a bare pointer?  PTX ends with a NUL, ELF says so in its headers,
 * and a fatbin's container in its own.  Layouts: System V ABI; the fatbin container as observed. */
#include "image.h"
#include <elf.h>

#define WRAPPER_MAGIC 0x466243b1u
#define CONTAINER_MAGIC 0xba55ed50u

struct wrapper { uint32_t magic, version; const void *data; const void *unused; };
struct container { uint32_t magic; uint16_t version, header_bytes; uint64_t files_bytes; };

static size_t elf_bytes(const void *image)
{
    Elf64_Ehdr header;
    memcpy(&header, image, sizeof header);
    if (header.e_ident[EI_CLASS] != ELFCLASS64)
        return 0;
    Elf64_Shdr section;
    uint64_t sections = header.e_shnum;
    if (!sections && header.e_shoff) { /* more than fit into 16 bits: the first section says how many */
        memcpy(&section, (const char *)image + header.e_shoff, sizeof section);
        sections = section.sh_size;
    }
    uint64_t end = header.e_shoff + sections * header.e_shentsize;
    uint64_t segments = header.e_phoff + (uint64_t)header.e_phnum * header.e_phentsize;
    if (segments > end)
        end = segments;
    for (uint64_t i = 0; i < sections; i++) {
        memcpy(&section, (const char *)image + header.e_shoff + i * header.e_shentsize, sizeof section);
        if (section.sh_type != SHT_NOBITS && section.sh_offset + section.sh_size > end)
            end = section.sh_offset + section.sh_size;
    }
    return end;
}

size_t sg_image_bytes(const void *image, const void **start)
{
    uint32_t magic;
    memcpy(&magic, image, sizeof magic); /* a valid image is never shorter */
    if (magic == WRAPPER_MAGIC) {
        struct wrapper wrapper;
        memcpy(&wrapper, image, sizeof wrapper);
        image = wrapper.data;
        if (!image)
            return 0;
        memcpy(&magic, image, sizeof magic);
    }
    *start = image;
    if (magic == CONTAINER_MAGIC) {
        struct container container;
        memcpy(&container, image, sizeof container);
        return container.header_bytes + container.files_bytes;
    }
    if (memcmp(image, ELFMAG, SELFMAG) == 0)
        return elf_bytes(image);
    return strlen(image) + 1;
}
