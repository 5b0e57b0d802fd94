#include "core/policies/admission_counts.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <sstream>
#include <utility>

#include "core/base/checksum.h"
#include "core/base/status_macros.h"
#include "core/policies/chunk_format.h"

namespace sok {
namespace {

constexpr std::string_view kMagic = "SOKN";
constexpr uint32_t kVersion = 1;
constexpr size_t kFixedBytes = 40;  // bytes of the head before the kind
constexpr size_t kChecksumBytes = 8;
constexpr size_t kCounterBytes = 12;

uint64_t BitsOf(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

double FromBits(uint64_t bits) {
  double value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

Status Damaged(const std::string& expected, const std::string& got) {
  return Status(Code::kDataLoss, "expected the counts of an admission to " + expected + ", got " +
                                     got + "; load the table from another copy");
}

// Reads numbers and bytes, from the first on. Beyond the end it reads zeros, and remembers that.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : left_(bytes) {}
  std::string_view Bytes(uint64_t n) {
    if (n > left_.size()) {
      ended_ = true;
      return {};
    }
    const std::string_view bytes = left_.substr(0, n);
    left_.remove_prefix(n);
    return bytes;
  }
  uint64_t Number(int bytes) {
    const std::string_view found = Bytes(bytes);
    return found.empty() ? 0 : ReadLittleEndian(found.data(), bytes);
  }
  bool ended() const { return ended_; }
  bool empty() const { return left_.empty(); }

 private:
  std::string_view left_;
  bool ended_ = false;
};

// Returns the head of chunks.
std::string Head(const AdmissionConfig& config, const std::map<uint32_t, std::string>& chunks) {
  const size_t head_bytes =
      kFixedBytes + config.kind.size() + 4 + chunks.size() * 12 + kChecksumBytes;
  std::string head;
  head.reserve(head_bytes);
  head.append(kMagic);
  AppendLittleEndian(&head, kVersion, 4);
  AppendLittleEndian(&head, head_bytes, 4);
  AppendLittleEndian(&head, config.min_count, 4);
  AppendLittleEndian(&head, config.capacity, 8);
  AppendLittleEndian(&head, BitsOf(config.false_positive_rate), 8);
  AppendLittleEndian(&head, static_cast<uint64_t>(config.counter_bits), 4);
  AppendLittleEndian(&head, config.kind.size(), 4);
  head.append(config.kind);
  AppendLittleEndian(&head, chunks.size(), 4);
  for (const auto& [number, bytes] : chunks) {
    AppendLittleEndian(&head, number, 4);
    AppendLittleEndian(&head, bytes.size(), 8);
  }
  AppendLittleEndian(&head, Checksum(head.data(), head.size(), 0), 8);
  return head;
}

// Merges chunks of frequency: keys of 8 bytes with counts of 4.
std::string MergeCounters(const std::vector<std::string_view>& payloads, const KeepCounters& keep) {
  std::map<int64_t, uint32_t> greatest;
  for (std::string_view payload : payloads) {
    std::vector<int64_t> keys;
    for (size_t at = 0; at < payload.size(); at += kCounterBytes) {
      keys.push_back(static_cast<int64_t>(ReadLittleEndian(payload.data() + at, 8)));
    }
    const std::vector<uint8_t> kept = keep(keys);
    for (size_t i = 0; i < keys.size(); ++i) {
      if (!kept[i]) continue;
      uint32_t& count = greatest[keys[i]];
      const char* const own = payload.data() + i * kCounterBytes + 8;
      count = std::max(count, static_cast<uint32_t>(ReadLittleEndian(own, 4)));
    }
  }
  std::string merged;
  for (const auto& [key, count] : greatest) {
    AppendLittleEndian(&merged, static_cast<uint64_t>(key), 8);
    AppendLittleEndian(&merged, count, 4);
  }
  return merged;
}

// Raises each counter of `merged` to that of `payload`, which has as many.
template <int kBits>
void Raise(std::string_view payload, std::string* merged) {
  constexpr size_t kBytes = std::max(1, kBits / 8);
  for (size_t at = 0; at < payload.size(); at += kBytes) {
    uint32_t ours = 0, theirs = 0, greatest = 0;
    for (size_t i = 0; i < kBytes; ++i) {
      ours |= uint32_t{static_cast<uint8_t>((*merged)[at + i])} << (8 * i);
      theirs |= uint32_t{static_cast<uint8_t>(payload[at + i])} << (8 * i);
    }
    for (size_t shift = 0; shift < 8 * kBytes; shift += kBits) {
      const uint32_t mask = ((1u << kBits) - 1) << shift;
      greatest |= std::max(ours & mask, theirs & mask);
    }
    for (size_t i = 0; i < kBytes; ++i) (*merged)[at + i] = static_cast<char>(greatest >> (8 * i));
  }
}

// Merges chunks of counting_bloom, which have one size.
std::string MergeFilters(const std::vector<std::string_view>& payloads, int bits) {
  auto* const raise = bits == 2   ? Raise<2>
                      : bits == 4 ? Raise<4>
                      : bits == 8 ? Raise<8>
                                  : Raise<16>;
  std::string merged(payloads.front());
  for (std::string_view payload : payloads) raise(payload, &merged);
  return merged;
}

}  // namespace

Result<std::vector<std::string>> DumpCounts(const Admission& admission) {
  std::map<uint32_t, std::string> chunks;
  for (uint32_t chunk : admission.UsedChunks()) {
    SOK_ASSIGN_OR_RETURN(chunks[chunk], admission.Dump(chunk));
  }
  std::vector<std::string> pieces = {Head(admission.config(), chunks)};
  for (auto& [_, bytes] : chunks) pieces.push_back(std::move(bytes));
  return Result<std::vector<std::string>>(std::move(pieces));
}

Result<std::string> MergeCounts(const std::vector<std::string_view>& dumps,
                                const KeepCounters& keep) {
  std::vector<AdmissionCounts> read;
  for (std::string_view dump : dumps) {
    SOK_ASSIGN_OR_RETURN(auto counts, ReadCounts(dump));
    read.push_back(std::move(counts));
    const AdmissionConfig &first = read.front().config, &last = read.back().config;
    if (!SameAdmission(first, last)) {
      return InvalidArgument("Expected workers with one admission for a table. Received: " +
                             Described(first) + " and " + Described(last) + ".");
    }
  }
  if (read.empty()) return std::string();
  const AdmissionConfig& config = read.front().config;
  SOK_ASSIGN_OR_RETURN(const auto admission, MakeAdmission(config));
  std::map<uint32_t, std::vector<std::string_view>> payloads;
  std::map<uint32_t, std::string> merged;
  uint64_t fingerprint = 0;
  for (const AdmissionCounts& counts : read) {
    SOK_RETURN_IF_ERROR(admission->CheckChunks(counts.chunks));
    for (const auto& [number, bytes] : counts.chunks) {
      fingerprint = FingerprintOf(bytes);
      payloads[number].push_back(PayloadOf(bytes));
    }
  }
  for (const auto& [number, of_chunk] : payloads) {
    const std::string payload = config.kind == "frequency"
                                    ? MergeCounters(of_chunk, keep)
                                    : MergeFilters(of_chunk, config.counter_bits);
    if (!payload.empty()) merged[number] = EncodeChunk({fingerprint, number}, payload);
  }
  std::string whole = Head(config, merged);
  for (const auto& [_, bytes] : merged) whole += bytes;
  return whole;
}

Result<AdmissionCounts> ReadCounts(std::string_view bytes) {
  Reader reader(bytes);
  if (reader.Bytes(kMagic.size()) != kMagic) {
    return Damaged("begin with \"SOKN\"",
                   std::to_string(bytes.size()) + " bytes of something else");
  }
  const uint64_t version = reader.Number(4);
  if (version != kVersion && !reader.ended()) {
    return InvalidArgument("expected counts of an admission of format version " +
                           std::to_string(kVersion) + ", got version " + std::to_string(version) +
                           "; load them with the release that saved them, or a later one");
  }
  const uint64_t head_bytes = reader.Number(4);
  if (head_bytes < kFixedBytes + 4 + kChecksumBytes || head_bytes > bytes.size()) {
    return Damaged("have a whole head", std::to_string(bytes.size()) + " bytes in all");
  }
  const size_t checked = head_bytes - kChecksumBytes;
  if (ReadLittleEndian(bytes.data() + checked, 8) != Checksum(bytes.data(), checked, 0)) {
    return Damaged("match their checksum", "changed bytes");
  }
  AdmissionCounts counts;
  AdmissionConfig& config = counts.config;
  config.min_count = static_cast<uint32_t>(reader.Number(4));
  config.capacity = reader.Number(8);
  config.false_positive_rate = FromBits(reader.Number(8));
  config.counter_bits = static_cast<int>(reader.Number(4));
  config.kind = reader.Bytes(reader.Number(4));
  const uint64_t chunks = reader.Number(4);
  Reader of_chunks(bytes.substr(head_bytes));
  for (uint64_t i = 0; i < chunks && !reader.ended() && !of_chunks.ended(); ++i) {
    const auto number = static_cast<uint32_t>(reader.Number(4));
    counts.chunks[number] = of_chunks.Bytes(reader.Number(8));
  }
  if (reader.ended() || of_chunks.ended() || !of_chunks.empty()) {
    return Damaged("have the bytes that their head tells", std::to_string(bytes.size()) + " bytes");
  }
  return Result<AdmissionCounts>(std::move(counts));
}

std::string Described(const AdmissionConfig& config) {
  std::ostringstream text;
  text << config.kind << " with min_count " << config.min_count;
  if (config.kind == "counting_bloom") {
    text << ", capacity " << config.capacity << ", false_positive_rate "
         << config.false_positive_rate << " and counter_bits " << config.counter_bits;
  }
  return text.str();
}

}  // namespace sok
