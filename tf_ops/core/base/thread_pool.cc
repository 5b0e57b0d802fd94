#include "core/base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <system_error>

#include "core/base/forked_child.h"

namespace sok {
namespace {

// Each thread gets several chunks, so that a delayed thread does not delay the whole job.
constexpr int64_t kChunksPerThread = 4;

std::atomic<ThreadPool*> process_pool{nullptr};

// After a fork the threads exist only in the parent process, and one of them may hold a lock. So
// the child neither uses nor frees the pool.
void ForgetPool() { process_pool.store(nullptr, std::memory_order_relaxed); }

[[maybe_unused]] const int kRegistered = CallInChild(ForgetPool);

// The pool is made without a lock, since a fork could leave the lock locked in the child.
ThreadPool& PoolOfProcess() {
  ThreadPool* pool = process_pool.load(std::memory_order_acquire);
  if (pool != nullptr) return *pool;
  auto made = std::make_unique<ThreadPool>(static_cast<int>(std::thread::hardware_concurrency()));
  if (process_pool.compare_exchange_strong(pool, made.get(), std::memory_order_acq_rel)) {
    pool = made.release();  // never freed: threads may still work while the process exits
  }
  return *pool;
}

}  // namespace

struct ThreadPool::Job {
  Job(const std::function<void(int64_t, int64_t)>& run, int64_t items, int64_t most_at_once)
      : fn(run), total(items), chunk(most_at_once) {}

  const std::function<void(int64_t, int64_t)>& fn;
  const int64_t total;
  const int64_t chunk;
  std::atomic<int64_t> next{0};
  // Guarded by the pool's mutex:
  int helpers = 0;
  std::condition_variable alone;  // notified once there are no helpers
  // Guarded by failure_mu:
  std::mutex failure_mu;
  std::exception_ptr failure;
};

void ThreadPool::RunChunks(Job* job) {
  for (;;) {
    // Threads that find no items left add to `next` once each, which is far from an overflow.
    const int64_t begin = job->next.fetch_add(job->chunk, std::memory_order_relaxed);
    if (begin >= job->total) return;
    try {
      job->fn(begin, std::min(job->chunk, job->total - begin) + begin);
    } catch (...) {
      std::lock_guard<std::mutex> guard(job->failure_mu);
      if (job->failure == nullptr) job->failure = std::current_exception();
      job->next.store(job->total, std::memory_order_relaxed);  // the remaining items are skipped
    }
  }
}

void ThreadPool::Run(int64_t total, int64_t unit_cost,
                     const std::function<void(int64_t, int64_t)>& fn) {
  if (total <= 0) return;
  const int64_t least = unit_cost <= 0
                            ? total
                            : std::max<int64_t>(1, (kChunkNanoseconds + unit_cost - 1) / unit_cost);
  const int64_t most_chunks = kChunksPerThread * std::max(threads_, 1);
  const int64_t chunk = std::max(least, total / most_chunks + (total % most_chunks != 0));
  if (threads_ <= 1 || chunk >= total) {
    fn(0, total);
    return;
  }

  Job job(fn, total, chunk);
  {
    std::lock_guard<std::mutex> guard(mu_);
    if (!started_) Start();
    jobs_.push_back(&job);
  }
  const int64_t others = std::min<int64_t>(threads_ - 1, (total - 1) / chunk);
  for (int64_t i = 0; i < others; ++i) wake_.notify_one();
  RunChunks(&job);
  std::unique_lock<std::mutex> lock(mu_);
  jobs_.erase(std::remove(jobs_.begin(), jobs_.end(), &job), jobs_.end());
  job.alone.wait(lock, [&] { return job.helpers == 0; });
  lock.unlock();
  if (job.failure != nullptr) std::rethrow_exception(job.failure);
}

void ThreadPool::Start() {
  started_ = true;
  for (int i = 1; i < threads_; ++i) {
    try {
      workers_.emplace_back([this] { Work(); });
    } catch (const std::system_error&) {
      return;
    }
  }
}

void ThreadPool::Work() {
  std::unique_lock<std::mutex> lock(mu_);
  for (;;) {
    wake_.wait(lock, [this] { return ending_ || !jobs_.empty(); });
    if (ending_) return;
    Job* const job = jobs_.front();
    ++job->helpers;
    lock.unlock();
    RunChunks(job);
    lock.lock();
    jobs_.erase(std::remove(jobs_.begin(), jobs_.end(), job), jobs_.end());
    // The lock is held here, since the job may be destroyed as soon as its caller gets the lock.
    if (--job->helpers == 0) job->alone.notify_one();
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard<std::mutex> guard(mu_);
    ending_ = true;
  }
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

ParallelFor ProcessPool() {
  return [](int64_t total, int64_t unit_cost, const std::function<void(int64_t, int64_t)>& fn) {
    PoolOfProcess().Run(total, unit_cost, fn);
  };
}

void EndProcessPool() { delete process_pool.exchange(nullptr, std::memory_order_acq_rel); }

}  // namespace sok
