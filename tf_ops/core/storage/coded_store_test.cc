// Runs random operations on stores whose rows lie in fewer bytes, in memory and on disk, and
// compares with a map of rows in float32 that are rounded one by one, whatever threads, shards and
// caches there are. See row_coding_test.cc for the roundings themselves.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/base/test_result.h"
#include "core/base/test_threads.h"
#include "core/rows/row_coding.h"
#include "core/rows/row_store.h"
#include "core/rules/row_optimizer.h"
#include "core/storage/test_row_stores.h"

namespace sok {
namespace {

constexpr Key kKeys = 500;
constexpr uint32_t kNow = 99;

struct Row {
  std::vector<float> floats;  // the embedding and the slots
  uint32_t updates = 0;

  bool operator==(const Row& other) const {
    return floats == other.floats && updates == other.updates;
  }
};
using Rows = std::map<Key, Row>;

using MakeStore = std::function<std::shared_ptr<RowStore>(std::shared_ptr<const RowLayout>)>;

MakeStore InShards(uint32_t shards) {
  return [shards](std::shared_ptr<const RowLayout> layout) -> std::shared_ptr<RowStore> {
    return MakeHashStore(std::move(layout), shards);
  };
}

std::shared_ptr<RowStore> WithoutHash(std::shared_ptr<const RowLayout> layout) {
  IndexConfig config;
  config.capacity = kKeys;
  return MakeDirectStore(std::move(layout), config);
}

class Program {
 public:
  Program(const RowForm& form, const MakeStore& make, ParallelFor parallel_for, uint64_t seed,
          int dim = 6, bool captures = true)
      : dim_(dim),
        captures_(captures),
        form_(form),
        parallel_for_(std::move(parallel_for)),
        rng_(seed) {
    SetRule("sgd");
    store_ = make(layout_);
  }

  Rows Run(int operations) {
    for (int i = 0; i < operations; ++i) {
      switch (rng_() % 8) {
        case 0:
        case 1:
          Upsert();
          break;
        case 2:
          Erase();
          break;
        case 3:
          Gather();
          break;
        case 4:
          if (rng_() % 2 == 0) ChangeRule();
          break;
        default:
          Apply();
      }
    }
    CHECK(Frozen() == rows_);
    if (captures_) CHECK(Captured() == rows_);
    return rows_;
  }

 private:
  std::vector<Key> Batch() {
    std::vector<Key> keys(rng_() % (dim_ < 100 ? 300 : 60));
    const Key most = rng_() % 2 == 0 ? 20 : kKeys;
    for (Key& key : keys) key = rng_() % most;
    return keys;
  }

  std::vector<float> Floats(size_t n) {
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    std::vector<float> values(n);
    for (float& x : values) x = uniform(rng_);
    return values;
  }

  const RowCoding& coding() const { return *layout_->coding(); }

  std::vector<float> Nearest(const std::vector<float>& floats) const {
    std::vector<char> row(coding().bytes());
    std::vector<float> decoded(floats.size());
    coding().EncodeNearest(floats.data(), row.data());
    coding().Decode(row.data(), decoded.data());
    return decoded;
  }

  void SetRule(const std::string& rule) {
    optimizer_ = Value(MakeRowOptimizer(rule, {}));
    layout_ = std::make_shared<const RowLayout>(dim_, optimizer_->slots(dim_), form_);
  }

  void ChangeRule() {
    const auto rules = RowOptimizerNames();
    const auto before = layout_;
    SetRule(rules[rng_() % rules.size()]);
    TableState state;
    state.slots = layout_->slots();
    const bool reshaped = Value(store_->Relayout(layout_, state, parallel_for_));
    REQUIRE(reshaped == !before->SameShape(*layout_));
    if (!reshaped) return;
    for (auto& [key, row] : rows_) {
      row.floats.resize(dim_);
      row.floats.insert(row.floats.end(), layout_->slot_start().begin(),
                        layout_->slot_start().end());
      row.floats = Nearest(row.floats);
    }
  }

  void Upsert() {
    const auto keys = Batch();
    const auto values = Floats(keys.size() * dim_);
    const auto write = [&](size_t i, RowRef row, bool) {
      std::copy_n(&values[i * dim_], dim_, row.embedding);
    };
    REQUIRE(store_->Upsert(keys.data(), keys.size(), 0, kNow, write, parallel_for_).ok());
    for (size_t i = 0; i < keys.size(); ++i) {
      Row& row = rows_[keys[i]];
      if (row.floats.empty()) {
        row.floats.resize(dim_);
        row.floats.insert(row.floats.end(), layout_->slot_start().begin(),
                          layout_->slot_start().end());
      }
      std::copy_n(&values[i * dim_], dim_, row.floats.begin());
      row.floats = Nearest(row.floats);
    }
  }

