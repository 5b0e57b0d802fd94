// SokEmbed>TableHandle: the table of a name, made at the first call.
// SokEmbed>AnonymousTable: a new table at every call, which goes with the last copy of its handle.
#include <memory>
#include <string>

#include "kernels/table_resource.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace sok {

namespace tf = tensorflow;

// The attributes of a table, which both ops have.
#define SOK_TABLE_ATTRS                        \
  Attr("dim: int >= 1")                        \
      .Attr("initializer: string = 'uniform'") \
      .Attr("initializer_a: float = -0.05")    \
      .Attr("initializer_b: float = 0.05")     \
      .Attr("seed: int = 0")                   \
      .Attr("max_rows: int >= 0 = 0")          \
      .Attr("direct: bool = false")            \
      .Attr("owners: int >= 1 = 1")            \
      .Attr("owner: int >= 0 = 0")

namespace {

absl::Status GetConfig(tf::OpKernelConstruction* ctx, TableConfig* config) {
  float a, b;
  int64_t seed, max_rows, owners, owner;
  TF_RETURN_IF_ERROR(ctx->GetAttr("dim", &config->dim));
  TF_RETURN_IF_ERROR(ctx->GetAttr("initializer", &config->initializer));
  TF_RETURN_IF_ERROR(ctx->GetAttr("initializer_a", &a));
  TF_RETURN_IF_ERROR(ctx->GetAttr("initializer_b", &b));
  TF_RETURN_IF_ERROR(ctx->GetAttr("seed", &seed));
  TF_RETURN_IF_ERROR(ctx->GetAttr("max_rows", &max_rows));
  TF_RETURN_IF_ERROR(ctx->GetAttr("direct", &config->direct));
  TF_RETURN_IF_ERROR(ctx->GetAttr("owners", &owners));
  TF_RETURN_IF_ERROR(ctx->GetAttr("owner", &owner));
  config->initializer_a = a;
  config->initializer_b = b;
  config->seed = static_cast<uint64_t>(seed);
  config->max_rows = static_cast<uint64_t>(max_rows);
  config->owners = static_cast<uint64_t>(owners);
  config->owner = static_cast<uint64_t>(owner);
  return absl::OkStatus();
}

}  // namespace

REGISTER_OP("SokEmbed>TableHandle")
    .Output("table: resource")
    .Attr("container: string = ''")
    .Attr("shared_name: string = ''")
    .SOK_TABLE_ATTRS.SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape);

class TableHandleOp : public tf::OpKernel {
 public:
  explicit TableHandleOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetConfig(ctx, &config_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    tf::ContainerInfo container;
    OP_REQUIRES_OK(ctx, container.Init(ctx->resource_manager(), def(), /*use_node_name=*/true));
    const std::string& name = container.name();
    TableResource* found = nullptr;
    OP_REQUIRES_OK(ctx, ctx->resource_manager()->LookupOrCreate<TableResource>(
                            container.container(), name, &found, [&](TableResource** made) {
                              auto table = Table::Make(config_);
                              if (!table.ok()) return ToAbsl(table.status(), name);
                              *made = new TableResource(name, std::move(table.value()));
                              return absl::OkStatus();
                            }));
    tf::core::ScopedUnref unref(found);
    OP_REQUIRES(ctx, found->table()->dim() == config_.dim,
                absl::InvalidArgumentError("table '" + name + "' exists with dim " +
                                           std::to_string(found->table()->dim()) + ", dim " +
                                           std::to_string(config_.dim) +
                                           " was asked for; give the tables two names"));
    tf::Tensor* handle = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {}, &handle));
    handle->scalar<tf::ResourceHandle>()() =
        tf::MakeResourceHandle<TableResource>(ctx, container.container(), name);
  }

 private:
  TableConfig config_;
};

REGISTER_KERNEL_BUILDER(Name("SokEmbed>TableHandle").Device(tf::DEVICE_CPU), TableHandleOp);

REGISTER_OP("SokEmbed>AnonymousTable")
    .Output("table: resource")
    .Attr("table_name: string = ''")
    .SOK_TABLE_ATTRS.SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape);

class AnonymousTableOp : public tf::OpKernel {
 public:
  explicit AnonymousTableOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetConfig(ctx, &config_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("table_name", &name_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    auto table = Table::Make(config_);
    OP_REQUIRES_OK(ctx, ToAbsl(table.status(), name_));
    tf::Tensor handle;
    tf::AllocatorAttributes attributes;
    attributes.set_on_host(true);
    OP_REQUIRES_OK(ctx, ctx->allocate_temp(tf::DT_RESOURCE, {}, &handle, attributes));
    handle.scalar<tf::ResourceHandle>()() = tf::ResourceHandle::MakeRefCountingHandle(
        new TableResource(name_, std::move(table.value())), ctx->device()->name());
    ctx->set_output(0, handle);
  }

 private:
  TableConfig config_;
  std::string name_;
};

REGISTER_KERNEL_BUILDER(Name("SokEmbed>AnonymousTable").Device(tf::DEVICE_CPU), AnonymousTableOp);

}  // namespace sok
