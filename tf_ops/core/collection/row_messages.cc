#include "core/collection/row_messages.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "core/base/bfloat16.h"
#include "core/collection/message_parts.h"

namespace sok {
namespace {

size_t PackedFloats(const RowSegments& segments, size_t worker) {
  const size_t rows = segments.segment(worker + 1) - segments.segment(worker);
  return (rows + 1) / 2;
}

// Calls fn(begin, packed_begin, first, last) for chunks of floats of each segment. `begin` is where
// the segment begins in the message, `packed_begin` where it begins in the packed form, and `first`
// is even.
template <typename Fn>
void ForEachPacked(const RowSegments& segments, const ParallelFor& parallel_for, const Fn& fn) {
  size_t packed = 0;
  for (size_t worker = 0; worker < segments.workers(); ++worker) {
    const size_t begin = segments.segment(worker);
    const size_t floats = segments.segment(worker + 1) - begin;
    const auto pairs = static_cast<int64_t>((floats + 1) / 2);
    parallel_for(pairs, 1, [&](int64_t first, int64_t last) {
      fn(begin, packed, 2 * static_cast<size_t>(first),
         std::min(floats, 2 * static_cast<size_t>(last)));
    });
    packed += PackedFloats(segments, worker);
  }
}

}  // namespace

RowSegments::RowSegments(std::vector<int> dims, std::vector<uint32_t> counts)
    : dims_(std::move(dims)),
      counts_(std::move(counts)),
      workers_(counts_.size() / std::max<size_t>(dims_.size(), 1)),
      begins_(1, 0),
      rows_(dims_.size(), 0) {
  for (size_t worker = 0; worker < workers_; ++worker) {
    for (size_t table = 0; table < tables(); ++table) {
      offsets_.push_back(static_cast<uint32_t>(rows_[table]));
      rows_[table] += count(worker, table);
    }
  }
  for (size_t table = 0; table < tables(); ++table) {
    begins_.push_back(begins_.back() + rows_[table] * static_cast<size_t>(dims_[table]));
  }
  FindSegments();
}

void RowSegments::FindSegments() {
  segments_.assign(1, 0);
  is_by_table_ = true;
  size_t next = 0;
  for (size_t worker = 0; worker < workers_; ++worker) {
    for (size_t table = 0; table < tables(); ++table) {
      const auto dim = static_cast<size_t>(dims_[table]);
      const size_t by_table = begins_[table] + offsets_[worker * tables() + table] * dim;
      const size_t rows = count(worker, table);
      if (rows > 0 && next != by_table) is_by_table_ = false;
      next += rows * dim;
    }
    segments_.push_back(next);
  }
  if (floats() != floats_by_table()) is_by_table_ = false;
}

RowSegments RowSegments::OnlyOf(size_t worker, const std::vector<bool>& tables) const {
  RowSegments only = *this;
  for (size_t i = 0; i < counts_.size(); ++i) {
    if (tables[i % tables.size()] && i / tables.size() != worker) only.counts_[i] = 0;
  }
  only.FindSegments();
  return only;
}

RowSegments RowSegments::ToAll(const std::vector<bool>& tables) const {
  RowSegments to_all = *this;
  for (size_t i = 0; i < counts_.size(); ++i) {
    const size_t table = i % tables.size();
    if (!tables[table]) continue;
    to_all.counts_[i] = static_cast<uint32_t>(rows_[table]);
    to_all.offsets_[i] = 0;
  }
  to_all.FindSegments();
  return to_all;
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
      for (size_t worker = 0; worker < workers_; ++worker) {
        size_t in_message = segments_[worker];
        for (size_t before = 0; before < table; ++before) {
          in_message += count(worker, before) * static_cast<size_t>(dims_[before]);
        }
        const auto dim = static_cast<size_t>(dims_[table]);
        const size_t floats = count(worker, table) * dim;
        const size_t in_table = offsets_[worker * tables() + table] * dim;
        if (floats > 0) fn(table, in_table, in_message, floats);
      }
    }
  };
  parallel_for(static_cast<int64_t>(tables()), floats_each / 4 + 100, copy);
}

std::vector<RowSegments::Piece> RowSegments::Pieces() const {
  std::vector<Piece> pieces;
  ForEachPiece(SerialFor, [&](size_t table, size_t in_table, size_t in_message, size_t floats) {
    pieces.push_back({table, in_table, in_message, floats});
  });
  return pieces;
}

const float* RowSegments::ByTable(const float* message, std::vector<float>* copy,
                                  const ParallelFor& parallel_for) const {
  if (is_by_table_) return message;
  copy->resize(floats_by_table());
  ForEachPiece(parallel_for, [&](size_t table, size_t in_table, size_t in_message, size_t floats) {
    float* const to = copy->data() + begins_[table] + in_table;
    std::memcpy(to, message + in_message, floats * sizeof(float));
  });
  return copy->data();
}

