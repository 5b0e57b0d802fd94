// The code that all kernels of tables share: the table behind a handle, and its keys.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/base/types.h"
#include "core/storage/storage.h"
#include "core/tables/table.h"
#include "kernels/core_calls.h"
#include "kernels/owned_resource.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace sok {

// Optimizer slots of a static variable, in the order of the rule's slots.
using SlotSources = std::vector<tensorflow::core::RefCountPtr<tensorflow::Var>>;

// A table, with the objects that its ops keep.
class OpenTable {
 public:
  static constexpr char kKind[] = "table";

  // `storage` is the storage that the table lies in, or null.
  OpenTable(std::string name, std::shared_ptr<Storage> storage, std::shared_ptr<Table> table)
      : name_(std::move(name)), storage_(std::move(storage)), table_(std::move(table)) {}

  int64_t MemoryUsed() const;

  const std::string& name() const { return name_; }
  const std::shared_ptr<Table>& table() const { return table_; }
  // Returns true if the rows are in a storage. Its lookups may also wait for locks other than the
  // locks of shards.
  bool stored() const { return storage_ != nullptr; }
  // Returns FailedPrecondition in a process that was forked from the one that has the storage open:
  // calls would wait for threads that this process does not have.
  absl::Status CheckProcess() const;

  // Returns the variables from which new rows that start as static rows copy their slots; null
  // before the first commit that has set them.
  std::shared_ptr<const SlotSources> slot_sources() const {
    std::lock_guard<std::mutex> guard(mu_);
    return slot_sources_;
  }
  void set_slot_sources(std::shared_ptr<const SlotSources> sources) {
    std::lock_guard<std::mutex> guard(mu_);
    slot_sources_.swap(sources);
  }

  // Returns a flag that is true once it was reported that keys were not counted for a row.
  const std::shared_ptr<std::atomic<bool>>& reported_uncounted() const {
    return reported_uncounted_;
  }

  // Returns true in the first call only. Lookups with keys on a GPU and rows elsewhere call it
  // before they log that.
  bool BeginsCopies() { return !copies_.exchange(true); }

  // Notes keys that other workers will ask for in later steps. Where nobody takes them, the keys of
  // the last few calls are kept.
  void NoteKeysToCome(std::vector<Key> keys);
  // Returns the keys that were noted, by call, and forgets them.
  std::deque<std::vector<Key>> TakeKeysToCome() {
    std::lock_guard<std::mutex> guard(mu_);
    return std::exchange(keys_to_come_, {});
  }

  // Returns true if step number `step` is a multiple of `every` for which it has not returned true
  // before.
  bool BeginsStep(int64_t step, int64_t every) {
    std::lock_guard<std::mutex> guard(mu_);
    if (step == 0 || step % every != 0 || step == begun_) return false;
    begun_ = step;
    return true;
  }

 private:
  std::string name_;
  std::shared_ptr<Storage> storage_;
  std::shared_ptr<Table> table_;
  const std::shared_ptr<std::atomic<bool>> reported_uncounted_ =
      std::make_shared<std::atomic<bool>>(false);
  std::atomic<bool> copies_{false};
  mutable std::mutex mu_;  // guards the three fields below
  int64_t begun_ = 0;
  std::deque<std::vector<Key>> keys_to_come_;
  std::shared_ptr<const SlotSources> slot_sources_;
};

using TableResource = ResourceOf<OpenTable>;

// Finds the table of input 0.
absl::Status GetTable(tensorflow::OpKernelContext* ctx, std::shared_ptr<OpenTable>* table);

// Runs a kernel's function on the table of input 0.
template <absl::Status (*kRun)(tensorflow::OpKernelContext*, OpenTable&)>
absl::Status OnTable(tensorflow::OpKernelContext* ctx) {
  std::shared_ptr<OpenTable> table;
  TF_RETURN_IF_ERROR(GetTable(ctx, &table));
  return kRun(ctx, *table);
}

// Returns the keys of a tensor as the core's 64 bits. int32 keys are widened, keeping their sign;
// keys of other types are not copied.
LookupKeys KeysOf(const tensorflow::Tensor& keys);

// Points to the counts of keys, int64 of their shape, if the op has an input of counts after the
// `inputs` that it always has.
absl::Status CountsOf(tensorflow::OpKernelContext* ctx, int inputs, const tensorflow::Tensor& keys,
                      const int64_t** counts);

// Logs that the rows of a saved table lie in the host's memory, since the GPU that it was saved
// with is missing.
void LogOnHost(const std::string& table_name, int gpu, const Status& reason);

// Logs, once for each table, that a commit has dropped gradients of keys.
void LogLeftOut(const CommitOutcome& outcome, const std::string& table_name);

// Owns `tensor`'s buffer for as long as the pointer lives.
std::shared_ptr<const void> Hold(const tensorflow::Tensor& tensor);

}  // namespace sok
