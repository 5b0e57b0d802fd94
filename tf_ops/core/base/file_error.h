// Statuses for system calls that failed on the files of a storage.
#pragma once

#include <string>

#include "core/base/status.h"

namespace sok {

// Returns "<message>: <the system's words>; <what to do>". Its code is kResourceExhausted (disk,
// quota, file size limit), kPermissionDenied (the user, or a file system that can only be read),
// kNotFound, or kInternal.
Status FileError(int error, const std::string& message);

// These texts say what to do. They end the errors of RocksDB as well as the errors of the system.
inline constexpr char kMakeRoom[] =
    "; make room on the disk and try again, nothing written is lost";
inline constexpr char kRestore[] = "; restore the folder from a checkpoint or a dump";
inline constexpr char kCheckOwner[] = "; check who owns the folder";
inline constexpr char kMountForWriting[] =
    "; the file system can only be read: mount it for writing, and try again (where it was, its "
    "disk may have failed: look into the system's log)";

}  // namespace sok
