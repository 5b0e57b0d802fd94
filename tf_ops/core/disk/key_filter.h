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

// A set of keys that only grows. It says of every key that was added that it may be there, and says
// the same of 1 % to 2 % of other keys.
//
// It consists of parts, which are Bloom filters. The 8 bits of a key lie in one cache line, one in
// each 64-bit word, as in the filters of Putze, Sanders and Singler 2007, "Cache-, hash- and
// space-efficient Bloom filters". A key is looked for in each of the parts, so there should be few.
// A small part and a part of 16 times its size, which stay in the processor's cache, come first.
// Each later part has the size that the caller gives, or half the size of all parts before it if
// that is more. Full parts take 1.45 bytes a key, and each passes 0.5 % of keys that were not
// added.
//
// Thread-safe: several threads may add keys while others look keys up.
class KeyFilter {
 public:
  // `part_bytes`: the size of the first of the large parts, kLeastBytes at least.
  explicit KeyFilter(uint64_t part_bytes = kLeastBytes);
  KeyFilter(const KeyFilter&) = delete;

  static constexpr uint64_t kLeastBytes = uint64_t{256} << 10;

  // Adds keys. If memory ends, the filter passes every key afterwards. `are_new`: none of the keys
  // has been added before, so they are not looked for; a key that has been counts twice.
  void Add(const RowKey* keys, size_t n, bool are_new = false);

  // Returns the positions of the keys that may be there, in ascending order.
  std::vector<uint32_t> Select(const RowKey* keys, size_t n) const;

  // Returns the number of keys. A few that two threads have added at once may count twice.
  uint64_t size() const;
  // Returns the memory that the parts take.
  uint64_t bytes() const;
  // Returns the number of parts, each of which is one place in memory to look at for a key.
  uint32_t parts() const { return used_.load(std::memory_order_acquire); }

  // A file that was complete when a filter was saved.
  struct SeenFile {
    uint64_t number;
    uint64_t mark;  // a checksum that differs between files of the same number
  };
  // Writes the filter into a file, with the files whose keys it is known to have. Errors: those of
  // ReplacementFile; kFailedPrecondition for a filter that passes every key.
  Status Save(const std::string& path, const std::vector<SeenFile>& seen) const;
  // Reads a filter that was saved, into one without keys, and the files whose keys it has. Returns
  // false, and leaves the filter as it was, if there is no whole file.
  bool Load(const std::string& path, std::vector<SeenFile>* seen);

 private:
  static constexpr int kWords = 8;  // of 64 bits in a line
  static constexpr uint64_t kLineBytes = 64;
  static constexpr uint64_t kKeysALine = 44;       // in a part that is full
  static constexpr uint64_t kKeysASmallLine = 16;  // in a part that costs little memory
  static constexpr uint32_t kMostParts = 64;

  // One Bloom filter.
  struct Part {
    Part(uint64_t lines, bool is_small);
    uint64_t* LineOf(uint64_t hash) const {
      const auto line = static_cast<uint64_t>((static_cast<__uint128_t>(hash) * lines) >> 64);
      return reinterpret_cast<uint64_t*>(pages.data()) + line * kWords;
    }
    bool Contains(uint64_t hash) const;
    // Called by one thread at a time.
    void Set(uint64_t hash);
    bool full() const { return keys.load(std::memory_order_relaxed) >= capacity; }
    uint64_t bytes() const { return lines * kLineBytes; }

    const uint64_t lines, capacity;
    PageBuffer pages;
    std::atomic<uint64_t> keys{0};
  };

  static uint64_t Hash(const RowKey& key);
  static std::vector<uint64_t> HashesOf(const RowKey* keys, size_t n);
  // Sets found[i] to 1 where the parts below `used` have the hash.
  void Find(const std::vector<uint64_t>& hashes, uint32_t used, std::vector<uint8_t>* found) const;
  // Returns how many lines a part has that follows `used` other parts.
  uint64_t LinesOf(uint32_t used) const;
  // Returns the part that takes new keys; null if memory has ended. Called with adding_ held.
  Part* Filling();
  bool PassesAll() const { return passes_all_.load(std::memory_order_relaxed); }

  const uint64_t large_lines_;
  std::unique_ptr<Part> parts_[kMostParts];
  std::atomic<uint32_t> used_{0};  // parts with lower numbers exist
  std::atomic<bool> passes_all_{false};
  std::mutex adding_;  // held while keys are added
};

}  // namespace sok
