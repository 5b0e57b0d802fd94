#pragma once

#include <string>
#include <string_view>

namespace sok {

// Returns whether a text is well-formed UTF-8 (The Unicode Standard 15.0, table 3-7).
bool IsUtf8(std::string_view text);

// Returns a text in which "\xff" stands for a byte FF that belongs to no character. Messages
// contain paths and parts of files, which may be any bytes, and Python refuses text that is not
// UTF-8.
std::string EscapedUtf8(std::string_view text);

}  // namespace sok
