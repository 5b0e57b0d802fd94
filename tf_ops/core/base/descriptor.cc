#include "core/base/descriptor.h"

#include <unistd.h>

namespace sok {

Descriptor* Descriptor::first_ = nullptr;

const int Descriptor::kRegistered = CallInChild(Descriptor::CloseInChild);

void Descriptor::CloseInChild() {
  while (first_ != nullptr) close(first_->Release());
}

void Descriptor::Hold(int fd) {
  fd_ = fd;
  if (fd < 0) return;
  before_ = nullptr;
  after_ = first_;
  if (after_ != nullptr) after_->before_ = this;
  first_ = this;
}

int Descriptor::Release() {
  const int fd = fd_;
  if (fd < 0) return fd;
  (before_ != nullptr ? before_->after_ : first_) = after_;
  if (after_ != nullptr) after_->before_ = before_;
  fd_ = -1;
  return fd;
}

Descriptor::Descriptor(int fd) {
  const std::lock_guard<std::mutex> no_fork(ForkMutex());
  Hold(fd);
}

Descriptor::Descriptor(Descriptor&& other) noexcept {
  const std::lock_guard<std::mutex> no_fork(ForkMutex());
  Hold(other.Release());
}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  const std::lock_guard<std::mutex> no_fork(ForkMutex());
  Take(other.Release(), no_fork);
  return *this;
}

void Descriptor::Close() {
  const std::lock_guard<std::mutex> no_fork(ForkMutex());
  Take(-1, no_fork);
}

void Descriptor::Take(int fd, const std::lock_guard<std::mutex>&) {
  if (valid()) close(Release());
  Hold(fd);
}

}  // namespace sok
