// A folder of tables: every group of a storage is a table whose rows lie on disk.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/repeated_job.h"
#include "core/base/status.h"
#include "core/disk/durable_store.h"
#include "core/disk/storage_core.h"
#include "core/dump/piece.h"
#include "core/dump/progress.h"
#include "core/policies/admission.h"
#include "core/tables/table.h"

namespace sok {

class RowsFileWriter;

struct StorageOptions {
  std::string path;
  // The seconds that a row is kept after its last update; 0: no limit. Unset: the TTL of the
  // folder, or 0 for a new folder.
  std::optional<uint32_t> ttl;
  // If true, an existing folder gets another TTL only together with the first rows that are loaded.
  // Until then this process treats rows as expired by the new TTL, but removes none because of it.
  bool ttl_with_load = false;
  // The memory for cached rows, in bytes. Indexes of rows and what the database keeps in memory of
  // its keys are part of it: see CacheMemory. The rest of RocksDB's memory comes on top: see
  // kBlockCacheBytes and kMemtableBytes.
  uint64_t cache_bytes = uint64_t{256} << 20;
  // The largest number of evicted rows in the spill file. Unset: as many as an index of a quarter
  // of cache_bytes, or of 32 MiB, has places for.
  std::optional<uint64_t> spill_rows;
  // False: after a kill the storage is as the last Flush or Checkpoint that returned has left it.
  // True: the changes of every call that returned survive too: updates, assignments, removals,
  // restores.
  bool write_through = false;
  // With write_through: true if these changes must survive a power failure, too.
  bool sync = false;
  // A flush of at most so many bytes of rows goes through RocksDB's log in one batch.
  uint64_t batch_bytes = uint64_t{16} << 20;
  // The length in bytes at which the journal is published.
  uint64_t journal_bytes = Journal::kMostBytes;
  bool read_only = false;
  // True if a group may be opened with another rule than its rows have been trained with; their
  // slots start anew then. See SetResetSlots.
  bool reset_slots = false;
  // True if a group may be opened with an initializer that differs from its own. See
  // SetResetInitializer.
  bool reset_initializer = false;
  std::function<uint32_t()> now;   // seconds since 1970; null: the system's clock
  Database::Opener open_database;  // null: RocksDB
};

// Selects the rows of a dump.
struct DumpFilter {
  int group = -1;                 // -1: all groups
  uint32_t min_count = 0;         // at least so many updates
  std::optional<uint32_t> newer;  // rows updated after this time, in seconds since 1970
};

// A group as it is on disk.
struct GroupInfo {
  int group = 0;
  GroupMeta meta;
};

// The counts of a walk over all rows of a group.
struct GroupSurvey {
  uint64_t rows = 0;     // not expired
  uint64_t expired = 0;  // rows that have expired and were not removed yet
  uint64_t bytes = 0;    // keys and values of both
  // Rows by the time since their last update: below an hour, a day, a week, 30 days, 90 days, a
  // year, and above.
  static constexpr uint32_t kAges[] = {3600, 86400, 604800, 2592000, 7776000, 31536000};
  uint64_t by_age[7] = {};
  // Rows by the number of their updates: 0, 1, 2 to 3, 4 to 7, …: [i] counts from 2^(i-1) on.
  uint64_t by_updates[33] = {};
};

struct StoredRow {
  RowMeta meta;
  std::vector<float> floats;  // the embedding, then the slots, if it has any
};

// Some rows of a group, one after the other.
struct RowPage {
  std::vector<Key> keys;
  std::vector<float> embeddings;  // (keys, dim)
  bool last = false;              // none come after these
};

// Thread-safe.
class Storage : public std::enable_shared_from_this<Storage> {
 public:
  static constexpr int kGroups = 256;

  // Opens a storage, and makes its folder if there is none, unless read_only.
  // Errors: those of Database::Opener, and kInvalidArgument for a cache below 1 MiB.
  static Result<std::shared_ptr<Storage>> Open(const StorageOptions& options);
  // Returns the storage that this process has open in a folder, which may have several names; or
  // null.
  static std::shared_ptr<Storage> FindOpen(const std::string& path);
  // Closes the storage, and prints an error of that on stderr.
  ~Storage();

