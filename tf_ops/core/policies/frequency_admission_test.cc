#include "core/policies/frequency_admission.h"

#include <random>
#include <unordered_map>

#include "core/base/test_threads.h"
#include "core/policies/test_admission.h"

namespace sok {
namespace {

TEST_CASE("frequency counts exactly, while keys are forgotten") {
  constexpr uint32_t kMinCount = 4;
  CAPTURE(TestSeed());
  std::mt19937_64 rng(TestSeed());
  const auto admission = Make(FrequencyConfig(kMinCount));
  std::unordered_map<Key, uint32_t> counts;
  const auto draw = [&](size_t n) {
    std::vector<Key> keys(n);
    for (Key& key : keys) key = rng() % 3 == 0 ? ~(rng() % 1000) : rng() % 50000;
    return keys;
  };
  for (int batch = 0; batch < 300; ++batch) {
    const std::vector<Key> keys = draw(1000);
    Answers expected;
    for (Key key : keys) expected.push_back(++counts[key] >= kMinCount);
    REQUIRE(Observe(*admission, keys) == expected);

    const std::vector<Key> forgotten = draw(100);
    admission->Forget(forgotten.data(), forgotten.size());
    for (Key key : forgotten) counts.erase(key);

    const std::vector<Key> asked = draw(1000);
    expected.clear();
    for (Key key : asked) {
      const auto found = counts.find(key);
      expected.push_back(found != counts.end() && found->second >= kMinCount);
    }
    REQUIRE(Admitted(*admission, asked) == expected);
  }
}

TEST_CASE("a key that was forgotten starts from nothing") {
  const auto admission = Make(FrequencyConfig(2));
  CHECK(Observe(*admission, {1, 1, 0, 0}) == Answers{0, 1, 0, 1});
  const std::vector<Key> forgotten = {0, 1, 99, 1};
  admission->Forget(forgotten.data(), forgotten.size());
  CHECK(Admitted(*admission, {0, 1}) == Answers{0, 0});
  CHECK(Observe(*admission, {1, 0}) == Answers{0, 0});
  CHECK(Observe(*admission, {1, 0}) == Answers{1, 1});
}

TEST_CASE("memory does not grow with the keys that were admitted and forgotten") {
  const auto admission = Make(FrequencyConfig(1));
  std::vector<Key> keys(1000);
  uint64_t bytes = 0;
  for (Key round = 0; round < 200; ++round) {
    for (Key i = 0; i < keys.size(); ++i) keys[i] = round * keys.size() + i;
    Observe(*admission, keys);
    admission->Forget(keys.data(), keys.size());
    if (round == 20) bytes = admission->bytes();
  }
  CHECK(admission->bytes() == bytes);
}

}  // namespace
}  // namespace sok
