/* Loaded before libc (LD_PRELOAD): keeps what would survive a failure of power at any moment.

   What a file in the folder SOK_DEVICE holds when it is brought to the device (fsync) is copied to
   $SOK_SURVIVES/<inode>. The names in the folder are copied to $SOK_SURVIVES/names when the folder
   is. Nothing else survives: neither bytes that were written since, nor names that were made or
   removed.

   Where SOK_BOOT_ID names a file, the machine seems to have been started anew: that file is read in
   place of the kernel's boot_id. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;

static int Path(int fd, char* path, size_t size) {
  char link[40];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const ssize_t n = readlink(link, path, size - 1);
  if (n < 0) return 0;
  path[n] = 0;
  const char* device = getenv("SOK_DEVICE");
  return device != NULL && strncmp(path, device, strlen(device)) == 0;
}

static void KeepFile(int fd, ino_t inode) {
  char name[4200], whole[4200];
  snprintf(whole, sizeof(whole), "%s/%lu", getenv("SOK_SURVIVES"), (unsigned long)inode);
  snprintf(name, sizeof(name), "%s.new", whole);
  char link[40];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const int from = open(link, O_RDONLY), to = open(name, O_CREAT | O_TRUNC | O_WRONLY, 0666);
  char bytes[1 << 16];
  ssize_t n;
  while ((n = read(from, bytes, sizeof(bytes))) > 0) {
    if (write(to, bytes, n) != n) abort();
  }
  close(from);
  close(to);
  rename(name, whole);
}

/* One line a name: its inode, and the name. */
static void KeepNames(const char* path) {
  char name[4200], whole[4200];
  snprintf(whole, sizeof(whole), "%s/names", getenv("SOK_SURVIVES"));
  snprintf(name, sizeof(name), "%s.new", whole);
  FILE* to = fopen(name, "w");
  DIR* folder = opendir(path);
  const struct dirent* entry;
  while (folder != NULL && (entry = readdir(folder)) != NULL) {
    if (entry->d_type == DT_REG) fprintf(to, "%lu %s\n", (unsigned long)entry->d_ino, entry->d_name);
  }
  closedir(folder);
  fclose(to);
  rename(name, whole);
}

static void Keep(int fd) {
  char path[4096];
  struct stat info;
  if (!Path(fd, path, sizeof(path)) || fstat(fd, &info) != 0) return;
  const int error = errno;
  pthread_mutex_lock(&mu);
  if (S_ISDIR(info.st_mode) && strcmp(path, getenv("SOK_DEVICE")) == 0) KeepNames(path);
  if (S_ISREG(info.st_mode)) KeepFile(fd, info.st_ino);
  pthread_mutex_unlock(&mu);
  errno = error;
}

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  const char* boot = getenv("SOK_BOOT_ID");
  if (boot != NULL && strcmp(path, "/proc/sys/kernel/random/boot_id") == 0) path = boot;
  return REAL(open)(path, flags, mode);
}

int fsync(int fd) {
  Keep(fd);
  return REAL(fsync)(fd);
}

int fdatasync(int fd) {
  Keep(fd);
  return REAL(fdatasync)(fd);
}
