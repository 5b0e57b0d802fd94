// A database whose writes fail when a test wants it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "core/disk/database.h"

namespace sok {

// Chooses which of the calls that write, sync, publish or open fail, counted over all databases of
// a run.
struct PlantedFaults {
  int64_t first = -1;  // the number of the first call that fails; -1: none
  bool last = false;   // all calls after it fail, too, until Mend
  // True if a call that publishes takes effect before it fails, as one may whose last sync fails.
  bool happened = false;
  std::atomic<int64_t> calls{0};
  std::atomic<bool> hit{false};
  std::atomic<bool> mended{false};
  std::function<void(Database*)> before_look;  // called before all rows are read; null: nothing is
  std::function<void()> before_finish;         // called before rows are published; null: nothing is
  std::function<void()> after_read;            // called after rows were read; null: nothing is

  bool Next() {
    const int64_t call = calls++;
    if (mended || first < 0) return false;
    const bool fails = call == first || (last && call > first);
    hit = hit || fails;
    return fails;
  }
  void Mend() { mended = true; }
};

inline Status Planted(const std::string& path) {
  return Status(Code::kResourceExhausted, "planted: no space for '" + path + "'");
}

// A database that, like RocksDB, writes nothing more after an error, until Recover.
class FailingDatabase final : public Database {
 public:
  // Returns an opener whose databases are those of `open`, with faults.
  static Opener Over(const Opener& open, std::shared_ptr<PlantedFaults> faults) {
    return [open, faults](const Options& options) -> Result<std::unique_ptr<Database>> {
      if (faults->Next()) return Planted(options.path);
      auto inner = open(options);
      if (!inner.ok()) return inner.status();
      return std::unique_ptr<Database>(new FailingDatabase(std::move(inner.value()), faults));
    };
  }

  Status Read(const RowKey* keys, size_t n, const Found& found) const override {
    const Status status = usable_ ? inner_->Read(keys, n, found) : Planted(path());
    if (faults_->after_read) faults_->after_read();
    return status;
  }
  Status ReadPublished(const RowKey* keys, size_t n, const Found& found) const override {
    return usable_ ? inner_->ReadPublished(keys, n, found) : Planted(path());
  }
  Result<std::unique_ptr<View>> Look(int group, Key from) const override {
    if (!usable_) return Planted(path());
    if (faults_->before_look) faults_->before_look(inner_.get());
    return inner_->Look(group, from);
  }
  Result<std::map<std::string, std::string>> ReadMeta(const std::string& prefix) const override {
    if (!usable_) return Planted(path());
    return inner_->ReadMeta(prefix);
  }

  Status WritePending(const RowBatch& batch) override {
    if (batch.rows() == 0) return Status();  // what leaves the cache is on disk already
    // Lookups write what leaves the cache, and nothing is mended for them: a real RocksDB is
    // resumed here.
    return faults_->Next() ? Fail() : inner_->WritePending(batch);
  }
  Status WritePublished(const RowBatch& batch, const Meta& meta, bool sync) override {
    return Write([&] { return inner_->WritePublished(batch, meta, sync); }, /*publishes=*/true);
  }
  std::unique_ptr<Publication> StartPublication() override {
    return std::make_unique<FailingPublication>(this, inner_->StartPublication());
  }
  Status SetPendingApart() override {
    return Write([&] { return inner_->SetPendingApart(); });
  }
  bool has_set_apart() const override { return inner_->has_set_apart(); }
  std::unique_ptr<Publication> StartPublicationOfSetApart() override {
    return std::make_unique<FailingPublication>(this, inner_->StartPublicationOfSetApart());
  }
  void DropSetApart() override { inner_->DropSetApart(); }
  void ShowJournal(std::unique_ptr<JournalReader> journal, Meta meta) override {
    inner_->ShowJournal(std::move(journal), std::move(meta));
  }
  Status DropPending() override {
    // Nobody sees what is pending any more, also after an error.
    const Status dropped = inner_->DropPending();
    return Write([&] { return dropped; });
  }
  bool has_pending() const override { return inner_->has_pending(); }

