/* The thread of a proxy that obeys the board's `freeze`. */
#ifndef SG_REST_H
#define SG_REST_H

struct sg_server;
int sg_rest_open(struct sg_server *server); /* 0 or -errno; after the engine's start */
void sg_rest_close(struct sg_server *server); /* when the server stops */

#endif
