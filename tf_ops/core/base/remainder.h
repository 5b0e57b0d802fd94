// Computes remainders by a divisor that many numbers share, without dividing. A GPU does so too.
#pragma once

#include <cstdint>

namespace sok {

// Returns the high half of the product.
inline uint64_t MulHi(uint64_t a, uint64_t b) {
#ifdef __CUDACC_RTC__  // a GPU
  return __umul64hi(a, b);
#else
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
#endif
}

// Computes x % divisor for one divisor. With r = floor(2^64 / divisor), the quotient is floor(r * x
// / 2^64) or one more.
class Remainder {
 public:
#ifndef __CUDACC_RTC__  // the host makes it
  // The divisor is at least 1. For 1, r does not fit into 64 bits, and any r does.
  explicit Remainder(uint64_t divisor)
      : divisor_(divisor),
        reciprocal_(divisor == 1 ? UINT64_MAX
                                 : static_cast<uint64_t>((static_cast<unsigned __int128>(1) << 64) /
                                                         divisor)) {}
  Remainder() : Remainder(1) {}
#endif

  uint64_t operator()(uint64_t x) const {
    const uint64_t rest = x - MulHi(x, reciprocal_) * divisor_;
    return rest < divisor_ ? rest : rest - divisor_;
  }

 private:
  uint64_t divisor_;
  uint64_t reciprocal_;
};

}  // namespace sok
