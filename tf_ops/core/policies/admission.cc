#include "core/policies/admission.h"

#include "core/policies/counting_bloom_admission.h"
#include "core/policies/frequency_admission.h"
#include "core/policies/policy_registry.h"

namespace sok {
namespace {

constexpr PolicyKind<Admission, AdmissionConfig> kRegistry[] = {
    {"frequency", FrequencyAdmission::Make},
    {"counting_bloom", CountingBloomAdmission::Make},
};

}  // namespace

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
  return MakePolicy("an admission", kRegistry, config);
}

}  // namespace sok
