// A resource that an object of Python owns.
//
// TensorFlow keeps some graphs for as long as the process lives, among them those of training steps
// whose gradients Keras sums over replicas: it keeps the gradient function of that sum in a
// registry. A graph keeps the handles that it has captured. So the content behind a handle is
// destroyed when its owner releases it, at the latest with the last handle, and a graph that runs
// later gets an error.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace sok {

class OwnedResource : public tensorflow::ResourceBase {
 public:
  // Releases the content. Ops that are running keep what they use.
  virtual void Release() = 0;
};

// Content has a name(), and a static kKind for messages. Thread-safe.
template <typename Content>
class ResourceOf : public OwnedResource {
 public:
  explicit ResourceOf(std::shared_ptr<Content> content)
      : name_(content->name()), content_(std::move(content)) {}

  std::string DebugString() const override {
    return std::string("sok_embed ") + Content::kKind + " '" + name_ + "'";
  }
  int64_t MemoryUsed() const override {
    const std::shared_ptr<Content> content = this->content();
    return content == nullptr ? 0 : content->MemoryUsed();
  }
  const std::string& name() const { return name_; }

  // Returns the content; null once it was released.
  std::shared_ptr<Content> content() const {
    std::lock_guard<std::mutex> guard(mu_);
    return content_;
  }

  void Release() override {
    std::shared_ptr<Content> gone;  // destroyed without the lock: this may take long
    std::lock_guard<std::mutex> guard(mu_);
    gone.swap(content_);
  }

 private:
  const std::string name_;
  mutable std::mutex mu_;  // guards content_
  std::shared_ptr<Content> content_;
};

// Finds the content behind a handle, for an op that uses it.
// Error: kFailedPrecondition if its owner has released it.
template <typename Content>
absl::Status GetContent(tensorflow::OpKernelContext* ctx, const tensorflow::ResourceHandle& handle,
                        std::shared_ptr<Content>* content) {
  tensorflow::core::RefCountPtr<ResourceOf<Content>> resource;
  TF_RETURN_IF_ERROR(tensorflow::LookupResource(ctx, handle, &resource));
  *content = resource->content();
  if (*content != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      std::string(Content::kKind) + " '" + resource->name() +
      "': expected one that is there, got one whose layer, or Python object, was deleted; keep the "
      "model for as long as functions that were traced with it are called");
}

}  // namespace sok
