#include "core/collection/messages.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace sok {
namespace {

// The header of a segment of keys: the number of bytes of a text that says what failed, 0 if
// nothing did; the fingerprint of the sender's configuration.
constexpr size_t kKeyHeader = 2;
constexpr size_t kMostText = 1024;

// Writes text into words, the last one filled up with zeros.
template <typename Word>
void PutText(std::string_view text, Word* words) {
  std::memcpy(words, text.data(), text.size());
}

template <typename Word>
constexpr size_t WordsOf(size_t bytes) {
  return (bytes + sizeof(Word) - 1) / sizeof(Word);
}

std::string NameOf(size_t worker) { return "worker " + std::to_string(worker); }

Result<std::vector<int32_t>> AsSplits(const std::vector<size_t>& sizes, const char* what) {
  std::vector<int32_t> splits;
  for (size_t size : sizes) {
    if (size > size_t{INT32_MAX}) {
      return InvalidArgument("expected messages between workers of fewer than 2^31 " +
                             std::string(what) + ", got " + std::to_string(size) +
                             "; use a smaller batch");
    }
    splits.push_back(static_cast<int32_t>(size));
  }
  return splits;
}

}  // namespace

Result<KeyMessage> WriteKeys(const CollectionRequest& request) {
  const CollectionPlan& plan = request.plan();
  const size_t tables = plan.tables.size();
  const size_t header = kKeyHeader + tables;
  std::vector<size_t> sizes(plan.workers, header);
  for (const auto& part : request.tables()) {
    for (uint32_t worker = 0; worker < plan.workers; ++worker) sizes[worker] += part.splits[worker];
  }
  auto splits = AsSplits(sizes, "keys");
  if (!splits.ok()) return splits.status();
  KeyMessage message{{}, std::move(splits.value())};
  size_t words = 0;
  for (size_t size : sizes) words += size;
  message.words.resize(words);
  std::vector<size_t> taken(tables, 0);
  int64_t* segment = message.words.data();
  for (uint32_t worker = 0; worker < plan.workers; ++worker) {
    segment[0] = 0;
    segment[1] = plan.fingerprint;
    int64_t* to = segment + header;
    for (size_t table = 0; table < tables; ++table) {
      const auto& part = request.tables()[table];
      const size_t n = part.splits[worker];
      segment[kKeyHeader + table] = static_cast<int64_t>(n);
      if (n > 0) std::memcpy(to, part.keys.data() + taken[table], n * sizeof(Key));
      taken[table] += n;
      to += n;
    }
    segment = to;
  }
  return message;
}

KeyMessage WriteFailure(const CollectionPlan& plan, const Status& failure) {
  const std::string_view text = failure.text().substr(0, kMostText);
  KeyMessage message;
  for (uint32_t worker = 0; worker < plan.workers; ++worker) {
    const size_t begin = message.words.size();
    const size_t words = kKeyHeader + WordsOf<int64_t>(text.size());
    message.words.resize(begin + words, 0);
    message.words[begin] = static_cast<int64_t>(text.size());
    message.words[begin + 1] = plan.fingerprint;
    PutText(text, message.words.data() + begin + kKeyHeader);
    message.splits.push_back(static_cast<int32_t>(words));
  }
  return message;
}

RowSegments::RowSegments(std::vector<int> dims, std::vector<uint32_t> counts)
    : dims_(std::move(dims)),
      counts_(std::move(counts)),
      workers_(counts_.size() / std::max<size_t>(dims_.size(), 1)),
      segments_(1, 0),
      begins_(1, 0),
      rows_(dims_.size(), 0) {
  for (size_t worker = 0; worker < workers_; ++worker) {
    size_t floats = kHeader;
    for (size_t table = 0; table < tables(); ++table) {
      rows_[table] += count(worker, table);
      floats += count(worker, table) * static_cast<size_t>(dims_[table]);
    }
    segments_.push_back(segments_.back() + floats);
  }
  for (size_t table = 0; table < tables(); ++table) {
    begins_.push_back(begins_.back() + rows_[table] * static_cast<size_t>(dims_[table]));
  }
}

Result<std::vector<int32_t>> RowSegments::Splits() const {
  std::vector<size_t> sizes;
  for (size_t worker = 0; worker < workers_; ++worker) {
    sizes.push_back(segments_[worker + 1] - segments_[worker]);
  }
  return AsSplits(sizes, "floats");
}

template <typename Fn>
void RowSegments::ForEachPiece(const ParallelFor& parallel_for, const Fn& fn) const {
  const int64_t floats_each =
      static_cast<int64_t>(floats_by_table() / std::max<size_t>(tables(), 1)) + 1;
  const auto copy = [&](int64_t first, int64_t last) {
    for (auto table = static_cast<size_t>(first); table < static_cast<size_t>(last); ++table) {
      size_t by_table = begins_[table];
      for (size_t worker = 0; worker < workers_; ++worker) {
        size_t in_message = segments_[worker] + kHeader;
        for (size_t before = 0; before < table; ++before) {
          in_message += count(worker, before) * static_cast<size_t>(dims_[before]);
        }
        const size_t floats = count(worker, table) * static_cast<size_t>(dims_[table]);
        if (floats > 0) fn(by_table, in_message, floats);
        by_table += floats;
      }
    }
  };
  parallel_for(static_cast<int64_t>(tables()), floats_each / 4 + 100, copy);
}

const float* RowSegments::ByTable(const float* message, std::vector<float>* copy,
                                  const ParallelFor& parallel_for) const {
  if (workers_ == 1) return message + kHeader;
  copy->resize(floats_by_table());
  ForEachPiece(parallel_for, [&](size_t by_table, size_t in_message, size_t floats) {
    std::memcpy(copy->data() + by_table, message + in_message, floats * sizeof(float));
  });
  return copy->data();
}

