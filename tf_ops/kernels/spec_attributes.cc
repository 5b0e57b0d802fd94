#include "kernels/spec_attributes.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "kernels/core_calls.h"

namespace sok {

namespace tf = tensorflow;

absl::Status ReadTableSpec(tf::OpKernelConstruction* ctx, TableSpec* spec) {
  std::string text;
  TF_RETURN_IF_ERROR(ctx->GetAttr("spec", &text));
  if (!text.empty()) {
    auto read = TableSpec::FromJson(text);
    if (read.ok()) *spec = std::move(read.value());
    return ToAbsl(read.status());
  }
  absl::Status status;
  const Status made = VisitFields(spec, [&](const char* name, auto* value) {
    using T = std::decay_t<decltype(*value)>;
    if (!ctx->HasAttr(name)) return;
    if constexpr (std::is_same_v<T, double>) {
      float number;
      status.Update(ctx->GetAttr(name, &number));
      *value = number;
    } else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
      int64_t number;
      status.Update(ctx->GetAttr(name, &number));
      if constexpr (sizeof(T) < sizeof(int64_t)) {
        number = std::min<int64_t>(number, std::numeric_limits<T>::max());
      }
      *value = static_cast<T>(number);
    } else {
      status.Update(ctx->GetAttr(name, value));
    }
  });
  status.Update(ToAbsl(made));
  return status;
}

}  // namespace sok
