// Eight threads on one filter. Counts of distinct keys do not collide at these rates, so that the
// answers of all threads together are known exactly.
#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "core/policies/test_admission.h"

namespace sok {
namespace {

constexpr int kThreads = 8;
constexpr Key kKeys = 200;
constexpr uint32_t kRounds = 20;

void OnThreads(const std::function<void(int)>& fn) {
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) threads.emplace_back(fn, t);
  for (std::thread& thread : threads) thread.join();
}

// All keys, each thread from another one on.
std::vector<Key> AllKeys(int thread) {
  std::vector<Key> keys(kKeys);
  for (Key i = 0; i < kKeys; ++i) keys[i] = (i + static_cast<Key>(thread) * 25) % kKeys;
  return keys;
}

TEST_CASE("of all the sightings of a key by 8 threads, just min_count - 1 are turned away") {
  for (uint32_t min_count : {1u, 3u, 100u, uint32_t{kThreads * kRounds}}) {
    for (const AdmissionConfig& config : EveryKind(min_count)) {
      CAPTURE(config.kind);
      CAPTURE(config.counter_bits);
      const auto admission = Make(config);
      std::vector<std::atomic<uint32_t>> refused(kKeys);
      std::atomic<int> failed{0};
      OnThreads([&](int thread) {
        const std::vector<Key> keys = AllKeys(thread);
        Answers admitted(keys.size());
        for (uint32_t round = 0; round < kRounds; ++round) {
          failed += !admission->Observe(keys.data(), nullptr, keys.size(), admitted.data()).ok();
          for (size_t i = 0; i < keys.size(); ++i) refused[keys[i]] += admitted[i] == 0;
        }
      });
      CHECK(failed == 0);
      for (const auto& count : refused) REQUIRE(count == min_count - 1);
    }
  }
}

TEST_CASE("threads that ask, forget, save and measure do not disturb those that count") {
  constexpr uint32_t kMinCount = 6 * kRounds;  // six threads observe
  constexpr Key kForgotten = Key{1} << 40;     // keys from here on
  for (const AdmissionConfig& config : EveryKind(kMinCount)) {
    CAPTURE(config.kind);
    CAPTURE(config.counter_bits);
    const auto admission = Make(config);
    std::map<uint32_t, std::string> stored;
    const auto save = [&] {
      for (uint32_t chunk : admission->ChangedChunks()) {
        stored[chunk] = admission->Dump(chunk).value();
      }
      admission->MarkSaved();
    };
    std::atomic<int> faults{0}, observing{6};
    OnThreads([&](int thread) {
      const std::vector<Key> keys = AllKeys(thread);
      Answers admitted(keys.size());
      if (thread == 0) {
        while (observing > 0) save();
        return;
      }
      if (thread == 1) {
        std::vector<Key> forgotten;
        for (Key key : keys) forgotten.push_back(kForgotten + key);
        while (observing > 0) {
          faults += !admission->Observe(forgotten.data(), nullptr, 1, admitted.data()).ok();
          admission->Forget(forgotten.data(), forgotten.size());
          admission->Admitted(forgotten.data(), forgotten.size(), admitted.data());
          faults += admission->bytes() == 0;
        }
        return;
      }
      for (uint32_t round = 0; round < kRounds; ++round) {
        if (round == kRounds - 1) {  // this thread's last sighting is still to come
          admission->Admitted(keys.data(), keys.size(), admitted.data());
          for (uint8_t answer : admitted) faults += answer;
        }
        faults += !admission->Observe(keys.data(), nullptr, keys.size(), admitted.data()).ok();
      }
      --observing;
    });
    CHECK(faults == 0);
    CHECK(Admitted(*admission, AllKeys(0)) == Answers(kKeys, 1));
    save();
    const auto reopened = Make(config);
    for (const auto& [chunk, bytes] : stored) REQUIRE(reopened->Load(chunk, bytes).ok());
    CHECK(Admitted(*reopened, AllKeys(0)) == Answers(kKeys, 1));
  }
}

}  // namespace
}  // namespace sok
