// What a storage says of a system call that failed on its files.
#pragma once

#include <string>

#include "core/base/status.h"

namespace sok {

// "<message>: <the system's words>; <what to do>". kResourceExhausted (disk, quota, file size
// limit), kPermissionDenied (the user, or a file system that can only be read), kNotFound, or
// kInternal.
Status FileError(int error, const std::string& message);

// What to do, by the words of RocksDB's errors as by those of the system.
inline constexpr char kMakeRoom[] =
    "; make room on the disk and try again, nothing written is lost";
inline constexpr char kCheckOwner[] = "; check who owns the folder";
inline constexpr char kMountForWriting[] =
    "; the file system can only be read: mount it for writing, and try again (where it was, its "
    "disk may have failed: look into the system's log)";

}  // namespace sok
