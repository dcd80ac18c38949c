#include "check.h"

#include <elf.h>

#include <sys/wait.h>

extern void sgf_inject_failures(const char *text);

CASE(cold_nothing_works_before_init, "before cuInit everything but the version says so")
{
    int n;
    CUdeviceptr p;
    IS(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&n));
    IS(CUDA_ERROR_NOT_INITIALIZED, cuMemAlloc_v2(&p, 4));
    OK(cuDriverGetVersion(&n));
    CHECK(n == CUDA_VERSION);
    IS(CUDA_ERROR_INVALID_VALUE, cuInit(1));
    OK(cuInit(0));
    IS(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc_v2(&p, 4));
    IS(CUDA_ERROR_INVALID_CONTEXT, cuCtxGetDevice_v2(&n, NULL));
    IS(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&n, 1));
}

CASE(contexts_stack_per_thread, "push, pop, set and destroy act on the calling thread's stack")
{
    CUcontext a, b, got;
    OK(cuCtxCreate_v2(&a, 0, 0));
    OK(cuCtxCreate_v4(&b, NULL, 0, 0));
    OK(cuCtxGetCurrent(&got));
    CHECK(got == b);
    OK(cuCtxPopCurrent_v2(&got));
    CHECK(got == b);
    OK(cuCtxPushCurrent_v2(context));
    OK(cuCtxSetCurrent(b));
    OK(cuCtxPopCurrent_v2(&got));
    CHECK(got == b);
    OK(cuCtxDestroy_v2(a));
    OK(cuCtxGetCurrent(&got));
    CHECK(got == context);
    OK(cuCtxSetCurrent(b));
    OK(cuCtxPushCurrent_v2(context));
    OK(cuCtxDestroy_v2(b));
    IS(CUDA_ERROR_INVALID_CONTEXT, cuCtxPushCurrent_v2(b));
    OK(cuCtxPopCurrent_v2(&got));
    IS(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxSynchronize());
}