  // Returns the table of spec.group, and makes it if there is none. It lives as long as the storage
  // is open; later calls for the group return the same one. The description of the group has the
  // eviction that it was opened with last. `rule`: the row optimizer that trains it; empty: any
  // that commits. reset_slots: the rule may differ from the group's; then all rows lose their slots
  // and update counts, in one atomic step. reset_initializer: the initializer may differ from the
  // group's; rows that are made from now on start from it. Errors: kInvalidArgument if the group
  // was made with another dim, initializer, rule or admission, or is open with another eviction,
  // naming both; kNotFound for a group that a read-only storage does not have.
  Result<std::shared_ptr<Table>> OpenTable(const TableSpec& spec, const std::string& rule = "",
                                           const std::vector<Hyper>& hypers = {},
                                           bool reset_slots = false,
                                           bool reset_initializer = false);

  // Makes everything so far durable, in one atomic step. After an error nothing is lost: rows stay
  // where they are, and another Flush tries again. It writes the rows of one moment, at the call or
  // a little later, and most of the work is done while calls of tables run. Without `wait` a thread
  // does it: the call returns at once, and if that thread has an earlier flush under way, another
  // begins when that ends. Calls that need all rows at rest wait for the thread: a flush that
  // waits, a checkpoint, a dump, a load, a change of the layout, closing. If the thread fails, a
  // line on stderr says so; the next flush writes its rows too, and waits whatever `wait` is.
  Status Flush(bool wait = true);
  // Returns whether the thread is at work.
  bool flushing() const { return flusher_.busy(); }
  // Returns how often the thread has failed since everything was flushed last.
  uint64_t failed_flushes() const { return failed_flushes_; }
  // Flushes, then makes a checkpoint in a new folder, which can be opened like this one.
  Status Checkpoint(const std::string& path);
  // Flushes, then rewrites the files without expired and superseded rows.
  Status Compact();
  // Flushes, then closes. From then on tables return kFailedPrecondition. After an error the
  // storage stays open.
  Status Close();

  // Writes rows into a file; see core/dump/dump_file.h. Returns how many.
  Result<uint64_t> Dump(const std::string& path, const DumpFilter& filter,
                        const DumpProgress& progress);
  // Adds the rows of such a file, in one atomic step, and flushes. A key that exists gets the
  // file's row. Rows that have expired by this storage's TTL are left out. New groups are made as
  // they were where the file was written. Returns how many rows were added.
  // Errors: before anything has changed, kInvalidArgument if a group has another dim or rule here,
  // those of DumpReader; kFailedPrecondition for a group whose table is open and has no rule yet.
  Result<uint64_t> Load(const std::string& path, const DumpProgress& progress);
  // Does the same with a dump of Damo-Embedding, whose rows have no slots.
  Result<uint64_t> LoadDamo(const std::string& path, const DumpProgress& progress);
  // Writes the rows of a group into a file of a checkpoint, as those of the table with this number
  // in the file. Returns how many. If `progress` returns false, it ends with kFailedPrecondition.
  Result<uint64_t> CopyRows(int group, uint32_t table, RowsFileWriter* writer,
                            const DumpProgress& progress = nullptr);

  Result<std::vector<GroupInfo>> Groups();
  Result<GroupSurvey> Survey(int group);
  // Returns the row of a key; nullopt if it has none.
  Result<std::optional<StoredRow>> Get(int group, Key key);

  // The functions below are for callers that neither train nor configure a group. If its table is
  // open they call it; otherwise they use the database, and open nothing. Errors: kNotFound, which
  // names the existing groups.
  //
  // Returns the description of the group.
  Result<GroupMeta> GroupOf(int group);
  // Copies embeddings (n, dim). A key without a row gets the vector that training would start from,
  // or zeros if the group has no initializer. exists (n) becomes true for keys with a row.
  Status ReadRows(int group, const Key* keys, size_t n, float* embeddings, uint8_t* exists,
                  const ParallelFor& parallel_for);
  // See Table::ReadMeta.
  Status ReadRowMeta(int group, const Key* keys, size_t n, RowMeta* metas, uint8_t* exists,
                     const ParallelFor& parallel_for);
  // Removes rows, and makes the admission forget the keys. Returns how many rows there were. If the
  // table is not open, the removal is durable once the call has returned.
  Result<uint64_t> RemoveRows(int group, const Key* keys, size_t n,
                              const ParallelFor& parallel_for);
  // Returns the statistics of the open table, or those that the description has.
  Result<TableStats> RowStats(int group);
  // Returns at most `most` rows of a group as they are now, ascending by key, from `from` on.
  Result<RowPage> ReadPage(int group, Key from, size_t most);
  Result<Database::DiskUse> disk_use();

