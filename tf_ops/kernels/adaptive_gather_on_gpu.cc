// SokEmbed>AdaptiveMaskGatherOnGpu does what SokEmbed>AdaptiveMaskGather does where own rows and
// the variable of static rows lie in the memory of one GPU: keys, vectors and gradients stay there.
// SokEmbed>OwnPlaces checks masks and buckets on the host, and lists the keys that ask for own
// rows.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/bfloat16.h"
#include "core/base/status_macros.h"
#include "core/gpu/device_rows.h"
#include "kernels/gpu_copies.h"
#include "kernels/gpu_rows_elsewhere.h"
#include "kernels/mask_gather_on_host.h"
#include "kernels/pooled_on_gpu.h"
#include "kernels/receipt.h"
#include "kernels/register_kernel.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

REGISTER_OP("SokEmbed>OwnPlaces")
    .Input("token: variant")
    .Input("buckets: int64")
    .Input("mask: int32")
    .Output("places: uint32")  // TensorFlow would keep int32 in the host's memory
    .Attr("static_rows: int >= 1")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle same;
      TF_RETURN_IF_ERROR(c->Merge(c->input(1), c->input(2), &same));
      c->set_output(0, c->Vector(c->UnknownDim()));
      return absl::OkStatus();
    });

class OwnPlacesOp : public tf::OpKernel {
 public:
  explicit OwnPlacesOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("static_rows", &static_rows_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    std::shared_ptr<OpenTable> resource;
    OP_REQUIRES_OK(ctx, GetTableOfToken(ctx, 0, &resource));
    const tf::Tensor &buckets = ctx->input(1), &mask = ctx->input(2);
    OP_REQUIRES(ctx, buckets.shape() == mask.shape() && mask.NumElements() < (int64_t{1} << 31) - 1,
                absl::InvalidArgumentError(
                    "table '" + resource->name() +
                    "': expected buckets and a mask of one shape, for fewer than 2^31 keys, got " +
                    buckets.shape().DebugString() + " and " + mask.shape().DebugString()));
    const auto places = OwnPlaces(mask.flat<int32_t>().data(), buckets.flat<int64_t>().data(),
                                  static_cast<size_t>(mask.NumElements()), static_rows_);
    OP_REQUIRES_OK(ctx, ToAbsl(places.status(), resource->name()));
    tf::Tensor* out = nullptr;
    const auto n = static_cast<int64_t>(places.value().size());
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {n}, &out));
    std::copy(places.value().begin(), places.value().end(), out->flat<uint32_t>().data());
  }

 private:
  int64_t static_rows_;
};
SOK_REGISTER_KERNEL("OwnPlaces", OwnPlacesOp);

// The anchor is not read, as in SokEmbed>AdaptiveMaskGather. `places` come from OwnPlaces.
REGISTER_OP("SokEmbed>AdaptiveMaskGatherOnGpu")
    .Input("token: variant")
    .Input("static_rows: resource")
    .Input("keys: int64")
    .Input("buckets: int64")
    .Input("places: uint32")
    .Input("anchor: float")
    .Output("embeddings: dtype")
    .Output("receipt: variant")
    .Output("own: bool")
    .Attr("dtype: {float, bfloat16} = DT_FLOAT")
    .Attr("dim: int >= 1")
    .Attr("make_rows: bool")
    .Attr("copy_slots: bool = true")
    .Attr("own_gradient: bool = true")
    .Attr("number: int = 0")            // DepositOrder's call
    .Attr("num_static_rows: int >= 1")  // for the gradient
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      int64_t dim;
      TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
      ShapeHandle keys, out;
      TF_RETURN_IF_ERROR(c->Merge(c->input(2), c->input(3), &keys));
      TF_RETURN_IF_ERROR(c->Concatenate(keys, c->Vector(dim), &out));
      c->set_output(0, out);
      c->set_output(1, c->Scalar());
      c->set_output(2, keys);
      return absl::OkStatus();
    });

