// Few numbers for gradients of many, such that norms stay what they are.
#pragma once

#include <array>
#include <vector>

namespace sok {

constexpr int kCoordinates = 64;
using Coordinates = std::array<double, kCoordinates>;

inline double Product(const Coordinates& a, const Coordinates& b) {
  double sum = 0.0;
  for (int i = 0; i < kCoordinates; ++i) sum += a[i] * b[i];
  return sum;
}

// A vector that has got coordinates, and its product with one that is to get some.
struct Neighbor {
  Coordinates coordinates;
  double product;
};

// The coordinates of a vector whose product with itself is `square`. Its products with neighbors
// are as they should be, so that any sum of multiples of the vectors has the norm that the same sum
// of their coordinates has: one more row of what a Cholesky factor of the Gram matrix would be,
// were numbers exact.
//
// There are as many dimensions as coordinates. Products with more neighbors than kCoordinates - 1
// may not fit all; the vector's own norm is always right.
Coordinates CoordinatesOf(const std::vector<Neighbor>& neighbors, double square);

// Returns true if the products of a vector of these coordinates with all neighbors are right.
bool FitsAll(const Coordinates& coordinates, const std::vector<Neighbor>& neighbors);

}  // namespace sok
