// Ops on the contents of a table: export, assign, rows with their slots, restore, export and
// restore in pieces, remove, metadata, size, steps, stats.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "kernels/outputs.h"
#include "kernels/register_kernel.h"
#include "kernels/snapshot.h"
#include "kernels/table_resource.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;
using tf::shape_inference::InferenceContext;
using tf::shape_inference::ShapeHandle;

namespace {

// A kernel on the table of input 0.
class TableOp : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    std::shared_ptr<OpenTable> resource;
    OP_REQUIRES_OK(ctx, GetTable(ctx, &resource));
    OP_REQUIRES_OK(ctx, Run(ctx, *resource));
  }

 protected:
  virtual absl::Status Run(tf::OpKernelContext* ctx, const OpenTable& resource) = 0;
};

// The stores number the keys of a batch with 32 bits.
absl::Status ExpectFewKeys(const std::string& table, const tf::Tensor& keys) {
  if (keys.NumElements() < int64_t{UINT32_MAX}) return absl::OkStatus();
  return absl::InvalidArgumentError("table '" + table +
                                    "': expected fewer than 2^32 keys, got shape " +
                                    keys.shape().DebugString());
}

REGISTER_OP("SokEmbed>Export")
    .Input("table: resource")
    .SOK_CONTENTS(Output, "")
    .Attr("with_slots: bool = false")
    .Attr("dim: int >= 1")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      int64_t dim;
      TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
      SetSnapshotShapes(c, 0, dim);
      return absl::OkStatus();
    });

class ExportOp : public TableOp {
 public:
  explicit ExportOp(tf::OpKernelConstruction* ctx) : TableOp(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("with_slots", &with_slots_));
  }

 protected:
  absl::Status Run(tf::OpKernelContext* ctx, const OpenTable& resource) override {
    const auto frozen = resource.table()->Freeze();
    TF_RETURN_IF_ERROR(ToAbsl(frozen.status(), resource.name()));
    return PutSnapshot(ctx, 0, resource.name(), frozen.value(), resource.table()->dim(),
                       with_slots_);
  }

 private:
  bool with_slots_;
};
SOK_REGISTER_KERNEL("Export", ExportOp);

REGISTER_OP("SokEmbed>ExportPiece")
    .Input("table: resource")
    .Input("begin: int64")
    .Input("rows: int64")
    .Output("size: int64")
    .SOK_CONTENTS(Output, "")
    .Attr("with_admission: bool")
    .Attr("dim: int >= 1")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      int64_t dim;
      TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
      c->set_output(0, c->Scalar());
      SetSnapshotShapes(c, 1, dim);
      return absl::OkStatus();
    });

class ExportPieceOp : public TableOp {
 public:
  explicit ExportPieceOp(tf::OpKernelConstruction* ctx) : TableOp(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("with_admission", &with_admission_));
  }

 protected:
  absl::Status Run(tf::OpKernelContext* ctx, const OpenTable& resource) override {
    TF_RETURN_IF_ERROR(ExpectScalar(ctx->input(1), "begin"));
    TF_RETURN_IF_ERROR(ExpectScalar(ctx->input(2), "rows"));
    const auto frozen = resource.table()->Freeze();
    TF_RETURN_IF_ERROR(ToAbsl(frozen.status(), resource.name()));
    const auto size = static_cast<int64_t>(frozen.value().size());
    const int64_t begin = std::clamp<int64_t>(ctx->input(1).scalar<int64_t>()(), 0, size);
    const int64_t rows = std::clamp<int64_t>(ctx->input(2).scalar<int64_t>()(), 0, size - begin);
    TF_RETURN_IF_ERROR(PutScalar(ctx, size));
    return PutPiece(ctx, 1, resource.name(), frozen.value(), resource.table()->dim(), begin,
                    begin + rows, with_admission_);
  }

 private:
  bool with_admission_;
};
SOK_REGISTER_KERNEL("ExportPiece", ExportPieceOp);

