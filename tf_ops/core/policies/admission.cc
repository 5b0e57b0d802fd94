#include "core/policies/admission.h"

#include "core/policies/counting_bloom_admission.h"
#include "core/policies/frequency_admission.h"

namespace sok {

bool SameAdmission(const AdmissionConfig& a, const AdmissionConfig& b) {
  if (a.kind != b.kind || a.min_count != b.min_count) return false;
  return a.kind == "frequency" ||
         (a.capacity == b.capacity && a.false_positive_rate == b.false_positive_rate &&
          a.counter_bits == b.counter_bits);
}

Result<std::unique_ptr<Admission>> MakeAdmission(const AdmissionConfig& config) {
  if (config.min_count < 1) {
    return InvalidArgument(
        "Expected min_count to be at least 1. Received: 0. With 1 every key is admitted when it is "
        "first seen.");
  }
  if (config.kind == "frequency") {
    return std::unique_ptr<Admission>(std::make_unique<FrequencyAdmission>(config));
  }
  if (config.kind == "counting_bloom") return CountingBloomAdmission::Make(config);
  return InvalidArgument("Expected an admission kind of frequency, counting_bloom. Received: \"" +
                         config.kind + "\".");
}

}  // namespace sok
