// A storage whose database fails anywhere: no promised row is lost, and work goes on.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/test_folder.h"
#include "core/base/test_result.h"
#include "core/base/test_threads.h"
#include "core/base/thread_pool.h"
#include "core/disk/rocksdb/row_database.h"
#include "core/disk/test_failing_database.h"
#include "core/storage/storage.h"

namespace sok {
namespace {

namespace fs = std::filesystem;

constexpr int kDim = 256;
constexpr size_t kKeys = 1500;  // their rows take 3 MiB, and the cache has one

constexpr RowForm kForms[] = {{},
                              {RowType::kInt8, RowType::kBFloat16},
                              {RowType::kFloat16, RowType::kBFloat16},
                              {RowType::kBFloat16, RowType::kFloat32},
                              {RowType::kFloat32, RowType::kBFloat16}};

// Maps each key that has a row to the value of every element of the row.
using Rows = std::map<Key, float>;

struct Mode {
  bool write_through;
  bool last;      // the fault stays until it is mended
  bool happened;  // a publication that fails is there all the same
  bool spills;    // if not, what leaves the cache goes to the database at once
  RowForm form;   // of the rows
  // A number whose small multiples are exact in such rows.
  float unit() const { return form.row == RowType::kInt8 ? 127.0f / 128 : 1.0f; }
};

// Runs one program of calls, in which one call of the database fails.
class Run {
 public:
  Run(const Mode& mode, int64_t first) : mode_(mode) {
    faults_->first = first;
    faults_->last = mode.last;
    faults_->happened = mode.happened;
  }

  // Returns whether there was a call to fail.
  bool Go() {
    Call("open", [&] { return Open(); }, {});
    Call(
        "assign", [&] { return Assign(0, 900, 1); }, Setting(0, 900, 1));
    Call(
        "update", [&] { return Update(300, 1200); }, Adding(300, 1200));
    Publish("flush", [&] { return storage_->Flush(); }, {});
    Call(
        "assign", [&] { return Assign(200, 500, 5); }, Setting(200, 500, 5));
    Call(
        "remove", [&] { return Remove(0, 100); }, Removing(0, 100));
    Call(
        "look up", [&] { return LookUp(0, 1400); }, Making(0, 1400));
    FlushBeside();
    Call(
        "update", [&] { return Update(100, 1400); }, Adding(100, 1400));
    Publish("checkpoint", [&] { return storage_->Checkpoint(Fresh("checkpoint")); }, {});
    Rows dumped;
    Publish(
        "dump", [&] { return storage_->Dump(folder_ / "dump", {}, nullptr).status(); },
        [&](Rows* rows) { dumped = *rows; });
    Call(
        "assign", [&] { return Assign(600, 700, 7); }, Setting(600, 700, 7));
    Call(
        "remove", [&] { return Remove(500, 100); }, Removing(500, 100));
    FlushBeside();
    Call(
        "remove", [&] { return Remove(550, 100); }, Removing(550, 100));
    Call(
        "update", [&] { return Update(0, 800); }, Adding(0, 800));
    FlushBeside();
    Publish(
        "load", [&] { return storage_->Load(folder_ / "dump", nullptr).status(); },
        [&](Rows* rows) {
          for (const auto& [key, value] : dumped) (*rows)[key] = value;
        });
    Call(
        "update", [&] { return Update(0, 800); }, Adding(0, 800));
    Publish("compact", [&] { return storage_->Compact(); }, {});
    Call(
        "look up", [&] { return LookUp(0, kKeys); }, Making(0, kKeys));
    Call(
        "update", [&] { return Update(700, 800); }, Adding(700, 800));
    Publish("close", [&] { return Close(); }, {});
    Call("open", [&] { return Open(); }, {});
    CHECK(Found(*table_) == rows_);
    Call(
        "assign", [&] { return Assign(0, kKeys, 9); }, Setting(0, kKeys, 9));
    Publish("close", [&] { return Close(); }, {});
    faults_->Mend();
    REQUIRE(Open().ok());
    CHECK(Found(*table_) == rows_);
    CHECK(table_->size() == rows_.size());
    REQUIRE(Close().ok());
    return faults_->hit;
  }

 private:
  using Effect = std::function<void(Rows*)>;

