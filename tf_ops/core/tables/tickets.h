// The tickets that the gradient of an anchor carries: they name deposits, and give the length of
// their sum.
//
// The anchor of a table is a vector of kAnchorSize numbers. The gradient that a deposit gives it
// holds a mark at the deposit's place, the same mark times the deposit's weight kPlaces behind it,
// and at the end the coordinates of what was deposited, which have the norm of the rows' gradients.
// The rest is 0. Gradients of several deposits add up. What reaches an optimizer says by the first
// how often, and by which factor, the deposits of a place are to be applied, and by the ratio of
// the two which of them.
//
// A mark follows the norm of what was deposited. A loss scale multiplies that norm before the
// deposit and divides the mark behind it, so the mark that an optimizer is given is as large by any
// scale: about 2^-54 of the norm of the gradients without one, or a step of marks more or less
// where others wait. That is nothing beside the norm, it is below what values are clipped to unless
// the norm is 2^29 times as much, and it stays a normal float32 unless the norm is less than 2^-64.
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

// Marks are powers of two, so that a factor comes out as it went in. Their exponents are multiples
// of kMarkStep: gradients of nearly the same norm have equal marks, and workers whose marks differ
// can still compare factors.
constexpr int kMarkStep = 16;
constexpr int kMarkBelowNorm = 54;      // binary digits, give or take half a step
constexpr int kLeastMark = -96;         // exponent; a smaller one would leave no room for factors
constexpr float kUnreadMark = 0x1p16f;  // where the norm is not read, so nothing is to be small

// Returns the mark of gradients of a norm that is finite and not 0.
inline float MarkOf(double norm) {
  const double steps = std::round((std::ilogb(norm) - kMarkBelowNorm) / double{kMarkStep});
  return std::ldexp(1.0f, std::max(kLeastMark, static_cast<int>(steps) * kMarkStep));
}

// Returns whether the two sums of a place have been multiplied by so little that nothing is left of
// them. Threads of TensorFlow take numbers below FLT_MIN for 0.
inline bool HasVanished(float sum, float weighted) {
  return std::abs(sum) < FLT_MIN && std::abs(weighted) < 2 * FLT_MIN;
}

// In (1, 2), another one for each of kWeights deposits that follow each other at a place. Means of
// some are hardly ever the weight of one.
inline float WeightOf(uint64_t turn) {
  uint64_t mixed = turn % kWeights;
  // Odd factors and shifts to the right of half the bits and more lose nothing.
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
