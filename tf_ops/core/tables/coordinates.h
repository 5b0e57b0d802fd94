// Represents long gradients by a few coordinates that have the same norms.
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

// A vector that has coordinates, and its product with the vector that gets coordinates next.
struct Neighbor {
  Coordinates coordinates;
  double product;
};

// Returns the coordinates of a vector whose product with itself is `square`. Their products with
// the coordinates of neighbors equal the products of the vectors, so any linear combination of the
// vectors has the norm of the same combination of their coordinates. In exact arithmetic the result
// is one more row of the Cholesky factor of the Gram matrix.
//
// With more than kCoordinates - 1 neighbors some products may be wrong. The norm of the vector
// itself is always right.
Coordinates CoordinatesOf(const std::vector<Neighbor>& neighbors, double square);

// Returns true if coordinates have the right products with all neighbors.
bool FitsAll(const Coordinates& coordinates, const std::vector<Neighbor>& neighbors);

}  // namespace sok
