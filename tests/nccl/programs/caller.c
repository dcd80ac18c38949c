/* Opens its neighbour by name: only its own RUNPATH leads there. */
#include <dlfcn.h>

__attribute__((visibility("default"))) int open_neighbour(void);
int open_neighbour(void) { return dlopen("libneighbour.so", RTLD_NOW) != 0; }
