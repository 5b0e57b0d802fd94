// The tickets that the gradient of an anchor carries. They name deposits, and give the length of
// the sum of their gradients.
//
// The anchor of a table is a vector of kAnchorSize numbers. A deposit adds to the anchor's gradient
// a mark at the deposit's place, the same mark times the deposit's weight kPlaces elements later,
// and at the end the coordinates of the deposit, whose norm is the norm of the rows' gradients. All
// other elements are 0. Gradients of several deposits add up. When the anchor's gradient reaches an
// optimizer, the sum of marks at a place says how often, and with which factor, the deposits of the
// place are to be applied; the ratio of the two sums says which of them.
//
// A mark is proportional to the norm of the deposited gradients. A loss scale multiplies that norm
// before the deposit and divides the mark after it, so the optimizer receives the same mark with
// any scale: about 2^-54 of the norm of the unscaled gradients, or a step of marks more or less if
// other deposits wait. Such a mark does not change the norm, clipping by value does not reach it
// unless the norm is 2^29 times the value, and it stays a normal float32 unless the norm is less
// than 2^-64.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>

#include "core/tables/coordinates.h"

namespace sok {

constexpr int kPlaces = 64;
constexpr int kAnchorSize = 2 * kPlaces + kCoordinates;
constexpr uint64_t kWeights = 1 << 16;

// Marks are powers of two, so that a factor is recovered exactly. Their exponents are multiples of
// kMarkStep: gradients of nearly the same norm have equal marks, and workers whose marks differ can
// still compare factors.
constexpr int kMarkStep = 16;
constexpr int kMarkBelowNorm = 54;      // binary digits, give or take half a step
constexpr int kLeastMark = -96;         // exponent; a smaller one would leave no room for factors
constexpr float kUnreadMark = 0x1p16f;  // the mark where no optimizer reads the norm

// Returns the mark of gradients whose norm is finite and not 0.
inline float MarkOf(double norm) {
  const double steps = std::round((std::ilogb(norm) - kMarkBelowNorm) / double{kMarkStep});
  return std::ldexp(1.0f, std::max(kLeastMark, static_cast<int>(steps) * kMarkStep));
}

// Returns true if the two sums of a place have been multiplied by so small a factor that they have
// become 0. Threads of TensorFlow take numbers below FLT_MIN for 0.
inline bool HasVanished(float sum, float weighted) {
  return std::abs(sum) < FLT_MIN && std::abs(weighted) < 2 * FLT_MIN;
}

// Returns a weight in (1, 2), different for each of kWeights deposits that follow each other at a
// place. The mean of several weights is hardly ever equal to another weight.
inline float WeightOf(uint64_t turn) {
  uint64_t mixed = turn % kWeights;
  // Odd factors, and shifts to the right by at least half of the bits, map different numbers to
  // different ones.
  mixed = (mixed ^ (mixed >> 8)) * 0x9e3b % kWeights;
  mixed = (mixed ^ (mixed >> 9)) * 0x6a6d % kWeights;
  mixed ^= mixed >> 8;
  return 1.0f + (static_cast<float>(mixed) + 0.5f) / static_cast<float>(kWeights);
}

// The name of a deposit.
struct Ticket {
  uint64_t number = 0;  // deposits of a queue are counted from 1
  int place = -1;       // in [0, kPlaces); -1: nothing names the deposit
  float mark = 0.0f;
  float weight = 0.0f;

  double weighted() const { return double{mark} * weight; }
};

// Adds the mark of a ticket to the gradient of an anchor (kAnchorSize).
inline void AddMark(const Ticket& ticket, float* gradient) {
  gradient[ticket.place] += ticket.mark;
  gradient[kPlaces + ticket.place] += ticket.mark * ticket.weight;
}

// Adds the coordinates of a deposit.
inline void AddCoordinates(const Coordinates& coordinates, float* gradient) {
  for (int i = 0; i < kCoordinates; ++i) {
    gradient[2 * kPlaces + i] += static_cast<float>(coordinates[i]);
  }
}

}  // namespace sok
