#include "core/gpu/check/random_program.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <vector>

#include "core/base/status_macros.h"
#include "core/gpu/check/near.h"
#include "core/gpu/check/on_device.h"
#include "core/gpu/check/random_masked.h"
#include "core/gpu/check/random_pooling.h"
#include "core/gpu/gpu_table.h"
#include "core/rows/row_store.h"

namespace sok::gpu {
namespace {

class Program {
 public:
  Program(std::shared_ptr<Device> device, const ProgramOptions& options)
      : device_(device), options_(options), random_(options.seed), keys_(device), values_(device) {}

  Status Run() {
    SOK_ASSIGN_OR_RETURN(const auto initializer,
                         Initializer::Make(options_.initializer, -0.5, 0.5, options_.seed));
    initializer_ = std::make_unique<Initializer>(initializer);
    SOK_ASSIGN_OR_RETURN(table_, GpuTable::Make(device_, {options_.dim, initializer}));
    model_ = MakeHashStore(std::make_shared<RowLayout>(options_.dim, std::vector<Slot>()));
    SOK_RETURN_IF_ERROR(SetRule(options_.rule));
    // Start vectors are compared before any call changes them.
    SOK_RETURN_IF_ERROR(Lookup(Absent::kStart, /*is_exact=*/StartsExactly()));
    for (int i = 0; i < options_.operations; ++i) {
      const int kind = static_cast<int>(Random(20));
      now_ = static_cast<uint32_t>(i + 1);
      const Status status = kind < 6    ? Lookup(static_cast<Absent>(Random(3)), false)
                            : kind < 8  ? LookupPooled()
                            : kind < 10 ? LookupMasked()
                            : kind < 14 ? Commit()
                            : kind < 16 ? Assign()
                            : kind < 18 ? Erase()
                            : kind < 19 ? Evict()
                                        : Compare();
      if (!status.ok()) return status.Within("operation " + std::to_string(i) + ": ");
    }
    SOK_RETURN_IF_ERROR(Compare());
    return CopyToAnother();
  }

 private:
  uint64_t Random(uint64_t below) { return random_() % below; }
  bool StartsExactly() const {
    return options_.initializer == "uniform" || options_.initializer == "constant";
  }

  // Half of the keys come from a small range and repeat often.
  std::vector<Key> RandomKeys() {
    std::vector<Key> keys(1 + Random(options_.most_keys));
    for (Key& key : keys) {
      const uint64_t number = Random(2) == 0 ? Random(5) : Random(options_.universe);
      key = number == 0 ? 0 : number == 1 ? ~Key{0} : number * 0x9e3779b97f4a7c15ull;
    }
    return keys;
  }

  // Sums of these values are exact in any order.
  std::vector<float> RandomValues(size_t n) {
    std::vector<float> values(n);
    for (float& value : values) value = (static_cast<float>(Random(129)) - 64.0f) / 64.0f;
    return values;
  }

  Status SetRule(const std::string& rule) {
    std::vector<Hyper> hypers;
    if (rule.rfind("kv_", 0) != 0) hypers.push_back({"weight_decay", 0.01});
    SOK_ASSIGN_OR_RETURN(optimizer_, MakeRowOptimizer(rule, hypers));
    SOK_RETURN_IF_ERROR(table_->SetRule(rule, optimizer_->slots(options_.dim), nullptr));
    return model_
        ->Relayout(std::make_shared<RowLayout>(options_.dim, optimizer_->slots(options_.dim)), {},
                   SerialFor)
        .status();
  }

  Status Same(const std::string& what, Key key, float expected, float got, bool is_exact) {
    // Ftrl's "linear" is a sum of terms that are 1 / learning_rate times as large as itself.
    const float relative = options_.rule.find("ftrl") == std::string::npos ? 1e-5f : 1e-3f;
    const float most = is_exact ? 0.0f : relative * std::max(1.0f, std::fabs(expected));
    if (AreNear(expected, got, most)) return Status();
    return Status(Code::kInternal, what + " of key " + std::to_string(key) + ": expected " +
                                       std::to_string(expected) +
                                       ". Received: " + std::to_string(got) + ".");
  }

  Status MakeInModel(const std::vector<Key>& keys) {
    return model_->Upsert(
        keys.data(), keys.size(), 0, now_,
        [&](size_t i, RowRef row, bool is_new) {
          if (is_new) initializer_->Fill(keys[i], row.embedding, options_.dim);
        },
        SerialFor);
  }

