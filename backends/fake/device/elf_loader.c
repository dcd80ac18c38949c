/* Loads the relocatable objects that ptx-compile writes: places sections, resolves an allow-list, relocates, and
 * makes the code read-only executable.  Anything unexpected is refused; nothing in an object is trusted to be in range. */
#include "device.h"
#include "kernel_abi.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_SECTIONS 512
#define STUB_BYTES 16u

struct sgf_loaded {
    struct sgf_loaded *next;
    char *path;
    uint32_t references;
    uint8_t *memory;
    size_t bytes;
    uint8_t *file;
    size_t file_bytes;
    uint64_t offsets[MAX_SECTIONS]; /* of loaded sections in memory + 1; 0: not loaded */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sgf_loaded *objects;

extern float __extendhfsf2(uint16_t);
extern uint16_t __truncsfhf2(float);
extern uint16_t __truncdfhf2(double);

#define S(name) { #name, (void *)(uintptr_t)name }
static const struct { const char *name; void *address; } allowed[] = {
    S(memcpy), S(memset), S(memmove), S(exp), S(expf), S(exp2), S(exp2f), S(log), S(logf), S(log2), S(log2f), S(sin), S(sinf),
    S(cos), S(cosf), S(tanh), S(tanhf), S(fma), S(fmaf), S(fmod), S(fmodf), S(sqrt), S(sqrtf), S(floor), S(floorf), S(ceil),
    S(ceilf), S(trunc), S(truncf), S(rint), S(rintf), S(nearbyint), S(nearbyintf), S(roundeven), S(roundevenf), S(round),
    S(roundf), S(sgf_rt_look), S(sgf_rt_look_at_lanes), S(pow), S(powf), S(fmin), S(fminf), S(fmax), S(fmaxf), S(ldexp), S(ldexpf), S(copysign), S(copysignf), S(exp10),
    S(exp10f), S(tan), S(tanf), S(erf), S(erff), S(fabs), S(fabsf), S(__extendhfsf2), S(__truncsfhf2), S(__truncdfhf2),
};

static void *resolve(const char *name)
{
    for (size_t i = 0; i < sizeof allowed / sizeof allowed[0]; i++)
        if (strcmp(allowed[i].name, name) == 0)
            return allowed[i].address;
    return NULL;
}

struct view { const uint8_t *file; size_t bytes; const Elf64_Ehdr *header; const Elf64_Shdr *sections; };

static bool inside(const struct view *v, uint64_t offset, uint64_t bytes)
{
    return offset <= v->bytes && bytes <= v->bytes - offset;
}

static bool open_view(struct view *v, const uint8_t *file, size_t bytes)
{
    v->file = file;
    v->bytes = bytes;
    v->header = (const Elf64_Ehdr *)file;
    if (bytes < sizeof *v->header || memcmp(file, ELFMAG, SELFMAG) != 0 || v->header->e_ident[EI_CLASS] != ELFCLASS64 ||
        v->header->e_type != ET_REL || v->header->e_shentsize != sizeof(Elf64_Shdr) || v->header->e_shnum > MAX_SECTIONS)
        return false;
#if defined(__x86_64__)
    if (v->header->e_machine != EM_X86_64)
        return false;
#elif defined(__aarch64__)
    if (v->header->e_machine != EM_AARCH64)
        return false;
#endif
    v->sections = (const Elf64_Shdr *)(file + v->header->e_shoff);
    if (v->header->e_shoff % 8 != 0 || !inside(v, v->header->e_shoff, (uint64_t)v->header->e_shnum * sizeof(Elf64_Shdr)))
        return false;
    for (unsigned i = 0; i < v->header->e_shnum; i++)
        if (v->sections[i].sh_type != SHT_NOBITS && !inside(v, v->sections[i].sh_offset, v->sections[i].sh_size))
            return false;
    return true;
}

struct symbols { const Elf64_Sym *at; size_t count; const char *names; size_t name_bytes; };

static bool find_symbols(const struct view *v, struct symbols *s)
{
    for (unsigned i = 0; i < v->header->e_shnum; i++) {
        const Elf64_Shdr *table = &v->sections[i];
        if (table->sh_type != SHT_SYMTAB || table->sh_link >= v->header->e_shnum)
            continue;
        const Elf64_Shdr *names = &v->sections[table->sh_link];
        s->at = (const Elf64_Sym *)(v->file + table->sh_offset);
        s->count = table->sh_size / sizeof(Elf64_Sym);
        s->names = (const char *)v->file + names->sh_offset;
        s->name_bytes = names->sh_size;
        return names->sh_size > 0 && s->names[names->sh_size - 1] == 0;
    }
    return false;
}

/* Memory: sections, then one stub and one table slot for each symbol (far calls, GOT). */
static bool place(struct sgf_loaded *o, const struct view *v, const struct symbols *s, uint64_t *stubs, uint64_t *slots)
{
    uint64_t at = 0;
    for (unsigned i = 0; i < v->header->e_shnum; i++) {
        const Elf64_Shdr *section = &v->sections[i];
        if ((section->sh_flags & SHF_ALLOC) == 0 || section->sh_size == 0)
            continue;
        if ((section->sh_flags & (SHF_WRITE | SHF_TLS)) != 0 || section->sh_type == SHT_NOBITS)
            return false; /* kernels keep nothing between launches */
        uint64_t align = section->sh_addralign != 0 ? section->sh_addralign : 1;
        if (align > SGF_PAGE)
            return false;
        at = (at + align - 1) / align * align;
        o->offsets[i] = at + 1;
        at += section->sh_size;
    }
    at = (at + 63) & ~63ull;
    *stubs = at;
    at += s->count * STUB_BYTES;
    *slots = at;
    at += s->count * 8;
    o->bytes = (at + SGF_PAGE - 1) & ~(uint64_t)(SGF_PAGE - 1);
    o->memory = mmap(NULL, o->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (o->memory == MAP_FAILED) {
        o->memory = NULL;
        return false;
    }
    for (unsigned i = 0; i < v->header->e_shnum; i++)
        if (o->offsets[i] != 0)
            memcpy(o->memory + o->offsets[i] - 1, v->file + v->sections[i].sh_offset, v->sections[i].sh_size);
    return true;
}

static bool symbol_value(const struct sgf_loaded *o, const struct symbols *s, size_t index, uint64_t *value, bool *far)
{
    const Elf64_Sym *symbol = &s->at[index];
    *far = false;
    if (symbol->st_shndx == SHN_UNDEF) {
        const char *name = symbol->st_name < s->name_bytes ? s->names + symbol->st_name : "";
        void *address = index == 0 ? NULL : resolve(name);
        if (address == NULL && strncmp(name, "_GLOBAL_OFFSET_TABLE_", 21) != 0) {
            sgf_say("object %s needs `%s`, which is not available to kernels", o->path, name);
            return false;
        }
        *value = (uint64_t)(uintptr_t)address;
        *far = true;
        return true;
    }
    if (symbol->st_shndx == SHN_ABS) {
        *value = symbol->st_value;
        return true;
    }
    if (symbol->st_shndx >= MAX_SECTIONS || o->offsets[symbol->st_shndx] == 0)
        return false;
    *value = (uint64_t)(uintptr_t)o->memory + o->offsets[symbol->st_shndx] - 1 + symbol->st_value;
    return true;
}

#if defined(__x86_64__)
static uint64_t stub(struct sgf_loaded *o, uint64_t stubs, size_t index, uint64_t target)
{
    uint8_t *at = o->memory + stubs + index * STUB_BYTES;
    const uint8_t code[6] = { 0xff, 0x25, 0, 0, 0, 0 }; /* jmp *0(%rip) */
    memcpy(at, code, 6);
    memcpy(at + 6, &target, 8);
    return (uint64_t)(uintptr_t)at;
}

static bool apply(struct sgf_loaded *o, const Elf64_Rela *r, uint8_t *where, uint64_t value, bool far, uint64_t stubs,
                  uint64_t slots)
{
    uint64_t place_ = (uint64_t)(uintptr_t)where;
    size_t index = ELF64_R_SYM(r->r_info);
    int64_t result;
    switch (ELF64_R_TYPE(r->r_info)) {
    case R_X86_64_NONE:
        return true;
    case R_X86_64_64:
        result = (int64_t)value + r->r_addend;
        memcpy(where, &result, 8);
        return true;
    case R_X86_64_PC64:
        result = (int64_t)(value + (uint64_t)r->r_addend - place_);
        memcpy(where, &result, 8);
        return true;
    case R_X86_64_PLT32:
    case R_X86_64_PC32:
        if (far)
            value = stub(o, stubs, index, value);
        result = (int64_t)(value + (uint64_t)r->r_addend - place_);
        break;
    case R_X86_64_GOTPCREL:
    case R_X86_64_GOTPCRELX:
    case R_X86_64_REX_GOTPCRELX:
        memcpy(o->memory + slots + index * 8, &value, 8);
        result = (int64_t)((uint64_t)(uintptr_t)o->memory + slots + index * 8 + (uint64_t)r->r_addend - place_);
        break;
    case R_X86_64_32S:
    case R_X86_64_32:
        result = (int64_t)value + r->r_addend;
        break;
    default:
        sgf_say("object %s: relocation type %u is not known", o->path, (unsigned)ELF64_R_TYPE(r->r_info));
        return false;
    }
    if (result != (int32_t)result)
        return false;
    int32_t narrow = (int32_t)result;
    memcpy(where, &narrow, 4);
    return true;
}
#define RELOCATION_BYTES(type) ((type) == R_X86_64_64 || (type) == R_X86_64_PC64 ? 8u : (type) == R_X86_64_NONE ? 0u : 4u)
#else
static bool apply(struct sgf_loaded *o, const Elf64_Rela *r, uint8_t *where, uint64_t value, bool far, uint64_t stubs,
                  uint64_t slots)
{
    (void)r, (void)where, (void)value, (void)far, (void)stubs, (void)slots;
    sgf_say("object %s: this machine's relocations are not implemented; the in-memory device runs kernels on x86-64", o->path);
    return false;
}
#define RELOCATION_BYTES(type) 8u
#endif

static bool relocate(struct sgf_loaded *o, const struct view *v, const struct symbols *s, uint64_t stubs, uint64_t slots)
{
    for (unsigned i = 0; i < v->header->e_shnum; i++) {
        const Elf64_Shdr *section = &v->sections[i];
        if (section->sh_type != SHT_RELA || section->sh_info >= v->header->e_shnum || o->offsets[section->sh_info] == 0)
            continue;
        const Elf64_Rela *r = (const Elf64_Rela *)(v->file + section->sh_offset);
        uint64_t limit = v->sections[section->sh_info].sh_size;
        for (size_t n = section->sh_size / sizeof *r; n > 0; n--, r++) {
            uint64_t value, size = RELOCATION_BYTES(ELF64_R_TYPE(r->r_info));
            bool far;
            if (size == 0)
                continue;
            if (ELF64_R_SYM(r->r_info) >= s->count || r->r_offset > limit || size > limit - r->r_offset ||
                !symbol_value(o, s, ELF64_R_SYM(r->r_info), &value, &far) ||
                !apply(o, r, o->memory + o->offsets[section->sh_info] - 1 + r->r_offset, value, far, stubs, slots))
                return false;
        }
    }
    return true;
}

static bool read_file(struct sgf_loaded *o)
{
    int fd = open(o->path, O_RDONLY | O_CLOEXEC);
    struct stat info;
    if (fd < 0 || fstat(fd, &info) != 0 || info.st_size <= 0 || info.st_size > 1 << 30) {
        sgf_say("object %s: %s", o->path, fd < 0 ? strerror(errno) : "not a file that can be an object");
        if (fd >= 0)
            close(fd);
        return false;
    }
    o->file_bytes = (size_t)info.st_size;
    o->file = mmap(NULL, o->file_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (o->file == MAP_FAILED)
        o->file = NULL;
    return o->file != NULL;
}

static void drop(struct sgf_loaded *o)
{
    if (o->file != NULL)
        munmap(o->file, o->file_bytes);
    if (o->memory != NULL)
        munmap(o->memory, o->bytes);
    free(o->path);
    free(o);
}

static struct sgf_loaded *load(const char *path)
{
    struct sgf_loaded *o = calloc(1, sizeof *o);
    struct view v;
    struct symbols s;
    uint64_t stubs, slots;
    if (o == NULL || (o->path = strdup(path)) == NULL || !read_file(o)) {
        if (o != NULL)
            drop(o);
        return NULL;
    }
    if (open_view(&v, o->file, o->file_bytes) && find_symbols(&v, &s) && place(o, &v, &s, &stubs, &slots) &&
        relocate(o, &v, &s, stubs, slots) && mprotect(o->memory, o->bytes, PROT_READ | PROT_EXEC) == 0) {
        __builtin___clear_cache((char *)o->memory, (char *)o->memory + o->bytes);
        return o;
    }
    sgf_say("object %s cannot be loaded; remove it from the cache (SINGULARITY_FAKE_CACHE) so that it is made anew", path);
    drop(o);
    return NULL;
}

static void *entry_of(const struct sgf_loaded *o, const char *name)
{
    struct view v;
    struct symbols s;
    if (!open_view(&v, o->file, o->file_bytes) || !find_symbols(&v, &s))
        return NULL;
    for (size_t i = 1; i < s.count; i++) {
        uint64_t value;
        bool far;
        if (s.at[i].st_shndx != SHN_UNDEF && ELF64_ST_BIND(s.at[i].st_info) == STB_GLOBAL && s.at[i].st_name < s.name_bytes &&
            strcmp(s.names + s.at[i].st_name, name) == 0)
            return symbol_value(o, &s, i, &value, &far) ? (void *)(uintptr_t)value : NULL;
    }
    return NULL;
}

CUresult sgf_object_load(const char *path, const char *symbol, struct sgf_loaded **object, void **entry)
{
    CUresult result = CUDA_ERROR_INVALID_IMAGE;
    pthread_mutex_lock(&lock);
    struct sgf_loaded *o = objects;
    while (o != NULL && strcmp(o->path, path) != 0)
        o = o->next;
    if (o == NULL && (o = load(path)) != NULL) {
        o->next = objects;
        objects = o;
    }
    if (o != NULL && (*entry = entry_of(o, symbol)) != NULL) {
        o->references++;
        *object = o;
        result = CUDA_SUCCESS;
    } else if (o != NULL) {
        sgf_say("object %s does not define `%s`", path, symbol);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

void sgf_object_release(struct sgf_loaded *object)
{
    pthread_mutex_lock(&lock);
    if (--object->references == 0) {
        struct sgf_loaded **at = &objects;
        while (*at != object)
            at = &(*at)->next;
        *at = object->next;
        drop(object);
    }
    pthread_mutex_unlock(&lock);
}
