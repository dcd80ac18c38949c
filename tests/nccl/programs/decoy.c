/* What a program must not get. */
#define EXPORT __attribute__((visibility("default")))
EXPORT int ncclGetVersion(int *version);
EXPORT int cuDriverGetVersion(int *version);

int ncclGetVersion(int *version)
{
    *version = 1;
    return 0;
}

int cuDriverGetVersion(int *version) { return ncclGetVersion(version); }
