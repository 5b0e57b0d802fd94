// With write_through, whatever a call has changed survives the process, whole.
#include <doctest/doctest.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/base/test_folder.h"
#include "core/base/test_result.h"
#include "core/base/test_threads.h"
#include "core/base/thread_pool.h"
#include "core/disk/journal.h"
#include "core/disk/journal_reader.h"
#include "core/storage/storage.h"
#include "core/tables/test_contents.h"

namespace sok {
namespace {

namespace fs = std::filesystem;

constexpr int kDim = 8;
constexpr Key kKeys = 20000;  // several times the cache

using Rows = std::map<Key, float>;  // the first float of each row

StorageOptions At(const std::string& path, bool write_through = true, bool read_only = false) {
  StorageOptions options;
  options.path = path;
  options.cache_bytes = uint64_t{1} << 20;
  options.write_through = write_through;
  options.read_only = read_only;
  return options;
}

std::shared_ptr<Table> TableOf(Storage& storage) {
  TableSpec config;
  config.dim = kDim;
  config.initializer = "constant";
  config.initializer_a = 0;
  return Value(storage.OpenTable(config));
}

// Makes random calls on a table and on a map.
class Calls {
 public:
  explicit Calls(uint64_t seed) : random_(seed) {}

  void Run(Table& table) {
    std::vector<Key> keys(1 + random_() % 6000);
    for (Key& key : keys) key = random_() % kKeys;
    switch (random_() % 4) {
      case 0: {
        const auto value = static_cast<float>(random_() % 1000);
        const std::vector<float> rows(keys.size() * kDim, value);
        REQUIRE(table.Assign(keys.data(), keys.size(), rows.data(), ProcessPool()).ok());
        for (Key key : keys) model[key] = value;
        return;
      }
      case 1:
        keys.resize(keys.size() / 4);
        REQUIRE(table.Remove(keys.data(), keys.size(), ProcessPool()).ok());
        for (Key key : keys) model.erase(key);
        return;
      default: {
        const std::vector<float> gradients(keys.size() * kDim, -1.0f);
        const auto sgd = Value(MakeRowOptimizer("sgd", {{"learning_rate", 1.0}}));
        REQUIRE(
            table.Update(keys.data(), keys.size(), gradients.data(), "sgd", *sgd, {}, ProcessPool())
                .ok());
        for (Key key : keys) ++model[key];
      }
    }
  }

  Rows model;

