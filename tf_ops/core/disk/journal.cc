#include "core/disk/journal.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <utility>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/base/file.h"
#include "core/base/file_error.h"
#include "core/base/status_macros.h"

namespace sok {
namespace {

constexpr uint64_t kSegmentBytes = uint64_t{64} << 20;
constexpr uint64_t kFewestBytes = uint64_t{4} << 20;
// Space is set aside in pieces of this size.
constexpr uint64_t kAllocation = uint64_t{8} << 20;
// The space that a record takes in addition to its rows: its header, and the description of one
// group.
constexpr uint64_t kBesideRows = 8 << 10;

void PutNumber(uint32_t number, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&number), sizeof(number));
}

bool TakeNumber(std::string_view* bytes, uint32_t* number) {
  if (bytes->size() < sizeof(*number)) return false;
  std::memcpy(number, bytes->data(), sizeof(*number));
  bytes->remove_prefix(sizeof(*number));
  return true;
}

bool TakeText(std::string_view* bytes, uint32_t size, std::string* text) {
  if (bytes->size() < size) return false;
  text->assign(bytes->substr(0, size));
  bytes->remove_prefix(size);
  return true;
}

// Writes all parts, one after another. Returns errno, or 0.
int WriteAt(int file, std::vector<iovec> parts, uint64_t offset) {
  size_t first = 0;
  while (first < parts.size()) {
    const int count = static_cast<int>(std::min<size_t>(parts.size() - first, IOV_MAX));
    const ssize_t written = pwritev(file, &parts[first], count, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    offset += static_cast<uint64_t>(written);
    auto rest = static_cast<size_t>(written);
    while (first < parts.size() && rest >= parts[first].iov_len) rest -= parts[first++].iov_len;
    if (first == parts.size()) return 0;
    if (written == 0) return EIO;
    parts[first].iov_base = static_cast<char*>(parts[first].iov_base) + rest;
    parts[first].iov_len -= rest;
  }
  return 0;
}

// Returns errno, or 0.
int SyncToDevice(int file) {
  int result;
  do {
    result = fdatasync(file);
  } while (result != 0 && errno == EINTR);
  return result == 0 ? 0 : errno;
}

constexpr char kSyncCall[] = "bring to the device";

}  // namespace

std::string JournalSegmentName(uint64_t number) {
  char name[24];
  std::snprintf(name, sizeof(name), "%012llu", static_cast<unsigned long long>(number));
  return std::string(kJournalPrefix) + name;
}

uint64_t JournalSegmentNumber(const std::string& name) {
  constexpr size_t kPrefix = sizeof(kJournalPrefix) - 1;
  if (name.compare(0, kPrefix, kJournalPrefix) != 0) return 0;
  char* end = nullptr;
  const uint64_t number = std::strtoull(name.c_str() + kPrefix, &end, 10);
  return *end == '\0' ? number : 0;
}

uint64_t SegmentChecksum(const JournalSegmentHeader& header) {
  return XXH3_64bits_withSeed(&header, offsetof(JournalSegmentHeader, checksum), header.number);
}

uint64_t HeadChecksum(const JournalRecordHeader& header, uint64_t segment) {
  return XXH3_64bits_withSeed(&header, offsetof(JournalRecordHeader, head_checksum), segment);
}

std::string EncodeNamedValues(const NamedValues& values) {
  std::string bytes;
  for (const auto& [name, value] : values) {
    PutNumber(static_cast<uint32_t>(name.size()), &bytes);
    PutNumber(value.has_value() ? static_cast<uint32_t>(value->size()) : UINT32_MAX, &bytes);
    bytes += name;
    if (value.has_value()) bytes += *value;
  }
  return bytes;
}

bool DecodeNamedValues(std::string_view bytes, NamedValues* values) {
  while (!bytes.empty()) {
    uint32_t name_size, value_size;
    std::string name, value;
    if (!TakeNumber(&bytes, &name_size) || !TakeNumber(&bytes, &value_size) ||
        !TakeText(&bytes, name_size, &name)) {
      return false;
    }
    const bool removed = value_size == UINT32_MAX;
    if (!removed && !TakeText(&bytes, value_size, &value)) return false;
    (*values)[name] = removed ? std::nullopt : std::make_optional(value);
  }
  return true;
}

