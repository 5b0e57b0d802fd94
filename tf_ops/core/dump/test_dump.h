// Dumps for tests, of rows that may be anything.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/base/types.h"
#include "core/dump/dump_file.h"

namespace sok {

struct TestRow {
  Key key;
  uint32_t update_num, update_time;
  std::vector<uint32_t> bits;  // of the floats
  bool operator==(const TestRow& other) const {
    return key == other.key && update_num == other.update_num && update_time == other.update_time &&
           bits == other.bits;
  }
};

struct TestGroup {
  DumpGroup group;
  std::vector<TestRow> rows;
};

// Floats have random bits, including NaN, infinities and denormal numbers.
inline TestGroup RandomGroup(std::mt19937_64& random, DumpGroup group, size_t rows) {
  TestGroup made{std::move(group), {}};
  made.group.rows = rows;
  for (size_t i = 0; i < rows; ++i) {
    TestRow row{random(), static_cast<uint32_t>(random()), static_cast<uint32_t>(random()), {}};
    row.bits.resize(static_cast<size_t>(made.group.dim + made.group.slot_floats));
    for (uint32_t& bits : row.bits) bits = static_cast<uint32_t>(random());
    made.rows.push_back(std::move(row));
  }
  return made;
}

// Adds one row of a group of this dim: its floats are the embedding, then the slots.
inline Status AddRow(DumpWriter& writer, Key key, int64_t update_num, int64_t update_time,
                     const float* floats, int dim) {
  TableContents piece;
  piece.n = 1;
  piece.rows = {&key, floats, floats + dim, &update_num, &update_time};
  return writer.AddRows(piece);
}

inline Status WriteDump(const std::string& path, const std::vector<TestGroup>& groups) {
  auto writer = DumpWriter::Open(path);
  if (!writer.ok()) return writer.status();
  for (const TestGroup& group : groups) {
    if (Status s = writer.value()->BeginGroup(group.group); !s.ok()) return s;
    for (const TestRow& row : group.rows) {
      const Status s = AddRow(*writer.value(), row.key, row.update_num, row.update_time,
                              reinterpret_cast<const float*>(row.bits.data()), group.group.dim);
      if (!s.ok()) return s;
    }
  }
  return writer.value()->Finish();
}

// Open, then Verify.
inline Status CheckDump(const std::string& path) {
  const auto reader = DumpReader::Open(path);
  return reader.ok() ? reader.value()->Verify() : reader.status();
}

}  // namespace sok
