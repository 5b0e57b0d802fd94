#include "core/rows/row_store.h"

#include <string>

#include "core/base/status.h"

namespace sok {

Status WithRowsThatStay(const Status& failed, uint64_t rows) {
  if (failed.ok() || rows == 0) return failed;
  return ErrorOrLiteral(
      failed.code(), "memory has ended in the midst of a call, and rows that it has made stay",
      [&] {
        return failed.Within("", "; " + std::to_string(rows) +
                                     " rows that the call has made could not be taken back, and "
                                     "stay with the values that they start from");
      });
}

Status TableFull(uint64_t rows, uint64_t max_rows, uint64_t added) {
  return Status(Code::kResourceExhausted,
                "the table is full: it holds " + std::to_string(rows) + " of at most " +
                    std::to_string(max_rows) + " rows, and this call brings " +
                    std::to_string(added) +
                    " new keys; raise the limit, or remove keys that nobody needs");
}

}  // namespace sok