  static Effect Setting(Key first, size_t n, float value) {
    return [=](Rows* rows) {
      for (Key key = first; key < first + n; ++key) (*rows)[key] = value;
    };
  }
  // Makes rows where there are none.
  static Effect Making(Key first, size_t n) {
    return [=](Rows* rows) {
      for (Key key = first; key < first + n; ++key) rows->emplace(key, 0.0f);
    };
  }
  static Effect Adding(Key first, size_t n) {
    return [=](Rows* rows) {
      for (Key key = first; key < first + n; ++key) (*rows)[key] += 1;
    };
  }
  static Effect Removing(Key first, size_t n) {
    return [=](Rows* rows) {
      for (Key key = first; key < first + n; ++key) rows->erase(key);
    };
  }

  Status Open() {
    StorageOptions options;
    options.path = folder_ / "storage";
    options.cache_bytes = uint64_t{1} << 20;
    options.write_through = mode_.write_through;
    options.batch_bytes = uint64_t{64} << 10;
    if (!mode_.spills) options.spill_rows = 0;
    options.open_database = FailingDatabase::Over(RowDatabase::Open, faults_);
    auto storage = Storage::Open(options);
    if (!storage.ok()) return storage.status();
    auto table = TableIn(*storage.value());
    if (!table.ok()) return table.status();
    storage_ = std::move(storage.value());
    table_ = std::move(table.value());
    return Status();
  }
  Status Close() {
    Status status = storage_->Close();
    if (!status.ok()) return status;
    table_.reset();
    storage_.reset();
    return status;
  }
  Result<std::shared_ptr<Table>> TableIn(Storage& storage) const {
    TableSpec config;
    config.dim = kDim;
    config.form = mode_.form;
    config.initializer = "constant";
    config.initializer_a = 0;
    return storage.OpenTable(config);
  }
  static std::vector<Key> Keys(Key first, size_t n) {
    std::vector<Key> keys(n);
    std::iota(keys.begin(), keys.end(), first);
    return keys;
  }
  Status Assign(Key first, size_t n, float value) {
    const std::vector<float> rows(n * kDim, value * mode_.unit());
    return table_->Assign(Keys(first, n).data(), n, rows.data(), ProcessPool());
  }
  Status Remove(Key first, size_t n) {
    return table_->Remove(Keys(first, n).data(), n, ProcessPool()).status();
  }
  Status Update(Key first, size_t n) { return Train(*table_, first, n); }
  // Adds one to the rows, as a layer's step does, by a rule that has a slot.
  Status Train(Table& table, Key first, size_t n) const {
    const std::vector<Key> keys = Keys(first, n);
    const std::vector<float> gradients(n * kDim, -mode_.unit());
    LookupKeys looked_up;
    looked_up.keys = keys.data();
    looked_up.n = n;
    REQUIRE(table.Deposit(looked_up, nullptr, gradients.data(), nullptr).ok());
    CommitOptions step;
    step.rule = "momentum";
    step.hypers = {{"learning_rate", 1.0}, {"momentum", 0.0}};
    return table.Commit(step, ProcessPool()).status();
  }
  Status LookUp(Key first, size_t n) {
    std::vector<float> rows(n * kDim);
    return table_->Lookup(Keys(first, n).data(), n, /*make_rows=*/true, rows.data(), ProcessPool());
  }
  // Returns a path where there is nothing.
  std::string Fresh(const std::string& name) {
    const std::string path = folder_ / name;
    fs::remove_all(path);
    return path;
  }

  Rows Found(Table& table) const {
    const std::vector<Key> keys = Keys(0, kKeys);
    std::vector<RowMeta> metas(kKeys);
    std::vector<uint8_t> exists(kKeys);
    std::vector<float> floats(kKeys * kDim);
    const Status read =
        table.ReadMeta(keys.data(), kKeys, metas.data(), exists.data(), ProcessPool());
    REQUIRE_MESSAGE(read.ok(), read.message());
    const Status seen = table.Lookup(keys.data(), kKeys, false, floats.data(), ProcessPool());
    REQUIRE_MESSAGE(seen.ok(), seen.message());
    Rows rows;
    bool whole = true;
    for (size_t i = 0; i < kKeys; ++i) {
      if (exists[i] == 0) continue;
      rows[keys[i]] = floats[i * kDim] / mode_.unit();
      const auto row = floats.begin() + static_cast<int64_t>(i * kDim);
      whole = whole && std::count(row, row + kDim, *row) == kDim;
    }
    REQUIRE(whole);
    return rows;
  }
  // Returns the rows in the folder, as if the process had been killed now. The folder can still be
  // trained on and moved.
  Rows Stored() {
    const std::string copy = Fresh("killed");
    CopyOfOneMoment(folder_ / "storage", copy);
    StorageOptions options;
    options.path = copy;
    const auto storage = Value(Storage::Open(options));
    const auto table = Value(TableIn(*storage));
    const Rows rows = Found(*table);
    REQUIRE(storage->Dump(Fresh("moved"), {}, nullptr).ok());
    REQUIRE(storage->Load(folder_ / "moved", nullptr).ok());
    const Status trained = Train(*table, 0, 1);
    REQUIRE_MESSAGE(trained.ok(), trained.message());
    REQUIRE(storage->Close().ok());
    return rows;
  }

