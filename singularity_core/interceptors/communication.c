/* The communication interceptor: gives the exchange's engine the sessions of this proxy.
 *
 * A party is a session; its memory is reached through the session's view, wherever that is, and its gates open when it is
 * resident.  So a rank that is swapped out takes part in a collective like any other. */
#include <stdio.h>
#include <string.h>

#include "../exchange/engine.h"
#include "../proxy/doorway.h"

#define ERROR_LAUNCH_FAILED 719 /* sticky: results are missing, nothing after that is worth computing */

static int32_t read_memory(void *owner, uint64_t address, void *out, uint64_t bytes) { return sg_view_read(owner, address, out, bytes); }
static int32_t write_memory(void *owner, uint64_t address, const void *in, uint64_t bytes) {
    return sg_view_write(owner, address, in, bytes);
}
static void open_gate(void *owner, uint64_t gate) { sg_gate_open(owner, gate); }
static void tell_misses(void *owner, int misses) { sg_residency_misses(owner, misses); }

static void fail(void *owner, const char *said) {
    sg_session *s = owner;
    sg_session_note_error(s, ERROR_LAUNCH_FAILED);
    if (strcmp(said, s->failure_said) == 0) return; /* of many that wait for the same, one line */
    snprintf(s->failure_said, sizeof s->failure_said, "%s", said);
    fprintf(stderr, "singularity: rank %u: a collective has no result: %s\n", s->rank, said);
}

static void strand(void *owner, const char *said) {
    const sg_session *s = owner;
    fprintf(stderr, "singularity: rank %u: its operations wait until it aborts the communicator, too: %s\n", s->rank, said);
}

int sg_communication_open(sg_server *server, const struct sg_server_options *options, char why[256]) {
    struct sg_engine_options wanted = {.directory = options->exchange, .proxy_index = options->proxy_index,
                                       .proxy_count = options->proxy_count == 0 ? 1 : options->proxy_count,
                                       .calls = {read_memory, write_memory, open_gate, tell_misses, fail, strand}};
    server->engine = sg_engine_create(&wanted, why);
    if (server->engine == NULL) return -1;
    int error = sg_engine_start(server->engine);
    if (error != 0) snprintf(why, 256, "no thread for collectives: %s", strerror(-error));
    return error;
}

void sg_communication_close(sg_server *server) {
    if (server->engine != NULL) sg_engine_destroy(server->engine);
    server->engine = NULL;
}

int sg_communication_begin(sg_session *s) {
    if (s->sub != 0) return 0; /* a child of the rank has no place among the ranks */
    s->party = sg_party_begin(s->server->engine, s, s->rank, s->doorway->slots[s->slot].pid);
    if (s->party == NULL) return -ENOMEM;
    s->last_op = &sg_party_status(s->party)->last_op;
    return 0;
}

void sg_communication_quit(sg_session *s) {
    if (s->party != NULL) sg_party_quit(s->party);
}

void sg_communication_end(sg_session *s) {
    if (s->party != NULL) sg_party_end(s->party);
    s->party = NULL;
}

struct sg_party *sg_session_party(sg_session *s) { return s->party; }
