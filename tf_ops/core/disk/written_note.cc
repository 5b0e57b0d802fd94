#include "core/disk/written_note.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "core/base/checksum.h"
#include "core/base/file.h"
#include "core/base/status_macros.h"

namespace sok {
namespace {

// Notes take turns between two places of the file, so that one that a kill tears leaves the one
// before it.
constexpr uint64_t kPlaceBytes = uint64_t{32} << 10;

// Stands in front of a note. After it come, for each file: the length of its name in a byte, the
// name, and the three numbers of a WrittenFile.
struct Head {
  static constexpr char kMagic[9] = "SOKWRTN1";

  char magic[8];
  uint64_t count;     // of the notes so far; the place with the greater one is newer
  uint64_t boot;      // of the machine; 0: unknown
  uint64_t bytes;     // the length of the part after the header
  uint64_t checksum;  // of the note, with 0 in this place
};

// Returns a number that the machine has until it is started again; 0 if it does not say.
uint64_t ThisBoot() {
  const int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  char text[64];
  const ssize_t n = read(file, text, sizeof(text));
  close(file);
  return n <= 0 ? 0 : Checksum(text, static_cast<size_t>(n), 0);
}

std::string Encode(const WrittenNote::Files& files, uint64_t count) {
  Head head = {};
  std::string note(sizeof(head), '\0');
  for (const auto& [name, file] : files) {
    note.push_back(static_cast<char>(name.size()));
    note += name;
    const uint64_t numbers[] = {file.bytes, file.synced, file.checksum};
    note.append(reinterpret_cast<const char*>(numbers), sizeof(numbers));
  }
  static const uint64_t boot = ThisBoot();
  std::memcpy(head.magic, Head::kMagic, sizeof(head.magic));
  head.count = count;
  head.boot = boot;
  head.bytes = note.size() - sizeof(head);
  std::memcpy(note.data(), &head, sizeof(head));
  head.checksum = Checksum(note.data(), note.size(), 0);
  std::memcpy(note.data(), &head, sizeof(head));
  return note;
}

// Decodes the note that begins at `place`. Returns false if there is none, or it is damaged.
bool Decode(std::string_view place, Head* head, WrittenNote::Files* files) {
  if (place.size() < sizeof(*head)) return false;
  std::memcpy(head, place.data(), sizeof(*head));
  if (std::memcmp(head->magic, Head::kMagic, sizeof(head->magic)) != 0 ||
      head->bytes > place.size() - sizeof(*head)) {
    return false;
  }
  std::string note(place.substr(0, sizeof(*head) + head->bytes));
  Head bare = *head;
  bare.checksum = 0;
  std::memcpy(note.data(), &bare, sizeof(bare));
  if (Checksum(note.data(), note.size(), 0) != head->checksum) return false;
  std::string_view rest = std::string_view(note).substr(sizeof(*head));
  while (!rest.empty()) {
    const size_t length = static_cast<unsigned char>(rest[0]);
    uint64_t numbers[3];
    if (rest.size() < 1 + length + sizeof(numbers)) return false;
    std::memcpy(numbers, rest.data() + 1 + length, sizeof(numbers));
    (*files)[std::string(rest.substr(1, length))] = {numbers[0], numbers[1], numbers[2]};
    rest.remove_prefix(1 + length + sizeof(numbers));
  }
  return true;
}

}  // namespace

WrittenNote::~WrittenNote() {
  if (file_ >= 0) close(file_);
}

Status WrittenNote::Load() {
  const std::lock_guard<std::mutex> guard(mu_);
  files_.clear();
  count_ = 0;
  started_ = false;
  struct stat info;
  if (stat(path().c_str(), &info) != 0 && errno == ENOENT) return Status();
  SOK_ASSIGN_OR_RETURN(const auto file, InputFile::Open(path()));
  if (file->bytes() == 0) return Status();  // a kill has come before the first note
  std::string bytes(std::min(file->bytes(), 2 * kPlaceBytes), '\0');
  SOK_RETURN_IF_ERROR(file->ReadAt(0, bytes.data(), bytes.size()));
  std::optional<Head> newest;
  for (uint64_t at = 0; at < bytes.size(); at += kPlaceBytes) {
    Head head;
    Files files;
    const bool whole = Decode(std::string_view(bytes).substr(at, kPlaceBytes), &head, &files);
    if (!whole || (newest.has_value() && newest->count > head.count)) continue;
    newest = head;
    files_ = std::move(files);
  }
  if (!newest.has_value()) {
    return Status(Code::kDataLoss,
                  "'" + path() +
                      "' is damaged: it says how far the files of the storage have been "
                      "written; restore the folder from a checkpoint or a dump, or move this file "
                      "away to go on with the rows that can be read, of which some may be missing");
  }
  count_ = newest->count;
  started_ = true;
  if (newest->boot != 0 && newest->boot == ThisBoot()) return Status();
  for (auto& [name, one] : files_) one.bytes = one.synced;
  return Status();
}

bool WrittenNote::exists() const {
  const std::lock_guard<std::mutex> guard(mu_);
  return started_;
}

WrittenNote::Files WrittenNote::files() const {
  const std::lock_guard<std::mutex> guard(mu_);
  return files_;
}

Status WrittenNote::Start() {
  const std::lock_guard<std::mutex> guard(mu_);
  if (started_) return Status();
  started_ = true;
  SOK_RETURN_IF_ERROR(Write());
  SOK_RETURN_IF_ERROR(SyncFile(path()));
  return SyncFolder(folder_);
}

Status WrittenNote::Set(const std::string& name, const WrittenFile& file) {
  const std::lock_guard<std::mutex> guard(mu_);
  files_[name] = file;
  return Write();
}

Status WrittenNote::Drop(const std::function<bool(const std::string& name)>& gone, bool sync) {
  int file = -1;
  {
    const std::lock_guard<std::mutex> guard(mu_);
    const size_t before = files_.size();
    for (auto at = files_.begin(); at != files_.end();) {
      at = gone(at->first) ? files_.erase(at) : std::next(at);
    }
    if (files_.size() == before) return Status();
    SOK_RETURN_IF_ERROR(Write());
    file = file_;  // which stays open
  }
  if (!sync || file < 0 || fdatasync(file) == 0) return Status();
  return SystemError(errno, "bring to the device", path());
}

Status WrittenNote::Write() {
  if (!started_) return Status();
  const std::string note = Encode(files_, count_ + 1);
  if (note.size() > kPlaceBytes) {
    return Status(Code::kInternal, "expected at most " + std::to_string(kPlaceBytes) +
                                       " bytes for the note '" + path() + "', got " +
                                       std::to_string(note.size()) + ": of " +
                                       std::to_string(files_.size()) + " files");
  }
  const uint64_t at = count_ % 2 * kPlaceBytes;
  if (file_ < 0) {
    // The folder may be a copy by hard links, whose files belong to the other folder too.
    struct stat info;
    if (stat(path().c_str(), &info) == 0 && info.st_nlink > 1) {
      SOK_ASSIGN_OR_RETURN(const auto own, ReplacementFile::Open(path()));
      SOK_RETURN_IF_ERROR(own->WriteAt(at, note.data(), note.size()));
      SOK_RETURN_IF_ERROR(own->Commit());
    }
    file_ = open(path().c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file_ < 0) return SystemError(errno, "open", path());
  }
  ssize_t written;
  do {
    written = pwrite(file_, note.data(), note.size(), static_cast<off_t>(at));
  } while (written < 0 && errno == EINTR);
  if (written != static_cast<ssize_t>(note.size())) {
    return SystemError(written < 0 ? errno : ENOSPC, "write", path());
  }
  ++count_;
  return Status();
}

}  // namespace sok