float* RowSegments::ByTable(float* message, std::vector<float>* copy) const {
  if (workers_ == 1) return message + kHeader;
  copy->resize(floats_by_table());
  return copy->data();
}

void RowSegments::FromTables(const float* rows, float* message,
                             const ParallelFor& parallel_for) const {
  if (workers_ == 1) return;
  ForEachPiece(parallel_for, [&](size_t by_table, size_t in_message, size_t floats) {
    std::memcpy(message + in_message, rows + by_table, floats * sizeof(float));
  });
}

RowSegments SegmentsOf(const CollectionRequest& request) {
  const CollectionPlan& plan = request.plan();
  const size_t tables = plan.tables.size();
  std::vector<int> dims;
  std::vector<uint32_t> counts(plan.workers * tables);
  for (size_t table = 0; table < tables; ++table) {
    dims.push_back(plan.tables[table].dim);
    for (uint32_t worker = 0; worker < plan.workers; ++worker) {
      counts[worker * tables + table] = request.tables()[table].splits[worker];
    }
  }
  return RowSegments(std::move(dims), std::move(counts));
}

void WriteHeaders(const RowSegments& segments, const Status& status, float* message) {
  constexpr size_t kMostBytes = (RowSegments::kHeader - 1) * sizeof(float);
  // An error without a text is one all the same.
  const std::string_view text =
      status.ok() ? "" : (status.text().empty() ? "failed" : status.text().substr(0, kMostBytes));
  for (size_t worker = 0; worker < segments.workers(); ++worker) {
    float* header = message + segments.segment(worker);
    std::fill_n(header, RowSegments::kHeader, 0.0f);
    const auto bytes = static_cast<uint32_t>(text.size());
    std::memcpy(header, &bytes, sizeof(bytes));
    PutText(text, header + 1);
  }
}

Status ReadHeaders(const RowSegments& segments, const float* message) {
  for (size_t worker = 0; worker < segments.workers(); ++worker) {
    const float* header = message + segments.segment(worker);
    uint32_t bytes;
    std::memcpy(&bytes, header, sizeof(bytes));
    if (bytes == 0) continue;
    const size_t most = (RowSegments::kHeader - 1) * sizeof(float);
    const std::string text(reinterpret_cast<const char*>(header + 1),
                           std::min<size_t>(bytes, most));
    return Status(Code::kInternal, NameOf(worker) + ": " + text);
  }
  return Status();
}

Result<AskedKeys> ReadKeys(const std::vector<int>& dims, const int64_t* message, size_t words,
                           const int32_t* splits, size_t workers,
                           std::shared_ptr<const void> hold) {
  const size_t tables = dims.size();
  const auto damaged = [](size_t worker) {
    return InvalidArgument("expected keys as this release writes them, got another message from " +
                           NameOf(worker) + "; install one release of sok-embed on all workers");
  };
  std::vector<const int64_t*> segments;
  const int64_t* segment = message;
  for (size_t worker = 0; worker < workers; ++worker) {
    const auto size = static_cast<size_t>(std::max(splits[worker], 0));
    if (size < kKeyHeader || segment + size > message + words) return damaged(worker);
    segments.push_back(segment);
    segment += size;
  }
  for (size_t worker = 0; worker < workers; ++worker) {
    const auto bytes = static_cast<uint64_t>(segments[worker][0]);
    if (bytes == 0) continue;
    const size_t room = (static_cast<size_t>(splits[worker]) - kKeyHeader) * sizeof(int64_t);
    const auto* text = reinterpret_cast<const char*>(segments[worker] + kKeyHeader);
    return Status(Code::kInternal,
                  NameOf(worker) + ": " + std::string(text, std::min<uint64_t>(bytes, room)));
  }
  for (size_t worker = 1; worker < workers; ++worker) {
    if (segments[worker][1] == segments[0][1]) continue;
    return Status(Code::kFailedPrecondition,
                  "expected the same tables and features on all workers, got others on " +
                      NameOf(worker) + " than on worker 0; build the model alike everywhere");
  }
  std::vector<uint32_t> counts(workers * tables);
  for (size_t worker = 0; worker < workers; ++worker) {
    uint64_t left = static_cast<uint64_t>(splits[worker]);
    if (left < kKeyHeader + tables) return damaged(worker);
    left -= kKeyHeader + tables;
    for (size_t table = 0; table < tables; ++table) {
      const auto count = static_cast<uint64_t>(segments[worker][kKeyHeader + table]);
      if (count > left) return damaged(worker);
      counts[worker * tables + table] = static_cast<uint32_t>(count);
      left -= count;
    }
    if (left != 0) return damaged(worker);
  }
  AskedKeys asked{RowSegments(dims, counts), std::move(hold), nullptr, {0}};
  for (size_t table = 0; table < tables; ++table) {
    asked.starts.push_back(asked.starts.back() + asked.segments.rows(table));
  }
  const size_t header = kKeyHeader + tables;
  if (workers == 1) {
    asked.keys = reinterpret_cast<const Key*>(message + header);
    return asked;
  }
  auto keys = std::make_shared<std::vector<Key>>(asked.starts.back());
  std::vector<size_t> next(asked.starts);
  for (size_t worker = 0; worker < workers; ++worker) {
    const int64_t* from = segments[worker] + header;
    for (size_t table = 0; table < tables; ++table) {
      const size_t n = counts[worker * tables + table];
      if (n > 0) std::memcpy(keys->data() + next[table], from, n * sizeof(Key));
      next[table] += n;
      from += n;
    }
  }
  asked.keys = keys->data();
  asked.hold = std::move(keys);
  return asked;
}

}  // namespace sok