REGISTER_OP("SokEmbed>Assign")
    .Input("table: resource")
    .Input("keys: Tkeys")
    .Input("embeddings: float")
    .Attr("Tkeys: {int32, int64, uint64}")
    .Attr("with_slots: bool = false")  // true: whole rows, the results of a step
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle unused;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &unused));
      return c->WithRank(c->input(2), 2, &unused);
    });

class AssignOp : public TableOp {
 public:
  explicit AssignOp(tf::OpKernelConstruction* ctx) : TableOp(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("with_slots", &with_slots_));
  }

 protected:
  absl::Status Run(tf::OpKernelContext* ctx, const OpenTable& resource) override {
    Table& table = *resource.table();
    TF_RETURN_IF_ERROR(ExpectKeys(resource.name(), ctx->input(1)));
    const LookupKeys keys = KeysOf(ctx->input(1));
    const tf::Tensor& rows = ctx->input(2);
    const auto* const from = static_cast<const float*>(rows.data());
    if (!with_slots_) {
      TF_RETURN_IF_ERROR(ExpectEmbeddings(resource.name(), rows, keys.n, table.dim()));
      return ToAbsl(table.Assign(keys.keys, keys.n, from, IntraOpPool(ctx)), resource.name());
    }
    if (rows.dims() != 2 || rows.dim_size(0) != static_cast<int64_t>(keys.n) ||
        rows.dim_size(1) < table.dim()) {
      return absl::InvalidArgumentError("table '" + resource.name() +
                                        "': expected a row with its slots a key, got shape " +
                                        rows.shape().DebugString());
    }
    const auto slot_floats = static_cast<int>(rows.dim_size(1) - table.dim());
    return ToAbsl(table.AssignRows(keys.keys, keys.n, slot_floats, from, IntraOpPool(ctx)),
                  resource.name());
  }

 private:
  bool with_slots_;
};
SOK_REGISTER_KERNEL("Assign", AssignOp);

REGISTER_OP("SokEmbed>ReadRows")
    .Input("table: resource")
    .Input("keys: int64")
    .Output("held: int64")
    .Output("rows: float")
    .Attr("dim: int >= 1")
    .Attr("slot_floats: int >= 0")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle unused;
      int64_t dim, slot_floats;
      TF_RETURN_IF_ERROR(c->WithRank(c->input(1), 1, &unused));
      TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
      TF_RETURN_IF_ERROR(c->GetAttr("slot_floats", &slot_floats));
      c->set_output(0, c->Vector(c->UnknownDim()));
      c->set_output(1, c->Matrix(c->UnknownDim(), dim + slot_floats));
      return absl::OkStatus();
    });

class ReadRowsOp : public TableOp {
 public:
  explicit ReadRowsOp(tf::OpKernelConstruction* ctx) : TableOp(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("dim", &dim_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("slot_floats", &slot_floats_));
  }

 protected:
  absl::Status Run(tf::OpKernelContext* ctx, const OpenTable& resource) override {
    Table& table = *resource.table();
    TF_RETURN_IF_ERROR(ExpectKeys(resource.name(), ctx->input(1)));
    if (dim_ != table.dim()) {
      return absl::InvalidArgumentError("table '" + resource.name() + "': expected dim " +
                                        std::to_string(table.dim()) + ", got " +
                                        std::to_string(dim_));
    }
    const LookupKeys keys = KeysOf(ctx->input(1));
    std::vector<uint32_t> places;
    std::vector<float> rows;
    TF_RETURN_IF_ERROR(ToAbsl(table.ReadRows(keys.keys, keys.n, static_cast<int>(slot_floats_),
                                             &places, &rows, IntraOpPool(ctx)),
                              resource.name()));
    const auto n = static_cast<int64_t>(places.size());
    tf::Tensor *held = nullptr, *found = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, {n}, &held));
    TF_RETURN_IF_ERROR(ctx->allocate_output(1, {n, dim_ + slot_floats_}, &found));
    std::transform(places.begin(), places.end(), held->flat<int64_t>().data(),
                   [&](uint32_t i) { return static_cast<int64_t>(keys.keys[i]); });
    std::copy(rows.begin(), rows.end(), found->flat<float>().data());
    return absl::OkStatus();
  }

 private:
  int64_t dim_, slot_floats_;
};
SOK_REGISTER_KERNEL("ReadRows", ReadRowsOp);

