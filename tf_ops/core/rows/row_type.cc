#include "core/rows/row_type.h"

#include <iterator>

namespace sok {
namespace {

// Finds the type of a name among the first `n`.
Result<RowType> Named(const char* what, size_t n, const std::string& name) {
  std::string known;
  for (size_t i = 0; i < n; ++i) {
    if (name == kRowTypeNames[i]) return static_cast<RowType>(i);
    known += (known.empty() ? "" : ", ") + std::string(kRowTypeNames[i]);
  }
  return InvalidArgument(std::string("expected ") + what + " to be one of " + known + ", got '" +
                         name + "'");
}

}  // namespace

Result<RowForm> RowForm::Make(const std::string& row, const std::string& slots) {
  const auto of_row = Named("row_dtype", std::size(kRowTypeNames), row);
  if (!of_row.ok()) return of_row.status();
  const auto of_slots = Named("slot_dtype", 2, slots);  // float32 and bfloat16
  if (!of_slots.ok()) return of_slots.status();
  return RowForm{of_row.value(), of_slots.value()};
}

}  // namespace sok
