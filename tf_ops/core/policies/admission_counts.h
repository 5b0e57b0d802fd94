// Everything that an admission has counted, with the config that the counts belong to: what is
// saved of it along with a table in memory.
//
//   offset  bytes  field
//        0      4  "SOKN"
//        4      4  version of the format
//        8      4  bytes of the head, up to and with its checksum
//       12      4  min_count
//       16      8  capacity
//       24      8  false_positive_rate, the bits of a double
//       32      4  counter_bits
//       36      4  bytes of the kind
//       40         the kind
//                4  number of chunks, then of each: 4 its number, 8 its bytes
//                8  checksum of the head up to here
//                  the chunks one after the other: see chunk_format.h
//
// All numbers are little-endian.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/policies/admission.h"

namespace sok {

// The counts as they are now, in pieces that stand one after the other: the head, then the chunks.
// Keys that are observed meanwhile are in it or not, each as a whole.
Result<std::vector<std::string>> DumpCounts(const Admission& admission);

// The result of DumpCounts, in one piece.
struct AdmissionCounts {
  AdmissionConfig config;
  AdmissionChunks chunks;  // in the bytes that were read
};

// Checks the head; Admission::CheckChunks does so for the chunks.
// Errors: kDataLoss for bytes that were cut short or damaged, or are something else;
// kInvalidArgument for another version.
Result<AdmissionCounts> ReadCounts(std::string_view bytes);

// As a message names it: "frequency with min_count 2".
std::string Described(const AdmissionConfig& config);

}  // namespace sok
