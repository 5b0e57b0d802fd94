// Says what new rows of a group start from, and when a caller may have them start otherwise.
// Included by the sources of Storage only.
#pragma once

#include <string>

#include "core/base/status.h"
#include "core/disk/group_meta.h"
#include "core/tables/table.h"

namespace sok {

// Returns whether two configs start rows alike. Layers round numbers to float32 and seeds to 63
// bits, so that no more is compared.
bool SameStart(const TableConfig& a, const TableConfig& b);

// Returns the initializer of a config for messages, such as "uniform (-0.05, 0.05), seed 7".
std::string StartText(const TableConfig& config);

// Has `config` start rows as the group `meta` does, where a group has an initializer and the
// config's is the same. `group` names the group in messages, `number` is its number. Errors:
// kInvalidArgument, naming both initializers, for another one, unless `may_reset`.
Status AgreeOnStart(const std::string& group, int number, const GroupMeta& meta, bool may_reset,
                    TableConfig* config);

// Checks that a group that is there has rows of the types that it is opened with. `group` names it.
// Error: kInvalidArgument, naming both.
Status AgreeOnTypes(const std::string& group, const RowForm& own, const RowForm& given);

}  // namespace sok