  // Returns the rows without those that have what rows start from.
  static Rows WithoutMade(const Rows& rows) {
    Rows others;
    for (const auto& [key, value] : rows) {
      if (value != 0) others[key] = value;
    }
    return others;
  }
  void Publish(const std::string& name, const std::function<Status()>& call, const Effect& effect) {
    Call(name, call, effect);
    promised_ = rows_;
    begun_.clear();
  }
  // If its thread meets the fault, the next flush has the rows.
  void FlushBeside() {
    begun_.push_back(rows_);
    Call("flush beside", [&] { return storage_->Flush(/*wait=*/false); }, {});
  }
  // Makes a call. If it fails, its rows are as before or as after it, on disk too as far as that
  // was promised; then the fault is mended, and the call is repeated unless it has happened.
  void Call(const std::string& name, const std::function<Status()>& call, const Effect& effect) {
    CAPTURE(name);
    Rows after = rows_;
    if (effect) effect(&after);
    Status status = call();
    if (status.ok()) {
      rows_ = std::move(after);
      if (mode_.write_through) promised_ = rows_;
      if (!begun_.empty()) begun_.push_back(rows_);  // which a flush may take as well
      return;
    }
    CAPTURE(status.message());
    // The thread of a flush may have met the fault, and have failed to open the folder again.
    CHECK((Contains(status, "planted") || Contains(status, "the next call tries again")));
    CHECK(Contains(status, folder_ / ""));
    REQUIRE(faults_->hit);
    faults_->Mend();
    if (storage_ == nullptr) {  // it was opening, or could not close
      REQUIRE(call().ok());
      CHECK(Found(*table_) == rows_);
      return;
    }
    // Rows that a call has made and not changed need not be on disk, or be there for certain.
    const auto is = [](const Rows& found, const Rows& known) {
      return WithoutMade(found) == WithoutMade(known);
    };
    const Rows stored = Stored();
    const bool begun = std::any_of(begun_.begin(), begun_.end(),
                                   [&](const Rows& rows) { return is(stored, rows); });
    CHECK((is(stored, promised_) || begun || is(stored, rows_) || is(stored, after)));
    const Rows found = Found(*table_);
    const bool is_after = is(found, after);
    const bool changed = Contains(status, "the rows are changed and kept");
    REQUIRE((is(found, rows_) || is_after));
    if (changed) CHECK(is_after);
    // Rows that the call has made are gone, or the error says that some stay.
    if (!Contains(status, "could not be taken back")) CHECK((found == rows_ || found == after));
    const bool happened = is_after && !is(found, rows_);
    if (happened) {
      rows_ = std::move(after);
    } else {
      REQUIRE(call().ok());
      rows_ = std::move(after);
    }
    if (storage_ == nullptr) return;  // closed by now
    CHECK(Found(*table_) == rows_);
    REQUIRE(storage_->Flush().ok());
    promised_ = rows_;
    CHECK(Stored() == rows_);
  }

