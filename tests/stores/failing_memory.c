/* Loaded before libc (LD_PRELOAD): one allocation fails as where memory ends, or all from one on.

   They are of those that the calling thread makes of `least` bytes or more between fail_memory, or
   end_memory, and mend_memory: the one that comes after `after` others, or all after those. */
#include <errno.h>
#include <stddef.h>

extern void* __libc_malloc(size_t bytes);
extern void* __libc_memalign(size_t alignment, size_t bytes);

static __thread int failing;
static __thread long calls;
static __thread long failing_call;
static __thread int for_good;
static __thread size_t least_bytes;

void fail_memory(long after, size_t least) {
  calls = 0;
  failing_call = after;
  least_bytes = least;
  for_good = 0;
  failing = 1;
}

void end_memory(long after, size_t least) {
  fail_memory(after, least);
  for_good = 1;
}

/* Returns how many allocations there were that could have failed. */
long mend_memory(void) {
  failing = 0;
  return calls;
}

static int Fails(size_t bytes) {
  if (!failing || bytes < least_bytes) return 0;
  const long call = calls++;
  return call == failing_call || (for_good && call > failing_call);
}

void* malloc(size_t bytes) {
  if (!Fails(bytes)) return __libc_malloc(bytes);
  errno = ENOMEM;
  return NULL;
}

void* aligned_alloc(size_t alignment, size_t bytes) {
  if (!Fails(bytes)) return __libc_memalign(alignment, bytes);
  errno = ENOMEM;
  return NULL;
}

int posix_memalign(void** pointer, size_t alignment, size_t bytes) {
  if (Fails(bytes)) return ENOMEM;
  *pointer = __libc_memalign(alignment, bytes);
  return *pointer == NULL ? ENOMEM : 0;
}
