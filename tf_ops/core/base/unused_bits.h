// The mark of a row of gradients that holds no gradient, for the host and for a GPU.
#pragma once

#include <cstdint>

namespace sok {

// The first element of a row of gradients that holds no gradient: the embedding was not used, so
// its row is not updated. It is a NaN that no arithmetic produces.
constexpr uint32_t kUnusedBits = 0x7fcb5e57u;

}  // namespace sok
