// Compares a store on the stand-in for a GPU with a store in the host's memory, in random programs
// of all calls, also while other threads use the store.
#include "core/gpu/gpu_store.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/bfloat16.h"
#include "core/base/test_batches.h"
#include "core/base/test_result.h"
#include "core/base/test_threads.h"
#include "core/gpu/test_standin.h"
#include "core/rows/memory_store.h"
#include "core/rules/row_optimizer.h"

namespace sok::gpu {
namespace {

constexpr int kDim = 4;
constexpr uint64_t kKeys = 1500;

DeviceAddress At(const void* memory) { return reinterpret_cast<DeviceAddress>(memory); }

Initializer Start() { return Value(Initializer::Make("uniform", -1.0, 1.0, 7)); }

std::shared_ptr<const RowLayout> LayoutOf(const std::string& rule) {
  return std::make_shared<const RowLayout>(
      kDim, rule.empty() ? std::vector<Slot>() : RowOptimizerSlots(rule, kDim));
}

std::unique_ptr<GpuStore> MakeStore() {
  StandIn();
  return Value(GpuStore::Make(LayoutOf(""), {0, Start(), 0, 0}));
}

class Program {
 public:
  explicit Program(uint64_t seed)
      : host_(MakeHashStore(LayoutOf(""))), gpu_(MakeStore()), random_(seed), start_(Start()) {}

  void Run(int calls) {
    SetRule("sgd");
    for (int i = 0; i < calls; ++i) {
      CAPTURE(i);
      ++now_;
      switch (random_() % 16) {
        case 0:
        case 1:
          Upsert();
          break;
        case 2:
        case 3:
        case 4:
          Apply();
          break;
        case 5:
        case 6:
        case 7:
          LookUpOnGpu();
          break;
        case 8:
          Erase();
          break;
        case 9:
          if (random_() % 64 == 0) Replace();
          break;
        case 10:
          if (random_() % 64 == 0) SetRule(rules_[random_() % rules_.size()]);
          break;
        case 11:
          ReadMeta();
          break;
        case 12:
          if (random_() % 32 == 0) ListKeys();
          break;
        case 13:
          if (random_() % 128 == 0) Compare();
          break;
        default:
          Gather<float>();
          Gather<BFloat16>();
      }
      if (random_() % 16 == 0) REQUIRE(gpu_->size() == host_->size());
    }
    Compare();
    REQUIRE(gpu_->made() == host_->made());
  }

 private:
  // Returns mostly few keys, from both ends of the range of keys.
  std::vector<Key> Batch() {
    const auto key_at = [](uint64_t i) { return i % 2 == 0 ? i / 2 * 0x1000193 : ~(i / 2); };
    const size_t most = random_() % 64 == 0 ? 300 : 8;
    return RandomKeys(random_() % most, kKeys, key_at, &random_);
  }
  std::vector<float> Integers(size_t n) { return RandomIntegers(n, &random_); }

  // Sums of equal gradients are exact, and the rules of both sides differ at most in the last bit.
  static bool IsNear(float found, float expected) {
    return std::abs(found - expected) <= 1e-4f * std::max(1.0f, std::abs(expected));
  }

  void SetRule(const std::string& rule) {
    const auto layout = LayoutOf(rule);
    const TableState state{rule, layout->slots(), 0};
    const bool reshaped = Value(host_->Relayout(layout, state, SerialFor));
    REQUIRE(Value(gpu_->Relayout(layout, state, SerialFor)) == reshaped);
    rule_ = rule;
    optimizer_ = Value(MakeRowOptimizer(rule, {{"learning_rate", rule == "sgd" ? 1.0 : 0.01}}));
  }

  void Upsert() {
    const auto keys = Batch();
    const auto values = Integers(keys.size() * kDim);
    const uint64_t max_rows = random_() % 3 == 0 ? kKeys / 2 : 0;
    Code codes[2];
    RowStore* const stores[] = {host_.get(), gpu_.get()};
    for (int s = 0; s < 2; ++s) {
      const auto write = [&](size_t i, RowRef row, bool) {
        std::copy_n(&values[i * kDim], kDim, row.embedding);
      };
      codes[s] =
          stores[s]->Upsert(keys.data(), keys.size(), max_rows, now_, write, SerialFor).code();
    }
    REQUIRE(codes[0] == codes[1]);
  }