  // Returns kFailedPrecondition in a process that was forked from the one that has the storage
  // open. Such a process must not call any other function of the storage or its tables.
  Status CheckProcess() const { return core_->CheckProcess(); }

  const std::string& path() const { return core_->path; }
  // Returns the id of the storage, which checkpoints of it have too. 0: it is read-only, and was
  // made by a version that gave no ids.
  uint64_t id() const { return core_->id; }
  uint32_t ttl() const { return core_->expiry->ttl(); }
  bool read_only() const { return core_->read_only; }
  bool closed();
  uint64_t cache_bytes() const { return core_->memory.budget(); }
  // Return the bytes of that memory that cached rows take, and the bytes that everything else takes
  // that counts.
  uint64_t cached_row_bytes() const { return core_->memory.used(); }
  uint64_t charged_bytes() const { return core_->memory.charged(); }
  void SetNow(uint32_t now) { core_->expiry->SetNow(now); }
  bool reset_slots() const { return reset_slots_->load(); }
  // Takes effect at once, for tables that are open too.
  void SetResetSlots(bool reset) { reset_slots_->store(reset); }
  bool reset_initializer() const { return reset_initializer_.load(); }
  // Takes effect for groups that are opened from now on.
  void SetResetInitializer(bool reset) { reset_initializer_.store(reset); }

 private:
  struct OpenGroup {
    std::shared_ptr<Table> table;
    DurableStore* store;  // the store of the table
    TableSpec spec;
    std::string rule;
    std::shared_ptr<Admission> admission;
  };
  using OpenGroupMap = std::map<int, OpenGroup>;

  explicit Storage(std::shared_ptr<StorageCore> core) : core_(std::move(core)) {}
  // Publishes `meta`, which has another layout, for a group that is not open, together with its
  // rows without slots and update counts. Called with mu_ held.
  Status ResetSlots(int group, const GroupMeta& meta);
  // The part of ResetSlots that may have happened even after an error.
  Status PublishWithoutSlots(int group, const GroupMeta& meta);
  // Counts every group's rows anew, without expired ones. Called with mu_ held.
  Status CountRows();
  // Counts the rows of a group that is not open, if those of its description were counted by
  // another TTL, or by a clock that was ahead.
  Status CountIfOutdated(int group, GroupMeta* meta) const;
  // Returns the error for a group that does not exist, which names the existing ones. Called with
  // mu_ and the gate held.
  Status NoGroup(int group) const;
  // Returns opened(table, admission) if the table of a group is open; the admission may be null.
  // Otherwise returns closed(meta), called with mu_ and the gate held.
  template <typename Opened, typename Closed>
  auto OfRows(int group, bool to_write, const Opened& opened, const Closed& closed)
      -> decltype(opened(std::declval<Table&>(), std::declval<Admission*>()));
  // These two are for a group that is not open, and are called with mu_ and the gate held.
  // ReadClosed calls found(i, value) for each key that has a row, expired or not. ForgetCounts
  // returns the chunks of the admission that change.
  Status ReadClosed(int group, const GroupMeta& meta, const Key* keys, size_t n,
                    const std::function<void(size_t i, const RowValue& value)>& found) const;
  Result<uint64_t> RemoveClosed(int group, GroupMeta meta, const Key* keys, size_t n);
  Result<NamedValues> ForgetCounts(int group, const GroupMeta& meta, const Key* keys, size_t n);
  // Returns the present description of a group; one with dimension 0 if there is no such group yet.
  Result<GroupMeta> DescriptionOf(int group);
  Result<std::shared_ptr<Admission>> OpenAdmission(int group, const AdmissionConfig& config);
  // Makes an open group from its description. It is not in groups_ yet.
  Result<OpenGroup> MakeGroup(const TableSpec& spec, const std::string& rule,
                              const GroupMeta& meta);
  Status CheckSame(const OpenGroup& open, const TableSpec& spec, const std::string& rule) const;

