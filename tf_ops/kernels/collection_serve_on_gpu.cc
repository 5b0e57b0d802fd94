// SokEmbed>CollectionServeOnGpu reads the rows that all workers have asked this one for, in the
// memory of the GPU that has the tables, where gradients of the rows are deposited.
// SokEmbed>CollectionAsked reads on the host which keys they ask for.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/collection/row_messages.h"
#include "kernels/collection_resource.h"
#include "kernels/gpu_copies.h"
#include "kernels/host_variant.h"
#include "kernels/message_on_gpu.h"
#include "kernels/register_kernel.h"
#include "kernels/served_on_gpu.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;
using tf::shape_inference::InferenceContext;

[[maybe_unused]] static const bool served_receipts = RegisterHostVariant<ServedReceipt>();

// The anchor is not read. Rows and gradients are messages, as in CollectionServe. The op has no
// kernel for the CPU: workers serve no saved model.
REGISTER_OP("SokEmbed>CollectionServeOnGpu")
    .Input("token: variant")
    .Input("asked: variant")
    .Input("keys: num_tables * int64")
    .Input("splits: num_tables * int64")
    .Input("anchor: float")
    .Output("rows: float")
    .Output("row_splits: int32")
    .Output("receipt: variant")
    .Attr("num_tables: int >= 1")
    .Attr("make_rows: bool")
    .Attr("trainable: list(bool)")  // (tables)
    .Attr("workers: int >= 1")
    .Attr("number: int = 0")  // DepositOrder's call
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      int workers;
      TF_RETURN_IF_ERROR(c->GetAttr("workers", &workers));
      c->set_output(0, c->Vector(c->UnknownDim()));
      c->set_output(1, c->Vector(workers));
      c->set_output(2, c->Scalar());
      return absl::OkStatus();
    });

