// Tests the contract of RowStore, for each kind of store.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/test_result.h"
#include "core/base/test_threads.h"
#include "core/rows/row_store.h"
#include "core/rows/summed_gradients.h"
#include "core/rules/row_optimizer.h"
#include "core/storage/test_row_stores.h"

namespace sok {
namespace {

constexpr uint32_t kNow = 1234;
constexpr uint64_t kKeys = 600;  // of a universe that every store can hold

using Rows = std::map<Key, std::vector<float>>;

template <typename Kind>
std::shared_ptr<const RowLayout> LayoutWith(std::vector<Slot> slots = {}) {
  return std::make_shared<const RowLayout>(Kind::kDim, std::move(slots), Kind::kForm);
}

template <typename Kind>
std::shared_ptr<RowStore> MakeStore(std::vector<Slot> slots = {}) {
  return Kind::Make(LayoutWith<Kind>(std::move(slots)), kKeys);
}

template <typename Kind>
std::vector<Key> Keys(uint64_t begin, uint64_t end) {
  std::vector<Key> keys;
  for (uint64_t i = begin; i < end; ++i) keys.push_back(Kind::KeyAt(i));
  return keys;
}

std::vector<Key> Repeated(const std::vector<Key>& keys, int times) {
  std::vector<Key> all;
  for (int i = 0; i < times; ++i) all.insert(all.end(), keys.begin(), keys.end());
  return all;
}

// (n, dim), where row i is values[i] throughout.
std::vector<float> Matrix(const std::vector<float>& values, int dim) {
  std::vector<float> rows;
  for (float value : values) rows.insert(rows.end(), dim, value);
  return rows;
}

// Sets the embedding of keys[i] to values[i] throughout.
RowStore::WriteRow Writer(const RowStore& store, const std::vector<float>& values) {
  return [dim = store.layout()->dim(), &values](size_t i, RowRef row, bool) {
    std::fill_n(row.embedding, dim, values[i]);
  };
}

Status Put(RowStore& store, const std::vector<Key>& keys, const std::vector<float>& values,
           uint64_t max_rows = 0, const ParallelFor& parallel_for = SerialFor) {
  return store.Upsert(keys.data(), keys.size(), max_rows, kNow, Writer(store, values),
                      parallel_for);
}

Status Put(RowStore& store, const std::vector<Key>& keys, float value) {
  return Put(store, keys, std::vector<float>(keys.size(), value));
}

// The embeddings and the slots of all rows.
Rows Contents(RowStore& store) {
  Rows rows;
  const auto layout = store.layout();
  const auto frozen = Value(store.Freeze());
  const Status status = frozen->ForEach([&](Key key, RowRef row) {
    float* const end = row.embedding + layout->dim() + layout->slot_floats();
    REQUIRE(rows.emplace(key, std::vector<float>(row.embedding, end)).second);
  });
  REQUIRE(status.ok());
  REQUIRE(frozen->size() == rows.size());
  REQUIRE(store.size() == rows.size());
  return rows;
}

template <typename Kind>
Rows Uniform(const std::vector<Key>& keys, float value) {
  Rows rows;
  for (Key key : keys) rows[key] = std::vector<float>(Kind::kDim, value);
  return rows;
}

std::unique_ptr<RowOptimizer> Sgd() {
  return Value(MakeRowOptimizer("sgd", {{"learning_rate", 1.0}}));
}

// One step of gradient descent at a rate of 1. Returns how many rows it touched.
uint64_t TakeStep(RowStore& store, const std::vector<GradientBatch>& batches, CommitStep step = {},
                  const ParallelFor& parallel_for = SerialFor) {
  step.now = kNow + 1;
  step.state.slots = store.layout()->slots();
  return Value(store.Apply(batches, *Sgd(), step, parallel_for));
}

const ParallelFor kThreads[] = {ParallelFor(SerialFor), ParallelFor(ThreadedFor)};

}  // namespace

TEST_CASE_TEMPLATE("keys without a row are filled in, and their positions are told", Kind,
                   SOK_EVERY_STORE) {
  constexpr int kDim = Kind::kDim;
  const auto store = MakeStore<Kind>();
  const auto keys = Keys<Kind>(0, 300);
  std::vector<Key> even;
  for (size_t i = 0; i < keys.size(); i += 2) even.push_back(keys[i]);
  REQUIRE(Put(*store, even, 1.0f).ok());
  const auto fill = [](Key, float* embedding) { std::fill_n(embedding, kDim, -1.0f); };
  for (const ParallelFor& parallel_for : kThreads) {
    std::vector<float> out(keys.size() * kDim);
    std::vector<BFloat16> out_bf16(keys.size() * kDim);
    std::vector<uint32_t> missing, missing_bf16;
    REQUIRE(
        store->Gather(keys.data(), keys.size(), out.data(), {}, fill, &missing, parallel_for).ok());
    REQUIRE(store
                ->Gather(keys.data(), keys.size(), out_bf16.data(), {}, fill, &missing_bf16,
                         parallel_for)
                .ok());
    for (size_t i = 0; i < out.size(); ++i) {
      const float expected = i / kDim % 2 == 0 ? 1.0f : -1.0f;
      REQUIRE(out[i] == expected);
      REQUIRE(ToFloat(out_bf16[i]) == expected);
    }
    std::set<uint32_t> odd;
    for (uint32_t i = 1; i < keys.size(); i += 2) odd.insert(i);
    CHECK(missing.size() == odd.size());
    CHECK(std::set<uint32_t>(missing.begin(), missing.end()) == odd);
    CHECK(std::set<uint32_t>(missing_bf16.begin(), missing_bf16.end()) == odd);
    missing = Value(store->Missing(keys.data(), keys.size(), parallel_for));
    CHECK(std::set<uint32_t>(missing.begin(), missing.end()) == odd);
  }
  CHECK(store->size() == even.size());
}

TEST_CASE_TEMPLATE("the output of a missing key is left alone without a fill", Kind,
                   SOK_EVERY_STORE) {
  const auto store = MakeStore<Kind>();
  REQUIRE(Put(*store, Keys<Kind>(1, 2), 1.0f).ok());
  const auto keys = Keys<Kind>(0, 2);
  std::vector<float> out(2 * Kind::kDim, 7.0f);
  REQUIRE(store->Gather(keys.data(), 2, out.data(), {}, nullptr, nullptr, SerialFor).ok());
  CHECK(out == Matrix({7.0f, 1.0f}, Kind::kDim));
}

TEST_CASE_TEMPLATE("rows go to the places that are named, and given ones are not looked up", Kind,
                   SOK_EVERY_STORE) {
  const auto store = MakeStore<Kind>();
  const auto keys = Keys<Kind>(0, 4);
  REQUIRE(Put(*store, {keys[0], keys[1]}, {1.0f, 2.0f}).ok());
  const std::vector<float> own(Kind::kDim, 9.0f);
  const std::vector<uint32_t> places = {3, 0, 1, 4};
  const std::vector<const float*> given = {nullptr, own.data(), own.data(), nullptr};
  std::vector<float> out(5 * Kind::kDim, 7.0f);
  std::vector<uint32_t> missing;
  REQUIRE(store
              ->Gather(keys.data(), 4, out.data(), {places.data(), given.data()}, nullptr, &missing,
                       SerialFor)
              .ok());
  CHECK(out == Matrix({9.0f, 9.0f, 7.0f, 1.0f, 7.0f}, Kind::kDim));
  CHECK(missing == std::vector<uint32_t>{3});
}

TEST_CASE_TEMPLATE("Upsert visits equal keys in order, and only the first as new", Kind,
                   SOK_EVERY_STORE) {
  constexpr int kDim = Kind::kDim;
  for (const ParallelFor& parallel_for : kThreads) {
    const auto store = MakeStore<Kind>({{"accumulator", 2, 0.5f}});
    const auto keys = Repeated(Keys<Kind>(0, 50), 5);
    std::vector<std::vector<size_t>> visits(50);
    std::vector<int> new_visits(50);
    const auto write = [&](size_t i, RowRef row, bool is_new) {
      if (is_new) {
        const bool at_start = row.embedding[kDim] == 0.5f && row.embedding[kDim + 1] == 0.5f;
        new_visits[i % 50] += at_start && row.meta->update_num == 0 &&
                              row.meta->update_time == kNow && visits[i % 50].empty();
        std::fill_n(row.embedding, kDim, 0.0f);
      }
      visits[i % 50].push_back(i);
    };
    REQUIRE(store->Upsert(keys.data(), keys.size(), 0, kNow, write, parallel_for).ok());
    for (size_t k = 0; k < 50; ++k) {
      CHECK(visits[k] == std::vector<size_t>{k, k + 50, k + 100, k + 150, k + 200});
      CHECK(new_visits[k] == 1);
    }
    CHECK(store->size() == 50);
  }
}

TEST_CASE_TEMPLATE("of equal keys the last one that is written stays", Kind, SOK_EVERY_STORE) {
  const auto store = MakeStore<Kind>();
  const auto keys = Keys<Kind>(0, 100);
  std::vector<float> values(300, 1.0f);
  std::fill(values.begin() + 200, values.end(), 3.0f);
  for (const ParallelFor& parallel_for : kThreads) {
    REQUIRE(Put(*store, Repeated(keys, 3), values, 0, parallel_for).ok());
    CHECK(Contents(*store) == Uniform<Kind>(keys, 3.0f));
  }
}

TEST_CASE_TEMPLATE("a row made where one was erased starts anew", Kind, SOK_EVERY_STORE) {
  const auto store = MakeStore<Kind>({{"accumulator", 1, 0.5f}});
  const Key key = Kind::KeyAt(1);
  const auto spoil = [](size_t, RowRef row, bool) {
    std::fill_n(row.embedding, Kind::kDim + 1, 9.0f);
    *row.meta = RowMeta{7, 7};
  };
  REQUIRE(store->Upsert(&key, 1, 0, kNow, spoil, SerialFor).ok());
  REQUIRE(Value(store->Erase(&key, 1, SerialFor)) == 1);
  const auto look = [](size_t, RowRef row, bool is_new) {
    CHECK(is_new);
    CHECK(row.embedding[Kind::kDim] == 0.5f);
    CHECK(row.meta->update_num == 0);
    CHECK(row.meta->update_time == kNow);
  };
  REQUIRE(store->Upsert(&key, 1, 0, kNow, look, SerialFor).ok());
}

TEST_CASE_TEMPLATE("an Upsert or a Set beyond max_rows leaves the store as it was", Kind,
                   SOK_EVERY_STORE) {
  const auto store = MakeStore<Kind>();
  REQUIRE(Put(*store, Keys<Kind>(0, 90), std::vector<float>(90, 1.0f), 100).ok());
  const Rows before = Contents(*store);
  const auto keys = Keys<Kind>(85, 101);
  const std::vector<float> values(16, 2.0f);
  const RowStore::WriteRow write = Writer(*store, values);
  for (const Status& status :
       {Put(*store, keys, values, 100),
        store->Set(keys.data(), keys.size(), 100, kNow, write, ThreadedFor)}) {
    CHECK(status.code() == Code::kResourceExhausted);
    CHECK(status.message() ==
          "the table is full: it holds 90 of at most 100 rows, and this call brings 11 new keys; "
          "raise the limit, or remove keys that nobody needs");
    CHECK(Contents(*store) == before);
  }
}

TEST_CASE_TEMPLATE("max_rows counts distinct new keys, not the entries of the call", Kind,
                   SOK_EVERY_STORE) {
  const auto store = MakeStore<Kind>();
  const auto keys = Repeated(Keys<Kind>(0, 100), 2);
  REQUIRE(Put(*store, keys, std::vector<float>(200, 1.0f), 100, ThreadedFor).ok());
  CHECK(Put(*store, keys, std::vector<float>(200, 2.0f), 100, ThreadedFor).ok());
  CHECK(store->size() == 100);
  // Rows that are there may change where no others fit in, and beyond a limit that was lowered.
  for (const uint64_t max_rows : {100, 10}) {
    CAPTURE(max_rows);
    const auto there = Keys<Kind>(0, 50);
    CHECK(Put(*store, there, std::vector<float>(50, 3.0f), max_rows).ok());
    CHECK_FALSE(Put(*store, Keys<Kind>(100, 101), {3.0f}, max_rows).ok());
  }
  CHECK(store->size() == 100);
}

TEST_CASE_TEMPLATE("Set writes rows of all keys, new and old ones, equal ones in order", Kind,
                   SOK_EVERY_STORE) {
  const auto store = MakeStore<Kind>();
  REQUIRE(Put(*store, Keys<Kind>(0, 100), 1.0f).ok());
  auto keys = Repeated(Keys<Kind>(50, 150), 2);
  std::vector<float> values(200, 2.0f);
  std::fill(values.begin() + 100, values.end(), 3.0f);
  REQUIRE(
      store->Set(keys.data(), keys.size(), 150, kNow, Writer(*store, values), ThreadedFor).ok());
  Rows expected = Uniform<Kind>(Keys<Kind>(0, 50), 1.0f);
  expected.merge(Uniform<Kind>(Keys<Kind>(50, 150), 3.0f));
  CHECK(Contents(*store) == expected);
}

TEST_CASE_TEMPLATE("Apply sums the gradients of equal keys in order, and takes one step", Kind,
                   SOK_EVERY_STORE) {
  constexpr int kDim = Kind::kDim;
  for (const ParallelFor& parallel_for : kThreads) {
    const auto store = MakeStore<Kind>();
    const auto keys = Keys<Kind>(0, 100);
    REQUIRE(Put(*store, keys, 0.0f).ok());
    // In float32 the 1 is lost beside 1e8: another order would leave -1 in the rows.
    const auto first = Repeated(keys, 2);
    std::vector<float> values(100, 1e8f);
    values.insert(values.end(), 100, 1.0f);
    const auto gradients = Matrix(values, kDim);
    const auto last = Matrix(std::vector<float>(100, -1e8f), kDim);
    CommitStep step;
    step.number = 1;
    CHECK(TakeStep(*store,
                   {{first.data(), gradients.data(), nullptr, first.size()},
                    {keys.data(), last.data(), nullptr, keys.size()}},
                   step, parallel_for) == 100);
    CHECK(Contents(*store) == Uniform<Kind>(keys, -((1e8f + 1.0f) + -1e8f)));
    std::vector<RowMeta> metas(100);
    std::vector<uint8_t> exists(100);
    REQUIRE(
        store->ReadMeta(keys.data(), keys.size(), metas.data(), exists.data(), parallel_for).ok());
    for (const RowMeta& meta : metas) {
      CHECK(meta.update_num == 1);
      CHECK(meta.update_time == kNow + 1);
    }
  }
}

TEST_CASE_TEMPLATE("Apply multiplies the sum by the scale and clips it", Kind, SOK_EVERY_STORE) {
  const auto store = MakeStore<Kind>();
  const auto keys = Keys<Kind>(0, 2);
  REQUIRE(Put(*store, keys, 0.0f).ok());
  const std::vector<Key> twice = Repeated(keys, 2);
  const auto gradients = Matrix({1.0f, 8.0f, 1.0f, 8.0f}, Kind::kDim);
  CommitStep step;
  step.number = 1;
  step.scale = 0.5f;
  step.clip_value = 3.0f;
  TakeStep(*store, {{twice.data(), gradients.data(), nullptr, 4}}, step);
  Rows expected = Uniform<Kind>({keys[0]}, -1.0f);
  expected.merge(Uniform<Kind>({keys[1]}, -3.0f));
  CHECK(Contents(*store) == expected);
}

TEST_CASE_TEMPLATE("Apply leaves out keys without a row, and makes none", Kind, SOK_EVERY_STORE) {
  const auto store = MakeStore<Kind>();
  REQUIRE(Put(*store, Keys<Kind>(0, 50), 1.0f).ok());
  const auto keys = Keys<Kind>(25, 75);
  const auto gradients = Matrix(std::vector<float>(50, 2.0f), Kind::kDim);
  bool applied = false;
  CommitStep step;
  step.number = 1;
  step.applied = &applied;
  CHECK(TakeStep(*store, {{keys.data(), gradients.data(), nullptr, 50}}, step, ThreadedFor) == 25);
  CHECK(applied);
  Rows expected = Uniform<Kind>(Keys<Kind>(0, 25), 1.0f);
  expected.merge(Uniform<Kind>(Keys<Kind>(25, 50), -1.0f));
  CHECK(Contents(*store) == expected);
}

TEST_CASE_TEMPLATE("a sequential Apply takes a step for each of equal keys", Kind,
                   SOK_EVERY_STORE) {
  const auto store = MakeStore<Kind>();
  const Key key = Kind::KeyAt(4);
  REQUIRE(Put(*store, {key}, 0.0f).ok());
  const std::vector<Key> keys(3, key);
  const auto gradients = Matrix({1.0f, 2.0f, 4.0f}, Kind::kDim);
  CommitStep step;  // each row counts its own updates
  step.sequential = true;
  CHECK(TakeStep(*store, {{keys.data(), gradients.data(), nullptr, 3}}, step) == 1);
  CHECK(Contents(*store) == Uniform<Kind>({key}, -7.0f));
  RowMeta meta{};
  uint8_t exists = 0;
  REQUIRE(store->ReadMeta(&key, 1, &meta, &exists, SerialFor).ok());
  CHECK(meta.update_num == 3);
}

TEST_CASE_TEMPLATE("gradients that are summed by key before move rows as others do", Kind,
                   SOK_EVERY_STORE) {
  const auto keys = Repeated(Keys<Kind>(0, 60), 3);
  std::vector<float> values(keys.size());
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7);
  const auto gradients = Matrix(values, Kind::kDim);
  std::vector<Rows> left;
  for (const bool is_summed : {false, true}) {
    const auto store = MakeStore<Kind>();
    REQUIRE(Put(*store, Keys<Kind>(0, 40), 1.0f).ok());
    GradientBatch batch{keys.data(), gradients.data(), nullptr, keys.size()};
    SummedGradients summed;
    summed.Build(*store, batch, Kind::kDim, ThreadedFor);
    if (is_summed) batch.summed = &summed;
    CommitStep step;
    step.number = 1;
    CHECK(TakeStep(*store, {batch, batch}, step, ThreadedFor) == 40);
    left.push_back(Contents(*store));
  }
  CHECK(left[0] == left[1]);
  // Key 5 has the gradients at 5, 65 and 125, which are 5, 2 and 6.
  CHECK(left[0].at(Kind::KeyAt(5))[0] == 1.0f - 2 * (5 + 2 + 6));
}

