// What every kernel here needs: the table behind a handle, its keys, its threads, its errors.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "core/storage.h"
#include "core/table.h"
#include "core/types.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace sok {

// A table under a name in TensorFlow's resource manager.
class TableResource : public tensorflow::ResourceBase {
 public:
  // storage: that of the table, if it lies in one; null else.
  TableResource(std::string name, std::shared_ptr<Storage> storage, std::shared_ptr<Table> table)
      : name_(std::move(name)), storage_(std::move(storage)), table_(std::move(table)) {}

  std::string DebugString() const override { return "sok_embed table '" + name_ + "'"; }
  int64_t MemoryUsed() const override;

  const std::string& name() const { return name_; }
  const std::shared_ptr<Table>& table() const { return table_; }

 private:
  std::string name_;
  std::shared_ptr<Storage> storage_;
  std::shared_ptr<Table> table_;
};

// The core's error as TensorFlow's, with the table's name in front if there is one.
absl::Status ToAbsl(const Status& status, const std::string& table_name = "");

// The table of input 0.
absl::Status GetTable(tensorflow::OpKernelContext* ctx,
                      tensorflow::core::RefCountPtr<TableResource>* resource);

// kInvalidArgument unless the tensor has one element. Shape functions do not run eagerly, and
// TensorFlow aborts the process where a kernel reads a scalar from a tensor that is none.
absl::Status ExpectScalar(const tensorflow::Tensor& tensor, const char* what);

// TensorFlow's intra-op pool.
ParallelFor IntraOpPool(tensorflow::OpKernelContext* ctx);

// The keys of a tensor as the core's 64 bits. int32 keys are widened, keeping their sign; the
// others are not copied.
LookupKeys KeysOf(const tensorflow::Tensor& keys);

// Owns `tensor`'s buffer for as long as the pointer lives.
std::shared_ptr<const void> Hold(const tensorflow::Tensor& tensor);

}  // namespace sok
