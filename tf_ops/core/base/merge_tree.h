// Finds which of many sorted runs has the smallest key, while they are merged.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace sok {

// A tournament: a step costs one comparison, without a branch, for each doubling of the number of
// runs. Among equal keys, the key of the first run comes first.
class MergeTree {
 public:
  // All runs have ended until Set gives them a key.
  explicit MergeTree(size_t runs) {
    while (leaves_ < runs) leaves_ *= 2;
    // Until Start the second half has the keys of the runs.
    nodes_.assign(2 * leaves_, kEnded);
  }

  // Gives a run its first key. Before Start.
  void Set(size_t run, uint64_t key) { nodes_[leaves_ + run] = EntryOf(run, key); }
  void Start() {
    std::vector<Entry> least(nodes_);
    for (size_t node = leaves_; node-- > 1;) {
      const auto [winner, loser] = std::minmax(least[2 * node], least[2 * node + 1]);
      least[node] = winner;
      nodes_[node] = loser;
    }
    nodes_.resize(leaves_);
    winner_ = least[1];
  }

  bool ended() const { return winner_ == kEnded; }
  // The run that has the smallest key, and that key. May not be called when all runs have ended.
  size_t run() const { return static_cast<uint32_t>(winner_); }
  uint64_t key() const { return static_cast<uint64_t>(winner_ >> 32); }
  // Gives that run its next key, which is not smaller, or ends it.
  void Next(uint64_t key) { Replay(EntryOf(run(), key)); }
  void End() { Replay(kEnded); }

 private:
  // The number of a run in the lowest 32 bits, its key above them.
  using Entry = unsigned __int128;
  static constexpr Entry kEnded = ~Entry{0};

  static Entry EntryOf(size_t run, uint64_t key) { return Entry{key} << 32 | run; }

  void Replay(Entry entry) {
    for (size_t node = (leaves_ + run()) / 2; node > 0; node /= 2) {
      const Entry other = nodes_[node];
      nodes_[node] = std::max(entry, other);
      entry = std::min(entry, other);
    }
    winner_ = entry;
  }

  size_t leaves_ = 1;
  std::vector<Entry> nodes_;  // of each match the one that lost it; the root is 1
  Entry winner_ = kEnded;
};

}  // namespace sok
