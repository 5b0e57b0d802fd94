// The counts of an admission, with the config that they belong to, as they are saved with a table
// in memory.
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

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/policies/admission.h"

namespace sok {

// Returns the present counts in pieces that stand one after the other: the head, then the chunks. A
// key that is observed meanwhile is counted completely or not at all.
Result<std::vector<std::string>> DumpCounts(const Admission& admission);

// The result of DumpCounts, in one piece.
struct AdmissionCounts {
  AdmissionConfig config;
  AdmissionChunks chunks;  // views of the bytes that were read
};

// Reads counts and checks the head; Admission::CheckChunks checks the chunks.
// Errors: kDataLoss for bytes that were cut short or damaged, or have another format;
// kInvalidArgument for another version.
Result<AdmissionCounts> ReadCounts(std::string_view bytes);

// Returns for each key 1 if its counter stays, and otherwise 0.
using KeepCounters = std::function<std::vector<uint8_t>(std::vector<int64_t> keys)>;

// Merges results of DumpCounts of several workers into one; of no workers it is empty. A counter of
// frequency belongs to a key: where several workers have one, the greatest stays, if any stays. A
// counter of counting_bloom belongs to many keys, and the greatest of all workers is taken: it is
// never too low, but too high for some keys, which are admitted early.
// Errors: the errors of ReadCounts, MakeAdmission and CheckChunks; kInvalidArgument for counts of
// two configs.
Result<std::string> MergeCounts(const std::vector<std::string_view>& dumps,
                                const KeepCounters& keep);

// Returns a text for messages, such as "frequency with min_count 2".
std::string Described(const AdmissionConfig& config);

}  // namespace sok
