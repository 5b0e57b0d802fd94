#include "core/base/file_error.h"

#include <cerrno>
#include <system_error>

namespace sok {

Status FileError(int error, const std::string& message) {
  const std::string text = message + ": " + std::generic_category().message(error);
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return Status(Code::kResourceExhausted, text + kMakeRoom);
    case EROFS:
      return Status(Code::kPermissionDenied, text + kMountForWriting);
    case EACCES:
    case EPERM:
      return Status(Code::kPermissionDenied, text + kCheckOwner);
    case ENOENT:
      return Status(Code::kNotFound, text);
    default:
      return Status(Code::kInternal, text);
  }
}

}  // namespace sok