  void Update(Key key, const std::vector<float>& gradient, const CommitStep& step) {
    Row& row = rows_.at(key);
    const uint32_t number = ++row.updates;
    Step one{step.number, step.scale};
    if (step.number == 0) one.row_numbers = &number;
    float* const floats = row.floats.data();
    const float* const g = gradient.data();
    optimizer_->Apply(one, &floats, &g, 1, dim_);
    std::vector<char> coded(coding().bytes());
    coding().EncodeUpdated(floats, key, row.updates, coded.data());
    coding().Decode(coded.data(), floats);
  }

  void Apply() {
    const std::vector<Key> keys[2] = {Batch(), Batch()};
    const std::vector<float> gradients[2] = {Floats(keys[0].size() * dim_),
                                             Floats(keys[1].size() * dim_)};
    CommitStep step;
    step.number = rng_() % 2 == 0 ? 0 : 7;
    step.scale = 0.5f;
    step.now = kNow;
    step.sequential = rng_() % 4 == 0;
    step.state.slots = layout_->slots();
    std::vector<GradientBatch> batches;
    std::map<Key, std::vector<float>> sums;
    for (int b = 0; b < 2; ++b) {
      batches.push_back({keys[b].data(), gradients[b].data(), nullptr, keys[b].size()});
      for (size_t i = 0; i < keys[b].size(); ++i) {
        if (rows_.count(keys[b][i]) == 0) continue;
        const float* const gradient = &gradients[b][i * dim_];
        if (step.sequential) {
          Update(keys[b][i], {gradient, gradient + dim_}, step);
          continue;
        }
        auto& sum = sums[keys[b][i]];
        sum.resize(dim_, 0.0f);
        for (int j = 0; j < dim_; ++j) sum[j] += gradient[j];
      }
    }
    for (const auto& [key, sum] : sums) Update(key, sum, step);
    REQUIRE(store_->Apply(batches, *optimizer_, step, parallel_for_).ok());
  }

  void Erase() {
    const auto keys = Batch();
    for (Key key : keys) rows_.erase(key);
    REQUIRE(store_->Erase(keys.data(), keys.size(), parallel_for_).ok());
  }

  template <typename T>
  void GatherAs(const std::vector<Key>& keys) {
    std::vector<float> start = {0.3f, -0.1f, 0.01f, 1.0f, 1e-3f, -2.7f};
    start.resize(dim_, 0.7f);
    std::vector<float> rounded = start;
    std::vector<char> scratch(coding().bytes());
    coding().RoundEmbedding(rounded.data(), scratch.data());
    // Some of the rows are given, in float32.
    std::vector<const float*> given(keys.size());
    for (const float*& row : given) row = rng_() % 8 == 0 ? start.data() : nullptr;
    GatherOptions options;
    if (rng_() % 2 == 0) options.given = given.data();
    std::vector<T> out(keys.size() * dim_);
    const auto fill = [&](Key, float* row) { std::copy(start.begin(), start.end(), row); };
    REQUIRE(
        store_->Gather(keys.data(), keys.size(), out.data(), options, fill, nullptr, parallel_for_)
            .ok());
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto row = rows_.find(keys[i]);
      const float* expected = row == rows_.end() ? rounded.data() : row->second.floats.data();
      if (options.given != nullptr && given[i] != nullptr) expected = given[i];
      for (int j = 0; j < dim_; ++j) {
        REQUIRE(ToFloat(out[i * dim_ + j]) == ToFloat(FromFloat<T>(expected[j])));
      }
    }
  }

  void Gather() {
    const auto keys = Batch();
    GatherAs<float>(keys);
    GatherAs<BFloat16>(keys);
  }

  Rows Frozen() const {
    Rows found;
    const Status status = Value(store_->Freeze())->ForEach([&](Key key, RowRef row) {
      found[key] = {{row.embedding, row.embedding + coding().floats()}, row.meta->update_num};
    });
    REQUIRE(status.ok());
    return found;
  }

  // Copies the rows out while each of them changes, and back again.
  Rows Captured() {
    const auto capture = Value(store_->BeginCapture({}));
    std::vector<Key> some;
    for (const auto& [key, _] : rows_) {
      if (key % 2 == 0) some.push_back(key);
    }
    const auto change = [](size_t, RowRef row, bool) { row.embedding[0] = 77.0f; };
    const Rows before = Frozen();
    REQUIRE(store_->Upsert(some.data(), some.size(), 0, kNow, change, parallel_for_).ok());
    const size_t n = rows_.size(), slots = coding().floats() - dim_;
    std::vector<Key> keys(n + 1);
    std::vector<uint32_t> nums(n + 1), times(n + 1);
    std::vector<float> embeddings((n + 1) * dim_), slot_floats((n + 1) * slots);
    REQUIRE(Value(capture->Next(
                {keys.data(), nums.data(), times.data(), embeddings.data(), slot_floats.data()},
                n + 1)) == n);
    Rows found;
    for (size_t i = 0; i < n; ++i) {
      Row& row = found[keys[i]];
      row.floats.assign(&embeddings[i * dim_], &embeddings[i * dim_] + dim_);
      row.floats.insert(row.floats.end(), slot_floats.begin() + i * slots,
                        slot_floats.begin() + (i + 1) * slots);
      row.updates = nums[i];
    }
    return found;
  }

