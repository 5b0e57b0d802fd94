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
  // The initializer of new rows: see TableConfig. Empty: unknown, since the rows came from a dump
  // that does not name it.
  std::string initializer;
  double initializer_a = 0, initializer_b = 0;
  uint64_t seed = 0;
  TableState state;
  RowForm form;  // of the rows, without its seed
  // Counts the changes of slots; rows written under another number have no slots.
  uint32_t layout = 0;
  uint64_t rows = 0;
  uint32_t counted_at = 0;  // when rows that had expired were last left out of `rows`
  std::optional<AdmissionConfig> admission;  // that has counted keys last; unset: none has
  std::optional<EvictionConfig> eviction;    // that the group was opened with last; unset: none

  // Returns the description as JSON. `ttl` is that of the storage, and is given where the text
  // leaves the storage, in a dump.
  std::string ToJson(std::optional<uint32_t> ttl = std::nullopt) const;
  static Result<GroupMeta> FromJson(const std::string& json);
};

// Returns the layout of the group's rows.
inline RowLayout LayoutOf(const GroupMeta& meta) {
  return RowLayout(meta.dim, meta.state.slots, meta.form);
}

// An eviction as its group's description has it: its kind, and what that reads.
std::string EvictionToJson(const EvictionConfig& eviction);

// "group/007": sorted by number.
std::string GroupMetaName(int group);
constexpr char kGroupMetaPrefix[] = "group/";

}  // namespace sok
