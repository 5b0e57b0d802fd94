/* Loaded before libc (LD_PRELOAD): locks of open files fail with the error SOK_LOCKS, as on a system
   or a file system that has none; SOK_FLOCKS is the error of flock(). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/file.h>

static int Fails(const char* name) {
  const char* error = getenv(name);
  if (error == NULL) return 0;
  errno = atoi(error);
  return 1;
}

#define FCNTL(name)                                                              \
  int name(int fd, int command, ...) {                                           \
    va_list more;                                                                \
    va_start(more, command);                                                     \
    void* argument = va_arg(more, void*);                                        \
    va_end(more);                                                                \
    const int ours = command == F_OFD_SETLK || command == F_OFD_GETLK;           \
    if (ours && Fails("SOK_LOCKS")) return -1;                                   \
    return ((int (*)(int, int, ...))dlsym(RTLD_NEXT, #name))(fd, command, argument); \
  }
FCNTL(fcntl)
FCNTL(fcntl64)

int flock(int fd, int operation) {
  if (Fails("SOK_FLOCKS")) return -1;
  return ((int (*)(int, int))dlsym(RTLD_NEXT, "flock"))(fd, operation);
}