 private:
  std::mt19937_64 random_;
};

Rows RowsOf(Table& table) {
  Rows rows;
  REQUIRE(table.ForEachRow([&](Key key, RowRef row) { rows[key] = row.embedding[0]; }).ok());
  return rows;
}

// Returns the rows of a storage, as three ways of reading find them.
Rows RowsAt(const std::string& path, bool read_only) {
  const auto storage = Value(Storage::Open(At(path, /*write_through=*/false, read_only)));
  REQUIRE(Value(storage->Groups()).at(0).meta.rows == Value(storage->Survey(0)).rows);
  const auto table = TableOf(*storage);
  const Rows rows = RowsOf(*table);
  REQUIRE(table->size() == rows.size());
  std::vector<Key> keys(kKeys);
  std::iota(keys.begin(), keys.end(), 0);
  std::vector<float> found(kKeys * kDim);
  REQUIRE(table->Lookup(keys.data(), kKeys, false, found.data(), ProcessPool()).ok());
  for (Key key = 0; key < kKeys; ++key) {
    const auto row = rows.find(key);
    REQUIRE(found[key * kDim] == (row == rows.end() ? 0.0f : row->second));
  }
  return rows;
}

// Returns a folder with what a process that is killed now would leave.
std::string Killed(const TestFolder& folder, const std::string& name) {
  fs::remove_all(folder / name);
  CopyOfOneMoment(folder / "rows", folder / name);
  return folder / name;
}

// Returns a folder with what a failure of power may leave: its note was not on the device.
std::string PowerFailed(const TestFolder& folder, const std::string& name) {
  std::string failed = Killed(folder, name);
  fs::remove(failed + "/" + WrittenNote::kFileName);
  return failed;
}

std::string LastSegment(const std::string& path) {
  std::string last;
  for (const auto& entry : fs::directory_iterator(path)) {
    const std::string name = entry.path().string();
    if (name.find(kJournalPrefix) != std::string::npos) last = std::max(last, name);
  }
  return last;
}

}  // namespace

TEST_CASE("calls of every kind survive a kill, and the next ones, in files or published") {
  const uint64_t seed = TestSeed();
  CAPTURE(seed);
  for (const uint64_t journal_bytes : {Journal::kMostBytes, uint64_t{1} << 20}) {
    const TestFolder folder;
    StorageOptions options = At(folder / "rows");
    options.journal_bytes = journal_bytes;
    Calls calls(seed);
    for (int life = 0; life < (LongTests() ? 4 : 2); ++life) {
      const auto storage = Value(Storage::Open(options));
      const auto table = TableOf(*storage);
      REQUIRE(RowsOf(*table) == calls.model);
      for (int call = 0; call < 12; ++call) {
        calls.Run(*table);
        if (call % 5 == 3) REQUIRE(Value(storage->Survey(0)).rows == calls.model.size());
        if (call % 7 == 6) REQUIRE(storage->Flush().ok());
        if (call % 4 != 1) continue;
        const std::string killed = Killed(folder, "killed");
        REQUIRE(RowsAt(killed, /*read_only=*/true) == calls.model);
        REQUIRE(RowsAt(killed, /*read_only=*/false) == calls.model);
        REQUIRE(LastSegment(killed).empty());
        REQUIRE(RowsAt(killed, /*read_only=*/true) == calls.model);
      }
    }
    REQUIRE(RowsAt(folder / "rows", /*read_only=*/true) == calls.model);
    CHECK(LastSegment(folder / "rows").empty());
  }
}

TEST_CASE("what was removed stays away after a kill, rows that have expired too") {
  const TestFolder folder;
  StorageOptions options = At(folder / "rows");
  options.ttl = 50;
  const auto storage = Value(Storage::Open(options));
  storage->SetNow(1000);
  const auto table = TableOf(*storage);
  const std::vector<Key> keys = {1, 2, 3, 4};
  const std::vector<float> rows(keys.size() * kDim, 1.0f);
  REQUIRE(table->Assign(keys.data(), 4, rows.data(), SerialFor).ok());
  REQUIRE(storage->Flush().ok());
  storage->SetNow(1060);
  // A lookup comes upon one of them before, and buries it.
  REQUIRE(Value(table->Missing(&keys[1], 1, SerialFor)).size() == 1);
  CHECK(Value(table->Remove(keys.data(), 2, SerialFor)) == 0);
  options.path = Killed(folder, "killed");
  options.ttl = 500;
  options.now = [] { return 1060u; };
  for (const bool read_only : {true, false}) {
    options.read_only = read_only;
    const auto after = Value(Storage::Open(options));
    CHECK(RowsOf(*TableOf(*after)) == Rows{{3, 1.0f}, {4, 1.0f}});
    CHECK(Value(after->Survey(0)).rows == Value(after->Groups()).at(0).meta.rows);
  }
}

namespace {

// Calls on a full table of four rows, whose least recently trained ones go.
class FullTable {
 public:
  explicit FullTable(const std::string& path, bool flushes_beside = false) {
    StorageOptions options = At(path);
    if (flushes_beside) options.batch_bytes = 0;
    storage = Value(Storage::Open(options));
    storage->SetNow(1);
    table = Open(*storage);
    Update({1, 2, 3, 4});
  }

  static std::shared_ptr<Table> Open(Storage& of) {
    TableSpec config;
    config.dim = kDim;
    config.initializer = "constant";
    config.initializer_a = 0;
    config.max_rows = 4;
    config.eviction = EvictionConfig{"lru"};
    return Value(of.OpenTable(config, "sgd"));
  }

