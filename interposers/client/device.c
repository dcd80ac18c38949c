/* Device queries: answered from what the proxy wrote on its door. */
#include <stdio.h>
#include <stdlib.h>
#include "client.h"

#define READY() \
    do { if (atomic_load_explicit(&sg_client.state, memory_order_acquire) != SG_READY) return CUDA_ERROR_NOT_INITIALIZED; } while (0)
#define DEVICE(device) \
    do { READY(); if (!sg_visible(device)) return CUDA_ERROR_INVALID_DEVICE; } while (0)

CUresult sg_hand_cuInit(unsigned int Flags) { return Flags ? CUDA_ERROR_INVALID_VALUE : sg_initialise(); }

CUresult sg_hand_cuDriverGetVersion(int *driverVersion)
{
    if (!driverVersion)
        return CUDA_ERROR_INVALID_VALUE;
    *driverVersion = CUDA_VERSION; /* of the calls that are exported here, whatever the proxy's driver is */
    return CUDA_SUCCESS;
}

int sg_visible(CUdevice device) { return device >= 0 && device < sg_client.count; }
const struct sg_device_info *sg_device(CUdevice device) { return &sg_client.doors[device]->device; }

CUresult sg_hand_cuDeviceGetCount(int *count)
{
    READY();
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = sg_client.count;
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuDeviceGet(CUdevice *device, int ordinal)
{
    if (!device)
        return CUDA_ERROR_INVALID_VALUE;
    DEVICE(ordinal);
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuDeviceGetName(char *name, int len, CUdevice dev)
{
    DEVICE(dev);
    if (!name || len <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(name, (size_t)len, "%.255s", sg_device(dev)->name);
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
    DEVICE(dev);
    if (!uuid)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(uuid, sg_device(dev)->uuid, sizeof *uuid);
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuDeviceGetLuid(char *luid, unsigned int *deviceNodeMask, CUdevice dev)
{
    (void)luid, (void)deviceNodeMask;
    DEVICE(dev);
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult sg_hand_cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
    DEVICE(dev);
    if (!bytes)
        return CUDA_ERROR_INVALID_VALUE;
    *bytes = sg_device(dev)->total_bytes;
    return CUDA_SUCCESS;
}

/* What the proxy declines must not be advertised, whatever the device behind it can do. */
static int declined_attribute(CUdevice_attribute attribute)
{
    switch ((int)attribute) {
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS:
    case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES:
    case CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_MULTI_DEVICE_LAUNCH:
        return 1;
    default:
        return 0;
    }
}

CUresult sg_hand_cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev)
{
    DEVICE(dev);
    if (!pi || (int)attrib <= 0 || attrib >= CU_DEVICE_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    const struct sg_device_info *info = sg_device(dev);
    *pi = (int)attrib < info->attribute_count ? info->attributes[attrib] : 0;
    if (declined_attribute(attrib))
        *pi = 0;
    else if (attrib == CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED || attrib == CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING ||
             attrib == CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY || attrib == CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM)
        *pi = attrib != CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM;
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuDeviceComputeCapability(int *major, int *minor, CUdevice dev)
{
    CUresult error = sg_hand_cuDeviceGetAttribute(major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, dev);
    return error ? error : sg_hand_cuDeviceGetAttribute(minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, dev);
}

static int attribute(CUdevice dev, CUdevice_attribute which)
{
    int value = 0;
    (void)sg_hand_cuDeviceGetAttribute(&value, which, dev);
    return value;
}

CUresult sg_hand_cuDeviceGetProperties(CUdevprop *prop, CUdevice dev)
{
    DEVICE(dev);
    if (!prop)
        return CUDA_ERROR_INVALID_VALUE;
    prop->maxThreadsPerBlock = attribute(dev, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    for (int i = 0; i < 3; i++) {
        prop->maxThreadsDim[i] = attribute(dev, (CUdevice_attribute)(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X + i));
        prop->maxGridSize[i] = attribute(dev, (CUdevice_attribute)(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X + i));
    }
    prop->sharedMemPerBlock = attribute(dev, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
    prop->totalConstantMemory = attribute(dev, CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY);
    prop->SIMDWidth = attribute(dev, CU_DEVICE_ATTRIBUTE_WARP_SIZE);
    prop->memPitch = attribute(dev, CU_DEVICE_ATTRIBUTE_MAX_PITCH);
    prop->regsPerBlock = attribute(dev, CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
    prop->clockRate = attribute(dev, CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
    prop->textureAlign = attribute(dev, CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
    return CUDA_SUCCESS;
}

static void bus_id(char text[32], CUdevice dev)
{
    snprintf(text, 32, "%04X:%02X:%02X.0", (unsigned)attribute(dev, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID) & 0xffffu,
             (unsigned)attribute(dev, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) & 0xffu,
             (unsigned)attribute(dev, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID) & 0xffu);
}

CUresult sg_hand_cuDeviceGetPCIBusId(char *pciBusId, int len, CUdevice dev)
{
    DEVICE(dev);
    if (!pciBusId || len <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    char text[32];
    bus_id(text, dev);
    snprintf(pciBusId, (size_t)len, "%s", text);
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuDeviceGetByPCIBusId(CUdevice *dev, const char *pciBusId)
{
    READY();
    if (!dev || !pciBusId)
        return CUDA_ERROR_INVALID_VALUE;
    unsigned domain = 0, bus, device;
    if (sscanf(pciBusId, "%x:%x:%x", &domain, &bus, &device) != 3) {
        domain = 0;
        if (sscanf(pciBusId, "%x:%x", &bus, &device) != 2)
            return CUDA_ERROR_INVALID_VALUE;
    }
    char wanted[32], text[32];
    snprintf(wanted, sizeof wanted, "%04X:%02X:%02X.0", domain & 0xffffu, bus & 0xffu, device & 0xffu);
    for (CUdevice i = 0; i < sg_client.count; i++) {
        bus_id(text, i);
        if (strcmp(text, wanted) == 0) {
            *dev = i;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

/* A rank opens one device, so there are no peers. */
CUresult sg_hand_cuDeviceCanAccessPeer(int *canAccessPeer, CUdevice dev, CUdevice peerDev)
{
    DEVICE(dev);
    DEVICE(peerDev);
    if (!canAccessPeer)
        return CUDA_ERROR_INVALID_VALUE;
    *canAccessPeer = 0;
    return CUDA_SUCCESS;
}

CUresult sg_hand_cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attrib, CUdevice srcDevice, CUdevice dstDevice)
{
    (void)attrib;
    if (srcDevice == dstDevice)
        return CUDA_ERROR_INVALID_DEVICE;
    return sg_hand_cuDeviceCanAccessPeer(value, srcDevice, dstDevice);
}

CUresult sg_hand_cuDeviceGetExecAffinitySupport(int *pi, CUexecAffinityType type, CUdevice dev)
{
    (void)type;
    DEVICE(dev);
    if (!pi)
        return CUDA_ERROR_INVALID_VALUE;
    *pi = 0;
    return CUDA_SUCCESS;
}