  const int dim_;
  const bool captures_;
  const RowForm form_;
  const ParallelFor parallel_for_;
  std::mt19937_64 rng_;
  std::unique_ptr<RowOptimizer> optimizer_;
  std::shared_ptr<const RowLayout> layout_;
  std::shared_ptr<RowStore> store_;
  Rows rows_;
};

constexpr RowType kF32 = RowType::kFloat32, kBf16 = RowType::kBFloat16;
constexpr RowForm kForms[] = {{kBf16, kF32, 1},
                              {kBf16, kBf16, 2},
                              {RowType::kFloat16, kF32, 3},
                              {RowType::kFloat16, kBf16, 4},
                              {RowType::kInt8, kF32, 5},
                              {RowType::kInt8, kBf16, 6},
                              {RowType::kFloat8E4M3, kF32, 8},
                              {RowType::kFloat8E4M3, kBf16, 9},
                              {kF32, kBf16, 7}};

TEST_CASE("rows in fewer bytes are what rounding one by one makes, in every shard and thread") {
  uint64_t seed = TestSeed();
  for (const RowForm& form : kForms) {
    for (int round = 0; round < (LongTests() ? 3 : 1); ++round, ++seed) {
      CAPTURE(RowTypeName(form.row));
      const Rows serial = Program(form, InShards(1), SerialFor, seed).Run(60);
      CHECK(Program(form, InShards(64), ThreadedFor, seed).Run(60) == serial);
      CHECK(Program(form, WithoutHash, ThreadedFor, seed).Run(60) == serial);
    }
  }
}

TEST_CASE_TEMPLATE("rows on disk have the bits of rows in memory, whatever leaves the cache", Kind,
                   DiskKind, SpillingDiskKind, EvictingDiskKind, JournaledDiskKind,
                   OtherDatabaseKind) {
  uint64_t seed = TestSeed();
  const int operations = (Kind::kDim < 100 ? 60 : 40) / (LongTests() ? 1 : 2);
  for (const RowForm& form : kForms) {
    CAPTURE(RowTypeName(form.row));
    const auto on_disk = [](std::shared_ptr<const RowLayout> layout) {
      return Kind::Make(std::move(layout), kKeys);
    };
    const Rows in_memory =
        Program(form, InShards(4), SerialFor, ++seed, Kind::kDim).Run(operations);
    CHECK(
        Program(form, on_disk, ThreadedFor, seed, Kind::kDim, /*captures=*/false).Run(operations) ==
        in_memory);
  }
}

TEST_CASE("small steps add up in a row of fewer bytes") {
  const int dim = 16, steps = 4000;
  const float rate = 1e-5f;  // far below half of the last bit of 1.0
  for (const RowType type :
       {RowType::kBFloat16, RowType::kFloat16, RowType::kInt8, RowType::kFloat8E4M3}) {
    const auto optimizer = Value(MakeRowOptimizer("sgd", {{"learning_rate", rate}}));
    const auto store =
        MakeHashStore(std::make_shared<const RowLayout>(dim, std::vector<Slot>(), RowForm{type}));
    std::vector<Key> keys(200);
    for (Key& key : keys) key = static_cast<Key>(&key - keys.data());
    const auto ones = [&](size_t, RowRef row, bool) { std::fill_n(row.embedding, dim, 1.0f); };
    REQUIRE(store->Upsert(keys.data(), keys.size(), 0, 0, ones, SerialFor).ok());
    const std::vector<float> gradients(keys.size() * dim, 1.0f);
    for (int i = 0; i < steps; ++i) {
      Value(store->Apply({{keys.data(), gradients.data(), nullptr, keys.size()}}, *optimizer, {},
                         SerialFor));
    }
    std::vector<float> out(keys.size() * dim);
    REQUIRE(store->Gather(keys.data(), keys.size(), out.data(), {}, {}, nullptr, SerialFor).ok());
    double mean = 0;
    for (const float x : out) mean += x / static_cast<double>(out.size());
    CAPTURE(RowTypeName(type));
    CHECK(mean == doctest::Approx(1.0 - steps * rate).epsilon(2e-3));
  }
}

}  // namespace
}  // namespace sok
