/* Problem sizes that the device's kernels and gcc's loops share. */
#define VECTOR (1 << 24)
#define MATRIX 512
#define LARGE 1024 /* rows a power of two apart that the first-level cache cannot hold: the order of the work counts */
