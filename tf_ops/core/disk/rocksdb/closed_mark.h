// A mark in the folder of a database: this version of the library has closed it last, in this
// state.
//
// An opening for writing has RocksDB rewrite files before anything can be read. So the database is
// looked into beforehand, unless the mark shows that nobody has written to it since it was closed
// here. The name of a mark has the state, so a folder that was copied over another one has two
// marks. Every function may be called from any thread.
#pragma once

#include <optional>
#include <string>

#include "core/base/status.h"
#include "core/disk/history.h"

namespace sok {

struct ClosedMark {
  History history;    // the state that the database was closed in
  bool is_as_closed;  // nobody has written to the database since, or moved it
};

// Marks a folder whose database is closed, and holds what its owner writes in this format. Without
// room for the mark there is none.
void MarkClosed(const std::string& folder, int format, const History& history);

// Returns the mark; nullopt without one, as after a kill. Errors: kDataLoss if there are several.
Result<std::optional<ClosedMark>> FindClosedMark(const std::string& folder, int format);

// Returns kDataLoss if a database in the state `found` cannot have been closed with the mark.
Status CheckClosedMark(const std::string& folder, const std::optional<ClosedMark>& mark,
                       const History& found);

// Removes the mark. Comes before the database is opened for writing.
void RemoveClosedMark(const std::string& folder);

}  // namespace sok
