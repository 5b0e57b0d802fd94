#include "core/policies/frequency_admission.h"

#include <mutex>
#include <utility>

#include "core/base/status_macros.h"
#include "core/policies/chunk_format.h"

namespace sok {
namespace {

constexpr int kKeyBytes = 8;
constexpr int kCountBytes = 4;
constexpr size_t kCounterBytes = kKeyBytes + kCountBytes;

Status NoCounters(uint32_t chunk, const std::string& received) {
  return Status(Code::kDataLoss, "Expected chunk " + std::to_string(chunk) +
                                     " of the admission filter to hold counters of its own keys. "
                                     "Received: " +
                                     received + ". Restore the saved table from a copy.");
}

}  // namespace

FrequencyAdmission::FrequencyAdmission(const AdmissionConfig& config)
    : ChunkedAdmission(config, {config.min_count}, 1u << kChunkBits),
      min_count_(config.min_count),
      tables_(size_t{1} << kChunkBits) {}

Status FrequencyAdmission::Count(Key key, uint64_t hash, int64_t times, uint8_t* admitted) {
  const uint32_t chunk = ChunkOf(hash);
  CounterTable& table = tables_[chunk];
  uint32_t* const count = table.Find(key, hash);
  const uint32_t before = count == nullptr ? 0 : *count;
  const uint32_t seen = SeenAfter(before, times, min_count_);
  *admitted = seen == min_count_;
  if (seen == before) return Status();
  if (count == nullptr) {
    SOK_RETURN_IF_ERROR(table.Reserve(1));
    table.Insert(key, hash, seen);
  } else {
    *count = seen;
  }
  MarkChanged(chunk);
  return Status();
}

Status FrequencyAdmission::Observe(const Key* keys, const int64_t* counts, size_t n,
                                   uint8_t* admitted) {
  for (size_t i = 0; i < n; ++i) {
    const uint64_t hash = CounterTable::Hash(keys[i]);
    std::lock_guard<std::mutex> lock(mutex(ChunkOf(hash)));
    SOK_RETURN_IF_ERROR(Count(keys[i], hash, counts == nullptr ? 1 : counts[i], &admitted[i]));
  }
  return Status();
}

void FrequencyAdmission::Admitted(const Key* keys, size_t n, uint8_t* admitted) const {
  for (size_t i = 0; i < n; ++i) {
    const uint64_t hash = CounterTable::Hash(keys[i]);
    const uint32_t chunk = ChunkOf(hash);
    std::lock_guard<std::mutex> lock(mutex(chunk));
    const uint32_t* const count = tables_[chunk].Find(keys[i], hash);
    admitted[i] = count != nullptr && *count == min_count_;
  }
}

void FrequencyAdmission::Forget(const Key* keys, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const uint64_t hash = CounterTable::Hash(keys[i]);
    const uint32_t chunk = ChunkOf(hash);
    std::lock_guard<std::mutex> lock(mutex(chunk));
    if (tables_[chunk].Erase(keys[i], hash)) MarkChanged(chunk);
  }
}

uint64_t FrequencyAdmission::bytes() const {
  uint64_t bytes = chunks_bytes() + tables_.size() * sizeof(CounterTable);
  for (uint32_t chunk = 0; chunk < chunks(); ++chunk) {
    std::lock_guard<std::mutex> lock(mutex(chunk));
    bytes += tables_[chunk].bytes();
  }
  return bytes;
}

std::string FrequencyAdmission::Payload(uint32_t chunk) const {
  std::string payload;
  payload.reserve(tables_[chunk].size() * kCounterBytes);
  tables_[chunk].ForEach([&](Key key, uint32_t count) {
    AppendLittleEndian(&payload, key, kKeyBytes);
    AppendLittleEndian(&payload, count, kCountBytes);
  });
  return payload;
}

Result<CounterTable> FrequencyAdmission::Parse(uint32_t chunk, std::string_view payload) const {
  if (payload.size() % kCounterBytes != 0) {
    return NoCounters(chunk, std::to_string(payload.size()) + " bytes, at 12 bytes a counter");
  }
  CounterTable table;
  SOK_RETURN_IF_ERROR(table.Reserve(payload.size() / kCounterBytes));
  for (; !payload.empty(); payload.remove_prefix(kCounterBytes)) {
    const Key key = ReadLittleEndian(payload.data(), kKeyBytes);
    const auto count =
        static_cast<uint32_t>(ReadLittleEndian(payload.data() + kKeyBytes, kCountBytes));
    const uint64_t hash = CounterTable::Hash(key);
    const std::string name = "key " + std::to_string(key);
    if (ChunkOf(hash) != chunk) return NoCounters(chunk, name + " of another chunk");
    if (count < 1 || count > min_count_) {
      return NoCounters(chunk, name + " with a count of " + std::to_string(count));
    }
    if (table.Find(key, hash) != nullptr) return NoCounters(chunk, name + " twice");
    table.Insert(key, hash, count);
  }
  return Result<CounterTable>(std::move(table));
}

Status FrequencyAdmission::LoadPayload(uint32_t chunk, std::string_view payload) {
  auto table = Parse(chunk, payload);
  if (table.ok()) tables_[chunk] = std::move(table.value());
  return table.status();
}

Status FrequencyAdmission::CheckPayload(uint32_t chunk, std::string_view payload) const {
  return Parse(chunk, payload).status();
}

void FrequencyAdmission::ClearChunk(uint32_t chunk) { tables_[chunk] = CounterTable(); }

}  // namespace sok
