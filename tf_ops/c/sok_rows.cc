#include "include/sok_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status_macros.h"
#include "core/serving/followed_tables.h"

struct sok_rows {
  std::shared_ptr<const sok::LayeredRows> rows;
};
struct sok_rows_export {
  std::unique_ptr<sok::FollowedTables> tables;
};
struct sok_rows_version {
  std::shared_ptr<const sok::TablesVersion> version;
  std::vector<sok_rows> tables;
};

namespace {

using sok::Code;
using sok::InvalidArgument;
using sok::Status;

thread_local char last_error[4096] = "";

int Failed(Code code, std::string_view text) {
  const size_t size = std::min(text.size(), sizeof(last_error) - 1);
  std::memcpy(last_error, text.data(), size);
  last_error[size] = '\0';
  switch (code) {
    case Code::kInvalidArgument:
    case Code::kOutOfRange:
      return SOK_ROWS_INVALID_ARGUMENT;
    case Code::kNotFound:
      return SOK_ROWS_NOT_FOUND;
    case Code::kPermissionDenied:
      return SOK_ROWS_PERMISSION_DENIED;
    case Code::kResourceExhausted:
      return SOK_ROWS_EXHAUSTED;
    case Code::kDataLoss:
      return SOK_ROWS_CORRUPT;
    default:
      return SOK_ROWS_INTERNAL;
  }
}

// Calls a function that returns a Status. Nothing is thrown into C.
template <typename Fn>
int Call(const Fn& fn) {
  try {
    const Status status = fn();
    return status.ok() ? SOK_ROWS_OK : Failed(status.code(), status.text());
  } catch (const std::bad_alloc&) {
    return Failed(Code::kResourceExhausted,
                  "Expected memory for the call. Received: none. Give the process more memory.");
  } catch (const std::exception& error) {
    return Failed(Code::kInternal, error.what());
  } catch (...) {
    return Failed(Code::kInternal, "An unknown error.");
  }
}

Status CheckPointer(const void* pointer, const char* name) {
  if (pointer != nullptr) return Status();
  return InvalidArgument("Expected a pointer as '" + std::string(name) + "'. Received: null.");
}

// Writes as much of a struct as the caller has room for. `least` is the size that the struct had in
// the first version of the interface, in which it ended with other fields than it may now.
template <typename Info>
Status WriteInfo(Info full, size_t least, Info* info) {
  if (info->size < least) {
    return InvalidArgument("Expected a 'size' of at least " + std::to_string(least) +
                           " in the struct. Received: " + std::to_string(info->size) +
                           ". Set it to sizeof of the struct before the call.");
  }
  full.size = info->size;
  std::memcpy(info, &full, std::min(info->size, sizeof(full)));
  return Status();
}

}  // namespace

uint32_t sok_rows_abi(void) { return SOK_ROWS_ABI; }

const char* sok_rows_error(void) { return last_error; }

int sok_rows_open(const char* path, sok_rows** rows) {
  return Call([&] {
    SOK_RETURN_IF_ERROR(CheckPointer(path, "path"));
    SOK_RETURN_IF_ERROR(CheckPointer(rows, "rows"));
    SOK_ASSIGN_OR_RETURN(auto file, sok::ServedRows::Open(path));
    *rows = new sok_rows{std::make_shared<const sok::LayeredRows>(std::move(file))};
    return Status();
  });
}

void sok_rows_close(sok_rows* rows) { delete rows; }

int sok_rows_get_info(const sok_rows* rows, sok_rows_info* info) {
  return Call([&] {
    SOK_RETURN_IF_ERROR(CheckPointer(rows, "rows"));
    SOK_RETURN_IF_ERROR(CheckPointer(info, "info"));
    const sok::ServedRows& base = *rows->rows->base();
    sok_rows_info full{};
    full.rows = base.size();
    full.file_bytes = base.file_bytes();
    full.path = base.path().c_str();
    full.name = base.header().name.c_str();
    full.dtype = sok::ServingTypeName(base.header().type);
    full.dim = static_cast<uint32_t>(base.dim());
    full.layers = static_cast<uint32_t>(rows->rows->layers().size());
    return WriteInfo(full, offsetof(sok_rows_info, layers) + sizeof(full.layers), info);
  });
}

int sok_rows_lookup(const sok_rows* rows, const uint64_t* keys, size_t n, float* out) {
  return Call([&] {
    SOK_RETURN_IF_ERROR(CheckPointer(rows, "rows"));
    if (n == 0) return Status();
    SOK_RETURN_IF_ERROR(CheckPointer(keys, "keys"));
    SOK_RETURN_IF_ERROR(CheckPointer(out, "out"));
    return rows->rows->Lookup(keys, n, out, sok::SerialFor);
  });
}