  void Update(const std::vector<Key>& keys) {
    storage->SetNow(++now_);
    const std::vector<float> gradients(keys.size() * kDim, -1.0f);
    const auto sgd = Value(MakeRowOptimizer("sgd", {{"learning_rate", 1.0}}));
    REQUIRE(
        table->Update(keys.data(), keys.size(), gradients.data(), "sgd", *sgd, {}, SerialFor).ok());
  }
  void Assign(const std::vector<Key>& keys) {
    storage->SetNow(++now_);
    const std::vector<float> rows(keys.size() * kDim, 5.0f);
    REQUIRE(table->Assign(keys.data(), keys.size(), rows.data(), SerialFor).ok());
  }
  void Look(const std::vector<Key>& keys) {
    storage->SetNow(++now_);
    std::vector<float> out(keys.size() * kDim);
    REQUIRE(table->Lookup(keys.data(), keys.size(), true, out.data(), SerialFor).ok());
  }
  void Commit(const std::vector<Key>& keys) {
    storage->SetNow(++now_);
    const auto hold = std::make_shared<const std::vector<Key>>(keys);
    const auto ones = std::make_shared<const std::vector<float>>(keys.size() * kDim, -1.0f);
    LookupKeys lookup;
    lookup.hold = hold;
    lookup.keys = hold->data();
    lookup.n = keys.size();
    REQUIRE(table->Deposit(lookup, ones, ones->data(), nullptr).ok());
    REQUIRE(table->Commit({"sgd", {{"learning_rate", 1}}, 0, 1.0f}, SerialFor).ok());
  }

  std::shared_ptr<Storage> storage;
  std::shared_ptr<Table> table;

