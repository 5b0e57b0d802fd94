// Walks through the rows of a database, the newest version of each.
#include <rocksdb/db.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status_macros.h"
#include "core/disk/rocksdb/pending_rows.h"
#include "core/disk/rocksdb/rocksdb_setup.h"
#include "core/disk/rocksdb/row_database.h"
#include "core/disk/rocksdb/row_database_handles.h"

namespace sok {

// Iterates over rows that are newer than published ones, in the order of the keys.
class RowDatabase::NewerRows {
 public:
  virtual ~NewerRows() = default;
  virtual void Seek(std::string_view key) = 0;
  virtual bool Valid() const = 0;
  virtual void Next() = 0;
  virtual std::string_view key() const = 0;
  virtual std::string_view value() const = 0;
  virtual Status status() const = 0;
};

std::unique_ptr<RowDatabase::NewerRows> RowDatabase::IterateNewer() const {
  class Pending final : public NewerRows {
   public:
    explicit Pending(const RowDatabase& database) : rows_(database, /*set_apart=*/false) {}
    void Seek(std::string_view key) override { rows_.Seek(key); }
    bool Valid() const override { return rows_.Valid(); }
    void Next() override { rows_.Next(); }
    std::string_view key() const override { return rows_.key(); }
    std::string_view value() const override { return rows_.value(); }
    Status status() const override { return rows_.status(); }

   private:
    PendingRows rows_;
  };
  class OfJournal final : public NewerRows {
   public:
    explicit OfJournal(const JournalReader& journal) : journal_(journal) {}
    void Seek(std::string_view key) override {
      const auto& places = journal_.places();
      at_ = std::lower_bound(places.begin(), places.end(), key,
                             [](const JournalReader::Place& place, std::string_view wanted) {
                               return place.key.view() < wanted;
                             });
      Load();
    }
    bool Valid() const override { return status_.ok() && at_ != journal_.places().end(); }
    void Next() override {
      ++at_;
      Load();
    }
    std::string_view key() const override { return at_->key.view(); }
    std::string_view value() const override { return value_; }
    Status status() const override { return status_; }

   private:
    void Load() {
      if (Valid()) status_ = journal_.Read(*at_, &value_);
    }
    const JournalReader& journal_;
    std::vector<JournalReader::Place>::const_iterator at_;
    std::string value_;
    Status status_;
  };
  if (journal_ != nullptr) return std::make_unique<OfJournal>(*journal_);
  if (!has_pending()) return nullptr;
  return std::make_unique<Pending>(*this);
}

class RowDatabase::RowRef final : public View {
 public:
  RowRef(const RowDatabase* database, int group, Key from)
      : database_(*database),
        group_(group),
        first_(group < 0 ? "" : std::string(RowKey(group, from).view())),
        published_(database->handles_->IterateWhole(database->handles_->published)),
        newer_(database->IterateNewer()) {}

  Status ForEach(const Visit& fn) override {
    published_->Seek(first_);
    if (newer_ != nullptr) newer_->Seek(first_);
    while (OldLeft() || NewLeft()) {
      int order = 1;
      if (OldLeft()) {
        order = NewLeft() ? published_->key().compare(SliceOf(newer_->key())) : -1;
      }
      const std::string_view key = order < 0 ? ViewOf(published_->key()) : newer_->key();
      const std::string_view value = order < 0 ? ViewOf(published_->value()) : newer_->value();
      if (key.size() == RowKey::kBytes && !value.empty()) {
        Status status = fn(RowKey::Group(key), RowKey::KeyOf(key), value);
        // fn may have called the database and found it stuck.
        if (status.ok()) status = database_.CheckNotStuck();
        if (!status.ok()) return status;
      }
      if (order <= 0) published_->Next();
      if (order >= 0) newer_->Next();
    }
    if (!published_->status().ok()) {
      return FromRocksdb(published_->status(), "read rows of '" + database_.path() + "'");
    }
    return newer_ == nullptr ? Status() : newer_->status();
  }

 private:
  bool InGroup(std::string_view key) const { return group_ < 0 || key[0] == first_[0]; }
  bool OldLeft() const { return published_->Valid() && InGroup(ViewOf(published_->key())); }
  bool NewLeft() const { return newer_ != nullptr && newer_->Valid() && InGroup(newer_->key()); }

  const RowDatabase& database_;
  const int group_;
  const std::string first_;
  const Handles::Iterator published_;
  const std::unique_ptr<NewerRows> newer_;
};

Result<std::unique_ptr<Database::View>> RowDatabase::Look(int group, Key from) const {
  SOK_RETURN_IF_ERROR(CheckNotStuck());
  return std::unique_ptr<View>(std::make_unique<RowRef>(this, group, from));
}

}  // namespace sok
