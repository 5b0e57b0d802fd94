// Counts of an admission that are saved along with a table.
#include "core/policies/admission_counts.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <random>
#include <string>

#include "core/base/test_result.h"
#include "core/base/test_threads.h"
#include "core/policies/test_admission.h"

namespace sok {
namespace {

std::string CountsOf(const Admission& admission) {
  std::string bytes;
  for (const std::string& piece : Value(DumpCounts(admission))) bytes += piece;
  return bytes;
}

std::vector<Key> RandomKeys(std::mt19937_64& rng, size_t n) {
  std::vector<Key> keys(n);
  for (Key& key : keys) key = rng() % 2000 - 1000;
  return keys;
}

TEST_CASE("an admission that was given counts answers as the one that counted") {
  for (const AdmissionConfig& config : EveryKind(3)) {
    CAPTURE(config.kind);
    CAPTURE(TestSeed());
    std::mt19937_64 rng(TestSeed());
    const auto counted = Make(config), given = Make(config);
    Observe(*counted, RandomKeys(rng, 1500));
    Observe(*given, RandomKeys(rng, 1500));  // which it is to forget
    const std::string bytes = CountsOf(*counted);
    const AdmissionCounts counts = Value(ReadCounts(bytes));
    CHECK(SameAdmission(counts.config, config));
    REQUIRE(given->Restore(counts.chunks).ok());
    for (int round = 0; round < 4; ++round) {
      const std::vector<Key> keys = RandomKeys(rng, 1500);
      REQUIRE(Observe(*given, keys) == Observe(*counted, keys));
    }
  }
}

TEST_CASE("counts of an admission that has counted nothing are of no key") {
  for (const AdmissionConfig& config : EveryKind(2)) {
    const auto fresh = Make(config), used = Make(config);
    CHECK(fresh->UsedChunks().empty());
    Observe(*used, {1, 2, 3});
    const std::string bytes = CountsOf(*fresh);
    REQUIRE(used->Restore(Value(ReadCounts(bytes)).chunks).ok());
    CHECK(Observe(*used, {1, 2, 3}) == Answers{0, 0, 0});
  }
}

TEST_CASE("chunks that a restore changes, emptied ones too, are in the next save") {
  for (const AdmissionConfig& config : EveryKind(2)) {
    const auto counted = Make(config), given = Make(config);
    Observe(*counted, {1});
    Observe(*given, {2});
    const auto before = given->ChangedChunks();
    given->MarkSaved();
    const std::string bytes = CountsOf(*counted);
    REQUIRE(given->Restore(Value(ReadCounts(bytes)).chunks).ok());
    auto reopened = Make(config);
    const auto changed = given->ChangedChunks();
    for (uint32_t chunk : before) {
      CHECK(std::find(changed.begin(), changed.end(), chunk) != changed.end());
    }
    for (uint32_t chunk : changed) {
      REQUIRE(reopened->Load(chunk, Value(given->Dump(chunk))).ok());
    }
    CHECK(Observe(*reopened, {1, 2}) == Answers{1, 0});
  }
}

TEST_CASE("any changed byte and any lost tail of counts is found, and nothing changes") {
  const AdmissionConfig config = FrequencyConfig(2);
  const auto counted = Make(config);
  Observe(*counted, {10, 20});
  const std::string whole = CountsOf(*counted);
  const auto refused = [&](const std::string& bytes) {
    const auto given = Make(config);
    Observe(*given, {30});
    auto counts = ReadCounts(bytes);
    Status status = counts.status();
    if (status.ok() && !SameAdmission(counts.value().config, config)) return true;
    if (status.ok()) status = given->Restore(counts.value().chunks);
    return !status.ok() && Observe(*given, {10, 30}) == Answers{0, 1};
  };
  CHECK_FALSE(refused(whole));
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string changed = whole;
    changed[i] ^= 0x10;
    CHECK_MESSAGE(refused(changed), "byte ", i);
    CHECK_MESSAGE(refused(whole.substr(0, i)), "cut after ", i);
  }
  CHECK(refused(whole + "x"));
}

TEST_CASE("counts of another config do not go into an admission") {
  const auto counted = Make(FrequencyConfig(2));
  Observe(*counted, {1});
  const std::string bytes = CountsOf(*counted);
  const AdmissionCounts counts = Value(ReadCounts(bytes));
  const auto other = Make(FrequencyConfig(3));
  CHECK_FALSE(SameAdmission(counts.config, other->config()));
  CHECK(other->Restore(counts.chunks).code() == Code::kInvalidArgument);
  CHECK(Described(counts.config) == "frequency with min_count 2");
}

}  // namespace
}  // namespace sok