 private:
  uint32_t now_ = 1;
};

Rows RowsOfFullTableAt(const std::string& path, bool read_only) {
  const auto storage = Value(Storage::Open(At(path, /*write_through=*/false, read_only)));
  return RowsOf(*FullTable::Open(*storage));
}

}  // namespace

TEST_CASE("rows that go for a call go with it, or not at all") {
  using Call = void (FullTable::*)(const std::vector<Key>&);
  for (const Call call :
       {Call(&FullTable::Update), Call(&FullTable::Assign), Call(&FullTable::Commit)}) {
    const TestFolder folder;
    FullTable full(folder / "rows");
    const Rows before = RowsOf(*full.table);
    const auto start = fs::file_size(LastSegment(folder / "rows"));
    (full.*call)({1, 7, 8});
    const Rows after = RowsOf(*full.table);
    CHECK(after.size() == 4);
    CHECK(after.count(2) + after.count(3) == 0);
    const auto end = fs::file_size(LastSegment(folder / "rows"));
    for (uint64_t length = start; length <= end;
         length += length < end ? std::min<uint64_t>(61, end - length) : 1) {
      const std::string killed = PowerFailed(folder, "killed");
      fs::resize_file(LastSegment(killed), length);
      CAPTURE(length);
      CAPTURE(end);
      CHECK(RowsOfFullTableAt(killed, /*read_only=*/length % 2 == 0) ==
            (length < end ? before : after));
    }
  }
}

TEST_CASE("rows that went for a lookup are gone after a kill once a call is durable") {
  const TestFolder folder;
  FullTable full(folder / "rows");
  full.Look({5, 6});  // 1 and 2 go, and the new rows are as those of keys that were never seen
  CHECK(RowsOfFullTableAt(Killed(folder, "killed"), false) ==
        Rows{{1, 1.0f}, {2, 1.0f}, {3, 1.0f}, {4, 1.0f}});
  full.Look({2});  // 3 goes
  full.Update({5});
  CHECK(RowsOfFullTableAt(Killed(folder, "killed"), false) == Rows{{4, 1.0f}, {5, 1.0f}});
  full.Update({3});  // 4 goes: lookups have made 2 and 6 later
  CHECK(RowsOfFullTableAt(Killed(folder, "killed"), false) == Rows{{3, 1.0f}, {5, 1.0f}});
  REQUIRE(full.storage->Flush().ok());
  const Key kept = 3;
  CHECK(Value(full.table->Remove(&kept, 1, SerialFor)) == 1);
  CHECK(RowsOfFullTableAt(Killed(folder, "killed"), false) ==
        Rows{{2, 0.0f}, {5, 1.0f}, {6, 0.0f}});
  // Lookups alone: their removals are written now and then.
  for (Key key = 100; key < 200; ++key) full.Look({key});
  full.Update({100});
  const Rows rows = RowsOfFullTableAt(Killed(folder, "killed"), false);
  CHECK(rows == Rows{{100, 1.0f}});
}

TEST_CASE("rows that lookups have made anew outlive a kill once a flush beside calls has them") {
  const TestFolder folder;
  FullTable full(folder / "rows", /*flushes_beside=*/true);
  full.Look({5});  // 1 goes
  full.Look({1});  // 2 goes, and 1 is there again
  REQUIRE(full.storage->Flush().ok());
  const Rows flushed = {{1, 0.0f}, {3, 1.0f}, {4, 1.0f}, {5, 0.0f}};
  CHECK(RowsOfFullTableAt(Killed(folder, "killed"), false) == flushed);
  full.Update({5});
  CHECK(RowsOfFullTableAt(Killed(folder, "killed"), false) ==
        Rows{{1, 0.0f}, {3, 1.0f}, {4, 1.0f}, {5, 1.0f}});
}

TEST_CASE("of a call that was under way, all is there or nothing") {
  const TestFolder folder;
  const auto storage = Value(Storage::Open(At(folder / "rows")));
  const auto table = TableOf(*storage);
  const auto assign = [&](float value) {
    std::vector<Key> keys(50);
    std::iota(keys.begin(), keys.end(), 0);
    const std::vector<float> rows(keys.size() * kDim, value);
    REQUIRE(table->Assign(keys.data(), keys.size(), rows.data(), ProcessPool()).ok());
  };
  assign(1);
  const auto before = fs::file_size(LastSegment(folder / "rows"));
  assign(2);
  const auto after = fs::file_size(LastSegment(folder / "rows"));
  for (uint64_t length = before; length <= after; length += length < before + 40 ? 1 : 97) {
    const std::string killed = PowerFailed(folder, "killed");
    fs::resize_file(LastSegment(killed), length);
    const Rows rows = RowsAt(killed, /*read_only=*/length % 2 == 0);
    REQUIRE(rows.size() == 50);
    for (const auto& [key, value] : rows) REQUIRE(value == (length == after ? 2.0f : 1.0f));
  }
}

TEST_CASE("a journal that is damaged before whole calls is an error that names it") {
  const TestFolder folder;
  const auto storage = Value(Storage::Open(At(folder / "rows")));
  Calls calls(3);
  const auto table = TableOf(*storage);
  for (int call = 0; call < 2; ++call) calls.Run(*table);
  const auto before_last = fs::file_size(LastSegment(folder / "rows"));
  calls.Run(*table);
  std::mt19937_64 random(4);
  for (int i = 0; i < 70; ++i) {
    const std::string killed = Killed(folder, "killed");
    const std::string segment = LastSegment(killed);
    std::string bytes = ReadAll(segment);
    const size_t at = i < 56 ? i : random() % (before_last - 512);
    bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
    // Or with zeros, as in a page that the device has never written.
    if (i % 7 == 6) bytes.replace(at, 512, 512, '\0');
    WriteAll(segment, bytes);
    const auto opened = Storage::Open(At(killed));
    REQUIRE_FALSE(opened.ok());
    CHECK(opened.status().code() == Code::kDataLoss);
    CHECK(Contains(opened.status(), segment));
  }
}

namespace {

// Three calls, and what a failure of power may have made of what was written last.
class TornCalls {
 public:
  TornCalls() : storage(Value(Storage::Open(At(folder / "rows")))), table(TableOf(*storage)) {
    REQUIRE(storage->Flush().ok());  // the group is there
    for (int call = 0; call < 3; ++call) {
      calls.Run(*table);
      ends.push_back(fs::file_size(LastSegment(folder / "rows")));
      models.push_back(calls.model);
    }
  }
  // Checks that the calls before the last ones are there, whichever mode opens first.
  void Expect(const std::string& bytes, const Rows& rows, bool read_only) const {
    const std::string killed = PowerFailed(folder, "killed");
    WriteAll(LastSegment(killed), bytes);
    REQUIRE(RowsAt(killed, read_only) == rows);
    // The tail is cut: later calls are not behind it.
    Calls more{13};
    more.model = rows;
    {
      const auto opened = Value(Storage::Open(At(killed)));
      more.Run(*TableOf(*opened));
      CopyOfOneMoment(killed, folder / "again");
    }
    REQUIRE(RowsAt(folder / "again", false) == more.model);
    fs::remove_all(folder / "again");
  }

