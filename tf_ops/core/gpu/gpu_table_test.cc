// Tables on the stand-in for a GPU: the kernels' sources on the host, several blocks at once.
#include "core/gpu/gpu_table.h"

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/hash.h"
#include "core/base/test_folder.h"
#include "core/base/test_result.h"
#include "core/base/test_threads.h"
#include "core/gpu/check/random_program.h"
#include "core/gpu/programs.h"
#include "core/gpu/shared_library.h"
#include "core/gpu/test_standin.h"

namespace sok::gpu {
namespace {

GpuTableConfig ConfigOf(int dim, uint64_t max_rows = 0, uint64_t max_bytes = 0) {
  return {dim, Value(Initializer::Make("uniform", -1.0, 1.0, 7)), max_rows, max_bytes};
}

// The memory of the stand-in is the host's.
template <typename T>
DeviceAddress At(const std::vector<T>& values) {
  return reinterpret_cast<DeviceAddress>(values.data());
}

std::vector<Key> KeysFrom(Key first, size_t n) {
  std::vector<Key> keys(n);
  for (size_t i = 0; i < n; ++i) keys[i] = first + i;
  return keys;
}

// Returns whole rows by their keys.
std::map<Key, std::vector<float>> RowsOf(GpuTable* table) {
  std::map<Key, std::vector<float>> rows;
  const Status status = table->Export(
      [&](const GpuTable::RowsPart& part) {
        const size_t floats = part.floats.size() / part.keys.size();
        for (size_t i = 0; i < part.keys.size(); ++i) {
          const auto begin = part.floats.begin() + static_cast<int64_t>(i * floats);
          rows[part.keys[i]] = {begin, begin + static_cast<int64_t>(floats)};
        }
        return Status();
      },
      nullptr);
  REQUIRE_MESSAGE(status.ok(), status.message());
  return rows;
}

Status Make(GpuTable* table, const std::vector<Key>& keys) {
  std::vector<uint32_t> rows(keys.size());
  return table->FindOrMake(At(keys), keys.size(), 1, At(rows), nullptr);
}

Status Train(GpuTable* table, const std::vector<Key>& keys, const std::vector<float>& gradients,
             const std::string& rule = "adam") {
  const auto optimizer = Value(MakeRowOptimizer(rule, {}));
  CommitStep step;
  step.number = 1;
  step.scale = 1.0f;
  return table->Commit({{At(keys), At(gradients), Element::kFloat32, keys.size()}}, rule,
                       *optimizer, step, nullptr);
}

void RunProgram(const ProgramOptions& options) {
  const Status status = RunRandomProgram(StandIn(), options);
  CHECK_MESSAGE(status.ok(), status.message());
}

}  // namespace

TEST_CASE("random programs on a GPU's table equal those on a store of the host, for every rule") {
  ProgramOptions options;
  options.seed = TestSeed();
  options.operations = LongTests() ? 200 : 12;
  for (const std::string& rule : RowOptimizerNames()) {
    CAPTURE(rule);
    options.rule = rule;
    RunProgram(options);
    ++options.seed;
  }
}

TEST_CASE("random programs on a GPU's table hold for every dim and initializer") {
  ProgramOptions options;
  options.seed = TestSeed();
  options.operations = LongTests() ? 200 : 8;
  for (const int dim : {1, 3, 8, 16, 64, 300}) {
    for (const char* const initializer : {"constant", "uniform", "normal", "truncated_normal"}) {
      CAPTURE(dim);
      CAPTURE(initializer);
      options.dim = dim;
      options.initializer = initializer;
      RunProgram(options);
      ++options.seed;
      if (!LongTests() && dim != 16) break;
    }
  }
}

TEST_CASE("gradients of a key have the same sum in every run and beside every other key") {
  // Enough for several chunks, and no sum of floats is exact.
  std::vector<Key> keys(5000, 3);
  std::vector<float> gradients(keys.size() * 16);
  for (size_t i = 0; i < gradients.size(); ++i) gradients[i] = 1.0f / static_cast<float>(i + 1);
  std::vector<float> first;
  for (int run = 0; run < 5; ++run) {
    CAPTURE(run);
    const auto table = Value(GpuTable::Make(StandIn(), ConfigOf(16)));
    // The rows of other keys come first, or none do.
    REQUIRE(Make(table.get(), KeysFrom(100, static_cast<size_t>(run) * 77 + 1)).ok());
    REQUIRE(Make(table.get(), {3}).ok());
    std::vector<Key> batch = keys;
    std::vector<float> all = gradients;
    for (int other = 0; other < run; ++other) {
      batch.insert(batch.begin(), 100 + static_cast<Key>(other));
      all.insert(all.begin(), 16, 0.5f);
    }
    REQUIRE(Train(table.get(), batch, all, "sgd").ok());
    const std::vector<float> row = RowsOf(table.get())[3];
    if (run == 0) first = row;
    CHECK(row == first);
  }
}

TEST_CASE("a GPU's table that is full refuses new keys and has changed nothing") {
  for (const bool by_rows : {true, false}) {
    CAPTURE(by_rows);
    // The index and the arrays take 2 MiB each at least, on every GPU.
    const auto config = by_rows ? ConfigOf(16, 1000) : ConfigOf(16, 0, uint64_t{3} << 20);
    const auto table = Value(GpuTable::Make(StandIn(), config));
    const std::vector<Key> known = KeysFrom(0, 1000);
    REQUIRE(Make(table.get(), known).ok());
    const auto before = RowsOf(table.get());
    const Status full = Make(table.get(), KeysFrom(500, by_rows ? 501 : 100000));
    CHECK(full.code() == Code::kResourceExhausted);
    CHECK(Contains(full, by_rows ? "1000" : "max_bytes"));
    CHECK(RowsOf(table.get()) == before);
    // Keys that have a row, and as many new keys as fit, are accepted, however often they come.
    std::vector<Key> often;
    for (int i = 0; i < 5; ++i) often.insert(often.end(), known.begin(), known.end());
    CHECK(Make(table.get(), often).ok());
    CHECK(Value(table->Size(nullptr)) == 1000);
    REQUIRE(Value(table->Erase(At(known), 10, nullptr)) == 10);
    CHECK(Make(table.get(), KeysFrom(5000, 10)).ok());
  }
}

TEST_CASE("a GPU without memory for more refuses it and the table stays as it was") {
  const auto table = Value(GpuTable::Make(StandIn(), ConfigOf(16)));
  REQUIRE(Make(table.get(), KeysFrom(0, 1000)).ok());
  const auto before = RowsOf(table.get());
  {
    const Environment memory("SOK_STANDIN_BYTES", "1");
    const Status full = Make(table.get(), KeysFrom(0, 200000));
    CHECK(full.code() == Code::kResourceExhausted);
    CHECK(Contains(full, "CUDA_ERROR_OUT_OF_MEMORY"));
    // Slots of a rule need memory too.
    const std::vector<Key> keys = KeysFrom(0, 10);
    CHECK(Train(table.get(), keys, std::vector<float>(160, 1.0f)).code() ==
          Code::kResourceExhausted);
  }
  CHECK(RowsOf(table.get()) == before);
  CHECK(Make(table.get(), KeysFrom(0, 200000)).ok());
}

TEST_CASE("a launch that fails leaves a GPU's table that says so at every call") {
  const std::vector<Key> keys = KeysFrom(0, 100);
  int failures = 0;
  for (int call = 1; call <= 40; ++call) {
    CAPTURE(call);
    const auto table = Value(GpuTable::Make(StandIn(), ConfigOf(16)));
    Status status;
    {
      const Environment fails("SOK_STANDIN_FAILS", "cuLaunchKernel " + std::to_string(call));
      status = Make(table.get(), keys);
      if (status.ok()) status = Train(table.get(), keys, std::vector<float>(1600, 1.0f));
    }
    if (status.ok()) continue;
    ++failures;
    CHECK(status.code() == Code::kInternal);
    CHECK(Contains(status, "cuLaunchKernel failed: CUDA_ERROR_LAUNCH_FAILED"));
    CHECK(Make(table.get(), keys).message() == status.message());
    CHECK(table->Size(nullptr).status().message() == status.message());
  }
  CHECK(failures > 15);
}

TEST_CASE("rows that come twice, or with other slots, are not written to a GPU's table") {
  const auto table = Value(GpuTable::Make(StandIn(), ConfigOf(2)));
  const RowMeta meta{1, 2};
  CHECK(table->Import({{1, 1}, {1, 2, 3, 4}, {meta, meta}}, nullptr).code() ==
        Code::kInvalidArgument);
  CHECK(table->Import({{1}, {1, 2, 3}, {meta}}, nullptr).code() == Code::kInvalidArgument);
  CHECK(Value(table->Size(nullptr)) == 0);
  CHECK(table->Import({{1}, {1, 2}, {meta}}, nullptr).ok());
  CHECK(RowsOf(table.get()) == std::map<Key, std::vector<float>>{{1, {1.0f, 2.0f}}});
}

TEST_CASE("steps that a GPU's table cannot take are refused") {
  const auto table = Value(GpuTable::Make(StandIn(), ConfigOf(2)));
  const auto sgd = Value(MakeRowOptimizer("sgd", {}));
  CommitStep step;
  CHECK(table->Commit({}, "sgd", *sgd, step, nullptr).code() == Code::kInvalidArgument);
  step.number = 1;
  CHECK(table->Commit({}, "sgd", *sgd, step, nullptr).ok());
  step.sequential = true;
  CHECK(table->Commit({}, "sgd", *sgd, step, nullptr).code() == Code::kInvalidArgument);
  CHECK(GpuTable::Make(StandIn(), ConfigOf(0)).status().code() == Code::kInvalidArgument);
}

TEST_CASE("many erased and new keys keep the ways through a GPU's index short") {
  const auto table = Value(GpuTable::Make(StandIn(), ConfigOf(1)));
  for (Key round = 0; round < 40; ++round) {
    const std::vector<Key> keys = KeysFrom(round * 1000, 1000);
    REQUIRE(Make(table.get(), keys).ok());
    REQUIRE(Value(table->Erase(At(keys), keys.size(), nullptr)) == 1000);
  }
  CHECK(Value(table->Size(nullptr)) == 0);
  CHECK(table->bytes() < uint64_t{16} << 20);  // rows that were erased are used again
}

TEST_CASE("a GPU's index whose buckets were all passed still makes and finds rows") {
  // Keys, grouped by their bucket in the first index.
  constexpr uint64_t kBuckets = 1024;
  std::vector<std::vector<Key>> of(kBuckets);
  for (Key key = 0; key < 60000; ++key) {
    of[static_cast<uint64_t>((static_cast<unsigned __int128>(Mix64(key)) * kBuckets) >> 64)]
        .push_back(key);
  }
  const auto some = [&](uint64_t begin, uint64_t end) {
    std::vector<Key> keys;
    for (uint64_t bucket = begin; bucket < end; ++bucket) {
      keys.insert(keys.end(), of[bucket].begin(), of[bucket].begin() + kBucketKeys);
    }
    return keys;
  };
  const auto table = Value(GpuTable::Make(StandIn(), ConfigOf(1)));
  // Each key that no longer fits in its bucket passes all buckets that are full.
  std::vector<Key> there = some(0, 680);
  there.push_back(of[0][kBucketKeys]);
  REQUIRE(Make(table.get(), there).ok());
  std::vector<Key> gone = some(0, 400);
  gone.push_back(of[0][kBucketKeys]);
  REQUIRE(Value(table->Erase(At(gone), gone.size(), nullptr)) == gone.size());
  std::vector<Key> others = some(680, kBuckets);
  others.push_back(of[680][kBucketKeys]);
  REQUIRE(Make(table.get(), others).ok());
  REQUIRE(Make(table.get(), {of[5][7]}).ok());
  CHECK(Value(table->Size(nullptr)) == there.size() - gone.size() + others.size() + 1);
  std::vector<uint32_t> rows(3);
  const std::vector<Key> asked{of[5][7], of[680][kBucketKeys], of[0][kBucketKeys]};
  REQUIRE(table->Find(At(asked), asked.size(), At(rows), nullptr).ok());
  CHECK(rows[0] != kNoRow);
  CHECK(rows[1] != kNoRow);
  CHECK(rows[2] == kNoRow);
  // Keys are far behind their own bucket, and are still listed, each once.
  std::vector<Key> expected = some(400, 680), listed;
  expected.insert(expected.end(), others.begin(), others.end());
  expected.push_back(of[5][7]);
  std::sort(expected.begin(), expected.end());
  for (const int bits : {6, 1, 0}) {
    listed.clear();
    for (uint64_t part = 0; part < uint64_t{1} << bits; ++part) {
      const uint64_t first = bits == 0 ? 0 : part << (64 - bits);
      const uint64_t last = bits == 0 ? UINT64_MAX : ((part + 1) << (64 - bits)) - 1;
      const std::vector<Key> some_keys = Value(table->ListKeys(first, last, nullptr));
      listed.insert(listed.end(), some_keys.begin(), some_keys.end());
    }
    std::sort(listed.begin(), listed.end());
    CHECK(listed == expected);
  }
}

TEST_CASE("a GPU's table at max_bytes takes as many new keys as were evicted") {
  const auto table = Value(GpuTable::Make(StandIn(), ConfigOf(64, 0, uint64_t{16} << 20)));
  Key next = 0;
  while (Make(table.get(), KeysFrom(next, 256)).ok()) next += 256;
  CHECK(table->bytes() < uint64_t{24} << 20);  // four arrays allocate pieces of 2 MiB each
  const uint64_t full = Value(table->Size(nullptr));
  CHECK(full > 40000);
  REQUIRE(Value(table->Evict(10000, /*by_time=*/true, nullptr)) == 10000);
  for (int i = 0; i < 39; ++i, next += 256) CHECK(Make(table.get(), KeysFrom(next, 256)).ok());
  CHECK(Value(table->Size(nullptr)) == full - 10000 + 39 * 256);
}

TEST_CASE("a rule whose program does not load, or whose slots start otherwise") {
  const auto table = Value(GpuTable::Make(StandIn(), ConfigOf(2)));
  const std::vector<Key> keys = KeysFrom(0, 10);
  REQUIRE(Make(table.get(), keys).ok());
  REQUIRE(Train(table.get(), keys, std::vector<float>(20, 1.0f), "adagrad").ok());
  const auto before = RowsOf(table.get());
  {
    const Environment fails("SOK_STANDIN_FAILS", "cuModuleLoadData 1");
    CHECK(!Train(table.get(), keys, std::vector<float>(20, 1.0f), "rmsprop_momentum").ok());
  }
  CHECK(RowsOf(table.get()) == before);
  const auto other = Value(MakeRowOptimizer("adagrad", {{"initial_accumulator_value", 0.5}}));
  REQUIRE(table->SetRule("adagrad", other->slots(2), nullptr).ok());
  REQUIRE(Make(table.get(), {77}).ok());
  auto after = RowsOf(table.get());
  CHECK(after[77][2] == 0.5f);
  after.erase(77);
  CHECK(after == before);
}

TEST_CASE("a library of a GPU that is not there, or is too old, is an error that says so") {
  const Status missing = SharedLibrary::Open({"libsok_none.so.1"}, "Install it.").status();
  CHECK(missing.code() == Code::kUnavailable);
  CHECK(Contains(missing, "libsok_none.so.1"));
  CHECK(Contains(missing, "Install it."));
  const auto library =
      Value(SharedLibrary::Open({SOK_STANDIN_FOLDER "/libnvrtc.so.12"}, "Install it."));
  int (*function)();
  const Status old = library.Find("nvrtcNotThere", &function);
  CHECK(old.code() == Code::kUnavailable);
  CHECK(Contains(old, "nvrtcNotThere"));
  CHECK(Device::Open(0).ok());
  const Status other = Device::Open(7).status();
  CHECK(other.code() == Code::kInvalidArgument);
  CHECK(Contains(other, "CUDA_VISIBLE_DEVICES"));
}

TEST_CASE("compiled programs are kept, and made anew if what is kept is damaged") {
  StandIn();
  const TestFolder folder;
  const std::string home = folder / "cache";
  const Environment cache("XDG_CACHE_HOME", home);
  const Compiler& compiler = *Value(Compiler::Get());
  const std::string image = Value(CachedProgram(compiler, 90, "rows", {5, ""}));
  const std::string kept = home + "/sok-embed/gpu";
  REQUIRE(ProgramCacheFolder() == kept);
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(kept)) files.push_back(entry.path());
  REQUIRE(files.size() == 1);
  const std::string file = files[0].string();
  const std::string content = ReadAll(file);
  std::string changed = content;
  changed.back() ^= 1;
  for (const std::string& damaged : {content, content.substr(0, 100), changed, std::string()}) {
    WriteAll(file, damaged);
    CHECK(Value(CachedProgram(compiler, 90, "rows", {5, ""})) == image);
    CHECK(ReadAll(file) == content);
  }
  // A change of dim, rule or GPU gives another program.
  for (const auto& [architecture, specialty] : std::vector<std::pair<int, Specialty>>{
           {90, {6, ""}}, {90, {5, "sok::Sgd"}}, {100, {5, ""}}}) {
    Value(CachedProgram(compiler, architecture, "rows", specialty));
  }
  CHECK(std::distance(std::filesystem::directory_iterator(kept), {}) == 4);
  // A cache that cannot be written only costs time.
  const Environment unwritable("XDG_CACHE_HOME", "/proc/none");
  CHECK(Value(CachedProgram(compiler, 90, "rows", {5, ""})) == image);
}