  // Returns the embeddings that the model has for keys.
  Result<std::vector<float>> Expected(const std::vector<Key>& keys, Absent absent) {
    if (absent == Absent::kMake) SOK_RETURN_IF_ERROR(MakeInModel(keys));
    std::vector<float> out(keys.size() * options_.dim, 0.0f);
    const auto fill = [&](Key key, float* embedding) {
      if (absent == Absent::kStart) initializer_->Fill(key, embedding, options_.dim);
    };
    SOK_RETURN_IF_ERROR(
        model_->Gather(keys.data(), keys.size(), out.data(), {}, fill, nullptr, SerialFor));
    return out;
  }

  Status Lookup(Absent absent, bool is_exact) {
    const std::vector<Key> keys = RandomKeys();
    SOK_ASSIGN_OR_RETURN(const std::vector<float> expected, Expected(keys, absent));
    std::vector<float> got(expected.size(), NAN);
    SOK_ASSIGN_OR_RETURN(const DeviceAddress on_device, keys_.Put(keys));
    SOK_ASSIGN_OR_RETURN(const DeviceAddress out, values_.Put(got));
    SOK_RETURN_IF_ERROR(
        table_->Lookup(on_device, keys.size(), absent, now_, out, Element::kFloat32, nullptr));
    SOK_RETURN_IF_ERROR(values_.Get(&got));
    for (size_t i = 0; i < got.size(); ++i) {
      SOK_RETURN_IF_ERROR(Same("a lookup", keys[i / options_.dim], expected[i], got[i], is_exact));
    }
    std::vector<uint16_t> narrow(expected.size());
    SOK_ASSIGN_OR_RETURN(const DeviceAddress narrow_out, values_.Put(narrow));
    SOK_RETURN_IF_ERROR(table_->Lookup(on_device, keys.size(), Absent::kZeros, now_, narrow_out,
                                       Element::kBFloat16, nullptr));
    SOK_RETURN_IF_ERROR(values_.Get(&narrow));
    SOK_ASSIGN_OR_RETURN(const std::vector<float> zeros, Expected(keys, Absent::kZeros));
    for (size_t i = 0; i < narrow.size(); ++i) {
      const float value = ToFloat(BFloat16{narrow[i]});
      if (std::fabs(value - zeros[i]) > 0.01f * std::fabs(zeros[i]) + 1e-5f) {
        return Status(Code::kInternal, "a bfloat16 lookup: expected " + std::to_string(zeros[i]) +
                                           ". Received: " + std::to_string(value) + ".");
      }
    }
    return Status();
  }

  Status LookupPooled() {
    const std::vector<Key> keys = RandomKeys();
    const auto absent = static_cast<Absent>(Random(3));
    SOK_ASSIGN_OR_RETURN(const std::vector<float> rows, Expected(keys, absent));
    return CheckPooling(device_, table_.get(), {keys, rows, absent, now_}, &random_);
  }

  Status LookupMasked() {
    return CheckMasked(device_, table_.get(), RandomKeys(),
                       {model_.get(), optimizer_->slots(options_.dim), now_}, &random_);
  }

  Status Commit() {
    if (Random(5) == 0) {
      const std::vector<std::string> rules{options_.rule, "sgd", "adagrad", options_.rule};
      SOK_RETURN_IF_ERROR(SetRule(rule_ = rules[Random(rules.size())]));
    }
    const size_t batches = 1 + Random(2);
    std::vector<std::vector<Key>> keys;
    std::vector<std::vector<float>> gradients;
    std::vector<std::vector<uint32_t>> positions(batches);
    std::vector<GradientBatch> of_model;
    std::vector<GpuGradients> of_gpu;
    std::vector<OnDevice> held;
    for (size_t i = 0; i < batches; ++i) {
      keys.push_back(RandomKeys());
      gradients.push_back(RandomValues(keys.back().size() * options_.dim));
    }
    for (size_t i = 0; i < batches; ++i) {
      const float factor = Random(2) == 0 ? 1.0f : 0.5f;
      of_model.push_back({keys[i].data(), gradients[i].data(), nullptr, keys[i].size()});
      of_model.back().factor = factor;
      held.emplace_back(device_);
      SOK_ASSIGN_OR_RETURN(const DeviceAddress keys_at, held.back().Put(keys[i]));
      held.emplace_back(device_);
      SOK_ASSIGN_OR_RETURN(const DeviceAddress gradients_at, held.back().Put(gradients[i]));
      of_gpu.push_back({keys_at, gradients_at, Element::kFloat32, keys[i].size(), factor});
      if (Random(3) != 0) continue;
      for (size_t k = 0; k < keys[i].size(); ++k) {
        positions[i].push_back(static_cast<uint32_t>(Random(keys[i].size())));
      }
      of_model.back().positions = positions[i].data();
      held.emplace_back(device_);
      SOK_ASSIGN_OR_RETURN(of_gpu.back().positions, held.back().Put(positions[i]));
    }
    CommitStep step;
    step.number = ++steps_;
    step.scale = Random(2) == 0 ? 1.0f : 0.25f;
    step.clip_value = Random(3) == 0 ? 0.5f : 0.0f;
    step.now = now_;
    SOK_RETURN_IF_ERROR(model_->Apply(of_model, *optimizer_, step, SerialFor).status());
    SOK_RETURN_IF_ERROR(table_->Commit(of_gpu, rule_, *optimizer_, step, nullptr));
    return device_->Synchronize(nullptr);
  }

