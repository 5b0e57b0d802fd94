#include "core/serving/row_sorter.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "core/base/file.h"
#include "core/base/hash.h"
#include "core/base/merge_tree.h"
#include "core/base/status_macros.h"
#include "core/serving/serving_format.h"

namespace sok {
namespace {

Key KeyOf(const char* record) {
  Key key;
  std::memcpy(&key, record, sizeof(key));
  return key;
}

// Passes records on, in ascending order of their hashes, and refuses equal keys.
class InOrder {
 public:
  explicit InOrder(const RowSorter::Put& put) : put_(put) {}

  Status Put(uint64_t hash, const char* record) {
    if (any_ && hash == last_) {  // different keys have different hashes
      return InvalidArgument("Expected every key once. Received: key " + ShownKey(KeyOf(record)) +
                             " more than once.");
    }
    any_ = true;
    last_ = hash;
    return put_(hash, record);
  }

 private:
  const RowSorter::Put& put_;
  uint64_t last_ = 0;
  bool any_ = false;
};

}  // namespace

// Reads a run through a buffer.
class RowSorter::RunReader {
 public:
  RunReader(const ScratchFile& file, Run run, size_t record_bytes, size_t buffer_bytes)
      : file_(file), run_(run), record_bytes_(record_bytes), buffer_(buffer_bytes) {}

  // Goes to the next record, first to the first one. Sets *more to whether there was a record.
  Status Next(bool* more) {
    at_ += record_bytes_;
    *more = true;
    if (at_ < filled_) return Status();
    const uint64_t size = std::min<uint64_t>(buffer_.size(), run_.end - run_.begin);
    *more = size > 0;
    SOK_RETURN_IF_ERROR(file_.ReadAt(run_.begin, buffer_.data(), size));
    run_.begin += size;
    filled_ = size;
    at_ = 0;
    return Status();
  }
  const char* record() const { return buffer_.data() + at_; }

 private:
  const ScratchFile& file_;
  Run run_;  // the part that is not read yet
  const size_t record_bytes_;
  std::vector<char> buffer_;
  size_t at_ = 0, filled_ = 0;
};

RowSorter::RowSorter(size_t record_bytes, size_t memory, std::string folder)
    : record_bytes_(record_bytes),
      memory_(memory),
      capacity_(std::clamp<size_t>(memory / (record_bytes + sizeof(order_[0])), 1, UINT32_MAX)),
      folder_(std::move(folder)) {}

Result<char*> RowSorter::Room(size_t* n) {
  if (records_ == nullptr) {
    records_.reset(new (std::nothrow) char[capacity_ * record_bytes_]);
    if (records_ == nullptr) return OutOfMemory(capacity_ * record_bytes_, "rows to be sorted");
  }
  if (held_ == capacity_) SOK_RETURN_IF_ERROR(Spill());
  *n = std::min(*n, capacity_ - held_);
  return records_.get() + held_ * record_bytes_;
}

Status RowSorter::DrainMemory(const Put& put) {
  order_.resize(held_);
  for (size_t i = 0; i < held_; ++i) {
    order_[i] = {Mix64(KeyOf(records_.get() + i * record_bytes_)), static_cast<uint32_t>(i)};
  }
  std::sort(order_.begin(), order_.end());
  InOrder ordered(put);
  for (const auto& [hash, place] : order_) {
    SOK_RETURN_IF_ERROR(ordered.Put(hash, records_.get() + place * record_bytes_));
  }
  held_ = 0;
  return Status();
}

Status RowSorter::Spill() {
  constexpr size_t kWrite = size_t{1} << 20;
  if (file_ == nullptr) {
    SOK_ASSIGN_OR_RETURN(file_, ScratchFile::Open(folder_));
  }
  const uint64_t begin = file_->bytes();
  std::vector<char> buffer;
  buffer.reserve(kWrite + record_bytes_);
  spilled_ += held_;
  SOK_RETURN_IF_ERROR(DrainMemory([&](uint64_t, const char* record) {
    buffer.insert(buffer.end(), record, record + record_bytes_);
    if (buffer.size() < kWrite) return Status();
    Status status = file_->Append(buffer.data(), buffer.size());
    buffer.clear();
    return status;
  }));
  SOK_RETURN_IF_ERROR(file_->Append(buffer.data(), buffer.size()));
  runs_.push_back({begin, file_->bytes()});
  return Status();
}

Status RowSorter::Drain(const Put& put) {
  if (runs_.empty()) return DrainMemory(put);
  if (held_ > 0) SOK_RETURN_IF_ERROR(Spill());
  records_.reset();
  decltype(order_)().swap(order_);
  return Merge(put);
}

Status RowSorter::Merge(const Put& put) {
  constexpr size_t kLeast = size_t{1} << 14, kMost = size_t{1} << 20;
  const size_t share = std::clamp(memory_ / runs_.size(), kLeast, kMost);
  const size_t buffer = std::max<size_t>(share / record_bytes_, 1) * record_bytes_;
  std::vector<std::unique_ptr<RunReader>> readers;
  MergeTree tree(runs_.size());
  for (size_t run = 0; run < runs_.size(); ++run) {
    readers.push_back(std::make_unique<RunReader>(*file_, runs_[run], record_bytes_, buffer));
    bool more;
    SOK_RETURN_IF_ERROR(readers[run]->Next(&more));
    if (more) tree.Set(run, Mix64(KeyOf(readers[run]->record())));
  }
  InOrder ordered(put);
  for (tree.Start(); !tree.ended();) {
    RunReader& reader = *readers[tree.run()];
    SOK_RETURN_IF_ERROR(ordered.Put(tree.key(), reader.record()));
    bool more;
    SOK_RETURN_IF_ERROR(reader.Next(&more));
    if (more) {
      tree.Next(Mix64(KeyOf(reader.record())));
    } else {
      tree.End();
    }
  }
  return Status();
}

}  // namespace sok