  const Mode mode_;
  const TestFolder folder_;
  const std::shared_ptr<PlantedFaults> faults_ = std::make_shared<PlantedFaults>();
  std::shared_ptr<Storage> storage_;
  std::shared_ptr<Table> table_;
  Rows rows_;                // what the calls that returned have left
  Rows promised_;            // what must survive the process
  std::vector<Rows> begun_;  // what flushes beside other calls may have written since
};

}  // namespace

TEST_CASE(
    "a database that fails at any call loses no promised row, and goes on once it is mended") {
  // Each fifth call is among the places of one mode, or each call among those of all.
  const int64_t step = LongTests() ? 1 : 20;
  int64_t failed = 0;
  int64_t begin = 0;
  size_t tried = 0, missed = 0;
  for (const bool write_through : {false, true}) {
    for (const bool last : {false, true}) {
      missed = 0;
      for (int64_t first = begin % step;; first += step) {
        // Tries both of these by turns, so that over the modes each place meets either.
        const int64_t turn = first / step;
        const Mode mode{write_through, last, (turn + last) % 2 == 0, (turn / 2) % 2 == 0,
                        kForms[tried++ % std::size(kForms)]};
        CAPTURE(write_through);
        CAPTURE(last);
        CAPTURE(mode.happened);
        CAPTURE(mode.spills);
        CAPTURE(std::string(RowTypeName(mode.form.row)));
        CAPTURE(first);
        const bool hit = Run(mode, first).Go();
        failed += hit;
        // Rows in fewer bytes make fewer calls.
        missed = hit ? 0 : missed + 1;
        if (missed == std::size(kForms)) break;
      }
      begin += 5;
    }
  }
  MESSAGE(failed, " calls failed");
  CHECK(failed > 50 / step);
}

TEST_CASE("who never waits for a flush is told that one has failed") {
  const TestFolder folder;
  const auto faults = std::make_shared<PlantedFaults>();
  StorageOptions options;
  options.path = folder / "storage";
  options.batch_bytes = 0;
  options.open_database = FailingDatabase::Over(RowDatabase::Open, faults);
  const auto storage = Value(Storage::Open(options));
  TableSpec config;
  config.dim = 1;
  const auto table = Value(storage->OpenTable(config));
  const Key keys[] = {1, 2, 3};
  const float rows[] = {1, 2, 3};
  REQUIRE(table->Assign(keys, 3, rows, SerialFor).ok());
  faults->first = faults->calls;
  faults->last = true;
  REQUIRE(storage->Flush(/*wait=*/false).ok());
  while (storage->flushing()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(storage->failed_flushes() == 1);
  CHECK_FALSE(storage->Flush(/*wait=*/false).ok());
  CHECK_FALSE(storage->flushing());
  faults->Mend();
  REQUIRE(storage->Flush(/*wait=*/false).ok());
  CHECK_FALSE(storage->flushing());  // this call has waited
  CHECK(storage->failed_flushes() == 0);
  CopyOfOneMoment(options.path, folder / "killed");
  options.path = folder / "killed";
  const auto killed = Value(Storage::Open(options));
  float found[3] = {};
  REQUIRE(Value(killed->OpenTable(config))->Lookup(keys, 3, false, found, SerialFor).ok());
  CHECK(std::equal(rows, rows + 3, found));
}

TEST_CASE("a storage whose database could not be opened again is mended by whatever comes next") {
  for (const std::string next :
       {"freeze", "lookup", "assign", "remove", "flush", "groups", "open"}) {
    CAPTURE(next);
    const TestFolder folder;
    const auto faults = std::make_shared<PlantedFaults>();
    StorageOptions options;
    options.path = folder / "storage";
    options.open_database = FailingDatabase::Over(RowDatabase::Open, faults);
    const auto storage = Value(Storage::Open(options));
    TableSpec config;
    config.dim = 1;
    const auto table = Value(storage->OpenTable(config));
    const Key keys[] = {1, 2, 3};
    const float rows[] = {1, 2, 3};
    float found[3] = {};
    REQUIRE(table->Assign(keys, 3, rows, SerialFor).ok());
    faults->first = faults->calls;
    faults->last = true;
    CHECK_FALSE(storage->Flush().ok());  // this write fails
    CHECK_FALSE(storage->Flush().ok());  // and here it cannot be opened again
    faults->Mend();
    if (next == "freeze") CHECK(Value(table->Freeze()).size() == 3);
    if (next == "lookup") CHECK(table->Lookup(keys, 3, false, found, SerialFor).ok());
    if (next == "assign") CHECK(table->Assign(keys, 3, rows, SerialFor).ok());
    if (next == "remove") CHECK(Value(table->Remove(keys + 2, 1, SerialFor)) == 1);
    if (next == "flush") CHECK(storage->Flush().ok());
    if (next == "groups") CHECK(Value(storage->Groups()).size() == 1);
    if (next == "open") {
      config.group = 1;
      CHECK(storage->OpenTable(config).ok());
    }
    REQUIRE(table->Lookup(keys, 2, false, found, SerialFor).ok());
    CHECK(found[0] == 1);
    CHECK(found[1] == 2);
  }
}

}  // namespace sok
