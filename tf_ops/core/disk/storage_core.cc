#include "core/disk/storage_core.h"

#include <unistd.h>

#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <utility>

#include "core/base/forked_child.h"
#include "core/base/status_macros.h"

namespace sok {
namespace {

constexpr std::chrono::seconds kMendPause(1);

}  // namespace

Status StorageCore::CheckProcess() const {
  if (!ForkedFromBackgroundThreads()) return Status();
  return Status(Code::kFailedPrecondition,
                "expected the storage '" + path +
                    "' in the process that opened it, got a call in " + "process " +
                    std::to_string(getpid()) +
                    ", forked from it; start processes with multiprocessing's 'spawn', and open "
                    "the storage in one of them");
}

void StorageCore::ChargeDatabase() {
  const uint64_t bytes = database->disk_use().key_bytes;
  memory.Charge(charged_.exchange(bytes), bytes);
}

Status StorageCore::CheckOpen() const {
  SOK_RETURN_IF_ERROR(CheckProcess());
  if (database == nullptr) {
    return Status(Code::kFailedPrecondition,
                  "the storage '" + path +
                      "' is closed, and its tables with it; open it again, and make the tables or "
                      "the model anew");
  }
  if (database->usable() && !resolve) return Status();
  SOK_RETURN_IF_ERROR(database->CheckNotStuck());
  return Status(Code::kInternal, "the storage '" + path +
                                     "' had to be opened again after an error, and that failed; "
                                     "what is in memory is kept, and the next call tries again");
}

Status StorageCore::CheckWritable() const {
  SOK_RETURN_IF_ERROR(CheckOpen());
  if (!read_only) return database->CheckFolder();
  return Status(Code::kPermissionDenied, "the storage '" + path +
                                             "' was opened read-only; open it for writing to "
                                             "train it, or look up without making rows");
}

bool StorageCore::ShouldMend(bool to_write) const {
  if (database == nullptr || read_only) return false;
  if (!database->usable() || resolve || (to_write && journal != nullptr && journal->broken()))
    return true;
  const bool wanted = database->failed() || (journal != nullptr && journal->full(/*twice=*/true));
  return to_write && wanted && std::chrono::steady_clock::now() >= next_mend_;
}

Status StorageCore::Recover() {
  if (Status status = database->Recover(); !status.ok() || !resolve) return status;
  const Status status = resolve();
  if (status.ok()) resolve = nullptr;
  return status;
}

Status StorageCore::Mend(bool to_write) {
  Status status = Recover();
  if (status.ok() && to_write && journal != nullptr &&
      (journal->broken() || journal->full(/*twice=*/true))) {
    status = flush ? flush() : Status();
  }
  if (!status.ok()) PauseMending();
  return status;
}

void StorageCore::PauseMending() { next_mend_ = std::chrono::steady_clock::now() + kMendPause; }

Result<StorageCore::Entrance> StorageCore::Enter(bool to_write) {
  SOK_RETURN_IF_ERROR(CheckProcess());
  Entrance entrance(gate);
  if (ShouldMend(to_write)) {
    entrance.unlock();
    {
      const Alone alone = TakeAlone();
      if (ShouldMend(to_write)) {
        const Status status = Mend(to_write);
        // Without the database, or with a journal that cannot go on, nothing can.
        const bool needed =
            !database->usable() || resolve || (to_write && journal != nullptr && journal->broken());
        if (!status.ok() && needed) return status;
      }
    }
    entrance.lock();
  }
  SOK_RETURN_IF_ERROR(to_write ? CheckWritable() : CheckOpen());
  if (to_write && journal != nullptr && journal->full() && ask_flush &&
      std::chrono::steady_clock::now() >= next_mend_) {
    ask_flush();
  }
  return Result<Entrance>(std::move(entrance));
}

struct StorageCore::Publishing {
  std::function<void(const Status&)> end;
  std::mutex mu;
  std::condition_variable changed;
  std::optional<Status> written;  // what write() did; guarded by mu
};

std::shared_ptr<StorageCore::Publishing> StorageCore::publishing() const {
  const std::lock_guard<std::mutex> lock(publishing_mu_);
  return publishing_;
}

StorageCore::Alone StorageCore::TakeAlone() {
  for (;;) {
    if (const auto current = publishing(); current != nullptr) {
      std::unique_lock<std::mutex> lock(current->mu);
      current->changed.wait(lock, [&] { return current->written.has_value(); });
    }
    Alone alone(gate);
    if (EndPublishing()) return alone;
  }
}

bool StorageCore::EndPublishing() {
  const auto current = publishing();
  if (current == nullptr) return true;
  {
    const std::lock_guard<std::mutex> lock(current->mu);
    if (!current->written.has_value()) return false;  // begun since the caller looked
  }
  {
    const std::lock_guard<std::mutex> lock(publishing_mu_);
    publishing_ = nullptr;
  }
  static_cast<void>(OrNoMemory([&] {
    current->end(*current->written);
    return Status();
  }));
  return true;
}

Status StorageCore::Publish(const std::function<Status()>& write,
                            std::function<void(const Status&)> end, Alone* gate) {
  const auto started = std::make_shared<Publishing>();
  started->end = std::move(end);
  {
    const std::lock_guard<std::mutex> lock(publishing_mu_);
    publishing_ = started;
  }
  gate->unlock();
  Status written;
  try {
    written = OrNoMemory(write);
  } catch (const std::exception& error) {  // such as one of std::random_device
    written = OrNoMemory([&] { return Status(Code::kInternal, error.what()); });
  }
  {
    const std::lock_guard<std::mutex> lock(started->mu);
    started->written = written;
  }
  started->changed.notify_all();
  *gate = TakeAlone();
  return written;
}

Status StorageCore::WriteAtRest(const std::function<Status()>& call) {
  const Status status = call();
  if (status.ok() || !database->failed() || !Recover().ok()) return status;
  return call();
}

}  // namespace sok
