#include "core/base/interrupt.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <mutex>

namespace sok {
namespace {

std::atomic<int64_t> last_interrupt{-1};
std::atomic<void (*)(int)> next_handler{nullptr};

void Note(int signal) {
  last_interrupt.store(NowMilliseconds(), std::memory_order_relaxed);
  next_handler.load(std::memory_order_relaxed)(signal);
}

}  // namespace

int64_t NowMilliseconds() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void WatchInterrupts() {
  static auto* mu = new std::mutex;
  const std::lock_guard<std::mutex> guard(*mu);
  struct sigaction action;
  if (sigaction(SIGINT, nullptr, &action) != 0 || (action.sa_flags & SA_SIGINFO) != 0) return;
  const auto handler = action.sa_handler;
  if (handler == SIG_DFL || handler == SIG_IGN || handler == Note) return;
  next_handler.store(handler, std::memory_order_relaxed);
  action.sa_handler = Note;
  sigaction(SIGINT, &action, nullptr);
}

bool InterruptedSince(int64_t time, int64_t grace) {
  const int64_t last = last_interrupt.load(std::memory_order_relaxed);
  return last >= time && NowMilliseconds() >= last + grace;
}

}  // namespace sok