int sok_rows_contains(const sok_rows* rows, const uint64_t* keys, size_t n, uint8_t* out) {
  return Call([&] {
    SOK_RETURN_IF_ERROR(CheckPointer(rows, "rows"));
    if (n == 0) return Status();
    SOK_RETURN_IF_ERROR(CheckPointer(keys, "keys"));
    SOK_RETURN_IF_ERROR(CheckPointer(out, "out"));
    return rows->rows->Contains(keys, n, out, sok::SerialFor);
  });
}

int sok_rows_verify(const sok_rows* rows) {
  return Call([&] {
    SOK_RETURN_IF_ERROR(CheckPointer(rows, "rows"));
    return rows->rows->base()->Verify(sok::SerialFor);
  });
}

int sok_rows_open_export(const char* folder, sok_rows_export** exported) {
  return Call([&] {
    SOK_RETURN_IF_ERROR(CheckPointer(folder, "folder"));
    SOK_RETURN_IF_ERROR(CheckPointer(exported, "exported"));
    SOK_ASSIGN_OR_RETURN(auto tables, sok::FollowedTables::Open(folder));
    *exported = new sok_rows_export{std::move(tables)};
    return Status();
  });
}

void sok_rows_close_export(sok_rows_export* exported) { delete exported; }

int sok_rows_update(sok_rows_export* exported, uint64_t delta) {
  return Call([&] {
    SOK_RETURN_IF_ERROR(CheckPointer(exported, "exported"));
    return delta == SOK_ROWS_NEWEST ? exported->tables->UpdateToNewest()
                                    : exported->tables->Update(delta);
  });
}

int sok_rows_newest(const sok_rows_export* exported, uint64_t* delta) {
  return Call([&] {
    SOK_RETURN_IF_ERROR(CheckPointer(exported, "exported"));
    SOK_RETURN_IF_ERROR(CheckPointer(delta, "delta"));
    SOK_ASSIGN_OR_RETURN(*delta, sok::NewestDelta(exported->tables->base()));
    return Status();
  });
}

int sok_rows_open_version(const sok_rows_export* exported, sok_rows_version** version) {
  return Call([&] {
    SOK_RETURN_IF_ERROR(CheckPointer(exported, "exported"));
    SOK_RETURN_IF_ERROR(CheckPointer(version, "version"));
    auto opened = std::make_unique<sok_rows_version>();
    opened->version = exported->tables->version();
    for (const auto& table : opened->version->tables) opened->tables.push_back({table});
    *version = opened.release();
    return Status();
  });
}

void sok_rows_close_version(sok_rows_version* version) { delete version; }

int sok_rows_get_version_info(const sok_rows_version* version, sok_rows_version_info* info) {
  return Call([&] {
    SOK_RETURN_IF_ERROR(CheckPointer(version, "version"));
    SOK_RETURN_IF_ERROR(CheckPointer(info, "info"));
    sok_rows_version_info full{};
    full.delta = version->version->delta;
    full.step = version->version->step;
    full.tables = version->tables.size();
    return WriteInfo(full, offsetof(sok_rows_version_info, tables) + sizeof(full.tables), info);
  });
}

int sok_rows_table(const sok_rows_version* version, const char* file, const sok_rows** rows) {
  return Call([&] {
    SOK_RETURN_IF_ERROR(CheckPointer(version, "version"));
    SOK_RETURN_IF_ERROR(CheckPointer(file, "file"));
    SOK_RETURN_IF_ERROR(CheckPointer(rows, "rows"));
    std::string names;
    for (const sok_rows& table : version->tables) {
      const std::string& path = table.rows->base()->path();
      const std::string name = path.substr(path.rfind('/') + 1);
      if (name == file) {
        *rows = &table;
        return Status();
      }
      names += (names.empty() ? "" : ", ") + name;
    }
    return Status(Code::kNotFound,
                  "Expected one of the files " + names + ". Received: '" + file + "'.");
  });
}

int sok_rows_table_at(const sok_rows_version* version, size_t number, const sok_rows** rows) {
  return Call([&] {
    SOK_RETURN_IF_ERROR(CheckPointer(version, "version"));
    SOK_RETURN_IF_ERROR(CheckPointer(rows, "rows"));
    if (number >= version->tables.size()) {
      return Status(Code::kNotFound, "Expected the number of a table below " +
                                         std::to_string(version->tables.size()) +
                                         ". Received: " + std::to_string(number) + ".");
    }
    *rows = &version->tables[number];
    return Status();
  });
}
