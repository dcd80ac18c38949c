/* stub_proxy DIRECTORY DRIVER: a proxy over the stub driver; ends with SIGTERM, or when its stdin is closed. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "singularity_core/proxy/server.h"

extern const struct sg_hal_table stub_hal;
static sg_server *server;

static void on_term(int number) {
    (void)number;
    sg_server_stop(server);
}

int main(int argc, char **argv) {
    char why[256];
    if (argc != 3) return 2;
    struct sg_server_options options = {.struct_size = sizeof options, .directory = argv[1], .driver_library = argv[2],
                                        .hal = &stub_hal, .stop_fds = {dup(0), -1, -1, -1}};
    server = sg_server_create(&options, why);
    if (server == NULL) {
        fprintf(stderr, "stub_proxy: %s\n", why);
        return 69;
    }
    signal(SIGTERM, on_term);
    puts("ready");
    fflush(stdout);
    int error = sg_server_run(server);
    sg_server_destroy(server);
    return error == 0 ? 0 : 1;
}
