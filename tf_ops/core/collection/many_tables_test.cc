// Tests that a step of many tables leaves the same bits as a step of each table by itself.
#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/collection/test_collection.h"

namespace sok {
namespace {

constexpr size_t kTables = 14;
constexpr Key kKeys = 900;

// A model of each table by itself: parts on workers, to which each worker sends the sums of its
// gradients by key.
class TablesApart {
 public:
  TablesApart(const CollectionPlan& plan, std::vector<CommitOptions> options)
      : plan_(plan), options_(std::move(options)), parts_(plan.workers) {
    for (std::vector<std::shared_ptr<Table>>& tables : parts_) {
      for (size_t table = 0; table < plan.tables.size(); ++table) {
        TableSpec config;
        config.dim = plan.tables[table].dim;
        config.seed = table;
        tables.push_back(Value(Table::Make(config)));
      }
    }
  }

  std::vector<float> Row(uint32_t table, Key key, bool make_rows) {
    std::vector<float> row(plan_.tables[table].dim);
    Table& part = *parts_[OwnerOf(plan_.tables[table], key, plan_.workers)][table];
    REQUIRE(part.Lookup(&key, 1, make_rows, row.data(), SerialFor).ok());
    return row;
  }

  // batches (workers)(features), each with a key a bag.
  void Step(uint32_t table, const std::vector<std::vector<TestBags>>& batches) {
    const size_t dim = plan_.tables[table].dim;
    for (uint32_t owner = 0; owner < plan_.workers; ++owner) {
      auto keys = std::make_shared<std::vector<Key>>();
      auto gradients = std::make_shared<std::vector<float>>();
      for (const std::vector<TestBags>& features : batches) {
        std::map<Key, size_t> places;  // of the sums of this worker
        for (size_t f = 0; f < features.size(); ++f) {
          const TestBags& bags = features[f];
          if (plan_.feature_tables[f] != table || bags.upstream.empty()) continue;
          for (size_t i = 0; i < bags.keys.size(); ++i) {
            const Key key = bags.keys[i];
            if (OwnerOf(plan_.tables[table], key, plan_.workers) != owner) continue;
            const auto [place, is_new] = places.try_emplace(key, gradients->size());
            if (is_new) {
              keys->push_back(key);
              gradients->resize(gradients->size() + dim, 0.0f);
            }
            for (size_t j = 0; j < dim; ++j) {
              (*gradients)[place->second + j] += bags.upstream[i * dim + j];
            }
          }
        }
      }
      LookupKeys deposited;
      deposited.keys = keys->data();
      deposited.n = keys->size();
      deposited.hold = keys;
      Table& part = *parts_[owner][table];
      if (deposited.n > 0)
        REQUIRE(part.Deposit(std::move(deposited), gradients, gradients->data(), nullptr).ok());
      REQUIRE(part.Commit(options_[table], SerialFor).ok());
    }
  }

 private:
  const CollectionPlan& plan_;
  const std::vector<CommitOptions> options_;
  std::vector<std::vector<std::shared_ptr<Table>>> parts_;  // (workers)(tables)
};

std::vector<CommitOptions> OptionsOfTables() {
  const std::vector<std::string> rules{"sgd", "adam", "adagrad", "momentum", "rowwise_adagrad"};
  std::vector<CommitOptions> options(kTables);
  for (size_t table = 0; table < kTables; ++table) {
    options[table].rule = rules[table % rules.size()];
    if (table % 4 == 1) options[table].clip_value = 0.5f;
  }
  return options;
}

// A batch of one feature, which may have no keys, or not be used.
TestBags RandomKeys(size_t dim, std::mt19937_64& rng) {
  const size_t sizes[] = {0, 3, 70, 300, 700};
  TestBags batch;
  batch.bags = sizes[rng() % 5];
  const Key keys = rng() % 2 == 0 ? kKeys : 20;
  std::normal_distribution<float> normal;
  for (size_t bag = 0; bag < batch.bags; ++bag) batch.keys.push_back(rng() % keys);
  if (rng() % 5 == 0) return batch;
  for (size_t i = 0; i < batch.bags * dim; ++i) batch.upstream.push_back(normal(rng));
  return batch;
}

void CheckProgram(uint32_t workers_count, const ParallelFor& parallel_for, std::mt19937_64& rng) {
  std::vector<int> dims;
  std::vector<uint32_t> feature_tables;
  for (uint32_t table = 0; table < kTables; ++table) {
    const int choices[] = {1, 5, 16, 16, 33};
    dims.push_back(choices[rng() % 5]);
    feature_tables.push_back(table);
    if (table % 3 == 0) feature_tables.push_back(table);  // two features share it
  }
  const auto plan = TestPlan(dims, feature_tables, workers_count);
  std::vector<TestWorker> workers;
  for (uint32_t rank = 0; rank < workers_count; ++rank) {
    workers.push_back(MakeTestWorker(*plan, rank));
  }
  const std::vector<CommitOptions> options = OptionsOfTables();
  std::vector<const CommitOptions*> of_tables;
  for (const CommitOptions& each : options) of_tables.push_back(&each);
  TablesApart apart(*plan, options);
  for (int step = 0; step < 5; ++step) {
    std::vector<std::vector<TestBags>> batches(workers_count);
    for (std::vector<TestBags>& features : batches) {
      for (uint32_t table : feature_tables) features.push_back(RandomKeys(dims[table], rng));
    }
    TestStep(plan, &workers, parallel_for)
        .Run(batches, std::vector<Combiner>(feature_tables.size(), Combiner::kSum));
    for (size_t w = 0; w < workers_count; ++w) {
      for (size_t f = 0; f < feature_tables.size(); ++f) {
        std::vector<float> expected;
        for (Key key : batches[w][f].keys) {
          const std::vector<float> row = apart.Row(feature_tables[f], key, true);
          expected.insert(expected.end(), row.begin(), row.end());
        }
        REQUIRE(workers[w].pooled[f] == expected);
      }
    }
    for (TestWorker& worker : workers) {
      REQUIRE(worker.collection->Commit(options[0], of_tables, parallel_for).ok());
    }
    for (uint32_t table = 0; table < kTables; ++table) apart.Step(table, batches);
  }
  for (uint32_t table = 0; table < kTables; ++table) {
    for (Key key = 0; key < kKeys; ++key) {
      const uint32_t owner = OwnerOf(plan->tables[table], key, workers_count);
      std::vector<float> row(dims[table]);
      Table& part = *workers[owner].collection->members()[table].table;
      REQUIRE(part.Lookup(&key, 1, /*make_rows=*/false, row.data(), SerialFor).ok());
      REQUIRE(row == apart.Row(table, key, false));
    }
  }
}

TEST_CASE("a step of many tables leaves the bits of a step of each table by itself") {
  std::mt19937_64 rng(TestSeed());
  for (uint32_t workers = 1; workers <= 2; ++workers) {
    for (int round = 0; round < (LongTests() ? 4 : 2); ++round) {
      INFO(workers, " workers, round ", round);
      CheckProgram(workers, SerialFor, rng);
      CheckProgram(workers, ThreadedFor, rng);
    }
  }
}

}  // namespace
}  // namespace sok