class CollectionServeOnGpuOp : public tf::OpKernel {
 public:
  explicit CollectionServeOnGpuOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("make_rows", &make_rows_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("trainable", &trainable_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("number", &number_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    const TrainedToken* token = nullptr;
    const AskedKeysVariant* variant = nullptr;
    OP_REQUIRES_OK(ctx, GetVariant(ctx, 0, "token", &token));
    OP_REQUIRES_OK(ctx, GetVariant(ctx, 1, "asked", &variant));
    OP_REQUIRES(
        ctx,
        variant->asked != nullptr &&
            (!token->failure.ok() || token->tables.size() == trainable_.size()) &&
            variant->asked->answers.tables() == trainable_.size(),
        absl::InvalidArgumentError(
            "expected tables and keys of " + std::to_string(trainable_.size()) + " tables, got " +
            std::to_string(token->tables.size()) + " tables and keys of " +
            std::to_string(variant->asked == nullptr ? 0 : variant->asked->answers.tables())));
    auto call = std::make_shared<ServedCall>();
    call->trained = *token;
    call->asked = variant->asked;
    const RowSegments& answers = call->asked->answers;
    const auto splits = answers.Splits();
    OP_REQUIRES_OK(ctx, ToAbsl(splits.status()));
    tf::Tensor rows;
    absl::Status status;
    const Status memory = OrNoMemory([&] {
      status =
          token->failure.ok() ? Serve(ctx, variant->on_all, call.get(), &rows) : token->failure;
      return Status();
    });
    if (status.ok()) status = ToAbsl(memory);
    OP_REQUIRES(ctx, status.ok() || answers.workers() > 1, status);
    if (status.ok()) {
      OP_REQUIRES_OK(ctx, PutAnswer(ctx, rows, splits.value(), Status()));
    } else {
      OP_REQUIRES_OK(ctx, PutFailure(ctx, splits.value(), status));
    }
    ServedReceipt receipt;
    receipt.call = std::move(call);
    OP_REQUIRES_OK(ctx, PutVariant(ctx, 2, std::move(receipt)));
  }

 private:
  // The other workers wait for this one, and receive the error.
  static absl::Status PutFailure(tf::OpKernelContext* ctx, const std::vector<int32_t>& splits,
                                 const absl::Status& failure) {
    const RowMessage message =
        WriteFailure(splits, Status(Code::kInternal, std::string(failure.message())));
    const tf::TensorShape shape({static_cast<int64_t>(message.floats.size())});
    tf::Tensor on_host, text;
    TF_RETURN_IF_ERROR(AllocatePinned(ctx, tf::DT_FLOAT, shape, &on_host));
    TF_RETURN_IF_ERROR(ctx->allocate_temp(tf::DT_FLOAT, shape, &text));
    std::copy(message.floats.begin(), message.floats.end(), on_host.flat<float>().data());
    TF_RETURN_IF_ERROR(CopyToGpu(ctx, on_host, &text));
    return PutAnswer(ctx, text, message.splits, Status());
  }

  absl::Status Serve(tf::OpKernelContext* ctx, const std::vector<bool>& on_all, ServedCall* call,
                     tf::Tensor* rows) const {
    const AskedKeys& asked = *call->asked;
    const size_t tables = trainable_.size();
    call->stream = StreamOf(ctx);
    call->order = NextOrder(call->trained, number_);
    call->keys.resize(tables);
    call->bags.resize(tables);
    for (bool is_on_all : on_all) {
      // If a table is on all workers, each worker gets all of its gradients.
      const auto workers = static_cast<double>(asked.segments.workers());
      call->shares.push_back(is_on_all ? 1.0 / workers : 1.0);
    }
    TF_RETURN_IF_ERROR(
        ctx->allocate_temp(tf::DT_FLOAT, {static_cast<int64_t>(asked.answers.floats())}, rows));
    RowsByTable by_table(asked.answers, *rows);
    TF_RETURN_IF_ERROR(by_table.Allocate(ctx));
    const gpu::Device* device = nullptr;
    for (size_t table = 0; table < tables; ++table) {
      if (asked.segments.rows(table) == 0) continue;
      TF_RETURN_IF_ERROR(LookUp(ctx, table, by_table.address(table), call));
      device = &call->rows_of(table).device();
    }
    return device == nullptr ? absl::OkStatus() : ToAbsl(by_table.ToMessage(*device, call->stream));
  }

  // Reads the rows of a table, or vectors of the bags that it pools, to an address.
  absl::Status LookUp(tf::OpKernelContext* ctx, size_t t, gpu::DeviceAddress to,
                      ServedCall* call) const {
    const OpenTable& open = *call->trained.tables[t];
    Table& table = *open.table();
    const AskedKeys& asked = *call->asked;
    gpu::DeviceRows* const rows = table.device_rows(call->stream);
    if (rows == nullptr || table.dim() != asked.segments.dim(t)) {
      return absl::FailedPreconditionError(
          "table '" + open.name() + "': expected rows of dim " +
          std::to_string(asked.segments.dim(t)) +
          " in the memory of the GPU that looks keys up, got rows of dim " +
          std::to_string(table.dim()) + (rows == nullptr ? " elsewhere" : " there"));
    }
    const bool makes = make_rows_ && trainable_[t];
    LookupKeys batch = BatchOf(&table, call->order, make_rows_);
    const tf::Tensor& keys = ctx->input(2 + static_cast<int>(t));
    batch.hold = Hold(keys);
    batch.keys = static_cast<const Key*>(keys.data());
    batch.n = static_cast<size_t>(keys.NumElements());
    batch.device = DeviceBatch{&rows->device(), call->stream};
    TF_RETURN_IF_ERROR(DescribeBags(ctx, t, call));
    std::vector<gpu::RowBags> bags = call->bags[t];
    gpu::DeviceAddress next = to;
    for (gpu::RowBags& each : bags) {
      each.vectors = next;
      next += each.bags * each.stride * sizeof(float);
    }
    const auto look_up = [&](gpu::GpuTable& found, gpu::Absent absent) {
      return bags.empty() ? found.Lookup(AddressOf(keys), batch.n, absent, table.now(), to,
                                         gpu::Element::kFloat32, call->stream)
                          : found.LookupPooled(AddressOf(keys), batch.n, bags, absent, table.now(),
                                               call->stream);
    };
    TF_RETURN_IF_ERROR(ToAbsl(rows->LookUp(makes && batch.n > 0, look_up), open.name()));
    if (!trainable_[t]) return absl::OkStatus();
    call->keys[t] = std::move(batch);
    return absl::OkStatus();
  }

  absl::Status DescribeBags(tf::OpKernelContext* ctx, size_t t, ServedCall* call) const {
    const tf::Tensor& splits = ctx->input(2 + static_cast<int>(trainable_.size() + t));
    call->held.push_back(splits);
    gpu::DeviceAddress next = AddressOf(splits);
    size_t first = 0;
    const int dim = call->asked->segments.dim(t);
    for (const AskedBags& asked : call->asked->bags[t]) {
      gpu::RowBags bags;
      bags.first = first;
      bags.ids = asked.bags.n;
      bags.bags = asked.bags.bags;
      bags.length = asked.bags.length;
      bags.combiner = static_cast<gpu::Combiner>(asked.combiner);
      bags.stride = static_cast<uint64_t>(dim);
      bags.skips_marked = true;
      if (asked.bags.splits != nullptr) {
        bags.splits = next;
        next += (bags.bags + 1) * sizeof(int64_t);
      }
      if (asked.combiner == Combiner::kMax) {
        call->held.emplace_back();
        TF_RETURN_IF_ERROR(ctx->allocate_temp(tf::DT_FLOAT, {static_cast<int64_t>(bags.ids), dim},
                                              &call->held.back()));
        bags.rows = AddressOf(call->held.back());
      }
      first += bags.ids;
      call->bags[t].push_back(bags);
    }
    return absl::OkStatus();
  }

  bool make_rows_;
  std::vector<bool> trainable_;
  int64_t number_;
};

SOK_REGISTER_GPU_KERNEL("CollectionServeOnGpu", CollectionServeOnGpuOp, "token", "asked", "anchor",
                        "row_splits", "receipt");

namespace {

// Computes the gradients of the keys of bags, and appends them to the tensors that are held.
absl::Status TakeApart(tf::OpKernelContext* ctx, const ServedCall& call, size_t t,
                       gpu::DeviceAddress vectors, std::vector<tf::Tensor>* hold) {
  const gpu::DeviceRows& rows = call.rows_of(t);
  const int dim = call.asked->segments.dim(t);
  hold->emplace_back();
  TF_RETURN_IF_ERROR(
      ctx->allocate_temp(tf::DT_FLOAT, {static_cast<int64_t>(call.keys[t].n), dim}, &hold->back()));
  for (gpu::RowBags bags : call.bags[t]) {
    bags.vectors = vectors;
    vectors += bags.bags * bags.stride * sizeof(float);
    const gpu::DeviceAddress to = AddressOf(hold->back()) + bags.first * dim * sizeof(float);
    const auto pool = [&](gpu::GpuTable& table) {
      return table.PoolGradient(bags, to, call.stream);
    };
    TF_RETURN_IF_ERROR(ToAbsl(rows.Compute(pool), call.trained.tables[t]->name()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status DepositServed(tf::OpKernelContext* ctx, const ServedCall& call, int64_t number,
                           const AnchorGradient& anchor) {
  if (!RunsOnGpu(ctx)) return RefuseOtherDevice(call.trained.name);
  const auto floats = static_cast<int64_t>(call.asked->segments.floats());
  if (ctx->input(1).NumElements() != floats) {
    return absl::InvalidArgumentError("table '" + call.trained.name + "': expected " +
                                      std::to_string(floats) + " floats of gradients, got " +
                                      ctx->input(1).shape().DebugString());
  }
  CollectionKeys deposited;
  deposited.tables = call.keys;
  deposited.gradients.resize(call.keys.size(), nullptr);
  deposited.shares = call.shares;
  deposited.order = call.order;
  deposited.order.gradient = number;
  auto hold = std::make_shared<std::vector<tf::Tensor>>();
  RowsByTable by_table(call.asked->segments, ctx->input(1));
  TF_RETURN_IF_ERROR(by_table.Allocate(ctx));
  by_table.Hold(hold.get());
  bool is_copied = false;
  for (size_t t = 0; t < call.keys.size(); ++t) {
    LookupKeys& keys = deposited.tables[t];
    if (keys.n == 0) continue;
    if (!is_copied) {
      TF_RETURN_IF_ERROR(ToAbsl(by_table.FromMessage(call.rows_of(t).device(), call.stream)));
    }
    is_copied = true;
    // Without a collection, keys without a gradient have zeros instead of kUnusedBits.
    keys.device->skips_marked = call.trained.collection != nullptr;
    gpu::DeviceAddress gradients = by_table.address(t);
    if (!call.bags[t].empty()) {
      TF_RETURN_IF_ERROR(TakeApart(ctx, call, t, gradients, hold.get()));
      gradients = AddressOf(hold->back());
    }
    deposited.gradients[t] = reinterpret_cast<const float*>(gradients);
  }
  return ToAbsl(DepositGradients(call.trained, std::move(deposited), std::move(hold), anchor,
                                 IntraOpPool(ctx)));
}

}  // namespace sok