  // Applies gradients from the host, some of them rounded or by position, and gradients from a GPU.
  void Apply() {
    const auto first = Batch(), second = Batch();
    const auto floats = Integers(first.size() * kDim), more = Integers(second.size() * kDim);
    std::vector<BFloat16> halves;
    for (float x : more) halves.push_back(FromFloat<BFloat16>(x));
    std::vector<uint32_t> positions(first.size());
    for (uint32_t& position : positions) position = random_() % first.size();
    std::vector<GradientBatch> batches{
        {first.data(), floats.data(), nullptr, first.size()},
        {second.data(), nullptr, halves.data(), second.size()},
    };
    const bool on_gpu = random_() % 2 == 0;
    if (!on_gpu && random_() % 2 == 0) batches[0].positions = positions.data();
    if (random_() % 2 == 0) batches[1].factor = 0.5f;
    CommitStep step;
    step.number = 1 + random_() % 100;
    step.scale = 2.0f;
    step.clip_value = random_() % 4 == 0 ? 3.0f : 0.0f;
    step.now = now_;
    if (random_() % 8 == 0) step.number = 0;  // rows count their own steps, on the host
    const uint64_t touched = Value(host_->Apply(batches, *optimizer_, step, SerialFor));
    // Keys of gradients on a GPU must have rows, which their lookup has made.
    bool all_there = true;
    for (const auto* keys : {&first, &second}) {
      all_there &= Value(host_->Missing(keys->data(), keys->size(), SerialFor)).empty();
    }
    if (on_gpu && all_there && step.number > 0) {
      const DeviceBatch device{&gpu_->device(), nullptr};
      for (GradientBatch& batch : batches) batch.device = &device;
      Value(gpu_->Apply(batches, *optimizer_, step, SerialFor));
    } else {
      REQUIRE(Value(gpu_->Apply(batches, *optimizer_, step, SerialFor)) == touched);
    }
  }

  void LookUpOnGpu() {
    const auto keys = Batch();
    const bool makes = random_() % 2 == 0;
    const auto fill = [this](Key key, float* row) { start_.Fill(key, row, kDim); };
    std::vector<float> expected(keys.size() * kDim), found(keys.size() * kDim);
    std::vector<uint32_t> missing;
    REQUIRE(host_->Gather(keys.data(), keys.size(), expected.data(), {}, fill, &missing, SerialFor)
                .ok());
    if (makes) {
      const auto write = [&](size_t i, RowRef row, bool is_new) {
        if (is_new) fill(keys[i], row.embedding);
      };
      REQUIRE(host_->Upsert(keys.data(), keys.size(), 0, now_, write, SerialFor).ok());
    }
    const auto look_up = [&](GpuTable& table, Absent absent) {
      return table.Lookup(At(keys.data()), keys.size(), absent, now_, At(found.data()),
                          Element::kFloat32, nullptr);
    };
    const Status status = gpu_->LookUp(makes, look_up);
    REQUIRE_MESSAGE(status.ok(), status.message());
    for (size_t i = 0; i < found.size(); ++i) REQUIRE(IsNear(found[i], expected[i]));
  }

  void Erase() {
    const auto keys = Batch();
    const uint64_t erased = Value(host_->Erase(keys.data(), keys.size(), SerialFor));
    REQUIRE(Value(gpu_->Erase(keys.data(), keys.size(), SerialFor)) == erased);
  }

