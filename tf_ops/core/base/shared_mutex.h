// A lock for many readers or one writer, under which a writer is not starved.
#pragma once

#include <pthread.h>

namespace sok {

// A lock like std::shared_mutex, but a writer that waits goes before readers that come after it.
// With GNU's std::shared_mutex, readers overtake writers, so a steady stream of lookups would keep
// a commit waiting forever. A thread must not take the same mutex shared twice at once.
class SharedMutex {
 public:
  SharedMutex() {
    pthread_rwlockattr_t attributes;
    pthread_rwlockattr_init(&attributes);
#ifdef __GLIBC__
    pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
#endif
    pthread_rwlock_init(&lock_, &attributes);
    pthread_rwlockattr_destroy(&attributes);
  }
  ~SharedMutex() { pthread_rwlock_destroy(&lock_); }
  SharedMutex(const SharedMutex&) = delete;
  SharedMutex& operator=(const SharedMutex&) = delete;

  void lock() { pthread_rwlock_wrlock(&lock_); }
  void unlock() { pthread_rwlock_unlock(&lock_); }
  void lock_shared() { pthread_rwlock_rdlock(&lock_); }
  void unlock_shared() { pthread_rwlock_unlock(&lock_); }
  bool try_lock() { return pthread_rwlock_trywrlock(&lock_) == 0; }

 private:
  pthread_rwlock_t lock_;
};

// Holds a shared lock of every shard's `mu` for as long as the object lives; `shards` is a vector
// of pointers. The locks are taken in order: whoever waits for one holds only locks before it, so
// nobody waits in a circle.
template <typename Shards>
class SharedLocks {
 public:
  explicit SharedLocks(const Shards& shards) : shards_(shards) {
    for (const auto& shard : shards_) shard->mu.lock_shared();
  }
  ~SharedLocks() {
    for (const auto& shard : shards_) shard->mu.unlock_shared();
  }
  SharedLocks(const SharedLocks&) = delete;
  SharedLocks& operator=(const SharedLocks&) = delete;

 private:
  const Shards& shards_;
};

// Holds an exclusive lock of every shard's `mu`, taken in the same order.
template <typename Shards>
class ExclusiveLocks {
 public:
  explicit ExclusiveLocks(const Shards& shards) : shards_(shards) {
    for (const auto& shard : shards_) shard->mu.lock();
  }
  ~ExclusiveLocks() {
    for (const auto& shard : shards_) shard->mu.unlock();
  }
  ExclusiveLocks(const ExclusiveLocks&) = delete;
  ExclusiveLocks& operator=(const ExclusiveLocks&) = delete;

 private:
  const Shards& shards_;
};

}  // namespace sok