Journal::Room& Journal::Room::operator=(Room&& other) noexcept {
  if (this == &other) return *this;
  if (journal_ != nullptr) journal_->GiveBack(bytes_);
  journal_ = std::exchange(other.journal_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

Journal::Room::~Room() {
  if (journal_ != nullptr) journal_->GiveBack(bytes_);
}

Journal::~Journal() {
  if (file_ >= 0) close(file_);
}

void Journal::GiveBack(uint64_t bytes) {
  std::lock_guard<std::mutex> guard(mu_);
  outstanding_ -= bytes;
}

std::string Journal::PathOf(uint64_t number) const {
  return folder_ + "/" + JournalSegmentName(number);
}

Status Journal::Failed(const char* what, int error) const {
  return FileError(
      error, std::string("could not ") + what + " the journal of the storage '" + folder_ + "'");
}

Status Journal::OpenSegment() {
  const std::string path = PathOf(number_);
  const auto make = [&] {
    return open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
  };
  int file = make();
  // An earlier call of this function has left the file: it could neither write to it nor remove it.
  if (file < 0 && errno == EEXIST && unlink(path.c_str()) == 0) file = make();
  if (file < 0) return Failed("make a file of", errno);
  JournalSegmentHeader header = {};
  std::memcpy(header.magic, JournalSegmentHeader::kMagic, sizeof(header.magic));
  header.number = number_;
  header.storage = storage_;
  if (history_) header.history = history_();
  header.before = before_;
  header.checksum = SegmentChecksum(header);
  if (const int error = WriteAt(file, {{&header, sizeof(header)}}, 0); error != 0) {
    close(file);
    unlink(path.c_str());
    return Failed("write", error);
  }
  if (Status status = sync_ ? SyncSegment(file) : Status(); !status.ok()) {
    close(file);
    unlink(path.c_str());
    return status;
  }
  struct statvfs disk;
  const uint64_t free =
      fstatvfs(file, &disk) == 0 ? uint64_t{disk.f_bavail} * disk.f_frsize : UINT64_MAX;
  full_bytes_ = std::min(std::max(free / 4 + earlier_bytes_, kFewestBytes), most_bytes_);
  file_ = file;
  end_ = allocated_ = synced_end_ = sizeof(header);
  segments_.push_back({number_, 0});
  return Note(end_);
}

Status Journal::SyncSegment(int file) const {
  if (const int error = SyncToDevice(file); error != 0) return Failed(kSyncCall, error);
  return SyncFolder(folder_);
}

void Journal::CloseSegment() {
  close(file_);
  file_ = -1;
  segments_.back().bytes = end_;
  earlier_bytes_ += end_;
  end_ = allocated_ = 0;
  ++number_;
}

uint64_t Journal::EndSegment() {
  std::lock_guard<std::mutex> guard(mu_);
  if (file_ >= 0 && !broken_) CloseSegment();
  return segments_.empty() ? number_ - 1 : segments_.back().number;
}

Result<Journal::Room> Journal::Reserve(uint64_t row_bytes) {
  const uint64_t bytes = row_bytes + sizeof(JournalRecordHeader) + kBesideRows;
  std::lock_guard<std::mutex> guard(mu_);
  if (file_ >= 0 && outstanding_ == 0 && end_ > kSegmentBytes) {
    CloseSegment();
  }
  if (file_ < 0) SOK_RETURN_IF_ERROR(OpenSegment());
  const uint64_t wanted = end_ + outstanding_ + bytes;
  if (can_allocate_ && wanted > allocated_) {
    const auto allocate = [&](uint64_t more) {
      int result;
      do {
        result = fallocate(file_, FALLOC_FL_KEEP_SIZE, static_cast<off_t>(allocated_),
                           static_cast<off_t>(more));
      } while (result != 0 && errno == EINTR);
      if (result == 0) allocated_ += more;
      return result == 0;
    };
    const uint64_t needed = wanted - allocated_;
    if (!allocate(std::max(needed, kAllocation)) && !allocate(needed)) {
      if (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL) {
        return Failed("make room in", errno);
      }
      can_allocate_ = false;
    }
  }
  outstanding_ += bytes;
  return Room(this, bytes);
}

Status Journal::Append(Room /*room*/, const NamedValues& meta, const std::vector<RowBatch>& rows) {
  std::string named = EncodeNamedValues(meta);
  JournalRecordHeader header = {};
  header.meta_bytes = static_cast<uint32_t>(named.size());
  header.bytes = named.size();
  std::vector<iovec> parts = {{&header, sizeof(header)}, {named.data(), named.size()}};
  for (const RowBatch& batch : rows) {
    if (batch.bytes() == 0) continue;
    header.bytes += batch.bytes();
    parts.push_back({const_cast<char*>(batch.view().data()), batch.bytes()});
  }
  std::unique_lock<std::mutex> lock(mu_);
  if (broken_) return Failed("write", EIO);
  // After a power failure any of the records that are synced together may be missing.
  const uint64_t unsynced = sync_ ? end_ - synced_end_ : 0;
  header.unsynced = unsynced <= UINT32_MAX ? static_cast<uint32_t>(unsynced) : 0;
  XXH3_state_t state;
  // The reset below reads the state, and keeps the secret of a state that has the seed already.
  XXH3_INITSTATE(&state);
  XXH3_64bits_reset_withSeed(&state, number_);
  for (size_t i = 1; i < parts.size(); ++i) {
    XXH3_64bits_update(&state, parts[i].iov_base, parts[i].iov_len);
  }
  header.checksum = XXH3_64bits_digest(&state);
  header.head_checksum = HeadChecksum(header, number_);
  if (const int error = WriteAt(file_, parts, end_); error != 0) {
    // A torn record ends the journal for its readers, so nothing may follow.
    broken_ = true;
    if (ftruncate(file_, static_cast<off_t>(end_)) != 0) return Failed("mend", error);
    return Failed("write", error);
  }
  end_ += sizeof(header) + header.bytes;
  return sync_ ? SyncThrough(++appended_, &lock) : Note(end_);
}

Status Journal::Note(uint64_t bytes) {
  if (note_ == nullptr) return Status();
  Status status = OrNoMemory([&] {
    return note_->Set(JournalSegmentName(number_), {bytes, sync_ ? bytes : 0, 0});
  });
  broken_ = broken_ || !status.ok();
  return status;
}

Status Journal::SyncThrough(uint64_t record, std::unique_lock<std::mutex>* lock) {
  while (synced_ < record) {
    // After an error a later sync may succeed although the system has dropped bytes.
    if (broken_) return Failed(kSyncCall, EIO);
    if (syncing_) {
      synced_more_.wait(*lock);
      continue;
    }
    // The room of this record keeps the segment open.
    syncing_ = true;
    const uint64_t through = appended_, end = end_;
    const int file = file_;
    lock->unlock();
    const int error = SyncToDevice(file);
    lock->lock();
    syncing_ = false;
    broken_ = broken_ || error != 0;
    if (error == 0) {
      synced_ = through;
      synced_end_ = end;
    }
    const Status noted = error == 0 ? Note(end) : Status();
    synced_more_.notify_all();
    if (error != 0) return Failed(kSyncCall, error);
    SOK_RETURN_IF_ERROR(noted);
  }
  return Status();
}

void Journal::DropThrough(uint64_t number) {
  std::lock_guard<std::mutex> guard(mu_);
  if (file_ >= 0 && number_ <= number) CloseSegment();
  auto kept = segments_.begin();
  for (; kept != segments_.end() && kept->number <= number; ++kept) {
    unlink(PathOf(kept->number).c_str());
    earlier_bytes_ -= kept->bytes;
  }
  segments_.erase(segments_.begin(), kept);
  if (segments_.empty()) broken_ = false;
  // A note of a segment that the database has says nothing, so an error does no harm.
  if (note_ != nullptr) {
    static_cast<void>(note_->Drop(
        [number](const std::string& name) {
          const uint64_t segment = JournalSegmentNumber(name);
          return segment > 0 && segment <= number;
        },
        /*sync=*/false));
  }
}

void Journal::Break() {
  std::lock_guard<std::mutex> guard(mu_);
  broken_ = true;
}

uint64_t Journal::bytes() const {
  std::lock_guard<std::mutex> guard(mu_);
  return earlier_bytes_ + end_;
}

bool Journal::broken() const {
  std::lock_guard<std::mutex> guard(mu_);
  return broken_;
}

bool Journal::full(bool twice) const {
  std::lock_guard<std::mutex> guard(mu_);
  return file_ >= 0 && earlier_bytes_ + end_ > (twice ? 2 : 1) * full_bytes_;
}

}  // namespace sok
