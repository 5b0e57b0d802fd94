// The contents of a table at one moment, which stay the same while the table goes on changing.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/rows/row_capture.h"
#include "core/rows/row_store.h"
#include "core/tables/table_contents.h"

namespace sok {

struct TableCapture {
  std::shared_ptr<const void> hold;  // keeps the table alive; set by the caller that begins it
  std::unique_ptr<RowCapture> rows;
  TableState state;
  std::vector<float> slot_start;
  int64_t step_clock = TableContents::kSeconds;
  int dim = 0;
  std::vector<std::string> admission;  // the pieces of DumpCounts; none without an admission

  int slot_floats() const { return static_cast<int>(slot_start.size()); }
};

// Hands captures from the code that began them to the code that writes them, perhaps in another
// library of the process. Thread-safe.
uint64_t HandOver(TableCapture capture);
// Returns nothing for a number that HandOver has not returned, or that was taken before.
std::optional<TableCapture> TakeCapture(uint64_t number);

}  // namespace sok