  template <typename T>
  void Gather() {
    const auto keys = Batch();
    const auto given = Integers(kDim);
    std::vector<const float*> gives(keys.size());
    std::vector<uint32_t> places(keys.size());
    for (uint32_t i = 0; i < keys.size(); ++i) {
      gives[i] = random_() % 4 == 0 ? given.data() : nullptr;
      places[i] = keys.size() - 1 - i;
    }
    GatherOptions options;
    if (random_() % 2 == 0) options.given = gives.data();
    if (random_() % 2 == 0) options.places = places.data();
    const RowStore::FillEmbedding fill = [](Key, float* row) { std::fill_n(row, kDim, -77.0f); };
    const bool fills = random_() % 4 != 0;
    std::vector<T> out[2];
    std::vector<uint32_t> missing[2];
    RowStore* const stores[] = {host_.get(), gpu_.get()};
    for (int s = 0; s < 2; ++s) {
      out[s].assign(keys.size() * kDim, FromFloat<T>(5.0f));
      const Status status = stores[s]->Gather(keys.data(), keys.size(), out[s].data(), options,
                                              fills ? fill : nullptr, &missing[s], SerialFor);
      REQUIRE_MESSAGE(status.ok(), status.message());
      std::sort(missing[s].begin(), missing[s].end());
    }
    REQUIRE(missing[0] == missing[1]);
    const float last_bit = std::is_same_v<T, float> ? 0.0f : 0.01f;
    for (size_t i = 0; i < out[0].size(); ++i) {
      const float expected = ToFloat(out[0][i]);
      const float off = std::abs(ToFloat(out[1][i]) - expected);
      REQUIRE(off <= (1e-4f + last_bit) * std::max(1.0f, std::abs(expected)));
    }
  }

  void ReadMeta() {
    const auto keys = Batch();
    std::vector<RowMeta> metas[2];
    std::vector<uint8_t> exists[2];
    RowStore* const stores[] = {host_.get(), gpu_.get()};
    for (int s = 0; s < 2; ++s) {
      metas[s].resize(keys.size());
      exists[s].resize(keys.size());
      REQUIRE(stores[s]
                  ->ReadMeta(keys.data(), keys.size(), metas[s].data(), exists[s].data(), SerialFor)
                  .ok());
    }
    REQUIRE(exists[0] == exists[1]);
    for (size_t i = 0; i < keys.size(); ++i) {
      REQUIRE(metas[0][i].update_num == metas[1][i].update_num);
      REQUIRE(metas[0][i].update_time == metas[1][i].update_time);
    }
  }

  struct Row {
    std::vector<float> floats;
    RowMeta meta;
  };
  static std::map<Key, Row> RowsOf(RowStore* store) {
    std::map<Key, Row> rows;
    const auto layout = store->layout();
    const int floats = layout->dim() + layout->slot_floats();
    const auto frozen = Value(store->Freeze());
    const Status status = frozen->ForEach([&](Key key, RowRef row) {
      rows[key] = {{row.embedding, row.embedding + floats}, *row.meta};
    });
    REQUIRE(status.ok());
    REQUIRE(rows.size() == frozen->size());
    return rows;
  }

  void Compare() {
    const auto expected = RowsOf(host_.get()), found = RowsOf(gpu_.get());
    REQUIRE(found.size() == expected.size());
    for (const auto& [key, row] : expected) {
      const auto at = found.find(key);
      REQUIRE(at != found.end());
      REQUIRE(at->second.meta.update_num == row.meta.update_num);
      REQUIRE(at->second.meta.update_time == row.meta.update_time);
      for (size_t j = 0; j < row.floats.size(); ++j) {
        REQUIRE(IsNear(at->second.floats[j], row.floats[j]));
      }
    }
  }

  // Copies the host's rows into both, so that differences in the last bit do not add up.
  void Replace() {
    const auto rows = RowsOf(host_.get());
    std::vector<Key> keys;
    for (const auto& [key, row] : rows) keys.push_back(key);
    keys.resize(keys.size() - std::min<size_t>(keys.size(), random_() % 50));
    for (RowStore* const store : {host_.get(), static_cast<RowStore*>(gpu_.get())}) {
      const auto write = [&](size_t i, RowRef row, bool) {
        const Row& from = rows.at(keys[i]);
        std::copy(from.floats.begin(), from.floats.end(), row.embedding);
        *row.meta = from.meta;
      };
      const auto layout = store->layout();
      const Status status = store->Replace(layout, {rule_, layout->slots(), 0}, keys.data(),
                                           keys.size(), now_, write, SerialFor);
      REQUIRE_MESSAGE(status.ok(), status.message());
    }
  }

