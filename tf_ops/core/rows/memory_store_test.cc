// What every RowStore promises, held against each of them.
#include "core/rows/memory_store.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <unordered_map>
#include <vector>

#include "core/base/test_result.h"
#include "core/base/test_threads.h"

namespace sok {
namespace {

constexpr int kDim = 6;
constexpr uint32_t kNow = 1234;
constexpr uint64_t kKeys = 600;  // of a universe that both stores can hold

using Layout = std::shared_ptr<const RowLayout>;
using Rows = std::unordered_map<Key, std::vector<float>>;

Layout LayoutWith(std::vector<Slot> slots = {}) {
  return std::make_shared<const RowLayout>(kDim, std::move(slots));
}

struct HashStore {
  static std::unique_ptr<RowStore> Make(Layout layout = LayoutWith()) {
    return MakeHashStore(std::move(layout));
  }
  // The ends of the range, and everything between.
  static Key KeyAt(uint64_t i) { return i % 2 == 0 ? i / 2 * 0x1000193 : ~(i / 2); }
};

struct DirectStore {
  static std::unique_ptr<RowStore> Make(Layout layout = LayoutWith()) {
    IndexConfig config;
    config.capacity = kKeys;
    config.owners = 3;
    config.owner = 2;
    return MakeDirectStore(std::move(layout), config);
  }
  static Key KeyAt(uint64_t i) { return 3 * i + 2; }
};

template <typename Store>
std::vector<Key> Keys(uint64_t begin, uint64_t end) {
  std::vector<Key> keys;
  for (uint64_t i = begin; i < end; ++i) keys.push_back(Store::KeyAt(i));
  return keys;
}

std::vector<float> Uniform(float x) { return std::vector<float>(kDim, x); }

// Sets the embedding of keys[i] to values[i] throughout.
Status Put(RowStore& store, const std::vector<Key>& keys, const std::vector<float>& values,
           uint64_t max_rows = 0, const ParallelFor& parallel_for = SerialFor) {
  const auto write = [&](size_t i, RowView row, bool) {
    std::fill_n(row.embedding, kDim, values[i]);
  };
  return store.Upsert(keys.data(), keys.size(), max_rows, kNow, write, parallel_for);
}

Rows Contents(RowStore& store) {
  Rows rows;
  const auto frozen = Value(store.Freeze());
  const Status status = frozen->ForEach([&](Key key, RowView row) {
    REQUIRE(rows.emplace(key, std::vector<float>(row.embedding, row.embedding + kDim)).second);
  });
  REQUIRE(status.ok());
  REQUIRE(frozen->size() == rows.size());
  REQUIRE(store.size() == rows.size());
  return rows;
}

TEST_CASE_TEMPLATE("keys without a row are filled in, and their positions are told", Store,
                   HashStore, DirectStore) {
  const auto store = Store::Make();
  const auto keys = Keys<Store>(0, 300);
  std::vector<Key> even;
  for (size_t i = 0; i < keys.size(); i += 2) even.push_back(keys[i]);
  REQUIRE(Put(*store, even, std::vector<float>(even.size(), 1.0f)).ok());
  const auto fill = [](Key, float* embedding) { std::fill_n(embedding, kDim, -1.0f); };
  for (const ParallelFor& parallel_for : {ParallelFor(SerialFor), ParallelFor(ThreadedFor)}) {
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

TEST_CASE_TEMPLATE("Upsert visits equal keys in order, and only the first as new", Store, HashStore,
                   DirectStore) {
  for (const ParallelFor& parallel_for : {ParallelFor(SerialFor), ParallelFor(ThreadedFor)}) {
    const auto store = Store::Make(LayoutWith({{"accumulator", 2, 0.5f}}));
    std::vector<Key> keys;
    for (int round = 0; round < 5; ++round) {
      for (Key key : Keys<Store>(0, 50)) keys.push_back(key);
    }
    std::vector<std::vector<size_t>> visits(50);
    std::vector<int> new_visits(50);
    const auto write = [&](size_t i, RowView row, bool is_new) {
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

TEST_CASE_TEMPLATE("a row made where one was erased starts anew", Store, HashStore, DirectStore) {
  const auto store = Store::Make(LayoutWith({{"accumulator", 1, 0.5f}}));
  const Key key = Store::KeyAt(1);
  const auto spoil = [](size_t, RowView row, bool) {
    std::fill_n(row.embedding, kDim + 1, 9.0f);
    *row.meta = RowMeta{7, 7};
  };
  REQUIRE(store->Upsert(&key, 1, 0, kNow, spoil, SerialFor).ok());
  REQUIRE(Value(store->Erase(&key, 1, SerialFor)) == 1);
  const auto look = [](size_t, RowView row, bool is_new) {
    CHECK(is_new);
    CHECK(row.embedding[kDim] == 0.5f);
    CHECK(row.meta->update_num == 0);
    CHECK(row.meta->update_time == kNow);
  };
  REQUIRE(store->Upsert(&key, 1, 0, kNow, look, SerialFor).ok());
}

TEST_CASE_TEMPLATE("an Upsert beyond max_rows leaves the store as it was", Store, HashStore,
                   DirectStore) {
  const auto store = Store::Make();
  REQUIRE(Put(*store, Keys<Store>(0, 90), std::vector<float>(90, 1.0f), 100).ok());
  const Rows before = Contents(*store);
  const Status status = Put(*store, Keys<Store>(85, 101), std::vector<float>(16, 2.0f), 100);
  CHECK(status.code() == Code::kResourceExhausted);
  CHECK(status.message() ==
        "the table is full: it holds 90 of at most 100 rows, and this call brings 11 new keys; "
        "raise the limit or remove keys");
  CHECK(Contents(*store) == before);
}

TEST_CASE_TEMPLATE("max_rows counts distinct new keys, not the entries of the call", Store,
                   HashStore, DirectStore) {
  const auto store = Store::Make();
  auto keys = Keys<Store>(0, 100);
  keys.insert(keys.end(), keys.begin(), keys.end());
  REQUIRE(Put(*store, keys, std::vector<float>(200, 1.0f), 100, ThreadedFor).ok());
  CHECK(Put(*store, keys, std::vector<float>(200, 2.0f), 100, ThreadedFor).ok());
  CHECK(store->size() == 100);
}

TEST_CASE_TEMPLATE("Erase counts the rows that there were, once each", Store, HashStore,
                   DirectStore) {
  const auto store = Store::Make();
  REQUIRE(Put(*store, Keys<Store>(0, 100), std::vector<float>(100, 1.0f)).ok());
  auto keys = Keys<Store>(50, 150);
  keys.insert(keys.end(), keys.begin(), keys.end());
  CHECK(Value(store->Erase(keys.data(), keys.size(), ThreadedFor)) == 50);
  CHECK(Value(store->Erase(keys.data(), keys.size(), ThreadedFor)) == 0);
  const Rows rows = Contents(*store);
  CHECK(rows.size() == 50);
  for (Key key : Keys<Store>(0, 50)) CHECK(rows.count(key) == 1);
}

TEST_CASE_TEMPLATE("a cleared store holds nothing, gives its memory back and can be used", Store,
                   HashStore, DirectStore) {
  const auto store = Store::Make(LayoutWith({{"momentum", kDim, 0.0f}}));
  REQUIRE(Put(*store, Keys<Store>(0, kKeys), std::vector<float>(kKeys, 1.0f)).ok());
  CHECK(store->row_bytes() >= kKeys * 2 * kDim * sizeof(float));
  REQUIRE(store->Replace(store->layout(), {}, nullptr, 0, 0, nullptr, SerialFor).ok());
  CHECK(Contents(*store).empty());
  CHECK(store->row_bytes() == 0);
  CHECK(store->layout()->slot_floats() == kDim);
  REQUIRE(Put(*store, Keys<Store>(5, 6), {3.0f}).ok());
  CHECK(Contents(*store) == Rows{{Store::KeyAt(5), Uniform(3.0f)}});
}

TEST_CASE_TEMPLATE("another layout keeps embeddings and starts slots; the same shape keeps both",
                   Store, HashStore, DirectStore) {
  const auto store = Store::Make();
  REQUIRE(Put(*store, Keys<Store>(0, 200), std::vector<float>(200, 1.5f)).ok());
  const Rows before = Contents(*store);
  const auto check_slots = [&](float expected) {
    const Status status = Value(store->Freeze())->ForEach([&](Key, RowView row) {
      for (int j = 0; j < 2; ++j) REQUIRE(row.embedding[kDim + j] == expected);
    });
    REQUIRE(status.ok());
  };

  const auto relaid = store->Relay(LayoutWith({{"accumulator", 2, 0.5f}}), ThreadedFor);
  REQUIRE(relaid.ok());
  CHECK(relaid.value());
  check_slots(0.5f);
  CHECK(Contents(*store) == before);

  const auto kept = store->Relay(LayoutWith({{"accumulator", 2, 8.0f}}), ThreadedFor);
  REQUIRE(kept.ok());
  CHECK_FALSE(kept.value());
  check_slots(0.5f);
  CHECK(Contents(*store) == before);

  const Key fresh = Store::KeyAt(300);
  const auto starts_at_8 = [](size_t, RowView row, bool) { CHECK(row.embedding[kDim] == 8.0f); };
  REQUIRE(store->Upsert(&fresh, 1, 0, kNow, starts_at_8, SerialFor).ok());
}

}  // namespace
}  // namespace sok
