/* Problem sizes that the device's kernels and gcc's loops share. */
#define VECTOR (1 << 24)
#define MATRIX 512
