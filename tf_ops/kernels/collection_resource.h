// The objects that the ops on a collection of tables hand to each other.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/collection/request.h"
#include "core/collection/table_collection.h"
#include "kernels/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_encode_decode.h"
#include "tensorflow/core/framework/variant_tensor_data.h"

namespace sok {

// Holds the waiting gradients of a collection, and its tables, so that an op takes one handle for
// all of them. Thread-safe.
class OpenQueue {
 public:
  static constexpr char kKind[] = "collection";

  // `tables` is empty in SavedModels of release 0.2.0, whose ops are given the tables.
  OpenQueue(std::string name, std::vector<std::shared_ptr<OpenTable>> tables)
      : name_(std::move(name)),
        tables_(std::move(tables)),
        queue_(std::make_shared<CollectionQueue>()) {}
  int64_t MemoryUsed() const { return 0; }  // not counted
  const std::string& name() const { return name_; }
  const std::vector<std::shared_ptr<OpenTable>>& tables() const { return tables_; }

  // Returns the collection of the tables. If the call before had the same arguments, it is the same
  // object. Without placements it may have any placements.
  std::shared_ptr<TableCollection> Collection(const std::vector<TablePlacement>& placements,
                                              size_t rank);
  // Returns a collection of tables for one call.
  std::shared_ptr<TableCollection> CollectionOf(
      const std::vector<std::shared_ptr<OpenTable>>& tables,
      const std::vector<TablePlacement>& placements, size_t rank) const;

 private:
  const std::string name_;
  const std::vector<std::shared_ptr<OpenTable>> tables_;
  const std::shared_ptr<CollectionQueue> queue_;
  std::mutex mu_;  // guards the three fields below
  std::vector<TablePlacement> placements_;
  size_t rank_ = 0;
  std::shared_ptr<TableCollection> collection_;
};

using CollectionQueueResource = ResourceOf<OpenQueue>;

// The queue that is input 0 of an op, and its tables.
struct OpenCollection {
  std::string name;
  std::shared_ptr<TableCollection> tables;
};
// `placements` are the placements of the tables, which a lookup needs.
absl::Status GetCollection(tensorflow::OpKernelContext* ctx, OpenCollection* collection,
                           const std::vector<TablePlacement>& placements = {}, size_t rank = 0);

// Reads the attributes "placements" and "pools" of an op, and "holders" where it has them.
absl::Status ReadPlacements(tensorflow::OpKernelConstruction* ctx, bool has_holders, size_t tables,
                            int64_t workers, std::vector<TablePlacement>* placements);

// Sets the outputs: the rows that workers have asked for, and the floats of each worker's segment.
// If the rows could not be read, sets a message of the error for all workers.
absl::Status PutAnswer(tensorflow::OpKernelContext* ctx, const tensorflow::Tensor& rows,
                       const std::vector<int32_t>& splits, const Status& failure);

// The base of variants that have a meaning only in their own process.
template <typename Derived>
struct ProcessVariant {
  void Encode(tensorflow::VariantTensorData*) const {}
  bool Decode(const tensorflow::VariantTensorData&) { return false; }
  std::string TypeName() const { return Derived::kName; }
  std::string DebugString() const { return Derived::kName; }
};

// The requests of a batch.
struct AskedVariant : ProcessVariant<AskedVariant> {
  static constexpr char kName[] = "sok_embed::Asked";
  std::shared_ptr<const CollectionRequest>
      request;  // null: this worker has failed, and has sent its error
};

// The vectors of features, or their gradients: a tensor for each feature, without a buffer if there
// is none.
struct VectorsVariant : ProcessVariant<VectorsVariant> {
  static constexpr char kName[] = "sok_embed::Vectors";
  std::vector<tensorflow::Tensor> outputs;
  bool on_gpu = false;  // the tensors are in the memory of a GPU
};

// Returns the variant of an input, which must be a scalar.
template <typename Held>
absl::Status GetVariant(tensorflow::OpKernelContext* ctx, int input, const char* what,
                        const Held** held) {
  TF_RETURN_IF_ERROR(ExpectScalar(ctx->input(input), what));
  const tensorflow::Variant& variant = ctx->input(input).scalar<tensorflow::Variant>()();
  *held = variant.get<Held>();
  if (*held != nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(std::string("expected ") + what +
                                    " of an op of this process, got a variant of type '" +
                                    variant.TypeName() + "'");
}

// Returns kInvalidArgument unless a request has so many features. Null stands for the request of a
// worker that has failed.
inline absl::Status ExpectFeatures(const CollectionRequest* request, size_t features) {
  const size_t got = request == nullptr ? 0 : request->plan().features.size();
  if (request != nullptr && got == features) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "expected the request of " + std::to_string(features) + " features, got " +
      (request == nullptr ? "none" : "one of " + std::to_string(got)));
}

// Sets an output to a variant.
template <typename Held>
absl::Status PutVariant(tensorflow::OpKernelContext* ctx, int output, Held held) {
  tensorflow::Tensor* tensor = nullptr;
  TF_RETURN_IF_ERROR(ctx->allocate_output(output, {}, &tensor));
  tensor->scalar<tensorflow::Variant>()() = std::move(held);
  return absl::OkStatus();
}

}  // namespace sok
