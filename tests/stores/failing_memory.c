/* Loaded before libc (LD_PRELOAD): one allocation fails as where memory ends.

   It is one of those that the calling thread makes of `least` bytes or more between fail_memory and
   mend_memory: the one that comes after `after` others. */
#include <errno.h>
#include <stddef.h>

extern void* __libc_malloc(size_t bytes);
extern void* __libc_memalign(size_t alignment, size_t bytes);

static __thread int failing;
static __thread long calls;
static __thread long failing_call;
static __thread size_t least_bytes;

void fail_memory(long after, size_t least) {
  calls = 0;
  failing_call = after;
  least_bytes = least;
  failing = 1;
}

/* Returns how many allocations there were that could have failed. */
long mend_memory(void) {
  failing = 0;
  return calls;
}

static int Fails(size_t bytes) {
  return failing && bytes >= least_bytes && calls++ == failing_call;
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