// SOK_TEST_NVRTC is NVIDIA's compiler, which needs no GPU.
TEST_CASE("every kernel compiles for the GPUs that there are") {
  const char* const nvrtc = std::getenv("SOK_TEST_NVRTC");
  if (nvrtc == nullptr || *nvrtc == '\0') {
    MESSAGE("left out: SOK_TEST_NVRTC does not name a libnvrtc.so");
    return;
  }
  const auto compiler = Value(Compiler::Open({nvrtc}));
  const std::vector<int> architectures{75, 80, 86, 89, 90, 100, 120};
  std::vector<std::pair<std::string, Specialty>> programs{{"index", {}},
                                                          {"bags", {0, "", /*fuses=*/false}}};
  // Each dim is compiled for one of the two, or for both.
  for (const int dim : {1, 16, 64, 300}) {
    if (LongTests() || dim < 300) programs.push_back({"rows", {dim, ""}});
  }
  // Nothing else finds what of the standard library a rule may not use.
  for (const std::string& rule : RowOptimizerNames()) {
    programs.push_back({"rule", {16, Value(MakeRowOptimizer(rule, {}))->BeginStep(1).type}});
  }
  for (const int dim : {1, 64, 300}) {
    if (LongTests() || dim == 300) programs.push_back({"rule", {dim, "sok::Adam"}});
  }
  // Each program is compiled for one GPU and each GPU gets some programs, or all for all.
  std::vector<std::pair<int, size_t>> pairs;
  for (size_t p = 0; p < programs.size(); ++p) {
    for (size_t a = 0; a < architectures.size(); ++a) {
      if (LongTests() || p % architectures.size() == a) pairs.push_back({architectures[a], p});
    }
  }
  for (const auto& [architecture, program] : pairs) {
    const auto& [name, specialty] = programs[program];
    const auto image = CompileProgram(*compiler, architecture, name, specialty);
    CHECK_MESSAGE(image.ok(), image.status().message());
  }
  // A GPU that is newer than the compiler gets PTX, which the driver compiles.
  CHECK(Value(CompileProgram(*compiler, 999, "rows", {1, ""})).find(".target sm_") !=
        std::string::npos);
  const Status wrong = CompileProgram(*compiler, 90, "rule", {16, "sok::None"}).status();
  CHECK(wrong.code() == Code::kInternal);
  CHECK(Contains(wrong, "None"));
}

}  // namespace sok::gpu
