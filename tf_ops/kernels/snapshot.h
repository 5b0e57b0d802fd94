// Writes the contents of a table to the outputs of an op, and reads them from the inputs of
// another.
#pragma once

#include <string>

#include "core/adaptive/adaptive_table.h"
#include "kernels/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

// Tensors of one table's contents, as the inputs or the outputs of an op.
#define SOK_CONTENTS(Put, prefix)        \
  Put(prefix "keys: int64")              \
      .Put(prefix "embeddings: float")   \
      .Put(prefix "slots: float")        \
      .Put(prefix "update_nums: int64")  \
      .Put(prefix "update_times: int64") \
      .Put(prefix "slot_start: float")   \
      .Put(prefix "rule: string")        \
      .Put(prefix "steps: int64")        \
      .Put(prefix "step_clock: int64")   \
      .Put(prefix "admission: uint8")
constexpr int kContentsTensors = 10;

// Return kInvalidArgument for keys that a table cannot take, and for embeddings of another shape
// than (n, dim).
absl::Status ExpectKeys(const std::string& table, const tensorflow::Tensor& keys);
absl::Status ExpectEmbeddings(const std::string& table, const tensorflow::Tensor& embeddings,
                              size_t n, int dim);

// Sets the shapes of the outputs from `first` on.
void SetSnapshotShapes(tensorflow::shape_inference::InferenceContext* c, int first, int64_t dim);

// Fills the outputs from `first` on with the rows [begin, end) and everything else, except the
// counts of an admission.
absl::Status PutPiece(tensorflow::OpKernelContext* ctx, int first, const std::string& table,
                      const Table::Snapshot& snapshot, int dim, int64_t begin, int64_t end,
                      bool with_admission);

// Fills the outputs from `first` on. Without slots, `slots` is [0, 0], and `update_nums`,
// `update_times`, `slot_start` and `admission` are [0].
absl::Status PutSnapshot(tensorflow::OpKernelContext* ctx, int first, const std::string& table,
                         const Table::Snapshot& snapshot, int dim, bool with_slots);

// Reads the inputs from `first` on. They must outlive the contents.
absl::Status ReadContents(tensorflow::OpKernelContext* ctx, int first, const std::string& table,
                          int dim, TableContents* contents);

// Logs a warning of the parts that a restore has left out.
absl::Status LogDropped(const Result<RestoreOutcome>& outcome, const std::string& table);

}  // namespace sok