TEST_CASE_TEMPLATE("counters are those of the row, and zeros where there is none", Kind,
                   SOK_EVERY_STORE) {
  const auto store = MakeStore<Kind>();
  const auto count = [](size_t i, RowRef row, bool) {
    std::fill_n(row.embedding, Kind::kDim, 0.0f);
    *row.meta = RowMeta{static_cast<uint32_t>(i), UINT32_MAX - static_cast<uint32_t>(i)};
  };
  const auto there = Keys<Kind>(0, 100), keys = Keys<Kind>(50, 150);
  REQUIRE(store->Upsert(there.data(), there.size(), 0, kNow, count, ThreadedFor).ok());
  std::vector<RowMeta> metas(100, RowMeta{7, 7});
  std::vector<uint8_t> exists(100, 7);
  REQUIRE(store->ReadMeta(keys.data(), keys.size(), metas.data(), exists.data(), ThreadedFor).ok());
  for (uint32_t i = 0; i < 100; ++i) {
    CAPTURE(i);
    CHECK(exists[i] == (i < 50));
    CHECK(metas[i].update_num == (i < 50 ? 50 + i : 0));
    CHECK(metas[i].update_time == (i < 50 ? UINT32_MAX - 50 - i : 0));
  }
}

TEST_CASE_TEMPLATE("Erase counts the rows that there were, once each", Kind, SOK_EVERY_STORE) {
  const auto store = MakeStore<Kind>();
  REQUIRE(Put(*store, Keys<Kind>(0, 100), 1.0f).ok());
  const auto keys = Repeated(Keys<Kind>(50, 150), 2);
  CHECK(Value(store->Erase(keys.data(), keys.size(), ThreadedFor)) == 50);
  CHECK(Value(store->Erase(keys.data(), keys.size(), ThreadedFor)) == 0);
  CHECK(Contents(*store) == Uniform<Kind>(Keys<Kind>(0, 50), 1.0f));
}

