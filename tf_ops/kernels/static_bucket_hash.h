// Which static row an id has, as TensorFlow's hash-bucket columns say.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/numbers.h"
#include "tensorflow/core/platform/fingerprint.h"

namespace sok {

// The FarmHash fingerprint of an integer's decimal digits: of what tf.as_string makes of it.
template <typename T>
uint64_t FingerprintOfDigits(T id) {
  char digits[absl::numbers_internal::kFastToBufferSize];
  const char* end = absl::numbers_internal::FastIntToBuffer(id, digits);
  return tensorflow::Fingerprint64({digits, static_cast<size_t>(end - digits)});
}

}  // namespace sok
