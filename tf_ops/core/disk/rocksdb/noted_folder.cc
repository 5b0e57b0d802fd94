#include "core/disk/rocksdb/noted_folder.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "core/base/checksum.h"
#include "core/base/file.h"
#include "core/base/folder.h"
#include "core/base/status_macros.h"

namespace sok {
namespace {

constexpr std::string_view kManifest = "MANIFEST-", kLog = ".log";
constexpr size_t kReadTogether = size_t{1} << 20;
constexpr char kRemedy[] =
    "; restore the folder from a checkpoint or a dump. A copy of a folder that is in use is not "
    "whole either: only checkpoint(path) makes one";

// Computes what a note says of the first bytes of a file.
Result<WrittenFile> Look(const InputFile& file, uint64_t bytes) {
  RunningChecksum checksum;
  checksum.Start(0);
  std::string piece;
  for (uint64_t at = 0; at < bytes; at += piece.size()) {
    piece.resize(std::min<uint64_t>(kReadTogether, bytes - at));
    SOK_RETURN_IF_ERROR(file.ReadAt(at, piece.data(), piece.size()));
    checksum.Add(piece.data(), piece.size());
  }
  return WrittenFile{bytes, bytes, checksum.value()};
}

Status CheckFile(const std::string& folder, const std::string& name, const WrittenFile& noted) {
  const std::string path = folder + "/" + name;
  const std::string bytes = std::to_string(noted.bytes);
  auto opened = InputFile::Open(path);
  if (opened.status().code() == Code::kNotFound) {
    return Status(Code::kDataLoss, "the file '" + path + "' is missing: it had " + bytes +
                                       " bytes of what was flushed" + kRemedy);
  }
  if (!opened.ok()) return opened.status();
  const InputFile& file = *opened.value();
  if (file.bytes() < noted.bytes) {
    return Status(Code::kDataLoss, "the file '" + path + "' is damaged: expected at least " +
                                       bytes + " bytes, got " + std::to_string(file.bytes()) +
                                       kRemedy);
  }
  SOK_ASSIGN_OR_RETURN(const WrittenFile found, Look(file, noted.bytes));
  if (found.checksum == noted.checksum) return Status();
  return Status(Code::kDataLoss, "the file '" + path + "' is damaged: its first " + bytes +
                                     " bytes are not those that were written" + kRemedy);
}

}  // namespace

bool IsNoted(const std::string& name) { return ManifestNumber(name) > 0 || LogNumber(name) > 0; }

uint64_t LogNumber(const std::string& name) {
  char* end = nullptr;
  const uint64_t number = std::strtoull(name.c_str(), &end, 10);
  return end == kLog ? number : 0;
}

uint64_t ManifestNumber(const std::string& name) {
  if (name.compare(0, kManifest.size(), kManifest) != 0) return 0;
  char* end = nullptr;
  const uint64_t number = std::strtoull(name.c_str() + kManifest.size(), &end, 10);
  return *end == '\0' ? number : 0;
}

Result<std::string> CurrentManifest(const std::string& folder) {
  SOK_ASSIGN_OR_RETURN(const auto file, InputFile::Open(folder + "/CURRENT"));
  std::string name(std::min<uint64_t>(file->bytes(), 64), '\0');
  SOK_RETURN_IF_ERROR(file->ReadAt(0, name.data(), name.size()));
  if (!name.empty() && name.back() == '\n') name.pop_back();
  return ManifestNumber(name) > 0 ? name : std::string();
}

Result<bool> CheckNoted(const std::string& folder, const WrittenNote& note) {
  const WrittenNote::Files files = note.files();
  uint64_t newest = 0;
  for (const auto& [name, file] : files) newest = std::max(newest, ManifestNumber(name));
  if (newest == 0) return false;
  SOK_ASSIGN_OR_RETURN(const std::string current, CurrentManifest(folder));
  const auto manifest = files.find(current);
  if (manifest == files.end()) {
    // RocksDB reports a CURRENT that names no manifest.
    if (current.empty() || ManifestNumber(current) > newest) return false;
    return Status(Code::kDataLoss, "'" + folder + "/CURRENT' is damaged or old: it names '" +
                                       current + "', and a later manifest has been in use" +
                                       kRemedy);
  }
  SOK_RETURN_IF_ERROR(CheckFile(folder, current, manifest->second));
  for (const auto& [name, file] : files) {
    if (LogNumber(name) > 0) SOK_RETURN_IF_ERROR(CheckFile(folder, name, file));
  }
  return true;
}

Result<uint64_t> LastLog(const std::string& folder) {
  SOK_ASSIGN_OR_RETURN(const std::vector<std::string> names, FilesIn(folder));
  uint64_t last = 0;
  for (const std::string& name : names) last = std::max(last, LogNumber(name));
  return last;
}

Status NoteCopy(const std::string& folder, const WrittenNote::Files& others) {
  WrittenNote note(folder);
  for (const auto& [name, file] : others) SOK_RETURN_IF_ERROR(note.Set(name, file));
  SOK_ASSIGN_OR_RETURN(const std::vector<std::string> names, FilesIn(folder));
  for (const std::string& name : names) {
    if (!IsNoted(name)) continue;
    SOK_ASSIGN_OR_RETURN(const auto file, InputFile::Open(folder + "/" + name));
    SOK_ASSIGN_OR_RETURN(const WrittenFile written, Look(*file, file->bytes()));
    SOK_RETURN_IF_ERROR(note.Set(name, written));
  }
  return note.Start();
}

}  // namespace sok
