// A model of an adaptive table with exact counts, without shards, heaps or threads: it says what
// the real one must do.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/adaptive/adaptive_table.h"

namespace sok {

// A row in double: `dim` weights and, for Adagrad, as many accumulators.
struct ModelRow {
  std::vector<double> weights, slots;
};

class AdaptiveModel {
 public:
  enum class Rule { kSgd, kAdagrad };
  static constexpr double kSlotStart = 0.1;

  // static_rows: the embedding of every bucket.
  AdaptiveModel(const AdaptiveConfig& config, Rule rule, double rate,
                std::vector<std::vector<double>> static_rows)
      : config_(config), rule_(rule), rate_(rate) {
    for (auto& weights : static_rows) {
      const size_t dim = weights.size();
      statics_.push_back({std::move(weights), std::vector<double>(dim, kSlotStart)});
    }
  }

  // Returns what the lookup puts out, and, with training, changes what it changes.
  std::vector<double> Lookup(const std::vector<Key>& keys, const std::vector<int64_t>& counts,
                             const std::vector<int32_t>& mask, bool training) {
    std::vector<double> out;
    for (size_t i = 0; i < keys.size(); ++i) {
      const ModelRow& row =
          mask[i] != 0 && own_.count(keys[i]) > 0 ? own_[keys[i]] : Static(keys[i]);
      out.insert(out.end(), row.weights.begin(), row.weights.end());
    }
    if (training) Learn(keys, counts, mask);
    return out;
  }

  void Deposit(const std::vector<Key>& keys, const std::vector<int32_t>& mask,
               const std::vector<float>& gradients, size_t dim) {
    deposited_ = true;  // a deposit of no keys counts too
    for (size_t i = 0; i < keys.size(); ++i) {
      deposits_.push_back(
          {keys[i], mask[i], {gradients.begin() + i * dim, gradients.begin() + (i + 1) * dim}});
    }
  }

  void Commit() {
    if (!deposited_) return;
    deposited_ = false;
    std::map<ModelRow*, std::vector<double>> sums;
    for (const auto& [key, mask, gradient] : deposits_) {
      ModelRow* row = mask != 0 && own_.count(key) > 0 ? &own_[key] : &Static(key);
      std::vector<double>& sum = sums[row];
      sum.resize(gradient.size());
      for (size_t j = 0; j < gradient.size(); ++j) sum[j] += gradient[j];
    }
    deposits_.clear();
    for (auto& [row, sum] : sums) Step(row, sum);
    ++steps_;
    if (config_.decay_every > 0 && steps_ % config_.decay_every == 0) {
      for (auto& [key, count] : counts_) count /= 2;
    }
  }

  uint64_t Demote(std::set<Key> keys) {
    uint64_t demoted = 0;
    for (Key key : keys) {  // `keys` ascend
      const auto row = own_.find(key);
      if (row == own_.end()) continue;
      ModelRow& statics = Static(key);
      for (size_t j = 0; j < statics.weights.size(); ++j) {
        statics.weights[j] += config_.demote_blend * (row->second.weights[j] - statics.weights[j]);
      }
      own_.erase(row);
      ++demoted;
    }
    demoted_ += demoted;
    return demoted;
  }

  const std::unordered_map<Key, ModelRow>& own() const { return own_; }
  const std::vector<ModelRow>& statics() const { return statics_; }
  uint64_t promoted() const { return promoted_; }
  uint64_t demoted() const { return demoted_; }
  uint64_t lookups() const { return lookups_; }
  uint64_t own_lookups() const { return own_lookups_; }
  uint64_t steps() const { return steps_; }

 private:
  struct Waiting {
    Key key;
    int32_t mask;
    std::vector<double> gradient;
  };

  ModelRow& Static(Key key) { return statics_[AdaptiveBucket(key, config_.static_buckets)]; }

  void Learn(const std::vector<Key>& keys, const std::vector<int64_t>& counts,
             const std::vector<int32_t>& mask) {
    std::map<Key, std::pair<uint64_t, bool>> seen;  // count, forced
    for (size_t i = 0; i < keys.size(); ++i) {
      const bool has_row = own_.count(keys[i]) > 0;
      lookups_ += counts[i];
      if (mask[i] != 0 && has_row) own_lookups_ += counts[i];
      if (mask[i] == 0 || (has_row && config_.max_rows == 0)) continue;
      auto& [count, forced] = seen[keys[i]];
      count += counts[i];
      forced |= mask[i] == 1;
    }
    const uint64_t most = config_.counter_bits == 8 ? 255 : 65535;
    std::vector<Newcomer> newcomers;
    for (const auto& [key, how] : seen) {
      uint64_t& count = counts_[key];
      count = std::min(most, count + how.first);
      if (own_.count(key) == 0 && (how.second || count >= config_.promote_after)) {
        newcomers.push_back({how.second, count, key});
      }
    }
    std::set<Key> leaving;
    const std::set<Key> in_use(keys.begin(), keys.end());
    if (config_.max_rows > 0) leaving = MakeRoom(in_use, &newcomers);
    for (const auto& [unused_forced, unused_count, key] : newcomers) {
      ModelRow row = Static(key);
      if (!config_.copy_slots) row.slots.assign(row.slots.size(), kSlotStart);
      own_[key] = std::move(row);
      ++promoted_;
    }
    Demote(leaving);  // this comes last, since it moves static rows
  }

  struct Newcomer {
    bool forced;
    uint64_t count;
    Key key;
  };

  std::set<Key> MakeRoom(const std::set<Key>& in_use, std::vector<Newcomer>* newcomers) {
    std::vector<std::pair<uint64_t, Key>> rest;
    for (const auto& [key, row] : own_) {
      if (in_use.count(key) == 0) rest.emplace_back(counts_[key], key);
    }
    std::sort(rest.begin(), rest.end());
    std::sort(newcomers->begin(), newcomers->end(), [](const Newcomer& a, const Newcomer& b) {
      return std::make_tuple(!a.forced, ~a.count, a.key) <
             std::make_tuple(!b.forced, ~b.count, b.key);
    });
    std::set<Key> leaving;
    uint64_t rows = own_.size();
    for (size_t i = 0; i < newcomers->size(); ++i) {
      const Newcomer& newcomer = (*newcomers)[i];
      const bool full = rows == config_.max_rows;
      const bool stays =
          full && (leaving.size() == rest.size() ||
                   (!newcomer.forced && newcomer.count < rest[leaving.size()].first));
      if (stays) {
        newcomers->resize(i);
        break;
      }
      if (full) {
        leaving.insert(rest[leaving.size()].second);
      } else {
        ++rows;
      }
    }
    return leaving;
  }

  void Step(ModelRow* row, const std::vector<double>& gradient) const {
    for (size_t j = 0; j < gradient.size(); ++j) {
      double divisor = 1;
      if (rule_ == Rule::kAdagrad) {
        row->slots[j] += gradient[j] * gradient[j];
        divisor = std::sqrt(row->slots[j] + 1e-7);
      }
      row->weights[j] -= rate_ * gradient[j] / divisor;
    }
  }

  const AdaptiveConfig config_;
  const Rule rule_;
  const double rate_;
  std::unordered_map<Key, ModelRow> own_;
  std::vector<ModelRow> statics_;
  std::unordered_map<Key, uint64_t> counts_;
  std::vector<Waiting> deposits_;
  bool deposited_ = false;
  uint64_t promoted_ = 0, demoted_ = 0, lookups_ = 0, own_lookups_ = 0, steps_ = 0;
};

}  // namespace sok
