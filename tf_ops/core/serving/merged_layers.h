// Layers of changed rows, of which there are few however many changes come.
#pragma once

#include <cstddef>
#include <vector>

#include "core/base/status.h"
#include "core/serving/layered_rows.h"

namespace sok {

// The most layers of changes that a table has over its base.
constexpr size_t kMostLayers = 4;

// Lays one more layer on top of others, the lowest first, and merges layers until each has more
// than twice the keys of the next one, and there are at most kMostLayers. So each row is merged
// only a few times, with any number of layers. Merged rows are float32, whatever those of the
// layers are: rounding twice would change them. They lie in files without names in the system's
// folder of temporary files. Errors: as SystemError returns, and as ServedRows::Lookup returns.
Status AddLayer(std::vector<RowsLayer>* layers, RowsLayer layer, int dim);

}  // namespace sok
