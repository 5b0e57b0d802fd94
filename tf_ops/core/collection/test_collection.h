// A collection of tables on several workers in one process, and what it does in sums of doubles.
#pragma once

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/base/test_result.h"
#include "core/base/test_threads.h"
#include "core/collection/key_messages.h"
#include "core/collection/pooling.h"
#include "core/collection/request.h"
#include "core/collection/table_collection.h"

namespace sok {

// Sends segments to whom they are for: what each worker has received, and its splits.
template <typename Word>
std::vector<std::pair<std::vector<Word>, std::vector<int32_t>>> AllToAll(
    const std::vector<std::pair<std::vector<Word>, std::vector<int32_t>>>& sent) {
  const size_t workers = sent.size();
  std::vector<std::pair<std::vector<Word>, std::vector<int32_t>>> received(workers);
  for (const auto& [words, splits] : sent) {
    size_t begin = 0;
    for (size_t to = 0; to < workers; ++to) {
      const size_t n = static_cast<size_t>(splits[to]);
      received[to].first.insert(received[to].first.end(), words.begin() + begin,
                                words.begin() + begin + n);
      received[to].second.push_back(splits[to]);
      begin += n;
    }
    REQUIRE(begin == words.size());
  }
  return received;
}

// The message of a request.
inline KeyMessage WriteKeys(const CollectionRequest& request) {
  KeyMessage message{{}, Value(KeySplits(request))};
  message.words.resize(std::accumulate(message.splits.begin(), message.splits.end(), size_t{0}));
  PutKeys(request, message.words.data());
  return message;
}

// The batch of one feature.
struct TestBags {
  std::vector<Key> keys;
  std::vector<int64_t> splits;  // empty: bags of `length`
  size_t bags = 0, length = 1;
  std::vector<float> weights;   // empty: none
  std::vector<float> upstream;  // (bags, dim); empty: the feature is not used

  FeatureBags View() const {
    return {nullptr, keys.data(), keys.size(), bags, splits.empty() ? nullptr : splits.data(),
            length};
  }
};

// A worker: its part of the tables, and what its own batch has come to.
struct TestWorker {
  std::shared_ptr<CollectionQueue> queue;
  std::unique_ptr<TableCollection> collection;
  std::shared_ptr<const CollectionRequest> request;
  std::vector<std::vector<float>> pooled;  // (features)(bags, dim)
  std::vector<std::vector<float>> weight_gradients;
  std::vector<float> rows;  // the message
};

inline std::shared_ptr<const CollectionPlan> TestPlan(std::vector<int> dims,
                                                      std::vector<uint32_t> feature_tables,
                                                      uint32_t workers) {
  auto plan = std::make_shared<CollectionPlan>();
  for (size_t table = 0; table < dims.size(); ++table) {
    plan->tables.push_back({"table" + std::to_string(table), dims[table], 77 * table + 5});
  }
  plan->combiners.resize(feature_tables.size(), Combiner::kSum);
  for (size_t feature = 0; feature < feature_tables.size(); ++feature) {
    plan->features.push_back("feature" + std::to_string(feature));
  }
  plan->feature_tables = std::move(feature_tables);
  plan->workers = workers;
  return plan;
}

inline TestWorker MakeTestWorker(const CollectionPlan& plan, size_t rank = 0) {
  TestWorker worker;
  std::vector<TableCollection::Member> members;
  for (size_t table = 0; table < plan.tables.size(); ++table) {
    TableSpec config;
    config.dim = plan.tables[table].dim;
    config.seed = table;
    members.push_back(
        {plan.tables[table].name, Value(Table::Make(config)), false, plan.tables[table].placement});
  }
  worker.queue = std::make_shared<CollectionQueue>();
  worker.collection = std::make_unique<TableCollection>(std::move(members), worker.queue, rank);
  return worker;
}

// The same tables, with the placements of a plan.
inline void PlaceAnew(const CollectionPlan& plan, size_t rank, TestWorker* worker) {
  std::vector<TableCollection::Member> members = worker->collection->members();
  for (size_t table = 0; table < plan.tables.size(); ++table) {
    members[table].placement = plan.tables[table].placement;
  }
  worker->collection = std::make_unique<TableCollection>(std::move(members), worker->queue, rank);
}

// The way of a step from keys to deposits, on all workers.
class TestStep {
 public:
  TestStep(std::shared_ptr<const CollectionPlan> plan, std::vector<TestWorker>* workers,
           ParallelFor parallel_for)
      : plan_(std::move(plan)), workers_(*workers), parallel_for_(std::move(parallel_for)) {}

  // batches (workers)(features)
  void Run(const std::vector<std::vector<TestBags>>& batches,
           const std::vector<Combiner>& combiners) {
    Ask(batches);
    Serve();
    for (size_t w = 0; w < workers_.size(); ++w) PoolOf(w, batches[w], combiners);
    for (size_t w = 0; w < workers_.size(); ++w) GradientsOf(w, batches[w], combiners);
    Deposit();
  }

 private:
  void Ask(const std::vector<std::vector<TestBags>>& batches) {
    std::vector<std::pair<std::vector<int64_t>, std::vector<int32_t>>> sent;
    for (size_t w = 0; w < workers_.size(); ++w) {
      std::vector<FeatureBags> features;
      for (const TestBags& bags : batches[w]) features.push_back(bags.View());
      auto own_plan = std::make_shared<CollectionPlan>(*plan_);
      own_plan->rank = static_cast<uint32_t>(w);
      workers_[w].request = Value(CollectionRequest::Make(own_plan, features, parallel_for_));
      KeyMessage message = WriteKeys(*workers_[w].request);
      sent.emplace_back(std::move(message.words), std::move(message.splits));
    }
    received_ = AllToAll(sent);
  }

