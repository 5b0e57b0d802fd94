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

class DumpWriter;

struct StorageOptions {
  std::string path;
  // Seconds after its last update that a row is kept; 0: no limit. Unset: as the folder has it,
  // 0 for a new one.
  std::optional<uint32_t> ttl;
  // If true, an existing folder gets another TTL only together with the first rows that are loaded.
  // Until then rows expire by it here, and none is removed because of it.
  bool ttl_with_load = false;
  // The memory for cached rows, in bytes. Indexes of rows and what the database keeps in memory of
  // its keys are part of it: see CacheMemory. The rest of RocksDB's memory comes on top: see
  // kBlockCacheBytes and kMemtableBytes.
  uint64_t cache_bytes = uint64_t{256} << 20;
  // The largest number of evicted rows in the spill file. Unset: as many as an index of a quarter
  // of cache_bytes, or of 32 MiB, has places for.
  std::optional<uint64_t> spill_rows;
  // False: what the last Flush or Checkpoint that returned has written survives the process.
  // True: also what every call that returned has changed: updates, assignments, removals, restores.
  bool write_through = false;
  // With write_through: whether what they have changed survives the machine, too.
  bool sync = false;
  // A flush of no more bytes of rows goes through RocksDB's log in one batch.
  uint64_t batch_bytes = uint64_t{16} << 20;
  // The length in bytes at which the journal of those calls is published.
  uint64_t journal_bytes = Journal::kMostBytes;
  bool read_only = false;
  // True if another rule may take over rows; their slots start anew then. See SetResetSlots.
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
  std::optional<uint32_t> newer;  // last updated after this time, in seconds since 1970
};

// A group as it is on disk.
struct GroupInfo {
  int group = 0;
  GroupMeta meta;
};

// The counts of a walk over all rows of a group.
struct GroupSurvey {
  uint64_t rows = 0;     // not expired
  uint64_t expired = 0;  // not removed yet
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

  // Makes the folder if there is none, but for read_only.
  // Errors: those of Database::Opener, and kInvalidArgument for a cache below 1 MiB.
  static Result<std::shared_ptr<Storage>> Open(const StorageOptions& options);
  // The storage that this process has open in a folder, by any name of the folder; or null.
  static std::shared_ptr<Storage> FindOpen(const std::string& path);
  // Closes, and says on stderr what went wrong with that.
  ~Storage();

  // The table of config.group, made if there is none. It lives as long as the storage is open;
  // later calls for the group return the same one. `rule`: the row optimizer that trains it; empty:
  // whichever commits. admission, eviction: see Table; unset: none. The description of the group
  // has the eviction that it was opened with last. reset_slots: the rule may be another one than
  // the group has, whose rows lose their slots and update counts then, in one atomic step.
  // reset_initializer: the initializer may be another one than the group has, and rows that are
  // made from now on start from it. Errors:
  // kInvalidArgument if the group was made with another dim, initializer, rule or admission, or is
  // open with another eviction, naming both; kNotFound for a group that a read-only storage does
  // not have.
  Result<std::shared_ptr<Table>> OpenTable(const TableConfig& config, const std::string& rule,
                                           const std::vector<Hyper>& hypers,
                                           const std::optional<AdmissionConfig>& admission,
                                           bool reset_slots = false,
                                           const std::optional<EvictionConfig>& eviction = {},
                                           bool reset_initializer = false);

  // Makes everything so far survive, in one atomic step. On an error nothing is lost: rows stay
  // where they are, and another Flush tries again. The rows are those of one moment, at the call or
  // a little later, and most of the work goes on beside calls of tables. Without `wait` a thread
  // does it: the call returns at once, and where that thread has an earlier flush under way,
  // another begins when that ends. Calls that need all rows at rest wait for the thread: a flush
  // that waits, a checkpoint, a dump, a load, a change of the layout, closing. Where it fails, a
  // line on stderr says so, and the next flush has its rows too: it waits, whatever `wait` is.
  Status Flush(bool wait = true);
  // Returns whether the thread is at work.
  bool flushing() const { return flusher_.busy(); }
  // Returns how often the thread has failed since everything was flushed last.
  uint64_t failed_flushes() const { return failed_flushes_; }
  // Flush, then RocksDB's checkpoint in a new folder, which can be opened like this one.
  Status Checkpoint(const std::string& path);
  // Flush, then rewrites the files without expired and superseded rows.
  Status Compact();
  // Flush, then end. Tables answer kFailedPrecondition from then on. On an error it stays open.
  Status Close();

  // Writes rows into a file; see core/dump/dump_file.h. Returns how many.
  Result<uint64_t> Dump(const std::string& path, const DumpFilter& filter,
                        const DumpProgress& progress);
  // Takes the rows of such a file in, in one atomic step, and flushes; a key that is there already
  // gets the file's row. Rows that have expired by this storage's TTL stay out. Groups that are new
  // come as they were. Returns how many were taken.
  // Errors: before anything has changed, kInvalidArgument if a group has another dim or rule here,
  // those of DumpReader; kFailedPrecondition for a group whose table is open and has no rule yet.
  Result<uint64_t> Load(const std::string& path, const DumpProgress& progress);
  // The same of a dump of Damo-Embedding, whose rows come without slots.
  Result<uint64_t> LoadDamo(const std::string& path, const DumpProgress& progress);