TEST_CASE_TEMPLATE("who has seen the rows that are there may erase them", Kind, SOK_EVERY_STORE) {
  const auto store = MakeStore<Kind>();
  const auto keys = Keys<Kind>(0, 10);
  REQUIRE(Put(*store, keys, 1.0f).ok());
  const auto erased =
      Value(store->EraseUnlessReplaced(store->replacements(), keys.data(), 4, SerialFor));
  CHECK(erased == std::optional<uint64_t>(4));
  CHECK(store->size() == 6);
}

TEST_CASE_TEMPLATE("Replace leaves the new rows alone, with the new layout", Kind,
                   SOK_EVERY_STORE) {
  constexpr int kDim = Kind::kDim;
  for (const ParallelFor& parallel_for : kThreads) {
    const auto store = MakeStore<Kind>({{"momentum", kDim, 0.0f}});
    REQUIRE(Put(*store, Keys<Kind>(0, 200), 1.0f).ok());
    const auto layout = LayoutWith<Kind>({{"accumulator", 2, 0.5f}});
    TableState state;
    state.rule = "adagrad";
    state.slots = layout->slots();
    state.steps = 9;
    const auto keys = Keys<Kind>(150, 300);
    const auto write = [](size_t i, RowRef row, bool is_new) {
      const bool is_at_start = row.embedding[kDim] == 0.5f && row.embedding[kDim + 1] == 0.5f;
      std::fill_n(row.embedding, kDim, is_new && is_at_start ? static_cast<float>(i) : -1.0f);
      row.embedding[kDim + 1] = 4.0f;
      *row.meta = RowMeta{3, 5};
    };
    REQUIRE(
        store->Replace(layout, state, keys.data(), keys.size(), kNow, write, parallel_for).ok());
    CHECK(store->layout()->SameShape(*layout));
    Rows expected;
    for (size_t i = 0; i < keys.size(); ++i) {
      std::vector<float> row(kDim, static_cast<float>(i));
      row.insert(row.end(), {0.5f, 4.0f});
      expected[keys[i]] = row;
    }
    CHECK(Contents(*store) == expected);
    RowMeta meta{};
    uint8_t exists = 0;
    REQUIRE(store->ReadMeta(keys.data(), 1, &meta, &exists, SerialFor).ok());
    CHECK(meta.update_num == 3);
    CHECK(meta.update_time == 5);
  }
}

