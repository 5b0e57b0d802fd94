// Compares the initializer and the types of rows of a group with those that a caller asks for.
// Included by the sources of Storage only.
#pragma once

#include <string>

#include "core/base/status.h"
#include "core/disk/group_meta.h"
#include "core/tables/table.h"

namespace sok {

// Returns true if two tables start rows alike. Numbers are compared as float32 and seeds by 63
// bits, since layers round them so.
bool SameStart(const TableSpec& a, const TableSpec& b);

// Returns the initializer of a spec for messages, such as "uniform (-0.05, 0.05), seed 7".
std::string StartText(const TableSpec& spec);

// Makes `spec` start rows exactly as the group `meta` does, if the group has an initializer and
// the spec's is the same. `group` names the group in messages, `number` is its number. Errors:
// kInvalidArgument, naming both initializers, for another one, unless `may_reset`.
Status AgreeOnStart(const std::string& group, int number, const GroupMeta& meta, bool may_reset,
                    TableSpec* spec);

// Checks that an existing group has rows of the types that it is opened with. `group` names the
// group in the message. Error: kInvalidArgument, which names both types.
Status AgreeOnTypes(const std::string& group, const RowForm& own, const RowForm& given);

}  // namespace sok
