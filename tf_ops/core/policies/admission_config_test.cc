#include <cmath>
#include <limits>
#include <string>

#include "core/policies/test_admission.h"

namespace sok {
namespace {

void CheckRefused(const AdmissionConfig& config, Code code, const std::vector<std::string>& parts) {
  const Result<std::unique_ptr<Admission>> made = MakeAdmission(config);
  REQUIRE(!made.ok());
  CHECK(made.status().code() == code);
  const std::string& message = made.status().message();
  CAPTURE(message);
  CHECK(message.find("Expected") == 0);
  CHECK(message.find("Received: ") != std::string::npos);
  for (const std::string& part : parts) CHECK(message.find(part) != std::string::npos);
}

TEST_CASE("an unknown kind is refused with the known ones") {
  AdmissionConfig config;
  config.kind = "bloom";
  CheckRefused(config, Code::kInvalidArgument, {"frequency, counting_bloom", "\"bloom\""});
}

TEST_CASE("min_count 0 is refused, for either kind") {
  CheckRefused(FrequencyConfig(0), Code::kInvalidArgument, {"min_count", "at least 1", "0"});
  CheckRefused(BloomConfig(0, 10, 0.1, 4), Code::kInvalidArgument, {"min_count", "at least 1"});
}

TEST_CASE("capacity 0 is refused") {
  CheckRefused(BloomConfig(1, 0, 0.1, 4), Code::kInvalidArgument, {"capacity", "at least 1"});
}

TEST_CASE("a rate that is not in (0, 1) is refused") {
  for (double rate : {0.0, 1.0, -0.5, 2.0, double{NAN}, double{INFINITY}}) {
    CheckRefused(BloomConfig(1, 10, rate, 4), Code::kInvalidArgument,
                 {"false_positive_rate", "(0, 1)"});
  }
}

TEST_CASE("a width of counters other than 2, 4, 8 and 16 bits is refused") {
  for (int bits : {-4, 0, 1, 3, 5, 12, 32}) {
    CheckRefused(BloomConfig(1, 10, 0.1, bits), Code::kInvalidArgument,
                 {"counter_bits", "2, 4, 8 or 16", std::to_string(bits)});
  }
}

TEST_CASE("a min_count beyond the largest count is refused with both") {
  CheckRefused(BloomConfig(4, 10, 0.1, 2), Code::kInvalidArgument, {"at most 3", "Received: 4"});
  CheckRefused(BloomConfig(16, 10, 0.1, 4), Code::kInvalidArgument, {"at most 15", "Received: 16"});
  CheckRefused(BloomConfig(256, 10, 0.1, 8), Code::kInvalidArgument, {"at most 255", "256"});
  CheckRefused(BloomConfig(65536, 10, 0.1, 16), Code::kInvalidArgument, {"at most 65535", "65536"});
}

TEST_CASE("a filter larger than memory is refused, whatever makes it large") {
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  for (uint64_t capacity : {uint64_t{1} << 44, uint64_t{1} << 60, kMost}) {
    CheckRefused(BloomConfig(1, capacity, 0.01, 16), Code::kResourceExhausted,
                 {"fits into memory", std::to_string(capacity), "Lower capacity"});
  }
  CheckRefused(BloomConfig(1, 1000000000, 5e-324, 16), Code::kResourceExhausted, {"4.94066e-324"});
}

TEST_CASE("frequency reads neither capacity, rate nor width") {
  AdmissionConfig config = FrequencyConfig(1000000);
  config.capacity = 0;
  config.false_positive_rate = 7;
  config.counter_bits = 3;
  CHECK(MakeAdmission(config).ok());
}

TEST_CASE("the ends of the ranges are accepted") {
  Make(FrequencyConfig(std::numeric_limits<uint32_t>::max()));
  for (double rate : {1e-30, 1e-12, 0.5, 0.999999}) {
    for (int bits : {2, 4, 8, 16}) {
      const auto admission = Make(BloomConfig((1u << bits) - 1, 1, rate, bits));
      for (uint32_t seen = 1; seen < 1u << bits; ++seen) {
        REQUIRE(Observe(*admission, {3}) == Answers{seen == (1u << bits) - 1});
      }
    }
  }
}

}  // namespace
}  // namespace sok
