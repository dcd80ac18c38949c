/* Runs the case that is named, or lists them. */
#include "cases.h"

struct test_case *test_cases;

int main(int count, char **arguments)
{
    for (struct test_case *c = test_cases; c; c = c->next) {
        if (count > 1 && strcmp(c->name, arguments[1]) == 0) {
            c->run();
            puts("passed");
            return 0;
        }
    }
    fprintf(stderr, "no such case\n");
    return 2;
}
