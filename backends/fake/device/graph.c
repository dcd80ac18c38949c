/* Placeholder: capture and graphs follow. */
#include "device.h"
#include <stdlib.h>
void sgf_plan_release(struct sgf_plan *plan) { (void)plan; }
bool sgf_capture_work(struct CUstream_st *stream, struct sgf_work *work, CUresult *result) { (void)stream; (void)work; (void)result; return false; }
CUresult sgf_capture_record(struct CUstream_st *stream, CUevent event) { (void)stream; (void)event; return 0; }
bool sgf_capture_wait(struct CUstream_st *stream, CUevent event, CUresult *result) { (void)stream; (void)event; (void)result; return false; }
CUresult sgf_capture_forbids(struct CUctx_st *context, struct CUstream_st *stream) { (void)stream; (void)context; return 0; }
CUresult sgf_capture_unsafe(void) { return 0; }
void sgf_capture_abandon(struct CUstream_st *stream) { (void)stream; }
