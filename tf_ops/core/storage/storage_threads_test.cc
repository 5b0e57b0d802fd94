// Threads that share the tables of a storage lose no update, whatever is spilled or flushed.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/base/test_folder.h"
#include "core/base/test_result.h"
#include "core/base/test_threads.h"
#include "core/base/thread_pool.h"
#include "core/storage/storage.h"
#include "core/tables/test_contents.h"

namespace sok {
namespace {

constexpr int kDim = 24;
constexpr size_t kKeys = 24000;  // four times what the cache holds
constexpr size_t kBatch = 400;

// Counts how often each key was updated, by all threads.
using Counts = std::vector<std::atomic<int>>;

// Makes the steps of one thread: a lookup, and mostly an update that takes 1 off every element.
void Train(Table& table, const RowOptimizer& sgd, uint32_t seed, int steps, Counts* counts) {
  std::mt19937 rng(seed);
  std::vector<Key> keys(kBatch);
  std::vector<float> out(kBatch * kDim);
  const std::vector<float> ones(kBatch * kDim, 1.0f);
  for (int step = 0; step < steps; ++step) {
    for (Key& key : keys) key = rng() % kKeys;
    const bool make_rows = rng() % 2 == 0;
    Status status = table.Lookup(keys.data(), keys.size(), make_rows, out.data(), ProcessPool());
    REQUIRE_MESSAGE(status.ok(), status.message());
    for (size_t i = 0; i < keys.size(); ++i) {
      // A row is never seen half updated.
      for (int j = 1; j < kDim; ++j) REQUIRE(out[i * kDim + j] == out[i * kDim]);
    }
    if (rng() % 4 == 0) continue;
    status = table.Update(keys.data(), keys.size(), ones.data(), "kv_sgd", sgd, {}, ProcessPool());
    REQUIRE_MESSAGE(status.ok(), status.message());
    for (Key key : keys) ++(*counts)[key];
  }
}

// Reads rows ahead of nobody in particular.
void ReadAhead(Table& table, uint32_t seed, const std::atomic<bool>& done) {
  std::mt19937 rng(seed);
  std::vector<Key> keys(kBatch);
  while (!done) {
    for (Key& key : keys) key = rng() % kKeys;
    const Status status = table.ReadAhead(keys.data(), keys.size(), ProcessPool());
    REQUIRE_MESSAGE(status.ok(), status.message());
  }
}

void CheckCounts(Table& table, const Counts& counts) {
  std::vector<Key> keys(kKeys);
  for (size_t i = 0; i < kKeys; ++i) keys[i] = i;
  std::vector<float> out(kKeys * kDim);
  REQUIRE(table.Lookup(keys.data(), kKeys, false, out.data(), ProcessPool()).ok());
  for (size_t i = 0; i < kKeys; ++i) {
    REQUIRE(out[i * kDim] == -static_cast<float>(counts[i].load()));
  }
}

}  // namespace

TEST_CASE("eight threads that train two groups of a storage lose no update") {
  const uint32_t seed = 8;
  CAPTURE(seed);
  const auto sgd = MakeRowOptimizer("kv_sgd", {{"gamma", 1.0}});
  REQUIRE(sgd.ok());
  // Without a spill rows that leave the cache go to the database.
  for (const int round : {0, 1, 2}) {
    const bool write_through = round == 1;
    CAPTURE(round);
    const TestFolder folder;
    StorageOptions options;
    options.path = folder / "storage";
    options.cache_bytes = uint64_t{1} << 20;
    options.write_through = write_through;
    options.spill_rows = round == 2 ? 0 : kKeys / 2;
    Counts counts[2] = {Counts(kKeys), Counts(kKeys)};
    TableSpec config;
    config.dim = kDim;
    config.initializer = "constant";
    config.initializer_a = 0.0;
    const auto open = [&](Storage& storage, int group) {
      config.group = group;
      config.form.row = group == 0 ? RowType::kFloat32 : RowType::kFloat16;
      return Value(storage.OpenTable(config, "kv_sgd", {}));
    };
    {
      const auto storage = Value(Storage::Open(options));
      const std::shared_ptr<Table> tables[2] = {open(*storage, 0), open(*storage, 1)};
      std::vector<std::thread> threads;
      for (uint32_t t = 0; t < 8; ++t) {
        threads.emplace_back([&, t] {
          Train(*tables[t % 2], *sgd.value(), seed + t, write_through ? 25 : 60, &counts[t % 2]);
        });
      }
      std::atomic<bool> done{false};
      std::thread flusher([&] {
        while (!done) {
          REQUIRE(storage->Flush().ok());
          REQUIRE(storage->Survey(0).ok());
          REQUIRE(tables[1]->Freeze().ok());
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
      });
      std::vector<std::thread> readers;
      for (int t = 0; t < 2; ++t) {
        readers.emplace_back([&, t] { ReadAhead(*tables[t], seed + 100 + t, done); });
      }
      for (std::thread& thread : threads) thread.join();
      done = true;
      flusher.join();
      for (std::thread& thread : readers) thread.join();
      for (int group : {0, 1}) CHECK(tables[group]->Stats().read_ahead > 0);
      for (int group : {0, 1}) CheckCounts(*tables[group], counts[group]);
      REQUIRE(storage->Close().ok());
    }
    const auto storage = Value(Storage::Open(options));
    for (int group : {0, 1}) CheckCounts(*open(*storage, group), counts[group]);
  }
}

TEST_CASE("rows that are set and removed beside lookups are all there, then all gone") {
  constexpr int dim = 64;
  constexpr size_t residents = 90000, comers = 30000;
  const uint32_t seed = 9;
  CAPTURE(seed);
  for (const bool write_through : {false, true}) {
    for (const bool lookups_make_rows : {false, true}) {
      CAPTURE(write_through);
      CAPTURE(lookups_make_rows);
      const TestFolder folder;
      StorageOptions options;
      options.path = folder / "storage";
      options.cache_bytes = uint64_t{1} << 20;
      options.write_through = write_through;
      options.spill_rows = comers / 2;  // lookups move what was spilled to the database
      const auto storage = Value(Storage::Open(options));
      TableSpec config;
      config.dim = dim;
      config.form.row = lookups_make_rows ? RowType::kFloat16 : RowType::kFloat32;
      const auto table = Value(storage->OpenTable(config));
      std::vector<Key> keys(residents);
      for (size_t i = 0; i < residents; ++i) keys[i] = comers + i;
      const std::vector<float> rows(residents * dim, 1.0f);
      REQUIRE(table->Assign(keys.data(), residents, rows.data(), ProcessPool()).ok());
      REQUIRE(storage->Flush().ok());

      std::vector<Key> coming(comers);
      for (size_t i = 0; i < comers; ++i) coming[i] = i;
      for (uint32_t life = 0; life < (LongTests() ? 4u : 2u); ++life) {
        std::atomic<bool> done{false};
        std::thread looker([&] {
          std::mt19937 rng(seed + life);
          std::vector<Key> batch(3000);
          std::vector<float> out(batch.size() * dim);
          while (!done) {
            for (Key& key : batch) {
              key = lookups_make_rows ? rng() % comers : comers + rng() % residents;
            }
            const Status status =
                table->Lookup(batch.data(), batch.size(), lookups_make_rows, out.data(), SerialFor);
            REQUIRE_MESSAGE(status.ok(), status.message());
          }
        });
        REQUIRE(table->Assign(coming.data(), comers, rows.data(), ProcessPool()).ok());
        const uint64_t after_assign = table->size();
        uint64_t removed = comers;
        if (!lookups_make_rows) removed = Value(table->Remove(coming.data(), comers, SerialFor));
        done = true;
        looker.join();
        CHECK(after_assign == residents + comers);
        CHECK(removed == comers);
        if (lookups_make_rows) {
          REQUIRE(table->Remove(coming.data(), comers, ProcessPool()).ok());
        }
        CHECK(Value(table->Missing(coming.data(), comers, ProcessPool())).size() == comers);
        CHECK(table->size() == residents);
        CHECK(Value(table->Freeze()).size() == residents);
      }
      REQUIRE(storage->Close().ok());
    }
  }
}

TEST_CASE("rows on their way from memory to the database are counted once") {
  constexpr int dim = 64;
  constexpr size_t residents = 30000, comers = 30000;
  const uint32_t seed = 10;
  CAPTURE(seed);
  const TestFolder folder;
  StorageOptions options;
  options.path = folder / "storage";
  options.cache_bytes = uint64_t{1} << 20;
  options.spill_rows = comers / 2;
  const auto storage = Value(Storage::Open(options));
  TableSpec config;
  config.dim = dim;
  const auto table = Value(storage->OpenTable(config));
  std::vector<Key> keys(residents + comers);
  std::iota(keys.begin(), keys.end(), Key{0});
  const std::vector<float> rows(keys.size() * dim, 1.0f);
  REQUIRE(table->Assign(keys.data(), residents, rows.data(), ProcessPool()).ok());
  REQUIRE(storage->Flush().ok());
  const Key* const coming = keys.data() + residents;
  for (uint32_t life = 0; life < (LongTests() ? 10u : 3u); ++life) {
    REQUIRE(table->Assign(coming, comers, rows.data(), ProcessPool()).ok());
    std::atomic<bool> done{false};
    std::thread looker([&] {
      // The cache fills with rows that stay, and the new rows leave it.
      std::mt19937 rng(seed + life);
      std::vector<Key> batch(3000);
      std::vector<float> out(batch.size() * dim);
      for (int i = 0; i < 30; ++i) {
        for (Key& key : batch) key = rng() % residents;
        const Status status =
            table->Lookup(batch.data(), batch.size(), false, out.data(), SerialFor);
        REQUIRE_MESSAGE(status.ok(), status.message());
      }
      done = true;
    });
    uint64_t least = keys.size(), most = keys.size();
    while (!done) {
      const uint64_t size = table->size();
      least = std::min(least, size);
      most = std::max(most, size);
    }
    looker.join();
    CHECK(least == keys.size());
    CHECK(most == keys.size());
    CHECK(Value(table->Remove(coming, comers, ProcessPool())) == comers);
  }
}

TEST_CASE("no calls on a storage wait for each other through a pool whose callers only wait") {
  constexpr size_t keys_in_all = 4000;
  for (const bool write_through : {false, true}) {
    CAPTURE(write_through);
    // This is shared with the threads, since threads that stand still cannot be ended.
    struct Shared {
      TestFolder folder;
      std::shared_ptr<Storage> storage;
      std::shared_ptr<Table> table;
      std::unique_ptr<RowOptimizer> sgd;
      WaitingPool pool{2};
      std::mutex mu;
      std::condition_variable over;
      int running = 0;          // guarded by mu
      int64_t calls = 0;        // that have returned; guarded by mu
      std::string first_error;  // guarded by mu
    };
    const auto shared = std::make_shared<Shared>();
    StorageOptions options;
    options.path = shared->folder / "storage";
    options.cache_bytes = uint64_t{1} << 20;
    options.write_through = write_through;
    options.spill_rows = keys_in_all / 4;
    shared->storage = Value(Storage::Open(options));
    TableSpec config;
    config.dim = 64;
    shared->table = Value(shared->storage->OpenTable(config, "kv_sgd", {}));
    shared->sgd = Value(MakeRowOptimizer("kv_sgd", {{"gamma", 1.0}}));

    // Says what a thread does over and over, with keys of its own choice.
    using Call = std::function<Status(const std::vector<Key>& keys, std::vector<float>& rows)>;
    std::vector<std::thread> threads;
    const auto start = [&](int steps, uint32_t seed, Call call) {
      {
        std::lock_guard<std::mutex> guard(shared->mu);
        ++shared->running;
      }
      threads.emplace_back([shared, steps, seed, call] {
        std::mt19937 rng(seed);
        std::vector<Key> keys(1000);
        std::vector<float> rows(keys.size() * 64);
        for (int step = 0; step < steps; ++step) {
          for (Key& key : keys) key = rng() % keys_in_all;
          const Status status = call(keys, rows);
          std::lock_guard<std::mutex> guard(shared->mu);
          ++shared->calls;
          if (!status.ok() && shared->first_error.empty()) shared->first_error = status.message();
        }
        std::lock_guard<std::mutex> guard(shared->mu);
        --shared->running;
        shared->over.notify_all();
      });
    };
    Shared* const s = shared.get();  // the threads keep the object
    const ParallelFor pool = s->pool.parallel_for();
    for (uint32_t t = 0; t < 4; ++t) {
      start(150, t, [=](const auto& keys, auto& rows) {
        return s->table->Lookup(keys.data(), keys.size(), t % 2 == 0, rows.data(), pool);
      });
    }
    start(100, 10, [=](const auto& keys, auto&) {
      return s->table->Remove(keys.data(), keys.size(), pool).status();
    });
    start(50, 11, [=](const auto& keys, auto&) {
      return s->table->Evict(keys.data(), keys.size(), pool).status();
    });
    start(50, 12, [=](const auto& keys, auto& rows) {
      return s->table->Assign(keys.data(), keys.size(), rows.data(), pool);
    });
    start(50, 13, [=](const auto& keys, auto& rows) {
      return s->table->Update(keys.data(), keys.size(), rows.data(), "kv_sgd", *s->sgd, {}, pool);
    });
    start(5, 14, [=](const auto&, auto& rows) {
      OwnedContents contents;
      contents.state = {"kv_sgd", {}, 1};
      contents.keys.resize(1000);
      for (size_t i = 0; i < contents.keys.size(); ++i) contents.keys[i] = i;
      contents.embeddings = rows;
      return Restore(*s->table, contents, pool);
    });
    start(50, 15, [=](const auto& keys, auto&) {
      Status status = s->storage->Flush();
      if (status.ok()) status = s->table->Freeze().status();
      if (status.ok()) status = s->storage->Survey(0).status();
      return status.ok() ? s->table->Missing(keys.data(), keys.size(), pool).status() : status;
    });
    bool over = false;
    {
      std::unique_lock<std::mutex> lock(shared->mu);
      // A busy machine may be slow with them, but some return.
      for (int64_t before = -1; !over && shared->calls != before;) {
        before = shared->calls;
        over = shared->over.wait_for(lock, std::chrono::seconds(60),
                                     [&] { return shared->running == 0; });
      }
    }
    for (std::thread& thread : threads) over ? thread.join() : thread.detach();
    REQUIRE_MESSAGE(over, "calls stand still");
    CHECK(shared->first_error == "");
  }
}

TEST_CASE("who uses a table while its storage is closed gets an error, or what was there before") {
  const TestFolder folder;
  StorageOptions options;
  options.path = folder / "storage";
  const auto storage = Value(Storage::Open(options));
  TableSpec config;
  config.dim = kDim;
  const auto table = Value(storage->OpenTable(config));
  std::vector<std::thread> threads;
  std::atomic<bool> closed{false};
  for (uint32_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 rng(t);
      std::vector<Key> keys(50);
      std::vector<float> out(keys.size() * kDim);
      for (;;) {
        for (Key& key : keys) key = rng() % 500;
        const bool after = closed;
        Status status = table->Lookup(keys.data(), keys.size(), true, out.data(), ProcessPool());
        REQUIRE((status.ok() || status.code() == Code::kFailedPrecondition));
        if (after) {
          REQUIRE_FALSE(status.ok());
          return;
        }
      }
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  REQUIRE(storage->Close().ok());
  closed = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace sok
