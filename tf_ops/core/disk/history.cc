#include "core/disk/history.h"

#include <cinttypes>
#include <cstdio>

namespace sok {

std::string History::ToText() const {
  char text[48];
  std::snprintf(text, sizeof(text), "%016" PRIx64 " %" PRIu64, opening, published);
  return text;
}

History History::FromText(const std::string& text) {
  History history;
  const int read =
      std::sscanf(text.c_str(), "%16" SCNx64 " %" SCNu64, &history.opening, &history.published);
  return read == 2 ? history : History();
}

}  // namespace sok
