// The checksum of files and of pieces of them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sok {

// Returns XXH3-64 of the bytes, seeded with the file offset at which they start, so that a whole
// piece that stands in the wrong place is found as well.
uint64_t Checksum(const void* bytes, size_t size, uint64_t file_offset);

}  // namespace sok
