// SokEmbed>ServedRows makes a place for a file of rows, SokEmbed>OpenServedRows opens one there,
// and SokEmbed>ServedLookup returns rows of it. SokEmbed>LayServedRows opens newer files on top of
// the file of another place.
//
// A SavedModel knows where its files lie only while it is loaded: C++ loaders feed the paths of
// assets to the initializers of resources, and to nothing else.
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/serving/layered_rows.h"
#include "kernels/core_calls.h"
#include "kernels/register_kernel.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;

namespace {

// The file that lookups read. Another file may replace it; a lookup that is running goes on with
// the file that it began with.
class ServedRowsResource : public tf::ResourceBase {
 public:
  std::string DebugString() const override {
    const auto rows = this->rows();
    return "sok_embed served rows of " + (rows == nullptr ? "no file" : rows->base()->path());
  }
  // Mapped pages belong to the system's cache.
  int64_t MemoryUsed() const override { return 0; }

  std::shared_ptr<const LayeredRows> rows() const {
    std::lock_guard<std::mutex> guard(mu_);
    return rows_;
  }
  void Serve(std::shared_ptr<const LayeredRows> rows) {
    std::lock_guard<std::mutex> guard(mu_);
    rows_.swap(rows);
  }

 private:
  mutable std::mutex mu_;  // guards rows_
  std::shared_ptr<const LayeredRows> rows_;
};

absl::Status GetResource(tf::OpKernelContext* ctx, int input,
                         tf::core::RefCountPtr<ServedRowsResource>* resource) {
  TF_RETURN_IF_ERROR(ExpectScalar(ctx->input(input), "served"));
  const absl::Status status = tf::LookupResource(ctx, tf::HandleFromInput(ctx, input), resource);
  if (!absl::IsNotFound(status)) return status;
  return absl::NotFoundError(
      "expected a file of rows that is open, got one that was closed with the model; keep the "
      "object that tf.saved_model.load has returned as long as its signatures are used");
}

// Finds the rows that are served at the place of an input.
absl::Status GetServed(tf::OpKernelContext* ctx, std::shared_ptr<const LayeredRows>* served,
                       int input = 0) {
  tf::core::RefCountPtr<ServedRowsResource> resource;
  TF_RETURN_IF_ERROR(GetResource(ctx, input, &resource));
  *served = resource->rows();
  if (*served != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "expected a file of rows that is open, got none; run the model's initializers first");
}

absl::Status CheckDim(const ServedRows& rows, int dim) {
  if (rows.dim() == dim) return absl::OkStatus();
  return absl::InvalidArgumentError("expected rows of dim " + std::to_string(dim) + " in '" +
                                    rows.path() + "', got dim " + std::to_string(rows.dim()) +
                                    "; the file belongs to another model: export it again");
}

// Puts rows into the place of the first input, which is made if need be.
absl::Status ServeAt(tf::OpKernelContext* ctx, std::shared_ptr<const LayeredRows> rows) {
  tf::core::RefCountPtr<ServedRowsResource> resource;
  TF_RETURN_IF_ERROR(tf::LookupOrCreateResource<ServedRowsResource>(
      ctx, tf::HandleFromInput(ctx, 0), &resource, [](ServedRowsResource** made) {
        *made = new ServedRowsResource();
        return absl::OkStatus();
      }));
  resource->Serve(std::move(rows));
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("SokEmbed>ServedRows")
    .Output("served: resource")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape);

SOK_REGISTER_KERNEL("ServedRows", tf::ResourceHandleOp<ServedRowsResource>);

REGISTER_OP("SokEmbed>OpenServedRows")
    .Input("served: resource")
    .Input("path: string")
    .Attr("dim: int >= 1")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      tf::shape_inference::ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(0), 0, &unused));
      return c->WithRank(c->input(1), 0, &unused);
    });

class OpenServedRowsOp : public tf::OpKernel {
 public:
  explicit OpenServedRowsOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dim", &dim_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    OP_REQUIRES_OK(ctx, ExpectScalar(ctx->input(1), "path"));
    const std::string path = ctx->input(1).scalar<tf::tstring>()();
    auto opened = ServedRows::Open(path);
    OP_REQUIRES_OK(ctx, ToAbsl(opened.status()));
    OP_REQUIRES_OK(ctx, CheckDim(*opened.value(), dim_));
    OP_REQUIRES_OK(ctx,
                   ServeAt(ctx, std::make_shared<const LayeredRows>(std::move(opened.value()))));
  }

 private:
  int dim_;
};

SOK_REGISTER_KERNEL("OpenServedRows", OpenServedRowsOp);

