#include "core/disk/spill.h"

#include <doctest/doctest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/base/test_folder.h"
#include "core/base/test_result.h"
#include "core/base/test_threads.h"

namespace sok {
namespace {

struct Model {
  std::vector<float> floats;
  uint32_t update_num;
  bool dirty;
};

// Compares everything that a spill holds with the model.
void Check(const Spill& spill, const std::map<Key, Model>& model) {
  size_t seen = 0;
  spill.ForEachPlace([&](Key key, uint32_t) {
    REQUIRE(model.count(key) == 1);
    ++seen;
  });
  REQUIRE(seen == model.size());
  size_t dirty = 0;
  std::vector<Key> keys;
  for (const auto& [key, row] : model) {
    keys.push_back(key);
    dirty += row.dirty;
    const uint32_t place = spill.Find(key);
    REQUIRE(place != Spill::kNone);
    REQUIRE(spill.dirty(place) == row.dirty);
    Spill::Head head;
    std::vector<float> floats(spill.row_bytes() / sizeof(float));
    REQUIRE(spill.Read(place, &head, reinterpret_cast<char*>(floats.data())).ok());
    REQUIRE(head.key == key);
    REQUIRE(head.header.meta.update_num == row.update_num);
    REQUIRE(floats == row.floats);
  }
  REQUIRE(spill.dirty() == dirty);
  std::vector<uint32_t> places;
  spill.FindAll(keys, &places);
  for (size_t i = 0; i < keys.size(); ++i) REQUIRE(places[i] == spill.Find(keys[i]));
}

}  // namespace

TEST_CASE(
    "a spill holds the newest version of each row, through replacing, removing and emptying") {
  std::mt19937_64 rng(TestSeed());
  constexpr size_t kFloats = 200;  // 1,200 rows a segment
  const TestFolder folder;
  const auto file = Value(SpillFile::Open(folder / ".", 1 << 20));
  Spill spill(file.get(), kFloats * sizeof(float));
  std::map<Key, Model> model;
  uint32_t number = 0;
  for (int step = 0; step < 120; ++step) {
    std::map<Key, Model> batch;
    for (size_t i = rng() % 400; i-- > 0;) {
      Model row{std::vector<float>(kFloats), ++number, rng() % 2 == 0};
      for (float& x : row.floats) x = static_cast<float>(rng() % 1000);
      batch[rng() % 5000] = row;
    }
    std::vector<Spill::Row> rows;
    for (const auto& [key, row] : batch) {
      Spill::Head head{key, {}, false};
      head.header.meta.update_num = row.update_num;
      rows.push_back({head, reinterpret_cast<const char*>(row.floats.data()), row.dirty});
    }
    REQUIRE(spill.Reserve(rows.size()));
    REQUIRE(spill.Append(rows).ok());
    for (const auto& [key, row] : batch) model[key] = row;
    for (size_t i = rng() % 200; i-- > 0;) {
      const Key key = rng() % 5000;
      spill.Remove(key);
      model.erase(key);
    }
    if (step % 40 == 39) {
      spill.SetAllClean();
      for (auto& [key, row] : model) row.dirty = false;
    }
    if (step % 7 == 6) file->GiveBack();
    REQUIRE(file->rows() == model.size());
    if (step % 10 == 0) Check(spill, model);
  }
  Check(spill, model);
  // The file has at most twice the rows and a few segments: the log is emptied as it grows.
  const size_t row_bytes = sizeof(Spill::Head) + kFloats * sizeof(float);
  CHECK(file->bytes() <= 2 * 5000 * row_bytes + 6 * SpillFile::kSegmentBytes);
  spill.Clear();
  CHECK(file->rows() == 0);
}

TEST_CASE("the oldest segment of a spill goes with its rows, once the dirty ones are elsewhere") {
  constexpr size_t kFloats = 1000;  // about 260 rows a segment
  const TestFolder folder;
  const auto file = Value(SpillFile::Open(folder / ".", 1000));
  Spill spill(file.get(), kFloats * sizeof(float));
  const std::vector<char> values(kFloats * sizeof(float), 'x');
  const auto append = [&](Key first, size_t n) {
    std::vector<Spill::Row> rows;
    for (Key key = first; key < first + n; ++key) {
      rows.push_back({{key, {}, true}, values.data(), key % 2 == 0});
    }
    REQUIRE(spill.Reserve(n));
    REQUIRE(spill.Append(rows).ok());
  };
  append(0, 900);
  CHECK_FALSE(spill.Reserve(101));
  CHECK(file->rows() == 900);

  std::vector<Key> taken;
  const auto take = [&](const Spill::Head& head, const char*) {
    taken.push_back(head.key);
    return Status();
  };
  const auto refused =
      spill.DropOldest(take, [] { return Status(Code::kResourceExhausted, "the disk is full"); });
  CHECK_FALSE(refused.ok());
  CHECK(file->rows() == 900);

  taken.clear();
  REQUIRE(Value(spill.DropOldest(take, [] { return Status(); })));
  const uint64_t gone = 900 - file->rows();
  CHECK(gone > 200);
  CHECK(taken.size() == (gone + 1) / 2);
  for (Key key : taken) CHECK(key % 2 == 0);
  CHECK(spill.Find(0) == Spill::kNone);
  CHECK(spill.Find(899) != Spill::kNone);
  while (Value(spill.DropOldest(take, [] { return Status(); }))) {
  }
  CHECK(spill.Find(899) != Spill::kNone);  // it lies in the segment that is being filled
}

TEST_CASE("spills that share a file keep each to its part of the rows, and a little more") {
  const TestFolder folder;
  const auto file = Value(SpillFile::Open(folder / ".", 80'000));
  for (uint32_t number = 0; number < 8; ++number) {
    Spill spill(file.get(), 64, number, /*shards=*/8);
    CHECK(spill.Reserve(10'100));
    file->Unreserve(10'100);
    CHECK_FALSE(spill.Reserve(11'500));
    CHECK(file->rows() == 0);
  }
  Spill alone(file.get(), 64);
  CHECK(alone.Reserve(80'000));
  CHECK_FALSE(alone.Reserve(1));
}

TEST_CASE("rows too long for a segment are not spilled") {
  const TestFolder folder;
  const auto file = Value(SpillFile::Open(folder / ".", 1000));
  CHECK(Spill(file.get(), 4000).enabled());
  CHECK_FALSE(Spill(file.get(), 400000).enabled());
  CHECK_FALSE(Spill(nullptr, 4000).enabled());
}

}  // namespace sok
