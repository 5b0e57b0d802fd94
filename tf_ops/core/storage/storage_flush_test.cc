// Flushes beside other calls: random programs against maps of the standard library, with copies of
// the folder as a kill at that moment would leave it.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <future>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/base/test_folder.h"
#include "core/base/test_result.h"
#include "core/base/test_threads.h"
#include "core/base/thread_pool.h"
#include "core/disk/rocksdb/row_database.h"
#include "core/disk/test_failing_database.h"
#include "core/rows/hash_index.h"
#include "core/storage/storage.h"
#include "core/tables/test_contents.h"

namespace sok {
namespace {

constexpr int kDim = 64;
constexpr int kGroups = 2;
constexpr uint64_t kKeys = 9000;  // their rows take 2.6 MB a group, and the cache has one
constexpr uint32_t kTtl = 40;

constexpr RowForm kForms[] = {
    {}, {RowType::kInt8, RowType::kBFloat16}, {RowType::kFloat16, RowType::kFloat32}};

struct Mode {
  bool write_through;
  bool has_ttl;
  uint64_t spill_rows;
  uint64_t turn;  // by which the types of rows go round
  const RowForm& form(int group) const {
    return kForms[(turn + static_cast<uint64_t>(group)) % std::size(kForms)];
  }
  // Returns a number whose multiples up to 1000 are exact in the rows of a group.
  float unit(int group) const { return form(group).row == RowType::kInt8 ? 127.0f / 128 : 1.0f; }
};

// A row: the value of all of its elements, and when it was last changed.
struct RowNow {
  float value;
  uint32_t time;
  bool operator==(const RowNow& other) const { return value == other.value && time == other.time; }
};
using Rows = std::map<Key, RowNow>;
using State = std::vector<Rows>;  // by group

class Program {
 public:
  Program(const Mode& mode, uint64_t seed) : mode_(mode), rng_(seed), rows_(kGroups) { Open(); }

  void Run(int calls) {
    for (int i = 0; i < calls; ++i) {
      CAPTURE(i);
      Call();
    }
    CheckAll(tables_, rows_);
    Settle();
    REQUIRE(storage_->Close().ok());
    Open();
    CheckAll(tables_, rows_);
    REQUIRE(storage_->Close().ok());
  }

 private:
  using Tables = std::vector<std::shared_ptr<Table>>;

  StorageOptions Options(const std::string& path) {
    StorageOptions options;
    options.path = path;
    options.cache_bytes = uint64_t{1} << 20;
    options.spill_rows = mode_.spill_rows;
    options.write_through = mode_.write_through;
    options.batch_bytes = 0;
    if (mode_.has_ttl) options.ttl = kTtl;
    options.now = [this] { return now_.load(); };
    return options;
  }
  Tables TablesOf(Storage& storage) const {
    Tables tables;
    TableSpec config;
    config.dim = kDim;
    config.initializer = "constant";
    config.initializer_a = 0;
    for (config.group = 0; config.group < kGroups; ++config.group) {
      config.form = mode_.form(config.group);
      tables.push_back(Value(storage.OpenTable(config, "kv_sgd", {})));
    }
    return tables;
  }
  void Open() {
    tables_.clear();
    storage_.reset();
    storage_ = Value(Storage::Open(Options(folder_ / "storage")));
    tables_ = TablesOf(*storage_);
  }

  bool Lives(const RowNow& row) const { return !mode_.has_ttl || row.time + kTtl > now_; }
  std::vector<Key> Batch() {
    const uint64_t distinct = rng_() % 3 == 0 ? 50 : kKeys;
    const uint64_t first = rng_() % (kKeys - distinct + 1);
    std::vector<Key> keys(1 + rng_() % 600);
    for (Key& key : keys) key = first + rng_() % distinct;
    std::sort(keys.begin(), keys.end());
    keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    return keys;
  }

