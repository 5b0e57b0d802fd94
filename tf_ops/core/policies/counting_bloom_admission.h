// Admission by a counting Bloom filter: counts in a fixed amount of memory, never too low.
//
// Each key has k counters, chosen by k hash functions, and its count is the smallest of them (Fan,
// Cao, Almeida, Broder 2000, "Summary cache"). Observing a key raises only those counters that have
// the smallest value: conservative update (Estan, Varghese 2002, "New directions in traffic
// measurement and accounting"). So after n keys were seen min_count times each, exactly the
// counters of these keys stand at min_count, and the rate of false positives is that of a plain
// Bloom filter,
//
//   p = (1 - exp(-k n / m))^k    with m counters.
//
// k = round(-log2 p), the optimum, and m solves the equation for that k.
//
// The counters stand in chunks of at most 256 KiB, and all those of one key are in one of them. One
// lock then covers an observation, and a chunk is saved whole. Keys spread over the chunks by hash:
// at 4 bits and p = 0.01 a full chunk gets 54 700 keys, give or take 234, and that unevenness moves
// p by less than 1 %.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/page_memory.h"
#include "core/policies/chunked_admission.h"

namespace sok {

// A counter stops at min_count, which fits its width: a higher count would change no answer, but
// more chunks would have to be saved.
class CountingBloomAdmission final : public ChunkedAdmission {
 public:
  // Makes an admission; min_count must be at least 1.
  // Errors: see MakeAdmission.
  static Result<std::unique_ptr<Admission>> Make(const AdmissionConfig& config);

  Status Observe(const Key* keys, const int64_t* counts, size_t n, uint8_t* admitted) override;
  void Admitted(const Key* keys, size_t n, uint8_t* admitted) const override;
  void Forget(const Key* /*keys*/, size_t /*n*/) override {}
  uint64_t bytes() const override { return memory_.bytes() + chunks_bytes(); }

 private:
  static constexpr uint32_t kMaxHashes = 32;

  struct Shape {
    uint32_t hashes;       // k
    uint32_t chunks;       // each of the same size
    uint32_t chunk_bytes;  // a multiple of the cache line
  };

  // Finds the counters of a key.
  struct Place {
    uint32_t chunk;
    std::array<uint32_t, kMaxHashes> counters;  // the first `hashes` of them, within the chunk
  };

  CountingBloomAdmission(const AdmissionConfig& config, const Shape& shape, PageBuffer memory);
  static Result<Shape> ShapeOf(const AdmissionConfig& config);

  // Calls fn(i, place) for the i-th key. It prefetches the counters of the next keys.
  template <typename Fn>
  void ForEachPlace(const Key* keys, size_t n, const Fn& fn) const;
  void FindPlace(Key key, Place* place) const;

  char* ChunkData(uint32_t chunk) const {
    return memory_.data() + uint64_t{chunk} * shape_.chunk_bytes;
  }
  // The chunk's mutex is held.
  uint32_t Get(const char* data, uint32_t counter) const;
  void Set(char* data, uint32_t counter, uint32_t value);
  uint32_t Smallest(const Place& place) const;
  void Raise(const Place& place, uint32_t to);

  // Returns the counters as they lie in memory: the lowest bits of a byte first.
  std::string Payload(uint32_t chunk) const override;
  Status LoadPayload(uint32_t chunk, std::string_view payload) override;
  Status CheckPayload(uint32_t chunk, std::string_view payload) const override;
  void ClearChunk(uint32_t chunk) override;

  const uint32_t min_count_;
  const uint32_t bits_;  // of a counter
  const Shape shape_;
  const uint32_t chunk_counters_;
  PageBuffer memory_;
};

}  // namespace sok
