#include "core/adaptive/mask_gather.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/adaptive/decimal_fingerprint.h"
#include "core/base/bfloat16.h"
#include "core/base/test_folder.h"
#include "core/base/test_result.h"
#include "core/base/test_threads.h"
#include "core/storage/storage.h"

namespace sok {
namespace {

constexpr int kDim = 5;
constexpr uint64_t kRange = 300;  // how many keys there are, which a direct table needs
constexpr int64_t kBuckets = 11;

TableSpec Config() {
  TableSpec config;
  config.dim = kDim;
  config.initializer = "constant";
  config.initializer_a = 7;  // rows that start by the table's own initializer would show
  return config;
}

// All values are eighths, whose sums are exact in float32.
struct Matrix {
  explicit Matrix(std::mt19937_64& random, int64_t row_count = kBuckets, int64_t columns = kDim)
      : rows(row_count), width(columns) {
    for (int64_t i = 0; i < rows * width; ++i) {
      values.push_back(static_cast<float>(static_cast<int>(random() % 129) - 64) / 8);
    }
  }
  StaticRows view() const { return {values.data(), rows, width}; }
  std::vector<double> Row(int64_t row) const {
    return {values.begin() + row * width, values.begin() + (row + 1) * width};
  }
  int64_t rows, width;
  std::vector<float> values;
};

struct Batch {
  std::vector<Key> keys;
  std::vector<int32_t> mask;
  std::vector<int64_t> buckets;  // empty: hashed

  MaskedLookup Lookup(bool stored = false) {
    hashed.assign(keys.size(), -1);
    own = std::make_unique<bool[]>(keys.size());
    MaskedLookup lookup;
    lookup.keys = keys.data();
    lookup.mask = mask.data();
    lookup.given = buckets.empty() ? nullptr : buckets.data();
    lookup.hashed = hashed.data();
    lookup.own = own.get();
    lookup.n = keys.size();
    lookup.stored = stored;
    return lookup;
  }

  std::vector<int64_t> hashed;
  std::unique_ptr<bool[]> own;
};

Batch RandomBatch(std::mt19937_64& random) {
  const size_t n = random() % 3 == 0 ? 1 + random() % 10000 : 1 + random() % 100;
  const bool hashes = random() % 2 == 0;
  Batch batch;
  for (size_t i = 0; i < n; ++i) {
    batch.keys.push_back(random() % kRange);
    batch.mask.push_back(static_cast<int32_t>(random() % 2));
    if (!hashes) batch.buckets.push_back(static_cast<int64_t>(random() % kBuckets));
  }
  return batch;
}

int64_t BucketOf(const Batch& batch, size_t i) {
  if (!batch.buckets.empty()) return batch.buckets[i];
  return static_cast<int64_t>(FingerprintOfDigits(static_cast<int64_t>(batch.keys[i])) % kBuckets);
}

// Does what a lookup must do, a key at a time and in float64. Equal keys may start from any of
// their static rows: which comes first is not defined.
class Reference {
 public:
  explicit Reference(uint64_t min_count) : min_count_(min_count) {}

  template <typename T>
  void CheckRead(const Batch& batch, const Matrix& rows, const std::vector<T>& embeddings) {
    for (size_t i = 0; i < batch.keys.size(); ++i) {
      const auto own = own_.find(batch.keys[i]);
      const bool reads_own = batch.mask[i] == 1 && own != own_.end();
      const std::vector<double> expected = reads_own ? own->second : rows.Row(BucketOf(batch, i));
      for (int j = 0; j < kDim; ++j) {
        const T value = FromFloat<T>(static_cast<float>(expected[j]));
        REQUIRE(ToFloat(embeddings[i * kDim + j]) == ToFloat(value));
      }
      if (batch.buckets.empty()) {
        REQUIRE(batch.hashed[i] == (reads_own ? 0 : BucketOf(batch, i)));
      }
    }
  }

