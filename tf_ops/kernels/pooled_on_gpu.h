// The objects that the ops which pool rows on a GPU hand to each other.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/collection/pooling.h"
#include "core/collection/request.h"
#include "core/collection/table_collection.h"
#include "core/gpu/device_rows.h"
#include "core/gpu/row_bags.h"
#include "kernels/collection_resource.h"
#include "kernels/table_resource.h"
#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace sok {

// The tables that one commit trains. Handles of resources stay on the CPU, but this token may go to
// another device.
struct TrainedToken : ProcessVariant<TrainedToken> {
  static constexpr char kName[] = "sok_embed::TrainedToken";
  std::vector<std::shared_ptr<OpenTable>> tables;
  std::shared_ptr<TableCollection> collection;  // null: one table, without a collection
  std::string name;                             // for messages
  absl::Status failure;  // the error, in a token for which other workers wait
};

// Finds the table of an input that is the token of one table.
inline absl::Status GetTableOfToken(tensorflow::OpKernelContext* ctx, int input,
                                    std::shared_ptr<OpenTable>* table) {
  const TrainedToken* token = nullptr;
  TF_RETURN_IF_ERROR(GetVariant(ctx, input, "token", &token));
  if (token->tables.size() != 1) {
    return absl::InvalidArgumentError("expected the token of one table, got that of " +
                                      std::to_string(token->tables.size()));
  }
  *table = token->tables[0];
  return absl::OkStatus();
}

// The place of the vectors of a feature: the output, the first element, and the distance between
// vectors.
struct VectorPlace {
  size_t output = 0;
  size_t offset = 0;
  size_t stride = 0;
};

// A lookup, kept for the gradients of its vectors. It has run on the GPU or, if the rows do not lie
// in that GPU's memory, on the host.
struct PooledCall {
  TrainedToken trained;
  std::shared_ptr<const CollectionPlan> plan;
  tensorflow::DataType dtype = tensorflow::DT_FLOAT;
  std::vector<tensorflow::TensorShape> outputs;
  std::vector<VectorPlace> places;                     // (features)
  std::vector<tensorflow::TensorShape> weight_shapes;  // (features) empty without weights
  std::vector<LookupKeys> keys;  // (tables) of the deposit; n is 0 where the table is not trained
  DepositOrder order = {};
  // Each key of one table is a bag, so that vectors are rows, and gradients go to the table as they
  // are.
  bool is_plain = false;

  bool on_gpu = false;
  void* stream = nullptr;
  std::vector<gpu::RowBags> bags;        // (features) without vectors
  std::vector<tensorflow::Tensor> held;  // tensors whose addresses are in `bags` and `numbers`
  // (tables) For rows that workers have sent: the number of the row of each id.
  std::vector<gpu::DeviceAddress> numbers;

  std::shared_ptr<const CollectionRequest> request;  // for rows on the host or of workers
  std::vector<Pooling> poolings;
  std::vector<float> rows;  // of distinct keys

  int64_t dim_of(size_t feature) const { return plan->tables[plan->feature_tables[feature]].dim; }
  // Returns the rows of a table of this GPU.
  gpu::DeviceRows& rows_of(size_t table) const {
    return *trained.tables[table]->table()->device_rows(stream);
  }
};

struct PooledReceipt : ProcessVariant<PooledReceipt> {
  static constexpr char kName[] = "sok_embed::PooledReceipt";
  std::shared_ptr<const PooledCall> call;
};

// Sets the shapes of the outputs of a call, and the places of the vectors of its features. With
// `concat` there is one output, which has the vectors of all features of an example as one.
absl::Status PlaceVectors(const std::vector<FeatureBags>& bags, bool concat, PooledCall* call);

// Returns the bags of a feature as a GPU pools them, without addresses.
inline gpu::RowBags RowBagsOf(const FeatureBags& given, Combiner combiner, const PooledCall& call,
                              size_t feature) {
  gpu::RowBags bags;
  bags.ids = given.n;
  bags.bags = given.bags;
  bags.length = given.length;
  bags.combiner = static_cast<gpu::Combiner>(combiner);
  bags.stride = call.places[feature].stride;
  bags.element =
      call.dtype == tensorflow::DT_FLOAT ? gpu::Element::kFloat32 : gpu::Element::kBFloat16;
  return bags;
}

// Reads the receipt of an op, its input 1.
inline absl::Status GetCall(tensorflow::OpKernelContext* ctx,
                            std::shared_ptr<const PooledCall>* call) {
  const PooledReceipt* receipt = nullptr;
  TF_RETURN_IF_ERROR(GetVariant(ctx, 1, "receipt", &receipt));
  if (receipt->call == nullptr) {
    return absl::InvalidArgumentError(
        "expected the receipt of a lookup of this process, got an "
        "empty one");
  }
  *call = receipt->call;
  return absl::OkStatus();
}

// Computes gradients of rows from those of the vectors of a lookup, which are input 1 of an op, and
// keeps them for a commit. `number` is DepositOrder's gradient.
absl::Status DepositPooled(tensorflow::OpKernelContext* ctx, const PooledCall& call, int64_t number,
                           const AnchorGradient& anchor);

// Sums the gradients of each row that workers have sent, and makes output 0 of an op their message.
absl::Status RowGradients(tensorflow::OpKernelContext* ctx, const PooledCall& call,
                          const std::vector<tensorflow::Tensor>& upstream);

// Passes gradients, by table, to the table or collection that commits them. Error: if norms are
// needed, a failed copy from the GPU.
Status DepositGradients(const TrainedToken& trained, CollectionKeys deposited,
                        std::shared_ptr<const void> hold, const AnchorGradient& anchor,
                        const ParallelFor& parallel_for);

// Returns the order of the deposit of a lookup that begins now; `number` is DepositOrder's call.
inline DepositOrder NextOrder(const TrainedToken& trained, int64_t number) {
  if (trained.collection == nullptr) return {number, trained.tables[0]->table()->NextLookup()};
  DepositOrder order = trained.collection->NextOrder();
  order.call = number;
  return order;
}

// Returns the keys of a table in a lookup, without keys yet.
inline LookupKeys BatchOf(Table* table, const DepositOrder& order, bool makes_rows) {
  LookupKeys batch;
  batch.removals = table->removals();
  batch.order = order;
  batch.rows_made = makes_rows;
  return batch;
}

inline gpu::DeviceAddress AddressOf(const tensorflow::Tensor& tensor) {
  return reinterpret_cast<gpu::DeviceAddress>(tensor.data());
}

}  // namespace sok
