#include "core/base/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace sok {

uint64_t Checksum(const void* bytes, size_t size, uint64_t file_offset) {
  return XXH3_64bits_withSeed(bytes, size, file_offset);
}

}  // namespace sok