  // The lookup has made rows: each must be among those that the batch allows.
  void CheckMade(const Batch& batch, const Matrix& rows, Table& table) {
    std::map<Key, std::vector<int64_t>> starts;
    for (size_t i = 0; i < batch.keys.size(); ++i) {
      if (batch.mask[i] != 1 || own_.count(batch.keys[i]) > 0) continue;
      if (++seen_[batch.keys[i]] >= min_count_) {
        // Admitted here: the row starts as the static row of an occurrence that came up to
        // min_count_.
        starts[batch.keys[i]];
      }
    }
    for (size_t i = 0; i < batch.keys.size(); ++i) {
      const auto found = starts.find(batch.keys[i]);
      if (batch.mask[i] == 1 && found != starts.end()) found->second.push_back(BucketOf(batch, i));
    }
    for (const auto& [key, buckets] : starts) {
      std::vector<float> row(kDim);
      REQUIRE(table.Lookup(&key, 1, false, row.data(), SerialFor).ok());
      const std::vector<double> found(row.begin(), row.end());
      bool allowed = false;
      for (int64_t bucket : buckets) allowed |= rows.Row(bucket) == found;
      REQUIRE(allowed);
      own_[key] = found;
    }
    REQUIRE(table.size() == own_.size());
    for (size_t i = 0; i < batch.keys.size(); ++i) {
      REQUIRE(batch.own[i] == (batch.mask[i] == 1 && own_.count(batch.keys[i]) > 0));
    }
  }

  // Makes a step of SGD with a rate of 1, of which own rows get their part.
  void Descend(const Batch& batch, const std::vector<float>& gradients) {
    for (size_t i = 0; i < batch.keys.size(); ++i) {
      if (!batch.own[i]) continue;
      std::vector<double>& row = own_.at(batch.keys[i]);
      for (int j = 0; j < kDim; ++j) row[j] -= gradients[i * kDim + j];
    }
  }

