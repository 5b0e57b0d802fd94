// The descriptors that this process holds open, and that no child of it keeps.
#pragma once

#include <mutex>

#include "core/base/forked_child.h"

namespace sok {

// Owns a file descriptor. A child that is forked closes it as it begins, and has none here.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd);
  ~Descriptor() { Close(); }
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  Descriptor(const Descriptor&) = delete;

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Close();
  // Closes what it has, and takes over `fd`. The caller holds ForkMutex since before it was opened,
  // so that there is no child that has it.
  void Take(int fd, const std::lock_guard<std::mutex>& no_fork);

 private:
  static Descriptor* first_;
  static void CloseInChild();

  // The parts of the functions above that are called with ForkMutex held.
  void Hold(int fd);
  int Release();

  int fd_ = -1;
  // The neighbours in the list of all that are valid. Guarded by ForkMutex.
  Descriptor *before_ = nullptr, *after_ = nullptr;

  static const int kRegistered;
};

}  // namespace sok
