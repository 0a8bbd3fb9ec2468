/* The function of the test images. It copies its input to its output like `cat`. It is one small
 * static program, so that its pods start fast. The input can contain these instructions, anywhere
 * in the text:
 *
 *   test-sleep-ms: N    sleep for N ms before the output
 *   test-stderr: WORD   write WORD to standard error
 *   test-args: yes      write the program's arguments to standard error, so that tests can tell
 *                       images apart
 *   test-exit: N        exit with this code
 *   test-signal: N      send this signal to the program itself, and write no output
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *value_of(const char *input, const char *name) {
    const char *found = strstr(input, name);
    return found ? found + strlen(name) : NULL;
}

int main(int argc, char **argv) {
    size_t size = 0, room = 1 << 16;
    char *input = malloc(room + 1);
    const char *value;
    for (;;) {
        if (!input)
            return 71;
        ssize_t got = read(0, input + size, room - size);
        if (got < 0)
            return 74;
        if (got == 0)
            break;
        size += (size_t)got;
        if (size == room)
            input = realloc(input, (room *= 2) + 1);
    }
    input[size] = 0;

    if ((value = value_of(input, "test-sleep-ms: "))) {
        long ms = atol(value);
        struct timespec left = {ms / 1000, ms % 1000 * 1000000};
        while (nanosleep(&left, &left)) {
        }
    }
    if ((value = value_of(input, "test-stderr: ")))
        fprintf(stderr, "%.*s\n", (int)strcspn(value, " \t\r\n\"'"), value);
    if (value_of(input, "test-args: yes"))
        for (int i = 0; i < argc; i++)
            fprintf(stderr, "%s%c", argv[i], i + 1 < argc ? ' ' : '\n');
    if ((value = value_of(input, "test-signal: ")))
        raise(atoi(value));
    for (size_t done = 0; done < size;) {
        ssize_t put = write(1, input + done, size - done);
        if (put < 0)
            return 74;
        done += (size_t)put;
    }
    value = value_of(input, "test-exit: ");
    return value ? atoi(value) : 0;
}
