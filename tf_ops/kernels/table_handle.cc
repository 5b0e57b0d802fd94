// SokEmbed>TableHandle returns the table of a name, and makes it at the first call.
// SokEmbed>AnonymousTable makes a new table at every call. SokEmbed>Release destroys it, or at the
// latest the end of the last copy of its handle.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "kernels/host_memory.h"
#include "kernels/register_kernel.h"
#include "kernels/table_resource.h"
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace sok {

namespace tf = tensorflow;

// The attributes of a table, which both ops have.
#define SOK_TABLE_ATTRS                                    \
  Attr("dim: int >= 1")                                    \
      .Attr("initializer: string = 'uniform'")             \
      .Attr("initializer_a: float = -0.05")                \
      .Attr("initializer_b: float = 0.05")                 \
      .Attr("seed: int = 0")                               \
      .Attr("max_rows: int >= 0 = 0")                      \
      .Attr("direct: bool = false")                        \
      .Attr("owners: int >= 1 = 1")                        \
      .Attr("owner: int >= 0 = 0")                         \
      .Attr("storage: string = ''")                        \
      .Attr("storage_id: string = ''")                     \
      .Attr("group: int >= 0 = 0")                         \
      .Attr("admission: string = ''")                      \
      .Attr("admission_min_count: int >= 0 = 0")           \
      .Attr("admission_capacity: int >= 0 = 0")            \
      .Attr("admission_false_positive_rate: float = 0.01") \
      .Attr("admission_counter_bits: int >= 0 = 4")        \
      .Attr("eviction: string = ''")                       \
      .Attr("eviction_max_age: int >= 0 = 0")              \
      .Attr("eviction_min_l2: float = 0.0")                \
      .Attr("eviction_every: int >= 0 = 100")              \
      .Attr("shards: int >= 0 = 0")                        \
      .Attr("row_dtype: string = 'float32'")               \
      .Attr("slot_dtype: string = 'float32'")              \
      .Attr("step_clock: bool = false")                    \
      .Attr("gpu: int >= -1 = -1")                         \
      .Attr("gpu_optional: bool = false")                  \
      .Attr("max_bytes: int >= 0 = 0")

namespace {

// The attributes of a table: its configuration, and its place.
class TablePlace {
 public:
  absl::Status Read(tf::OpKernelConstruction* ctx);
  int dim() const { return config_.dim; }
  const RowForm& form() const { return config_.form; }
  // Makes a new table of that name, or opens its group.
  Result<std::shared_ptr<OpenTable>> Open(const std::string& name) const;

 private:
  TableConfig config_;
  bool gpu_optional_ = false;  // without such a GPU the rows lie in the host's memory
  Result<std::shared_ptr<Storage>> OpenStorage() const;
  absl::Status ReadEviction(tf::OpKernelConstruction* ctx);

  std::string storage_;     // the folder; empty: in memory
  std::string storage_id_;  // the id of the storage whose rows are meant; empty: any
  std::optional<AdmissionConfig> admission_;
  std::optional<EvictionConfig> eviction_;
};

absl::Status TablePlace::Read(tf::OpKernelConstruction* ctx) {
  float a, b;
  int64_t seed, max_rows, owners, owner, shards, max_bytes;
  TF_RETURN_IF_ERROR(ctx->GetAttr("dim", &config_.dim));
  TF_RETURN_IF_ERROR(ctx->GetAttr("initializer", &config_.initializer));
  TF_RETURN_IF_ERROR(ctx->GetAttr("initializer_a", &a));
  TF_RETURN_IF_ERROR(ctx->GetAttr("initializer_b", &b));
  TF_RETURN_IF_ERROR(ctx->GetAttr("seed", &seed));
  TF_RETURN_IF_ERROR(ctx->GetAttr("max_rows", &max_rows));
  TF_RETURN_IF_ERROR(ctx->GetAttr("direct", &config_.direct));
  TF_RETURN_IF_ERROR(ctx->GetAttr("owners", &owners));
  TF_RETURN_IF_ERROR(ctx->GetAttr("owner", &owner));
  TF_RETURN_IF_ERROR(ctx->GetAttr("storage", &storage_));
  TF_RETURN_IF_ERROR(ctx->GetAttr("storage_id", &storage_id_));
  TF_RETURN_IF_ERROR(ctx->GetAttr("group", &config_.group));
  TF_RETURN_IF_ERROR(ctx->GetAttr("shards", &shards));
  TF_RETURN_IF_ERROR(ctx->GetAttr("step_clock", &config_.step_clock));
  TF_RETURN_IF_ERROR(ctx->GetAttr("gpu", &config_.gpu));
  TF_RETURN_IF_ERROR(ctx->GetAttr("gpu_optional", &gpu_optional_));
  TF_RETURN_IF_ERROR(ctx->GetAttr("max_bytes", &max_bytes));
  config_.shards = static_cast<uint32_t>(std::min<int64_t>(shards, UINT32_MAX));
  config_.initializer_a = a;
  config_.initializer_b = b;
  config_.seed = static_cast<uint64_t>(seed);
  config_.max_rows = static_cast<uint64_t>(max_rows);
  config_.owners = static_cast<uint64_t>(owners);
  config_.owner = static_cast<uint64_t>(owner);
  config_.max_bytes = static_cast<uint64_t>(max_bytes);

  TF_RETURN_IF_ERROR(ReadForm(ctx, &config_.form));
  TF_RETURN_IF_ERROR(ReadEviction(ctx));
  AdmissionConfig admission;
  TF_RETURN_IF_ERROR(ctx->GetAttr("admission", &admission.kind));
  if (admission.kind.empty()) return absl::OkStatus();
  int64_t min_count, capacity;
  float rate;
  TF_RETURN_IF_ERROR(ctx->GetAttr("admission_min_count", &min_count));
  TF_RETURN_IF_ERROR(ctx->GetAttr("admission_capacity", &capacity));
  TF_RETURN_IF_ERROR(ctx->GetAttr("admission_false_positive_rate", &rate));
  TF_RETURN_IF_ERROR(ctx->GetAttr("admission_counter_bits", &admission.counter_bits));
  admission.min_count = static_cast<uint32_t>(std::min<int64_t>(min_count, UINT32_MAX));
  admission.capacity = static_cast<uint64_t>(capacity);
  admission.false_positive_rate = rate;
  admission_ = admission;
  return absl::OkStatus();
}

absl::Status TablePlace::ReadEviction(tf::OpKernelConstruction* ctx) {
  EvictionConfig eviction;
  TF_RETURN_IF_ERROR(ctx->GetAttr("eviction", &eviction.kind));
  if (eviction.kind.empty()) return absl::OkStatus();
  int64_t max_age, every;
  TF_RETURN_IF_ERROR(ctx->GetAttr("eviction_max_age", &max_age));
  TF_RETURN_IF_ERROR(ctx->GetAttr("eviction_min_l2", &eviction.min_l2));
  TF_RETURN_IF_ERROR(ctx->GetAttr("eviction_every", &every));
  eviction.max_age = static_cast<uint32_t>(std::min<int64_t>(max_age, UINT32_MAX));
  eviction.every = static_cast<uint32_t>(std::min<int64_t>(every, UINT32_MAX));
  eviction_ = eviction;
  return absl::OkStatus();
}

Result<std::shared_ptr<OpenTable>> TablePlace::Open(const std::string& name) const {
  if (storage_.empty()) {
    std::shared_ptr<Admission> admission;
    if (admission_.has_value()) {
      auto made = MakeAdmission(*admission_);
      if (!made.ok()) return made.status();
      admission = std::move(made.value());
    }
    std::shared_ptr<Eviction> eviction;
    if (eviction_.has_value()) {
      auto made = MakeEviction(*eviction_);
      if (!made.ok()) return made.status();
      eviction = std::move(made.value());
    }
    auto table = Table::Make(config_, admission, nullptr, eviction);
    if (!table.ok() && config_.gpu >= 0 && gpu_optional_) {
      LogOnHost(name, config_.gpu, table.status());
      TableConfig on_host = config_;
      on_host.gpu = -1;
      table = Table::Make(on_host, std::move(admission), nullptr, std::move(eviction));
    }
    if (!table.ok()) return table.status();
    return std::make_shared<OpenTable>(name, nullptr, std::move(table.value()));
  }
  if (config_.gpu >= 0) {
    return InvalidArgument("Expected the rows of a storage in the host's memory. Received: gpu=" +
                           std::to_string(config_.gpu) +
                           ". Leave the storage out, or use device=\"cpu\".");
  }
  if (config_.step_clock) {
    return InvalidArgument(
        "expected a table in memory with step_clock: rows in a storage have the "
        "storage's clock");
  }
  auto storage = OpenStorage();
  if (!storage.ok()) return storage.status();
  auto table =
      storage.value()->OpenTable(config_, "", {}, admission_, /*reset_slots=*/false, eviction_);
  if (!table.ok()) return table.status();
  return std::make_shared<OpenTable>(name, std::move(storage.value()), std::move(table.value()));
}

Result<std::shared_ptr<Storage>> TablePlace::OpenStorage() const {
  const uint64_t wanted = std::strtoull(storage_id_.c_str(), nullptr, 16);
  const auto is_another = [&](const Storage& storage) {
    return wanted != 0 && storage.id() != 0 && storage.id() != wanted;
  };
  if (std::shared_ptr<Storage> open = Storage::FindOpen(storage_); open != nullptr) {
    if (is_another(*open)) {
      LOG(WARNING) << "the model was saved with the storage " << storage_id_ << ", and '"
                   << storage_
                   << "' is another; its rows should be those of the model, as a dump has them";
    }
    return open;
  }
  // A process that serves a saved model does not train.
  StorageOptions options;
  options.path = storage_;
  options.read_only = true;
  auto opened = Storage::Open(options);
  if (opened.ok() && is_another(*opened.value())) {
    return Status(Code::kFailedPrecondition,
                  "expected the storage " + storage_id_ + " in '" + storage_ +
                      "', with which the model was saved, got another; put the first one back, or "
                      "one of its checkpoints; if this one has the rows of the model, from a dump, "
                      "say, open it before the model, with sok_embed.Storage");
  }
  return opened;
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
    OP_REQUIRES_OK(ctx, place_.Read(ctx));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    tf::ContainerInfo container;
    OP_REQUIRES_OK(ctx, container.Init(ctx->resource_manager(), def(), /*use_node_name=*/true));
    const std::string& name = container.name();
    TableResource* found = nullptr;
    OP_REQUIRES_OK(ctx, ctx->resource_manager()->LookupOrCreate<TableResource>(
                            container.container(), name, &found, [&](TableResource** made) {
                              auto table = place_.Open(name);
                              if (!table.ok()) return ToAbsl(table.status(), name);
                              *made = new TableResource(std::move(table.value()));
                              return absl::OkStatus();
                            }));
    tf::core::ScopedUnref unref(found);
    const int dim = found->content()->table()->dim();  // a named table is not released
    OP_REQUIRES(ctx, dim == place_.dim(),
                absl::InvalidArgumentError(
                    "table '" + name + "' exists with dim " + std::to_string(dim) + ", dim " +
                    std::to_string(place_.dim()) + " was asked for; give the tables two names"));
    const RowForm& form = found->content()->table()->form();
    OP_REQUIRES(
        ctx, form.row == place_.form().row && form.slots == place_.form().slots,
        absl::InvalidArgumentError(
            "table '" + name + "' exists with rows of " + RowTypeName(form.row) + " and slots of " +
            RowTypeName(form.slots) + ", " + RowTypeName(place_.form().row) + " and " +
            RowTypeName(place_.form().slots) + " were asked for; give the tables two names"));
    tf::Tensor* handle = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, {}, &handle));
    handle->scalar<tf::ResourceHandle>()() =
        tf::MakeResourceHandle<TableResource>(ctx, container.container(), name);
  }

 private:
  TablePlace place_;
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
    OP_REQUIRES_OK(ctx, place_.Read(ctx));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("table_name", &name_));
  }

  void Compute(tf::OpKernelContext* ctx) override {
    auto table = place_.Open(name_);
    OP_REQUIRES_OK(ctx, ToAbsl(table.status(), name_));
    tf::Tensor handle;
    OP_REQUIRES_OK(ctx, AllocateOnHost(ctx, tf::DT_RESOURCE, {}, &handle));
    handle.scalar<tf::ResourceHandle>()() = tf::ResourceHandle::MakeRefCountingHandle(
        new TableResource(std::move(table.value())), ctx->device()->name());
    ctx->set_output(0, handle);
  }

 private:
  TablePlace place_;
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
