// SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104), for proofs that a peer knows a secret. Not for
// bulk: it takes some nanoseconds a byte.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sok {

using Sha256Digest = std::array<uint8_t, 32>;

Sha256Digest Sha256(std::string_view bytes);

// Returns the authentication code of a message. Without the key nobody can compute it.
Sha256Digest HmacSha256(std::string_view key, std::string_view message);

// Compares in a time that does not depend on the bytes.
bool SameDigest(const Sha256Digest& one, const Sha256Digest& other);

}  // namespace sok
