// SokEmbed>AllToAll sends rows of a tensor to every worker, and receives rows from each, over a
// mesh of the core.
#include <cstdint>
#include <exception>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/checksum.h"
#include "core/base/page_memory.h"
#include "core/transport/mesh.h"
#include "kernels/register_kernel.h"
#include "kernels/table_resource.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/profiler/lib/traceme.h"

namespace sok {

namespace tf = tensorflow;

// A tf.function runs stateful ops one after the other, in the order of the program. But an op that
// takes a resource only waits for earlier ops with the same resource. So an exchange that takes a
// resource which no other op has waits for its inputs alone. This op makes such a resource.
REGISTER_OP("SokEmbed>OwnOrder")
    .Output("order: resource")
    .SetShapeFn(tf::shape_inference::ScalarShape);

absl::Status OwnOrder(tf::OpKernelContext* ctx) {
  tf::Tensor* order = nullptr;
  TF_RETURN_IF_ERROR(ctx->allocate_output(0, {}, &order));
  order->scalar<tf::ResourceHandle>()().set_device(ctx->device()->name());
  return absl::OkStatus();
}

// The result of the op depends on other workers, so the op must run once for every call: it is
// stateful, so that TensorFlow neither folds it nor merges it with another. It does not use the
// resources in `orders`, and `gradient_splits` are for its gradient. With `same_rows` every worker
// gets all rows, from one buffer, and each of the splits is the number of rows.
REGISTER_OP("SokEmbed>AllToAll")
    .Input("rows: T")
    .Input("splits: int32")
    .Input("turn: int64")
    .Input("orders: num_orders * resource")
    .Input("gradient_splits: num_gradient_splits * int32")
    .Output("received: T")
    .Output("received_splits: int32")
    .Output("taken_turn: int64")
    .Attr(
        "T: {bfloat16, half, float, double, int8, uint8, int16, uint16, int32, uint32, int64, "
        "uint64, bool}")
    .Attr("num_orders: int >= 0")
    .Attr("num_gradient_splits: int >= 0 = 0")
    .Attr("mesh: int")
    .Attr("exchange: string")
    .Attr("same_rows: bool = false")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      tf::shape_inference::ShapeHandle rows, received, unused;
      TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), 1, &rows));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &unused));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 0, &unused));
      TF_RETURN_IF_ERROR(c->ReplaceDim(rows, 0, c->UnknownDim(), &received));
      c->set_output(0, received);
      c->set_output(1, c->input(1));
      c->set_output(2, c->Scalar());
      return absl::OkStatus();
    });

// Shows an exchange from beginning to end to TensorFlow's profiler, which would only show when the
// asynchronous op began.
class TracedExchange {
 public:
  explicit TracedExchange(const std::string& name) {
    if (!tsl::profiler::TraceMe::Active()) return;
    name_ = "SokEmbed>AllToAll#exchange=" + name + "#";
    began_ = tsl::profiler::GetCurrentTimeNanos();
  }

  void End() {
    if (name_.empty() || !tsl::profiler::TraceMe::Active()) return;
    const int64_t now = tsl::profiler::GetCurrentTimeNanos();
    tsl::profiler::TraceMeRecorder::Record({std::move(name_), began_, now});
  }

 private:
  std::string name_;
  int64_t began_ = 0;
};

class AllToAllOp : public tf::AsyncOpKernel {
 public:
  explicit AllToAllOp(tf::OpKernelConstruction* ctx) : AsyncOpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("mesh", &mesh_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("exchange", &exchange_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("same_rows", &same_rows_));
    // In a graph, the names of nodes distinguish exchanges with the same name. In eager mode all
    // nodes of an op have the same name.
    exchange_ += "|" + name();
  }

  void ComputeAsync(tf::OpKernelContext* ctx, DoneCallback done) override {
    try {
      const std::shared_ptr<Mesh> mesh = FindMesh(mesh_);
      OP_REQUIRES_ASYNC(ctx, mesh != nullptr,
                        absl::FailedPreconditionError(
                            "expected the exchange '" + exchange_ +
                            "' in the process that it was made for, with sok_embed.init()"),
                        done);
      ExchangeRequest request;
      OP_REQUIRES_OK_ASYNC(ctx, Fill(ctx, mesh->size(), &request), done);
      request.allocate = [ctx, &row = ctx->input(0)](const std::vector<size_t>& counts) {
        return Allocate(ctx, row.shape(), counts);
      };
      request.done = [ctx, done, traced = TracedExchange(exchange_)](const Status& status,
                                                                     uint64_t turn) mutable {
        traced.End();
        tf::Tensor* taken = nullptr;
        absl::Status error = ErrorForOp(status);
        if (error.ok()) error = ctx->allocate_output(2, {}, &taken);
        if (error.ok()) {
          taken->scalar<int64_t>()() = static_cast<int64_t>(turn);
        } else {
          ctx->SetStatus(error);
        }
        done();
      };
      mesh->Exchange(std::move(request));
    } catch (const std::exception&) {
      ctx->CtxFailure(CaughtStatus());
      done();
    }
  }