TEST_CASE_TEMPLATE("a cleared store holds nothing and can be used", Kind, SOK_EVERY_STORE) {
  const auto store = MakeStore<Kind>();
  REQUIRE(Put(*store, Keys<Kind>(0, kKeys), 1.0f).ok());
  REQUIRE(store->Replace(store->layout(), {}, nullptr, 0, 0, nullptr, SerialFor).ok());
  CHECK(Contents(*store).empty());
  REQUIRE(Put(*store, Keys<Kind>(5, 6), {3.0f}).ok());
  CHECK(Contents(*store) == Uniform<Kind>({Kind::KeyAt(5)}, 3.0f));
}

TEST_CASE_TEMPLATE("another layout keeps embeddings and starts slots; the same shape keeps both",
                   Kind, SOK_EVERY_STORE) {
  constexpr int kDim = Kind::kDim;
  const auto store = MakeStore<Kind>();
  const auto keys = Keys<Kind>(0, 200);
  REQUIRE(Put(*store, keys, 1.5f).ok());
  Rows expected = Uniform<Kind>(keys, 1.5f);
  for (auto& [key, row] : expected) row.insert(row.end(), 2, 0.5f);

  const auto relay = [&](float start) {
    const auto layout = LayoutWith<Kind>({{"accumulator", 2, start}});
    return Value(store->Relayout(layout, {"", layout->slots(), 0}, ThreadedFor));
  };
  CHECK(relay(0.5f));
  CHECK(Contents(*store) == expected);
  CHECK(store->IsLaidOut({{"accumulator", 2, 0.5f}}));
  CHECK_FALSE(store->IsLaidOut({{"accumulator", 2, 8.0f}}));
  CHECK_FALSE(store->IsLaidOut({}));
  // Rows that do not change in the first layout may start from the slots of the second one.
  const auto changed = Keys<Kind>(0, 100);
  REQUIRE(Put(*store, changed, 2.5f).ok());
  CHECK_FALSE(relay(8.0f));
  const Rows found = Contents(*store);
  CHECK(found.size() == 200);
  for (const Key key : changed) {
    std::vector<float> row(kDim, 2.5f);
    row.insert(row.end(), 2, 0.5f);
    CHECK(found.at(key) == row);
  }
  for (const Key key : Keys<Kind>(100, 200)) CHECK(found.at(key)[0] == 1.5f);

  const Key fresh = Kind::KeyAt(300);
  const auto starts_at_8 = [](size_t, RowRef row, bool) { CHECK(row.embedding[kDim] == 8.0f); };
  REQUIRE(store->Upsert(&fresh, 1, 0, kNow, starts_at_8, SerialFor).ok());
}

