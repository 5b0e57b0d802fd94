// Counts which deposits wait at which place of an anchor's gradient. Internal to this room.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>

#include "core/base/hash.h"
#include "core/tables/tickets.h"

namespace sok {

// Gives deposits their tickets, and counts the deposits that wait at each place. Not thread-safe.
class TicketPlaces {
 public:
  // Returns the ticket of a deposit that no anchor's gradient names.
  Ticket GiveUnnamed() { return {++tickets_}; }

  // Returns the ticket of a deposit, which waits from now on. `norm` is the norm of its gradients;
  // nullopt: no optimizer reads it. Gradients whose norm is 0 or not finite get the mark of the
  // last gradients with another norm.
  Ticket Give(std::optional<double> norm) {
    float mark = kUnreadMark;
    if (norm.has_value()) {
      if (*norm > 0.0 && std::isfinite(*norm)) last_mark_ = MarkBeside(MarkOf(*norm));
      mark = last_mark_;
    }
    Ticket ticket{++tickets_};
    ticket.place = FindFor(ticket.number, mark);
    Place& place = places_[static_cast<size_t>(ticket.place)];
    place.is_mixed = place.waiting > 0 && (place.is_mixed || place.mark != mark);
    place.mark = mark;
    ++place.waiting;
    ++waiting_;
    ticket.mark = mark;
    ticket.weight = WeightOf(first_turn_ + place.turns++);
    return ticket;
  }

  // Notes that a deposit does not wait any longer.
  void Leave(const Ticket& ticket) {
    if (ticket.place < 0) return;
    --places_[static_cast<size_t>(ticket.place)].waiting;
    --waiting_;
  }

 private:
  struct Place {
    uint32_t waiting = 0;
    bool is_mixed = false;  // deposits with marks of different size wait here
    float mark = 0.0f;      // of the last ticket
    uint64_t turns = 0;     // tickets so far
  };

  // Returns `own`, or the last mark if deposits wait and the two marks are at most one step apart.
  // Otherwise norms near the border of two marks would make deposits with both marks wait, and
  // these would mix at a place as soon as there are more than kPlaces.
  float MarkBeside(float own) const {
    const int apart = std::abs(std::ilogb(own) - std::ilogb(last_mark_));
    return waiting_ > 0 && apart <= kMarkStep ? last_mark_ : own;
  }

  // Returns the place at which the fewest deposits wait. Places of other marks are the last choice:
  // in a sum of marks of different size the smaller one may be lost.
  int FindFor(uint64_t number, float mark) const {
    int found = 0;
    uint64_t least = UINT64_MAX;
    for (uint64_t i = 0; i < kPlaces; ++i) {
      const auto at = static_cast<size_t>((number + i) % kPlaces);
      const Place& place = places_[at];
      if (place.waiting == 0) return static_cast<int>(at);
      const bool fits = !place.is_mixed && place.mark == mark;
      const uint64_t cost = place.waiting + (fits ? 0 : uint64_t{1} << 32);
      if (cost >= least) continue;
      least = cost;
      found = static_cast<int>(at);
    }
    return found;
  }

  // Another one in each process and queue: an anchor's gradient that has come from elsewhere, by a
  // file of an optimizer that accumulates, must not be taken for that of a deposit that waits here.
  static uint64_t FirstTurn(const void* queue) {
    const auto now = std::chrono::system_clock::now().time_since_epoch().count();
    return Mix64(static_cast<uint64_t>(now) ^ reinterpret_cast<uintptr_t>(queue));
  }

  const uint64_t first_turn_ = FirstTurn(this);
  uint64_t tickets_ = 0;
  uint64_t waiting_ = 0;  // deposits at all places
  float last_mark_ = MarkOf(1.0);
  std::array<Place, kPlaces> places_{};
};

}  // namespace sok
