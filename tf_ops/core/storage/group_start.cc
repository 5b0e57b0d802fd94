#include "core/storage/group_start.h"

#include <cstdint>
#include <cstdio>

namespace sok {
namespace {

constexpr uint64_t kSeedBits = ~(uint64_t{1} << 63);

TableSpec StartOf(const GroupMeta& meta) {
  TableSpec spec;
  spec.initializer = meta.initializer;
  spec.initializer_a = meta.initializer_a;
  spec.initializer_b = meta.initializer_b;
  spec.seed = meta.seed;
  return spec;
}

}  // namespace

bool SameStart(const TableSpec& a, const TableSpec& b) {
  const auto rounded = [](double number) { return static_cast<float>(number); };
  return a.initializer == b.initializer && rounded(a.initializer_a) == rounded(b.initializer_a) &&
         rounded(a.initializer_b) == rounded(b.initializer_b) &&
         (a.seed & kSeedBits) == (b.seed & kSeedBits);
}

std::string StartText(const TableSpec& spec) {
  char numbers[80];
  if (spec.initializer == "constant") {
    std::snprintf(numbers, sizeof(numbers), " (%.7g)", spec.initializer_a);
  } else {
    std::snprintf(numbers, sizeof(numbers), " (%.7g, %.7g)", spec.initializer_a,
                  spec.initializer_b);
  }
  return spec.initializer + numbers + ", seed " + std::to_string(spec.seed);
}

Status AgreeOnStart(const std::string& group, int number, const GroupMeta& meta, bool may_reset,
                    TableSpec* spec) {
  if (meta.initializer.empty()) return Status();
  const TableSpec own = StartOf(meta);
  if (!SameStart(own, *spec)) {
    if (may_reset) return Status();
    return InvalidArgument(
        group + " has the initializer " + StartText(own) + ", got " + StartText(*spec) +
        "; give the one that it has; to look at rows or to remove some, storage.table(" +
        std::to_string(number) +
        ") needs none; reset_initializer=True has rows that are made from now on start from the "
        "other one");
  }
  spec->initializer_a = own.initializer_a;
  spec->initializer_b = own.initializer_b;
  spec->seed = own.seed;
  return Status();
}

Status AgreeOnTypes(const std::string& group, const RowForm& own, const RowForm& given) {
  if (own.row == given.row && own.slots == given.slots) return Status();
  const auto text = [](const RowForm& form) {
    return std::string("row_dtype='") + RowTypeName(form.row) + "' and slot_dtype='" +
           RowTypeName(form.slots) + "'";
  };
  return InvalidArgument(
      group + " has " + text(own) + ", got " + text(given) +
      "; give the types that it has; for the others dump the group, and load the file into another "
      "storage, in which the group was opened with them before");
}

}  // namespace sok
