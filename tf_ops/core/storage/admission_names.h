// Under which names a database has the admission of a group, in chunks. Included by the sources of
// Storage only.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

namespace sok {

inline std::string AdmissionName(int group) {
  char name[20];
  std::snprintf(name, sizeof(name), "admission/%03d/", group);
  return name;
}

inline std::string ChunkName(int group, uint32_t chunk) {
  char name[12];
  std::snprintf(name, sizeof(name), "%08x", chunk);
  return AdmissionName(group) + name;
}

}  // namespace sok
