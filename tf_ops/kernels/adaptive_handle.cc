// SokEmbed>AnonymousAdaptiveTable makes a new table at every call. SokEmbed>Release destroys the
// table, or at the latest the end of the last copy of its handle. SokEmbed>AdaptiveTables returns
// the two tables that an adaptive table consists of.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "core/base/status_macros.h"
#include "kernels/adaptive_resource.h"
#include "kernels/host_memory.h"
#include "kernels/register_kernel.h"
#include "kernels/spec_attributes.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

namespace tf = tensorflow;

namespace {

void PutHandle(tf::OpKernelContext* ctx, int output, const tf::ResourceHandle& handle) {
  tf::Tensor tensor;
  OP_REQUIRES_OK(ctx, AllocateOnHost(ctx, tf::DT_RESOURCE, {}, &tensor));
  tensor.scalar<tf::ResourceHandle>()() = handle;
  ctx->set_output(output, tensor);
}

}  // namespace

REGISTER_OP("SokEmbed>AnonymousAdaptiveTable")
    .Output("table: resource")
    .Attr("table_name: string = ''")
    // The description of the rows, and the attributes by which graphs of the releases 0.1 and 0.2
    // describe them.
    .Attr("spec: string = ''")
    .Attr("dim: int >= 0 = 0")
    .Attr("initializer: string = 'uniform'")
    .Attr("initializer_a: float = -0.05")
    .Attr("initializer_b: float = 0.05")
    .Attr("seed: int = 0")
    .Attr("static_buckets: int >= 1")
    .Attr("owners: int >= 1 = 1")
    .Attr("owner: int >= 0 = 0")
    .Attr("promote_after: int >= 1 = 2")
    .Attr("max_rows: int >= 0 = 0")
    .Attr("decay_every: int >= 0 = 0")
    .Attr("ttl: int >= 0 = 0")
    .Attr("copy_slots: bool = true")
    .Attr("demote_blend: float = 0.0")
    .Attr("sketch_capacity: int >= 1 = 1000000")
    .Attr("counter_bits: int = 8")
    .Attr("row_dtype: string = 'float32'")
    .Attr("slot_dtype: string = 'float32'")
    .Attr("gpu: int >= -1 = -1")
    .Attr("gpu_optional: bool = false")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape);

class AnonymousAdaptiveTableOp : public tf::OpKernel {
 public:
  explicit AnonymousAdaptiveTableOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    float blend;
    int64_t buckets, owners, owner, promote_after, max_rows, decay_every, ttl, capacity;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("table_name", &name_));
    OP_REQUIRES_OK(ctx, ReadTableSpec(ctx, &rows_));
    // In older graphs these are fields of a spec, but they are of the adaptive table, not of the
    // tables that it consists of.
    rows_.owners = 1;
    rows_.owner = 0;
    rows_.max_rows = 0;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("static_buckets", &buckets));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("owners", &owners));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("owner", &owner));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("promote_after", &promote_after));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("max_rows", &max_rows));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("decay_every", &decay_every));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("ttl", &ttl));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("copy_slots", &config_.copy_slots));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("demote_blend", &blend));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("sketch_capacity", &capacity));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("counter_bits", &config_.counter_bits));
    config_.static_buckets = static_cast<uint64_t>(buckets);
    config_.owners = static_cast<uint64_t>(owners);
    config_.owner = static_cast<uint64_t>(owner);
    config_.promote_after = static_cast<uint32_t>(std::min<int64_t>(promote_after, UINT32_MAX));
    config_.max_rows = static_cast<uint64_t>(max_rows);
    config_.decay_every = static_cast<uint64_t>(decay_every);
    config_.ttl = static_cast<uint32_t>(std::min<int64_t>(ttl, UINT32_MAX));
    config_.demote_blend = blend;
    config_.sketch_capacity = static_cast<uint64_t>(capacity);
  }

  void Compute(tf::OpKernelContext* ctx) override {
    OP_REQUIRES(ctx, config_.static_buckets <= UINT32_MAX && config_.owner < config_.owners,
                absl::InvalidArgumentError(
                    "table '" + name_ +
                    "': expected static_buckets in [1, 2^32) and an owner below "
                    "owners, got " +
                    std::to_string(config_.static_buckets) + " and owner " +
                    std::to_string(config_.owner) + " of " + std::to_string(config_.owners)));
    auto table = Make(rows_);
    if (!table.ok() && rows_.gpu >= 0 && rows_.gpu_optional) {
      LogOnHost(name_, rows_.gpu, table.status());
      TableSpec on_host = rows_;
      on_host.gpu = -1;
      table = Make(on_host);
    }
    OP_REQUIRES_OK(ctx, ToAbsl(table.status(), name_));
    PutHandle(ctx, 0,
              tf::ResourceHandle::MakeRefCountingHandle(
                  new AdaptiveResource(
                      std::make_shared<OpenAdaptiveTable>(name_, std::move(table.value()))),
                  ctx->device()->name()));
  }

 private:
  Result<std::unique_ptr<AdaptiveTable>> Make(const TableSpec& rows) const {
    SOK_ASSIGN_OR_RETURN(auto own, Table::Make(rows));
    TableSpec static_rows = rows;
    static_rows.direct = true;
    static_rows.owners = config_.owners;
    static_rows.owner = config_.owner;
    static_rows.max_rows = (config_.static_buckets + config_.owners - 1) / config_.owners;
    SOK_ASSIGN_OR_RETURN(auto statics, Table::Make(static_rows));
    return AdaptiveTable::Make(std::move(own), std::move(statics), config_);
  }

  std::string name_;
  TableSpec rows_;
  AdaptiveConfig config_;
};

SOK_REGISTER_KERNEL("AnonymousAdaptiveTable", AnonymousAdaptiveTableOp);

REGISTER_OP("SokEmbed>AdaptiveTables")
    .Input("table: resource")
    .Output("own: resource")
    .Output("static_rows: resource")
    .SetIsStateful()
    .SetShapeFn([](tf::shape_inference::InferenceContext* c) {
      c->set_output(0, c->Scalar());
      c->set_output(1, c->Scalar());
      return absl::OkStatus();
    });

class AdaptiveTablesOp : public tf::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tf::OpKernelContext* ctx) override {
    std::shared_ptr<OpenAdaptiveTable> resource;
    OP_REQUIRES_OK(ctx, GetAdaptive(ctx, &resource));
    const AdaptiveTable& table = *resource->table();
    int output = 0;
    for (const auto& part : {table.own(), table.statics()}) {
      PutHandle(ctx, output++,
                tf::ResourceHandle::MakeRefCountingHandle(
                    new TableResource(std::make_shared<OpenTable>(resource->name(), nullptr, part)),
                    ctx->device()->name()));
    }
  }
};

SOK_REGISTER_KERNEL("AdaptiveTables", AdaptiveTablesOp);

}  // namespace sok