  void ListKeys() {
    std::vector<Key> listed[2];
    RowStore* const stores[] = {host_.get(), gpu_.get()};
    for (int s = 0; s < 2; ++s) {
      for (uint32_t part = 0; part < stores[s]->parts(); ++part) {
        REQUIRE(stores[s]->ListKeys(part, &listed[s]).ok());
      }
      std::sort(listed[s].begin(), listed[s].end());
    }
    REQUIRE(listed[0] == listed[1]);
  }

  const std::shared_ptr<RowStore> host_;
  const std::unique_ptr<GpuStore> gpu_;
  std::mt19937_64 random_;
  const Initializer start_;
  const std::vector<std::string> rules_{"sgd", "adagrad", "adam", "momentum"};
  std::string rule_;
  std::unique_ptr<RowOptimizer> optimizer_;
  uint32_t now_ = 1000;
};

TEST_CASE("random calls leave a store on a GPU as they leave one in the host's memory") {
  const uint64_t seed = TestSeed();
  Program(seed).Run(LongTests() ? 1000000 : 4000);
}

TEST_CASE("threads that look up, list and count do not disturb the steps of a store on a GPU") {
  const auto store = MakeStore();
  const auto layout = LayoutOf("sgd");
  REQUIRE(store->Relayout(layout, {"sgd", layout->slots(), 0}, SerialFor).ok());
  const auto sgd = Value(MakeRowOptimizer("sgd", {{"learning_rate", 1.0}}));
  std::vector<Key> keys(500);
  for (Key i = 0; i < keys.size(); ++i) keys[i] = i * i;
  const auto write = [](size_t, RowRef row, bool) { std::fill_n(row.embedding, kDim, 0.0f); };
  REQUIRE(store->Upsert(keys.data(), keys.size(), 0, 1, write, SerialFor).ok());
  std::atomic<bool> ends{false};
  std::vector<std::thread> threads;
  for (uint64_t number = 0; number < 2; ++number) {
    threads.emplace_back([&, number] {
      std::mt19937_64 random(number);
      std::vector<float> out(keys.size() * kDim);
      std::vector<Key> listed;
      while (!ends) {
        // Meanwhile this thread makes and erases keys of its own.
        const std::vector<Key> own{1000000 + number, 2000000 + random() % 100};
        const auto look_up = [&](GpuTable& table, Absent absent) {
          return table.Lookup(At(own.data()), own.size(), absent, 1, At(out.data()),
                              Element::kFloat32, nullptr);
        };
        CHECK(store->LookUp(true, look_up).ok());
        CHECK(store->Gather(keys.data(), keys.size(), out.data(), {}, nullptr, nullptr, SerialFor)
                  .ok());
        // All elements of a row come from the same step.
        for (size_t i = 0; i < out.size(); ++i) CHECK(out[i] == out[i / kDim * kDim]);
        listed.clear();
        CHECK(store->ListKeys(random() % store->parts(), &listed).ok());
        CHECK(store->size() >= keys.size());
        CHECK(store->row_bytes() + store->index_bytes() > 0);
        CHECK(store->Erase(&own[1], 1, SerialFor).ok());
      }
    });
  }
  const std::vector<float> ones(keys.size() * kDim, -1.0f);
  CommitStep step;
  step.now = 2;
  constexpr int kSteps = 40;
  for (step.number = 1; step.number <= kSteps; ++step.number) {
    GradientBatch batch{keys.data(), ones.data(), nullptr, keys.size()};
    const DeviceBatch device{&store->device(), nullptr};
    if (step.number % 2 == 0) batch.device = &device;
    CHECK(store->Apply({batch}, *sgd, step, SerialFor).ok());
  }
  ends = true;
  for (std::thread& thread : threads) thread.join();
  std::vector<float> out(keys.size() * kDim);
  REQUIRE(
      store->Gather(keys.data(), keys.size(), out.data(), {}, nullptr, nullptr, SerialFor).ok());
  CHECK(std::all_of(out.begin(), out.end(), [](float x) { return x == kSteps; }));
}

}  // namespace
}  // namespace sok::gpu
