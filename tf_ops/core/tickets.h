// How the gradient of an anchor names deposits.
//
// The anchor of a table is a vector of kAnchorSize numbers. The gradient that a deposit gives it is
// 0 but for two of them: a mark at the deposit's place, and the same mark times the deposit's
// weight kPlaces behind it. Gradients of several deposits add up. What reaches an optimizer says by
// the first how often, and by which factor, the deposits of a place are to be applied, and by the
// ratio of the two which of them.
//
// A mark is so small that its square is 0 in float32, so that it is no part of any norm.
#pragma once

#include <cstdint>

namespace sok {

constexpr int kPlaces = 32;
constexpr int kAnchorSize = 2 * kPlaces;
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

}  // namespace sok
