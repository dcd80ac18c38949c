/* What the device says about itself.  Declined features answer 0 here and CUDA_ERROR_NOT_SUPPORTED when used. */
#include "procs.h"

#include <stdio.h>
#include <string.h>

struct property { int32_t value; bool known; };
#define A(name, value) [CU_DEVICE_ATTRIBUTE_##name] = { value, true }

static const struct property properties[CU_DEVICE_ATTRIBUTE_MAX] = {
    A(MAX_THREADS_PER_BLOCK, SGF_MAX_THREADS), A(MAX_BLOCK_DIM_X, 1024), A(MAX_BLOCK_DIM_Y, 1024), A(MAX_BLOCK_DIM_Z, 64),
    A(MAX_GRID_DIM_X, 2147483647), A(MAX_GRID_DIM_Y, 65535), A(MAX_GRID_DIM_Z, 65535),
    A(MAX_SHARED_MEMORY_PER_BLOCK, SGF_SHARED_DEFAULT), A(TOTAL_CONSTANT_MEMORY, 65536), A(WARP_SIZE, SGF_WARP),
    A(MAX_PITCH, 2147483647), A(MAX_REGISTERS_PER_BLOCK, SGF_REGISTERS), A(CLOCK_RATE, 1000000), A(TEXTURE_ALIGNMENT, 512),
    A(GPU_OVERLAP, 1), A(MULTIPROCESSOR_COUNT, SGF_MULTIPROCESSORS), A(KERNEL_EXEC_TIMEOUT, 0), A(INTEGRATED, 0),
    A(CAN_MAP_HOST_MEMORY, 1), A(COMPUTE_MODE, CU_COMPUTEMODE_DEFAULT), A(SURFACE_ALIGNMENT, 512), A(CONCURRENT_KERNELS, 1),
    A(ECC_ENABLED, 0), A(PCI_BUS_ID, 0), A(PCI_DEVICE_ID, 0), A(PCI_DOMAIN_ID, 0), A(TCC_DRIVER, 0),
    A(MEMORY_CLOCK_RATE, 1000000), A(GLOBAL_MEMORY_BUS_WIDTH, 128), A(L2_CACHE_SIZE, 4 << 20),
    A(MAX_THREADS_PER_MULTIPROCESSOR, SGF_THREADS_PER_SM), A(ASYNC_ENGINE_COUNT, 2), A(UNIFIED_ADDRESSING, 1),
    A(TEXTURE_PITCH_ALIGNMENT, 32), A(COMPUTE_CAPABILITY_MAJOR, 12), A(COMPUTE_CAPABILITY_MINOR, 0),
    A(STREAM_PRIORITIES_SUPPORTED, 1), A(GLOBAL_L1_CACHE_SUPPORTED, 1), A(LOCAL_L1_CACHE_SUPPORTED, 1),
    A(MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, SGF_SHARED_PER_SM), A(MAX_REGISTERS_PER_MULTIPROCESSOR, SGF_REGISTERS),
    A(MANAGED_MEMORY, 0), A(MULTI_GPU_BOARD, 0), A(MULTI_GPU_BOARD_GROUP_ID, 0), A(HOST_NATIVE_ATOMIC_SUPPORTED, 1),
    A(SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO, 2), A(PAGEABLE_MEMORY_ACCESS, 0), A(CONCURRENT_MANAGED_ACCESS, 0),
    A(COMPUTE_PREEMPTION_SUPPORTED, 1), A(CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 0), A(COOPERATIVE_LAUNCH, 1),
    A(MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, SGF_SHARED_OPTIN), A(CAN_FLUSH_REMOTE_WRITES, 0), A(HOST_REGISTER_SUPPORTED, 0),
    A(MAX_BLOCKS_PER_MULTIPROCESSOR, SGF_BLOCKS_PER_SM), A(RESERVED_SHARED_MEMORY_PER_BLOCK, SGF_SHARED_RESERVED),
    A(MEMORY_POOLS_SUPPORTED, 1), A(MEM_SYNC_DOMAIN_COUNT, 1), A(CLUSTER_LAUNCH, 0), A(UNIFIED_FUNCTION_POINTERS, 0),
    A(NUMA_ID, -1), A(HOST_NUMA_ID, 0), A(GPU_PCI_DEVICE_ID, 0), A(GPU_PCI_SUBSYSTEM_ID, 0),
};