  Status Assign() {
    const std::vector<Key> keys = RandomKeys();
    const std::vector<float> values = RandomValues(keys.size() * options_.dim);
    SOK_RETURN_IF_ERROR(model_->Upsert(
        keys.data(), keys.size(), 0, now_,
        [&](size_t i, RowRef row, bool /*is_new*/) {
          std::memcpy(row.embedding, &values[i * options_.dim], options_.dim * sizeof(float));
        },
        SerialFor));
    SOK_ASSIGN_OR_RETURN(const DeviceAddress keys_at, keys_.Put(keys));
    SOK_ASSIGN_OR_RETURN(const DeviceAddress values_at, values_.Put(values));
    return table_->Assign(keys_at, values_at, keys.size(), now_, nullptr);
  }

  Status Erase() {
    const std::vector<Key> keys = RandomKeys();
    SOK_ASSIGN_OR_RETURN(const uint64_t expected,
                         model_->Erase(keys.data(), keys.size(), SerialFor));
    SOK_ASSIGN_OR_RETURN(const DeviceAddress at, keys_.Put(keys));
    SOK_ASSIGN_OR_RETURN(const uint64_t got, table_->Erase(at, keys.size(), nullptr));
    if (got == expected) return Status();
    return Status(Code::kInternal, "Expected " + std::to_string(expected) +
                                       " rows to be erased. Received: " + std::to_string(got));
  }

  // The rows that were evicted must be the oldest, or those with the fewest updates.
  Status Evict() {
    const bool by_time = Random(2) == 0;
    const uint64_t wanted = Random(100);
    std::map<Key, RowMeta> before, after;
    SOK_RETURN_IF_ERROR(Metas(&before));
    SOK_ASSIGN_OR_RETURN(const uint64_t evicted, table_->Evict(wanted, by_time, nullptr));
    SOK_RETURN_IF_ERROR(Metas(&after));
    if (evicted != std::min<uint64_t>(wanted, before.size()) ||
        after.size() + evicted != before.size()) {
      return Status(Code::kInternal, "an eviction of " + std::to_string(wanted) + " erased " +
                                         std::to_string(before.size() - after.size()) + " rows");
    }
    uint32_t most_gone = 0, least_kept = UINT32_MAX;
    std::vector<Key> gone;
    for (const auto& [key, meta] : before) {
      const uint32_t rank = by_time ? meta.update_time : meta.update_num;
      if (after.count(key) != 0) {
        least_kept = std::min(least_kept, rank);
      } else {
        most_gone = std::max(most_gone, rank);
        gone.push_back(key);
      }
    }
    if (!gone.empty() && most_gone > least_kept) {
      return Status(Code::kInternal, "an eviction kept a row of rank " +
                                         std::to_string(least_kept) + " and erased one of rank " +
                                         std::to_string(most_gone));
    }
    return model_->Erase(gone.data(), gone.size(), SerialFor).status();
  }

  Status Metas(std::map<Key, RowMeta>* metas) {
    return table_->Export(
        [&](const GpuTable::RowsPart& part) {
          for (size_t i = 0; i < part.keys.size(); ++i) (*metas)[part.keys[i]] = part.metas[i];
          return Status();
        },
        nullptr);
  }

  Status Compare() { return CompareWith(*table_); }

