#include "core/rows/row_store.h"

#include <string>

namespace sok {

Status TableFull(uint64_t rows, uint64_t max_rows, uint64_t added) {
  return Status(Code::kResourceExhausted,
                "the table is full: it holds " + std::to_string(rows) + " of at most " +
                    std::to_string(max_rows) + " rows, and this call brings " +
                    std::to_string(added) +
                    " new keys; raise the limit, or remove keys that nobody needs");
}

}  // namespace sok
