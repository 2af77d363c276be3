/* Preloaded into a broker: while the file that COTERIE_HANG names exists, no sync of it ends. io_uring is refused, as
   its syncs could not be held up; the broker then syncs by threads. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static void wait_while_held(void) {
    const char *file = getenv("COTERIE_HANG");
    while (file != NULL && access(file, F_OK) == 0) usleep(5000);
}

int fsync(int fd) {
    wait_while_held();
    return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd);
}

int fdatasync(int fd) {
    wait_while_held();
    return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd);
}

static ssize_t write_and_sync(const char *name, int fd, const struct iovec *parts, int count, off_t at, int flags) {
    if (flags & RWF_DSYNC) wait_while_held();
    return ((ssize_t(*)(int, const struct iovec *, int, off_t, int))dlsym(RTLD_NEXT, name))(fd, parts, count, at, flags);
}

ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t at, int flags) {
    return write_and_sync("pwritev2", fd, parts, count, at, flags);
}

ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off_t at, int flags) {
    return write_and_sync("pwritev64v2", fd, parts, count, at, flags);
}

long syscall(long number, ...) {
    long given[6];
    va_list more;
    va_start(more, number);
    for (int at = 0; at < 6; at++) given[at] = va_arg(more, long);
    va_end(more);
    if (number == SYS_io_uring_setup) {
        errno = ENOSYS;
        return -1;
    }
    return ((long (*)(long, ...))dlsym(RTLD_NEXT, "syscall"))(number, given[0], given[1], given[2], given[3], given[4],
                                                              given[5]);
}
