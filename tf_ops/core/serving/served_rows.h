// Rows that are served from a file, which is mapped and not read: opening takes the same time at
// every size, and processes that serve one file share its pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/base/initializer.h"
#include "core/base/status.h"
#include "core/base/types.h"
#include "core/serving/serving_format.h"

namespace sok {

// A file of rows that is open for lookups. It keeps the file that it opened, also if another file
// takes its name. The file must not be written to or cut: a read beyond its end would end the
// process. Thread-safe.
class ServedRows {
 public:
  // Checks the header and the ends of the offsets, in the same time at every size. Whatever the
  // file contains, later calls do not read outside of it; Verify says whether their results are
  // right. Errors: kDataLoss for a file that is damaged, cut, or not a file of rows;
  // kInvalidArgument for a file of a later format; as SystemError returns.
  static Result<std::shared_ptr<const ServedRows>> Open(const std::string& path);
  ~ServedRows();
  ServedRows(const ServedRows&) = delete;
  ServedRows& operator=(const ServedRows&) = delete;

  const ServingHeader& header() const { return header_; }
  // Returns the header's text, which is JSON.
  const std::string& header_text() const { return header_text_; }
  const std::string& path() const { return path_; }
  uint64_t size() const { return header_.rows; }
  int dim() const { return header_.dim; }
  uint64_t file_bytes() const { return bytes_; }
  const Key* keys() const { return keys_; }  // (size), in the order of the file

  // Writes the rows of n keys to `out`, (n, dim). A key without a row gets zeros, or the vector of
  // the header's initializer. Errors: kDataLoss if offsets that were needed are invalid; the
  // content of `out` is useless then.
  Status Lookup(const Key* keys, size_t n, float* out, const ParallelFor& parallel_for) const;
  // Writes the rows of the keys that have one, and leaves the rest of `out` unchanged. Errors: as
  // Lookup returns.
  Status LayOver(const Key* keys, size_t n, float* out, const ParallelFor& parallel_for) const;
  // Writes the vector that Lookup gives a key without a row to `out`, (dim).
  void FillMissing(Key key, float* out) const;
  // Writes 1 for a key with a row and 0 for a key without one to `out`, (n). Errors: as Lookup
  // returns.
  Status Contains(const Key* keys, size_t n, uint8_t* out, const ParallelFor& parallel_for) const;
  // Writes the rows [begin, begin + n), which must exist, to `out`, (n, dim).
  void Read(uint64_t begin, size_t n, float* out, const ParallelFor& parallel_for) const;

  // Reads the whole file. Errors: kDataLoss for a wrong checksum, and for keys that are not in the
  // order of their hashes, or not in their bucket.
  Status Verify(const ParallelFor& parallel_for) const;

 private:
  struct Mapping {
    const char* bytes = nullptr;
    uint64_t size = 0;
  };
  ServedRows(std::string path, Mapping mapping);

  Status ReadHeader();
  const char* column(ServingLayout::Index index) const { return data_ + (*layout_)[index].begin; }
  const char* row(uint64_t number) const { return rows_ + number * row_bytes_; }
  // Writes the rows of keys, and calls absent(i) for each key without a row.
  template <typename Absent>
  Status Take(const Key* keys, size_t n, float* out, const ParallelFor& parallel_for,
              const Absent& absent) const;
  // Finds keys [begin, end). See served_rows_lookup.cc.
  template <typename Fetch, typename Found, typename Absent>
  bool Find(const Key* keys, size_t begin, size_t end, const Fetch& fetch, const Found& found,
            const Absent& absent) const;
  uint32_t Search(Key key, uint32_t begin, uint32_t end) const;
  Status WrongOffsets() const;
  Status VerifyColumn(ServingLayout::Index index, const ParallelFor& parallel_for) const;
  Status VerifyKeys(const ParallelFor& parallel_for) const;

  const std::string path_;
  const char* const bytes_at_;
  const uint64_t bytes_;
  std::string header_text_;
  ServingHeader header_;
  std::optional<ServingLayout> layout_;
  std::optional<Initializer> missing_;
  size_t row_bytes_ = 0;
  const char* data_ = nullptr;
  const Key* keys_ = nullptr;
  const uint32_t* offsets_ = nullptr;
  const char* scale_bias_ = nullptr;
  const char* rows_ = nullptr;
};

}  // namespace sok
