/* Parameters of graph nodes: the older calls' forms, what work they stand for, and back. */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

static CUresult pick_context(CUcontext given, struct CUctx_st **out)
{
    if (given != NULL) {
        *out = given;
        return sgf_valid(SGF_CONTEXT, given) ? sgf_context_check(given) : CUDA_ERROR_INVALID_CONTEXT;
    }
    return sgf_enter_context("cuGraphAddNode", out);
}

static CUresult kernel_work(const CUDA_KERNEL_NODE_PARAMS_v3 *p, struct sgf_work **work)
{
    CUfunction f = p->func != NULL ? p->func : (CUfunction)p->kern;
    struct CUctx_st *context;
    CUresult result;
    if (!sgf_valid(SGF_FUNCTION, f))
        return CUDA_ERROR_INVALID_VALUE;
    if (f->module != NULL)
        context = f->module->context;
    else if ((result = pick_context(p->ctx, &context)) != CUDA_SUCCESS)
        return result;
    struct sgf_launch_request r = { f, { p->gridDimX, p->gridDimY, p->gridDimZ }, { p->blockDimX, p->blockDimY, p->blockDimZ },
                                    p->sharedMemBytes, p->kernelParams, p->extra, false };
    return sgf_launch_prepare(context, &r, work);
}

static CUresult copy_work(const CUDA_MEMCPY_NODE_PARAMS *p, struct sgf_work **work)
{
    struct sgf_copy c;
    struct CUctx_st *context;
    CUresult result = sgf_describe_copy3d(&p->copyParams, &c);
    if (result == CUDA_SUCCESS)
        result = pick_context(p->copyCtx, &context);
    if (result != CUDA_SUCCESS)
        return result;
    if ((*work = sgf_work_new(SGF_WORK_COPY, context, 0)) == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*work)->u.copy = c;
    return CUDA_SUCCESS;
}

static CUresult fill_work(const CUDA_MEMSET_NODE_PARAMS_v2 *p, struct sgf_work **work)
{
    struct sgf_fill f = { p->dst, p->pitch, p->width, p->height, p->value, p->elementSize };
    struct CUctx_st *context;
    CUresult result = sgf_check_fill(&f);
    if (result == CUDA_SUCCESS)
        result = pick_context(p->ctx, &context);
    if (result != CUDA_SUCCESS)
        return result;
    if ((*work = sgf_work_new(SGF_WORK_FILL, context, 0)) == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*work)->u.fill = f;
    return CUDA_SUCCESS;
}

