#include "core/rules/keras/nadam.h"

#include <algorithm>
#include <array>

namespace sok {

double Nadam::WarmupProduct(int64_t step_number) {
  constexpr int64_t kKept = 1024;
  static const std::array<double, kKept + 1> products = [] {
    std::array<double, kKept + 1> made;
    made[0] = 1.0;
    for (int64_t i = 1; i <= kKept; ++i) made[i] = made[i - 1] * Warmup(static_cast<double>(i));
    return made;
  }();
  return products[static_cast<size_t>(std::clamp<int64_t>(step_number, 0, kKept))];
}

}  // namespace sok
