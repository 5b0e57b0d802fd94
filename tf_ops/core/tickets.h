// How the gradient of an anchor names deposits, and how long it is.
//
// The anchor of a table is a vector of kAnchorSize numbers. The gradient that a deposit gives it
// holds a mark at the deposit's place, the same mark times the deposit's weight kPlaces behind it,
// and at the end the coordinates of what was deposited. The rest is 0. Gradients of several
// deposits add up. What reaches an optimizer says by the first how often, and by which factor, the
// deposits of a place are to be applied, and by the ratio of the two which of them.
//
// A mark is so small that its square is 0 in float32, so that it is no part of any norm. The
// coordinates have the norm of the rows' gradients.
#pragma once

#include <cstdint>

#include "core/coordinates.h"

namespace sok {

constexpr int kPlaces = 64;
constexpr int kAnchorSize = 2 * kPlaces + kCoordinates;
constexpr float kMark = 0x1p-80f;

inline int PlaceOf(uint64_t ticket) { return static_cast<int>(ticket % kPlaces); }

// In [1, 65536]. Tickets that follow each other at a place have nothing in common by it.
inline float WeightOf(uint64_t ticket) {
  uint64_t mixed = ticket * 0x9e3779b97f4a7c15ull;
  mixed ^= mixed >> 32;
  mixed *= 0xd6e8feb86659fd93ull;
  return static_cast<float>(1 + (mixed >> 48));
}

// Adds the mark of a ticket to the gradient of an anchor (kAnchorSize).
inline void AddMark(uint64_t ticket, float* gradient) {
  gradient[PlaceOf(ticket)] += kMark;
  gradient[kPlaces + PlaceOf(ticket)] += kMark * WeightOf(ticket);
}

// Adds the coordinates of a deposit.
inline void AddCoordinates(const Coordinates& coordinates, float* gradient) {
  for (int i = 0; i < kCoordinates; ++i) {
    gradient[2 * kPlaces + i] += static_cast<float>(coordinates[i]);
  }
}

}  // namespace sok