  void Serve() {
    std::vector<std::pair<std::vector<float>, std::vector<int32_t>>> sent;
    for (size_t w = 0; w < workers_.size(); ++w) {
      const auto& splits = received_[w].second;
      auto held = std::make_shared<std::vector<int64_t>>(received_[w].first);
      const std::vector<int64_t>& words = *held;
      asked_.push_back(Value(ReadKeys(workers_[w].collection->served(), words.data(), words.size(),
                                      splits.data(), workers_.size(), held)));
      const RowSegments& segments = asked_[w].answers;
      std::vector<float> message(segments.floats(), NAN), copy;
      float* rows = segments.ByTable(message.data(), &copy);
      looked_up_.emplace_back();
      REQUIRE(workers_[w]
                  .collection
                  ->Lookup(asked_[w], /*make_rows=*/true,
                           std::vector<bool>(plan_->tables.size(), true), rows, &looked_up_[w],
                           parallel_for_)
                  .ok());
      segments.FromTables(rows, message.data(), parallel_for_);
      sent.emplace_back(std::move(message), Value(segments.Splits()));
    }
    auto rows = AllToAll(sent);
    for (size_t w = 0; w < workers_.size(); ++w) workers_[w].rows = std::move(rows[w].first);
  }

  std::vector<Pooling> PoolingsOf(const std::vector<TestBags>& batch,
                                  const std::vector<Combiner>& combiners) {
    std::vector<Pooling> poolings;
    for (size_t f = 0; f < batch.size(); ++f) {
      poolings.push_back(
          {combiners[f], batch[f].weights.empty() ? nullptr : batch[f].weights.data()});
    }
    return poolings;
  }

  void PoolOf(size_t w, const std::vector<TestBags>& batch,
              const std::vector<Combiner>& combiners) {
    TestWorker& worker = workers_[w];
    const RowSegments segments = SegmentsOf(*worker.request);
    REQUIRE(segments.floats() == worker.rows.size());
    worker.pooled.clear();
    std::vector<BagVectors<float>> out;
    for (size_t f = 0; f < batch.size(); ++f) {
      const auto dim = static_cast<size_t>(plan_->tables[plan_->feature_tables[f]].dim);
      worker.pooled.emplace_back(batch[f].bags * dim, NAN);
    }
    for (size_t f = 0; f < batch.size(); ++f) {
      const auto dim = static_cast<size_t>(plan_->tables[plan_->feature_tables[f]].dim);
      out.push_back({worker.pooled[f].data(), dim});
    }
    Pool(*worker.request, PoolingsOf(batch, combiners), worker.rows.data(), segments.Places(), out,
         parallel_for_);
  }

  void GradientsOf(size_t w, const std::vector<TestBags>& batch,
                   const std::vector<Combiner>& combiners) {
    TestWorker& worker = workers_[w];
    const RowSegments of_rows = SegmentsOf(*worker.request);
    const RowSegments segments = GradientSegmentsOf(*worker.request);
    std::vector<BagVectors<const float>> upstream;
    worker.weight_gradients.assign(batch.size(), {});
    std::vector<float*> weight_gradients(batch.size(), nullptr);
    for (size_t f = 0; f < batch.size(); ++f) {
      const auto dim = static_cast<size_t>(plan_->tables[plan_->feature_tables[f]].dim);
      upstream.push_back({batch[f].upstream.empty() ? nullptr : batch[f].upstream.data(), dim});
      if (batch[f].weights.empty()) continue;
      worker.weight_gradients[f].assign(batch[f].keys.size(), NAN);
      weight_gradients[f] = worker.weight_gradients[f].data();
    }
    std::vector<float> message(segments.floats(), 0.0f);
    const RowPlaces places = segments.Places();
    PoolGradient(*worker.request, PoolingsOf(batch, combiners), worker.rows.data(),
                 of_rows.Places(), upstream, message.data(), places, weight_gradients,
                 parallel_for_);
    segments.Repeat(places, message.data(), parallel_for_);
    gradients_.emplace_back(std::move(message), Value(segments.Splits()));
  }

  void Deposit() {
    auto arrived = AllToAll(gradients_);
    for (size_t w = 0; w < workers_.size(); ++w) {
      auto message = std::make_shared<std::vector<float>>(std::move(arrived[w].first));
      auto copy = std::make_shared<std::vector<float>>();
      const RowSegments& segments = asked_[w].segments;
      REQUIRE(segments.floats() == message->size());
      const float* rows =
          segments.ByTable(static_cast<const float*>(message->data()), copy.get(), parallel_for_);
      // The queue keeps both alive.
      auto hold = std::make_shared<std::pair<decltype(message), decltype(copy)>>(message, copy);
      workers_[w].collection->Deposit(std::move(looked_up_[w]), hold, rows, {}, parallel_for_);
    }
  }

  std::shared_ptr<const CollectionPlan> plan_;
  std::vector<TestWorker>& workers_;
  ParallelFor parallel_for_;
  std::vector<std::pair<std::vector<int64_t>, std::vector<int32_t>>> received_;
  std::vector<AskedKeys> asked_;
  std::vector<CollectionKeys> looked_up_;
  std::vector<std::pair<std::vector<float>, std::vector<int32_t>>> gradients_;
};

}  // namespace sok