  void Call() {
    const int group = static_cast<int>(rng_() % kGroups);
    const float unit = mode_.unit(group);
    Table& table = *tables_[group];
    Rows& rows = rows_[group];
    const std::vector<Key> keys = Batch();
    const size_t n = keys.size();
    if (mode_.has_ttl && rng_() % 8 == 0) ++now_;
    NoteFlush();
    switch (rng_() % 20) {
      case 0:
      case 1:
      case 2:
      case 3: {
        const auto value = static_cast<float>(rng_() % 1000);
        const std::vector<float> floats(n * kDim, value * unit);
        const Status status = table.Assign(keys.data(), n, floats.data(), ProcessPool());
        REQUIRE_MESSAGE(status.ok(), status.message());
        for (Key key : keys) {
          // An assignment leaves the time of a row as it was.
          const auto row = rows.find(key);
          const bool lives = row != rows.end() && Lives(row->second);
          rows[key] = {value, lives ? row->second.time : now_.load()};
        }
        break;
      }
      case 4:
      case 5:
      case 6:
      case 7:
      case 8: {
        NoteMadeRows(group, keys);
        const std::vector<float> ones(n * kDim, unit);
        const Status status =
            table.Update(keys.data(), n, ones.data(), "kv_sgd", *sgd_, {}, ProcessPool());
        REQUIRE_MESSAGE(status.ok(), status.message());
        for (Key key : keys) {
          const auto row = rows.find(key);
          const bool lives = row != rows.end() && Lives(row->second);
          rows[key] = {(lives ? row->second.value : 0) - 1, now_};
        }
        break;
      }
      case 9:
      case 10: {
        uint64_t removed = 0;
        for (Key key : keys) {
          const auto row = rows.find(key);
          if (row == rows.end()) continue;
          removed += Lives(row->second) ? 1 : 0;
          rows.erase(row);
        }
        CHECK(Value(table.Remove(keys.data(), n, ProcessPool())) == removed);
        break;
      }
      case 11:
      case 12:
      case 13: {
        asked_ = settled_.size();
        is_noted_ = false;
        const Status status = storage_->Flush(/*wait=*/false);
        REQUIRE_MESSAGE(status.ok(), status.message());
        break;
      }
      case 14:
        if (rng_() % 3 == 0) Settle();
        break;
      case 15:
        if (rng_() % 6 == 0) CheckCheckpoint();
        break;
      case 16:
        if (rng_() % 4 == 0) CheckKilled();
        break;
      case 17:
        if (rng_() % 6 == 0) CheckAll(tables_, rows_);
        break;
      case 18:
        if (rng_() % 8 == 0) {
          Settle();
          REQUIRE(storage_->Close().ok());
          Open();
        } else if (rng_() % 8 == 0) {
          REQUIRE(storage_->Compact().ok());
          SetSettled();
        }
        break;
      default:
        Check(group, table, rows, keys);
    }
  }

  // Everything so far survives from here on.
  void Settle() {
    REQUIRE(storage_->Flush().ok());
    SetSettled();
  }
  void SetSettled() {
    settled_ = {rows_};
    is_noted_ = true;
  }
  // An update makes rows before it changes any. A flush beside it may take them as they were made.
  void NoteMadeRows(int group, const std::vector<Key>& keys) {
    if (is_noted_) return;
    State made = rows_;
    for (Key key : keys) {
      const auto row = made[group].find(key);
      if (row == made[group].end() || !Lives(row->second)) made[group][key] = {0, now_};
    }
    settled_.push_back(std::move(made));
  }
  // Between two calls: a flush beside them takes the rows of one of these moments.
  void NoteFlush() {
    if (is_noted_) return;
    is_noted_ = !storage_->flushing();  // this moment may still be the one that it has taken
    settled_.push_back(rows_);
    // Those from before the last one was asked for are gone once it has ended.
    if (is_noted_) settled_.erase(settled_.begin(), settled_.begin() + asked_);
  }

