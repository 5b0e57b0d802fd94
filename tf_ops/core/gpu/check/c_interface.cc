// Tables and hashed bags on a GPU, and tables on the host, for benchmarks/gpu.py, which calls them
// by ctypes. Addresses are of the GPU. Each function returns 0 for success; SokGpuError returns the
// last error of the thread.
#include <cstring>
#include <string>
#include <vector>

#include "core/base/status_macros.h"
#include "core/base/thread_pool.h"
#include "core/gpu/gpu_bags.h"
#include "core/gpu/gpu_table.h"
#include "core/rows/row_store.h"

namespace {

using namespace sok;

thread_local std::string last_error;

int Report(const Status& status) {
  last_error = status.message();
  return status.ok() ? 0 : 1;
}

struct HostTable {
  int dim;
  Initializer initializer;
  std::unique_ptr<RowStore> store;
};

Result<std::unique_ptr<RowOptimizer>> Optimizer(const char* rule, double learning_rate) {
  return MakeRowOptimizer(rule, {{"learning_rate", learning_rate}});
}

// Memory that lives until the process ends, so that only the first call allocates it.
Result<gpu::DeviceAddress> Kept(const std::shared_ptr<gpu::Device>& device, size_t place,
                                uint64_t bytes) {
  static std::vector<gpu::Buffer>& kept = *new std::vector<gpu::Buffer>();
  if (place >= kept.size()) kept.resize(place + 1);
  SOK_RETURN_IF_ERROR(kept[place].Reserve(device, bytes));
  return kept[place].address();
}

}  // namespace

