// The tables that one commit trains: a table, an adaptive table, or the tables of a collection.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/table_resource.h"
#include "tensorflow/core/framework/op_kernel.h"

// The first inputs and attributes of an op on such tables. A collection is given by its queue,
// which knows the tables.
#define SOK_TRAINED                           \
  Input("queue: num_queues * resource")       \
      .Input("tables: num_tables * resource") \
      .Attr("num_queues: int >= 0")           \
      .Attr("num_tables: int >= 0")           \
      .SetIsStateful()

namespace sok {

struct Trained {
  // The prefix of error messages. Empty for a collection, whose errors name the table.
  std::string name;
  std::vector<std::string> names;  // the name of each table
  // The table that keeps slot sources; null if there is none.
  std::shared_ptr<OpenTable> keeps_slot_sources;
  // Commits, by the common options of all tables and the options of each one; null: the table is
  // not trained.
  std::function<Result<std::vector<CommitOutcome>>(
      const CommitOptions&, const std::vector<const CommitOptions*>&, const ParallelFor&)>
      commit;
  std::function<uint64_t()> drop_deposits;
};

// Finds the tables of the inputs "queue" and "tables" of an op.
absl::Status GetTrained(tensorflow::OpKernelContext* ctx, Trained* trained);

}  // namespace sok
