#include "core/rows/row_slabs.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "core/base/test_threads.h"

namespace sok {
namespace {

std::shared_ptr<const RowLayout> Layout(int dim, std::vector<Slot> slots = {}) {
  return std::make_shared<const RowLayout>(dim, std::move(slots));
}

RowSlabs MakeSlabs(std::shared_ptr<const RowLayout> layout) {
  return RowSlabs(std::move(layout), std::make_shared<Arena>());
}

std::vector<uint32_t> AllocateMany(RowSlabs& rows, uint32_t n) {
  REQUIRE(rows.Reserve(n).ok());
  std::vector<uint32_t> numbers;
  for (uint32_t i = 0; i < n; ++i) numbers.push_back(rows.Allocate());
  return numbers;
}

// Writes numbers into the row that no other row and no other place of it holds.
void Mark(RowSlabs& rows, uint32_t row, int floats) {
  for (int j = 0; j < floats; ++j) rows.row(row)[j] = static_cast<float>(row * 16 + j);
  *rows.meta(row) = RowMeta{row + 1, 2 * row};
}

void CheckMarked(const RowSlabs& rows, uint32_t row, int floats) {
  bool as_marked = true;
  for (int j = 0; j < floats; ++j) {
    as_marked &= rows.row(row)[j] == static_cast<float>(row * 16 + j);
  }
  const RowMeta* meta = rows.meta(row);
  as_marked &= meta->update_num == row + 1 && meta->update_time == 2 * row;
  INFO("row ", row);
  REQUIRE(as_marked);
}

TEST_CASE("a layout lines up the embedding and the slots, and rounds up to 16 bytes") {
  const RowLayout layout(5, {{"momentum", 5, 0.0f}, {"accumulator", 1, 0.5f}});
  CHECK(layout.dim() == 5);
  CHECK(layout.slot_floats() == 6);
  CHECK(layout.slot_start() == std::vector<float>{0, 0, 0, 0, 0, 0.5f});
  CHECK(layout.stride() == 12);
  CHECK(RowLayout(16, {}).stride() == 16);
  CHECK(RowLayout(1, {}).stride() == 4);
}

TEST_CASE("slots start with the numbers that a row in fewer bytes has") {
  const RowForm form = {RowType::kInt8, RowType::kBFloat16};
  const RowLayout layout(5, {{"accumulator", 3, 0.1f}}, form);
  std::vector<float> row(8);
  std::vector<char> values(layout.value_bytes());
  std::copy(layout.slot_bytes().begin(), layout.slot_bytes().end(),
            values.begin() + static_cast<std::ptrdiff_t>(layout.embedding_bytes()));
  layout.Decode(values.data(), row.data());
  CHECK(row[5] == 0.10009765625f);  // the bfloat16 next to 0.1
  CHECK(layout.slot_start() == std::vector<float>(row.begin() + 5, row.end()));
}

TEST_CASE("layouts have the same shape if dim, names and widths of the slots agree") {
  const RowLayout layout(4, {{"accumulator", 4, 0.1f}});
  CHECK(layout.SameShape(RowLayout(4, {{"accumulator", 4, 0.7f}})));
  CHECK_FALSE(layout.SameShape(RowLayout(4, {{"velocity", 4, 0.1f}})));
  CHECK_FALSE(layout.SameShape(RowLayout(4, {{"accumulator", 1, 0.1f}})));
  CHECK_FALSE(layout.SameShape(RowLayout(5, {{"accumulator", 4, 0.1f}})));
  CHECK_FALSE(layout.SameShape(RowLayout(4, {})));
  CHECK_FALSE(RowLayout(4, {}).SameShape(layout));
}

TEST_CASE("rows stay where they are as slabs are added") {
  RowSlabs rows = MakeSlabs(Layout(7));
  std::vector<float*> places;
  std::vector<RowMeta*> metas;
  for (uint32_t row : AllocateMany(rows, 600)) {
    places.push_back(rows.row(row));
    metas.push_back(rows.meta(row));
    Mark(rows, row, 7);
  }
  AllocateMany(rows, 100000);
  for (uint32_t row = 0; row < 600; ++row) {
    REQUIRE(rows.row(row) == places[row]);
    REQUIRE(rows.meta(row) == metas[row]);
    CheckMarked(rows, row, 7);
  }
}

TEST_CASE("no row overlaps another one or a meta, over many slabs and into huge pages") {
  constexpr int kFloats = 5 + 5 + 1;
  RowSlabs rows = MakeSlabs(Layout(5, {{"momentum", 5, 0.0f}, {"accumulator", 1, 0.0f}}));
  constexpr uint32_t kRows = Arena::kHugeFrom / (kFloats * sizeof(float)) + 50000;
  const std::vector<uint32_t> numbers = AllocateMany(rows, kRows);
  CHECK(std::set<uint32_t>(numbers.begin(), numbers.end()).size() == kRows);
  for (uint32_t row : numbers) Mark(rows, row, kFloats);
  for (uint32_t row : numbers) CheckMarked(rows, row, kFloats);
}

TEST_CASE("embeddings of 16 floats, and of multiples, keep to cache lines") {
  for (int dim : {16, 32, 64}) {
    RowSlabs rows = MakeSlabs(Layout(dim));
    for (uint32_t row : AllocateMany(rows, 2000)) {
      REQUIRE(reinterpret_cast<uintptr_t>(rows.row(row)) % 64 == 0);
    }
  }
}

TEST_CASE("rows that were freed are handed out again before new ones") {
  RowSlabs rows = MakeSlabs(Layout(4));
  const std::vector<uint32_t> first = AllocateMany(rows, 1000);
  const std::set<uint32_t> freed(first.begin() + 100, first.begin() + 400);
  for (uint32_t row : freed) rows.Free(row);
  const std::vector<uint32_t> second = AllocateMany(rows, 300);
  CHECK(std::set<uint32_t>(second.begin(), second.end()) == freed);
  for (uint32_t row : AllocateMany(rows, 100)) {
    REQUIRE(row >= 1000);
    REQUIRE(row < 1100);
  }
}

TEST_CASE("freed rows count towards a Reserve") {
  auto arena = std::make_shared<Arena>();
  RowSlabs rows(Layout(4), arena);
  const std::vector<uint32_t> numbers = AllocateMany(rows, 512);
  const size_t bytes = arena->bytes_used();
  for (uint32_t row : numbers) rows.Free(row);
  AllocateMany(rows, 512);
  CHECK(arena->bytes_used() == bytes);
}

TEST_CASE("a slab whose rows have all gone is given back, and the rows of others stay in place") {
  auto arena = std::make_shared<Arena>();
  RowSlabs rows(Layout(4), arena);
  std::vector<uint32_t> numbers = AllocateMany(rows, 512 * 10);
  const size_t slab = arena->bytes_used() / 10;
  for (uint32_t row : numbers) Mark(rows, row, 4);
  std::vector<float*> places;
  for (uint32_t row : numbers) places.push_back(rows.row(row));
  for (uint32_t row = 512 * 2; row < 512 * 7; ++row) rows.Free(row);
  CHECK(arena->bytes_used() == 5 * slab);
  for (uint32_t row = 0; row < 511; ++row) rows.Free(row);
  CHECK(arena->bytes_used() == 5 * slab);  // one row holds it
  rows.Free(511);
  CHECK(arena->bytes_used() == 4 * slab);
  for (uint32_t row : numbers) {
    if (row < 512 || (row >= 512 * 2 && row < 512 * 7)) continue;
    REQUIRE(rows.row(row) == places[row]);
    CheckMarked(rows, row, 4);
  }
  // The numbers of freed rows are used again.
  numbers = AllocateMany(rows, 512 * 6);
  CHECK(std::set<uint32_t>(numbers.begin(), numbers.end()).size() == 512 * 6);
  CHECK(*std::max_element(numbers.begin(), numbers.end()) < 512 * 7);
  CHECK(arena->bytes_used() == 10 * slab);
}

TEST_CASE("rows come and go at random, and no two in use share a number or a place") {
  std::mt19937_64 rng(TestSeed());
  auto arena = std::make_shared<Arena>();
  RowSlabs rows(Layout(3), arena);
  std::vector<uint32_t> used;
  for (int phase = 0; phase < 8; ++phase) {
    for (int i = 0; i < 4000; ++i) {
      if (rng() % 100 < (phase % 2 == 0 ? 85 : 15)) {
        REQUIRE(rows.Reserve(1 + rng() % 3).ok());
        used.push_back(rows.Allocate());
        Mark(rows, used.back(), 3);
      } else if (!used.empty()) {
        std::swap(used[rng() % used.size()], used.back());
        rows.Free(used.back());
        used.pop_back();
      }
    }
    REQUIRE(std::set<uint32_t>(used.begin(), used.end()).size() == used.size());
    for (uint32_t row : used) CheckMarked(rows, row, 3);
    const Result<RowSlabs> relaid = rows.WithLayout(Layout(3), std::make_shared<Arena>());
    REQUIRE(relaid.ok());
    for (uint32_t row : used) CheckMarked(relaid.value(), row, 3);
  }
  for (uint32_t row : used) rows.Free(row);
  CHECK(arena->bytes_used() == 0);
}

TEST_CASE("pages of a slab that no row has come to are told, and count no more once one has") {
  auto arena = std::make_shared<Arena>();
  RowSlabs rows(Layout(16), arena);  // 64 bytes: 32 KiB and 4 KiB of metas a slab
  REQUIRE(rows.Reserve(1).ok());
  CHECK(rows.untouched_bytes() <= arena->resident_bytes());
  CHECK(rows.untouched_bytes() >= arena->resident_bytes() - 3 * PageBuffer(1, false).page_bytes());
  size_t before = rows.untouched_bytes();
  for (uint32_t row : AllocateMany(rows, 512)) {
    (void)row;
    REQUIRE(rows.untouched_bytes() <= before);
    before = rows.untouched_bytes();
  }
  CHECK(before == 0);
}

TEST_CASE("a Reserve of more rows than numbers is an error that takes no memory") {
  auto arena = std::make_shared<Arena>();
  RowSlabs rows(Layout(4), arena);
  CHECK(rows.Reserve(UINT32_MAX).code() == Code::kResourceExhausted);
  CHECK(arena->bytes_used() == 0);
}

TEST_CASE("relaid rows keep embedding, meta and number, and start their new slots") {
  RowSlabs rows = MakeSlabs(Layout(3, {{"momentum", 3, 0.0f}}));
  const std::vector<uint32_t> numbers = AllocateMany(rows, 1500);
  for (uint32_t row : numbers) Mark(rows, row, 6);
  const auto layout = Layout(3, {{"accumulator", 3, 0.25f}, {"linear", 1, -2.0f}});
  const Result<RowSlabs> relaid = rows.WithLayout(layout, std::make_shared<Arena>());
  REQUIRE(relaid.ok());
  CHECK(relaid.value().layout().SameShape(*layout));
  for (uint32_t row : numbers) {
    CheckMarked(relaid.value(), row, 3);
    const float* slots = relaid.value().row(row) + 3;
    REQUIRE(std::vector<float>(slots, slots + 4) == std::vector<float>{0.25f, 0.25f, 0.25f, -2.0f});
    CheckMarked(rows, row, 6);
  }
}

TEST_CASE("relaid rows know which of their numbers are free") {
  RowSlabs rows = MakeSlabs(Layout(3));
  AllocateMany(rows, 10);
  rows.Free(4);
  rows.Free(7);
  Result<RowSlabs> relaid =
      rows.WithLayout(Layout(3, {{"momentum", 3, 0.0f}}), std::make_shared<Arena>());
  REQUIRE(relaid.ok());
  const std::vector<uint32_t> numbers = AllocateMany(relaid.value(), 3);
  CHECK(std::set<uint32_t>(numbers.begin(), numbers.end()) == std::set<uint32_t>{4, 7, 10});
}

}  // namespace
}  // namespace sok
