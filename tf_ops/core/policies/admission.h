// Admission: a key gets a row only once it has been seen often enough. Most keys of a click log
// come once or twice; rows for them cost memory and learn nothing.
//
//   frequency       one exact counter for each key that has no row yet
//   counting_bloom  a counting Bloom filter: memory that is fixed beforehand, never a key missed,
//                   and a few admitted too early (false_positive_rate)
//
// Every method of Admission may be called from several threads at once, but there must be one save
// at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"

namespace sok {

struct AdmissionConfig {
  // "frequency" or "counting_bloom".
  // Default: "frequency"
  std::string kind = "frequency";

  // A key is admitted when it is seen for the min_count-th time; with 1, at once.
  // Default: 2
  uint32_t min_count = 2;

  // Only counting_bloom reads the fields below.

  // The number of distinct keys that the filter is made for. With more keys it admits more and more
  // of them too early. Default: 1 000 000
  uint64_t capacity = 1000000;

  // The share of keys that are admitted before they were seen min_count times, once `capacity`
  // distinct keys have been seen min_count times. In (0, 1).
  // Default: 0.01
  double false_positive_rate = 0.01;

  // The bits of a counter: 2, 4, 8 or 16. min_count is at most 2^counter_bits - 1.
  // Default: 4
  int counter_bits = 4;
};

// Returns true if counters of one config mean the same under the other. It compares only the fields
// that the kind reads.
bool SameAdmission(const AdmissionConfig& a, const AdmissionConfig& b);

// The results of Admission::Dump, by the number of the chunk. The caller owns the bytes.
using AdmissionChunks = std::map<uint32_t, std::string_view>;

class Admission {
 public:
  virtual ~Admission() = default;

  // Counts each of keys[0, n) counts[i] times, in order; once if `counts` is null. admitted[i]
  // becomes 1 if the key has been seen min_count times or more by then, and otherwise 0. Threads
  // that observe a key at the same time count it as if they came one after the other. Errors:
  // kResourceExhausted if there is no memory for a counter (frequency). The keys before the one
  // that failed have been counted then.
  virtual Status Observe(const Key* keys, const int64_t* counts, size_t n,
                         uint8_t* admitted) = 0;  // (n,), (n,), (n,)

  // Sets admitted to 1 for each key that has been seen min_count times. Counts nothing.
  virtual void Admitted(const Key* keys, size_t n, uint8_t* admitted) const = 0;  // (n,), (n,)

  // Forgets keys that have got rows; a row itself shows that its key was admitted. frequency
  // removes their counters: a key that comes again without a row starts from 0. counting_bloom does
  // nothing, because a counter belongs to many keys.
  virtual void Forget(const Key* keys, size_t n) = 0;  // (n,)

  // Returns the memory that is held, in bytes.
  virtual uint64_t bytes() const = 0;

  virtual AdmissionConfig config() const = 0;

  // Saving. The state consists of chunks [0, chunks()), each a string of bytes with a number. A
  // chunk that was never changed is empty and need not be stored. A save is:
  //
  //   for (uint32_t chunk : admission.ChangedChunks()) Put(chunk, admission.Dump(chunk).value());
  //   if (Commit()) admission.MarkSaved();
  //
  // and opening is Load of every chunk that the store has, into a new filter of the same config.
  // The counters of one key are all in one chunk, so a chunk never holds half an observation.

  // Returns the number of chunks, the same for every filter of one config. A chunk of
  // counting_bloom has at most 256 KiB; frequency has 1024 chunks of 12 bytes a counter: 1 MiB each
  // at 89 million counters.
  virtual uint32_t chunks() const = 0;

  // Returns the chunks that have changed since the last save that MarkSaved has confirmed, in
  // ascending order. Later changes count for the next save, whether or not Dump has them already.
  // After a save that failed, call this again: the chunks of that save are listed too.
  virtual std::vector<uint32_t> ChangedChunks() = 0;

  // Returns the bytes of a chunk as it is now, for machines of either byte order.
  // Errors: kInvalidArgument for a chunk that is not in [0, chunks()).
  virtual Result<std::string> Dump(uint32_t chunk) const = 0;

  // Confirms that the chunks of the last ChangedChunks are stored for good.
  virtual void MarkSaved() = 0;

  // Replaces a chunk by the result of Dump. It counts as saved then. After an error nothing has
  // changed. Errors: kInvalidArgument for a chunk of another number or config, kDataLoss for bytes
  // that were cut short or damaged, kResourceExhausted.
  virtual Status Load(uint32_t chunk, std::string_view bytes) = 0;

  // The functions below copy all counters into a file of the whole table, and back. They do not
  // affect ChangedChunks.

  // Returns the chunks that were ever changed, in ascending order.
  virtual std::vector<uint32_t> UsedChunks() const = 0;

  // Returns the errors of Restore: the errors of Load, for any of the chunks.
  virtual Status CheckChunks(const AdmissionChunks& chunks) const = 0;

  // Replaces all counters. Chunks that are not given become empty. Chunks that change are part of
  // the next save. After an error nothing has changed, unless memory ended.
  virtual Status Restore(const AdmissionChunks& chunks) = 0;
};

// Makes an admission. Errors: kInvalidArgument for an unknown kind and for a value out of its
// range, kResourceExhausted for a filter that does not fit into this machine's memory.
Result<std::unique_ptr<Admission>> MakeAdmission(const AdmissionConfig& config);

}  // namespace sok
