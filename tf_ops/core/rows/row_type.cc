#include "core/rows/row_type.h"

#include <initializer_list>

namespace sok {
namespace {

Result<RowType> Named(const char* what, std::initializer_list<RowType> types,
                      const std::string& name) {
  std::string known;
  for (const RowType type : types) {
    if (name == RowTypeName(type)) return type;
    known += (known.empty() ? "" : ", ") + std::string(RowTypeName(type));
  }
  return InvalidArgument(std::string("expected ") + what + " to be one of " + known + ", got '" +
                         name + "'");
}

}  // namespace

const char* RowTypeName(RowType type) {
  switch (type) {
    case RowType::kBFloat16:
      return "bfloat16";
    case RowType::kFloat16:
      return "float16";
    case RowType::kInt8:
      return "int8";
    default:
      return "float32";
  }
}

Result<RowForm> RowForm::Make(const std::string& row, const std::string& slots) {
  const auto of_row = Named(
      "row_dtype", {RowType::kFloat32, RowType::kBFloat16, RowType::kFloat16, RowType::kInt8}, row);
  if (!of_row.ok()) return of_row.status();
  const auto of_slots = Named("slot_dtype", {RowType::kFloat32, RowType::kBFloat16}, slots);
  if (!of_slots.ok()) return of_slots.status();
  return RowForm{of_row.value(), of_slots.value()};
}

}  // namespace sok
