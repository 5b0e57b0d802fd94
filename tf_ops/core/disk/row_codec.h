// The format of rows in the database. docs/reference/file-formats.md describes it for other
// programs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/types.h"
#include "core/rows/row_slabs.h"

namespace sok {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "values are copied as they lie in memory");

// A key in the database: the group, then the key big-endian. So a group is a prefix, and keys are
// sorted by their bytes.
struct RowKey {
  static constexpr size_t kBytes = 9;

  RowKey() = default;
  RowKey(int group, Key key) {
    bytes[0] = static_cast<char>(group);
    const uint64_t big_endian = __builtin_bswap64(key);
    std::memcpy(bytes + 1, &big_endian, sizeof(big_endian));
  }

  std::string_view view() const { return {bytes, kBytes}; }
  static int Group(std::string_view bytes) { return static_cast<uint8_t>(bytes[0]); }
  static Key KeyOf(std::string_view bytes) {
    uint64_t big_endian;
    std::memcpy(&big_endian, bytes.data() + 1, sizeof(big_endian));
    return __builtin_bswap64(big_endian);
  }

  char bytes[kBytes];
};

// Stands in front of a row's values, which lie as in its layout.
struct RowHeader {
  static constexpr uint32_t kVersion = 1;  // of float32

  // Returns the version number that stands for the types of a row.
  static uint32_t VersionOf(const RowForm& form) {
    const auto row = static_cast<uint32_t>(form.row);
    const bool short_slots = form.slots != RowType::kFloat32;
    // The first four types of rows have the numbers 1 to 4, and 5 to 8 with bfloat16 slots.
    return row < 4 ? kVersion + row + (short_slots ? 4 : 0) : 2 * row + 1 + (short_slots ? 1 : 0);
  }

  uint32_t version : 8;
  uint32_t dim : 24;
  uint32_t layout;  // rows of another layout than the group's present one have no slots
  RowMeta meta;
};
static_assert(sizeof(RowHeader) == 16);

// The parts of a row's value.
struct RowValue {
  RowHeader header = {};
  std::string_view values;  // not aligned

  // Takes a value apart. Returns false if it is not a row of the layout's dim and types.
  bool Parse(std::string_view value, const RowLayout& layout) {
    if (value.size() < sizeof(RowHeader)) return false;
    std::memcpy(&header, value.data(), sizeof(header));
    values = value.substr(sizeof(header));
    return header.version == RowHeader::VersionOf(layout.form()) &&
           header.dim == static_cast<uint32_t>(layout.dim()) &&
           values.size() >= layout.embedding_bytes() && values.size() % sizeof(float) == 0;
  }
  // Returns true if the row has the slots of the layout with this number.
  bool HasSlots(const RowLayout& layout, uint32_t number) const {
    return header.layout == number && values.size() == layout.value_bytes();
  }
  // Decodes the embedding and the slots; a row without slots gets their start values.
  void Decode(const RowLayout& layout, uint32_t number, float* floats) const {
    if (HasSlots(layout, number)) {
      layout.Decode(values.data(), floats);
      return;
    }
    layout.DecodeEmbedding(values.data(), floats);
    std::copy(layout.slot_start().begin(), layout.slot_start().end(), floats + layout.dim());
  }
};

// Values that are kept beside the rows, by name. An entry without a value is to be removed.
using NamedValues = std::map<std::string, std::optional<std::string>>;

// Rows on their way to the database.
class RowBatch {
 public:
  static constexpr size_t kBytesBesideValues =
      RowKey::kBytes + sizeof(uint32_t) + sizeof(RowHeader);

  // Makes room for rows of so many bytes in all.
  void Reserve(size_t bytes) { bytes_.reserve(bytes); }
  void Put(const RowKey& key, const RowHeader& header, std::string_view values) {
    const auto size = static_cast<uint32_t>(sizeof(header) + values.size());
    Append(key.bytes, RowKey::kBytes);
    Append(&size, sizeof(size));
    Append(&header, sizeof(header));
    Append(values.data(), values.size());
    ++rows_;
  }
  void Remove(const RowKey& key) {
    const uint32_t size = 0;
    Append(key.bytes, RowKey::kBytes);
    Append(&size, sizeof(size));
    ++rows_;
  }
  void AddAll(const RowBatch& other) {
    Append(other.bytes_.data(), other.bytes_.size());
    rows_ += other.rows_;
  }
  void Clear() {
    bytes_.clear();
    rows_ = 0;
  }

  size_t rows() const { return rows_; }
  size_t bytes() const { return bytes_.size(); }
  std::string_view view() const { return bytes_; }

  // Calls fn(key, value) for each row, with views of its bytes. An empty value removes the row.
  template <typename Fn>
  void ForEach(const Fn& fn) const {
    ForEachOf(bytes_, fn);
  }
  // Does the same for a view of a batch's bytes. Returns false if they are not a whole batch.
  template <typename Fn>
  static bool ForEachOf(std::string_view rest, const Fn& fn) {
    while (!rest.empty()) {
      uint32_t size;
      const size_t start = RowKey::kBytes + sizeof(size);
      if (rest.size() < start) return false;
      std::memcpy(&size, rest.data() + RowKey::kBytes, sizeof(size));
      if (rest.size() - start < size) return false;
      fn(rest.substr(0, RowKey::kBytes), rest.substr(start, size));
      rest.remove_prefix(start + size);
    }
    return true;
  }

 private:
  void Append(const void* from, size_t n) { bytes_.append(static_cast<const char*>(from), n); }

  std::string bytes_;
  size_t rows_ = 0;
};

}  // namespace sok