  void Check(int group, Table& table, const Rows& rows, const std::vector<Key>& keys) const {
    const size_t n = keys.size();
    std::vector<RowMeta> metas(n);
    std::vector<uint8_t> exists(n);
    std::vector<float> floats(n * kDim);
    REQUIRE(table.ReadMeta(keys.data(), n, metas.data(), exists.data(), ProcessPool()).ok());
    REQUIRE(table.Lookup(keys.data(), n, false, floats.data(), ProcessPool()).ok());
    for (size_t i = 0; i < n; ++i) {
      const auto row = rows.find(keys[i]);
      const bool lives = row != rows.end() && Lives(row->second);
      CAPTURE(keys[i]);
      REQUIRE((exists[i] != 0) == lives);
      const auto first = floats.begin() + static_cast<int64_t>(i * kDim);
      const float value = lives ? row->second.value * mode_.unit(group) : 0.0f;
      REQUIRE(std::count(first, first + kDim, value) == kDim);
      if (lives) REQUIRE(metas[i].update_time == row->second.time);
    }
  }
  void CheckAll(const Tables& tables, const State& rows) {
    std::vector<Key> keys(kKeys);
    std::iota(keys.begin(), keys.end(), Key{0});
    for (int group = 0; group < kGroups; ++group) {
      Check(group, *tables[group], rows[group], keys);
      uint64_t living = 0;
      for (const auto& [key, row] : rows[group]) living += Lives(row) ? 1 : 0;
      CHECK(Value(tables[group]->Freeze()).size() == living);
      if (!mode_.has_ttl) CHECK(tables[group]->size() == living);
    }
  }
  void CheckCheckpoint() {
    const std::string path = folder_ / ("checkpoint-" + std::to_string(rng_()));
    const Status made = storage_->Checkpoint(path);
    REQUIRE_MESSAGE(made.ok(), made.message());
    SetSettled();
    const auto copy = Value(Storage::Open(Options(path)));
    CheckAll(TablesOf(*copy), rows_);
  }
  State Stored(const std::string& path) {
    const auto storage = Value(Storage::Open(Options(path)));
    State stored(kGroups);
    const Tables tables = TablesOf(*storage);
    for (int group = 0; group < kGroups; ++group) {
      const OwnedContents contents = Owned(Value(tables[group]->Freeze()), kDim);
      for (size_t i = 0; i < contents.keys.size(); ++i) {
        stored[group][contents.keys[i]] = {contents.embeddings[i * kDim] / mode_.unit(group),
                                           static_cast<uint32_t>(contents.update_times[i])};
      }
      CHECK(tables[group]->size() == stored[group].size());
    }
    return stored;
  }
  State Living(State rows) const {
    for (Rows& of_group : rows) {
      for (auto row = of_group.begin(); row != of_group.end();) {
        row = Lives(row->second) ? std::next(row) : of_group.erase(row);
      }
    }
    return rows;
  }
  // The folder as a kill would leave it now, perhaps in the midst of a publication.
  void CheckKilled() {
    const std::string path = folder_ / "killed";
    CopyOfOneMoment(folder_ / "storage", path);
    const State stored = Stored(path);
    if (mode_.write_through) {
      REQUIRE(stored == Living(rows_));
      return;
    }
    const bool is_settled = std::any_of(settled_.begin(), settled_.end(), [&](const State& state) {
      return stored == Living(state);
    });
    REQUIRE(is_settled);
  }

