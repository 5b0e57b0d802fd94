// SokEmbed>TableHandle returns the table of a name, and makes it at the first call.
// SokEmbed>AnonymousTable makes a new table at every call. SokEmbed>Release destroys it, or at the
// latest the end of the last copy of its handle.
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "core/base/status_macros.h"
#include "kernels/host_memory.h"
#include "kernels/register_kernel.h"
#include "kernels/spec_attributes.h"
#include "kernels/table_resource.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace sok {

namespace tf = tensorflow;

namespace {

// Opens the storage that a table lies in. A process that serves a saved model does not train.
Result<std::shared_ptr<Storage>> OpenStorage(const TableSpec& spec) {
  const uint64_t wanted = std::strtoull(spec.storage_id.c_str(), nullptr, 16);
  const auto is_another = [&](const Storage& storage) {
    return wanted != 0 && storage.id() != 0 && storage.id() != wanted;
  };
  if (std::shared_ptr<Storage> open = Storage::FindOpen(spec.storage); open != nullptr) {
    if (is_another(*open)) {
      LOG(WARNING) << "the model was saved with the storage " << spec.storage_id << ", and '"
                   << spec.storage
                   << "' is another; its rows should be those of the model, as a dump has them";
    }
    return open;
  }
  StorageOptions options;
  options.path = spec.storage;
  options.read_only = true;
  auto opened = Storage::Open(options);
  if (opened.ok() && is_another(*opened.value())) {
    return Status(Code::kFailedPrecondition,
                  "expected the storage " + spec.storage_id + " in '" + spec.storage +
                      "', with which the model was saved, got another; put the first one back, or "
                      "one of its checkpoints; if this one has the rows of the model, from a dump, "
                      "say, open it before the model, with sok_embed.Storage");
  }
  return opened;
}

// Makes a new table of that name, or opens its group.
Result<std::shared_ptr<OpenTable>> Open(const TableSpec& spec, const std::string& name) {
  if (spec.storage.empty()) {
    auto table = Table::Make(spec);
    if (!table.ok() && spec.gpu >= 0 && spec.gpu_optional) {
      LogOnHost(name, spec.gpu, table.status());
      TableSpec on_host = spec;
      on_host.gpu = -1;
      table = Table::Make(on_host);
    }
    if (!table.ok()) return table.status();
    return std::make_shared<OpenTable>(name, nullptr, std::move(table.value()));
  }
  SOK_ASSIGN_OR_RETURN(auto storage, OpenStorage(spec));
  SOK_ASSIGN_OR_RETURN(auto table, storage->OpenTable(spec));
  return std::make_shared<OpenTable>(name, std::move(storage), std::move(table));
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
    OP_REQUIRES_OK(ctx, ReadTableSpec(ctx, &spec_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    tf::ContainerInfo container;
    OP_REQUIRES_OK(ctx, container.Init(ctx->resource_manager(), def(), /*use_node_name=*/true));
    const std::string& name = container.name();
    TableResource* found = nullptr;
    OP_REQUIRES_OK(ctx, ctx->resource_manager()->LookupOrCreate<TableResource>(
                            container.container(), name, &found, [&](TableResource** made) {
                              auto table = Open(spec_, name);
                              if (!table.ok()) return ToAbsl(table.status(), name);
                              *made = new TableResource(std::move(table.value()));
                              return absl::OkStatus();
                            }));
    tf::core::ScopedUnref unref(found);
    const int dim = found->content()->table()->dim();  // a named table is not released
    OP_REQUIRES(ctx, dim == spec_.dim,
                absl::InvalidArgumentError(
                    "table '" + name + "' exists with dim " + std::to_string(dim) + ", dim " +
                    std::to_string(spec_.dim) + " was asked for; give the tables two names"));
    const RowForm& form = found->content()->table()->form();
    OP_REQUIRES(
        ctx, form.row == spec_.form.row && form.slots == spec_.form.slots,
        absl::InvalidArgumentError(
            "table '" + name + "' exists with rows of " + RowTypeName(form.row) + " and slots of " +
            RowTypeName(form.slots) + ", " + RowTypeName(spec_.form.row) + " and " +
            RowTypeName(spec_.form.slots) + " were asked for; give the tables two names"));
    tf::Tensor* handle = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {}, &handle));
    handle->scalar<tf::ResourceHandle>()() =
        tf::MakeResourceHandle<TableResource>(ctx, container.container(), name);
  }

 private:
  TableSpec spec_;
};

SOK_REGISTER_KERNEL("TableHandle", TableHandleOp);

REGISTER_OP("SokEmbed>AnonymousTable")
    .Output("table: resource")
    .Attr("table_name: string = ''")
    .SOK_TABLE_ATTRS.SetIsStateful()
    .SetShapeFn(tf::shape_inference::ScalarShape);

class AnonymousTableOp : public tf::OpKernel {
 public:
  explicit AnonymousTableOp(tf::OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ReadTableSpec(ctx, &spec_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("table_name", &name_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    auto table = Open(spec_, name_);
    OP_REQUIRES_OK(ctx, ToAbsl(table.status(), name_));
    tf::Tensor handle;
    OP_REQUIRES_OK(ctx, AllocateOnHost(ctx, tf::DT_RESOURCE, {}, &handle));
    handle.scalar<tf::ResourceHandle>()() = tf::ResourceHandle::MakeRefCountingHandle(
        new TableResource(std::move(table.value())), ctx->device()->name());
    ctx->set_output(0, handle);
  }

 private:
  TableSpec spec_;
  std::string name_;
};

SOK_REGISTER_KERNEL("AnonymousTable", AnonymousTableOp);

REGISTER_OP("SokEmbed>Release")
    .Input("owned: resource")
    .SetIsStateful()
    .SetShapeFn(tf::shape_inference::NoOutputs);

// Destroys the content behind an anonymous handle, even if copies of the handle live.
absl::Status Release(tf::OpKernelContext* ctx) {
  TF_RETURN_IF_ERROR(ExpectScalar(ctx->input(0), "owned"));
  const tf::ResourceHandle& handle = tf::HandleFromInput(ctx, 0);
  auto* owned =
      handle.IsRefCounting() ? dynamic_cast<OwnedResource*>(handle.resource().get()) : nullptr;
  if (owned == nullptr) {
    return absl::InvalidArgumentError("expected the handle of an anonymous table or queue, got " +
                                      handle.DebugString());
  }
  owned->Release();
  return absl::OkStatus();
}
SOK_REGISTER_KERNEL("Release", FunctionKernel<Release>);

}  // namespace sok
