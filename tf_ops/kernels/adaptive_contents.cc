// Ops on the contents of an adaptive table: export, restore, demote, stats.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/adaptive_resource.h"
#include "kernels/outputs.h"
#include "kernels/register_kernel.h"
#include "kernels/snapshot.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;
using tf::shape_inference::InferenceContext;

namespace {

// A kernel on the adaptive table of input 0.
class AdaptiveOp : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    std::shared_ptr<OpenAdaptiveTable> resource;
    OP_REQUIRES_OK(ctx, GetAdaptive(ctx, &resource));
    OP_REQUIRES_OK(ctx, Run(ctx, *resource->table(), resource->name()));
  }

 protected:
  virtual absl::Status Run(tf::OpKernelContext* ctx, AdaptiveTable& table,
                           const std::string& name) = 0;
};

}  // namespace

REGISTER_OP("SokEmbed>AdaptiveExport")
    .Input("table: resource")
    .SOK_CONTENTS(Output, "own_")
    .SOK_CONTENTS(Output, "static_")
    .Output("cells: uint8")
    .Output("counters: int64")
    .Attr("with_rows: bool = true")
    .Attr("dim: int >= 1")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      int64_t dim;
      TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
      SetSnapshotShapes(c, 0, dim);
      SetSnapshotShapes(c, kContentsTensors, dim);
      c->set_output(2 * kContentsTensors, c->Vector(c->UnknownDim()));
      c->set_output(2 * kContentsTensors + 1, c->Vector(c->UnknownDim()));
      return absl::OkStatus();
    });

class AdaptiveExportOp : public AdaptiveOp {
 public:
  explicit AdaptiveExportOp(tf::OpKernelConstruction* ctx) : AdaptiveOp(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("with_rows", &with_rows_));
  }

 protected:
  absl::Status Run(tf::OpKernelContext* ctx, AdaptiveTable& table,
                   const std::string& name) override {
    const auto frozen = table.Freeze();
    TF_RETURN_IF_ERROR(ToAbsl(frozen.status(), name));
    const AdaptiveTable::Snapshot& snapshot = frozen.value();
    int first = 0;
    for (const Table::Snapshot* part : {&snapshot.own, &snapshot.statics}) {
      const int64_t rows = with_rows_ ? static_cast<int64_t>(part->size()) : 0;
      TF_RETURN_IF_ERROR(PutPiece(ctx, first, name, *part, table.dim(), 0, rows, true));
      first += kContentsTensors;
    }
    tf::Tensor *cells, *counters;
    const auto bytes = static_cast<int64_t>(snapshot.sketch.size());
    const auto count = static_cast<int64_t>(snapshot.counters.size());
    TF_RETURN_IF_ERROR(ctx->allocate_output(2 * kContentsTensors, {bytes}, &cells));
    TF_RETURN_IF_ERROR(ctx->allocate_output(2 * kContentsTensors + 1, {count}, &counters));
    std::copy(snapshot.sketch.begin(), snapshot.sketch.end(), cells->flat<uint8_t>().data());
    std::copy(snapshot.counters.begin(), snapshot.counters.end(), counters->flat<int64_t>().data());
    return absl::OkStatus();
  }

 private:
  bool with_rows_;
};
SOK_REGISTER_KERNEL("AdaptiveExport", AdaptiveExportOp);

REGISTER_OP("SokEmbed>AdaptiveRestore")
    .Input("table: resource")
    .SOK_CONTENTS(Input, "own_")
    .SOK_CONTENTS(Input, "static_")
    .Input("cells: uint8")
    .Input("counters: int64")
    .Attr("mode: {'replace', 'check'} = 'replace'")  // as in Restore
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs);

