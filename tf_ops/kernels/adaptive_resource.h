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

class AdaptiveResource : public tensorflow::ResourceBase {
 public:
  AdaptiveResource(std::string name, std::shared_ptr<AdaptiveTable> table)
      : name_(std::move(name)), table_(std::move(table)) {}

  std::string DebugString() const override { return "sok_embed adaptive table '" + name_ + "'"; }

  const std::string& name() const { return name_; }
  const std::shared_ptr<AdaptiveTable>& table() const { return table_; }

 private:
  std::string name_;
  std::shared_ptr<AdaptiveTable> table_;
};

// Finds the adaptive table of input 0.
inline absl::Status GetAdaptive(tensorflow::OpKernelContext* ctx,
                                tensorflow::core::RefCountPtr<AdaptiveResource>* resource) {
  TF_RETURN_IF_ERROR(ExpectScalar(ctx->input(0), "table"));
  return tensorflow::LookupResource(ctx, tensorflow::HandleFromInput(ctx, 0), resource);
}

}  // namespace sok
