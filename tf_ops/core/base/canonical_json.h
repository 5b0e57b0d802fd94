// The one text of a JSON value, of which checksums are made.
#pragma once

#include <optional>
#include <string>

namespace sok {

// Returns a JSON text in the form that Python's json.dumps gives it with sort_keys=True and
// separators=(",", ":"): names in order, no spaces, ASCII alone. Of two values of one name the last
// counts. `omitted` is a name that the outermost object is written without. Returns nullopt for a
// text that is not JSON. Some reals have another form in Python.
std::optional<std::string> CanonicalJson(const std::string& text, const std::string& omitted = "");

}  // namespace sok
