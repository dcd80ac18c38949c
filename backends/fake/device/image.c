/* Images: what the compile service says about a piece of PTX, and the kernels compiled from it.
 *
 * Loading asks the service once; compiling waits for the first launch of each (kernel, block shape), inside that
 * launch call, which therefore returns what the compiler says. */
#include "device.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct reader { char *at; };

static char *next_line(struct reader *r)
{
    if (r->at == NULL || *r->at == 0)
        return NULL;
    char *line = r->at, *end = strchr(line, '\n');
    if (end != NULL)
        *end++ = 0;
    r->at = end;
    return line;
}

static char *next_word(char **line)
{
    return strtok_r(NULL, " ", line);
}

static bool number(char **line, uint64_t *out)
{
    char *word = next_word(line), *end;
    if (word == NULL)
        return false;
    *out = strtoull(word, &end, 0);
    return *end == 0;
}

static bool small(char **line, uint32_t *out)
{
    uint64_t value;
    if (!number(line, &value) || value > UINT32_MAX)
        return false;
    *out = (uint32_t)value;
    return true;
}

static void *grow(void *array, uint32_t count, size_t each)
{
    if (count != 0 && (count & (count - 1)) != 0)
        return array;
    return realloc(array, (count == 0 ? 1u : 2u * (size_t)count) * each);
}

static bool read_kernel(struct sgf_image *image, char **line)
{
    struct sgf_kernel *all = grow(image->kernels, image->kernel_count, sizeof *all);
    if (all == NULL)
        return false;
    image->kernels = all;
    struct sgf_kernel *k = &all[image->kernel_count];
    memset(k, 0, sizeof *k);
    char *name = next_word(line);
    uint32_t order;
    if (name == NULL || !small(line, &k->param_bytes) || !small(line, &k->shared) || !small(line, &k->local) ||
        !small(line, &order) || !small(line, &k->maxntid[0]) || !small(line, &k->maxntid[1]) || !small(line, &k->maxntid[2]) ||
        !small(line, &k->reqntid[0]) || !small(line, &k->reqntid[1]) || !small(line, &k->reqntid[2]) ||
        !small(line, &k->registers) || k->param_bytes > SGF_MAX_PARAM_BYTES || (k->name = strdup(name)) == NULL)
        return false;
    k->order_sensitive = order != 0;
    image->kernel_count++;
    return true;
}

static bool read_param(struct sgf_image *image, char **line)
{
    if (image->kernel_count == 0)
        return false;
    struct sgf_kernel *k = &image->kernels[image->kernel_count - 1];
    struct sgf_param p, *all;
    if (!small(line, &p.offset) || !small(line, &p.size) || p.offset > k->param_bytes || p.size > k->param_bytes - p.offset)
        return false;
    if ((all = grow(k->params, k->param_count, sizeof *all)) == NULL)
        return false;
    k->params = all;
    k->params[k->param_count++] = p;
    return true;
}

static bool read_hex(const char *text, uint8_t *to, uint64_t bytes)
{
    for (uint64_t i = 0; text[2 * i] != 0; i++) {
        unsigned value;
        char pair[3] = { text[2 * i], text[2 * i + 1], 0 };
        if (i >= bytes || pair[1] == 0 || sscanf(pair, "%2x", &value) != 1)
            return false;
        to[i] = (uint8_t)value;
    }
    return true;
}

static bool read_global(struct sgf_image *image, char **line)
{
    struct sgf_global g, *all;
    memset(&g, 0, sizeof g);
    char *name = next_word(line), *space = next_word(line);
    if (name == NULL || space == NULL || !number(line, &g.bytes) || !number(line, &g.align))
        return false;
    char *init = next_word(line);
    if (init == NULL || (all = grow(image->globals, image->global_count, sizeof *all)) == NULL)
        return false;
    image->globals = all;
    g.constant = strcmp(space, "const") == 0;
    if (strcmp(init, "-") != 0) {
        g.init = calloc(1, g.bytes + 1);
        if (g.init == NULL || !read_hex(init, g.init, g.bytes)) {
            free(g.init);
            return false;
        }
    }
    if ((g.name = strdup(name)) == NULL)
        return false;
    image->globals[image->global_count++] = g;
    return true;
}

static bool read_fixup(struct sgf_image *image, char **line)
{
    struct sgf_fixup f, *all;
    if (!small(line, &f.global) || !number(line, &f.offset) || !small(line, &f.target) || !number(line, &f.addend))
        return false;
    if ((all = grow(image->fixups, image->fixup_count, sizeof *all)) == NULL)
        return false;
    image->fixups = all;
    image->fixups[image->fixup_count++] = f;
    return true;
}

