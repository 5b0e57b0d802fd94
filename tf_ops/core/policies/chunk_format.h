// The format of a stored chunk of an admission filter. All numbers are little-endian.
//
//   offset  bytes  field
//        0      4  "SOKA"
//        4      4  version of the format, and of the hash functions that placed the counters
//        8      8  fingerprint of the config
//       16      4  number of the chunk
//       20      8  bytes of the payload
//       28      8  checksum of all the other bytes
//       36         payload
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/status.h"

namespace sok {

// Appends the lowest `bytes` bytes of the value, at most 8.
void AppendLittleEndian(std::string* out, uint64_t value, int bytes);
uint64_t ReadLittleEndian(const char* from, int bytes);

// Returns the checksum of a chunk, over its first 28 bytes and its payload.
uint64_t ChunkChecksum(std::string_view header, std::string_view payload);

struct ChunkIdentity {
  uint64_t fingerprint;
  uint32_t number;
};

// Return the fingerprint and the payload of a chunk that has been checked.
uint64_t FingerprintOf(std::string_view bytes);
std::string_view PayloadOf(std::string_view bytes);

std::string EncodeChunk(const ChunkIdentity& identity, std::string_view payload);

// Returns the payload, a view of `bytes`.
// Errors: kInvalidArgument for a chunk of another identity or version, kDataLoss for one that was
// cut short or damaged.
Result<std::string_view> DecodeChunk(const ChunkIdentity& expected, std::string_view bytes);

}  // namespace sok
