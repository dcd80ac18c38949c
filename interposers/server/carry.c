/* What the handlers know of a session that the replay log does not say, for whoever goes on with it: messages that came in
 * part, and which events were recorded.  And what cannot go on elsewhere, by name. */
#include <stdio.h>
#include "handlers.h"
#include "../../singularity_core/proxy/bytes.h"

#define VERSION 1u

/* ---- what cannot be carried ----------------------------------------------------------------------------------------- */
static void look_at_stream(void *argument, uint64_t handle, void *physical, void *context)
{
    struct { const struct sg_driver *driver; int capturing; } *look = argument;
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    (void)handle, (void)context;
    if (!look->driver->cuStreamIsCapturing(physical, &status))
        look->capturing |= status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static int captures(sg_session *session)
{
    struct { const struct sg_driver *driver; int capturing; } look = {sg_session_driver(session), 0};
    sg_handles_each(session, SG_KIND_STREAM, look_at_stream, &look);
    return look.capturing;
}

static int blank(uint8_t c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

static int follows_ptr(const uint8_t *text, uint64_t at)
{
    while (at && blank(text[at - 1]))
        at--;
    return at >= 4 && !memcmp(text + at - 4, ".ptr", 4);
}

/* A variable that keeps its content from launch to launch; a constant, too, as the host may write to it.  In the text, a directive
 * stands alone where an instruction has it in its name (ld.global.f32); behind .ptr it says where a parameter points.  NULL: there is
 * none. */
static const uint8_t *find_variable(const uint8_t *text, uint64_t bytes)
{
    static const char *const words[] = {".global", ".const"};
    for (uint64_t i = 0; i < bytes; i++) {
        if (text[i] != '.' || (i && !blank(text[i - 1])))
            continue;
        for (unsigned w = 0; w < sizeof words / sizeof *words; w++) {
            uint64_t length = strlen(words[w]);
            if (length < bytes - i && !memcmp(text + i, words[w], length) && blank(text[i + length]) && !follows_ptr(text, i))
                return text + i;
        }
    }
    return NULL;
}

/* Whether the text of a container's code can be read: it is there (kind 1), and nothing is compressed. */
static int container_is_plain(const uint8_t *at, uint64_t bytes)
{
    enum { ENTRY_TEXT = 1, COMPRESSED = 0x2000 | 0x8000 };
    uint16_t header, kind;
    uint32_t entry;
    uint64_t stored, flags;
    int texts = 0;
    if (bytes < 16)
        return 0;
    memcpy(&header, at + 6, sizeof header);
    for (uint64_t offset = header; offset <= bytes && bytes - offset >= 64; offset += entry + stored) {
        memcpy(&kind, at + offset, sizeof kind);
        memcpy(&entry, at + offset + 4, sizeof entry);
        memcpy(&stored, at + offset + 8, sizeof stored);
        memcpy(&flags, at + offset + 40, sizeof flags);
        if (flags & COMPRESSED || entry < 64 || stored > bytes - offset || entry > bytes - offset - stored)
            return 0;
        texts += kind == ENTRY_TEXT;
    }
    return texts > 0;
}

static int can_be_read(const uint8_t *image, uint64_t bytes)
{
    static const uint8_t elf[4] = {0x7f, 'E', 'L', 'F'};
    uint32_t magic = 0;
    memcpy(&magic, image, bytes < sizeof magic ? bytes : sizeof magic);
    if (magic == 0xba55ed50u)
        return container_is_plain(image, bytes);
    return memcmp(&magic, elf, sizeof elf) != 0;
}

int sg_calls_portable(const struct sg_request *record, char why[96])
{
    if (record->op != SG_OP_module_load && record->op != SG_OP_library_load)
        return 1;
    if (record->bytes < sizeof(struct sg_wire_module_load))
        return 1;
    const uint8_t *image = record->payload + sizeof(struct sg_wire_module_load), *found;
    uint64_t bytes = record->bytes - sizeof(struct sg_wire_module_load);
    if (!can_be_read(image, bytes)) {
        snprintf(why, 96, "a module is no plain PTX: whether it has variables of its own cannot be seen");
        return 0;
    }
    if (!(found = find_variable(image, bytes)))
        return 1;
    uint64_t left = bytes - (uint64_t)(found - image);
    int shown = 0;
    while ((uint64_t)shown < left && shown < 47 && found[shown] != ';' && found[shown] != '\n' && found[shown] != '=')
        shown++;
    while (shown > 0 && blank(found[shown - 1]))
        shown--;
    snprintf(why, 96, "a module has a variable of its own (%.*s)", shown, (const char *)found);
    return 0;
}

/* ---- out -------------------------------------------------------------------------------------------------------------- */
struct recorded { const struct sg_driver *driver; struct sg_out *out; uint64_t count; };

/* Events without timing look the same, recorded or not. */
static void note_event(void *argument, uint64_t handle, void *physical, void *context)
{
    struct recorded *r = argument;
    float ms;
    (void)context;
    if (r->driver->cuEventElapsedTime_v2(&ms, physical, physical) != CUDA_SUCCESS)
        return;
    sg_put_number(r->out, handle);
    r->count++;
}

int sg_calls_export(sg_session *session, struct sg_out *out, char why[96])
{
    struct sg_calls *calls = sg_calls_of(session);
    struct sg_out events = {0};
    struct recorded r = {sg_session_driver(session), &events, 0};
    if (!calls) {
        snprintf(why, 96, "out of memory");
        return -1;
    }
    if (calls->unrestorable || captures(session)) {
        snprintf(why, 96, calls->unrestorable ? "a graph holds a node that cannot be described" : "a stream is being captured");
        return -1;
    }
    sg_frees_reap(session, 1);
    sg_put_number(out, VERSION);
    sg_put_number(out, (uint64_t)calls->too_many);
    sg_put_number(out, calls->operation_count);
    sg_put(out, calls->operations, calls->operation_count * sizeof *calls->operations);
    uint64_t stages = 0;
    for (const struct sg_stage *stage = calls->stages; stage; stage = stage->next)
        stages++;
    sg_put_number(out, stages);
    for (const struct sg_stage *stage = calls->stages; stage; stage = stage->next) {
        sg_put_number(out, stage->id);
        sg_put_number(out, stage->bytes);
        sg_put(out, stage->data, stage->bytes);
    }
    sg_handles_each(session, SG_KIND_EVENT, note_event, &r);
    sg_put_number(out, r.count);
    sg_put(out, events.at, events.used);
    out->failed |= events.failed;
    free(events.at);
    return 0;
}

/* ---- in --------------------------------------------------------------------------------------------------------------- */
static int import_operations(struct sg_calls *calls, struct sg_in *in)
{
    calls->too_many = sg_get_number(in) != 0;
    uint64_t count = sg_get_number(in);
    const uint8_t *at = count <= in->left / sizeof *calls->operations ? sg_get(in, count * sizeof *calls->operations) : NULL;
    if (!count)
        return 0;
    calls->operations = at ? malloc(count * sizeof *calls->operations) : NULL;
    if (!calls->operations)
        return -1;
    memcpy(calls->operations, at, count * sizeof *calls->operations);
    calls->operation_count = (uint32_t)count;
    return 0;
}

static int import_stages(struct sg_calls *calls, struct sg_in *in)
{
    struct sg_stage **end = &calls->stages;
    for (uint64_t count = sg_get_number(in); count && !in->failed; count--) {
        uint64_t id = sg_get_number(in), bytes = sg_get_number(in);
        const uint8_t *at = sg_get(in, bytes);
        struct sg_stage *stage = at ? malloc(sizeof *stage + bytes) : NULL;
        if (!stage)
            return -1;
        *stage = (struct sg_stage){.id = id, .bytes = bytes};
        memcpy(stage->data, at, bytes);
        *end = stage;
        end = &stage->next;
    }
    return in->failed ? -1 : 0;
}

struct wanted { const struct sg_driver *driver; const uint8_t *events; uint64_t count; int failed; };

static void record_event(void *argument, uint64_t handle, void *physical, void *context)
{
    struct wanted *w = argument;
    int was = 0;
    for (uint64_t i = 0; i < w->count && !was; i++)
        was = !memcmp(w->events + i * sizeof handle, &handle, sizeof handle);
    if (was && (w->driver->cuCtxSetCurrent(context) || w->driver->cuEventRecord(physical, NULL)))
        w->failed = 1;
}

int sg_calls_import(sg_session *session, struct sg_in *in, char why[96])
{
    struct sg_calls *calls = sg_calls_of(session);
    struct wanted w = {.driver = sg_session_driver(session)};
    int bad = !calls || sg_get_number(in) != VERSION || import_operations(calls, in) || import_stages(calls, in);
    w.count = bad ? 0 : sg_get_number(in);
    w.events = w.count <= in->left / sizeof(uint64_t) ? sg_get(in, w.count * sizeof(uint64_t)) : NULL;
    if (bad || in->failed || !w.events) {
        snprintf(why, 96, "its image is of another version, or cut off");
        return -1;
    }
    sg_handles_each(session, SG_KIND_EVENT, record_event, &w);
    if (w.failed)
        snprintf(why, 96, "an event could not be recorded again");
    return w.failed ? -1 : 0;
}