// To check returns the error of replacing, and changes nothing; to add keeps the rows of other
// keys.
REGISTER_OP("SokEmbed>Restore")
    .Input("table: resource")
    .SOK_CONTENTS(Input, "")
    .Attr("mode: {'replace', 'check', 'add'} = 'replace'")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle unused;
      for (int i = 1; i <= 5; ++i) {
        const bool is_matrix = i == 2 || i == 3;
        TF_RETURN_IF_ERROR(c->WithRank(c->input(i), is_matrix ? 2 : 1, &unused));
      }
      return absl::OkStatus();
    });

class RestoreOp : public TableOp {
 public:
  explicit RestoreOp(tf::OpKernelConstruction* ctx) : TableOp(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("mode", &mode_));
  }

 protected:
  absl::Status Run(tf::OpKernelContext* ctx, const OpenTable& resource) override {
    Table& table = *resource.table();
    const ParallelFor pool = IntraOpPool(ctx);
    TableContents contents;
    TF_RETURN_IF_ERROR(ReadContents(ctx, 1, resource.name(), table.dim(), &contents));
    if (mode_ == "check") {
      return ToAbsl(table.CheckRestore(contents, pool).status(), resource.name());
    }
    if (mode_ == "add") return ToAbsl(table.AddRows(contents, pool), resource.name());
    return LogDropped(table.Restore(contents, pool), resource.name());
  }

 private:
  std::string mode_;
};
SOK_REGISTER_KERNEL("Restore", RestoreOp);

REGISTER_OP("SokEmbed>Remove")
    .Input("table: resource")
    .Input("keys: Tkeys")
    .Output("removed: int64")
    .Attr("Tkeys: {int32, int64, uint64}")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle unused;
      c->set_output(0, c->Scalar());
      return c->WithRank(c->input(1), 1, &unused);
    });

absl::Status Remove(tf::OpKernelContext* ctx, OpenTable& resource) {
  TF_RETURN_IF_ERROR(ExpectKeys(resource.name(), ctx->input(1)));
  const LookupKeys keys = KeysOf(ctx->input(1));
  const auto removed = resource.table()->Remove(keys.keys, keys.n, IntraOpPool(ctx));
  TF_RETURN_IF_ERROR(ToAbsl(removed.status(), resource.name()));
  return PutScalar(ctx, static_cast<int64_t>(removed.value()));
}
SOK_REGISTER_KERNEL("Remove", FunctionKernel<OnTable<Remove>>);

REGISTER_OP("SokEmbed>RemovedKeys")
    .Input("table: resource")
    .Output("keys: int64")
    .Output("complete: bool")
    .Attr("limit: int >= 0")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      c->set_output(0, c->Vector(c->UnknownDim()));
      c->set_output(1, c->Scalar());
      return absl::OkStatus();
    });

class RemovedKeysOp : public TableOp {
 public:
  explicit RemovedKeysOp(tf::OpKernelConstruction* ctx) : TableOp(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("limit", &limit_));
  }

 protected:
  absl::Status Run(tf::OpKernelContext* ctx, const OpenTable& resource) override {
    const auto taken = resource.table()->TakeRemoved(static_cast<size_t>(limit_), IntraOpPool(ctx));
    TF_RETURN_IF_ERROR(ToAbsl(taken.status(), resource.name()));
    const std::vector<Key>& removed = taken.value().keys;
    tf::Tensor *keys = nullptr, *complete = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(0, {static_cast<int64_t>(removed.size())}, &keys));
    TF_RETURN_IF_ERROR(ctx->allocate_output(1, {}, &complete));
    std::copy(removed.begin(), removed.end(), keys->flat<int64_t>().data());
    complete->scalar<bool>()() = taken.value().complete;
    return absl::OkStatus();
  }

 private:
  int64_t limit_;
};
SOK_REGISTER_KERNEL("RemovedKeys", RemovedKeysOp);

