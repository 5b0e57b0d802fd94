// The behaviour that both kinds of admission share.
#include "core/policies/admission.h"

#include <random>
#include <string>
#include <unordered_map>

#include "core/base/hash.h"
#include "core/base/test_threads.h"
#include "core/policies/test_admission.h"

namespace sok {
namespace {

const std::vector<Key> kEdges = {0, ~Key{0}, 1, Key{1} << 63, ~(Key{1} << 63), 42};

TEST_CASE("a key is admitted when it is seen for the min_count-th time, and from then on") {
  for (uint32_t min_count : {1u, 2u, 3u, 15u, 200u}) {
    for (const AdmissionConfig& config : EveryKind(min_count)) {
      CAPTURE(config.kind);
      CAPTURE(config.counter_bits);
      const auto admission = Make(config);
      for (uint32_t seen = 1; seen <= min_count + 2; ++seen) {
        CHECK(Observe(*admission, kEdges) == Answers(kEdges.size(), seen >= min_count));
        CHECK(Admitted(*admission, kEdges) == Answers(kEdges.size(), seen >= min_count));
      }
    }
  }
}

TEST_CASE("every occurrence in a batch counts, in order") {
  for (const AdmissionConfig& config : EveryKind(3)) {
    CAPTURE(config.kind);
    CAPTURE(config.counter_bits);
    const auto admission = Make(config);
    CHECK(Observe(*admission, {5, 6, 5, 5, 6, 5}) == Answers{0, 0, 0, 1, 0, 1});
    CHECK(Observe(*admission, {6, 7}) == Answers{1, 0});
  }
}

TEST_CASE("a key that stands for several counts as often, and one that stands for none does not") {
  for (const AdmissionConfig& config : EveryKind(3)) {
    CAPTURE(config.kind);
    CAPTURE(config.counter_bits);
    const auto admission = Make(config);
    CHECK(Observe(*admission, {5, 6, 7, 8}, {2, 3, 0, INT64_MAX}) == Answers{0, 1, 0, 1});
    CHECK(Observe(*admission, {5, 6, 7, 7}, {0, 0, 2, 0}) == Answers{0, 1, 0, 0});
    CHECK(Observe(*admission, {5, 7, 7}, {1, 0, 1}) == Answers{1, 0, 1});
    CHECK(Observe(*admission, {9}, {-4}) == Answers{0});
  }
}

TEST_CASE("asking whether keys are admitted counts nothing") {
  for (const AdmissionConfig& config : EveryKind(2)) {
    CAPTURE(config.kind);
    const auto admission = Make(config);
    for (int i = 0; i < 5; ++i) CHECK(Admitted(*admission, kEdges) == Answers(kEdges.size(), 0));
    Observe(*admission, kEdges);
    for (int i = 0; i < 5; ++i) CHECK(Admitted(*admission, kEdges) == Answers(kEdges.size(), 0));
    CHECK(Observe(*admission, kEdges) == Answers(kEdges.size(), 1));
  }
}

TEST_CASE("an empty batch is nothing") {
  for (const AdmissionConfig& config : EveryKind(1)) {
    CAPTURE(config.kind);
    const auto admission = Make(config);
    CHECK(admission->Observe(nullptr, nullptr, 0, nullptr).ok());
    admission->Admitted(nullptr, 0, nullptr);
    admission->Forget(nullptr, 0);
    CHECK(admission->ChangedChunks().empty());
  }
}

TEST_CASE("counts saturate: a key seen far more often than a counter can hold stays admitted") {
  for (uint32_t min_count : {3u, 15u, 255u, 65535u}) {
    for (const AdmissionConfig& config : EveryKind(min_count)) {
      CAPTURE(config.kind);
      CAPTURE(config.counter_bits);
      const auto admission = Make(config);
      const Answers admitted = Observe(*admission, std::vector<Key>(150000, 9));
      size_t wrong = 0;
      for (size_t i = 0; i < admitted.size(); ++i) wrong += admitted[i] != (i + 1 >= min_count);
      CHECK(wrong == 0);
      CHECK(Admitted(*admission, {8, 9, 10}) == Answers{0, 1, 0});
    }
  }
}

TEST_CASE("on random keys the answers are those of std::unordered_map") {
  for (const AdmissionConfig& config : EveryKind(3)) {
    CAPTURE(config.kind);
    CAPTURE(config.counter_bits);
    CAPTURE(TestSeed());
    std::mt19937_64 rng(TestSeed());
    const auto admission = Make(config);
    std::unordered_map<Key, uint32_t> counts;
    for (int batch = 0; batch < 100; ++batch) {
      std::vector<Key> keys(rng() % 200);
      Answers expected;
      for (Key& key : keys) {
        key = Mix64(rng() % 5000);  // 0 among them
        expected.push_back(++counts[key] >= 3);
      }
      REQUIRE(Observe(*admission, keys) == expected);
    }
  }
}

TEST_CASE("the config is the one it was made with, and memory is told") {
  for (const AdmissionConfig& config : EveryKind(2)) {
    const auto admission = Make(config);
    CHECK(admission->config().kind == config.kind);
    CHECK(admission->config().min_count == config.min_count);
    CHECK(admission->config().capacity == config.capacity);
    CHECK(admission->config().false_positive_rate == config.false_positive_rate);
    CHECK(admission->config().counter_bits == config.counter_bits);
    Observe(*admission, kEdges);
    CHECK(admission->bytes() > 4096);
    CHECK(admission->bytes() < 4 << 20);
  }
}

}  // namespace
}  // namespace sok