namespace {

// Finds the slots of static rows. It takes one lock at a time, since optimizers take them in
// another order. The slots live as long as the tensors. Returns an empty vector if one of them
// cannot be copied.
std::vector<tf::Tensor> SlotsOf(const SlotSources& sources) {
  std::vector<tf::Tensor> slots;
  for (const auto& source : sources) {
    tf::Var& variable = *source;
    tf::tf_shared_lock lock(*variable.mu());
    const tf::Tensor& slot = *variable.tensor();
    if (!variable.is_initialized || slot.dtype() != tf::DT_FLOAT || slot.dims() != 2 ||
        slots.size() == gpu::kMostSlots) {
      return {};
    }
    slots.push_back(slot);
  }
  return slots;
}

absl::Status AddSlots(const std::vector<tf::Tensor>& slots, gpu::StaticRows* statics) {
  for (const tf::Tensor& slot : slots) {
    if (static_cast<uint64_t>(slot.dim_size(0)) < statics->count) {
      return absl::InvalidArgumentError("expected a slot for each static row, got shape " +
                                        slot.shape().DebugString());
    }
    statics->slots[statics->slot_count] = static_cast<const float*>(slot.data());
    statics->slot_widths[statics->slot_count++] = static_cast<uint32_t>(slot.dim_size(1));
  }
  return absl::OkStatus();
}

// Leaves out of a deposit on the host the keys that had no row when they were looked up.
void KeepOwn(const std::vector<uint8_t>& own, LookupKeys* keys) {
  struct Kept {
    std::vector<Key> keys;
    std::vector<uint32_t> positions;
  };
  auto kept = std::make_shared<Kept>();
  for (size_t i = 0; i < keys->n; ++i) {
    if (own[keys->positions[i]] == 0) continue;
    kept->keys.push_back(keys->keys[i]);
    kept->positions.push_back(keys->positions[i]);
  }
  keys->keys = kept->keys.data();
  keys->positions = kept->positions.data();
  keys->n = kept->keys.size();
  keys->hold = std::move(kept);
}

// Makes the receipt of a lookup on a GPU, which takes the gradients of the whole batch there. `own`
// is the output of a lookup that makes no rows: the host reads from it which keys had no row.
Receipt MaskedReceipt(const OpenTable& resource, const LookupKeys& keys, const tf::Tensor& own) {
  const size_t n = keys.device->gradients;
  Receipt receipt = ReceiptOf(resource.table(), resource.name(), n, keys);
  if (keys.rows_made) return receipt;
  receipt.deposit = [table = resource.table(), keys, own, told = resource.reported_uncounted(),
                     name = resource.name()](int64_t number, std::shared_ptr<const void> hold,
                                             const float* gradients, const BFloat16* gradients_bf16,
                                             const AnchorGradient& anchor,
                                             const ParallelFor& parallel_for) -> Status {
    LookupKeys deposited = keys;
    deposited.order.gradient = number;
    const DeviceBatch& device = *keys.device;
    std::vector<uint8_t> flags(device.gradients);
    SOK_RETURN_IF_ERROR(device.memory->Read(flags.data(), own.data(), flags.size(), device.stream));
    SOK_RETURN_IF_ERROR(ToHost(table->dim(), &deposited, &hold, &gradients, &gradients_bf16));
    KeepOwn(flags, &deposited);
    if (deposited.n < keys.n) LogUncounted(told.get(), name);
    return table->Deposit(std::move(deposited), std::move(hold), gradients, gradients_bf16, anchor,
                          parallel_for);
  };
  return receipt;
}

}  // namespace