  const TestFolder folder;
  const std::shared_ptr<Storage> storage;
  const std::shared_ptr<Table> table;
  Calls calls{21};
  std::vector<uint64_t> ends;  // of each call in the segment
  std::vector<Rows> models;    // after each call
};

}  // namespace

TEST_CASE("of a torn tail nothing is taken, and all calls before it are kept") {
  const TornCalls torn;
  const std::string whole = ReadAll(LastSegment(torn.folder / "rows"));
  const uint64_t first = torn.ends[0], second = torn.ends[1];
  std::mt19937_64 random(8);
  const auto zeros_from = [&whole](uint64_t begin) {
    std::string bytes = whole;
    bytes.replace(begin, std::string::npos, whole.size() - begin, '\0');
    return bytes;
  };
  // Zeros up to the end of the file, which may have had its length before its bytes.
  for (const uint64_t begin : {second, second + 1, second + 40, whole.size() - 1}) {
    CAPTURE(begin);
    if (zeros_from(begin) == whole) continue;
    torn.Expect(zeros_from(begin), torn.models[1], begin % 2 == 0);
  }
  torn.Expect(zeros_from(first), torn.models[0], true);
  torn.Expect(whole.substr(0, second) + std::string(100000, '\0'), torn.models[1], false);
  // Bytes of other files.
  std::string garbage = whole.substr(0, second);
  for (int i = 0; i < 5000; ++i) garbage += static_cast<char>(random());
  torn.Expect(garbage, torn.models[1], true);
  // One page of the last call.
  std::string holed = whole;
  holed.replace(second + 100, 512, 512, '\0');
  torn.Expect(holed, torn.models[1], false);
  // Pages of two calls, in any order.
  holed.replace(first + 100, 512, 512, '\0');
  torn.Expect(holed, torn.models[0], true);
  // Not even the first bytes.
  torn.Expect(std::string(whole.size(), '\0'), {}, false);
}

TEST_CASE("a segment may be torn before segments without calls, and not before others") {
  const TornCalls torn;
  const std::string killed = PowerFailed(torn.folder, "killed");
  const std::string segment = LastSegment(killed);
  std::string bytes = ReadAll(segment);
  bytes.replace(torn.ends[1], std::string::npos, 1000, '\0');
  WriteAll(segment, bytes);
  const std::string next = killed + "/" + JournalSegmentName(3);
  REQUIRE(segment == killed + "/" + JournalSegmentName(2));
  WriteAll(next, std::string(500, '\0'));
  CHECK(RowsAt(killed, /*read_only=*/true) == torn.models[1]);
  // A whole call in the next one.
  Journal journal(torn.folder / ".", torn.storage->id(), /*first_number=*/3);
  auto room = journal.Reserve(10);
  REQUIRE(room.ok());
  REQUIRE(journal.Append(std::move(room.value()), {{"name", "value"}}, {}).ok());
  fs::remove(next);
  fs::copy_file(torn.folder / JournalSegmentName(3), next);
  const auto opened = Storage::Open(At(killed));
  REQUIRE_FALSE(opened.ok());
  CHECK(opened.status().code() == Code::kDataLoss);
  CHECK(Contains(opened.status(), segment));
  CHECK(Contains(opened.status(), next));
}

TEST_CASE("a restore is durable when it returns, and a journal from before does not undo it") {
  const TestFolder folder;
  const auto storage = Value(Storage::Open(At(folder / "rows")));
  const auto table = TableOf(*storage);
  Calls calls(5);
  for (int call = 0; call < 4; ++call) calls.Run(*table);
  OwnedContents contents;
  contents.state = {"sgd", {}, 9};
  contents.keys = {7, 8};
  contents.embeddings.assign(2 * kDim, 4.0f);
  contents.update_nums = {1, 2};
  REQUIRE(Restore(*table, contents, ProcessPool()).ok());
  const Rows expected = {{7, 4.0f}, {8, 4.0f}};
  CHECK(RowsAt(Killed(folder, "killed"), /*read_only=*/true) == expected);
  CHECK(RowsAt(Killed(folder, "killed"), /*read_only=*/false) == expected);
  CHECK(RowsOf(*table) == expected);
}

// Makes a storage with some calls, another flush, and some more calls.
class TwoSegments {
 public:
  TwoSegments() {
    {
      const auto storage = Value(Storage::Open(At(folder / "rows")));
      const auto table = TableOf(*storage);
      for (int call = 0; call < 3; ++call) calls.Run(*table);
      REQUIRE(storage->Checkpoint(folder / "early").ok());
      early = calls.model;
      calls.Run(*table);
      Killed(folder, "first");  // the checkpoint's next segment
      REQUIRE(storage->Flush().ok());
      calls.Run(*table);
      Killed(folder, "second");
    }
  }
  // Puts what one folder has as its journal into another.
  void MoveJournal(const std::string& from, const std::string& to) const {
    const fs::path segment = LastSegment(folder / from);
    fs::copy_file(segment, fs::path(folder / to) / segment.filename());
  }