CASE(the_primary_context_is_counted, "retain, release and reset of the primary context")
{
    CUcontext a, b;
    unsigned flags;
    int active;
    OK(cuDevicePrimaryCtxRetain(&a, 0));
    OK(cuDevicePrimaryCtxRetain(&b, 0));
    CHECK(a == b);
    IS(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy_v2(a));
    OK(cuDevicePrimaryCtxRelease_v2(0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    CHECK(active == 1);
    OK(cuDevicePrimaryCtxReset_v2(0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    CHECK(active == 0);
    IS(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease_v2(0));
    OK(cuDevicePrimaryCtxRetain(&b, 0));
    OK(cuCtxSetCurrent(b));
    OK(cuCtxSynchronize());
}

CASE(a_forked_child_is_refused, "the child of an initialised process gets CUDA_ERROR_NOT_INITIALIZED from everything")
{
    CUdeviceptr p;
    int status;
    OK(cuMemAlloc_v2(&p, 4));
    pid_t child = fork();
    if (child == 0) {
        int n;
        bool refused = cuInit(0) == CUDA_ERROR_NOT_INITIALIZED && cuMemAlloc_v2(&p, 4) == CUDA_ERROR_NOT_INITIALIZED &&
                       cuCtxSynchronize() == CUDA_ERROR_NOT_INITIALIZED && cuDeviceGetCount(&n) == CUDA_ERROR_NOT_INITIALIZED;
        _exit(refused ? 0 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    OK(cuMemsetD8_v2(p, 0, 4));
    OK(cuCtxSynchronize());
}

CASE(exit_with_work_in_flight, "a process that exits while kernels run ends at once and cleanly")
{
    CUdeviceptr p;
    unsigned never = 1;
    CUstream s;
    OK(cuMemAlloc_v2(&p, 4));
    OK(cuMemsetD8_v2(p, 0, 4));
    void *params[] = { &p, &never };
    for (int i = 0; i < 4; i++) {
        OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
        OK(cuLaunchKernel(function("spin_until"), 64, 1, 1, 256, 1, 1, 0, s, params, NULL));
    }
}

CASE(endless_kernels_end_with_their_context, "stream, module and context can go under a kernel that never ends")
{
    CUcontext own;
    CUfunction f;
    CUstream s;
    CUdeviceptr p;
    unsigned never = 1;
    void *params[] = { &p, &never };
    OK(cuCtxCreate_v2(&own, 0, 0));
    CUmodule m = load_image();
    OK(cuModuleGetFunction(&f, m, "spin_until"));
    OK(cuMemAlloc_v2(&p, 4));
    OK(cuMemsetD8_v2(p, 0, 4));
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuLaunchKernel(f, 64, 1, 1, 256, 1, 1, 0, s, params, NULL));
    OK(cuStreamDestroy_v2(s));
    OK(cuModuleUnload(m));
    IS(CUDA_ERROR_INVALID_HANDLE, cuModuleGetFunction(&f, m, "spin_until"));
    OK(cuCtxDestroy_v2(own));
    OK(cuCtxSynchronize());
}

CASE(failures_can_be_injected, "the nth call of a function, or the nth kernel, fails as told")
{
    CUdeviceptr p;
    void *params[] = { &p };
    CUfunction f = function("count_blocks");
    sgf_inject_failures("cuMemAlloc:3=2,kernel:2=700");
    OK(cuMemAlloc_v2(&p, 4));
    OK(cuMemAlloc_v2(&p, 4));
    IS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&p, 4));
    OK(cuMemAlloc_v2(&p, 4));
    OK(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
    OK(cuCtxSynchronize());
    OK(cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
    IS(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
    sgf_inject_failures(NULL);
}

CASE(bad_images_are_refused, "garbage, wrong containers and text without kernels have their errors; SASS loads, and cannot run")
{
    CUmodule m;
    CUfunction f;
    static const unsigned char fatbin[80] = { 0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0, 0 };
    struct { Elf64_Ehdr header; Elf64_Shdr first; } elf = { .header = { .e_ident = { 0x7f, 'E', 'L', 'F', ELFCLASS64 } } };
    IS(CUDA_ERROR_INVALID_IMAGE, cuModuleLoadData(&m, "not an image at all"));
    IS(CUDA_ERROR_INVALID_PTX, cuModuleLoadData(&m, ".version 8.7\n.target sm_120\nrubbish"));
    IS(CUDA_ERROR_INVALID_VALUE, cuModuleLoadData(&m, NULL));
    IS(CUDA_ERROR_FILE_NOT_FOUND, cuModuleLoad(&m, "/nonexistent"));
    OK(cuModuleLoadData(&m, fatbin));
    IS(CUDA_ERROR_INVALID_IMAGE, cuModuleLoadData(&m, &elf));
    elf.header.e_machine = EM_CUDA;
    elf.header.e_shoff = sizeof elf.header;
    elf.header.e_shentsize = sizeof elf.first;
    elf.header.e_shnum = 1;
    OK(cuModuleLoadData(&m, &elf));
    OK(cuModuleGetFunction(&f, m, "kernel_in_sass"));
    IS(CUDA_ERROR_NO_BINARY_FOR_GPU, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(cuModuleUnload(m));
    IS(CUDA_ERROR_INVALID_HANDLE, cuModuleGetFunction(&f, m, "kernel_in_sass"));
}

CASE(fatbins_carry_ptx, "PTX is found in a fatbin through its wrapper, plain and compressed alike")
{
    char *text = text_of(getenv("KERNEL_IMAGE"));
    uint64_t padded = (strlen(text) + 8) & ~7ull;
    unsigned char *data = calloc(1, 16 + 64 + padded);
    struct { uint32_t magic, version; const void *data; void *more; } wrapper = { 0x466243b1, 1, data, NULL };
    uint32_t magic = 0xba55ed50, arch = 90, header = 64;
    uint64_t files = 64 + padded;
    uint16_t version = 1, size = 16, kind = 1;
    memcpy(data, &magic, 4);
    memcpy(data + 4, &version, 2);
    memcpy(data + 6, &size, 2);
    memcpy(data + 8, &files, 8);
    memcpy(data + 16, &kind, 2);
    memcpy(data + 20, &header, 4);
    memcpy(data + 24, &padded, 8);
    memcpy(data + 44, &arch, 4);
    memcpy(data + 80, text, strlen(text));
    CUmodule m;
    CUfunction f;
    OK(cuModuleLoadFatBinary(&m, &wrapper));
    OK(cuModuleGetFunction(&f, m, "saxpy"));
    OK(cuModuleLoadData(&m, data));
    OK(cuModuleGetFunction(&f, m, "saxpy"));
    free(data);
    free(text);
}

CASE(compile_errors_come_from_the_launch, "what the compiler refuses is the launch's error; a dead compiler is started again")
{
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, 4));
    void *params[] = { &p };
    IS(CUDA_ERROR_NOT_SUPPORTED, cuLaunchKernel(function("refused"), 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    IS(CUDA_ERROR_JIT_COMPILER_NOT_FOUND, cuLaunchKernel(function("killer"), 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(cuLaunchKernel(function("count_blocks"), 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
    OK(cuCtxSynchronize());
}

CASE(entry_points_are_found_by_version, "cuGetProcAddress gives the newest variant that the version knows")
{
    void *p = NULL;
    CUdriverProcAddressQueryResult status;
    OK(cuGetProcAddress_v2("cuMemAlloc", &p, 12000, 0, &status));
    CHECK(p == (void *)(uintptr_t)cuMemAlloc_v2 && status == CU_GET_PROC_ADDRESS_SUCCESS);
    OK(cuGetProcAddress_v2("cuMemAlloc", &p, 3000, 0, &status));
    CHECK(p == (void *)(uintptr_t)cuMemAlloc);
    OK(cuGetProcAddress_v2("cuEventElapsedTime", &p, 12000, 0, &status));
    CHECK(p == (void *)(uintptr_t)cuEventElapsedTime);
    OK(cuGetProcAddress_v2("cuEventElapsedTime", &p, 13000, 0, &status));
    CHECK(p == (void *)(uintptr_t)cuEventElapsedTime_v2);
    OK(cuGetProcAddress_v2("cuStreamQuery", &p, 13000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, &status));
    CHECK(p == (void *)(uintptr_t)cuStreamQuery_ptsz);
    OK(cuGetProcAddress_v2("cuGraphCreate", &p, 5000, 0, &status));
    CHECK(p == NULL && status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    OK(cuGetProcAddress_v2("cuNothing", &p, 13000, 0, &status));
    CHECK(p == NULL && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    OK(cuGetProcAddress_v2("cuNothing", &p, 13000, 0, NULL));
    CHECK(p == NULL);
    IS(CUDA_ERROR_NOT_FOUND, cuGetProcAddress("cuNothing", &p, 13000, 0));
    IS(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress_v2("cuMemAlloc", &p, 13000, 8, &status));
    const void *table;
    CUuuid id = { { 0 } };
    IS(CUDA_ERROR_NOT_FOUND, cuGetExportTable(&table, &id));
}

CASE(errors_have_names, "every code has a name and a description; unknown ones are invalid")
{
    const char *text;
    OK(cuGetErrorName(CUDA_ERROR_ILLEGAL_ADDRESS, &text));
    CHECK(strcmp(text, "CUDA_ERROR_ILLEGAL_ADDRESS") == 0);
    OK(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
    CHECK(strcmp(text, "out of memory") == 0);
    IS(CUDA_ERROR_INVALID_VALUE, cuGetErrorName((CUresult)12345, &text));
    IS(CUDA_ERROR_NOT_SUPPORTED, cuMemAllocManaged(&(CUdeviceptr){ 0 }, 4, 1));
}

CASE(attributes_are_consistent, "device attributes agree with limits that calls enforce")
{
    int v, major, minor;
    char name[64];
    size_t total;
    OK(cuDeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 0));
    CHECK(v == 1024);
    OK(cuDeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 0));
    CHECK(v == 0);
    OK(cuDeviceComputeCapability(&major, &minor, 0));
    CHECK(major == 12 && minor == 0);
    for (int a = 1; a < CU_DEVICE_ATTRIBUTE_MAX; a++)
        OK(cuDeviceGetAttribute(&v, (CUdevice_attribute)a, 0));
    IS(CUDA_ERROR_INVALID_VALUE, cuDeviceGetAttribute(&v, CU_DEVICE_ATTRIBUTE_MAX, 0));
    OK(cuDeviceGetName(name, sizeof name, 0));
    OK(cuDeviceTotalMem_v2(&total, 0));
    CHECK(total == 256u << 20);
}
