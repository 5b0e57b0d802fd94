// How the gradient of an anchor names deposits, and how long it is.
//
// The anchor of a table is a vector of kAnchorSize numbers. The gradient that a deposit gives it
// holds a mark at the deposit's place, the same mark times the deposit's weight kPlaces behind it,
// and at the end the coordinates of what was deposited. The rest is 0. Gradients of several
// deposits add up. What reaches an optimizer says by the first how often, and by which factor, the
// deposits of a place are to be applied, and by the ratio of the two which of them.
//
// A mark is so small that its square is nothing beside that of any gradient (below 1e-38), and
// large enough that it stays exact if the gradients are multiplied by as little as 1e-18. The
// coordinates have the norm of the rows' gradients.
#pragma once

#include <cstdint>

#include "core/tables/coordinates.h"

namespace sok {

constexpr int kPlaces = 64;
constexpr int kAnchorSize = 2 * kPlaces + kCoordinates;
constexpr float kMark = 0x1p-66f;
constexpr uint64_t kWeights = 1 << 16;

inline int PlaceOf(uint64_t ticket) { return static_cast<int>(ticket % kPlaces); }

// In (1, 2), another one for each of kWeights tickets that follow each other at a place. Means of
// some are hardly ever the weight of one.
inline float WeightOf(uint64_t ticket) {
  uint64_t mixed = ticket / kPlaces % kWeights;
  // Odd factors and shifts to the right of half the bits and more lose nothing.
  mixed = (mixed ^ (mixed >> 8)) * 0x9e3b % kWeights;
  mixed = (mixed ^ (mixed >> 9)) * 0x6a6d % kWeights;
  mixed ^= mixed >> 8;
  return 1.0f + (static_cast<float>(mixed) + 0.5f) / static_cast<float>(kWeights);
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