TEST_CASE_TEMPLATE("ranges of a frozen view have its rows in one order", Kind, SOK_EVERY_STORE) {
  const auto store = MakeStore<Kind>();
  const auto keys = Keys<Kind>(0, 250);
  REQUIRE(Put(*store, keys, 1.0f).ok());
  std::vector<Key> order;
  const auto note = [&](std::vector<Key>* into) {
    return [into](Key key, RowRef row) {
      CHECK(row.embedding[0] == 1.0f);
      into->push_back(key);
    };
  };
  REQUIRE(Value(store->Freeze())->ForEach(note(&order)).ok());
  REQUIRE(order.size() == keys.size());
  for (uint64_t size : {1, 7, 100, 250, 1000}) {
    std::vector<Key> seen;
    for (uint64_t begin = 0; begin < order.size(); begin += size) {
      // Each range is one of a view of its own.
      REQUIRE(Value(store->Freeze())->ForEachIn(begin, begin + size, note(&seen)).ok());
    }
    CHECK(seen == order);
  }
  std::vector<Key> none;
  REQUIRE(Value(store->Freeze())->ForEachIn(250, 300, note(&none)).ok());
  REQUIRE(Value(store->Freeze())->ForEachIn(9, 9, note(&none)).ok());
  CHECK(none.empty());
}

