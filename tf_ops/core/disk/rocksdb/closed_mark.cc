#include "core/disk/rocksdb/closed_mark.h"

#include <sys/stat.h>

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "core/base/folder.h"
#include "core/base/status_macros.h"

namespace sok {
namespace {

constexpr char kPrefix[] = "sok-closed-";
constexpr char kRemedy[] =
    "; copy the state that is wanted into an empty folder, from where it is whole, or restore it "
    "from a checkpoint or a dump";

std::string ReadLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Appends what changes whenever a file is written to or replaced. Returns false if it is not there.
bool AddIdentity(const std::string& path, std::ostringstream* text) {
  struct stat file;
  if (stat(path.c_str(), &file) != 0) return false;
  *text << ' ' << file.st_dev << ' ' << file.st_ino << ' ' << file.st_size << ' '
        << file.st_mtim.tv_sec << ' ' << file.st_mtim.tv_nsec;
  return true;
}

// Describes the files that every opening for writing changes; empty if one is not there.
std::string DescribeFiles(const std::string& folder, int format) {
  const std::string current = folder + "/CURRENT";
  const std::string manifest = ReadLine(current);
  std::ostringstream text;
  text << "format " << format << ' ' << manifest;
  const bool there = !manifest.empty() && AddIdentity(current, &text) &&
                     AddIdentity(folder + "/" + manifest, &text);
  return there ? text.str() : std::string();
}

}  // namespace

void MarkClosed(const std::string& folder, int format, const History& history) {
  const std::string described = DescribeFiles(folder, format);
  if (described.empty()) return;
  char name[64];
  std::snprintf(name, sizeof(name), "/%s%016" PRIx64 "-%" PRIu64, kPrefix, history.opening,
                history.published);
  std::ofstream file(folder + name, std::ios::trunc);
  file << described << '\n';
}

Result<std::optional<ClosedMark>> FindClosedMark(const std::string& folder, int format) {
  std::optional<ClosedMark> found;
  std::string first;
  SOK_ASSIGN_OR_RETURN(const std::vector<std::string> names, FilesIn(folder));
  for (const std::string& name : names) {
    if (name.compare(0, sizeof(kPrefix) - 1, kPrefix) != 0) continue;
    if (found.has_value()) {
      return Status(Code::kDataLoss,
                    "the folder '" + folder +
                        "' has files of two states of its storage, as where one copy is made over "
                        "another: '" +
                        first + "' and '" + name + "' were written when each was closed" + kRemedy);
    }
    first = name;
    found.emplace();
    const char* const state = name.c_str() + sizeof(kPrefix) - 1;
    std::sscanf(state, "%16" SCNx64 "-%" SCNu64, &found->history.opening,
                &found->history.published);
    const std::string described = DescribeFiles(folder, format);
    found->is_as_closed = !described.empty() && ReadLine(folder + "/" + name) == described;
  }
  return found;
}

Status CheckClosedMark(const std::string& folder, const std::optional<ClosedMark>& mark,
                       const History& found) {
  if (!mark.has_value()) return Status();
  const History& closed = mark->history;
  if (found.opening == closed.opening && found.published >= closed.published) return Status();
  return Status(Code::kDataLoss,
                "the files of '" + folder +
                    "' are of two states of its storage: it was closed in "
                    "the state " +
                    closed.ToText() + ", and its manifest and logs have the state " +
                    found.ToText() + ", as where an earlier copy of some files is made over it" +
                    kRemedy);
}

void RemoveClosedMark(const std::string& folder) { RemoveFiles(folder, kPrefix); }

}  // namespace sok
