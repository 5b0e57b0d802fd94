#include "core/coordinates.h"

#include <algorithm>
#include <cmath>

namespace sok {
namespace {

// A vector of which less than this share of its square lies outside of the others' span is taken
// for one inside: what is left of it is rounding.
constexpr double kNothingLeft = 1e-13;

void AddMultiple(double factor, const Coordinates& other, Coordinates* to) {
  for (int i = 0; i < kCoordinates; ++i) (*to)[i] += factor * other[i];
}

// Makes it orthogonal to all of an orthonormal basis. Twice is enough (Kahan; Parlett 1980).
void Orthogonalize(const std::vector<Coordinates>& basis, Coordinates* vector) {
  for (int pass = 0; pass < 2; ++pass) {
    for (const Coordinates& axis : basis) AddMultiple(-Product(axis, *vector), axis, vector);
  }
}

// A unit vector that is orthogonal to all of an orthonormal basis of fewer than kCoordinates.
Coordinates FreeAxis(const std::vector<Coordinates>& basis) {
  Coordinates best{};
  double longest = 0.0;
  for (int i = 0; i < kCoordinates; ++i) {
    Coordinates axis{};
    axis[i] = 1.0;
    Orthogonalize(basis, &axis);
    const double square = Product(axis, axis);
    if (square <= longest) continue;
    longest = square;
    best = axis;
    if (square > 0.5) break;
  }
  const double norm = std::sqrt(longest);
  for (double& x : best) x /= norm;
  return best;
}

// Coordinates that give the sum of all the length that it has.
Coordinates AlongTheSum(const std::vector<Coordinates>& others, const std::vector<double>& products,
                        double square) {
  Coordinates sum{};
  double with_sum = 0.0;
  for (size_t i = 0; i < others.size(); ++i) {
    AddMultiple(1.0, others[i], &sum);
    with_sum += products[i];
  }
  const double before = Product(sum, sum);
  const double after = std::max(0.0, before + 2.0 * with_sum + square);
  Coordinates found{};
  if (before > 0.0) {
    AddMultiple(std::sqrt(after / before) - 1.0, sum, &found);
  } else {
    found[0] = std::sqrt(after);
  }
  return found;
}

}  // namespace

Coordinates CoordinatesOf(const std::vector<Coordinates>& others,
                          const std::vector<double>& products, double square) {
  if (!std::isfinite(square)) return {square};
  // An orthonormal basis of the others' span, and the vector's products with its axes: an axis is a
  // sum of multiples of others, and so are the products.
  std::vector<Coordinates> basis;
  std::vector<double> along;
  for (size_t i = 0; i < others.size(); ++i) {
    Coordinates axis = others[i];
    double product = products[i];
    for (size_t j = 0; j < basis.size(); ++j) {
      const double share = Product(basis[j], others[i]);
      AddMultiple(-share, basis[j], &axis);
      product -= share * along[j];
    }
    const double left = Product(axis, axis);
    // Also if it is no number.
    if (!(left > kNothingLeft * Product(others[i], others[i]))) continue;
    const double norm = std::sqrt(left);
    for (double& x : axis) x /= norm;
    basis.push_back(axis);
    along.push_back(product / norm);
  }
  double rest = square;
  for (double x : along) rest -= x * x;
  const bool none_left = !(rest > kNothingLeft * square);
  if (basis.size() == kCoordinates && !none_left) return AlongTheSum(others, products, square);
  Coordinates found{};
  for (size_t j = 0; j < basis.size(); ++j) AddMultiple(along[j], basis[j], &found);
  if (!none_left) AddMultiple(std::sqrt(rest), FreeAxis(basis), &found);
  return found;
}

}  // namespace sok
