// Admission by exact counts.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/policies/chunked_admission.h"
#include "core/policies/counter_table.h"

namespace sok {

// A counter stops at min_count: a higher count would change no answer, but more chunks would have
// to be saved.
class FrequencyAdmission final : public ChunkedAdmission {
 public:
  // min_count must be at least 1.
  static Result<std::unique_ptr<Admission>> Make(const AdmissionConfig& config) {
    return std::unique_ptr<Admission>(std::make_unique<FrequencyAdmission>(config));
  }
  explicit FrequencyAdmission(const AdmissionConfig& config);

  Status Observe(const Key* keys, const int64_t* counts, size_t n, uint8_t* admitted) override;
  void Admitted(const Key* keys, size_t n, uint8_t* admitted) const override;
  void Forget(const Key* keys, size_t n) override;
  uint64_t bytes() const override;

 private:
  static constexpr int kChunkBits = 10;

  // The highest bits choose the chunk, the lowest the slot in its table.
  static uint32_t ChunkOf(uint64_t hash) {
    return static_cast<uint32_t>(hash >> (64 - kChunkBits));
  }
  // Does what Observe does, for one key. Called with the chunk's mutex held.
  Status Count(Key key, uint64_t hash, int64_t times, uint8_t* admitted);

  // Returns for each counter the key in 8 bytes and the count in 4.
  std::string Payload(uint32_t chunk) const override;
  Status LoadPayload(uint32_t chunk, std::string_view payload) override;
  Status CheckPayload(uint32_t chunk, std::string_view payload) const override;
  void ClearChunk(uint32_t chunk) override;
  // Returns the counters of a payload.
  Result<CounterTable> Parse(uint32_t chunk, std::string_view payload) const;

  const uint32_t min_count_;
  std::vector<CounterTable> tables_;  // one a chunk
};

}  // namespace sok
