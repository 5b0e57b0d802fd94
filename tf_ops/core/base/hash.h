// A 64-bit mixer: the finalizer of SplitMix64 (Steele, Lea, Flood 2014, "Fast splittable
// pseudorandom number generators"), with Stafford's "variant 13" constants. It is a bijection.
#pragma once

#include <cstdint>

namespace sok {

inline uint64_t Mix64(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ull;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

}  // namespace sok
