/* Loaded before libc (LD_PRELOAD): calls on files fail as on a disk that breaks.

   Only files below the folder in SOK_FAULTY count. Nothing fails until break_files is called; then
   the call number `after` from there on fails with `error`, and those behind it until mend_files,
   or only that one. Calls that only read fail if `reads` says so, others if `kinds` has theirs.
   After choose_files, only files whose names fit a pattern count. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_int failure;
static atomic_long calls_left;
static atomic_int only_one;
static atomic_int reads_too;
static atomic_int kinds_only;
static atomic_long failed;
static atomic_long called;
static char chosen[64] = "*";

enum { kRead = 0, kWrite = 1, kSync = 2, kName = 4 };

void break_files(int error, long after, int once, int reads, int kinds) {
  calls_left = after;
  only_one = once;
  reads_too = reads;
  kinds_only = kinds;
  failed = 0;
  called = 0;
  failure = error;
}

/* Names of files without their folder, as fnmatch(3) has patterns. To be called where none fail. */
void choose_files(const char* pattern) { snprintf(chosen, sizeof(chosen), "%s", pattern); }

/* How many calls there were that could have failed, since break_files. */
long calls_on_files(void) { return called; }

/* Returns how many calls have failed. */
long mend_files(void) {
  failure = 0;
  return failed;
}

static int Below(const char* path) {
  const char* folder = getenv("SOK_FAULTY");
  if (folder == NULL || strncmp(path, folder, strlen(folder)) != 0) return 0;
  const char* slash = strrchr(path, '/');
  return fnmatch(chosen, slash == NULL ? path : slash + 1, 0) == 0;
}

static int Open(int fd) {
  char link[40], path[4096];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const ssize_t n = readlink(link, path, sizeof(path) - 1);
  if (n < 0) return 0;
  path[n] = 0;
  return Below(path);
}

/* Whether the call is to fail; sets errno then. */
static int Fails(int ours, int kind) {
  const int error = failure;
  if (error == 0 || !ours) return 0;
  if (kind == kRead ? !reads_too : (kind & kinds_only) == 0) return 0;
  atomic_fetch_add(&called, 1);
  const long left = atomic_fetch_sub(&calls_left, 1);
  if (left > 0 || (only_one && left < 0)) return 0;
  atomic_fetch_add(&failed, 1);
  errno = error;
  return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define ON_FILE(result, name, kind, parameters, ...)                             \
  result name parameters {                                                       \
    return failure != 0 && Fails(Open(fd), kind) ? -1 : REAL(name)(__VA_ARGS__); \
  }
#define ON_PATH(result, name, parameters, ...)                                     \
  result name parameters {                                                         \
    return failure != 0 && Fails(Below(path), kName) ? -1 : REAL(name)(__VA_ARGS__);   \
  }

ON_FILE(ssize_t, write, kWrite, (int fd, const void* from, size_t n), fd, from, n)
ON_FILE(ssize_t, pwrite, kWrite, (int fd, const void* from, size_t n, off_t at), fd, from, n, at)
ON_FILE(ssize_t, pwrite64, kWrite, (int fd, const void* from, size_t n, off64_t at), fd, from, n, at)
ON_FILE(ssize_t, writev, kWrite, (int fd, const struct iovec* from, int n), fd, from, n)
ON_FILE(ssize_t, pwritev, kWrite, (int fd, const struct iovec* from, int n, off_t at), fd, from, n, at)
ON_FILE(ssize_t, read, kRead, (int fd, void* to, size_t n), fd, to, n)
ON_FILE(ssize_t, pread, kRead, (int fd, void* to, size_t n, off_t at), fd, to, n, at)
ON_FILE(ssize_t, pread64, kRead, (int fd, void* to, size_t n, off64_t at), fd, to, n, at)
ON_FILE(ssize_t, preadv, kRead, (int fd, const struct iovec* to, int n, off_t at), fd, to, n, at)
ON_FILE(ssize_t, preadv64, kRead, (int fd, const struct iovec* to, int n, off64_t at), fd, to, n, at)
ON_FILE(ssize_t, pwritev64, kWrite, (int fd, const struct iovec* from, int n, off64_t at), fd, from, n, at)
ON_FILE(int, fsync, kSync, (int fd), fd)
ON_FILE(int, fdatasync, kSync, (int fd), fd)
ON_FILE(int, ftruncate, kWrite, (int fd, off_t size), fd, size)
ON_FILE(int, ftruncate64, kWrite, (int fd, off64_t size), fd, size)
ON_FILE(int, fallocate, kWrite, (int fd, int mode, off_t at, off_t size), fd, mode, at, size)
ON_FILE(int, sync_file_range, kWrite, (int fd, off64_t at, off64_t n, unsigned flags), fd, at, n, flags)
ON_FILE(int, fallocate64, kWrite, (int fd, int mode, off64_t at, off64_t size), fd, mode, at, size)
ON_PATH(int, rename, (const char* path, const char* to), path, to)
ON_PATH(int, link, (const char* path, const char* to), path, to)
ON_PATH(int, unlink, (const char* path), path)
ON_PATH(int, mkdir, (const char* path, mode_t mode), path, mode)

/* Opening for reading fails only where reads do. */
#define OPEN(name)                                                                  \
  int name(const char* path, int flags, ...) {                                      \
    va_list more;                                                                   \
    va_start(more, flags);                                                          \
    const mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, mode_t) : 0; \
    va_end(more);                                                                   \
    const int kind = flags & (O_CREAT | O_WRONLY | O_RDWR) ? kName : kRead;          \
    if (failure != 0 && Fails(Below(path), kind)) return -1;                         \
    return REAL(name)(path, flags, mode);                                           \
  }
OPEN(open)
OPEN(open64)