static bool read_line(struct sgf_image *image, char *line)
{
    char *rest = NULL, *word = strtok_r(line, " ", &rest);
    if (word == NULL)
        return true;
    if (strcmp(word, "kernel") == 0)
        return read_kernel(image, &rest);
    if (strcmp(word, "param") == 0)
        return read_param(image, &rest);
    if (strcmp(word, "global") == 0)
        return read_global(image, &rest);
    if (strcmp(word, "fixup") == 0)
        return read_fixup(image, &rest);
    if (strcmp(word, "module") == 0) {
        word = next_word(&rest);
        if (word == NULL || strlen(word) >= sizeof image->key)
            return false;
        strcpy(image->key, word);
        return true;
    }
    if (strcmp(word, "target") == 0) {
        word = next_word(&rest);
        image->target = word != NULL ? atoi(word) : 0;
        word = next_word(&rest);
        image->version = word != NULL ? (int)(strtod(word, NULL) * 10 + 0.5) : 0;
    }
    return true; /* words that a newer compiler adds */
}

static void forget(struct sgf_image *image)
{
    for (uint32_t i = 0; i < image->kernel_count; i++) {
        struct sgf_variant *v = atomic_load(&image->kernels[i].variants);
        while (v != NULL) {
            struct sgf_variant *next = v->next;
            sgf_object_release(v->object);
            free(v);
            v = next;
        }
        free(image->kernels[i].params);
        free(image->kernels[i].name);
    }
    for (uint32_t i = 0; i < image->global_count; i++) {
        free(image->globals[i].name);
        free(image->globals[i].init);
    }
    free(image->kernels);
    free(image->globals);
    free(image->fixups);
    free(image->text);
    pthread_mutex_destroy(&image->lock);
    free(image);
}

void sgf_image_release(struct sgf_image *image)
{
    if (atomic_fetch_sub(&image->references, 1) == 1)
        forget(image);
}

CUresult sgf_image_parse(struct sgf_image *image, char *reply)
{
    struct reader r = { reply };
    char *line;
    while ((line = next_line(&r)) != NULL)
        if (!read_line(image, line)) {
            sgf_say("cannot read the PTX compiler's answer; are device library and compiler of one version?");
            return CUDA_ERROR_UNKNOWN;
        }
    for (uint32_t i = 0; i < image->fixup_count; i++) {
        const struct sgf_fixup *f = &image->fixups[i];
        if (f->global >= image->global_count || f->target >= image->global_count ||
            image->globals[f->global].bytes < 8 || f->offset > image->globals[f->global].bytes - 8)
            return CUDA_ERROR_UNKNOWN;
    }
    return CUDA_SUCCESS;
}

static CUresult tell(CUresult status, const char *where, const char *answer)
{
    sgf_say("%s: %s", where, answer);
    return status;
}

/* PTX begins with comments and directives; anything else that is not a container is no image. */
static bool looks_like_ptx(const char *text)
{
    for (;;) {
        while (*text == ' ' || *text == '\t' || *text == '\n' || *text == '\r')
            text++;
        if (text[0] == '/' && text[1] == '/') {
            while (*text != 0 && *text != '\n')
                text++;
        } else if (text[0] == '/' && text[1] == '*') {
            const char *end = strstr(text + 2, "*/");
            if (end == NULL)
                return false;
            text = end + 2;
        } else {
            return strncmp(text, ".version", 8) == 0;
        }
    }
}

static CUresult describe(struct sgf_image *image, char reason[SGF_REASON_BYTES])
{
    char *answer = NULL;
    CUresult result = sgf_service_ask(1, image->text, image->text_bytes, &answer, &image->service);
    if (result != CUDA_SUCCESS) {
        snprintf(reason, SGF_REASON_BYTES, "PTX: %s", answer != NULL ? answer : "no answer from the PTX compiler");
        sgf_say("%s", reason);
    } else {
        result = sgf_image_parse(image, answer);
    }
    free(answer);
    return result;
}

static bool is_cubin(const void *data)
{
    Elf64_Ehdr header;
    memcpy(&header, data, sizeof header);
    return header.e_ident[EI_CLASS] == ELFCLASS64 && header.e_machine == EM_CUDA && header.e_shoff != 0;
}

