#include "core/base/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace sok {

uint64_t Checksum(const void* bytes, size_t size, uint64_t file_offset) {
  return XXH3_64bits_withSeed(bytes, size, file_offset);
}

struct RunningChecksum::State {
  XXH3_state_t xxh3;
};

RunningChecksum::RunningChecksum() : state_(new State) { Start(0); }
RunningChecksum::~RunningChecksum() = default;

void RunningChecksum::Start(uint64_t file_offset) {
  XXH3_INITSTATE(&state_->xxh3);
  XXH3_64bits_reset_withSeed(&state_->xxh3, file_offset);
}

void RunningChecksum::Add(const void* bytes, size_t size) {
  XXH3_64bits_update(&state_->xxh3, bytes, size);
}

uint64_t RunningChecksum::value() const { return XXH3_64bits_digest(&state_->xxh3); }

}  // namespace sok