  Result<std::vector<GroupInfo>> Groups();
  Result<GroupSurvey> Survey(int group);
  // Nothing for a key without a row.
  Result<std::optional<StoredRow>> Get(int group, Key key);

  // The rows of a group for callers that do not train it and do not configure it. Where its
  // table is open these are calls of that; else they use the database, and open nothing. Errors:
  // kNotFound, naming the groups that there are.
  //
  // Returns the group as it is.
  Result<GroupMeta> GroupOf(int group);
  // Copies embeddings (n, dim). A key without a row gets the vector that training would start from,
  // zeros where none is set. exists (n): whether the key has a row.
  Status ReadRows(int group, const Key* keys, size_t n, float* embeddings, uint8_t* exists,
                  const ParallelFor& parallel_for);
  // See Table::ReadMeta.
  Status ReadRowMeta(int group, const Key* keys, size_t n, RowMeta* metas, uint8_t* exists,
                     const ParallelFor& parallel_for);
  // Removes rows, and has the admission forget the keys. Returns how many there were.
  // Where the table is not open, that is durable once the call has returned.
  Result<uint64_t> RemoveRows(int group, const Key* keys, size_t n,
                              const ParallelFor& parallel_for);
  // Returns the figures of the open table; else those of the description.
  Result<TableStats> RowStats(int group);
  // Returns at most `most` rows of a group as they are now, ascending by key, from `from` on.
  Result<RowPage> ReadPage(int group, Key from, size_t most);
  Result<Database::DiskUse> disk_use();

  // Returns kFailedPrecondition in a process that was forked from the one that has it open, which
  // must call nothing else of it or of its tables.
  Status CheckProcess() const { return core_->CheckProcess(); }

  const std::string& path() const { return core_->path; }
  // Names the rows that were first made here: their checkpoints have it too. 0: read-only, and made
  // by a version that gave no ids.
  uint64_t id() const { return core_->id; }
  uint32_t ttl() const { return core_->expiry->ttl(); }
  bool read_only() const { return core_->read_only; }
  bool closed();
  uint64_t cache_bytes() const { return core_->memory.budget(); }
  // The bytes of that which cached rows take, and those which everything else does that counts.
  uint64_t cached_row_bytes() const { return core_->memory.used(); }
  uint64_t charged_bytes() const { return core_->memory.charged(); }
  void SetNow(uint32_t now) { core_->expiry->SetNow(now); }
  bool reset_slots() const { return reset_slots_->load(); }
  // Holds from now on, for tables that are open too.
  void SetResetSlots(bool reset) { reset_slots_->store(reset); }
  bool reset_initializer() const { return reset_initializer_.load(); }
  // Holds for groups that are opened from now on.
  void SetResetInitializer(bool reset) { reset_initializer_.store(reset); }

 private:
  struct OpenGroup {
    std::shared_ptr<Table> table;
    DurableStore* store;  // the table's
    TableConfig config;
    std::string rule;
    std::shared_ptr<Admission> admission;
    std::optional<EvictionConfig> eviction;
  };
  using OpenGroupMap = std::map<int, OpenGroup>;

  explicit Storage(std::shared_ptr<StorageCore> core) : core_(std::move(core)) {}
  // Publishes `meta`, which has another layout, for a group that is not open, and its rows without
  // slots and updates. Called with mu_ held.
  Status ResetSlots(int group, const GroupMeta& meta);
  // The part of it that may turn out to have happened after an error.
  Status PublishWithoutSlots(int group, const GroupMeta& meta);
  // Counts every group's rows anew: expired ones may have been counted. Called with mu_ held.
  Status CountRows();
  // Counts the rows of a group that is not open, if those of its description were counted by
  // another TTL, or by a clock that was ahead.
  Status CountIfOutdated(int group, GroupMeta* meta) const;
  // The error for a group that is not there, with those that are. Called with mu_ and the gate
  // held.
  Status NoGroup(int group) const;
  // Returns opened(table, admission) if the table of a group is open, with the admission or null;
  // else closed(meta) of the group, with mu_ and the gate held.
  template <typename Opened, typename Closed>
  auto OfRows(int group, bool to_write, const Opened& opened, const Closed& closed)
      -> decltype(opened(std::declval<Table&>(), std::declval<Admission*>()));
  // These are of a group that is not open, called with mu_ and the gate held. ReadClosed calls
  // found(i, value) for each of the keys that has a row, expired ones too; ForgetCounts returns the
  // chunks of the admission that are others then.
  Status ReadClosed(int group, const GroupMeta& meta, const Key* keys, size_t n,
                    const std::function<void(size_t i, const RowValue& value)>& found) const;
  Result<uint64_t> RemoveClosed(int group, GroupMeta meta, const Key* keys, size_t n);
  Result<NamedValues> ForgetCounts(int group, const GroupMeta& meta, const Key* keys, size_t n);
  // The description of a group as it is now; that of none, with dimension 0, if there is no such
  // group yet.
  Result<GroupMeta> DescriptionOf(int group);
  Result<std::shared_ptr<Admission>> OpenAdmission(int group, const AdmissionConfig& config);
  // A group with the description, which is not open; it is not among groups_ yet.
  Result<OpenGroup> MakeGroup(const TableConfig& config, const std::string& rule,
                              const std::optional<AdmissionConfig>& admission,
                              const std::optional<EvictionConfig>& eviction, const GroupMeta& meta);
  Status CheckSame(const OpenGroup& open, const TableConfig& config, const std::string& rule,
                   const std::optional<AdmissionConfig>& admission,
                   const std::optional<EvictionConfig>& eviction) const;