  const TestFolder folder;
  Calls calls{11};
  Rows early;
};

TEST_CASE("a journal that begins later than the database ends is an error") {
  TwoSegments storage;
  storage.MoveJournal("second", "early");
  const std::string path = storage.folder / "early";
  for (const bool read_only : {true, false}) {
    const auto opened = Storage::Open(At(path, true, read_only));
    REQUIRE_FALSE(opened.ok());
    CHECK(opened.status().code() == Code::kDataLoss);
    CHECK(Contains(opened.status(), LastSegment(path)));
    CHECK(Contains(opened.status(), "missing"));
  }
  storage.MoveJournal("first", "early");  // now it is whole
  CHECK(RowsAt(path, /*read_only=*/false) == storage.calls.model);
}

TEST_CASE("without the journal that is in its way a storage opens as it was") {
  TwoSegments storage;
  storage.MoveJournal("second", "early");
  const std::string path = storage.folder / "early";
  fs::remove(LastSegment(path));
  CHECK(RowsAt(path, /*read_only=*/false) == storage.early);
}

TEST_CASE("a journal of another storage is an error") {
  TwoSegments storage, other;
  const std::string path = other.folder / "early";
  fs::copy_file(LastSegment(storage.folder / "first"),
                fs::path(path) / fs::path(LastSegment(storage.folder / "first")).filename());
  const auto opened = Storage::Open(At(path));
  REQUIRE_FALSE(opened.ok());
  CHECK(opened.status().code() == Code::kDataLoss);
  CHECK(Contains(opened.status(), "another storage"));
}

TEST_CASE("a journal of another history of the same storage is an error") {
  struct Replica {
    bool write_through;
    bool flushed;
    const char* journal;  // the folder whose journal comes into the replica's
  };
  TwoSegments storage;
  // The numbers of the segments follow each other in all of these.
  for (const Replica& replica : {Replica{true, false, "second"}, Replica{true, true, "second"},
                                 Replica{false, true, "first"}}) {
    CAPTURE(replica.write_through);
    CAPTURE(replica.flushed);
    const std::string path = storage.folder / "replica", mixed = storage.folder / "mixed";
    fs::remove_all(path);
    fs::remove_all(mixed);
    fs::copy(storage.folder / "early", path, fs::copy_options::recursive);
    {
      const auto trained = Value(Storage::Open(At(path, replica.write_through)));
      Calls calls{13};
      calls.Run(*TableOf(*trained));
      if (replica.flushed) REQUIRE(trained->Flush().ok());
      CopyOfOneMoment(path, mixed);
    }
    storage.MoveJournal(replica.journal, "mixed");
    for (const bool read_only : {true, false}) {
      const auto opened = Storage::Open(At(mixed, true, read_only));
      REQUIRE_FALSE(opened.ok());
      CHECK(opened.status().code() == Code::kDataLoss);
      CHECK(Contains(opened.status(), LastSegment(mixed)));
      CHECK(Contains(opened.status(), "two histories"));
    }
  }
}

TEST_CASE("a journal of an earlier version, which says nothing of its history, is replayed") {
  TwoSegments storage;
  const std::string path = storage.folder / "first";
  const std::string segment = LastSegment(path);
  std::string bytes = ReadAll(segment);
  std::memcpy(bytes.data(), JournalSegmentHeader::kMagicBefore, 8);
  const size_t history = offsetof(JournalSegmentHeader, history);
  bytes.erase(history, sizeof(JournalSegmentHeader) - history);
  WriteAll(segment, bytes);
  fs::remove(path + "/" + WrittenNote::kFileName);  // which earlier versions do not write
  Rows rows;
  {
    TwoSegments same;
    rows = RowsAt(same.folder / "first", /*read_only=*/true);
  }
  for (const bool read_only : {true, false}) CHECK(RowsAt(path, read_only) == rows);
}

TEST_CASE("a segment that a kill has left without a record leaves no gap") {
  TwoSegments storage;
  const std::string path = storage.folder / "first";
  const std::string segment = LastSegment(path);
  fs::resize_file(segment, sizeof(JournalSegmentHeader));
  fs::remove(path + "/" + WrittenNote::kFileName);
  CHECK(RowsAt(path, /*read_only=*/true) == storage.early);
  CHECK(RowsAt(path, /*read_only=*/false) == storage.early);
  Calls calls{12};
  calls.model = storage.early;
  const auto opened = Value(Storage::Open(At(path)));
  calls.Run(*TableOf(*opened));
  CopyOfOneMoment(path, storage.folder / "killed");
  CHECK(RowsAt(storage.folder / "killed", /*read_only=*/false) == calls.model);
}

TEST_CASE("a segment that could neither be written nor removed is made again") {
  const TestFolder folder;
  Journal journal(folder / ".", /*storage=*/1, /*first_number=*/7);
  std::FILE* left = std::fopen((folder / "sok-journal-000000000007").c_str(), "w");
  std::fputs("half of a head", left);
  std::fclose(left);
  auto room = journal.Reserve(10);
  REQUIRE(room.ok());
  REQUIRE(journal.Append(std::move(room.value()), {{"name", "value"}}, {}).ok());
  CHECK(fs::file_size(folder / "sok-journal-000000000007") > sizeof(JournalSegmentHeader));
}

TEST_CASE("a checkpoint is the same storage, and other folders are others") {
  TwoSegments storage, other;
  const auto id = [](const std::string& path) {
    return Value(Storage::Open(At(path, false, true)))->id();
  };
  CHECK(id(storage.folder / "early") == id(storage.folder / "rows"));
  CHECK(id(storage.folder / "early") != id(other.folder / "rows"));
  CHECK(id(storage.folder / "early") != 0);
}

}  // namespace sok
