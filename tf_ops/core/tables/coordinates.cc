#include "core/tables/coordinates.h"

#include <algorithm>
#include <cmath>

namespace sok {
namespace {

// If the neighbors, scaled to the length 1, have no more than this (squared) outside the axes, that
// is a rounding error and makes no further axis.
constexpr double kRoundingSquare = 1e-13;

// A product fits if it is off by no more than this share of the product of the vectors' lengths.
constexpr double kFits = 1e-6;

void AddMultiple(double factor, const Coordinates& other, Coordinates* to) {
  for (int i = 0; i < kCoordinates; ++i) (*to)[i] += factor * other[i];
}

// Removes the component along an axis from a vector, and its part of the product with the other
// vector.
void TakeOut(const Neighbor& axis, Neighbor* vector) {
  const double share = Product(axis.coordinates, vector->coordinates);
  AddMultiple(-share, axis.coordinates, &vector->coordinates);
  vector->product -= share * axis.product;
}

void Scale(double factor, Neighbor* vector) {
  for (double& x : vector->coordinates) x *= factor;
  vector->product *= factor;
}

// Returns an orthonormal basis of the span of neighbors, and the products with its axes, by a QR
// decomposition with column pivoting (Businger and Golub 1965). The next axis is made of the
// neighbor that lies farthest outside the axes so far. So an axis that is made of a small
// remainder, whose product may be wrong, is a small part of every neighbor, and products with
// neighbors are nearly right.
std::vector<Neighbor> BasisOf(const std::vector<Neighbor>& neighbors) {
  std::vector<Neighbor> left;
  for (const Neighbor& neighbor : neighbors) {
    const double square = Product(neighbor.coordinates, neighbor.coordinates);
    if (square == 0.0) continue;
    left.push_back(neighbor);
    Scale(1.0 / std::sqrt(square), &left.back());
  }
  std::vector<Neighbor> basis;
  // One dimension stays free for the part of the new vector that lies outside the span.
  while (basis.size() < kCoordinates - 1) {
    size_t farthest = 0;
    double longest = kRoundingSquare;
    for (size_t i = 0; i < left.size(); ++i) {
      const double square = Product(left[i].coordinates, left[i].coordinates);
      if (square <= longest) continue;
      longest = square;
      farthest = i;
    }
    if (longest == kRoundingSquare) break;
    Neighbor axis = left[farthest];
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(farthest));
    // Twice is enough for the axis to be orthogonal to the others (Kahan; Parlett 1980).
    for (const Neighbor& before : basis) TakeOut(before, &axis);
    Scale(1.0 / std::sqrt(Product(axis.coordinates, axis.coordinates)), &axis);
    for (Neighbor& other : left) TakeOut(axis, &other);
    basis.push_back(axis);
  }
  return basis;
}

// Returns a unit vector that is orthogonal to all axes. There are fewer than kCoordinates axes.
Coordinates FreeAxis(const std::vector<Neighbor>& basis) {
  Neighbor best{};
  double longest = 0.0;
  for (int i = 0; i < kCoordinates; ++i) {
    Neighbor axis{};
    axis.coordinates[i] = 1.0;
    for (int pass = 0; pass < 2; ++pass) {
      for (const Neighbor& before : basis) TakeOut(before, &axis);
    }
    const double square = Product(axis.coordinates, axis.coordinates);
    if (square <= longest) continue;
    longest = square;
    best = axis;
    if (square > 0.5) break;
  }
  Scale(1.0 / std::sqrt(longest), &best);
  return best.coordinates;
}

}  // namespace

Coordinates CoordinatesOf(const std::vector<Neighbor>& neighbors, double square) {
  if (!std::isfinite(square)) return {square};
  std::vector<Neighbor> basis = BasisOf(neighbors);
  double rest = square;
  for (const Neighbor& axis : basis) rest -= axis.product * axis.product;
  // Rounded products may add up to more than the vector's length, and are cut down to it. The last
  // axes come first: they are the smallest parts of the neighbors.
  for (auto axis = basis.rbegin(); axis != basis.rend() && rest < 0.0; ++axis) {
    const double kept = std::max(0.0, axis->product * axis->product + rest);
    rest += axis->product * axis->product - kept;
    axis->product = std::copysign(std::sqrt(kept), axis->product);
  }
  Coordinates found{};
  for (const Neighbor& axis : basis) AddMultiple(axis.product, axis.coordinates, &found);
  // Even a tiny remainder is added, so that the coordinates have the norm that later vectors are
  // compared by.
  if (rest > 0.0) AddMultiple(std::sqrt(rest), FreeAxis(basis), &found);
  return found;
}

bool FitsAll(const Coordinates& coordinates, const std::vector<Neighbor>& neighbors) {
  const double square = Product(coordinates, coordinates);
  return std::all_of(neighbors.begin(), neighbors.end(), [&](const Neighbor& neighbor) {
    const double other = Product(neighbor.coordinates, neighbor.coordinates);
    const double off = Product(coordinates, neighbor.coordinates) - neighbor.product;
    return std::abs(off) <= kFits * std::sqrt(square * other);
  });
}

}  // namespace sok
