// The keys of a lookup, from the lookup to the commit of their gradients.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>

#include "core/base/bfloat16.h"
#include "core/base/status.h"
#include "core/base/types.h"
#include "core/base/unused_bits.h"
#include "core/rows/row_store.h"
#include "core/rows/summed_gradients.h"
#include "core/tables/deposit_queue.h"
#include "core/tables/rows_in_use.h"

namespace sok {

// The keys of one lookup, kept for the deposit that follows it.
struct LookupKeys {
  std::shared_ptr<const void> hold;  // keeps `keys` alive
  const Key* keys = nullptr;         // (n)
  size_t n = 0;
  bool rows_made = false;  // the lookup made rows for the keys that had none
  uint64_t removals = 0;   // Table::removals() before the lookup
  // (n) The row of the deposited gradients that belongs to keys[i]; null: row i. `hold` keeps it
  // too.
  const uint32_t* positions = nullptr;
  // (n) How many keys of the batch each key stands for; null: 1. `hold` keeps them too.
  const int64_t* counts = nullptr;
  // From Table::CountOnce, if the lookup did not count the keys for an admission.
  std::shared_ptr<std::atomic<bool>> counted = nullptr;
  bool distinct = false;                        // true if no key is there twice
  std::shared_ptr<RowNumbers> found = nullptr;  // from Table::NumberRows; null: none
  // True if the commit leaves out keys that have no row by then. Otherwise they get one.
  bool leave_absent = false;
  double factor = 1.0;  // the factor that their gradients are multiplied by
  DepositOrder order = {};
  std::shared_ptr<SummedGradients> summed = nullptr;  // in a deposit: its gradients by key
  std::shared_ptr<RowClaim> claim = nullptr;          // Table::Claim; null: none
  // The device in whose memory `keys`, `positions` and the deposited gradients lie; none: the host.
  std::optional<DeviceBatch> device = std::nullopt;

  double square() const { return summed->square(); }
  double Dot(const LookupKeys& other) { return summed->Dot(*other.summed); }
};

// Returns true if a row of gradients begins with kUnusedBits, since a worker did not use the row.
inline bool IsUnused(const float* gradient) {
  uint32_t bits;
  std::memcpy(&bits, gradient, sizeof(bits));
  return bits == kUnusedBits;
}

// Returns the keys whose rows were used, by the gradients (keys.n, dim).
LookupKeys WithoutUnused(const LookupKeys& keys, const float* gradients, int dim);

// Copies keys and gradients of `dim` from a device to the host; `hold` becomes the owner of the
// copies. Does nothing if they are there. Exactly one of the two gradients is set.
Status ToHost(int dim, LookupKeys* keys, std::shared_ptr<const void>* hold, const float** gradients,
              const BFloat16** gradients_bf16);

}  // namespace sok