CUresult cuDriverGetVersion(int *driverVersion)
{
    if (driverVersion == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *driverVersion = CUDA_VERSION;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
    SGF_ENTER();
    if (count == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *count = sgf.device_count;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    SGF_ENTER_DEVICE(found, ordinal);
    (void)found;
    if (device == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
    SGF_ENTER_DEVICE(device, dev);
    (void)device;
    if (name == NULL || len <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(name, (size_t)len, "Singularity in-memory device");
    return CUDA_SUCCESS;
}

static void uuid_of(const struct sgf_device *device, CUuuid *uuid)
{
    static const unsigned char prefix[15] = { 's', 'g', 'f', '-', 'i', 'n', '-', 'm', 'e', 'm', 'o', 'r', 'y', '-', 0 };
    memcpy(uuid->bytes, prefix, 15);
    uuid->bytes[15] = (char)device->ordinal;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
    SGF_ENTER_DEVICE(device, dev);
    if (uuid == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    uuid_of(device, uuid);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
    return cuDeviceGetUuid_v2(uuid, dev);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
    SGF_ENTER_DEVICE(device, dev);
    uint64_t used, capacity;
    if (bytes == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    sgf_zone_info(device->heap, &used, &capacity);
    *bytes = capacity;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev)
{
    SGF_ENTER_DEVICE(device, dev);
    if (pi == NULL || (int)attrib <= 0 || attrib >= CU_DEVICE_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    /* Attributes without an entry are features that the device lacks: textures, arrays, VMM, IPC, clusters... */
    *pi = properties[attrib].value;
    if (attrib == CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)
        *pi = device->ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetProperties(CUdevprop *prop, CUdevice dev)
{
    SGF_ENTER_DEVICE(device, dev);
    (void)device;
    if (prop == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *prop = (CUdevprop){ .maxThreadsPerBlock = SGF_MAX_THREADS, .maxThreadsDim = { 1024, 1024, 64 },
                         .maxGridSize = { 2147483647, 65535, 65535 }, .sharedMemPerBlock = SGF_SHARED_DEFAULT,
                         .totalConstantMemory = 65536, .SIMDWidth = SGF_WARP, .memPitch = 2147483647,
                         .regsPerBlock = SGF_REGISTERS, .clockRate = 1000000, .textureAlign = 512 };
    return CUDA_SUCCESS;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev)
{
    SGF_ENTER_DEVICE(device, dev);
    (void)device;
    if (major == NULL || minor == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *major = 12;
    *minor = 0;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *pciBusId, int len, CUdevice dev)
{
    SGF_ENTER_DEVICE(device, dev);
    if (pciBusId == NULL || len < 13)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(pciBusId, (size_t)len, "0000:00:%02x.0", device->ordinal);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *pciBusId)
{
    SGF_ENTER();
    unsigned domain = 0, bus, slot, function = 0;
    if (dev == NULL || pciBusId == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (sscanf(pciBusId, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3) {
        domain = 0;
        if (sscanf(pciBusId, "%x:%x.%x", &bus, &slot, &function) < 2)
            return CUDA_ERROR_INVALID_VALUE;
    }
    for (int i = 0; i < sgf.device_count; i++)
        if (domain == 0 && bus == 0 && (int)slot == sgf.devices[i].ordinal) {
            *dev = i;
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceCanAccessPeer(int *canAccessPeer, CUdevice dev, CUdevice peerDev)
{
    SGF_ENTER_DEVICE(device, dev);
    struct sgf_device *peer;
    CUresult result = sgf_device_at(peerDev, &peer);
    if (result != CUDA_SUCCESS)
        return result;
    if (canAccessPeer == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *canAccessPeer = device != peer;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attrib, CUdevice srcDevice, CUdevice dstDevice)
{
    SGF_ENTER_DEVICE(from, srcDevice);
    struct sgf_device *to;
    CUresult result = sgf_device_at(dstDevice, &to);
    if (result != CUDA_SUCCESS)
        return result;
    if (value == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (from == to)
        return CUDA_ERROR_INVALID_DEVICE;
    *value = attrib == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED || attrib == CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
    return CUDA_SUCCESS;
}

CUresult cuProfilerStart(void)
{
    SGF_ENTER();
    return CUDA_SUCCESS;
}

CUresult cuProfilerStop(void)
{
    SGF_ENTER();
    return CUDA_SUCCESS;
}

CUresult cuGetExportTable(const void **ppExportTable, const CUuuid *pExportTableId)
{
    (void)pExportTableId;
    if (ppExportTable != NULL)
        *ppExportTable = NULL;
    return CUDA_ERROR_NOT_FOUND; /* private interfaces: never */
}