// Serves the file of another place with files of newer rows on top, the oldest first. An empty path
// stands for no file.
REGISTER_OP("SokEmbed>LayServedRows")
    .Input("served: resource")
    .Input("base: resource")
    .Input("gone: string")
    .Input("rows: string")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      tf::shape_inference::ShapeHandle paths;
      for (int i : {0, 1}) TF_RETURN_IF_ERROR(c->WithRank(c->input(i), 0, &paths));
      TF_RETURN_IF_ERROR(c->WithRank(c->input(2), 1, &paths));
      return c->Merge(paths, c->input(3), &paths);
    });

class LayServedRowsOp : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    const tf::Tensor &gone = ctx->input(2), &rows = ctx->input(3);
    OP_REQUIRES_OK(ctx, ExpectScalar(ctx->input(0), "served"));
    OP_REQUIRES(ctx, gone.shape() == rows.shape() && gone.dims() == 1,
                absl::InvalidArgumentError("expected as many paths of keys that have gone as of "
                                           "rows, got shapes " +
                                           gone.shape().DebugString() + " and " +
                                           rows.shape().DebugString()));
    std::shared_ptr<const LayeredRows> below;
    OP_REQUIRES_OK(ctx, GetServed(ctx, &below, 1));
    auto opened = LayeredRows::Open(below->base(), Paths(gone), Paths(rows));
    OP_REQUIRES_OK(ctx, ToAbsl(opened.status()));
    OP_REQUIRES_OK(ctx, ServeAt(ctx, std::move(opened.value())));
  }

 private:
  static std::vector<std::string> Paths(const tf::Tensor& tensor) {
    const auto paths = tensor.flat<tf::tstring>();
    return {paths.data(), paths.data() + paths.size()};
  }
};

SOK_REGISTER_KERNEL("LayServedRows", LayServedRowsOp);

// It is not stateful: TensorFlow may drop a lookup whose rows are not used, and merge equal
// lookups.
REGISTER_OP("SokEmbed>ServedLookup")
    .Input("served: resource")
    .Input("keys: Tkeys")
    .Output("rows: float")
    .Attr("Tkeys: {int64, uint64}")
    .Attr("dim: int >= 1")
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      int64_t dim;
      TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
      tf::shape_inference::ShapeHandle out;
      TF_RETURN_IF_ERROR(c->Concatenate(c->input(1), c->Vector(dim), &out));
      c->set_output(0, out);
      return absl::OkStatus();
    });

class ServedLookupOp : public tf::OpKernel {
 public:
  explicit ServedLookupOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dim", &dim_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    std::shared_ptr<const LayeredRows> served;
    OP_REQUIRES_OK(ctx, GetServed(ctx, &served));
    OP_REQUIRES_OK(ctx, CheckDim(*served->base(), dim_));
    const tf::Tensor& keys = ctx->input(1);
    tf::TensorShape shape = keys.shape();
    OP_REQUIRES_OK(ctx, shape.AddDimWithStatus(dim_));
    tf::Tensor* rows = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &rows));
    const Status status = served->Lookup(static_cast<const Key*>(keys.data()),
                                         static_cast<size_t>(keys.NumElements()),
                                         static_cast<float*>(rows->data()), IntraOpPool(ctx));
    OP_REQUIRES_OK(ctx, ToAbsl(status));
  }

 private:
  int dim_;
};

SOK_REGISTER_KERNEL("ServedLookup", ServedLookupOp);

// Returns which keys have a row in the file.
REGISTER_OP("SokEmbed>ServedContains")
    .Input("served: resource")
    .Input("keys: Tkeys")
    .Output("exists: bool")
    .Attr("Tkeys: {int64, uint64}")
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      c->set_output(0, c->input(1));
      return absl::OkStatus();
    });

class ServedContainsOp : public tf::OpKernel {
 public:
  explicit ServedContainsOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {}

  void Compute(tf::OpKernelContext* ctx) override {
    std::shared_ptr<const LayeredRows> served;
    OP_REQUIRES_OK(ctx, GetServed(ctx, &served));
    const tf::Tensor& keys = ctx->input(1);
    tf::Tensor* exists = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, keys.shape(), &exists));
    static_assert(sizeof(bool) == sizeof(uint8_t));
    const Status status = served->Contains(static_cast<const Key*>(keys.data()),
                                           static_cast<size_t>(keys.NumElements()),
                                           static_cast<uint8_t*>(exists->data()), IntraOpPool(ctx));
    OP_REQUIRES_OK(ctx, ToAbsl(status));
  }
};

SOK_REGISTER_KERNEL("ServedContains", ServedContainsOp);

}  // namespace sok
