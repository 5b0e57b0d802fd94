// Checks that a dump can be the result of training, before any of it is loaded.
#pragma once

#include <string>

#include "core/base/status.h"
#include "core/dump/damo_dump.h"
#include "core/dump/dump_file.h"
#include "core/dump/progress.h"

namespace sok {

// Adds the path and the group to an error; returns other statuses unchanged.
Status InGroup(const std::string& path, int group, const Status& status);

// Checks the rows and states of a whole dump, after which it can be loaded; their counts are in
// range by their type:
// descriptions of groups fit their rows, and checksums are right. Reads the file once; twice if the
// keys of a group do not ascend, and takes 8 bytes for each of them then. Errors: as
// DumpReader::Verify returns; kInvalidArgument with the group.
Status CheckDump(const DumpReader& reader, const std::string& path, const DumpProgress& progress);

// Checks the keys of such a dump, which are in any order: takes 8 bytes for each.
Status CheckDamoDump(const DamoDumpReader& reader, const std::string& path);

}  // namespace sok
