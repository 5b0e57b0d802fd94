#include "core/policies/admission_counts.h"

#include <cstring>
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

}  // namespace

Result<std::vector<std::string>> DumpCounts(const Admission& admission) {
  const std::vector<uint32_t> used = admission.UsedChunks();
  std::vector<std::string> pieces(1);
  for (uint32_t chunk : used) {
    SOK_ASSIGN_OR_RETURN(auto bytes, admission.Dump(chunk));
    pieces.push_back(std::move(bytes));
  }
  const AdmissionConfig config = admission.config();
  const size_t head_bytes =
      kFixedBytes + config.kind.size() + 4 + used.size() * 12 + kChecksumBytes;
  std::string& head = pieces.front();
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
  AppendLittleEndian(&head, used.size(), 4);
  for (size_t i = 0; i < used.size(); ++i) {
    AppendLittleEndian(&head, used[i], 4);
    AppendLittleEndian(&head, pieces[i + 1].size(), 8);
  }
  AppendLittleEndian(&head, Checksum(head.data(), head.size(), 0), 8);
  return Result<std::vector<std::string>>(std::move(pieces));
}

Result<AdmissionCounts> ReadCounts(std::string_view bytes) {
  Reader reader(bytes);
  if (reader.Bytes(kMagic.size()) != kMagic) {
    return Damaged("begin with \"SOKN\"",
                   std::to_string(bytes.size()) + " bytes of something else");
  }
  const uint64_t version = reader.Number(4);
  if (version != kVersion) {
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