REGISTER_OP("SokEmbed>Metadata")
    .Input("table: resource")
    .Input("keys: Tkeys")
    .Output("exists: bool")
    .Output("update_nums: int64")
    .Output("update_times: int64")
    .Attr("Tkeys: {int32, int64, uint64}")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* c) {
      for (int i = 0; i < 3; ++i) c->set_output(i, c->input(1));
      return absl::OkStatus();
    });

absl::Status Metadata(tf::OpKernelContext* ctx, OpenTable& resource) {
  TF_RETURN_IF_ERROR(ExpectFewKeys(resource.name(), ctx->input(1)));
  const LookupKeys keys = KeysOf(ctx->input(1));
  tf::Tensor* outputs[3];
  for (int i = 0; i < 3; ++i) {
    TF_RETURN_IF_ERROR(ctx->allocate_output(i, ctx->input(1).shape(), &outputs[i]));
  }
  std::vector<RowMeta> metas(keys.n);
  static_assert(sizeof(bool) == 1);
  auto* exists = static_cast<uint8_t*>(outputs[0]->data());
  TF_RETURN_IF_ERROR(
      ToAbsl(resource.table()->ReadMeta(keys.keys, keys.n, metas.data(), exists, IntraOpPool(ctx)),
             resource.name()));
  for (size_t i = 0; i < keys.n; ++i) {
    outputs[1]->flat<int64_t>()(i) = metas[i].update_num;
    outputs[2]->flat<int64_t>()(i) = metas[i].update_time;
  }
  return absl::OkStatus();
}
SOK_REGISTER_KERNEL("Metadata", FunctionKernel<OnTable<Metadata>>);

REGISTER_OP("SokEmbed>Size")
    .Input("table: resource")
    .Output("size: int64")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape);

absl::Status Size(tf::OpKernelContext* ctx, OpenTable& resource) {
  return PutScalar(ctx, static_cast<int64_t>(resource.table()->size()));
}
SOK_REGISTER_KERNEL("Size", FunctionKernel<OnTable<Size>>);

REGISTER_OP("SokEmbed>Steps")
    .Input("table: resource")
    .Output("steps: int64")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape);

absl::Status Steps(tf::OpKernelContext* ctx, OpenTable& resource) {
  return PutScalar(ctx, resource.table()->steps());
}
SOK_REGISTER_KERNEL("Steps", FunctionKernel<OnTable<Steps>>);

REGISTER_OP("SokEmbed>Stats")
    .Input("table: resource")
    .Output("names: string")
    .Output("values: int64")
    .SetIsStateful()
    .SetShapeFn(UnknownVectors);

absl::Status Stats(tf::OpKernelContext* ctx, OpenTable& resource) {
  const TableStats stats = resource.table()->Stats();
  const auto number = [](uint64_t value) { return static_cast<int64_t>(value); };
  return PutNamed<int64_t>(ctx, {{"rows", number(stats.rows)},
                                 {"max_rows", number(stats.max_rows)},
                                 {"bytes", number(stats.index_bytes + stats.row_bytes)},
                                 {"index_bytes", number(stats.index_bytes)},
                                 {"row_bytes", number(stats.row_bytes)},
                                 {"steps", number(stats.steps)},
                                 {"pending_gradients", number(stats.pending_gradients)},
                                 {"evicted", number(stats.evicted)},
                                 {"left_out", number(stats.left_out)},
                                 {"looked_up", number(stats.looked_up)},
                                 {"found", number(stats.found)},
                                 {"refused", number(stats.refused)},
                                 {"made", number(stats.made)},
                                 {"cache_hits", number(stats.cache_hits)},
                                 {"read_ahead", number(stats.read_ahead)},
                                 {"left_behind", number(stats.left_behind)}});
}
SOK_REGISTER_KERNEL("Stats", FunctionKernel<OnTable<Stats>>);

}  // namespace
}  // namespace sok
