// Saving and loading, against a store that is a std::map.
#include <algorithm>
#include <map>
#include <random>
#include <string>

#include "core/base/test_threads.h"
#include "core/policies/test_admission.h"

namespace sok {
namespace {

using Stored = std::map<uint32_t, std::string>;

std::string Dump(const Admission& admission, uint32_t chunk) {
  Result<std::string> bytes = admission.Dump(chunk);
  REQUIRE(bytes.ok());
  return bytes.value();
}

// As a save does, except for MarkSaved. Returns how many chunks it wrote.
size_t Write(Admission& admission, Stored* stored) {
  const std::vector<uint32_t> changed = admission.ChangedChunks();
  CHECK(std::is_sorted(changed.begin(), changed.end()));
  for (uint32_t chunk : changed) (*stored)[chunk] = Dump(admission, chunk);
  return changed.size();
}

std::unique_ptr<Admission> Open(const AdmissionConfig& config, const Stored& stored) {
  auto admission = Make(config);
  for (const auto& [chunk, bytes] : stored) REQUIRE(admission->Load(chunk, bytes).ok());
  return admission;
}

std::vector<Key> RandomKeys(std::mt19937_64& rng, size_t n) {
  std::vector<Key> keys(n);
  for (Key& key : keys) key = rng() % 6000 - 3000;
  return keys;
}

// Kinds, and a filter of several chunks.
std::vector<AdmissionConfig> Configs() {
  std::vector<AdmissionConfig> configs = EveryKind(3);
  configs.push_back(BloomConfig(3, 1000000, 1e-3, 4));
  return configs;
}

TEST_CASE("what was saved goes on as if it had never stopped, save upon save") {
  for (const AdmissionConfig& config : Configs()) {
    CAPTURE(config.kind);
    CAPTURE(TestSeed());
    std::mt19937_64 rng(TestSeed());
    const auto kept = Make(config);
    auto reopened = Make(config);
    Stored stored;
    for (int save = 0; save < 20; ++save) {
      const std::vector<Key> keys = RandomKeys(rng, 700);
      REQUIRE(Observe(*kept, keys) == Observe(*reopened, keys));
      const std::vector<Key> forgotten = RandomKeys(rng, 100);
      kept->Forget(forgotten.data(), forgotten.size());
      reopened->Forget(forgotten.data(), forgotten.size());
      CHECK(Write(*reopened, &stored) > 0);
      reopened->MarkSaved();
      if (save % 2 == 1) reopened = Open(config, stored);
    }
    const std::vector<Key> asked = RandomKeys(rng, 5000);
    CHECK(Admitted(*kept, asked) == Admitted(*reopened, asked));
  }
}

TEST_CASE("only chunks that changed are written") {
  for (const AdmissionConfig& config : Configs()) {
    CAPTURE(config.kind);
    const auto admission = Make(config);
    Stored stored;
    CHECK(Write(*admission, &stored) == 0);
    Observe(*admission, {1, 2, 3});
    const size_t chunks = std::min<size_t>(3, admission->chunks());
    const size_t written = Write(*admission, &stored);
    CHECK(written >= 1);
    CHECK(written <= chunks);
    admission->MarkSaved();
    CHECK(Write(*admission, &stored) == 0);
    Admitted(*admission, {1, 2, 3, 4});
    CHECK(Write(*admission, &stored) == 0);
    Observe(*admission, {2});
    CHECK(Write(*admission, &stored) == 1);
    admission->MarkSaved();
    // A key that is admitted already changes nothing, however often it comes.
    Observe(*admission, {2});
    CHECK(Write(*admission, &stored) == 1);
    admission->MarkSaved();
    Observe(*admission, {2, 2, 2});
    CHECK(Write(*admission, &stored) == 0);
    // The counters that were loaded are not changed either.
    const auto reopened = Open(config, stored);
    CHECK(Write(*reopened, &stored) == 0);
  }
}

TEST_CASE("after a save that failed its chunks are written again") {
  for (const AdmissionConfig& config : Configs()) {
    CAPTURE(config.kind);
    const auto admission = Make(config);
    Stored lost, stored;
    Observe(*admission, {10, 11});
    const size_t first = Write(*admission, &lost);
    const size_t again = Write(*admission, &lost);
    CHECK(first == again);
    Observe(*admission, {12, 13, 14, 15});
    CHECK(Write(*admission, &stored) >= first);
    admission->MarkSaved();
    const auto reopened = Open(config, stored);
    const std::vector<Key> keys = {10, 11, 12, 13, 14, 15};
    for (int seen = 2; seen <= 3; ++seen) {
      CHECK(Observe(*reopened, keys) == Answers(keys.size(), seen == 3));
    }
  }
}

TEST_CASE("what changes during a save is not lost") {
  for (const AdmissionConfig& config : Configs()) {
    CAPTURE(config.kind);
    const auto admission = Make(config);
    Stored stored;
    Observe(*admission, {21});
    const std::vector<uint32_t> changed = admission->ChangedChunks();
    REQUIRE(changed.size() == 1);
    Observe(*admission, {21});  // before it is written
    stored[changed[0]] = Dump(*admission, changed[0]);
    admission->MarkSaved();
    CHECK(Write(*admission, &stored) == 1);
    Observe(*admission, {21});  // after it was written
    admission->MarkSaved();
    CHECK(Admitted(*Open(config, stored), {21}) == Answers{0});
    CHECK(Write(*admission, &stored) == 1);
    admission->MarkSaved();
    CHECK(Admitted(*Open(config, stored), {21}) == Answers{1});
  }
}

TEST_CASE("loading a chunk replaces what was there") {
  for (const AdmissionConfig& config : EveryKind(3)) {
    CAPTURE(config.kind);
    const auto admission = Make(config);
    Observe(*admission, {30, 30});
    Stored stored;
    Write(*admission, &stored);
    Observe(*admission, {30});
    for (const auto& [chunk, bytes] : stored) REQUIRE(admission->Load(chunk, bytes).ok());
    CHECK(admission->ChangedChunks().empty());
    CHECK(Admitted(*admission, {30}) == Answers{0});
    CHECK(Observe(*admission, {30}) == Answers{1});
  }
}

TEST_CASE("no chunk is larger than a megabyte at a million keys") {
  std::vector<Key> keys(1000000);
  for (Key i = 0; i < keys.size(); ++i) keys[i] = i;
  for (const AdmissionConfig& config : {FrequencyConfig(2), BloomConfig(2, keys.size(), 1e-3, 8)}) {
    const auto admission = Make(config);
    Observe(*admission, keys);
    Stored stored;
    CHECK(Write(*admission, &stored) == admission->chunks());
    for (const auto& [chunk, bytes] : stored) REQUIRE(bytes.size() < 1 << 20);
  }
}

}  // namespace
}  // namespace sok
