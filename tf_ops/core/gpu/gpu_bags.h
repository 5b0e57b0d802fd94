// Hashed bags whose weight, ids, vectors and gradients are in the memory of a GPU. It does the same
// as core/bags/forward.h and core/bags/gradient.h do on the host.
//
// Vectors, gradients of factors, and sparse gradients of positions with up to 32 values have the
// same bits as on the host. Other sums are added in another order, which depends on the sizes of
// the batch and of the weight: they differ by rounding, but are the same in every run.
//
// Only a sparse gradient waits for the GPU, since the host must know its size. So an invalid id or
// offset is found later: the bag's vector is NaN, the entry adds nothing to a gradient, and a later
// call on the same GPU returns kInvalidArgument, which names the fault.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "core/bags/bags.h"
#include "core/bags/position_map.h"
#include "core/base/status.h"
#include "core/gpu/device.h"
#include "core/gpu/kernels/bag_arguments.h"
#include "core/gpu/sorting.h"

namespace sok::gpu {

// A batch of bags. Addresses are of the GPU.
struct GpuBatch {
  const PositionMap& positions;
  BagMode mode;
  uint64_t num_embeddings;
  int64_t padding;  // an id, or -1
  DeviceAddress ids;
  bool wide_ids;     // int64, else int32
  uint64_t entries;  // number of ids
  uint64_t bags;
  uint64_t width;         // ids of each bag, without offsets
  DeviceAddress offsets;  // 0: none
  bool wide_offsets;
  bool ends;             // there is one more offset, the end of the last bag
  DeviceAddress scales;  // (entries) factors, with a sum; 0: none
};

// Floats on the GPU.
struct GpuFloats {
  DeviceAddress address;
  Element element;
};

// Returns memory of the GPU that lives until the work on the stream that follows is done.
using TakeMemory = std::function<Result<DeviceAddress>(uint64_t bytes)>;

// The bags of one GPU. Thread-safe.
class GpuBags {
 public:
  // Returns the bags of a GPU, which live as long as the process. Errors: as Device::Open and
  // LoadProgram return.
  static Result<GpuBags*> Of(int ordinal);

  // Returns whether a stream belongs to this GPU.
  bool HasStream(Stream stream) const { return device_->HasStream(stream); }

  // Computes vectors.
  //   weight  (size)
  //   out     (bags, dim); `element` is that of factors too. float64 goes with float64 alone.
  //   winners (bags, dim) of int64, with the mode max
  Status Forward(const GpuBatch& batch, const GpuFloats& weight, const GpuFloats& out,
                 DeviceAddress winners, Stream stream);

  // Computes the gradient of the weight into gradient (size).
  //   upstream (bags, dim); `element` is that of factors too
  //   winners  (bags, dim) of the forward pass, with the mode max
  Status DenseGradient(const GpuBatch& batch, const GpuFloats& upstream, DeviceAddress winners,
                       const GpuFloats& gradient, const TakeMemory& take, Stream stream);

  // Computes the gradient of the weight at the positions that the batch touches, ascending. It
  // waits for the GPU, and calls `make` with their number for the place of the positions (int64)
  // and of the sums. kInvalidArgument for 2^31 elements or more.
  using MakeOutputs = std::function<Status(uint64_t n, DeviceAddress* positions, GpuFloats* sums)>;
  Status SparseGradient(const GpuBatch& batch, const GpuFloats& upstream, DeviceAddress winners,
                        const MakeOutputs& make, const TakeMemory& take, Stream stream);

  // Computes the gradient of each entry's factor.
  //   factors (entries) of upstream's element
  Status ScaleGradient(const GpuBatch& batch, const GpuFloats& weight, const GpuFloats& upstream,
                       DeviceAddress factors, Stream stream);

  // Waits for the work on a stream and returns the fault that it has found, as an error.
  Status Check(Stream stream);

 private:
  struct Sorting;
  explicit GpuBags(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  Status Open();
  // Returns the fault that kernels have found since the last call, as an error.
  Status TakeFault(Stream stream);
  BagInputs InputsOf(const GpuBatch& batch) const;
  Status Launch(void* kernel, uint64_t items, const void* argument, Stream stream) const;
  // Fills the members of BagValueArguments that describe the whole batch.
  Status BeginGradient(const GpuBatch& batch, const GpuFloats& upstream, DeviceAddress winners,
                       const TakeMemory& take, Stream stream, BagValueArguments* values);
  // Sorts the values of the units and positions in the range of `values`, and sums chunks.
  Status SortValues(const Sorting& sorting, BagValueArguments values, SortedValues* sorted,
                    Stream stream) const;

  const std::shared_ptr<Device> device_;
  std::shared_ptr<Module> index_, bags_;
  SortKernels sort_;
  void *forward_, *counts_, *values_, *chunks_, *sums_, *narrow_, *scales_;
  Buffer fault_is_taken_;
  BagFault* fault_ = nullptr;  // the GPU writes it
};

}  // namespace sok::gpu
