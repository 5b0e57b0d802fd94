// The format of frames on a connection. Internal to the transport.
//
// A connection carries frames, one after another: a header, then `bytes` bytes. All workers of a
// job run the same program on machines of one byte order.
#pragma once

#include <cstdint>

namespace sok {

struct FrameHeader {
  enum Kind : uint32_t {
    kRows = 1,      // rows of an exchange
    kGivingUp = 2,  // the sender ends the mesh; the bytes are the words of the worker `count`
  };
  static constexpr uint32_t kMagic = 0x534f4b46;

  uint32_t magic = kMagic;
  uint32_t kind = kRows;
  uint64_t name = 0;  // a hash of the exchange's name
  uint64_t turn = 0;
  uint64_t row_type = 0;
  uint64_t count = 0;  // of rows
  uint64_t bytes = 0;  // that follow the header
};

}  // namespace sok
