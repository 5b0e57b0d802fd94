#include "core/tables/table_capture.h"

#include <mutex>
#include <unordered_map>
#include <utility>

namespace sok {
namespace {

struct Waiting {
  std::mutex mu;
  uint64_t last = 0;
  std::unordered_map<uint64_t, TableCapture> captures;
};

Waiting& WaitingCaptures() {
  static auto* const waiting = new Waiting;
  return *waiting;
}

}  // namespace

uint64_t HandOver(TableCapture capture) {
  Waiting& waiting = WaitingCaptures();
  std::lock_guard<std::mutex> guard(waiting.mu);
  waiting.captures.emplace(++waiting.last, std::move(capture));
  return waiting.last;
}

std::optional<TableCapture> TakeCapture(uint64_t number) {
  Waiting& waiting = WaitingCaptures();
  std::lock_guard<std::mutex> guard(waiting.mu);
  const auto found = waiting.captures.find(number);
  if (found == waiting.captures.end()) return std::nullopt;
  TableCapture capture = std::move(found->second);
  waiting.captures.erase(found);
  return std::optional<TableCapture>(std::move(capture));
}

}  // namespace sok
