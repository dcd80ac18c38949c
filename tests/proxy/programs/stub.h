/* The calls that the stub proxy serves, and their payloads: enough to reach every part of the machinery
 * without the generated dispatch and without a device. */
#ifndef STUB_H
#define STUB_H

#include <stdint.h>

enum {
    OP_NOTHING,        /* no payload, no answer */
    OP_ECHO,           /* answers its payload (up to the reply's capacity) */
    OP_FAIL,           /* u32: the result it returns */
    OP_SUM,            /* adds its u64 payload to the session's sum */
    OP_SUM_READ,       /* answers the sum */
    OP_CONTEXT_CREATE, /* answers a handle */
    OP_CONTEXT_DESTROY,/* u64 handle */
    OP_CONTEXT_IS,     /* answers the physical context current in the handler's thread */
    OP_STREAM_CREATE,  /* u64: handle that the client chose */
    OP_STREAM_DESTROY, /* u64 handle */
    OP_MODULE_CREATE,  /* u32 count: answers 1 module and `count` function handles */
    OP_MODULE_DESTROY, /* u64 handle */
    OP_FUNCTION_SET,   /* u64 function, u64 key, u64 value */
    OP_FUNCTION_GET,   /* u64 function: answers its value */
    OP_ALLOC,          /* u64 bytes: answers an address */
    OP_FREE,           /* u64 address */
    OP_WRITE,          /* u64 address, u64 bytes, then bulk */
    OP_READ,           /* u64 address, u64 bytes, then bulk */
    OP_PIN,            /* u64 offset, u64 bytes, u64 on */
    OP_PIN_ADD,        /* u64 host address, u64 bytes: adds 1 to each byte, in the proxy */
    OP_GATE_WAIT,      /* blocks until the gate opens (or the session quits) */
    OP_GATE_OPEN,
    OP_HANG,           /* blocks until its context is destroyed: an endless kernel */
    OP_LIVE,           /* answers u64: physical objects alive in the whole driver, pages registered, bytes live */
    OP_VIEW,           /* u64 address, u64 bytes, u64 rounds: reads and writes through the session's view, again and again */
    OP_COUNT
};

#endif