  // The functions below are called with the gate held exclusively, and mu_ held.
  // Returns an error if the storage cannot be used, after an attempt to repair what an error of the
  // disk has left.
  Status Ready();
  Status ReadyToWrite();
  Status FlushAtRest();
  Status FlushOnce();
  // Everything that a flush publishes in addition to rows: the groups, admission counts that have
  // changed, and the number of the journal's last segment, which the flush ends. Unset: the journal
  // is empty.
  struct Description {
    Database::Meta meta;
    std::optional<uint64_t> segment;
  };
  Result<Description> DescribeAtRest();
  static uint64_t DirtyBytes(const OpenGroupMap& groups);
  // Flushes, mostly while other calls run, and returns the gate, held exclusively. Called without
  // the gate.
  Result<StorageCore::Alone> FlushBeside();
  void FlushOnThread();
  Status SpillBeside(const OpenGroupMap& groups);
  OpenGroupMap OpenGroups();
  // These two are called with the gate held, at least shared.
  bool MayFlushBeside(const OpenGroupMap& groups) const;
  static Status SpillDirty(const OpenGroupMap& groups);
  // Releases the gate meanwhile.
  Status FreezeAndPublish(StorageCore::Alone* gate);
  Status SettleAtRest();
  Result<std::map<int, GroupMeta>> GroupsAtRest() const;
  // Calls fn with each row of a group that passes the filter, as a piece of one row; returns how
  // many these are. `see`, if it is not null, is called for each row of the group. Returns the
  // first error of either.
  Result<uint64_t> ForEachRow(int number, const GroupMeta& meta, const DumpFilter& filter,
                              const std::function<Status()>& see,
                              const std::function<Status(const TableContents&)>& fn) const;
  // One group of a file that is being loaded.
  struct Arrival {
    int group;
    int dim;
    std::optional<GroupMeta> meta;  // the description of the group in the file
  };
  // Returns the descriptions of the groups after the load, or the error for which the file is
  // refused.
  Result<std::map<int, GroupMeta>> Reconcile(const std::vector<Arrival>& arrivals,
                                             const std::string& path) const;
  // Publishes the rows that `add` hands to its argument, with the groups' new descriptions.
  using AddRows = std::function<Status(const std::function<Status(RowBatch*)>& write)>;
  Status TakeIn(std::map<int, GroupMeta> groups, const AddRows& add);
  // A function that hands the rows of a file to `take`, and reports its progress if `reports`.
  using WalkFile = std::function<Status(const PieceFn& take, bool reports)>;
  // Loads the rows that `walk` hands to its argument, except expired ones. Returns how many rows
  // were loaded.
  Result<uint64_t> TakeInPieces(const std::vector<Arrival>& arrivals, const std::string& path,
                                const WalkFile& walk);
  // Makes admissions forget the keys of such a walk, which have rows by now.
  void ForgetWaiting(const std::map<int, GroupMeta>& targets, uint32_t now, const WalkFile& walk);
  // The part of TakeIn during which no other call may run, since after an error all pending rows
  // must be dropped. Sets the numbers of rows in the descriptions.
  Status PublishArrivals(std::map<int, GroupMeta>* groups, const AddRows& add);
  // Tells, once the database is open again, whether a publication happened that failed in its last
  // system calls; memory follows then. It is made before the publication, since memory may have run
  // out by then.
  struct Resolution {
    std::function<Status()> look;
    std::shared_ptr<const bool> happened;
  };
  Resolution ResolutionOf(std::function<void()> follow) const;
  // Returns success if the publication has happened, and otherwise `failed`. If the database cannot
  // be opened now, a later call finds out.
  Status Resolve(const Status& failed, Resolution resolution);
  // Returns the most rows that an open group with a limit and without an eviction may have after a
  // load. `meta` describes the group before it.
  Result<uint64_t> RowLimitAfterArrival(int group, const GroupMeta& meta) const;
  // Returns kResourceExhausted if such a group would have more rows after the load.
  Status CheckTakes(int group, uint64_t allowed, uint64_t after) const;
  // Makes open tables forget what they have cached of groups into which rows were loaded.
  void UpdateAfterArrival(const std::map<int, GroupMeta>& groups);

  const std::shared_ptr<StorageCore> core_;
  const std::shared_ptr<std::atomic<bool>> reset_slots_ =
      std::make_shared<std::atomic<bool>>(false);
  std::atomic<bool> reset_initializer_{false};
  uint64_t batch_bytes_ = 0;  // see StorageOptions
  std::mutex mu_;             // guards groups_; taken before the gate
  std::mutex open_mu_;        // held for a moment while a group is added, or groups_ copied
  OpenGroupMap groups_;
  std::atomic<uint64_t> failed_flushes_{0};
  RepeatedJob flusher_{[this] { FlushOnThread(); }};
};

}  // namespace sok
