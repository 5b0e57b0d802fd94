// Keeps in memory which keys a database may have, so that a key without a row costs no search of
// the database.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/page_memory.h"
#include "core/base/status.h"
#include "core/disk/row_codec.h"

namespace sok {

// A set of keys that grows and forgets nothing. It says of every key that was added that it may be
// there, and so of 1 % to 2 % of the others. It takes 1.8 to 3.6 bytes a key.
//
// It consists of Bloom filters, each twice as large as the one before. The 8 bits of a key lie in
// one cache line, one in each 64-bit word, as in the filters of Putze, Sanders and Singler 2007,
// "Cache-, hash- and space-efficient Bloom filters".
//
// Thread-safe: keys may be added beside each other, and beside lookups of others.
class KeyFilter {
 public:
  KeyFilter() = default;
  KeyFilter(const KeyFilter&) = delete;

  // Adds keys. If memory for one is missing, the filter passes every key afterwards.
  void Add(const RowKey* keys, size_t n);

  // Returns the positions of the keys that may be there, in ascending order.
  std::vector<uint32_t> Select(const RowKey* keys, size_t n) const;

  // Returns the number of keys, where a few that came twice at once may count twice.
  uint64_t size() const;
  // Returns the memory that the filters take.
  uint64_t bytes() const;

  // A file that was complete when a filter was saved.
  struct SeenFile {
    uint64_t number;
    uint64_t mark;  // a checksum of what tells it from files of the same number
  };
  // Writes the filter into a file, with the files whose keys it is known to have. Errors: those of
  // ReplacementFile; kFailedPrecondition for a filter that passes every key.
  Status Save(const std::string& path, const std::vector<SeenFile>& seen) const;
  // Reads a filter that was saved, into one without keys, and the files whose keys it has. Returns
  // false if there is none, or none that is whole: the filter is as before then.
  bool Load(const std::string& path, std::vector<SeenFile>* seen);

 private:
  static constexpr int kWords = 8;            // of 64 bits in a line
  static constexpr uint64_t kKeysALine = 36;  // in a filter that is full
  static constexpr uint64_t kLeastLines = 1 << 12;
  static constexpr uint32_t kMostFilters = 32;

  // One Bloom filter.
  struct Filter {
    explicit Filter(uint64_t lines);
    uint64_t* LineOf(uint64_t hash) const {
      const auto line = static_cast<uint64_t>((static_cast<__uint128_t>(hash) * lines) >> 64);
      return reinterpret_cast<uint64_t*>(pages.data()) + line * kWords;
    }
    bool Contains(uint64_t hash) const;
    uint64_t capacity() const { return lines * kKeysALine; }

    const uint64_t lines;
    PageBuffer pages;
    std::atomic<uint64_t> keys{0};
  };

  static uint64_t Hash(const RowKey& key);
  // Sets found[i] to 1 where the filters below `used` have the hash.
  void Find(const std::vector<uint64_t>& hashes, uint32_t used, std::vector<uint8_t>* found) const;
  // Returns the filter that takes new keys, or null where memory has ended.
  Filter* Filling();
  bool PassesAll() const { return passes_all_.load(std::memory_order_relaxed); }

  std::unique_ptr<Filter> filters_[kMostFilters];
  std::atomic<uint32_t> used_{0};  // the filters below this number are there
  std::atomic<bool> passes_all_{false};
  std::mutex mu_;  // held while a filter is made
};

}  // namespace sok
