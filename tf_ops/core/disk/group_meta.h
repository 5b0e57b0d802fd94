// The configuration of a group, stored beside its rows as JSON, so that people can read it too.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/base/status.h"
#include "core/policies/admission.h"
#include "core/policies/eviction.h"
#include "core/rows/row_store.h"

namespace sok {

struct GroupMeta {
  int dim = 0;
  // The initializer of new rows: see TableSpec. Empty: unknown, since the rows came from a dump
  // that does not name it.
  std::string initializer;
  double initializer_a = 0, initializer_b = 0;
  uint64_t seed = 0;
  TableState state;
  RowForm form;  // the form of the rows, without its seed
  // Counts the changes of slots; rows written under another number have no slots.
  uint32_t layout = 0;
  uint64_t rows = 0;
  uint32_t counted_at = 0;  // the time when `rows` was last counted without expired rows
  std::optional<AdmissionConfig> admission;  // the last one that has counted keys; unset: none has
  std::optional<EvictionConfig> eviction;    // that the group was opened with last; unset: none

  // Returns the description as JSON. `ttl` is the storage's TTL, and is given if the text leaves
  // the storage, in a dump.
  std::string ToJson(std::optional<uint32_t> ttl = std::nullopt) const;
  static Result<GroupMeta> FromJson(const std::string& json);
};

// Returns the layout of the group's rows.
inline RowLayout LayoutOf(const GroupMeta& meta) {
  return RowLayout(meta.dim, meta.state.slots, meta.form);
}

// Returns the JSON of an eviction, for the description of its group: its kind, and the fields that
// the kind reads.
std::string EvictionToJson(const EvictionConfig& eviction);

// Returns a name such as "group/007", so that names are sorted by number.
std::string GroupMetaName(int group);
constexpr char kGroupMetaPrefix[] = "group/";

}  // namespace sok
