#include "core/disk/spill_file.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <utility>

#include "core/base/file_error.h"
#include "core/base/status_macros.h"

namespace sok {
namespace {

// Bytes between two records that are read for nothing rather than with another system call.
constexpr size_t kLargestGap = size_t{8} << 10;

}  // namespace

Result<std::unique_ptr<SpillFile>> SpillFile::Open(const std::string& folder, uint64_t most_rows) {
  int file = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (file < 0) {  // some file systems make no file without a name
    std::string name = folder + "/sok-spill-XXXXXX";
    file = mkostemp(name.data(), O_CLOEXEC);
    if (file >= 0) unlink(name.c_str());
  }
  if (file < 0) {
    return FileError(errno, "could not make a file in '" + folder + "'");
  }
  return std::unique_ptr<SpillFile>(new SpillFile(file, folder, most_rows));
}

SpillFile::~SpillFile() { close(file_); }

bool SpillFile::Reserve(uint64_t rows) {
  if (rows_.fetch_add(rows) + rows <= most_rows_) return true;
  rows_ -= rows;
  return false;
}

uint64_t SpillFile::bytes() const {
  std::lock_guard<std::mutex> guard(mu_);
  return uint64_t{segments_} * kSegmentBytes;
}

uint32_t SpillFile::AllocateSegment() {
  std::lock_guard<std::mutex> guard(mu_);
  std::vector<uint32_t>& from = free_.empty() ? given_back_ : free_;
  if (from.empty()) {
    // Room is reserved here, since FreeSegment must not need memory.
    for (auto* list : {&free_, &given_back_}) {
      if (list->capacity() <= segments_) list->reserve(2 * (size_t{segments_} + 1));
    }
    return segments_++;
  }
  const uint32_t segment = from.back();
  from.pop_back();
  return segment;
}

void SpillFile::FreeSegment(uint32_t segment) {
  std::lock_guard<std::mutex> guard(mu_);
  free_.push_back(segment);
}

void SpillFile::GiveBack() {
  for (;;) {
    uint32_t segment = 0;
    {
      std::lock_guard<std::mutex> guard(mu_);
      if (free_.empty()) return;
      segment = free_.back();
      free_.pop_back();
    }
    fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(uint64_t{segment} * kSegmentBytes),
              static_cast<off_t>(kSegmentBytes));
    std::lock_guard<std::mutex> guard(mu_);
    given_back_.push_back(segment);
  }
}

void SpillFile::Clear() {
  std::lock_guard<std::mutex> guard(mu_);
  if (ftruncate(file_, 0) != 0) return;  // then it keeps its space until the process lets it go
  segments_ = 0;
  free_.clear();
  given_back_.clear();
}

Status SpillFile::Failed(const char* what) const {
  return FileError(errno, std::string("could not ") + what +
                              " the rows that do not fit into the cache, in '" + folder_ + "'");
}

Status SpillFile::Write(uint32_t segment, size_t offset, const char* from, size_t n) const {
  auto at = static_cast<off_t>(uint64_t{segment} * kSegmentBytes + offset);
  while (n > 0) {
    const ssize_t written = pwrite(file_, from, n, at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return Failed("write");
    from += written;
    at += written;
    n -= static_cast<size_t>(written);
  }
  return Status();
}

Status SpillFile::Read(uint32_t segment, size_t offset, char* to, size_t n) const {
  return Read(segment, offset, to, n, nullptr, 0);
}

Status SpillFile::Read(uint32_t segment, size_t offset, char* head, size_t head_bytes, char* tail,
                       size_t tail_bytes) const {
  auto at = static_cast<off_t>(uint64_t{segment} * kSegmentBytes + offset);
  while (head_bytes + tail_bytes > 0) {
    iovec parts[2] = {{head, head_bytes}, {tail, tail_bytes}};
    const ssize_t got = preadv(file_, parts, 2, at);
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) errno = EIO;
    if (got <= 0) return Failed("read");
    const size_t of_head = std::min(head_bytes, static_cast<size_t>(got));
    const size_t of_tail = static_cast<size_t>(got) - of_head;
    head += of_head;
    head_bytes -= of_head;
    if (tail != nullptr) tail += of_tail;
    tail_bytes -= of_tail;
    at += got;
  }
  return Status();
}

Status SpillFile::ReadRecords(std::vector<Wanted>* wanted, size_t record_bytes,
                              char* records) const {
  std::sort(wanted->begin(), wanted->end(), [](const Wanted& a, const Wanted& b) {
    return std::tie(a.segment, a.row) < std::tie(b.segment, b.row);
  });
  std::vector<char> piece;
  for (auto first = wanted->begin(); first != wanted->end();) {
    auto end = first + 1;
    while (end != wanted->end() && end->segment == first->segment &&
           (end->row - (end - 1)->row) * record_bytes <= kLargestGap) {
      ++end;
    }
    piece.resize(((end - 1)->row - first->row + 1) * record_bytes);
    SOK_RETURN_IF_ERROR(
        Read(first->segment, first->row * record_bytes, piece.data(), piece.size()));
    const uint32_t from = first->row;
    for (; first != end; ++first) {
      std::memcpy(records + first->record * record_bytes,
                  piece.data() + (first->row - from) * record_bytes, record_bytes);
    }
  }
  return Status();
}

}  // namespace sok
