// Few numbers for gradients of many, such that norms stay what they are.
#pragma once

#include <array>
#include <vector>

namespace sok {

constexpr int kCoordinates = 32;
using Coordinates = std::array<double, kCoordinates>;

inline double Product(const Coordinates& a, const Coordinates& b) {
  double sum = 0.0;
  for (int i = 0; i < kCoordinates; ++i) sum += a[i] * b[i];
  return sum;
}

// The coordinates of a vector whose products with some others are `products`, and with itself
// `square`; `others` are the coordinates that these have got. Then any sum of multiples of the
// vectors has the norm that the same sum of their coordinates has, as a Cholesky factor of their
// Gram matrix has it.
//
// There are as many dimensions as coordinates. Where `others` fill all of them, it is the plain sum
// of all vectors whose norm is right.
Coordinates CoordinatesOf(const std::vector<Coordinates>& others,
                          const std::vector<double>& products, double square);

}  // namespace sok
