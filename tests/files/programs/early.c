/* Opens a file before any constructor has run, libc's included. */
#include <fcntl.h>
#include <unistd.h>

static void early(void)
{
    int file = open("early", O_CREAT | O_WRONLY, 0600);
    if (file < 0)
        _exit(99);
}

__attribute__((section(".preinit_array"), used)) static void (*const first)(void) = early;

int main(void)
{
    return 0;
}
