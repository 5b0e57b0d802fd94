#include "core/disk/frozen_spill.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/base/test_folder.h"
#include "core/base/test_result.h"
#include "core/base/test_threads.h"

namespace sok {
namespace {

constexpr size_t kFloats = 20;  // 9,362 rows a segment
constexpr size_t kRowBytes = kFloats * sizeof(float);

// Appends rows, each of which has a number in its floats, to a spill and to a map of the dirty
// ones.
class Program {
 public:
  Program(SpillFile* file, std::mt19937_64* rng) : spill(file, kRowBytes), rng_(*rng) {}

  void Append(size_t rows, bool ordered) {
    std::map<Key, bool> keys;
    for (size_t i = 0; i < rows; ++i) keys[rng_() % kKeys * kSpread] = rng_() % 8 != 0;
    std::vector<Spill::Row> batch;
    std::vector<std::vector<float>> floats;
    floats.reserve(keys.size());
    for (const auto& [key, dirty] : keys) {
      const float value = static_cast<float>(++last_);
      floats.emplace_back(kFloats, value);
      batch.push_back(
          {{key, RowHeader{}, 0}, reinterpret_cast<const char*>(floats.back().data()), dirty});
      if (dirty) {
        model[key] = value;
      } else {
        model.erase(key);
      }
    }
    if (!ordered) std::shuffle(batch.begin(), batch.end(), rng_);
    REQUIRE(spill.Reserve(batch.size()));
    REQUIRE(spill.Append(batch).ok());
  }
  void Remove(size_t rows) {
    for (size_t i = 0; i < rows; ++i) {
      const Key key = rng_() % kKeys * kSpread;
      spill.Remove(key);
      model.erase(key);
    }
  }

  Spill spill;
  std::map<Key, float> model;

 private:
  static constexpr uint64_t kKeys = 200'000;
  static constexpr uint64_t kSpread = ~uint64_t{0} / kKeys;  // the greatest keys too

  std::mt19937_64& rng_;
  uint64_t last_ = 0;
};

std::map<Key, float> RowsOf(const FrozenSpill& frozen) {
  std::map<Key, float> rows;
  bool right = true;
  const Status status =
      frozen.ForEach([&](Key key, const RowHeader&, std::string_view values, bool) {
        float floats[kFloats];
        right = right && (rows.empty() || key > rows.rbegin()->first) && values.size() == kRowBytes;
        std::memcpy(floats, values.data(), kRowBytes);
        right = right && std::count(floats, floats + kFloats, floats[0]) == kFloats;
        rows.emplace_hint(rows.end(), key, floats[0]);
        return Status();
      });
  REQUIRE(status.ok());
  REQUIRE(right);
  return rows;
}

}  // namespace

TEST_CASE("frozen rows come in the order of their keys, whatever order they were written in") {
  std::mt19937_64 rng(TestSeed());
  const TestFolder folder;
  int turn = 0;
  for (const int unordered : {0, 1, 4}) {  // of four batches
    for (const size_t memory : {size_t{48} << 20, size_t{1} << 20, size_t{100} << 10}) {
      if (turn++ % 2 == 1 && !LongTests()) continue;
      CAPTURE(unordered);
      CAPTURE(memory);
      const auto file = Value(SpillFile::Open(folder / ".", 1 << 20));
      Program program(file.get(), &rng);
      for (int i = 0; i < 12; ++i) {
        program.Append(rng() % 2 == 0 ? rng() % 200 : rng() % 30'000, i % 4 >= unordered);
        if (rng() % 4 == 0) program.Remove(5'000);
      }
      const std::map<Key, float> expected = program.model;
      FrozenSpill frozen(file.get(), kRowBytes, memory);
      frozen.Add(program.spill.Freeze());
      const uint64_t bytes = file->bytes();
      REQUIRE(RowsOf(frozen) == expected);
      // Newer versions, and rows that go, change nothing of what is frozen.
      program.Append(40'000, /*ordered=*/true);
      program.Remove(20'000);
      REQUIRE(RowsOf(frozen) == expected);
      // The segments of sorted parts are given back.
      if (unordered == 4 && memory < (size_t{48} << 20)) CHECK(file->bytes() > bytes);
      program.spill.Thaw(/*dirty=*/false);
      program.spill.Clear();
      CHECK(file->rows() == 0);
    }
  }
}

TEST_CASE("a visitor's error ends the visit of frozen rows, and gives what was written back") {
  std::mt19937_64 rng(TestSeed());
  const TestFolder folder;
  const auto file = Value(SpillFile::Open(folder / ".", 1 << 20));
  Program program(file.get(), &rng);
  for (int i = 0; i < 8; ++i) program.Append(20'000, i % 2 == 0);
  FrozenSpill frozen(file.get(), kRowBytes, size_t{1} << 20);
  frozen.Add(program.spill.Freeze());
  uint64_t bytes = 0;
  for (int i = 0; i < 3; ++i) {
    size_t left = 1'000;
    const Status status = frozen.ForEach([&](Key, const RowHeader&, std::string_view, bool) {
      return left-- > 0 ? Status() : Status(Code::kInternal, "planted");
    });
    CHECK(status.message() == "planted");
    if (i == 0) bytes = file->bytes();
    CHECK(file->bytes() == bytes);
  }
  REQUIRE(RowsOf(frozen) == program.model);
}

}  // namespace sok
