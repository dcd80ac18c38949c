/* A rank that does one step of work whenever it is told to.  Usage: step_server SOCKET launch_bound|simulated
 * Each byte that arrives is one step; the answer is its nanoseconds as text and a newline.
 *   launch_bound: 1,000 launches of one warp that writes 32 words, then a synchronisation
 *   simulated:    20 launches of one thread that sleeps for 0.5 ms, then a synchronisation: work that takes device time and no
 *                 CPU, as a kernel on a real device does */
#include "rank.h"

static const char *const WRITE_PTX =
    ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry work(.param .u64 out, .param .u32 n) {\n"
    ".reg .b32 %r<4>; .reg .b64 %a<3>;\n ld.param.u64 %a1, [out]; ld.param.u32 %r1, [n]; mov.u32 %r2, %tid.x;\n"
    "mul.wide.u32 %a2, %r2, 4; add.u64 %a1, %a1, %a2; add.u32 %r3, %r1, %r2; st.global.u32 [%a1], %r3; ret; }\n";
static const char *const SLEEP_PTX =
    ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry work(.param .u64 out, .param .u32 n) {\n"
    "nanosleep.u32 500000; ret; }\n";

static void *function;
static int simulated;
static launch_fn launch;
static int (*synchronize)(void);
static uint64_t out;

static double step(char what) {
    (void)what;
    double start = now_ns();
    for (uint32_t k = 0; k < (simulated ? 20u : 1000u); k++)
        check(launch(function, 1, 1, 1, simulated ? 1 : 32, 1, 1, 0, NULL, (void *[]){&out, &k}, NULL), "cuLaunchKernel");
    check(synchronize(), "cuCtxSynchronize");
    return now_ns() - start;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    simulated = strcmp(argv[2], "simulated") == 0;
    open_device();
    function = load_kernel(simulated ? SLEEP_PTX : WRITE_PTX, "work");
    launch = (launch_fn)driver_symbol("cuLaunchKernel");
    synchronize = (int (*)(void))driver_symbol("cuCtxSynchronize");
    CALL(cuMemAlloc_v2, (uint64_t *, size_t), &out, 128);
    return serve_slices(argv[1], step);
}
