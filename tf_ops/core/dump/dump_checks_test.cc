// Rows that no training can produce are refused before anything changes. Rows that some rule can
// produce, also one that has diverged, are accepted.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <random>

#include "core/base/test_folder.h"
#include "core/base/test_result.h"
#include "core/base/test_threads.h"
#include "core/disk/group_meta.h"
#include "core/dump/dump_file.h"
#include "core/dump/test_dump.h"
#include "core/rules/row_optimizer.h"
#include "core/storage/storage.h"
#include "core/tables/row_checks.h"
#include "core/tables/test_contents.h"

namespace sok {
namespace {

constexpr int kDim = 2;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

TableState StateOf(const std::string& rule, int64_t steps = 3) {
  return {rule, MakeRowOptimizer(rule, {}).value()->slots(kDim), steps};
}

Result<std::shared_ptr<Storage>> OpenStorage(const std::string& path) {
  StorageOptions options;
  options.path = path;
  return Storage::Open(options);
}

struct FileRow {
  Key key;
  std::vector<float> floats;
  uint32_t updates = 1;
};

// A group whose description says `state`.
void AddGroup(DumpWriter& writer, int group, const TableState& state,
              const std::vector<FileRow>& rows, const std::string& initializer = "constant") {
  GroupMeta meta;
  meta.dim = kDim;
  meta.initializer = initializer;
  meta.state = state;
  int floats = 0;
  for (const Slot& slot : state.slots) floats += slot.width;
  REQUIRE(writer.BeginGroup({group, kDim, meta.ToJson(), floats, 0}).ok());
  for (const FileRow& row : rows) {
    REQUIRE(AddRow(writer, row.key, row.updates, 0, row.floats.data(), kDim).ok());
  }
}

const std::vector<FileRow> kGood = {{1, {1, 2, 3, 4, 5, 6}}, {2, {1, 2, -3, -4, 0, 6}}};

struct Wrong {
  const char* name;
  TableState state;
  std::vector<FileRow> rows;
  const char* message;
};

std::vector<Wrong> WrongGroups() {
  TableState unknown = StateOf("kv_adam"), named = unknown, wide = unknown, start = unknown;
  unknown.rule = "kv_adam2";
  named.slots[1].name = "velocity_hat";
  wide.slots = {{"momentum", 1, 0}, {"velocity", 3, 0}};
  start.slots[1].initial = -1;
  TableState other = StateOf("kv_adam");
  other.rule = "kv_ftrl";  // a rule with the same number of floats
  std::vector<FileRow> far;
  for (Key key = 0; key < 100000; ++key) far.push_back({key * 7 + 1, {1, 2, 3, 4, 5, 6}});
  std::swap(far[10], far[20]);
  far.back().key = far[11].key;
  return {
      {"an unknown rule", unknown, kGood, "Expected a row optimizer of"},
      {"a slot of another name", named, kGood, "got momentum of 2, velocity_hat of 2"},
      {"slots of other widths", wide, kGood, "expected the slots of optimizer 'kv_adam'"},
      {"another rule of the same width", other, kGood, "linear of 2, accumulator of 2"},
      {"a start below 0", start, kGood, "'velocity' to start from"},
      {"no steps", StateOf("kv_adam", -1), kGood, "steps in [0, 2^53], got -1"},
      {"too many steps", StateOf("kv_adam", INT64_MAX), kGood, "steps in [0, 2^53]"},
      {"a square below 0", StateOf("kv_adam"), {{7, {1, 2, 3, 4, 5, -6}}}, "key 7"},
      {"a square of -inf", StateOf("kv_adam"), {{7, {1, 2, 3, 4, -kInf, 0}}}, "got -inf"},
      {"a square of NaN", StateOf("kv_adam"), {{~Key{0}, {1, 2, 3, 4, kNan, 0}}}, "key -1"},
      {"a key twice", StateOf("kv_adam"), {kGood[0], kGood[0]}, "got key 1 twice"},
      {"a key twice, far apart", StateOf("kv_adam"), far, "got key 78 twice"},
  };
}

TEST_CASE("a dump with one wrong group is refused whole, before anything changes") {
  for (const Wrong& wrong : WrongGroups()) {
    CAPTURE(wrong.name);
    const TestFolder folder;
    auto writer = DumpWriter::Open(folder / "d");
    REQUIRE(writer.ok());
    AddGroup(*writer.value(), 0, StateOf("kv_adam"), kGood);
    AddGroup(*writer.value(), 4, wrong.state, wrong.rows);
    REQUIRE(writer.value()->Finish().ok());

    auto storage = OpenStorage(folder / "rows");
    REQUIRE(storage.ok());
    const auto loaded = storage.value()->Load(folder / "d", nullptr);
    CHECK(loaded.status().code() == Code::kInvalidArgument);
    CHECK(loaded.status().message().find("group 4: ") != std::string::npos);
    CHECK_MESSAGE(loaded.status().message().find(wrong.message) != std::string::npos,
                  loaded.status().message());
    CHECK(storage.value()->Groups().value().empty());
  }
}

TEST_CASE("a dump with keys in any order is taken") {
  const TestFolder folder;
  auto writer = DumpWriter::Open(folder / "d");
  REQUIRE(writer.ok());
  std::vector<FileRow> rows;
  for (Key key = 5000; key-- > 0;) rows.push_back({key * 0x9e3779b97f4a7c15, {1, 2, 3, 4, 5, 6}});
  AddGroup(*writer.value(), 0, StateOf("kv_adam"), rows);
  AddGroup(*writer.value(), 1, StateOf("kv_adam"), {rows[0]});
  REQUIRE(writer.value()->Finish().ok());
  auto storage = OpenStorage(folder / "rows");
  REQUIRE(storage.ok());
  CHECK(storage.value()->Load(folder / "d", nullptr).value() == 5001);
}

TEST_CASE("rows that have counted to the end, and beyond the middle, are saved and loaded") {
  const TestFolder folder;
  constexpr uint32_t kMiddle = uint32_t{1} << 31;
  const std::vector<uint32_t> updates = {kMiddle - 1, kMiddle, kMiddle + 1, UINT32_MAX - 1,
                                         UINT32_MAX};
  const std::vector<Key> keys = {1, 2, 3, 4, 5};
  auto writer = DumpWriter::Open(folder / "d");
  REQUIRE(writer.ok());
  std::vector<FileRow> rows;
  for (Key key : keys) rows.push_back({key, {1, 2, 3, 4, 5, 6}, updates[key - 1]});
  AddGroup(*writer.value(), 0, StateOf("kv_adam", TableState::kMostSteps), rows);
  REQUIRE(writer.value()->Finish().ok());
  // Loads the dump as it is, and again after further steps.
  std::string dump = folder / "d";
  for (int round = 0; round < 3; ++round) {
    CAPTURE(round);
    auto storage = Value(OpenStorage(folder / ("rows" + std::to_string(round))));
    REQUIRE(Value(storage->Load(dump, nullptr)) == keys.size());
    TableSpec config;
    config.dim = kDim;
    config.initializer = "constant";  // like the group in the file
    config.initializer_a = config.initializer_b = 0;
    const auto optimizer = Value(MakeRowOptimizer("kv_adam", {}));
    const auto table = Value(storage->OpenTable(config, "kv_adam", {}));
    std::vector<RowMeta> metas(keys.size());
    std::vector<uint8_t> exists(keys.size());
    REQUIRE(table->ReadMeta(keys.data(), keys.size(), metas.data(), exists.data(), SerialFor).ok());
    for (size_t i = 0; i < keys.size(); ++i) {
      CHECK(metas[i].update_num == std::min<uint64_t>(uint64_t{updates[i]} + round, UINT32_MAX));
    }
    CHECK(table->steps() == TableState::kMostSteps);
    const std::vector<float> gradients(keys.size() * kDim, 1.0f);
    REQUIRE(table
                ->Update(keys.data(), keys.size(), gradients.data(), "kv_adam", *optimizer, {},
                         SerialFor)
                .ok());
    dump = folder / ("d" + std::to_string(round));
    REQUIRE(Value(storage->Dump(dump, {}, nullptr)) == keys.size());
  }
}

TEST_CASE("a dump with an unknown initializer is refused") {
  const TestFolder folder;
  auto writer = DumpWriter::Open(folder / "d");
  REQUIRE(writer.ok());
  AddGroup(*writer.value(), 0, StateOf("kv_adam"), kGood, "magic");
  REQUIRE(writer.value()->Finish().ok());
  auto storage = OpenStorage(folder / "rows");
  REQUIRE(storage.ok());
  CHECK(storage.value()->Load(folder / "d", nullptr).status().message().find("magic") !=
        std::string::npos);
}

TEST_CASE("what any rule leaves passes, whatever the gradients were") {
  const uint64_t seed = TestSeed();
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  const float extremes[] = {0, -0.0f, 1e-30f, -1e-30f, 1, -1, 1e30f, -1e30f, kInf, -kInf, kNan};
  for (const std::string& rule : RowOptimizerNames()) {
    CAPTURE(rule);
    const auto optimizer = MakeRowOptimizer(rule, {});
    const std::vector<Slot> slots = optimizer.value()->slots(kDim);
    const std::vector<float> start = RowLayout(kDim, slots).slot_start();
    const SlotChecks checks(rule, kDim);
    for (int trial = 0; trial < 300; ++trial) {
      std::vector<float> row(kDim, 0.5f);
      row.insert(row.end(), start.begin(), start.end());
      float* const rows[] = {row.data()};
      for (int64_t step = 1; step <= 6; ++step) {
        // Most trials use only values that stay finite.
        const size_t most = trial % 3 == 0 ? std::size(extremes) : 6;
        const float gradient[kDim] = {extremes[random() % most], extremes[random() % most]};
        const float* const gradients[] = {gradient};
        optimizer.value()->Apply({step, 1.0f}, rows, gradients, 1, kDim);
        const Status status = checks.Check(1, row.data(), row.data() + kDim);
        REQUIRE_MESSAGE(status.ok(), status.message());
      }
    }
  }
}

TEST_CASE("rows of arrays are checked like those of a dump") {
  const TableState state = StateOf("adam");
  const std::vector<Key> keys = {5, ~Key{0}, 9};
  const std::vector<float> embeddings = {1, 2, kNan, 4, 5, 6};
  const auto check = [&](const std::vector<Key>& k, const std::vector<float>& slots,
                         const std::vector<int64_t>& updates) {
    OwnedContents rows;
    rows.keys = k;
    rows.embeddings = embeddings;
    rows.slots = slots;
    rows.update_nums = updates;
    return CheckRows(state, kDim, rows.View(), SerialFor).message();
  };
  const std::vector<float> good = {-1, 0, 0, 1, kNan, 0, kNan, kInf, 1, 1, kInf, 0};
  std::vector<float> bad = good;
  bad[3] = -1e-9f;
  CHECK(check(keys, good, {0, 1, 5}) == "");
  CHECK(check(keys, good, {0, UINT32_MAX, int64_t{1} << 31}) == "");
  CHECK(check({5, 9, 5}, good, {0, 1, 5}).find("key 5 twice") != std::string::npos);
  CHECK(check(keys, good, {0, -1, 5}).find("got -1 for key -1") != std::string::npos);
  CHECK(check(keys, good, {0, 1, int64_t{1} << 32}).find("key 9") != std::string::npos);
  CHECK(check(keys, bad, {0, 1, 5}).find("'velocity' of key 5") != std::string::npos);
}

}  // namespace
}  // namespace sok