CUresult sgf_image_load(const void *data, char reason[SGF_REASON_BYTES], struct sgf_image **out)
{
    struct sgf_image *image = calloc(1, sizeof *image);
    const unsigned char *head = data;
    CUresult result = CUDA_SUCCESS;
    reason[0] = 0;
    if (image == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    atomic_store(&image->references, 1);
    pthread_mutex_init(&image->lock, NULL);
    if (sgf_fatbin_is(data)) {
        result = sgf_fatbin_ptx(data, &image->text, &image->text_bytes);
        image->binary_only = image->text == NULL;
    } else if (memcmp(head, ELFMAG, SELFMAG) == 0) {
        image->binary_only = true;
        if (!is_cubin(data)) {
            snprintf(reason, SGF_REASON_BYTES, "the image is an ELF file, but no cubin");
            result = CUDA_ERROR_INVALID_IMAGE;
        }
    } else if (looks_like_ptx(data)) {
        image->text_bytes = strlen(data);
        image->text = malloc(image->text_bytes + 1);
        if (image->text != NULL) {
            memcpy(image->text, data, image->text_bytes);
            image->text[image->text_bytes] = 0;
        } else {
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    } else {
        snprintf(reason, SGF_REASON_BYTES, "the image is neither PTX nor a cubin nor a fat binary");
        result = CUDA_ERROR_INVALID_IMAGE;
    }
    if (result == CUDA_SUCCESS && !image->binary_only)
        result = describe(image, reason);
    if (result != CUDA_SUCCESS)
        forget(image);
    else
        *out = image;
    return result;
}

/* ---- compiling ------------------------------------------------------------------------------------------ */
static bool read_variant(char *answer, struct sgf_variant *v, char **path, char **symbol)
{
    struct reader r = { answer };
    char *line;
    while ((line = next_line(&r)) != NULL) {
        char *rest = NULL, *word = strtok_r(line, " ", &rest);
        if (word == NULL)
            continue;
        if (strcmp(word, "object") == 0) {
            *path = rest; /* a path may hold spaces: the rest of the line */
        } else if (strcmp(word, "symbol") == 0) {
            *symbol = next_word(&rest);
        } else if (strcmp(word, "mode") == 0) {
            word = next_word(&rest);
            v->fibers = word != NULL && strcmp(word, "fiber") == 0;
        } else if (strcmp(word, "spill") == 0) {
            small(&rest, &v->spill);
        } else if (strcmp(word, "shared") == 0) {
            small(&rest, &v->shared);
        } else if (strcmp(word, "local") == 0) {
            small(&rest, &v->local);
        }
    }
    return *path != NULL && **path != 0 && *symbol != NULL;
}

static CUresult ask_compile(struct sgf_image *image, const struct sgf_kernel *k, const struct sgf_variant *v, char **answer)
{
    size_t room = strlen(k->name) + strlen(image->key) + 96;
    char *request = malloc(room);
    uint32_t service;
    if (request == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    int length = snprintf(request, room, "%s %s %u %u %u %x\n", image->key, k->name, v->block[0], v->block[1], v->block[2],
                          v->options);
    CUresult result = sgf_service_ask(2, request, (size_t)length, answer, &service);
    if (service != image->service) { /* another process answered, which has not seen this module */
        char *again = NULL;
        free(*answer);
        *answer = NULL;
        result = sgf_service_ask(1, image->text, image->text_bytes, &again, &image->service);
        free(again);
        if (result == CUDA_SUCCESS)
            result = sgf_service_ask(2, request, (size_t)length, answer, &service);
        if (service != image->service) { /* this request ends every compiler that it is given */
            sgf_say("kernel %s: the PTX compiler ended while it compiled it, twice", k->name);
            result = CUDA_ERROR_JIT_COMPILER_NOT_FOUND;
        }
    }
    free(request);
    return result;
}

static CUresult compile(struct sgf_image *image, struct sgf_kernel *k, const uint32_t block[3], struct sgf_variant **out)
{
    char *answer = NULL, *path = NULL, *symbol = NULL;
    struct sgf_variant *v = calloc(1, sizeof *v);
    if (v == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(v->block, block, sizeof v->block);
    v->options = sgf.parallel_atomics ? 1 : 0;
    v->shared = k->shared;
    v->local = k->local;
    CUresult result = ask_compile(image, k, v, &answer);
    if (result != CUDA_SUCCESS)
        tell(result, k->name, answer != NULL ? answer : "the PTX compiler gave no answer");
    else if (!read_variant(answer, v, &path, &symbol))
        result = tell(CUDA_ERROR_UNKNOWN, k->name, "cannot read the PTX compiler's answer");
    else
        result = sgf_object_load(path, symbol, &v->object, &v->entry);
    free(answer);
    if (result != CUDA_SUCCESS)
        free(v);
    else
        *out = v;
    return result;
}

static struct sgf_variant *find(struct sgf_kernel *k, const uint32_t block[3])
{
    for (struct sgf_variant *v = atomic_load_explicit(&k->variants, memory_order_acquire); v != NULL; v = v->next)
        if (v->block[0] == block[0] && v->block[1] == block[1] && v->block[2] == block[2])
            return v;
    return NULL;
}

CUresult sgf_image_variant(struct sgf_image *image, struct sgf_kernel *kernel, const uint32_t block[3],
                           const struct sgf_variant **out)
{
    struct sgf_variant *v = find(kernel, block);
    CUresult result = CUDA_SUCCESS;
    if (SGF_UNLIKELY(v == NULL)) {
        pthread_mutex_lock(&image->lock);
        if ((v = find(kernel, block)) == NULL) {
            result = compile(image, kernel, block, &v);
            if (result == CUDA_SUCCESS) {
                v->next = atomic_load(&kernel->variants);
                atomic_store_explicit(&kernel->variants, v, memory_order_release);
            }
        }
        pthread_mutex_unlock(&image->lock);
    }
    *out = v;
    return result;
}
