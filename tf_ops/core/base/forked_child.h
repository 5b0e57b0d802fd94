// Handles children that are forked from this process. Their memory holds the state of threads that
// do not run in them, and they have its open files and sockets: a lock would stay while a child
// lives, and workers would not notice that this process has ended. All that the library holds is
// let go here, in one place, in each child:
//
//   locks of folders, sockets, epoll     closed: each is a Descriptor
//   the pool of threads                  forgotten: the child makes its own
//   threads of one job, of a file        left alone, as ThreadOfProcess says
//   storages                             refuse calls (ForkedFromBackgroundThreads)
//   a mesh                               refuses exchanges, by the number of its process
//   mapped files, rows in memory         stay as they are: the child has a copy
#pragma once

#include <mutex>
#include <thread>
#include <utility>

#include "core/base/status.h"

namespace sok {

// Returns the mutex that a thread which forks holds meanwhile. A thread that holds it opens a file
// and has it closed in children, without a child that is forked in between.
std::mutex& ForkMutex();

// Has children call a function as they begin. It must not take locks or allocate memory. Returns 0,
// so that the initial value of a static variable can call it.
int CallInChild(void (*function)());

// A thread that is joined by the process that has started it, and by no child of that.
class ThreadOfProcess {
 public:
  ThreadOfProcess() = default;
  ~ThreadOfProcess() { Join(); }
  ThreadOfProcess(const ThreadOfProcess&) = delete;

  // Errors: std::system_error as std::thread throws it.
  template <typename Function>
  void Start(Function&& function) {
    thread_ = std::thread(std::forward<Function>(function));
    process_ = ThisProcess();
  }
  bool is_started() const { return thread_.joinable(); }
  // Returns true in a child of the process that has started the thread.
  bool is_elsewhere() const { return is_started() && process_ != ThisProcess(); }
  // Waits for the thread. In a child there is nothing to wait for.
  void Join();

 private:
  static int ThisProcess();

  std::thread thread_;
  int process_ = 0;
};

// The rest is for storages. RocksDB waits for its own threads when the process exits; in a forked
// child that wait would never end.

// Must be called before a storage is opened. From here on, children that this process forks cannot
// open storages. When they exit, they skip static destructors and the functions that were given to
// atexit() before the fork, which belong to the parent. Their stdio streams are flushed. Errors:
// kFailedPrecondition in such a child. Thread-safe.
Status StartBackgroundThreads();

// Returns whether this process was forked from one that had called StartBackgroundThreads. Its
// storage objects then belong to its parent.
bool ForkedFromBackgroundThreads();

}  // namespace sok
