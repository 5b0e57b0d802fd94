// Files of rows for tests.
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/base/test_result.h"
#include "core/serving/served_rows.h"
#include "core/serving/served_rows_writer.h"

namespace sok {

struct TestRows {
  int dim;
  std::vector<Key> keys;
  std::vector<float> values;  // (keys, dim)
};

inline constexpr ServingType kServingTypes[] = {ServingType::kFloat32, ServingType::kFloat16,
                                                ServingType::kInt8, ServingType::kInt4};

// Makes rows of distinct keys: the smallest, the largest, and random keys of all 64 bits.
inline TestRows RandomRows(size_t n, int dim, std::mt19937_64* random) {
  TestRows rows{dim, {}, {}};
  std::unordered_set<Key> seen;
  for (const Key extreme : {Key{0}, ~Key{0}, Key{1} << 63, (Key{1} << 63) - 1}) {
    if (rows.keys.size() < n && seen.insert(extreme).second) rows.keys.push_back(extreme);
  }
  while (rows.keys.size() < n) {
    const Key key = (*random)() >> ((*random)() % 50);
    if (seen.insert(key).second) rows.keys.push_back(key);
  }
  std::normal_distribution<float> values(0.1f, 0.5f);
  for (size_t i = 0; i < n * static_cast<size_t>(dim); ++i) {
    rows.values.push_back(values(*random));
  }
  return rows;
}

inline ServingHeader HeaderOf(ServingType type, int dim) {
  ServingHeader header;
  header.name = "items";
  header.type = type;
  header.dim = dim;
  return header;
}

inline Status WriteRows(const std::string& path, const ServingHeader& header, const TestRows& rows,
                        size_t memory = ServedRowsWriter::kMemory) {
  auto writer = ServedRowsWriter::Open(path, header, memory);
  if (!writer.ok()) return writer.status();
  Status status =
      writer.value()->Add(rows.keys.data(), rows.values.data(), rows.keys.size(), SerialFor);
  return status.ok() ? writer.value()->Finish() : status;
}

inline std::vector<float> LookUp(const ServedRows& rows, const std::vector<Key>& keys,
                                 const ParallelFor& parallel_for = SerialFor) {
  std::vector<float> out(keys.size() * static_cast<size_t>(rows.dim()), -1.0f);
  const Status status = rows.Lookup(keys.data(), keys.size(), out.data(), parallel_for);
  REQUIRE_MESSAGE(status.ok(), status.message());
  return out;
}

}  // namespace sok