// On a GPU keys, static rows and vectors are in its memory.
class AdaptiveMaskGatherOnGpuOp : public tf::OpKernel {
 public:
  explicit AdaptiveMaskGatherOnGpuOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dim", &options_.dim));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("make_rows", &options_.make_rows));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("copy_slots", &options_.copy_slots));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("own_gradient", &options_.own_gradient));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("number", &number_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    std::shared_ptr<OpenTable> resource;
    OP_REQUIRES_OK(ctx, GetTableOfToken(ctx, 0, &resource));
    OP_REQUIRES_OK(ctx, ExpectScalar(ctx->input(1), "static_rows"));
    const tf::Tensor &keys = ctx->input(2), &buckets = ctx->input(3), &places = ctx->input(4);
    OP_REQUIRES(
        ctx,
        resource->table()->dim() == options_.dim && keys.shape() == buckets.shape() &&
            places.dims() == 1 && places.NumElements() <= keys.NumElements() &&
            keys.NumElements() < (int64_t{1} << 31) - 1,
        absl::InvalidArgumentError(
            "table '" + resource->name() + "' has dim " + std::to_string(resource->table()->dim()) +
            "; expected a lookup of that dim, of fewer than 2^31 keys, a bucket for each, "
            "and places of some, got dim " +
            std::to_string(options_.dim) + " and shapes " + keys.shape().DebugString() + ", " +
            buckets.shape().DebugString() + " and " + places.shape().DebugString()));
    tf::core::RefCountPtr<tf::Var> variable;
    OP_REQUIRES_OK(ctx, tf::LookupResource(ctx, tf::HandleFromInput(ctx, 1), &variable));
    tf::TensorShape shape = keys.shape();
    shape.AddDim(options_.dim);
    Outputs outputs;
    tf::Tensor* receipt = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &outputs.embeddings));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(1, {}, &receipt));
    OP_REQUIRES_OK(ctx, ctx->allocate_output(2, keys.shape(), &outputs.own));
    Receipt made;
    const absl::Status status = Run(ctx, resource.get(), *variable, outputs, &made);
    OP_REQUIRES(ctx, status.ok(),
                absl::Status(status.code(),
                             absl::StrCat("table '", resource->name(), "': ", status.message())));
    receipt->scalar<tf::Variant>()() = std::move(made);
  }

 private:
  struct Outputs {
    tf::Tensor *embeddings, *own;
  };

  absl::Status Run(tf::OpKernelContext* ctx, OpenTable* resource, tf::Var& variable,
                   const Outputs& outputs, Receipt* receipt) const {
    const tf::Tensor &keys = ctx->input(2), &buckets = ctx->input(3), &places = ctx->input(4);
    if (!RunsOnGpu(ctx)) {
      return OnHost(ctx, *resource, variable, nullptr, keys, buckets, places, outputs, receipt);
    }
    void* const stream = StreamOf(ctx);
    if (gpu::DeviceRows* const rows = resource->table()->device_rows(stream); rows != nullptr) {
      return OnGpu(ctx, *resource, variable, rows, stream, outputs, receipt);
    }
    LogCopies(*ctx->device(), resource);
    tf::Tensor keys_on_host, buckets_on_host, places_on_host, statics_on_host;
    TF_RETURN_IF_ERROR(CopyFromGpu(ctx, keys, &keys_on_host));
    TF_RETURN_IF_ERROR(CopyFromGpu(ctx, buckets, &buckets_on_host));
    TF_RETURN_IF_ERROR(CopyFromGpu(ctx, places, &places_on_host));
    {
      tf::tf_shared_lock lock(*variable.mu());
      TF_RETURN_IF_ERROR(CheckStaticRows(variable, options_.dim));
      TF_RETURN_IF_ERROR(CopyFromGpu(ctx, *variable.tensor(), &statics_on_host));
    }
    tf::Tensor embeddings, own;
    TF_RETURN_IF_ERROR(
        AllocatePinned(ctx, outputs.embeddings->dtype(), outputs.embeddings->shape(), &embeddings));
    TF_RETURN_IF_ERROR(AllocatePinned(ctx, tf::DT_BOOL, outputs.own->shape(), &own));
    TF_RETURN_IF_ERROR(OnHost(ctx, *resource, variable, &statics_on_host, keys_on_host,
                              buckets_on_host, places_on_host, {&embeddings, &own}, receipt));
    TF_RETURN_IF_ERROR(CopyToGpu(ctx, own, outputs.own));
    return CopyToGpu(ctx, embeddings, outputs.embeddings);
  }

  absl::Status OnGpu(tf::OpKernelContext* ctx, const OpenTable& resource, tf::Var& variable,
                     gpu::DeviceRows* own_rows, void* stream, const Outputs& outputs,
                     Receipt* receipt) const {
    Table& table = *resource.table();
    LookupKeys batch;
    batch.n = static_cast<size_t>(ctx->input(4).NumElements());
    batch.removals = table.removals();
    batch.order = {number_, table.NextLookup()};
    batch.rows_made = options_.make_rows;
    batch.leave_absent = true;
    batch.device =
        DeviceBatch{&own_rows->device(), stream, static_cast<size_t>(ctx->input(2).NumElements())};
    auto held = std::make_shared<std::vector<tf::Tensor>>(2);
    TF_RETURN_IF_ERROR(
        ctx->allocate_temp(tf::DT_INT64, {static_cast<int64_t>(batch.n)}, &held->at(0)));
    held->at(1) = ctx->input(4);
    batch.keys = static_cast<const Key*>(held->at(0).data());
    batch.positions = static_cast<const uint32_t*>(held->at(1).data());
    gpu::MaskedKeys keys;
    keys.keys = AddressOf(ctx->input(2));
    keys.buckets = AddressOf(ctx->input(3));
    keys.n = batch.device->gradients;
    keys.positions = AddressOf(held->at(1));
    keys.asking = batch.n;
    const bool copies_slots = options_.make_rows && options_.copy_slots;
    const auto sources = copies_slots ? resource.slot_sources() : nullptr;
    const auto slots = sources == nullptr ? std::vector<tf::Tensor>() : SlotsOf(*sources);
    {
      // Writers of static rows queue their work on the stream after this.
      tf::tf_shared_lock lock(*variable.mu());
      TF_RETURN_IF_ERROR(CheckStaticRows(variable, options_.dim));
      const tf::Tensor& rows = *variable.tensor();
      keys.statics.rows = static_cast<const float*>(rows.data());
      keys.statics.count = static_cast<uint64_t>(rows.dim_size(0));
      TF_RETURN_IF_ERROR(AddSlots(slots, &keys.statics));
      const auto element = outputs.embeddings->dtype() == tf::DT_FLOAT ? gpu::Element::kFloat32
                                                                       : gpu::Element::kBFloat16;
      const auto look_up = [&](gpu::GpuTable& found, gpu::Absent absent) {
        return found.LookupMasked(keys, absent == gpu::Absent::kMake, table.now(),
                                  AddressOf(held->at(0)), AddressOf(*outputs.embeddings), element,
                                  AddressOf(*outputs.own), stream);
      };
      TF_RETURN_IF_ERROR(ToAbsl(own_rows->LookUp(options_.make_rows && keys.asking > 0, look_up)));
    }
    if (!options_.own_gradient) {
      *receipt = {resource.name(), keys.n, options_.dim};
      receipt->on_gpu = true;
      return absl::OkStatus();
    }
    batch.hold = std::move(held);
    *receipt = MaskedReceipt(resource, batch, options_.make_rows ? tf::Tensor() : *outputs.own);
    return absl::OkStatus();
  }

  absl::Status OnHost(tf::OpKernelContext* ctx, const OpenTable& resource, tf::Var& variable,
                      const tf::Tensor* statics, const tf::Tensor& keys, const tf::Tensor& buckets,
                      const tf::Tensor& places, const Outputs& outputs, Receipt* receipt) const {
    std::vector<int32_t> mask(static_cast<size_t>(keys.NumElements()), 0);
    const auto asking = places.flat<uint32_t>();
    for (int64_t i = 0; i < asking.size(); ++i) mask.at(asking(i)) = 1;
    MaskedLookup lookup;
    lookup.mask = mask.data();
    lookup.given = buckets.flat<int64_t>().data();
    lookup.own = static_cast<bool*>(outputs.own->data());
    MaskGatherOptions options = options_;
    options.order = {number_, resource.table()->NextLookup()};
    return MaskGatherOnHost(ctx, resource, variable, statics, lookup, keys, *outputs.own, options,
                            outputs.embeddings, receipt);
  }

  MaskGatherOptions options_{};
  int64_t number_;
};

SOK_REGISTER_CPU_KERNEL("AdaptiveMaskGatherOnGpu", AdaptiveMaskGatherOnGpuOp);
SOK_REGISTER_GPU_KERNEL("AdaptiveMaskGatherOnGpu", AdaptiveMaskGatherOnGpuOp, "token",
                        "static_rows", "receipt");

}  // namespace sok