  Status Recover() override {
    if (faults_->Next()) {  // RocksDB is closed by now, and not open again
      usable_ = false;
      return Fail();
    }
    Status status = inner_->Recover();
    if (status.ok()) {
      failed_ = false;
      usable_ = true;
    }
    return status;
  }
  bool usable() const override { return usable_ && inner_->usable(); }
  Status CheckNotStuck() const override { return inner_->CheckNotStuck(); }
  bool failed() const override { return failed_ || inner_->failed(); }
  Status CheckFolder() const override { return inner_->CheckFolder(); }
  uint64_t writes_in_doubt() const override { return in_doubt_ + inner_->writes_in_doubt(); }
  void AddWriteInDoubt() override { inner_->AddWriteInDoubt(); }
  Result<bool> FailedPublicationIsThere() const override {
    if (last_finish_ == Outcome::kByInner) return inner_->FailedPublicationIsThere();
    return last_finish_ == Outcome::kHappened;
  }

  History history() const override { return inner_->history(); }
  Status Checkpoint(const std::string& path) const override {
    return faults_->Next() ? Planted(path) : inner_->Checkpoint(path);
  }
  Status DropLog() override {
    return Write([&] { return inner_->DropLog(); });
  }
  Status Compact() override {
    return Write([&] { return inner_->Compact(); });
  }
  DiskUse disk_use() const override { return inner_->disk_use(); }
  const std::string& path() const override { return inner_->path(); }

 private:
  enum class Outcome { kByInner, kHappened, kFailed };

  class FailingPublication final : public Publication {
   public:
    FailingPublication(FailingDatabase* database, std::unique_ptr<Publication> inner)
        : database_(*database), inner_(std::move(inner)) {}
    Status Add(const RowKey& key, const RowHeader& header, std::string_view values,
               bool is_new) override {
      return Take([&] { return inner_->Add(key, header, values, is_new); });
    }
    Status AddValue(const RowKey& key, std::string_view value) override {
      return Take([&] { return inner_->AddValue(key, value); });
    }
    Status Finish(Meta meta) override {
      if (!error_.ok()) return error_;
      if (database_.faults_->before_finish) database_.faults_->before_finish();
      database_.last_finish_ = Outcome::kByInner;
      Status status =
          database_.Write([&] { return inner_->Finish(std::move(meta)); }, /*publishes=*/true);
      if (database_.planted_) {
        database_.last_finish_ =
            database_.faults_->happened ? Outcome::kHappened : Outcome::kFailed;
      }
      return status;
    }

   private:
    // Every hundredth row counts as a call, since blocks reach the disk now and then.
    template <typename Add>
    Status Take(const Add& add) {
      if (error_.ok() && rows_++ % 100 == 0) {
        error_ = database_.Write(add);
      } else if (error_.ok()) {
        error_ = add();
      }
      return error_;
    }

    FailingDatabase& database_;
    std::unique_ptr<Publication> inner_;
    Status error_;
    uint64_t rows_ = 0;
  };

  FailingDatabase(std::unique_ptr<Database> inner, std::shared_ptr<PlantedFaults> faults)
      : inner_(std::move(inner)), faults_(std::move(faults)) {}

  Status Fail() {
    failed_ = true;
    return Planted(path());
  }
  // Makes a call that writes, unless it is to fail.
  template <typename Call>
  Status Write(const Call& call, bool publishes = false) {
    const bool planted = failed_ || faults_->Next();
    planted_ = planted;
    if (!planted) return call();
    if (publishes && !failed_ && faults_->happened) {
      if (Status status = call(); !status.ok()) return status;
    }
    if (publishes) ++in_doubt_;
    return Fail();
  }

  const std::unique_ptr<Database> inner_;
  const std::shared_ptr<PlantedFaults> faults_;
  std::atomic<bool> failed_{false};
  std::atomic<bool> usable_{true};
  std::atomic<bool> planted_{false};  // the last write was to fail
  std::atomic<uint64_t> in_doubt_{0};
  Outcome last_finish_ = Outcome::kByInner;
};

}  // namespace sok