class AdaptiveRestoreOp : public AdaptiveOp {
 public:
  explicit AdaptiveRestoreOp(tf::OpKernelConstruction* ctx) : AdaptiveOp(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("mode", &mode_));
  }

 protected:
  absl::Status Run(tf::OpKernelContext* ctx, AdaptiveTable& table,
                   const std::string& name) override {
    AdaptiveContents contents;
    TF_RETURN_IF_ERROR(ReadContents(ctx, 1, name, table.dim(), &contents.own));
    TF_RETURN_IF_ERROR(
        ReadContents(ctx, 1 + kContentsTensors, name, table.dim(), &contents.statics));
    const tf::Tensor& cells = ctx->input(1 + 2 * kContentsTensors);
    const auto counters = ctx->input(2 + 2 * kContentsTensors).flat<int64_t>();
    contents.sketch = {static_cast<const char*>(cells.data()),
                       static_cast<size_t>(cells.NumElements())};
    contents.counters.assign(counters.data(), counters.data() + counters.size());
    if (mode_ == "check") return ToAbsl(table.CheckRestore(contents, IntraOpPool(ctx)), name);
    return LogDropped(table.Restore(contents, IntraOpPool(ctx)), name);
  }

 private:
  std::string mode_;
};
SOK_REGISTER_KERNEL("AdaptiveRestore", AdaptiveRestoreOp);

REGISTER_OP("SokEmbed>AdaptiveDemote")
    .Input("table: resource")
    .Input("keys: int64")
    .Output("demoted: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Scalar());
      return absl::OkStatus();
    });

class AdaptiveDemoteOp : public AdaptiveOp {
 public:
  using AdaptiveOp::AdaptiveOp;

 protected:
  absl::Status Run(tf::OpKernelContext* ctx, AdaptiveTable& table,
                   const std::string& name) override {
    const tf::Tensor& keys = ctx->input(1);
    const auto demoted = table.Demote(static_cast<const Key*>(keys.data()),
                                      static_cast<size_t>(keys.NumElements()), IntraOpPool(ctx));
    TF_RETURN_IF_ERROR(ToAbsl(demoted.status(), name));
    return PutScalar(ctx, static_cast<int64_t>(demoted.value()));
  }
};
SOK_REGISTER_KERNEL("AdaptiveDemote", AdaptiveDemoteOp);

REGISTER_OP("SokEmbed>AdaptiveStats")
    .Input("table: resource")
    .Output("names: string")
    .Output("values: double")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(c->UnknownDim()));
      c->set_output(1, c->Vector(c->UnknownDim()));
      return absl::OkStatus();
    });

class AdaptiveStatsOp : public AdaptiveOp {
 public:
  using AdaptiveOp::AdaptiveOp;

 protected:
  absl::Status Run(tf::OpKernelContext* ctx, AdaptiveTable& table, const std::string&) override {
    const AdaptiveStats stats = table.Stats();
    const uint64_t own = stats.own.index_bytes + stats.own.row_bytes;
    const uint64_t statics = stats.statics.index_bytes + stats.statics.row_bytes;
    const auto number = [](uint64_t value) { return static_cast<double>(value); };
    return PutNamed<double>(ctx, {{"rows", number(stats.own.rows)},
                                  {"max_rows", number(stats.own.max_rows)},
                                  {"static_rows", number(stats.statics.rows)},
                                  {"static_buckets", number(table.config().static_buckets)},
                                  {"promoted", number(stats.promoted)},
                                  {"demoted", number(stats.demoted)},
                                  {"lookups", number(stats.lookups)},
                                  {"own_lookups", number(stats.own_lookups)},
                                  {"looked_up", number(stats.own.looked_up)},
                                  {"found", number(stats.own.found)},
                                  {"sketch_saturation", stats.sketch_saturation},
                                  {"own_bytes", number(own)},
                                  {"static_bytes", number(statics)},
                                  {"sketch_bytes", number(stats.sketch_bytes)},
                                  {"bytes", number(own + statics + stats.sketch_bytes)},
                                  {"steps", number(stats.own.steps)},
                                  {"pending_gradients", number(stats.own.pending_gradients +
                                                               stats.statics.pending_gradients)}});
  }
};
SOK_REGISTER_KERNEL("AdaptiveStats", AdaptiveStatsOp);

}  // namespace sok