  // The rest is called with the gate held exclusively, and mu_ held.
  // Whether the storage can be used, after an attempt to mend what an error of the disk has left.
  Status Ready();
  Status ReadyToWrite();
  Status FlushAtRest();
  Status FlushOnce();
  // All that a flush publishes beside rows: the groups, admission counts that have changed, and the
  // last segment of the journal, which it ends. No segment: there is nothing in the journal.
  struct Description {
    Database::Meta meta;
    std::optional<uint64_t> segment;
  };
  Result<Description> DescribeAtRest();
  static uint64_t DirtyBytes(const OpenGroupMap& groups);
  // Flushes, for the most part beside other calls, and returns the gate, alone. These are called
  // without the gate.
  Result<StorageCore::Alone> FlushBeside();
  void FlushOnThread();
  Status SpillBeside(const OpenGroupMap& groups);
  OpenGroupMap OpenGroups();
  // These two want the gate at least shared.
  bool MayFlushBeside(const OpenGroupMap& groups) const;
  static Status SpillDirty(const OpenGroupMap& groups);
  // Lets the gate go meanwhile.
  Status FreezeAndPublish(StorageCore::Alone* gate);
  Status SettleAtRest();
  Result<std::map<int, GroupMeta>> GroupsAtRest() const;
  // Writes a group and those of its rows that the filter lets through; returns how many they were.
  // Calls `see` for each row of the group, and ends with its error.
  Result<uint64_t> DumpGroupTo(DumpWriter* writer, int number, const GroupMeta& meta,
                               const DumpFilter& filter, const std::function<Status()>& see) const;
  // One group of a file that is to be taken in.
  struct Arrival {
    int group;
    int dim;
    std::optional<GroupMeta> meta;  // of the group where it comes from
  };
  // Returns the groups as they will be, or the error that keeps the arrivals out.
  Result<std::map<int, GroupMeta>> Reconcile(const std::vector<Arrival>& arrivals,
                                             const std::string& path) const;
  // Has `write` hand over rows, then publishes them with the groups' new descriptions.
  using AddRows = std::function<Status(const std::function<Status(RowBatch*)>& write)>;
  Status TakeIn(std::map<int, GroupMeta> groups, const AddRows& add);
  // Hands the rows of a file to `take`, and reports the progress to the caller.
  using WalkFile = std::function<Status(const PieceFn& take, bool reports)>;
  // Takes in the rows that `walk` hands to its argument. Returns how many they were; expired ones
  // are left out.
  Result<uint64_t> TakeInPieces(const std::vector<Arrival>& arrivals, const std::string& path,
                                const WalkFile& walk);
  // Has admissions forget the keys of such a walk, which have rows by now.
  void ForgetWaiting(const std::map<int, GroupMeta>& targets, uint32_t now, const WalkFile& walk);
  // The part of TakeIn that nothing else may run between: on an error, what is pending must be
  // dropped. Sets the numbers of rows in the descriptions.
  Status PublishArrivals(std::map<int, GroupMeta>* groups, const AddRows& add);
  // Tells, once the database is open again, whether a publication happened that failed in its last
  // system calls; memory follows then. It is made before the publication, since memory may have run
  // out by then.
  struct Resolution {
    std::function<Status()> look;
    std::shared_ptr<const bool> happened;
  };
  Resolution ResolutionOf(std::function<void()> follow) const;
  // Success if it has happened, else the error. A later call looks if the database cannot be
  // opened.
  Status Resolve(const Status& failed, Resolution resolution);
  // The most rows that an open group with a limit and without an eviction may have once it has
  // taken in others, where it is described by `meta` before.
  Result<uint64_t> RowLimitAfterArrival(int group, const GroupMeta& meta) const;
  // kResourceExhausted if such a group would have more rows then.
  Status CheckTakes(int group, uint64_t allowed, uint64_t after) const;
  // Has the tables that are open forget what they knew of groups that have taken in rows.
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