extern "C" {

const char* SokGpuError() { return last_error.c_str(); }

gpu::GpuTable* SokGpuMake(int ordinal, int dim, uint64_t max_rows) {
  const auto device = gpu::Device::Open(ordinal);
  if (Report(device.status()) != 0) return nullptr;
  const auto initializer = Initializer::Make("uniform", -0.05, 0.05, 1);
  auto table = gpu::GpuTable::Make(device.value(), {dim, initializer.value(), max_rows});
  if (Report(table.status()) != 0) return nullptr;
  return table.value().release();
}

void SokGpuDelete(gpu::GpuTable* table) { delete table; }

int SokGpuLookup(gpu::GpuTable* table, uint64_t keys, uint64_t n, int absent, uint64_t out,
                 int element, void* stream) {
  return Report(table->Lookup(keys, n, static_cast<gpu::Absent>(absent), 1, out,
                              static_cast<gpu::Element>(element), stream));
}

int SokGpuLookupPooled(gpu::GpuTable* table, uint64_t keys, uint64_t ids, uint64_t splits,
                       uint64_t bags, int combiner, uint64_t out, void* stream) {
  gpu::RowBags each;
  each.ids = ids;
  each.bags = bags;
  each.splits = splits;
  each.combiner = static_cast<gpu::Combiner>(combiner);
  each.vectors = out;
  each.stride = static_cast<uint64_t>(table->dim());
  return Report(table->LookupPooled(keys, ids, {each}, gpu::Absent::kMake, 1, stream));
}

// Computes the gradients (ids, dim) of the rows of summed bags from the gradients of their vectors.
int SokGpuPoolGradient(gpu::GpuTable* table, uint64_t ids, uint64_t splits, uint64_t bags,
                       uint64_t upstream, uint64_t gradients, void* stream) {
  gpu::RowBags each;
  each.ids = ids;
  each.bags = bags;
  each.splits = splits;
  each.vectors = upstream;
  each.stride = static_cast<uint64_t>(table->dim());
  return Report(table->PoolGradient(each, gradients, stream));
}

int SokGpuFindOrMake(gpu::GpuTable* table, uint64_t keys, uint64_t n, uint64_t rows, void* stream) {
  return Report(table->FindOrMake(keys, n, 1, rows, stream));
}

int SokGpuCommit(gpu::GpuTable* table, uint64_t keys, uint64_t gradients, uint64_t n,
                 const char* rule, double learning_rate, int64_t number, void* stream) {
  const auto optimizer = Optimizer(rule, learning_rate);
  if (Report(optimizer.status()) != 0) return 1;
  CommitStep step;
  step.number = number;
  step.scale = 1.0f;
  step.now = 1;
  return Report(table->Commit({{keys, gradients, gpu::Element::kFloat32, n, 1.0f}}, rule,
                              *optimizer.value(), step, stream));
}

int SokGpuSetRule(gpu::GpuTable* table, const char* rule, void* stream) {
  const auto optimizer = MakeRowOptimizer(rule, {});
  if (Report(optimizer.status()) != 0) return 1;
  return Report(table->SetRule(rule, optimizer.value()->slots(table->dim()), stream));
}

int SokGpuEvict(gpu::GpuTable* table, uint64_t n, int by_time, void* stream) {
  return Report(table->Evict(n, by_time != 0, stream).status());
}

int SokGpuSize(gpu::GpuTable* table, uint64_t* size, void* stream) {
  const auto result = table->Size(stream);
  if (result.ok()) *size = result.value();
  return Report(result.status());
}

uint64_t SokGpuBytes(gpu::GpuTable* table) { return table->bytes(); }

// Sums bags of `width` int64 ids into out (bags, dim). With a gradient, `out` is the upstream
// gradient and the gradient of the weight (size) is computed. All floats are float32.
int SokGpuBags(int ordinal, int dim, int block_size, int64_t size, int64_t num_embeddings,
               uint64_t ids, uint64_t bags, uint64_t width, uint64_t weight, uint64_t out,
               uint64_t gradient, void* stream) {
  PositionMapOptions options;
  options.size = size;
  options.num_embeddings = num_embeddings;
  options.dim = dim;
  options.block_size = block_size;
  const auto positions = PositionMap::Make(options);
  if (Report(positions.status()) != 0) return 1;
  const auto of_gpu = gpu::GpuBags::Of(ordinal);
  if (Report(of_gpu.status()) != 0) return 1;
  const auto device = gpu::Device::Open(ordinal);
  if (Report(device.status()) != 0) return 1;
  const gpu::GpuBatch batch{positions.value(),
                            BagMode::kSum,
                            static_cast<uint64_t>(num_embeddings),
                            -1,
                            ids,
                            true,
                            bags * width,
                            bags,
                            width,
                            0,
                            true,
                            false,
                            0};
  const gpu::GpuFloats floats{out, gpu::Element::kFloat32};
  if (gradient == 0) {
    return Report(
        of_gpu.value()->Forward(batch, {weight, gpu::Element::kFloat32}, floats, 0, stream));
  }
  size_t place = 0;
  const auto take = [&](uint64_t bytes) { return Kept(device.value(), place++, bytes); };
  return Report(of_gpu.value()->DenseGradient(batch, floats, 0, {gradient, gpu::Element::kFloat32},
                                              take, stream));
}

HostTable* SokHostMake(int dim) {
  const auto initializer = Initializer::Make("uniform", -0.05, 0.05, 1);
  return new HostTable{dim, initializer.value(),
                       MakeHashStore(std::make_shared<RowLayout>(dim, std::vector<Slot>()))};
}

void SokHostDelete(HostTable* table) { delete table; }

// Makes missing rows, and copies embeddings to out unless it is null.
int SokHostLookup(HostTable* table, const uint64_t* keys, uint64_t n, float* out) {
  const auto pool = ProcessPool();
  const auto missing = table->store->Missing(keys, n, pool);
  if (Report(missing.status()) != 0) return 1;
  if (!missing.value().empty()) {
    const auto write = [&](size_t i, RowRef row, bool is_new) {
      if (is_new) table->initializer.Fill(keys[i], row.embedding, table->dim);
    };
    if (Report(table->store->Upsert(keys, n, 0, 1, write, pool)) != 0) return 1;
  }
  if (out == nullptr) return 0;
  return Report(table->store->Gather(keys, n, out, {}, nullptr, nullptr, pool));
}

int SokHostCommit(HostTable* table, const uint64_t* keys, const float* gradients, uint64_t n,
                  const char* rule, double learning_rate, int64_t number) {
  const auto pool = ProcessPool();
  const auto optimizer = Optimizer(rule, learning_rate);
  if (Report(optimizer.status()) != 0) return 1;
  const auto layout = std::make_shared<RowLayout>(table->dim, optimizer.value()->slots(table->dim));
  if (!table->store->layout()->SameShape(*layout)) {
    if (Report(table->store->Relayout(layout, {}, pool).status()) != 0) return 1;
  }
  CommitStep step;
  step.number = number;
  step.scale = 1.0f;
  step.now = 1;
  return Report(table->store->Apply({{keys, gradients, nullptr, n}}, *optimizer.value(), step, pool)
                    .status());
}

}  // extern "C"
