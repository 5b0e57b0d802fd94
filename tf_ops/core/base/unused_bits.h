// The mark of gradients that are none, for the host and for a GPU.
#pragma once

#include <cstdint>

namespace sok {

// The first element of a row that stands for no gradient: the embedding was not used, so the row
// is left as it is. It is a NaN that no arithmetic makes.
constexpr uint32_t kUnusedBits = 0x7fcb5e57u;

}  // namespace sok
