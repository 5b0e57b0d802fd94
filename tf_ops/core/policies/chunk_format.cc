#include "core/policies/chunk_format.h"

#include "core/base/hash.h"

namespace sok {
namespace {

constexpr std::string_view kMagic = "SOKA";
constexpr uint32_t kVersion = 1;
constexpr size_t kVersionAt = 4;
constexpr size_t kFingerprintAt = 8;
constexpr size_t kNumberAt = 16;
constexpr size_t kPayloadBytesAt = 20;
constexpr size_t kChecksumAt = 28;
constexpr size_t kPayloadAt = 36;

uint64_t Mix(uint64_t sum, std::string_view bytes) {
  sum = Mix64(sum ^ (bytes.size() + 0x9e3779b97f4a7c15ull));
  for (; bytes.size() >= 8; bytes.remove_prefix(8)) {
    sum = Mix64(sum ^ ReadLittleEndian(bytes.data(), 8));
  }
  return Mix64(sum ^ ReadLittleEndian(bytes.data(), static_cast<int>(bytes.size())));
}

Status Damaged(uint32_t number, const std::string& expected, const std::string& received) {
  return Status(Code::kDataLoss, "Expected chunk " + std::to_string(number) +
                                     " of the admission filter to " + expected + ". Received: " +
                                     received + ". Restore the saved table from a copy.");
}

}  // namespace

uint64_t ChunkChecksum(std::string_view header, std::string_view payload) {
  return Mix(Mix(0, header.substr(0, kChecksumAt)), payload);
}

void AppendLittleEndian(std::string* out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out->push_back(static_cast<char>(value >> (8 * i) & 0xff));
}

uint64_t ReadLittleEndian(const char* from, int bytes) {
  uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) value |= uint64_t{static_cast<uint8_t>(from[i])} << (8 * i);
  return value;
}

uint64_t FingerprintOf(std::string_view bytes) {
  return ReadLittleEndian(bytes.data() + kFingerprintAt, 8);
}

std::string_view PayloadOf(std::string_view bytes) { return bytes.substr(kPayloadAt); }

std::string EncodeChunk(const ChunkIdentity& identity, std::string_view payload) {
  std::string bytes;
  bytes.reserve(kPayloadAt + payload.size());
  bytes.append(kMagic);
  AppendLittleEndian(&bytes, kVersion, 4);
  AppendLittleEndian(&bytes, identity.fingerprint, 8);
  AppendLittleEndian(&bytes, identity.number, 4);
  AppendLittleEndian(&bytes, payload.size(), 8);
  AppendLittleEndian(&bytes, ChunkChecksum(bytes, payload), 8);
  bytes.append(payload);
  return bytes;
}

Result<std::string_view> DecodeChunk(const ChunkIdentity& expected, std::string_view bytes) {
  if (bytes.size() < kPayloadAt) {
    return Damaged(expected.number, "have a header of " + std::to_string(kPayloadAt) + " bytes",
                   std::to_string(bytes.size()) + " bytes");
  }
  if (bytes.substr(0, kMagic.size()) != kMagic) {
    return Damaged(expected.number, "begin with \"SOKA\"", "other bytes");
  }
  const uint64_t version = ReadLittleEndian(bytes.data() + kVersionAt, 4);
  if (version != kVersion) {
    return InvalidArgument("Expected an admission filter of format version " +
                           std::to_string(kVersion) + ". Received: version " +
                           std::to_string(version) +
                           ". Open it with the release that saved it, or a later one.");
  }
  // No field is trusted before the checksum was checked, and nothing is read beyond the end.
  const std::string_view payload = bytes.substr(kPayloadAt);
  const uint64_t payload_bytes = ReadLittleEndian(bytes.data() + kPayloadBytesAt, 8);
  if (payload_bytes != payload.size()) {
    return Damaged(expected.number, "have " + std::to_string(payload_bytes) + " bytes of counters",
                   std::to_string(payload.size()) + " bytes");
  }
  if (ReadLittleEndian(bytes.data() + kChecksumAt, 8) != ChunkChecksum(bytes, payload)) {
    return Damaged(expected.number, "match its checksum", "changed bytes");
  }
  if (ReadLittleEndian(bytes.data() + kFingerprintAt, 8) != expected.fingerprint) {
    return InvalidArgument(
        "Expected an admission filter that was saved with the same kind, min_count and other "
        "settings. Received: chunk " +
        std::to_string(expected.number) +
        " of another config. Open it with the config that it was saved with.");
  }
  const uint64_t number = ReadLittleEndian(bytes.data() + kNumberAt, 4);
  if (number != expected.number) {
    return InvalidArgument("Expected chunk " + std::to_string(expected.number) +
                           " of the admission filter. Received: chunk " + std::to_string(number) +
                           ". Load each chunk under the number that it was saved with.");
  }
  return payload;
}

}  // namespace sok
