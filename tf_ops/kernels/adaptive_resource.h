// An adaptive table as TensorFlow holds it.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "core/adaptive/adaptive_table.h"
#include "kernels/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace sok {

class OpenAdaptiveTable {
 public:
  static constexpr char kKind[] = "table";

  OpenAdaptiveTable(std::string name, std::shared_ptr<AdaptiveTable> table)
      : name_(std::move(name)), table_(std::move(table)) {}

  int64_t MemoryUsed() const { return 0; }  // not counted

  const std::string& name() const { return name_; }
  const std::shared_ptr<AdaptiveTable>& table() const { return table_; }

 private:
  std::string name_;
  std::shared_ptr<AdaptiveTable> table_;
};

using AdaptiveResource = ResourceOf<OpenAdaptiveTable>;

// Finds the adaptive table of input 0.
inline absl::Status GetAdaptive(tensorflow::OpKernelContext* ctx,
                                std::shared_ptr<OpenAdaptiveTable>* table) {
  TF_RETURN_IF_ERROR(ExpectScalar(ctx->input(0), "table"));
  return GetContent(ctx, tensorflow::HandleFromInput(ctx, 0), table);
}

}  // namespace sok