  const Mode mode_;
  const TestFolder folder_;
  std::mt19937_64 rng_;
  std::atomic<uint32_t> now_{1000};
  const std::unique_ptr<RowOptimizer> sgd_ =
      std::move(MakeRowOptimizer("kv_sgd", {{"gamma", 1.0}}).value());
  std::shared_ptr<Storage> storage_;
  Tables tables_;
  State rows_;                                 // what the calls that returned have left
  std::deque<State> settled_{State(kGroups)};  // what a kill may leave without write_through
  std::ptrdiff_t asked_ = 0;  // those from here on are what the last flush may have taken
  bool is_noted_ = true;      // all that it may have taken are there
};

}  // namespace

TEST_CASE(
    "flushes beside other calls leave what maps have, whatever the cache and the spill hold") {
  uint64_t round = 0;
  for (const bool write_through : {false, true}) {
    for (const bool has_ttl : {false, true}) {
      for (const uint64_t spill_rows : {uint64_t{1} << 20, uint64_t{2000}, uint64_t{0}}) {
        const uint64_t seed = TestSeed() + 1000 * ++round;
        CAPTURE(write_through);
        CAPTURE(has_ttl);
        CAPTURE(spill_rows);
        CAPTURE(seed);
        const Mode mode{write_through, has_ttl, spill_rows, round + round / 3};
        Program(mode, seed).Run(LongTests() ? 3000 : 50);
      }
    }
  }
}

TEST_CASE("a commit does not wait for a flush that is written beside it") {
  const TestFolder folder;
  const auto faults = std::make_shared<PlantedFaults>();  // none fails
  std::promise<void> is_written, may_end;
  std::atomic<int> publications{0};
  faults->before_finish = [&] {
    if (publications++ > 0) return;
    is_written.set_value();
    may_end.get_future().wait();
  };
  StorageOptions options;
  options.path = folder / "storage";
  options.batch_bytes = 0;
  options.open_database = FailingDatabase::Over(RowDatabase::Open, faults);
  const auto storage = Value(Storage::Open(options));
  TableSpec config;
  config.dim = 2;
  config.initializer = "constant";
  config.initializer_a = 5;
  const auto table = Value(storage->OpenTable(config));
  const Key keys[] = {1, 2, 3};
  const auto train = [&] {
    const float ones[] = {1, 1, 1, 1, 1, 1};
    LookupKeys looked_up;
    looked_up.keys = keys;
    looked_up.n = 3;
    REQUIRE(table->Deposit(looked_up, nullptr, ones, nullptr).ok());
    return table->Commit({"adagrad", {{"learning_rate", 1.0}}}, SerialFor).status();
  };
  REQUIRE(train().ok());
  REQUIRE(storage->Flush(/*wait=*/false).ok());
  is_written.get_future().wait();
  auto trained = std::async(std::launch::async, train);
  CHECK(trained.wait_for(std::chrono::seconds(60)) == std::future_status::ready);
  CHECK(storage->flushing());
  may_end.set_value();
  REQUIRE(trained.get().ok());
  REQUIRE(storage->Flush().ok());
  std::vector<RowMeta> metas(3);
  std::vector<uint8_t> exists(3);
  REQUIRE(table->ReadMeta(keys, 3, metas.data(), exists.data(), SerialFor).ok());
  for (const RowMeta& meta : metas) CHECK(meta.update_num == 2);
}

TEST_CASE("rows that cannot be spilled are flushed at rest") {
  constexpr size_t n = 2000;
  const TestFolder folder;
  StorageOptions options;
  options.path = folder / "storage";
  options.batch_bytes = 0;
  TableSpec config;
  config.dim = kDim;
  std::vector<Key> keys(n);
  std::iota(keys.begin(), keys.end(), Key{0});
  const std::vector<float> rows(n * kDim, 7.0f);
  {
    const auto storage = Value(Storage::Open(options));
    const auto table = Value(storage->OpenTable(config));
    REQUIRE(table->Assign(keys.data(), n, rows.data(), ProcessPool()).ok());
    // The rows take half of that, but each shard has 1 MiB of the spill's file for itself.
    const FileSizeLimit limit(1 << 20);
    const Status flushed = storage->Flush();
    REQUIRE_MESSAGE(flushed.ok(), flushed.message());
    CopyOfOneMoment(folder / "storage", folder / "killed");
  }
  options.path = folder / "killed";
  const auto killed = Value(Storage::Open(options));
  const auto table = Value(killed->OpenTable(config));
  std::vector<float> found(n * kDim);
  REQUIRE(table->Lookup(keys.data(), n, false, found.data(), ProcessPool()).ok());
  CHECK(found == rows);
}

TEST_CASE("a flush beside other calls writes more rows of one shard than the spill can take") {
  constexpr int dim = 4096;
  constexpr size_t n = 900;  // 15 MB
  const TestFolder folder;
  StorageOptions options;
  options.path = folder / "storage";
  options.cache_bytes = uint64_t{64} << 20;
  options.spill_rows = 300;
  options.batch_bytes = 0;
  auto storage = Value(Storage::Open(options));
  TableSpec config;
  config.dim = dim;
  auto table = Value(storage->OpenTable(config));
  std::vector<Key> keys;
  for (Key key = 0; keys.size() < n; ++key) {
    if (HashIndex::ShardOf(HashIndex::Hash(key), 10) == 0) keys.push_back(key);
  }
  std::vector<float> rows(n * dim), found(n * dim);
  const auto assign = [&](size_t first, size_t last, float more) {
    for (size_t i = first; i < last; ++i) {
      std::fill_n(&rows[i * dim], dim, static_cast<float>(i) + more);
    }
    REQUIRE(table->Assign(&keys[first], last - first, &rows[first * dim], ProcessPool()).ok());
  };
  const auto check = [&] {
    REQUIRE(table->size() == n);
    REQUIRE(table->Lookup(keys.data(), n, false, found.data(), ProcessPool()).ok());
    CHECK(found == rows);
  };
  assign(0, n, 0);
  REQUIRE(storage->Flush(/*wait=*/false).ok());
  assign(n / 3, n, 0.25f);  // while that goes on
  check();
  REQUIRE(storage->Flush(/*wait=*/false).ok());
  assign(0, n / 2, 0.5f);
  check();
  REQUIRE(storage->Flush().ok());
  REQUIRE(storage->Close().ok());
  storage = Value(Storage::Open(options));
  table = Value(storage->OpenTable(config));
  check();
}

TEST_CASE("a flush beside other calls sorts more rows than it keeps in memory") {
  constexpr int dim = 1000;
  constexpr size_t n = 40000;  // 160 MB
  const TestFolder folder;
  StorageOptions options;
  options.path = folder / "storage";
  options.cache_bytes = uint64_t{4} << 20;
  const auto storage = Value(Storage::Open(options));
  TableSpec config;
  config.dim = dim;
  const auto table = Value(storage->OpenTable(config));
  std::vector<Key> keys(n);
  for (size_t i = 0; i < n; ++i) keys[i] = i * uint64_t{0x9E3779B97F4A7C15};
  const auto assign = [&](float more) {
    std::vector<float> rows(n * dim);
    for (size_t i = 0; i < n; ++i) {
      std::fill_n(&rows[i * dim], dim, static_cast<float>(i) + more);
    }
    REQUIRE(table->Assign(keys.data(), n, rows.data(), ProcessPool()).ok());
  };
  assign(0);
  REQUIRE(storage->Flush(/*wait=*/false).ok());
  CHECK(storage->flushing());
  assign(0.5f);  // while that goes on
  const std::string path = folder / "killed";
  while (storage->flushing()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CopyOfOneMoment(folder / "storage", path);
  const auto check = [&](const std::shared_ptr<Storage>& read, float more) {
    const auto rows = Value(read->OpenTable(config));
    REQUIRE(rows->size() == n);
    std::vector<float> out(n * dim);
    REQUIRE(rows->Lookup(keys.data(), n, false, out.data(), ProcessPool()).ok());
    for (size_t i = 0; i < n; ++i) {
      const auto first = out.begin() + static_cast<int64_t>(i * dim);
      REQUIRE(std::count(first, first + dim, static_cast<float>(i) + more) == dim);
    }
  };
  options.path = path;
  check(Value(Storage::Open(options)), 0);
  check(storage, 0.5f);
}

}  // namespace sok
