// The tables of an exported model, which follow its deltas while others look keys up in them.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/serving/delta_files.h"
#include "core/serving/layered_rows.h"

namespace sok {

// All tables at one version. Nothing of it changes. Thread-safe.
struct TablesVersion {
  uint64_t delta = 0;  // the number of the last delta; 0: the export itself
  std::string digest;  // the digest of that delta
  uint64_t step = 0;   // the step of the training at that delta
  std::vector<std::shared_ptr<const LayeredRows>> tables;  // in the order of ExportedTables
};

// Thread-safe: calls of version() do not wait for an Update that goes on.
class FollowedTables {
 public:
  // Opens an export as it was written. Errors: as OpenExport returns.
  static Result<std::unique_ptr<FollowedTables>> Open(const std::string& folder);

  const ExportedTables& base() const { return base_; }
  std::shared_ptr<const TablesVersion> version() const;

  // Applies all deltas up to one, or up to the newest one. After an error the version is that of
  // the last delta that could be applied. Errors: as ReadDelta, NewestDelta and AddLayer return;
  // kInvalidArgument for a delta before the present one.
  Status Update(uint64_t to);
  Status UpdateToNewest();

 private:
  explicit FollowedTables(ExportedTables base);

  const ExportedTables base_;
  std::mutex updating_;                           // held by Update
  mutable std::mutex mu_;                         // held for a moment
  std::shared_ptr<const TablesVersion> version_;  // guarded by mu_
};

}  // namespace sok
