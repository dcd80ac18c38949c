/* opener HOW FILE FUNCTION: opens FILE and prints where FUNCTION comes from; `call` calls it instead. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int count, char **arguments)
{
    if (count < 4)
        return 2;
    const char *how = arguments[1], *file = arguments[2];
    void *library = strcmp(how, "dlmopen") == 0       ? dlmopen(LM_ID_BASE, file, RTLD_NOW)
                    : strcmp(how, "dlmopen-new") == 0 ? dlmopen(LM_ID_NEWLM, file, RTLD_NOW)
                                                      : dlopen(file, RTLD_NOW);
    void *function = library ? dlsym(library, arguments[3]) : NULL;
    Dl_info info;
    if (!function) {
        puts("not there");
    } else if (strcmp(how, "call") == 0) {
        int (*call)(void);
        *(void **)&call = function;
        puts(call() ? "found" : "lost");
    } else if (dladdr(function, &info)) {
        puts(info.dli_fname);
    } else {
        puts("unknown"); /* another namespace than dladdr looks at */
    }
    return 0;
}
