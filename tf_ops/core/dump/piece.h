// Reads the rows of a dump piece by piece.
#pragma once

#include <functional>

#include "core/base/status.h"
#include "core/tables/table_contents.h"

namespace sok {

// Gets rows of one group. Their columns are valid until it returns; columns that the file does not
// have are null. It must not throw. A Status that is not OK stops the reading.
using PieceFn = std::function<Status(int group, const TableContents& piece)>;

}  // namespace sok
