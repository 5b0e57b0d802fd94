#include "core/policies/counting_bloom_admission.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <utility>

#include "core/base/hash.h"
#include "core/base/status_macros.h"

namespace sok {
namespace {

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15ull;
constexpr double kChunkBytes = 256 << 10;
constexpr double kLineBytes = 64;
constexpr double kHugeFrom = 2 << 20;  // bytes

std::string Text(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", value);
  return text;
}

// Maps `random` to a number below `bound`: Lemire 2019, "Fast random integer generation in an
// interval", without its rejection, whose bias is bound / 2^32.
uint32_t Below(uint32_t random, uint32_t bound) {
  return static_cast<uint32_t>(uint64_t{random} * bound >> 32);
}

double MachineBytes() {
  return static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
}

Status NoMemory(const AdmissionConfig& config, double bytes) {
  return Status(Code::kResourceExhausted,
                "Expected a counting Bloom filter that fits into memory, " + Text(MachineBytes()) +
                    " bytes in all. Received: capacity " + std::to_string(config.capacity) +
                    " at a false_positive_rate of " + Text(config.false_positive_rate) + " with " +
                    std::to_string(config.counter_bits) + "-bit counters, which takes " +
                    Text(bytes) +
                    " bytes. Lower capacity or counter_bits, or raise false_positive_rate.");
}

Status Check(const AdmissionConfig& config) {
  if (config.capacity < 1) {
    return InvalidArgument(
        "Expected the capacity of a counting Bloom filter to be at least 1. Received: 0. Give the "
        "number of distinct keys that it will see.");
  }
  const double rate = config.false_positive_rate;
  if (!(rate > 0 && rate < 1)) {
    return InvalidArgument("Expected false_positive_rate in (0, 1). Received: " + Text(rate) +
                           ". 0.01 admits one key in a hundred too early.");
  }
  const int bits = config.counter_bits;
  if (bits != 2 && bits != 4 && bits != 8 && bits != 16) {
    return InvalidArgument(
        "Expected counter_bits of 2, 4, 8 or 16. Received: " + std::to_string(bits) + ".");
  }
  const uint32_t largest = (1u << bits) - 1;
  if (config.min_count > largest) {
    return InvalidArgument("Expected min_count to be at most " + std::to_string(largest) +
                           ", the largest count of counter_bits " + std::to_string(bits) +
                           ". Received: " + std::to_string(config.min_count) +
                           ". Raise counter_bits or lower min_count.");
  }
  return Status();
}

uint64_t BitsOf(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

}  // namespace

Result<CountingBloomAdmission::Shape> CountingBloomAdmission::ShapeOf(
    const AdmissionConfig& config) {
  const double p = config.false_positive_rate;
  const double k = std::clamp(std::round(-std::log2(p)), 1.0, double{kMaxHashes});
  // log1p, because p^(1/k) may be so small that 1 - p^(1/k) is 1.
  const double counters_per_key = -k / std::log1p(-std::pow(p, 1 / k));
  const double bytes =
      std::ceil(static_cast<double>(config.capacity) * counters_per_key * config.counter_bits / 8);
  if (bytes > MachineBytes()) return NoMemory(config, bytes);
  const double chunks = std::ceil(bytes / kChunkBytes);
  const double chunk_bytes = std::ceil(bytes / chunks / kLineBytes) * kLineBytes;
  return Shape{static_cast<uint32_t>(k), static_cast<uint32_t>(chunks),
               static_cast<uint32_t>(chunk_bytes)};
}

Result<std::unique_ptr<Admission>> CountingBloomAdmission::Make(const AdmissionConfig& config) {
  SOK_RETURN_IF_ERROR(Check(config));
  SOK_ASSIGN_OR_RETURN(const auto shape, ShapeOf(config));
  const size_t bytes = size_t{shape.chunks} * shape.chunk_bytes;
  PageBuffer memory(bytes, bytes >= kHugeFrom);
  if (memory.data() == nullptr) return NoMemory(config, static_cast<double>(bytes));
  return std::unique_ptr<Admission>(new CountingBloomAdmission(config, shape, std::move(memory)));
}

CountingBloomAdmission::CountingBloomAdmission(const AdmissionConfig& config, const Shape& shape,
                                               PageBuffer memory)
    : ChunkedAdmission(config,
                       {config.min_count, config.capacity, BitsOf(config.false_positive_rate),
                        static_cast<uint64_t>(config.counter_bits)},
                       shape.chunks),
      min_count_(config.min_count),
      bits_(static_cast<uint32_t>(config.counter_bits)),
      shape_(shape),
      chunk_counters_(shape.chunk_bytes * 8 / bits_),
      memory_(std::move(memory)) {}

void CountingBloomAdmission::FindPlace(Key key, Place* place) const {
  const uint64_t hash = Mix64(key + kGolden);
  place->chunk = Below(static_cast<uint32_t>(hash >> 32), shape_.chunks);
  const char* const data = ChunkData(place->chunk);
  // The functions are independent, not multiples of one hash (Kirsch, Mitzenmacher 2006): multiples
  // collide in pairs, which raises the rate of a small filter. Each output of SplitMix64, from
  // `hash` on, gives two of them.
  uint64_t random = 0;
  for (uint32_t i = 0; i < shape_.hashes; ++i) {
    random = i % 2 == 0 ? Mix64(hash + (i / 2 + 1) * kGolden) : random >> 32;
    const uint32_t counter = Below(static_cast<uint32_t>(random), chunk_counters_);
    place->counters[i] = counter;
    __builtin_prefetch(data + uint64_t{counter} * bits_ / 8);
  }
}

template <typename Fn>
void CountingBloomAdmission::ForEachPlace(const Key* keys, size_t n, const Fn& fn) const {
  constexpr size_t kAhead = 8;
  std::array<Place, kAhead> places;
  for (size_t begin = 0; begin < n; begin += kAhead) {
    const size_t end = std::min(n, begin + kAhead);
    for (size_t i = begin; i < end; ++i) FindPlace(keys[i], &places[i - begin]);
    for (size_t i = begin; i < end; ++i) fn(i, places[i - begin]);
  }
}

Status CountingBloomAdmission::Observe(const Key* keys, const int64_t* counts, size_t n,
                                       uint8_t* admitted) {
  ForEachPlace(keys, n, [&](size_t i, const Place& place) {
    std::lock_guard<std::mutex> lock(mutex(place.chunk));
    const uint32_t before = std::min(Smallest(place), min_count_);
    const uint32_t seen = SeenAfter(before, counts == nullptr ? 1 : counts[i], min_count_);
    if (seen > before) Raise(place, seen);
    admitted[i] = seen == min_count_;
  });
  return Status();
}

void CountingBloomAdmission::Admitted(const Key* keys, size_t n, uint8_t* admitted) const {
  ForEachPlace(keys, n, [&](size_t i, const Place& place) {
    std::lock_guard<std::mutex> lock(mutex(place.chunk));
    admitted[i] = Smallest(place) >= min_count_;
  });
}

uint32_t CountingBloomAdmission::Get(const char* data, uint32_t counter) const {
  const uint64_t at = uint64_t{counter} * bits_;
  const auto low = static_cast<uint8_t>(data[at / 8]);
  if (bits_ == 16) return low | uint32_t{static_cast<uint8_t>(data[at / 8 + 1])} << 8;
  return low >> (at % 8) & ((1u << bits_) - 1);
}

void CountingBloomAdmission::Set(char* data, uint32_t counter, uint32_t value) {
  const uint64_t at = uint64_t{counter} * bits_;
  char& low = data[at / 8];
  if (bits_ == 16) {
    low = static_cast<char>(value & 0xff);
    data[at / 8 + 1] = static_cast<char>(value >> 8);
    return;
  }
  const uint32_t mask = ((1u << bits_) - 1) << (at % 8);
  low = static_cast<char>((static_cast<uint8_t>(low) & ~mask) | value << (at % 8));
}

uint32_t CountingBloomAdmission::Smallest(const Place& place) const {
  const char* const data = ChunkData(place.chunk);
  uint32_t smallest = UINT32_MAX;
  for (uint32_t i = 0; i < shape_.hashes; ++i) {
    smallest = std::min(smallest, Get(data, place.counters[i]));
  }
  return smallest;
}

void CountingBloomAdmission::Raise(const Place& place, uint32_t to) {
  char* const data = ChunkData(place.chunk);
  for (uint32_t i = 0; i < shape_.hashes; ++i) {
    if (Get(data, place.counters[i]) < to) Set(data, place.counters[i], to);
  }
  MarkChanged(place.chunk);
}

std::string CountingBloomAdmission::Payload(uint32_t chunk) const {
  return std::string(ChunkData(chunk), shape_.chunk_bytes);
}

Status CountingBloomAdmission::CheckPayload(uint32_t chunk, std::string_view payload) const {
  if (payload.size() != shape_.chunk_bytes) {
    return Status(Code::kDataLoss,
                  "Expected chunk " + std::to_string(chunk) + " of the admission filter to have " +
                      std::to_string(shape_.chunk_bytes) + " bytes of counters. Received: " +
                      std::to_string(payload.size()) + ". Restore the saved table from a copy.");
  }
  return Status();
}

Status CountingBloomAdmission::LoadPayload(uint32_t chunk, std::string_view payload) {
  Status status = CheckPayload(chunk, payload);
  if (status.ok()) std::memcpy(ChunkData(chunk), payload.data(), payload.size());
  return status;
}

void CountingBloomAdmission::ClearChunk(uint32_t chunk) {
  std::memset(ChunkData(chunk), 0, shape_.chunk_bytes);
}

}  // namespace sok
