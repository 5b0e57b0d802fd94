// Helpers for the tests of admission.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/policies/admission.h"

namespace sok {

inline AdmissionConfig FrequencyConfig(uint32_t min_count) {
  AdmissionConfig config;
  config.min_count = min_count;
  return config;
}

inline AdmissionConfig BloomConfig(uint32_t min_count, uint64_t capacity, double rate, int bits) {
  AdmissionConfig config{"counting_bloom", min_count, capacity, rate, bits};
  return config;
}

// Both kinds, and all widths of counters that hold min_count. At this rate the few thousand keys of
// a test do not collide, so that the kinds must give the same answers.
inline std::vector<AdmissionConfig> EveryKind(uint32_t min_count) {
  std::vector<AdmissionConfig> configs = {FrequencyConfig(min_count)};
  for (int bits : {2, 4, 8, 16}) {
    if (min_count < 1u << bits) configs.push_back(BloomConfig(min_count, 20000, 1e-8, bits));
  }
  return configs;
}

inline std::unique_ptr<Admission> Make(const AdmissionConfig& config) {
  Result<std::unique_ptr<Admission>> made = MakeAdmission(config);
  INFO(made.status().message());
  REQUIRE(made.ok());
  return std::move(made.value());
}

using Answers = std::vector<uint8_t>;

// counts: empty, or one of each key.
inline Answers Observe(Admission& admission, const std::vector<Key>& keys,
                       const std::vector<int64_t>& counts = {}) {
  Answers admitted(keys.size(), 7);
  const int64_t* times = counts.empty() ? nullptr : counts.data();
  REQUIRE(admission.Observe(keys.data(), times, keys.size(), admitted.data()).ok());
  return admitted;
}

inline Answers Admitted(const Admission& admission, const std::vector<Key>& keys) {
  Answers admitted(keys.size(), 7);
  admission.Admitted(keys.data(), keys.size(), admitted.data());
  return admitted;
}

}  // namespace sok