float* RowSegments::ByTable(float* message, std::vector<float>* copy) const {
  if (is_by_table_) return message;
  copy->resize(floats_by_table());
  return copy->data();
}

RowPlaces RowSegments::Places() const {
  RowPlaces found;
  if (is_by_table_) {
    found.starts = begins_;
    return found;
  }
  for (size_t rows : rows_) found.places.emplace_back(rows);
  ForEachPiece(SerialFor, [&](size_t table, size_t in_table, size_t in_message, size_t floats) {
    const auto dim = static_cast<size_t>(dims_[table]);
    size_t* place = found.places[table].data() + in_table / dim;
    for (size_t i = 0; i < floats; i += dim) *place++ = in_message + i;
  });
  return found;
}

void RowSegments::Repeat(const RowPlaces& places, float* message,
                         const ParallelFor& parallel_for) const {
  ForEachPiece(parallel_for, [&](size_t table, size_t in_table, size_t in_message, size_t floats) {
    const auto dim = static_cast<size_t>(dims_[table]);
    const size_t from = places.at(table, in_table / dim, dim);
    if (from != in_message) {
      std::memcpy(message + in_message, message + from, floats * sizeof(float));
    }
  });
}

void RowSegments::FromTables(const float* rows, float* message,
                             const ParallelFor& parallel_for) const {
  if (is_by_table_) return;
  ForEachPiece(parallel_for, [&](size_t table, size_t in_table, size_t in_message, size_t floats) {
    const float* const from = rows + begins_[table] + in_table;
    std::memcpy(message + in_message, from, floats * sizeof(float));
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

RowSegments GradientSegmentsOf(const CollectionRequest& request) {
  std::vector<TablePlacement> placements;
  for (const CollectedTable& table : request.plan().tables) placements.push_back(table.placement);
  const RowSegments rows = SegmentsOf(request);
  return request.plan().trains ? rows.ToAll(OnAll(placements)) : rows;
}

Result<std::vector<int32_t>> PackedSplits(const RowSegments& segments) {
  std::vector<size_t> sizes;
  for (size_t worker = 0; worker < segments.workers(); ++worker) {
    sizes.push_back(PackedFloats(segments, worker));
  }
  return AsSplits(sizes, "floats");
}

void PackRows(const RowSegments& segments, const float* message, float* packed,
              const ParallelFor& parallel_for) {
  const auto pack = [&](size_t begin, size_t packed_begin, size_t first, size_t last) {
    auto* bits = reinterpret_cast<char*>(packed + packed_begin);
    for (size_t i = first; i < last; ++i) {
      const auto rounded = FromFloat<BFloat16>(message[begin + i]);
      std::memcpy(bits + i * sizeof(rounded), &rounded, sizeof(rounded));
    }
    if (last % 2 != 0) std::memset(bits + last * sizeof(BFloat16), 0, sizeof(BFloat16));
  };
  ForEachPacked(segments, parallel_for, pack);
}

void UnpackRows(const RowSegments& segments, const float* packed, float* message,
                const ParallelFor& parallel_for) {
  const auto unpack = [&](size_t begin, size_t packed_begin, size_t first, size_t last) {
    const auto* bits = reinterpret_cast<const char*>(packed + packed_begin);
    for (size_t i = first; i < last; ++i) {
      BFloat16 rounded;
      std::memcpy(&rounded, bits + i * sizeof(rounded), sizeof(rounded));
      message[begin + i] = ToFloat(rounded);
    }
  };
  ForEachPacked(segments, parallel_for, unpack);
}

RowMessage WriteFailure(const std::vector<int32_t>& splits, const Status& failure) {
  // An error without a text must not look like success, whose text has no bytes.
  const std::string_view text = failure.text().empty() ? "failed" : failure.text();
  const std::string_view cut = text.substr(0, kMostText);
  RowMessage message;
  for (const int32_t of_rows : splits) {
    const size_t begin = message.floats.size();
    size_t size = WordsOf<float>(cut.size());
    if (size == static_cast<size_t>(of_rows)) ++size;
    message.floats.resize(begin + size, 0.0f);
    PutText(cut, message.floats.data() + begin);
    message.splits.push_back(static_cast<int32_t>(size));
  }
  return message;
}

Status CheckArrived(const std::vector<int32_t>& expected, const int32_t* arrived,
                    const float* message) {
  for (size_t worker = 0; worker < expected.size(); ++worker) {
    if (arrived[worker] != expected[worker]) {
      const auto* text = reinterpret_cast<const char*>(message);
      const size_t most = static_cast<size_t>(arrived[worker]) * sizeof(float);
      return Status(Code::kInternal,
                    NameOf(worker) + ": " + std::string(text, std::find(text, text + most, '\0')));
    }
    message += arrived[worker];
  }
  return Status();
}

}  // namespace sok