 private:
  const uint64_t min_count_;
  std::map<Key, std::vector<double>> own_;
  std::map<Key, uint64_t> seen_;
};

void Train(Table& table, const Batch& batch, std::vector<float> gradients) {
  const auto hold = std::make_shared<const std::vector<float>>(std::move(gradients));
  REQUIRE(table
              .Deposit(KeysOfOwnRows(batch.keys.data(), batch.own.get(), batch.keys.size()), hold,
                       hold->data(), nullptr)
              .ok());
  REQUIRE(table.Commit({"sgd", {{"learning_rate", 1.0}}, 0, 1.0f}, ThreadedFor).ok());
}

template <typename T>
void CheckLookups(Table& table, bool stored, uint64_t min_count) {
  std::mt19937_64 random(TestSeed());
  Reference reference(min_count);
  for (int step = 0; step < 30; ++step) {
    const Matrix rows(random);
    Batch batch = RandomBatch(random);
    std::vector<T> embeddings(batch.keys.size() * kDim);
    const ParallelFor pool = step % 2 ? ParallelFor(SerialFor) : ParallelFor(ThreadedFor);
    MaskGather gather(&table, batch.Lookup(stored));
    REQUIRE(gather.Read(rows.view(), embeddings.data(), pool).ok());
    reference.CheckRead(batch, rows, embeddings);
    if (step % 5 == 4) continue;  // makes no rows
    REQUIRE(gather.Admit(rows.view()).ok());
    REQUIRE(gather.MakeRows(pool).ok());
    reference.CheckMade(batch, rows, table);
    const Matrix gradients(random, static_cast<int64_t>(batch.keys.size()));
    Train(table, batch, gradients.values);
    reference.Descend(batch, gradients.values);
  }
}

// Looks up two keys that get rows of their own, with static rows of this test's own.
Status MakeTwo(Table& table, const Matrix& rows, const std::vector<const Matrix*>& slots) {
  Batch batch{{1, 2}, {1, 1}, {3, 4}, {}, {}};
  std::vector<float> embeddings(2 * kDim);
  MaskGather gather(&table, batch.Lookup());
  Status status = gather.Read(rows.view(), embeddings.data(), SerialFor);
  if (status.ok()) status = gather.Admit(rows.view());
  for (const Matrix* slot : slots) {
    if (status.ok()) status = gather.CopySlots(slot->view());
  }
  return status.ok() ? gather.MakeRows(SerialFor) : status;
}

std::string ReadError(Table& table, Batch batch, int64_t rows = kBuckets) {
  std::mt19937_64 random(TestSeed());
  const Matrix matrix(random, rows);
  std::vector<float> embeddings(batch.keys.size() * kDim);
  MaskGather gather(&table, batch.Lookup());
  const Status status = gather.Read(matrix.view(), embeddings.data(), ThreadedFor);
  CHECK(table.size() == 0);
  return status.message();
}

}  // namespace

TEST_CASE("a mask gather reads, makes and trains the rows that a loop over its keys does") {
  for (const uint64_t min_count : {1, 3}) {
    CAPTURE(min_count);
    AdmissionConfig admission;
    admission.min_count = min_count;
    TableSpec counted = Config();
    if (min_count > 1) counted.admission = admission;
    CheckLookups<float>(*Value(Table::Make(counted)), false, min_count);
    CheckLookups<float>(*Value(Table::Make(counted)), true, min_count);
    TableSpec direct = counted;
    direct.direct = true;
    direct.max_rows = kRange;
    CheckLookups<float>(*Value(Table::Make(direct)), false, min_count);
    CheckLookups<BFloat16>(*Value(Table::Make(counted)), false, min_count);
  }
}

TEST_CASE("a mask gather reads, makes and trains rows of a storage") {
  const TestFolder folder;
  StorageOptions options;
  options.path = folder / "storage";
  options.cache_bytes = uint64_t{1} << 20;
  const auto storage = Value(Storage::Open(options));
  CheckLookups<float>(*Value(storage->OpenTable(Config())), true, 1);
  REQUIRE(storage->Close().ok());
}

TEST_CASE("a later occurrence that is admitted makes the row of earlier ones too") {
  AdmissionConfig admission;
  admission.min_count = 2;
  TableSpec counted = Config();
  counted.admission = admission;
  const auto table = Value(Table::Make(counted));
  std::mt19937_64 random(TestSeed());
  const Matrix rows(random);
  Batch batch{{5, 6, 5}, {1, 1, 1}, {0, 1, 2}, {}, {}};
  std::vector<float> embeddings(3 * kDim);
  MaskGather gather(table.get(), batch.Lookup());
  REQUIRE(gather.Read(rows.view(), embeddings.data(), SerialFor).ok());
  REQUIRE(gather.Admit(rows.view()).ok());
  CHECK(gather.admitted() == 1);
  REQUIRE(gather.MakeRows(SerialFor).ok());
  CHECK(batch.own[0]);
  CHECK_FALSE(batch.own[1]);
  CHECK(batch.own[2]);
  CHECK(table->size() == 1);
}

TEST_CASE("new rows take copies of slots that add up to those of the rule, and no others") {
  std::mt19937_64 random(TestSeed());
  const Matrix rows(random), first(random), second(random), narrow(random, kBuckets, 1);
  const std::vector<std::vector<const Matrix*>> given = {
      {&first, &second}, {&first}, {&first, &narrow}, {}};
  for (size_t g = 0; g < given.size(); ++g) {
    const auto table = Value(Table::Make(Config()));
    // FTRL has two slots of kDim floats each.
    const Key other = 9;
    const auto ones = std::make_shared<const std::vector<float>>(kDim, 1.0f);
    LookupKeys lookup;
    lookup.keys = &other;
    lookup.n = 1;
    REQUIRE(table->Deposit(lookup, ones, ones->data(), nullptr).ok());
    REQUIRE(table->Commit({"ftrl", {}, 0, 1.0f}, SerialFor).ok());
    REQUIRE(MakeTwo(*table, rows, given[g]).ok());
    const auto snapshot = Value(table->Freeze());
    const std::vector<float>& start = snapshot.slot_start();
    REQUIRE(start.size() == 2 * kDim);
    std::vector<Key> keys(3);
    std::vector<float> embeddings(3 * kDim), slots(3 * 2 * kDim);
    REQUIRE(snapshot.Write({keys.data(), embeddings.data(), slots.data()}).ok());
    for (size_t i = 0; i < 3; ++i) {
      if (keys[i] == other) continue;
      const auto bucket = static_cast<int64_t>(keys[i]) + 2;
      for (int j = 0; j < kDim; ++j) {
        const size_t at = i * 2 * kDim + j;
        CHECK(embeddings[i * kDim + j] == rows.Row(bucket)[j]);
        CHECK(slots[at] == (g == 0 ? first.Row(bucket)[j] : start[j]));
        CHECK(slots[at + kDim] == (g == 0 ? second.Row(bucket)[j] : start[kDim + j]));
      }
    }
  }
}

TEST_CASE("slots of fewer rows than the static matrix are refused, and no row is made") {
  const auto table = Value(Table::Make(Config()));
  std::mt19937_64 random(TestSeed());
  const Matrix rows(random), few(random, 4);
  const Status status = MakeTwo(*table, rows, {&few});
  CHECK(status.code() == Code::kInvalidArgument);
  CHECK(status.message() == "expected a slot for each static row, got shape [4,5]");
  CHECK(table->size() == 0);
}

TEST_CASE("more rows than a table may have are an error, and none is made") {
  TableSpec config = Config();
  config.max_rows = 1;
  const auto table = Value(Table::Make(config));
  std::mt19937_64 random(TestSeed());
  CHECK(MakeTwo(*table, Matrix(random), {}).code() == Code::kResourceExhausted);
  CHECK(table->size() == 0);
}

TEST_CASE("a mask of neither 0 nor 1 is named with its place in the batch") {
  const auto table = Value(Table::Make(Config()));
  for (const int32_t wrong : {2, -1, INT32_MAX, INT32_MIN}) {
    Batch batch;
    batch.keys.assign(9000, 1);
    batch.mask.assign(9000, 1);
    batch.buckets.assign(9000, 0);
    batch.mask[5000] = batch.mask[5001] = batch.mask[8000] = wrong;
    CHECK(ReadError(*table, std::move(batch)) ==
          "expected a mask of 1 (own row) or 0 (static row), got " + std::to_string(wrong) +
              " at position 5000");
  }
}

TEST_CASE("a static row that is not there is named with its place, whatever its mask") {
  const auto table = Value(Table::Make(Config()));
  for (const int64_t wrong : {int64_t{-1}, kBuckets, INT64_MAX, INT64_MIN}) {
    for (const int32_t mask : {0, 1}) {
      CHECK(ReadError(*table, {{1, 2, 3}, {1, mask, 1}, {0, wrong, 6}, {}, {}}) ==
            "expected buckets in [0, 11), got " + std::to_string(wrong) + " at position 1");
    }
  }
  CHECK(ReadError(*table, {{1}, {1}, {0}, {}, {}}, 0) ==
        "expected buckets in [0, 0), got 0 at position 0");
}

TEST_CASE("keys cannot be hashed to no static rows, and no keys need none") {
  const auto table = Value(Table::Make(Config()));
  CHECK(ReadError(*table, {{1}, {1}, {}, {}, {}}, 0) ==
        "expected at least one static row, got shape [0,5]");
  CHECK(ReadError(*table, {}, 0) == "");
}

TEST_CASE("a key beyond a direct table is refused only where it asks for its own row") {
  TableSpec config = Config();
  config.direct = true;
  config.max_rows = 10;
  const auto table = Value(Table::Make(config));
  CHECK(ReadError(*table, {{1, 10}, {1, 1}, {0, 0}, {}, {}}).find("[0, 10), got 10") !=
        std::string::npos);
  CHECK(ReadError(*table, {{1, 10}, {1, 0}, {0, 0}, {}, {}}) == "");
}

TEST_CASE("keys of own rows keep their places, and refer to nothing of the lookup") {
  std::vector<Key> keys = {4, 5, 4, 6};
  bool own[] = {true, false, true, true};
  const LookupKeys deposited = KeysOfOwnRows(keys.data(), own, keys.size());
  keys.assign(4, 0);
  REQUIRE(deposited.n == 3);
  CHECK(std::vector<Key>(deposited.keys, deposited.keys + 3) == std::vector<Key>{4, 4, 6});
  CHECK(std::vector<uint32_t>(deposited.positions, deposited.positions + 3) ==
        std::vector<uint32_t>{0, 2, 3});
  CHECK(deposited.leave_absent);
  CHECK(KeysOfOwnRows(nullptr, nullptr, 0).n == 0);
}

}  // namespace sok
