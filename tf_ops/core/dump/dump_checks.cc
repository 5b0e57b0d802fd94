#include "core/dump/dump_checks.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/initializer.h"
#include "core/base/status_macros.h"
#include "core/disk/group_meta.h"
#include "core/tables/row_checks.h"

namespace sok {
namespace {

Result<TableState> StateOf(const DumpGroup& group) {
  SOK_ASSIGN_OR_RETURN(const GroupMeta told, GroupMeta::FromJson(group.meta));
  if (told.dim != group.dim) {
    return Status(Code::kDataLoss, "its description has dimension " + std::to_string(told.dim) +
                                       ", its rows have " + std::to_string(group.dim));
  }
  SOK_RETURN_IF_ERROR(CheckState(told.state, told.dim));
  const int floats = RowLayout(told.dim, told.state.slots).slot_floats();
  if (floats != group.slot_floats) {
    return Status(Code::kDataLoss, "its description has slots of " + std::to_string(floats) +
                                       " floats, its rows have " +
                                       std::to_string(group.slot_floats));
  }
  if (!told.initializer.empty()) {
    SOK_RETURN_IF_ERROR(Initializer::Make(told.initializer, told.initializer_a, told.initializer_b,
                                          told.seed, group.group)
                            .status());
  }
  return told.state;
}

}  // namespace

Status InGroup(const std::string& path, int group, const Status& status) {
  if (status.ok()) return status;
  return status.Within("'" + path + "', group " + std::to_string(group) + ": ");
}

Status CheckDump(const DumpReader& reader, const std::string& path, const DumpProgress& progress) {
  std::map<int, SlotChecks> checks;
  for (const DumpGroup& group : reader.groups()) {
    const auto state = StateOf(group);
    if (!state.ok()) return InGroup(path, group.group, state.status());
    checks.emplace(group.group, SlotChecks(state.value().rule, group.dim));
  }
  // Dumps are sorted by key, so duplicates are adjacent. For unsorted groups all keys are kept.
  std::map<int, std::vector<Key>> unordered;
  std::optional<Key> last;
  int last_group = -1;
  Status status = reader.ForEachPiece(
      [&](int group, const TableContents& piece) {
        const SlotChecks& of_group = checks.at(group);
        const RowColumns& rows = piece.rows;
        if (group != last_group) last.reset();
        last_group = group;
        for (size_t i = 0; i < piece.n; ++i) {
          if (last.has_value() && rows.keys[i] <= *last) unordered[group];
          last = rows.keys[i];
          const Status found = of_group.Check(rows.keys[i], rows.embeddings + i * of_group.dim(),
                                              rows.slots + i * piece.slot_floats);
          if (!found.ok()) return InGroup(path, group, found);
        }
        return Status();
      },
      progress);
  if (!status.ok() || unordered.empty()) return status;
  status = reader.ForEachPiece([&](int group, const TableContents& piece) {
    const auto found = unordered.find(group);
    if (found != unordered.end()) {
      found->second.insert(found->second.end(), piece.rows.keys, piece.rows.keys + piece.n);
    }
    return Status();
  });
  for (auto& [group, keys] : unordered) {
    if (status.ok()) status = InGroup(path, group, SortAndCheckDistinct(&keys));
  }
  return status;
}

Status CheckDamoDump(const DamoDumpReader& reader, const std::string& path) {
  std::map<int, std::vector<Key>> keys;
  Status status = reader.ForEachPiece([&](int group, const TableContents& piece) {
    keys[group].push_back(*piece.rows.keys);
    return Status();
  });
  for (auto& [group, of_group] : keys) {
    if (status.ok()) status = InGroup(path, group, SortAndCheckDistinct(&of_group));
  }
  return status;
}

}  // namespace sok
