#include "core/base/forked_child.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace sok {
namespace {

// Never freed: other threads may work while the process exits.
std::vector<void (*)()>& Functions() {
  static auto* functions = new std::vector<void (*)()>;
  return *functions;
}

void BeforeFork() { ForkMutex().lock(); }

void InParent() { ForkMutex().unlock(); }

void InChild() {
  for (void (*function)() : Functions()) function();
  ForkMutex().unlock();
}

std::atomic<bool> started{false};
std::atomic<bool> forked{false};

void LeaveAtOnce(int status, void*) {
  std::fflush(nullptr);
  _exit(status);
}

// Functions given to on_exit run last one first, so this one runs before every destructor of the
// parent process.
void MarkChild() {
  if (!started.load(std::memory_order_relaxed)) return;
  forked.store(true, std::memory_order_relaxed);
  on_exit(LeaveAtOnce, nullptr);
}

[[maybe_unused]] const int kRegistered = pthread_atfork(BeforeFork, InParent, InChild);
[[maybe_unused]] const int kMarked = CallInChild(MarkChild);

}  // namespace

std::mutex& ForkMutex() {
  static auto* mu = new std::mutex;
  return *mu;
}

int CallInChild(void (*function)()) {
  const std::lock_guard<std::mutex> guard(ForkMutex());
  Functions().push_back(function);
  return 0;
}

int ThreadOfProcess::ThisProcess() { return getpid(); }

void ThreadOfProcess::Join() {
  if (!is_started()) return;
  if (is_elsewhere()) {
    new std::thread(std::move(thread_));  // nothing can be done with it here, not even detach
  } else {
    thread_.join();
  }
}

bool ForkedFromBackgroundThreads() { return forked.load(std::memory_order_relaxed); }

Status StartBackgroundThreads() {
  if (!ForkedFromBackgroundThreads()) {
    started.store(true, std::memory_order_relaxed);
    return Status();
  }
  return Status(Code::kFailedPrecondition,
                "expected a process whose parent had opened no storage before it forked, got "
                "process " +
                    std::to_string(getpid()) + ", forked from process " +
                    std::to_string(getppid()) +
                    " after that one had, without the threads that storages work with; start "
                    "processes with multiprocessing's 'spawn', or fork before the first storage "
                    "is opened");
}

}  // namespace sok
