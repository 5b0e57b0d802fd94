#include "core/rows/shard_marks.h"

#include <doctest/doctest.h>

#include <memory>
#include <utility>
#include <vector>

namespace sok {
namespace {

// Rows 0 to n, of one float each.
RowSlabs MakeRows(uint32_t n) {
  RowSlabs rows(std::make_shared<RowLayout>(1, std::vector<Slot>()), std::make_shared<Arena>());
  REQUIRE(rows.Reserve(n).ok());
  for (uint32_t i = 0; i < n; ++i) rows.Allocate();
  return rows;
}

void ChangeFirst(uint32_t n, const RowSlabs& rows, ShardMarks* marks) {
  std::vector<uint32_t> numbers(n);
  for (uint32_t i = 0; i < n; ++i) numbers[i] = i;
  marks->ChangingMany(
      numbers.data(), n, [](size_t i) { return Key{1000 + i}; }, rows);
}

TEST_CASE("changed rows are listed with their keys while they are few") {
  const RowSlabs rows = MakeRows(8192);
  ShardMarks marks;
  marks.StartNoting(0, rows);
  ChangeFirst(1000, rows, &marks);
  ChangeFirst(1000, rows, &marks);
  REQUIRE(marks.changes(0, rows).is_listed);
  REQUIRE(marks.changes(0, rows).listed.size() == 1000);
  CHECK(marks.changes(0, rows).listed[7].key == 1007);
  CHECK(marks.changes(0, rows).listed[7].row == 7);
  ChangeFirst(2000, rows, &marks);
  CHECK_FALSE(marks.changes(0, rows).is_listed);
  CHECK(marks.changes(0, rows).listed.empty());
  CHECK(marks.changes(0, rows).rows.Count() == 2000);
}

TEST_CASE("changes that are put back again and again are listed once") {
  const RowSlabs rows = MakeRows(8192);
  ShardMarks marks;
  marks.StartNoting(0, rows);
  ChangeFirst(1000, rows, &marks);
  for (int i = 0; i < 20; ++i) {
    ShardMarks::Changes before = marks.StartNoting(0, rows);
    ChangeFirst(600, rows, &marks);
    marks.PutBack(0, std::move(before), rows);
    REQUIRE(marks.changes(0, rows).is_listed);
    REQUIRE(marks.changes(0, rows).listed.size() == 1000);
  }
  ShardMarks::Changes before = marks.StartNoting(0, rows);
  marks.Changing(77, 5000, rows);
  for (uint32_t row = 6000; row < 6900; ++row) marks.Changing(row, row, rows);
  marks.PutBack(0, std::move(before), rows);
  CHECK_FALSE(marks.changes(0, rows).is_listed);  // together they are too many
  CHECK(marks.changes(0, rows).listed.empty());
  CHECK(marks.changes(0, rows).rows.Count() == 1901);
}

TEST_CASE("a row that has gone before its change is put back is listed for whoever gets it") {
  RowSlabs rows = MakeRows(512);
  ShardMarks marks;
  marks.StartNoting(0, rows);
  marks.Changing(1, 5, rows);
  ShardMarks::Changes before = marks.StartNoting(0, rows);
  marks.BeforeErase(1, 5, rows);
  rows.Free(5);
  marks.PutBack(0, std::move(before), rows);
  CHECK(marks.changes(0, rows).rows.Count() == 0);
  CHECK(rows.Allocate() == 5);
  marks.Changing(2, 5, rows);
  REQUIRE(!marks.changes(0, rows).listed.empty());
  CHECK(marks.changes(0, rows).listed.back().key == 2);
  CHECK(marks.changes(0, rows).removed == std::vector<Key>{1});
}

}  // namespace
}  // namespace sok
