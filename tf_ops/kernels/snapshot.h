// How the contents of a table go out of an op, and come back into one.
#pragma once

#include <string>

#include "core/adaptive/adaptive_table.h"
#include "kernels/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace sok {

// Tensors of one table's contents: keys, embeddings, slots, update_nums, slot_start, rule, steps.
constexpr int kSnapshotTensors = 7;

// Sets the shapes of the outputs from `first` on.
void SetSnapshotShapes(tensorflow::shape_inference::InferenceContext* c, int first, int64_t dim);

// Fills the outputs from `first` on. Without slots, `slots` is [0, 0], `update_nums` and
// `slot_start` are [0].
absl::Status PutSnapshot(tensorflow::OpKernelContext* ctx, int first, const std::string& table,
                         const Table::Snapshot& snapshot, int dim, bool with_slots);

// Reads the inputs from `first` on. They must outlive the rows.
absl::Status ReadSnapshot(tensorflow::OpKernelContext* ctx, int first, const std::string& table,
                          int dim, AdaptiveTable::Rows* rows);

}  // namespace sok
