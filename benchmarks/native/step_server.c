/* A rank that does one step of work whenever it is told to.  Usage: step_server SOCKET launch_bound|simulated
 * Each byte that arrives is one step; the answer is its nanoseconds as text and a newline.
 *   launch_bound: 1,000 launches of one warp that writes 32 words, then a synchronisation
 *   simulated:    20 launches of one thread that sleeps for 0.5 ms, then a synchronisation: work that takes device time and no
 *                 CPU, as a kernel on a real device does */
#include "rank.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static const char *const WRITE_PTX =
    ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry work(.param .u64 out, .param .u32 n) {\n"
    ".reg .b32 %r<4>; .reg .b64 %a<3>;\n ld.param.u64 %a1, [out]; ld.param.u32 %r1, [n]; mov.u32 %r2, %tid.x;\n"
    "mul.wide.u32 %a2, %r2, 4; add.u64 %a1, %a1, %a2; add.u32 %r3, %r1, %r2; st.global.u32 [%a1], %r3; ret; }\n";
static const char *const SLEEP_PTX =
    ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry work(.param .u64 out, .param .u32 n) {\n"
    "nanosleep.u32 500000; ret; }\n";

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    int simulated = strcmp(argv[2], "simulated") == 0, connection = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", argv[1]);
    if (connect(connection, (struct sockaddr *)&address, sizeof address) != 0) return 1;
    open_device();
    void *function = load_kernel(simulated ? SLEEP_PTX : WRITE_PTX, "work");
    launch_fn launch = (launch_fn)driver_symbol("cuLaunchKernel");
    int (*synchronize)(void) = (int (*)(void))driver_symbol("cuCtxSynchronize");
    uint64_t out;
    CALL(cuMemAlloc_v2, (uint64_t *, size_t), &out, 128);
    for (char order; read(connection, &order, 1) == 1;) {
        double start = now_ns();
        for (uint32_t k = 0; k < (simulated ? 20u : 1000u); k++)
            check(launch(function, 1, 1, 1, simulated ? 1 : 32, 1, 1, 0, NULL, (void *[]){&out, &k}, NULL), "cuLaunchKernel");
        check(synchronize(), "cuCtxSynchronize");
        dprintf(connection, "%.0f\n", now_ns() - start);
    }
    return 0;
}
