// Checks that a dump can be the result of training, before any of it is loaded.
#pragma once

#include <string>

#include "core/base/status.h"
#include "core/dump/damo_dump.h"
#include "core/dump/dump_file.h"
#include "core/dump/progress.h"

namespace sok {

// The error, if it is one, with the group of the file that it was found in.
Status InGroup(const std::string& path, int group, const Status& status);

// Checks the rows and states of a whole dump, after which it can be loaded; their counts are in
// range by their type:
// descriptions of groups fit their rows, and checksums are right. Reads the file once; twice if the
// keys of a group do not ascend, and takes 8 bytes for each of them then. Errors: those of
// DumpReader::Verify; kInvalidArgument with the group.
Status CheckDump(const DumpReader& reader, const std::string& path, const DumpProgress& progress);

// The keys of such a dump, which it has in any order: 8 bytes for each.
Status CheckDamoDump(const DamoDumpReader& reader, const std::string& path);

}  // namespace sok
