// Reads the rows of a lookup: prefetches them, then copies them into the batch's output.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/base/bfloat16.h"

namespace sok {

// Calls fn(address) for each cache line of n values.
template <typename T, typename Fn>
void ForEachLine(const T* values, int n, const Fn& fn) {
  constexpr uintptr_t kLine = 64;
  const auto end = reinterpret_cast<uintptr_t>(values + n);
  for (uintptr_t line = reinterpret_cast<uintptr_t>(values) & ~(kLine - 1); line < end;
       line += kLine) {
    fn(reinterpret_cast<const void*>(line));
  }
}

// Prefetches into the second level of the cache, which takes more reads at a time than the first.
inline void PrefetchForCopy(const float* row, int floats) {
  ForEachLine(row, floats,
              [](const void* line) { __builtin_prefetch(line, /*rw=*/0, /*locality=*/2); });
}

// Prefetches what a copy will write to. Where the processor is not known to prefetch for writing,
// as on x86-64 in general, it is a prefetch for reading, which helps too.
template <typename T>
void PrefetchOutput(const T* out, int n) {
  ForEachLine(out, n, [](const void* line) { __builtin_prefetch(line, /*rw=*/1); });
}

template <typename T>
void CopyRow(const float* row, int dim, T* out) {
  for (int j = 0; j < dim; ++j) out[j] = FromFloat<T>(row[j]);
}

// Copies kFloats in vectors of 8.
template <int kFloats>
void CopyFloats(const float* from, float* to) {
  using Floats [[gnu::vector_size(32), gnu::aligned(4), gnu::may_alias]] = float;
  static_assert(kFloats % 8 == 0);
  Floats values[kFloats / 8];
  for (int i = 0; i < kFloats / 8; ++i) values[i] = reinterpret_cast<const Floats*>(from)[i];
  for (int i = 0; i < kFloats / 8; ++i) reinterpret_cast<Floats*>(to)[i] = values[i];
}

// Frequent sizes become a few vector moves.
template <>
inline void CopyRow<float>(const float* row, int dim, float* out) {
  switch (dim) {
    case 8:
      return CopyFloats<8>(row, out);
    case 16:
      return CopyFloats<16>(row, out);
    case 32:
      return CopyFloats<32>(row, out);
    case 64:
      return CopyFloats<64>(row, out);
    default:
      std::memcpy(out, row, dim * sizeof(float));
  }
}

}  // namespace sok