 private:
  // TensorFlow turns an UnavailableError into an InternalError, unless it knows the op as a
  // communication op.
  static absl::Status ErrorForOp(const Status& status) {
    if (status.code() != Code::kUnavailable) return ToAbsl(status);
    return absl::AbortedError(status.text());
  }

  absl::Status Fill(tf::OpKernelContext* ctx, int workers, ExchangeRequest* request) const {
    const tf::Tensor &rows = ctx->input(0), &splits = ctx->input(1), &turn = ctx->input(2);
    if (rows.dims() < 1) {
      return absl::InvalidArgumentError("expected rows of one dimension or more, got a scalar");
    }
    if (splits.dims() != 1 || splits.NumElements() != workers) {
      return absl::InvalidArgumentError("expected splits of shape [" + std::to_string(workers) +
                                        "], one for each worker, got " +
                                        splits.shape().DebugString());
    }
    TF_RETURN_IF_ERROR(ExpectScalar(turn, "turn"));
    request->name = exchange_;
    if (turn.scalar<int64_t>()() >= 0) {
      request->turn = static_cast<uint64_t>(turn.scalar<int64_t>()());
    }
    tf::TensorShape row = rows.shape();
    row.RemoveDim(0);
    request->row_bytes = static_cast<size_t>(row.num_elements()) * tf::DataTypeSize(rows.dtype());
    const std::string type = tf::DataTypeString(rows.dtype()) + row.DebugString();
    request->row_type = Checksum(type.data(), type.size(), 0);
    const auto* at = static_cast<const char*>(rows.data());
    int64_t total = 0;
    for (int64_t worker = 0; worker < workers; ++worker) {
      if (same_rows_) total = 0;
      const int32_t count = splits.flat<int32_t>()(worker);
      if (count < 0 || total + count > rows.dim_size(0)) break;
      if (same_rows_ && count != rows.dim_size(0)) break;
      request->parts.push_back({at, static_cast<size_t>(count)});
      if (!same_rows_) at += static_cast<size_t>(count) * request->row_bytes;
      total += count;
    }
    if (request->parts.size() == static_cast<size_t>(workers) && total == rows.dim_size(0)) {
      if (same_rows_) request->parts.resize(1);
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        std::string("expected splits ") +
        (same_rows_ ? "that are each the " : "of 0 or more that sum to the ") +
        std::to_string(rows.dim_size(0)) + " rows, got " + splits.SummarizeValue(workers));
  }

  static Result<char*> Allocate(tf::OpKernelContext* ctx, tf::TensorShape shape,
                                const std::vector<size_t>& counts) {
    tf::Tensor *received = nullptr, *splits = nullptr;
    const tf::TensorShape workers({static_cast<int64_t>(counts.size())});
    absl::Status status = ctx->allocate_output(1, workers, &splits);
    int64_t total = 0;
    for (size_t worker = 0; status.ok() && worker < counts.size(); ++worker) {
      if (counts[worker] > size_t{std::numeric_limits<int32_t>::max()}) {
        return InvalidArgument("expected fewer than 2^31 rows of worker " + std::to_string(worker) +
                               ", got " + std::to_string(counts[worker]));
      }
      splits->flat<int32_t>()(static_cast<int64_t>(worker)) = static_cast<int32_t>(counts[worker]);
      total += static_cast<int64_t>(counts[worker]);
    }
    shape.set_dim(0, total);
    if (status.ok()) status = ctx->allocate_output(0, shape, &received);
    if (status.ok()) {
      PreferHugePages(received->data(), received->TotalBytes());
      return static_cast<char*>(received->data());
    }
    return Status(Code::kResourceExhausted, std::string(status.message()));
  }

  int64_t mesh_;
  std::string exchange_;
  bool same_rows_;
};

SOK_REGISTER_KERNEL("OwnOrder", FunctionKernel<OwnOrder>);
SOK_REGISTER_ASYNC_KERNEL("AllToAll", AllToAllOp);

}  // namespace sok