static CUresult host_work(const CUDA_HOST_NODE_PARAMS_v2 *p, struct sgf_work **work)
{
    struct CUctx_st *context;
    if (p->fn == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = pick_context(NULL, &context);
    if (result != CUDA_SUCCESS)
        return result;
    if ((*work = sgf_work_new(SGF_WORK_HOST, context, 0)) == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    (*work)->u.host.fn = p->fn;
    (*work)->u.host.user = p->userData;
    return CUDA_SUCCESS;
}

static CUresult child_of(struct CUgraphNode_st *node, CUgraph graph)
{
    struct CUgraph_st *copy;
    if (!sgf_valid(SGF_GRAPH, graph) || graph == node->graph)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = sgf_graph_copy(graph, &copy);
    if (result != CUDA_SUCCESS)
        return result;
    if (node->child != NULL)
        sgf_graph_free(node->child);
    copy->owned = true;
    node->child = copy;
    return CUDA_SUCCESS;
}

CUresult sgf_node_set(struct CUgraphNode_st *node, const CUgraphNodeParams *p)
{
    struct sgf_work *work = NULL;
    CUresult result;
    if (p->type != node->type)
        return CUDA_ERROR_INVALID_VALUE;
    switch (p->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: result = kernel_work(&p->kernel, &work); break;
    case CU_GRAPH_NODE_TYPE_MEMCPY: result = copy_work(&p->memcpy, &work); break;
    case CU_GRAPH_NODE_TYPE_MEMSET: result = fill_work(&p->memset, &work); break;
    case CU_GRAPH_NODE_TYPE_HOST: result = host_work(&p->host, &work); break;
    case CU_GRAPH_NODE_TYPE_GRAPH: return child_of(node, p->graph.graph);
    case CU_GRAPH_NODE_TYPE_EMPTY: return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: {
        CUevent event = p->type == CU_GRAPH_NODE_TYPE_WAIT_EVENT ? p->eventWait.event : p->eventRecord.event;
        if (!sgf_valid(SGF_EVENT, event))
            return CUDA_ERROR_INVALID_VALUE;
        node->event = event;
        return CUDA_SUCCESS;
    }
    default:
        sgf_once("a graph node for memory allocation, semaphores, conditions or batches");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (result == CUDA_SUCCESS) {
        work->references = 1;
        sgf_node_set_work(node, work);
    }
    return result;
}

/* ---- back: parameters from work ------------------------------------------------------------------------------------ */
static CUresult kernel_params(struct CUgraphNode_st *node, CUDA_KERNEL_NODE_PARAMS_v3 *p)
{
    struct sgf_launch *l = &node->work->u.launch;
    const struct sgf_kernel *k = l->function->kernel;
    if (node->pointers == NULL && k->param_count != 0) {
        node->pointers = calloc(k->param_count, sizeof *node->pointers);
        if (node->pointers == NULL)
            return CUDA_ERROR_OUT_OF_MEMORY;
        for (uint32_t i = 0; i < k->param_count; i++)
            node->pointers[i] = node->work->tail + k->params[i].offset;
    }
    *p = (CUDA_KERNEL_NODE_PARAMS_v3){ .func = l->function, .gridDimX = l->grid[0], .gridDimY = l->grid[1], .gridDimZ = l->grid[2],
                                       .blockDimX = l->block[0], .blockDimY = l->block[1], .blockDimZ = l->block[2],
                                       .sharedMemBytes = l->dynamic_shared, .kernelParams = node->pointers,
                                       .ctx = node->work->context };
    return CUDA_SUCCESS;
}

static void copy_params(const struct sgf_copy *c, CUDA_MEMCPY3D *p)
{
    memset(p, 0, sizeof *p);
    p->srcMemoryType = sgf_device_of(c->src) != NULL ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    p->dstMemoryType = sgf_device_of(c->dst) != NULL ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
    if (p->srcMemoryType == CU_MEMORYTYPE_DEVICE)
        p->srcDevice = c->src;
    else
        p->srcHost = (const void *)(uintptr_t)c->src;
    if (p->dstMemoryType == CU_MEMORYTYPE_DEVICE)
        p->dstDevice = c->dst;
    else
        p->dstHost = (void *)(uintptr_t)c->dst;
    p->srcPitch = c->src_pitch;
    p->dstPitch = c->dst_pitch;
    p->srcHeight = c->src_pitch != 0 ? c->src_slice / c->src_pitch : 0;
    p->dstHeight = c->dst_pitch != 0 ? c->dst_slice / c->dst_pitch : 0;
    p->WidthInBytes = c->width;
    p->Height = c->rows;
    p->Depth = c->slices;
}

CUresult sgf_node_get(struct CUgraphNode_st *node, CUgraphNodeParams *p)
{
    memset(p, 0, sizeof *p);
    p->type = node->type;
    CUresult result = CUDA_SUCCESS;
    switch (node->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: result = kernel_params(node, &p->kernel); break;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        copy_params(&node->work->u.copy, &p->memcpy.copyParams);
        p->memcpy.copyCtx = node->work->context;
        break;
    case CU_GRAPH_NODE_TYPE_MEMSET: {
        const struct sgf_fill *f = &node->work->u.fill;
        p->memset = (CUDA_MEMSET_NODE_PARAMS_v2){ f->dst, f->pitch, f->value, f->element, f->width, f->rows, node->work->context };
        break;
    }
    case CU_GRAPH_NODE_TYPE_HOST:
        p->host.fn = node->work->u.host.fn;
        p->host.userData = node->work->u.host.user;
        break;
    case CU_GRAPH_NODE_TYPE_GRAPH: p->graph.graph = node->child; break;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: p->eventWait.event = node->event; break;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: p->eventRecord.event = node->event; break;
    default: break;
    }
    return result;
}

/* ---- older forms ---------------------------------------------------------------------------------------------------- */
bool sgf_params_from_kernel(CUgraphNodeParams *p, const void *old, size_t bytes)
{
    if (old == NULL)
        return false;
    *p = (CUgraphNodeParams){ .type = CU_GRAPH_NODE_TYPE_KERNEL };
    memcpy(&p->kernel, old, bytes); /* v1 is a prefix of v2, which equals v3 */
    return true;
}

bool sgf_params_from_copy(CUgraphNodeParams *p, const CUDA_MEMCPY3D *old, CUcontext context)
{
    if (old == NULL)
        return false;
    *p = (CUgraphNodeParams){ .type = CU_GRAPH_NODE_TYPE_MEMCPY };
    p->memcpy.copyParams = *old;
    p->memcpy.copyCtx = context;
    return true;
}

bool sgf_params_from_fill(CUgraphNodeParams *p, const CUDA_MEMSET_NODE_PARAMS *old, CUcontext context)
{
    if (old == NULL)
        return false;
    *p = (CUgraphNodeParams){ .type = CU_GRAPH_NODE_TYPE_MEMSET };
    p->memset = (CUDA_MEMSET_NODE_PARAMS_v2){ old->dst, old->pitch, old->value, old->elementSize, old->width, old->height, context };
    return true;
}

bool sgf_params_from_host(CUgraphNodeParams *p, const CUDA_HOST_NODE_PARAMS *old)
{
    if (old == NULL)
        return false;
    *p = (CUgraphNodeParams){ .type = CU_GRAPH_NODE_TYPE_HOST };
    p->host.fn = old->fn;
    p->host.userData = old->userData;
    return true;
}
