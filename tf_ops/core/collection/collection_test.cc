#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/adaptive_bucket.h"
#include "core/base/hash.h"
#include "core/collection/requests_ahead.h"
#include "core/collection/test_collection.h"
#include "core/partition/partition.h"

namespace sok {
namespace {

// Rows as doubles: (table, key) -> (dim).
using Model = std::map<std::pair<uint32_t, Key>, std::vector<double>>;

constexpr double kRate = 0.5;
constexpr Key kKeys = 40;

// Float32 sums of at most some hundred values of at most 1.
constexpr double kTolerance = 2e-5;

std::vector<double> RowOf(const std::vector<TestWorker>& workers, const CollectionPlan& plan,
                          uint32_t table, Key key) {
  const CollectedTable& of = plan.tables[table];
  const auto read = [&](size_t worker) {
    std::vector<float> row(of.dim);
    REQUIRE(workers[worker]
                .collection->members()[table]
                .table->Lookup(&key, 1, /*make_rows=*/false, row.data(), SerialFor)
                .ok());
    return row;
  };
  const std::vector<float> row = read(OwnerOf(of, key, plan.workers));
  if (of.placement.kind == TablePlacement::kOnAll) {
    for (size_t worker = 0; worker < workers.size(); ++worker) REQUIRE(read(worker) == row);
  }
  return std::vector<double>(row.begin(), row.end());
}

TestBags RandomBags(size_t dim, Combiner combiner, std::mt19937_64& rng) {
  TestBags batch;
  batch.bags = rng() % 7;
  if (rng() % 2 == 0) {
    batch.length = rng() % 4;
    batch.keys.resize(batch.bags * batch.length);
  } else {
    batch.splits.push_back(0);
    for (size_t bag = 0; bag < batch.bags; ++bag) {
      batch.splits.push_back(batch.splits.back() + static_cast<int64_t>(rng() % 5));
    }
    batch.keys.resize(static_cast<size_t>(batch.splits.back()));
  }
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  for (Key& key : batch.keys) key = rng() % kKeys;
  if (combiner != Combiner::kMax && rng() % 2 == 0) {
    for (size_t i = 0; i < batch.keys.size(); ++i) batch.weights.push_back(uniform(rng) + 1.5f);
  }
  if (rng() % 4 != 0) {
    for (size_t i = 0; i < batch.bags * dim; ++i) batch.upstream.push_back(uniform(rng));
  }
  return batch;
}

// The pooled vectors of a batch by the formulas, and what its gradients add up to.
void Expect(const Model& before, uint32_t table, size_t dim, Combiner combiner,
            const TestBags& batch, const std::vector<float>& pooled,
            const std::vector<float>& weight_gradients, Model* gradients) {
  const FeatureBags view = batch.View();
  for (size_t bag = 0; bag < batch.bags; ++bag) {
    std::vector<double> vector(dim, 0.0);
    const size_t begin = view.begin(bag), end = view.end(bag);
    double divisor = 0.0;
    const auto weight = [&](size_t i) { return batch.weights.empty() ? 1.0 : batch.weights[i]; };
    for (size_t i = begin; i < end; ++i) {
      divisor += combiner == Combiner::kMean ? weight(i) : weight(i) * weight(i);
    }
    if (combiner == Combiner::kSqrtN) divisor = std::sqrt(divisor);
    if (combiner == Combiner::kSum || combiner == Combiner::kMax) divisor = 1.0;
    std::vector<size_t> winners(dim, begin);
    for (size_t i = begin; i < end; ++i) {
      const std::vector<double>& row = before.at({table, batch.keys[i]});
      for (size_t j = 0; j < dim; ++j) {
        if (combiner != Combiner::kMax) {
          vector[j] += weight(i) * row[j] / divisor;
        } else if (i == begin || row[j] > vector[j]) {
          vector[j] = row[j];
          winners[j] = i;
        }
      }
    }
    for (size_t j = 0; j < dim; ++j) {
      REQUIRE(pooled[bag * dim + j] == doctest::Approx(vector[j]).epsilon(kTolerance));
    }
    if (batch.upstream.empty()) continue;
    const float* upstream = batch.upstream.data() + bag * dim;
    for (size_t i = begin; i < end; ++i) {
      const std::vector<double>& row = before.at({table, batch.keys[i]});
      std::vector<double>& sum = (*gradients)[{table, batch.keys[i]}];
      sum.resize(dim, 0.0);
      double of_weight = 0.0;
      for (size_t j = 0; j < dim; ++j) {
        if (combiner == Combiner::kMax) {
          sum[j] += winners[j] == i ? upstream[j] : 0.0;
          continue;
        }
        sum[j] += weight(i) / divisor * upstream[j];
        // The derivative of s / d by w_i: x_i / d - y d' / d, where d' is 1 or w_i / d.
        double falls = 0.0;
        if (combiner == Combiner::kMean) falls = vector[j] / divisor;
        if (combiner == Combiner::kSqrtN) falls = vector[j] * weight(i) / divisor / divisor;
        of_weight += upstream[j] * (row[j] / divisor - falls);
      }
      if (batch.weights.empty()) continue;
      REQUIRE(std::abs(weight_gradients[i] - of_weight) < kTolerance);
    }
  }
}

void CheckSteps(uint32_t workers_count, const ParallelFor& parallel_for, std::mt19937_64& rng) {
  std::vector<int> dims(1 + rng() % 4);
  for (int& dim : dims) dim = 1 + static_cast<int>(rng() % 9);
  std::vector<uint32_t> feature_tables(1 + rng() % 6);
  for (uint32_t& table : feature_tables) table = static_cast<uint32_t>(rng() % dims.size());
  auto plan = std::make_shared<CollectionPlan>(*TestPlan(dims, feature_tables, workers_count));
  for (CollectedTable& table : plan->tables) {
    table.placement.kind = static_cast<TablePlacement::Kind>(rng() % 3);
    table.placement.worker = static_cast<uint32_t>(rng() % workers_count);
  }
  std::vector<TestWorker> workers;
  for (uint32_t rank = 0; rank < workers_count; ++rank) {
    workers.push_back(MakeTestWorker(*plan, rank));
  }
  Model model;
  for (uint32_t table = 0; table < dims.size(); ++table) {
    for (Key key = 0; key < kKeys; ++key) model[{table, key}] = RowOf(workers, *plan, table, key);
  }
  for (int step = 0; step < 4; ++step) {
    std::vector<Combiner> combiners;
    for (size_t f = 0; f < feature_tables.size(); ++f) {
      combiners.push_back(static_cast<Combiner>(rng() % 4));
    }
    std::vector<std::vector<TestBags>> batches(workers_count);
    for (auto& batch : batches) {
      for (size_t f = 0; f < feature_tables.size(); ++f) {
        batch.push_back(RandomBags(dims[feature_tables[f]], combiners[f], rng));
      }
    }
    plan = std::make_shared<CollectionPlan>(*plan);
    plan->combiners = combiners;
    for (CollectedTable& table : plan->tables) {
      table.placement.pools = table.placement.kind == TablePlacement::kOnWorker;
    }
    for (const auto& batch : batches) {
      for (size_t f = 0; f < feature_tables.size(); ++f) {
        if (!batch[f].weights.empty()) plan->tables[feature_tables[f]].placement.pools = false;
      }
    }
    for (uint32_t rank = 0; rank < workers_count; ++rank) PlaceAnew(*plan, rank, &workers[rank]);
    TestStep(plan, &workers, parallel_for).Run(batches, combiners);
    Model gradients;
    for (size_t w = 0; w < workers_count; ++w) {
      for (size_t f = 0; f < feature_tables.size(); ++f) {
        Expect(model, feature_tables[f], dims[feature_tables[f]], combiners[f], batches[w][f],
               workers[w].pooled[f], workers[w].weight_gradients[f], &gradients);
      }
    }
    for (TestWorker& worker : workers) {
      CommitOptions options;
      options.rule =
          "momentum";  // a row that has a gradient of 0 moves on, one that rests does not
      options.hypers = {{"learning_rate", kRate}, {"momentum", 0.0}};
      REQUIRE(worker.collection
                  ->Commit(options, std::vector<const CommitOptions*>(dims.size(), &options),
                           parallel_for)
                  .ok());
    }
    for (auto& [at, row] : model) {
      const auto gradient = gradients.find(at);
      const std::vector<double> now = RowOf(workers, *plan, at.first, at.second);
      RowMeta meta;
      uint8_t exists;
      const uint32_t owner = OwnerOf(plan->tables[at.first], at.second, workers_count);
      REQUIRE(workers[owner]
                  .collection->members()[at.first]
                  .table->ReadMeta(&at.second, 1, &meta, &exists, SerialFor)
                  .ok());
      for (size_t j = 0; j < row.size(); ++j) {
        const double moved = gradient == gradients.end() ? 0.0 : kRate * gradient->second[j];
        REQUIRE(std::abs(now[j] - (row[j] - moved)) < kTolerance);
      }
      row = now;
    }
  }
}

TEST_CASE("tables of a collection are pooled and trained as sums of doubles are") {
  std::mt19937_64 rng(TestSeed());
  const int rounds = LongTests() ? 30 : 10;
  for (uint32_t workers = 1; workers <= 3; ++workers) {
    for (int round = 0; round < rounds; ++round) {
      INFO(workers, " workers, round ", round);
      CheckSteps(workers, SerialFor, rng);
      CheckSteps(workers, ThreadedFor, rng);
    }
  }
}

TEST_CASE("rows that no used feature has asked for do not count as trained") {
  const auto plan = TestPlan({2, 3}, {0, 0, 1}, 1);
  std::vector<TestWorker> workers;
  workers.push_back(MakeTestWorker(*plan));
  TestBags used{{1, 2}, {}, 2, 1, {}, {1, 1, 1, 1}}, unused{{2, 3}, {}, 2, 1, {}, {}};
  TestStep(plan, &workers, SerialFor)
      .Run({{used, unused, unused}}, {Combiner::kSum, Combiner::kSum, Combiner::kSum});
  CommitOptions options;
  options.rule = "sgd";
  const auto outcomes =
      Value(workers[0].collection->Commit(options, {&options, &options}, SerialFor));
  CHECK(outcomes[0].rows == 2);
  CHECK_FALSE(outcomes[1].stepped);
  const std::vector<Key> keys{1, 2, 3};
  std::vector<RowMeta> metas(3);
  std::vector<uint8_t> exists(3);
  REQUIRE(workers[0]
              .collection->members()[0]
              .table->ReadMeta(keys.data(), 3, metas.data(), exists.data(), SerialFor)
              .ok());
  CHECK(metas[0].update_num == 1);
  CHECK(metas[1].update_num == 1);
  CHECK(metas[2].update_num == 0);
}

// Threads of the pool must not wait for a table, since the thread that holds the table waits for
// the pool. If they did, this test would not end.
TEST_CASE("steps beside calls on single tables do not wait for each other for good") {
  constexpr int kTables = 6;
  std::vector<TableCollection::Member> members;
  for (int t = 0; t < kTables; ++t) {
    TableSpec config;
    config.dim = 4;
    config.max_rows = t % 2 == 0 ? 100000 : 0;
    members.push_back({"table" + std::to_string(t), Value(Table::Make(config)), false});
  }
  TableCollection collection(members, std::make_shared<CollectionQueue>());
  WaitingPool pool(2);
  std::vector<std::thread> threads;
  for (int worker = 0; worker < 4; ++worker) {
    threads.emplace_back([&, worker] {
      std::mt19937_64 rng(TestSeed() + worker);
      for (int round = 0; round < 100; ++round) {
        // As many keys of each table, so that they run side by side.
        auto keys = std::make_shared<std::vector<Key>>(kTables * 50);
        for (Key& key : *keys) key = rng() % 5000;
        std::vector<size_t> starts;
        for (size_t t = 0; t <= kTables; ++t) starts.push_back(50 * t);
        const RowSegments segments(collection.served().dims, std::vector<uint32_t>(kTables, 50));
        AskedKeys asked{segments, segments,     keys,
                        {},       keys->data(), nullptr,
                        nullptr,  starts,       std::vector<std::vector<AskedBags>>(kTables)};
        auto rows = std::make_shared<std::vector<float>>(asked.segments.floats_by_table());
        CollectionKeys looked_up;
        const std::vector<bool> trainable(kTables, true);
        CHECK(
            collection.Lookup(asked, true, trainable, rows->data(), &looked_up, pool.parallel_for())
                .ok());
        collection.Deposit(std::move(looked_up), rows, rows->data(), {}, pool.parallel_for());
        CommitOptions options;
        options.rule = "sgd";
        CHECK(collection
                  .Commit(options, std::vector<const CommitOptions*>(kTables, &options),
                          pool.parallel_for())
                  .ok());
      }
    });
    threads.emplace_back([&, worker] {
      for (int round = 0; round < 200; ++round) {
        std::vector<Key> keys(200);
        for (size_t i = 0; i < keys.size(); ++i) keys[i] = i * 7 + round;
        const std::vector<float> rows(keys.size() * 4);
        Table& table = *members[(worker + round) % kTables].table;
        CHECK(table.Assign(keys.data(), keys.size(), rows.data(), pool.parallel_for()).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_CASE("large batches have the rows of small ones") {
  std::mt19937_64 rng(TestSeed());
  const auto plan = TestPlan({4}, {0, 0}, 3);
  std::vector<Key> keys(30000);
  for (Key& key : keys) key = rng() % 20000;
  const FeatureBags first{nullptr, keys.data(), 17000, 17000, nullptr, 1};
  const FeatureBags second{nullptr, keys.data() + 17000, 13000, 1300, nullptr, 10};
  const auto request = Value(CollectionRequest::Make(plan, {first, second}, ThreadedFor));
  const auto& part = request->tables()[0];
  for (size_t i = 0; i < keys.size(); ++i) {
    const uint32_t row = i < 17000 ? request->rows_of(0)[i] : request->rows_of(1)[i - 17000];
    REQUIRE(part.keys.at(row) == keys[i]);
  }
  size_t row = 0;
  for (uint32_t worker = 0; worker < 3; ++worker) {
    for (size_t end = row + part.splits[worker]; row < end; ++row) {
      REQUIRE(CollectionOwner(part.keys[row], plan->tables[0].salt, 3) == worker);
    }
  }
  std::vector<Key> distinct(part.keys);
  std::sort(distinct.begin(), distinct.end());
  CHECK(row == distinct.size());
  CHECK(std::adjacent_find(distinct.begin(), distinct.end()) == distinct.end());
}

TEST_CASE("key 0 of many tables does not load one worker") {
  std::vector<int> of_worker(4, 0);
  for (uint64_t table = 0; table < 1000; ++table) {
    ++of_worker[CollectionOwner(0, Mix64(table + 1), 4)];
  }
  // The standard deviation of a worker's number is 13.7.
  for (int tables : of_worker) CHECK(std::abs(tables - 250) < 80);
}

TEST_CASE("requests refuse splits that do not fit and keys beyond the limit, by feature") {
  auto plan = std::make_shared<CollectionPlan>(*TestPlan({2}, {0, 0}, 1));
  plan->tables[0].key_limit = 10;
  const std::vector<Key> keys{1, 2, 10};
  const FeatureBags good{nullptr, keys.data(), 2, 2, nullptr, 1};
  const auto refused = [&](const FeatureBags& bags) {
    return CollectionRequest::Make(plan, {good, bags}, SerialFor).status().message();
  };
  CHECK(refused({nullptr, keys.data(), 3, 3, nullptr, 1}) ==
        "feature 'feature1': expected keys of table 'table0' in [0, 10), got key 10");
  CHECK(refused({nullptr, keys.data(), 2, 3, nullptr, 1}) ==
        "feature 'feature1': expected 3 bags of 1 keys, got 2 keys");
  const std::pair<std::vector<int64_t>, std::string> unfit[] = {
      {{1, 1, 2}, "from 1 to 2"},
      {{0, 1, 1}, "from 0 to 1"},
      {{0, 2, 1}, "from 0 to 1, with 1 behind 2"},
      {{0, 3, 2}, "from 0 to 2, with 2 behind 3"}};
  for (const auto& [splits, got] : unfit) {
    CHECK(refused({nullptr, keys.data(), 2, 2, splits.data(), 1}) ==
          "feature 'feature1': expected row splits that begin with 0, never fall and end with the "
          "number of keys, 2; got splits " +
              got);
  }
}

TEST_CASE("requests refuse bags of more keys than a feature may have") {
  auto plan = std::make_shared<CollectionPlan>(*TestPlan({2}, {0, 0}, 1));
  plan->max_lengths = {0, 2};
  const std::vector<Key> keys{1, 2, 3, 4, 5};
  const std::vector<int64_t> good{0, 2, 2, 3}, bad{0, 2, 5};
  const auto message = [&](const FeatureBags& first, const FeatureBags& second) {
    return CollectionRequest::Make(plan, {first, second}, SerialFor).status().message();
  };
  const FeatureBags long_bag{nullptr, keys.data(), 5, 1, nullptr, 5};
  CHECK(message(long_bag, {nullptr, keys.data(), 3, 3, good.data(), 1}).empty());
  CHECK(message(long_bag, {nullptr, keys.data(), 4, 2, nullptr, 2}).empty());
  CHECK(message(long_bag, {nullptr, keys.data(), 5, 2, bad.data(), 1}) ==
        "feature 'feature1': expected at most max_length=2 keys in an example, got 3 in example 1; "
        "leave some out, or allow more");
  CHECK(message(long_bag, long_bag).find("got 5 in example 0") != std::string::npos);
  CHECK(message(long_bag, {nullptr, nullptr, 0, 0, nullptr, 3}).empty());
}

// A damaged message may be refused or mean something else; reading it never goes beyond its end.
void CheckDamaged(const ServedTables& served, const std::vector<int64_t>& good_words,
                  const std::vector<int32_t>& good_splits) {
  std::mt19937_64 rng(TestSeed());
  for (int round = 0; round < 5000; ++round) {
    // Each round has memory of its own, so that a sanitizer sees reads beyond the end.
    std::vector<int64_t> words = good_words;
    std::vector<int32_t> splits = good_splits;
    switch (rng() % 3) {
      case 0:
        words[rng() % words.size()] = static_cast<int64_t>(rng() % 3 == 0 ? rng() : rng() % 8);
        break;
      case 1:
        splits[rng() % 2] += static_cast<int32_t>(rng() % 9) - 4;
        break;
      default:
        words.resize(rng() % words.size());
        words.shrink_to_fit();
    }
    ForKeysToCome(served.dims.size(), words.data(), words.size(), splits.data(), 2,
                  [&](size_t table, const Key* keys, size_t n) {
                    REQUIRE(table < served.dims.size());
                    REQUIRE(keys + n <= reinterpret_cast<const Key*>(words.data() + words.size()));
                  });
    const auto read = ReadKeys(served, words.data(), words.size(), splits.data(), 2, nullptr);
    if (words.size() < good_words.size()) CHECK_FALSE(read.ok());
    if (!read.ok()) continue;
    for (const auto& of_table : read.value().bags) {
      for (const AskedBags& each : of_table) {
        const Key* end = reinterpret_cast<const Key*>(words.data() + words.size());
        REQUIRE(each.bags.keys + each.bags.n <= end);
      }
    }
  }
}

TEST_CASE("an owner hears how often each key stands in the batches of all workers") {
  auto plan = std::make_shared<CollectionPlan>(*TestPlan({2, 3}, {0, 1, 1}, 2));
  plan->tables[1].counts = true;
  const std::vector<Key> first{1, 2, 2}, second{4, 5, 4, 4}, third{5, 9};
  const auto bags = [](const std::vector<Key>& keys) {
    return FeatureBags{nullptr, keys.data(), keys.size(), keys.size(), nullptr, 1};
  };
  std::vector<std::pair<std::vector<int64_t>, std::vector<int32_t>>> sent;
  for (int worker = 0; worker < 2; ++worker) {
    const auto request = Value(CollectionRequest::Make(
        plan, {bags(first), bags(second), bags(worker == 0 ? third : first)}, SerialFor));
    KeyMessage message = (WriteKeys(*request));
    sent.emplace_back(std::move(message.words), std::move(message.splits));
  }
  const ServedTables served{{2, 3}, {{}, {}}, 0, {false, true}};
  std::map<Key, int64_t> counts;
  for (const auto& [words, splits] : AllToAll(sent)) {
    const auto asked =
        Value(ReadKeys(served, words.data(), words.size(), splits.data(), 2, nullptr));
    for (size_t i = asked.starts[0]; i < asked.starts[1]; ++i) CHECK(asked.counts[i] == 1);
    for (size_t i = asked.starts[1]; i < asked.starts[2]; ++i) {
      counts[asked.keys[i]] += asked.counts[i];
    }
  }
  CHECK(counts == std::map<Key, int64_t>{{1, 1}, {2, 2}, {4, 6}, {5, 3}, {9, 1}});
  // Half a key is refused.
  std::vector<int64_t> words = sent[0].first;
  std::vector<int32_t> splits = {sent[0].second[0] - 1};
  words.resize(splits[0]);
  words[3] -= 1;
  CHECK_FALSE(ReadKeys(served, words.data(), words.size(), splits.data(), 1, nullptr).ok());
}

TEST_CASE("an owner hears the greatest number that is said of a key, behind its count") {
  auto plan = std::make_shared<CollectionPlan>(*TestPlan({2, 3}, {0, 1, 1}, 2));
  plan->tables[1].counts = plan->tables[1].says = true;
  plan->tables[1].placement.kind = TablePlacement::kByModulo;
  const std::vector<Key> plain{1, 2}, first{4, 5, 4, 4}, second{5, 7};
  const std::vector<int64_t> of_first{-3, 8, -1, -2}, of_second{9, -7};
  const auto bags = [](const std::vector<Key>& keys, const int64_t* said) {
    return FeatureBags{nullptr, keys.data(), keys.size(), keys.size(), nullptr, 1, said};
  };
  const auto request = Value(CollectionRequest::Make(
      plan, {bags(plain, nullptr), bags(first, of_first.data()), bags(second, of_second.data())},
      SerialFor));
  const KeyMessage sent = (WriteKeys(*request));
  const ServedTables served{{2, 3}, {{}, {}}, 0, {false, true}, {false, true}};
  const std::vector<std::map<Key, std::pair<int64_t, int64_t>>> expected{
      {{4, {3, -1}}}, {{5, {2, 9}}, {7, {1, -7}}}};
  const auto received = AllToAll<int64_t>({{sent.words, sent.splits}, {sent.words, sent.splits}});
  for (size_t worker = 0; worker < 2; ++worker) {
    const auto& [words, splits] = received[worker];
    const auto asked =
        Value(ReadKeys(served, words.data(), words.size(), splits.data(), 2, nullptr));
    for (size_t i = asked.starts[0]; i < asked.starts[1]; ++i) CHECK(asked.said[i] == 0);
    CHECK(asked.starts[2] - asked.starts[1] == 2 * expected[worker].size());
    for (size_t i = asked.starts[1]; i < asked.starts[2]; ++i) {
      CHECK(expected[worker].at(asked.keys[i]) == std::pair(asked.counts[i], asked.said[i]));
    }
  }
  CheckDamaged(served, received[0].first, received[0].second);
}

TEST_CASE("the owner of a key is that of its table's placement") {
  CollectedTable table{"t", 1, 5};
  for (const Key key : {Key{0}, Key{1}, Key{12345}, static_cast<Key>(-1)}) {
    CHECK(OwnerOf(table, key, 7) == CollectionOwner(key, 5, 7));
    table.placement = {TablePlacement::kOnWorker, 3};
    CHECK(OwnerOf(table, key, 7) == 3);
    table.placement = {TablePlacement::kByModulo};
    CHECK(OwnerOf(table, key, 7) == OwnerOf(key, 7));
    table.placement = {TablePlacement::kByBucket, 0, false, 13};
    CHECK(OwnerOf(table, key, 7) == AdaptiveBucket(key, 13) % 7);
    table.placement = {};
  }
}

TEST_CASE("a failure of one worker reaches all of them, before and after keys were sent") {
  const auto plan = TestPlan({2}, {0}, 2);
  const std::vector<Key> keys{1, 2};
  const auto request =
      Value(CollectionRequest::Make(plan, {{nullptr, keys.data(), 2, 2, nullptr, 1}}, SerialFor));
  KeyMessage sent = (WriteKeys(*request));
  KeyMessage failed = WriteFailure(*plan, InvalidArgument("the batch is bad"));
  for (const auto& [words, splits] :
       AllToAll<int64_t>({{sent.words, sent.splits}, {failed.words, failed.splits}})) {
    const auto read =
        ReadKeys({{2}, {{}}, 0}, words.data(), words.size(), splits.data(), 2, nullptr);
    CHECK(read.status().message() == "worker 1: the batch is bad");
  }
}

TEST_CASE("a failure to read rows reaches all workers, whatever they have asked for") {
  const std::vector<std::pair<std::string, std::string>> sent_and_heard{
      {std::string(4000, 'x'), std::string(1024, 'x')},
      {"the table is full", "the table is full"},
      {"abcd", "abcd"},
      {"", "failed"}};
  // One of the sizes is that of each text.
  for (const std::vector<int32_t>& splits :
       {std::vector<int32_t>{0, 256, 5}, {1, 2, 3}, {5, 1, 0}, {7, 2, 0}}) {
    const std::vector<float> rows(splits[0] + splits[1] + splits[2], 1.5f);
    const auto arrive = [&](const RowMessage& of_worker_1) {
      return AllToAll<float>(
          {{rows, splits}, {of_worker_1.floats, of_worker_1.splits}, {rows, splits}});
    };
    for (const auto& [sent, heard] : sent_and_heard) {
      const auto arrived = arrive(WriteFailure(splits, Status(Code::kResourceExhausted, sent)));
      for (size_t worker = 0; worker < 3; ++worker) {
        const std::vector<int32_t> expected(3, splits[worker]);
        const auto& [message, of_workers] = arrived[worker];
        const Status status = CheckArrived(expected, of_workers.data(), message.data());
        CHECK(status.code() == Code::kInternal);
        CHECK(status.message() == "worker 1: " + heard);
      }
    }
    const auto arrived = arrive({rows, splits});
    for (size_t worker = 0; worker < 3; ++worker) {
      const std::vector<int32_t> expected(3, splits[worker]);
      const auto& [message, of_workers] = arrived[worker];
      CHECK(CheckArrived(expected, of_workers.data(), message.data()).ok());
    }
  }
}

TEST_CASE("rows that travel as bfloat16 arrive rounded") {
  std::mt19937_64 rng(TestSeed());
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  for (int round = 0; round < 50; ++round) {
    const size_t workers = 1 + rng() % 3;
    const std::vector<int> dims{1 + static_cast<int>(rng() % 5), 1 + static_cast<int>(rng() % 4)};
    std::vector<uint32_t> counts(workers * dims.size());
    for (uint32_t& count : counts) count = static_cast<uint32_t>(rng() % 4);
    if (round == 0) counts[0] = 20000;  // on several threads
    const RowSegments segments(dims, counts);
    std::vector<float> message(segments.floats());
    for (float& x : message) x = uniform(rng);
    const auto splits = Value(PackedSplits(segments));
    std::vector<float> packed(std::accumulate(splits.begin(), splits.end(), size_t{0}), NAN);
    PackRows(segments, message.data(), packed.data(), ThreadedFor);
    std::vector<float> arrived(message.size(), NAN);
    UnpackRows(segments, packed.data(), arrived.data(), ThreadedFor);
    for (size_t worker = 0; worker < workers; ++worker) {
      const size_t floats = segments.segment(worker + 1) - segments.segment(worker);
      CHECK(static_cast<size_t>(splits[worker]) == (floats + 1) / 2);
      for (size_t i = 0; i < floats; ++i) {
        const float sent = message[segments.segment(worker) + i];
        REQUIRE(arrived[segments.segment(worker) + i] == ToFloat(FromFloat<BFloat16>(sent)));
      }
    }
  }
}

TEST_CASE("messages of another configuration, or that are damaged, are refused") {
  const auto plan = TestPlan({2, 2}, {0, 1}, 2);
  const std::vector<Key> keys{1, 2};
  const FeatureBags bags{nullptr, keys.data(), 2, 2, nullptr, 1};
  const KeyMessage ours =
      (WriteKeys(*Value(CollectionRequest::Make(plan, {bags, bags}, SerialFor))));
  auto other_plan = std::make_shared<CollectionPlan>(*plan);
  other_plan->fingerprint = 1;
  const KeyMessage other =
      (WriteKeys(*Value(CollectionRequest::Make(other_plan, {bags, bags}, SerialFor))));
  const auto received =
      AllToAll<int64_t>({{ours.words, ours.splits}, {other.words, other.splits}})[0];
  const auto read = [](const std::vector<int64_t>& words, const std::vector<int32_t>& splits) {
    return ReadKeys({{2, 2}, {{}, {}}, 0}, words.data(), words.size(), splits.data(), 2, nullptr)
        .status();
  };
  CHECK(read(received.first, received.second).code() == Code::kFailedPrecondition);

  const auto good = AllToAll<int64_t>({{ours.words, ours.splits}, {ours.words, ours.splits}})[0];
  REQUIRE(read(good.first, good.second).ok());
  CheckDamaged({{2, 2}, {{}, {}}, 0}, good.first, good.second);
}

TEST_CASE("bags that a worker is to pool arrive as they were sent, or are refused if damaged") {
  auto plan = std::make_shared<CollectionPlan>(*TestPlan({2, 3}, {0, 1, 0}, 2));
  plan->tables[0].placement = {TablePlacement::kOnWorker, 1, true};
  plan->combiners = {Combiner::kMean, Combiner::kSum, Combiner::kMax};
  const std::vector<Key> keys{1, 2, 3, 2, 1};
  const std::vector<int64_t> splits{0, 3, 3, 4};
  const FeatureBags ragged{nullptr, keys.data(), 4, 3, splits.data(), 1};
  const FeatureBags even{nullptr, keys.data(), 4, 2, nullptr, 2};
  const KeyMessage sent =
      (WriteKeys(*Value(CollectionRequest::Make(plan, {ragged, even, even}, SerialFor))));
  const auto received = AllToAll<int64_t>({{sent.words, sent.splits}, {sent.words, sent.splits}});
  const ServedTables served{{2, 3}, {plan->tables[0].placement, {}}, 1};
  const AskedKeys asked = Value(ReadKeys(served, received[1].first.data(), received[1].first.size(),
                                         received[1].second.data(), 2, nullptr));
  REQUIRE(asked.bags[0].size() == 4);  // two features of two workers
  CHECK(asked.bags[1].empty());
  CHECK(asked.segments.rows(0) == 10);
  for (size_t worker = 0; worker < 2; ++worker) {
    const AskedBags &first = asked.bags[0][2 * worker], &second = asked.bags[0][2 * worker + 1];
    CHECK(first.combiner == Combiner::kMean);
    CHECK(std::vector<Key>(first.bags.keys, first.bags.keys + first.bags.n) ==
          std::vector<Key>{1, 2, 3, 2});
    CHECK(std::vector<int64_t>(first.bags.splits, first.bags.splits + 4) == splits);
    CHECK(second.combiner == Combiner::kMax);
    CHECK(second.bags.bags == 2);
    CHECK(second.bags.length == 2);
  }
  CheckDamaged(served, received[1].first, received[1].second);
}

TEST_CASE("an owner hears of keys to come behind those that it is asked for") {
  auto plan = std::make_shared<CollectionPlan>(*TestPlan({2, 3, 2}, {0, 1, 0, 2}, 2));
  plan->tables[2].placement = {TablePlacement::kOnWorker, 1, true};
  plan->combiners.resize(4);
  plan->rank = 0;
  const auto bags = [](const std::vector<Key>& keys) {
    return FeatureBags{nullptr, keys.data(), keys.size(), keys.size(), nullptr, 1};
  };
  const std::vector<Key> now{1, 2, 2}, later{7, 8, 9, 8, 7};
  const auto made = [&](const std::vector<Key>& keys) {
    return Value(
        CollectionRequest::Make(plan, {bags(keys), bags(keys), bags(keys), bags(keys)}, SerialFor));
  };
  const auto request = made(now);
  const std::vector<Key> latest{11, 12};
  const KeysToCome to_come{{made(later), made(latest)}, {true, false, true}};
  KeyMessage message{{}, Value(KeySplits(*request, to_come))};
  message.words.resize(message.splits[0] + message.splits[1]);
  PutKeys(*request, message.words.data(), to_come);
  KeyMessage plain = WriteKeys(*request);
  CHECK(message.splits[0] == plain.splits[0]);  // the sender reads its own rows ahead itself
  const auto both =
      AllToAll<int64_t>({{message.words, message.splits}, {plain.words, plain.splits}})[1];
  const ServedTables served{{2, 3, 2}, {{}, {}, plan->tables[2].placement}, 1};
  const auto alone =
      AllToAll<int64_t>({{plain.words, plain.splits}, {plain.words, plain.splits}})[1];
  const auto read = [&](const auto& got) {
    return Value(
        ReadKeys(served, got.first.data(), got.first.size(), got.second.data(), 2, nullptr));
  };
  const AskedKeys with = read(both), without = read(alone);
  CHECK(with.starts == without.starts);
  CHECK(std::equal(with.keys, with.keys + with.starts.back(), without.keys));
  CHECK(with.bags[2].size() == without.bags[2].size());
  std::vector<std::vector<Key>> heard(3), expected(3);
  const auto hear = [&](const auto& got) {
    ForKeysToCome(3, got.first.data(), got.first.size(), got.second.data(), 2,
                  [&](size_t table, const Key* keys, size_t n) {
                    heard[table].insert(heard[table].end(), keys, keys + n);
                  });
  };
  hear(alone);
  CHECK(heard == expected);
  hear(both);
  for (const auto& each : to_come.requests) {
    ForKeysOf(*each, 0, 1, [&](const Key* keys, size_t n) {
      expected[0].insert(expected[0].end(), keys, keys + n);
    });
  }
  expected[2] = {7, 8, 9, 8, 7, 11, 12};
  CHECK(!expected[0].empty());
  CHECK(heard == expected);
  CheckDamaged(served, both.first, both.second);
}

TEST_CASE("a step takes the request that was made ahead of the same keys") {
  const auto plan = TestPlan({2}, {0}, 1);
  std::mt19937_64 rng(TestSeed());
  std::vector<std::vector<Key>> batches;
  for (int i = 0; i < 9; ++i) batches.push_back({rng() % 3, rng() % 3});
  const std::vector<int64_t> splits{0, 1, 2}, other_splits{0, 0, 2};
  const auto features = [&](const std::vector<Key>& keys, const std::vector<int64_t>& at) {
    return std::vector<FeatureBags>{{nullptr, keys.data(), 2, 2, at.data(), 1}};
  };
  // The requests of a look-ahead in a model of it, the oldest first.
  struct Kept {
    std::vector<Key> keys;
    std::shared_ptr<const CollectionRequest> request;
    bool told = false;
  };
  for (int program = 0; program < 200; ++program) {
    const size_t most = 1 + rng() % 4;
    RequestsAhead ahead("s", most), of_others("other", 3);
    std::deque<Kept> model;
    for (int step = 0; step < 30; ++step) {
      const std::vector<Key>& keys = batches[rng() % batches.size()];
      if (rng() % 2 == 0) {
        const auto made = Value(CollectionRequest::Make(plan, features(keys, splits), SerialFor));
        ahead.Add(made, features(keys, splits));
        model.push_back({keys, made});
        if (model.size() > most) model.pop_front();
        continue;
      }
      CHECK((RequestsAhead::Take("other", features(keys, splits)).request == nullptr));
      CHECK((RequestsAhead::Take("s", features(keys, other_splits)).request == nullptr));
      const RequestsAhead::Taken taken = RequestsAhead::Take("s", features(keys, splits));
      const auto at = std::find_if(model.begin(), model.end(),
                                   [&](const Kept& each) { return each.keys == keys; });
      if (at == model.end()) {
        CHECK((taken.request == nullptr && taken.to_come.empty()));
        continue;
      }
      CHECK((taken.request == at->request));
      std::vector<std::shared_ptr<const CollectionRequest>> later;
      for (auto each = at + 1; each != model.end(); ++each) {
        if (!std::exchange(each->told, true)) later.push_back(each->request);
      }
      CHECK((taken.to_come == later));
      model.erase(at);
    }
  }
  for (const auto& keys : batches) {  // all of them have gone with their look-ahead
    CHECK((RequestsAhead::Take("s", features(keys, splits)).request == nullptr));
  }
}

}  // namespace
}  // namespace sok
