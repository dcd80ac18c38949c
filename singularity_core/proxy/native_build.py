"""What Python sees of the proxy's C code: the cffi declarations of ``singularity_core._native``.

CMake runs this file to write the module's C source; at run time it is not needed.  The declarations repeat
the headers, and the C compiler checks each of them against the headers when the module is built.
"""

from __future__ import annotations

from pathlib import Path

import cffi

PACKAGES = ("barrier", "exchange", "splicing", "transport")
"""Each declares what Python sees of it in a file of its own, ``declarations.cdef``, with its includes."""

DECLARATIONS = """
/* ---- server ---- */
typedef struct sg_server sg_server;
typedef struct sg_session sg_session;
struct sg_hal_table;
struct sg_server_options {
    uint32_t struct_size;
    int32_t device;
    uint32_t directory_count;
    const char *const *directories;
    const char *driver_library;
    const struct sg_hal_table *hal;
    uint64_t arena_bytes;
    int32_t stop_fds[4];
    const char *exchange;
    uint32_t proxy_index, proxy_count;
    uint64_t swap_limit, slice_wait_ns, slice_quantum_ns;
    uint32_t resumes;
    int32_t pid_namespace;
};
sg_server *sg_server_create(const struct sg_server_options *options, char *why);
int sg_server_resume(sg_server *server, char *why);
int sg_server_run(sg_server *server);
void sg_server_stop(sg_server *server);
void sg_server_destroy(sg_server *server);
int sg_server_hold_all(sg_server *server, int on, uint64_t timeout_ns);
sg_session *sg_server_session(sg_server *server, uint32_t slot);
sg_session *sg_server_hold(sg_server *server, uint32_t slot);
void sg_server_let_go(sg_session *session);
uint64_t sg_session_log_export(sg_session *session, uint8_t *buffer, uint64_t room);
int sg_session_log_import(sg_session *session, const uint8_t *buffer, uint64_t bytes, char *why);

/* ---- images of sessions ---- */
struct sg_image_block { uint64_t address, bytes; };
struct sg_image_facts {
    uint32_t pid_inside, rank, sub;
    uint64_t arena_bytes, block_count;
    char memory[64];
};
int sg_image_read(const uint8_t *image, uint64_t bytes, struct sg_image_facts *facts,
                  struct sg_image_block *blocks, uint64_t room);

/* ---- arena ---- */
typedef struct sg_arena sg_arena;
struct sg_arena_block { uint64_t address, bytes, owner; };
enum { SG_ARENA_LOW, SG_ARENA_HIGH };
enum { SG_ARENA_OK, SG_ARENA_FULL, SG_ARENA_UNKNOWN, SG_ARENA_TAKEN, SG_ARENA_NO_MEMORY, ... };
sg_arena *sg_arena_create(uint64_t base, uint64_t bytes);
void sg_arena_destroy(sg_arena *arena);
int sg_arena_alloc(sg_arena *arena, uint64_t bytes, int end, uint64_t owner, uint64_t *address);
int sg_arena_alloc_at(sg_arena *arena, uint64_t address, uint64_t bytes, uint64_t owner);
int sg_arena_free(sg_arena *arena, uint64_t address);
int sg_arena_find(const sg_arena *arena, uint64_t address, struct sg_arena_block *block);
int sg_arena_next(const sg_arena *arena, uint64_t address, struct sg_arena_block *block);
uint64_t sg_arena_base(const sg_arena *arena);
uint64_t sg_arena_bytes(const sg_arena *arena);
uint64_t sg_arena_free_bytes(const sg_arena *arena);
uint64_t sg_arena_largest(const sg_arena *arena);
int sg_arena_check(const sg_arena *arena);

/* ---- replay log ---- */
struct sg_log;
struct sg_log_record {
    uint32_t type, op;
    uint64_t context, object, key;
    const uint64_t *made;
    const uint64_t *needs;
    const uint8_t *payload;
    uint32_t made_count, need_count, bytes;
};
struct sg_log *sg_log_new(void);
void sg_log_free(struct sg_log *log);
int sg_log_add(struct sg_log *log, const struct sg_log_record *record);
void sg_log_remove(struct sg_log *log, uint64_t object);
uint64_t sg_log_entries(const struct sg_log *log);
uint64_t sg_log_serialise(const struct sg_log *log, uint8_t *buffer, uint64_t room);
typedef int (*sg_log_visitor)(void *argument, const struct sg_log_record *record);
int sg_log_walk(const uint8_t *buffer, uint64_t bytes, sg_log_visitor each, void *argument);
"""

PREAMBLE = """
#include "singularity_core/interceptors/arena.h"
#include "singularity_core/proxy/replay.h"
#include "singularity_core/proxy/server.h"
#include "singularity_core/proxy/session_image.h"
"""


def package_declarations() -> tuple[str, str]:
    """The declarations of all packages, and the #include lines that they need."""
    lines: list[str] = []
    for package in PACKAGES:
        found = Path(__file__).parent.parent / package / "declarations.cdef"
        lines += found.read_text().splitlines() if found.is_file() else []
    includes = [line for line in lines if line.startswith("#include")]
    return "\n".join(line for line in lines if line not in includes), "\n".join(includes)


declarations, includes = package_declarations()
ffibuilder = cffi.FFI()
ffibuilder.cdef(DECLARATIONS + declarations)
ffibuilder.set_source("singularity_core._native", PREAMBLE + includes)
