// The place of a state of a storage in its history.
#pragma once

#include <cstdint>
#include <string>

namespace sok {

// The name of the value that says which state a database is in.
constexpr char kHistoryName[] = "history";

// Says which state a database is in: who has published last, and how often by then. Copies of one
// storage that were trained on apart are in states of different openings, so that a journal that
// goes with one of them is not taken for the journal of the other.
struct History {
  uint64_t opening = 0;    // a random number of the process's opening; 0: an earlier version
  uint64_t published = 0;  // the number of the last publication of that opening

  // Encode and decode the value. Decoding another text gives the state of an earlier version.
  std::string ToText() const;
  static History FromText(const std::string& text);

  bool operator==(const History& other) const {
    return opening == other.opening && published == other.published;
  }
};

}  // namespace sok