TEST_CASE_TEMPLATE("nothing changes what a frozen view shows, and writers go on after it", Kind,
                   SOK_EVERY_STORE) {
  const auto store = MakeStore<Kind>();
  const auto keys = Keys<Kind>(0, 100);
  REQUIRE(Put(*store, keys, 1.0f).ok());
  auto frozen = Value(store->Freeze());
  const auto both = Keys<Kind>(50, 150);
  bool is_written = false;
  std::thread writer([&] { is_written = Put(*store, both, 2.0f).ok(); });
  for (int round = 0; round < 3; ++round) {
    Rows seen;
    const Status status = frozen->ForEach([&](Key key, RowRef row) {
      seen.emplace(key, std::vector<float>(row.embedding, row.embedding + Kind::kDim));
    });
    CHECK(status.ok());
    CHECK(seen == Uniform<Kind>(keys, 1.0f));
    CHECK(frozen->size() == 100);
    std::this_thread::yield();
  }
  frozen.reset();
  writer.join();
  CHECK(is_written);
  Rows expected = Uniform<Kind>(Keys<Kind>(0, 50), 1.0f);
  expected.merge(Uniform<Kind>(both, 2.0f));
  CHECK(Contents(*store) == expected);
}

TEST_CASE_TEMPLATE("keys are always in the same shard, whatever else is there", Kind,
                   SOK_EVERY_STORE) {
  const auto store = MakeStore<Kind>();
  const auto keys = Keys<Kind>(0, 300);
  const auto shards_of = [&](const std::vector<Key>& some) {
    ShardPartition partition;
    store->Partition({{some.data(), some.size()}}, ThreadedFor, &partition);
    CHECK(partition.total() == some.size());
    std::unordered_map<Key, uint32_t> shards;
    for (uint32_t shard = 0; shard < partition.shards(); ++shard) {
      for (size_t i = 0; i < partition.size(shard); ++i) {
        const ShardEntry& entry = partition.begin(shard)[i];
        CHECK(entry.key == some[entry.position]);
        CHECK(shards.emplace(entry.key, shard).first->second == shard);
      }
    }
    return shards;
  };
  const auto before = shards_of(Repeated(keys, 2));
  REQUIRE(Put(*store, keys, 1.0f).ok());
  for (const auto& [key, shard] : shards_of(Keys<Kind>(100, 200))) CHECK(before.at(key) == shard);
}

}  // namespace sok