  Status CompareWith(GpuTable& table) {
    struct Row {
      std::vector<float> floats;
      RowMeta meta;
    };
    const size_t floats = options_.dim + model_->layout()->slot_floats();
    std::map<Key, Row> expected;
    {
      SOK_ASSIGN_OR_RETURN(const auto frozen, model_->Freeze());
      SOK_RETURN_IF_ERROR(frozen->ForEach([&](Key key, RowRef row) {
        expected[key] = {{row.embedding, row.embedding + floats}, *row.meta};
      }));
    }
    SOK_ASSIGN_OR_RETURN(const uint64_t size, table.Size(nullptr));
    if (size != expected.size()) {
      return Status(Code::kInternal, "Expected " + std::to_string(expected.size()) +
                                         " rows. Received: " + std::to_string(size));
    }
    uint64_t seen = 0;
    SOK_RETURN_IF_ERROR(table.Export(
        [&](const GpuTable::RowsPart& part) -> Status {
          for (size_t i = 0; i < part.keys.size(); ++i, ++seen) {
            const auto found = expected.find(part.keys[i]);
            if (found == expected.end()) {
              return Status(Code::kInternal, "key " + std::to_string(part.keys[i]) +
                                                 " has a row that it should not have");
            }
            const Row& row = found->second;
            for (size_t j = 0; j < floats; ++j) {
              SOK_RETURN_IF_ERROR(Same("float " + std::to_string(j), part.keys[i], row.floats[j],
                                       part.floats[i * floats + j], false));
            }
            if (part.metas[i].update_num != row.meta.update_num ||
                part.metas[i].update_time != row.meta.update_time) {
              return Status(Code::kInternal,
                            "the counters of key " + std::to_string(part.keys[i]) + " differ");
            }
          }
          return Status();
        },
        nullptr));
    if (seen == size) return Status();
    return Status(Code::kInternal,
                  "an export had " + std::to_string(seen) + " rows of " + std::to_string(size));
  }

  // Rows that one table exports and another imports are the same.
  Status CopyToAnother() {
    SOK_ASSIGN_OR_RETURN(const auto other, GpuTable::Make(device_, {options_.dim, *initializer_}));
    SOK_RETURN_IF_ERROR(other->SetRule(rule_, optimizer_->slots(options_.dim), nullptr));
    std::vector<GpuTable::RowsPart> parts;
    SOK_RETURN_IF_ERROR(table_->Export(
        [&](const GpuTable::RowsPart& part) {
          parts.push_back(part);
          return Status();
        },
        nullptr));
    for (const GpuTable::RowsPart& part : parts) {
      SOK_RETURN_IF_ERROR(other->Import(part, nullptr));
    }
    return CompareWith(*other);
  }

  const std::shared_ptr<Device> device_;
  const ProgramOptions options_;
  std::mt19937_64 random_;
  std::unique_ptr<Initializer> initializer_;
  std::unique_ptr<GpuTable> table_;
  std::unique_ptr<RowStore> model_;
  std::unique_ptr<RowOptimizer> optimizer_;
  std::string rule_ = options_.rule;
  int64_t steps_ = 0;
  uint32_t now_ = 1;
  OnDevice keys_, values_;
};

}  // namespace

Status RunRandomProgram(const std::shared_ptr<Device>& device, const ProgramOptions& options) {
  return Program(device, options).Run();
}

Result<StartDifference> CompareStarts(const std::shared_ptr<Device>& device,
                                      const std::string& initializer) {
  constexpr size_t kKeys = size_t{1} << 20;
  constexpr int kDim = 16;
  SOK_ASSIGN_OR_RETURN(const auto start, Initializer::Make(initializer, 0.0, 1.0, 1));
  SOK_ASSIGN_OR_RETURN(const auto table, GpuTable::Make(device, {kDim, start}));
  std::vector<Key> keys(kKeys);
  for (size_t i = 0; i < kKeys; ++i) keys[i] = i;
  std::vector<float> got(kKeys * kDim), expected(kDim);
  OnDevice keys_on(device), out_on(device);
  SOK_ASSIGN_OR_RETURN(const DeviceAddress keys_at, keys_on.Put(keys));
  SOK_ASSIGN_OR_RETURN(const DeviceAddress out, out_on.Put(got));
  SOK_RETURN_IF_ERROR(
      table->Lookup(keys_at, kKeys, Absent::kStart, 1, out, Element::kFloat32, nullptr));
  SOK_RETURN_IF_ERROR(out_on.Get(&got));
  StartDifference difference{got.size()};
  for (size_t i = 0; i < kKeys; ++i) {
    start.Fill(keys[i], expected.data(), kDim);
    for (size_t j = 0; j < kDim; ++j) {
      const float other = got[i * kDim + j];
      if (std::memcmp(&other, &expected[j], sizeof(float)) == 0) continue;
      ++difference.different;
      difference.most = std::max(difference.most, std::fabs(other - expected[j]));
    }
  }
  return difference;
}

}  // namespace sok::gpu
