/* Runs the case that the command line names, in a fresh process with a context and the kernels loaded. */
#include "check.h"

struct test_case *test_cases;
CUcontext context;
CUmodule module;

void *text_of(const char *path)
{
    FILE *file = fopen(path, "r");
    char *text = calloc(1, 1 << 20);
    CHECK(file != NULL && text != NULL && fread(text, 1, (1 << 20) - 1, file) > 0);
    fclose(file);
    return text;
}

CUmodule load_image(void)
{
    CUmodule made;
    void *text = text_of(getenv("KERNEL_IMAGE"));
    OK(cuModuleLoadData(&made, text));
    free(text);
    return made;
}

CUfunction function(const char *name)
{
    CUfunction f;
    if (module == NULL)
        module = load_image();
    OK(cuModuleGetFunction(&f, module, name));
    return f;
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    for (struct test_case *c = test_cases; c != NULL; c = c->next)
        if (strcmp(c->name, argv[1]) == 0) {
            if (strncmp(c->name, "cold_", 5) != 0) {
                OK(cuInit(0));
                OK(cuCtxCreate_v2(&context, 0, 0));
            }
            c->run();
            puts("passed");
            return 0;
        }
    fprintf(stderr, "no case %s\n", argv[1]);
    return 2;
}
