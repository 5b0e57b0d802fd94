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

// A file of rows that is open for lookups. It stays the file that it was if another takes its name.
// It must not be written to, nor cut: a read beyond its end would end the process. Thread-safe.
class ServedRows {
 public:
  // Checks the header and the ends of the offsets, in the same time at every size. No content leads
  // a later call to read outside of the file; Verify says whether what they return is right.
  // Errors: kDataLoss for a file that is damaged, cut, or none of rows; kInvalidArgument for one of
  // a later format; those of SystemError.
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
  // the header's initializer. Errors: kDataLoss where offsets that were needed cannot be right;
  // what stands in `out` is of no use then.
  Status Lookup(const Key* keys, size_t n, float* out, const ParallelFor& parallel_for) const;
  // Writes the rows of those keys that have one, and leaves the rest of `out` as it is. Errors:
  // those of Lookup.
  Status LayOver(const Key* keys, size_t n, float* out, const ParallelFor& parallel_for) const;
  // Writes what Lookup writes for a key without a row to `out`, (dim).
  void FillMissing(Key key, float* out) const;
  // Writes 1 or 0 to `out`, (n), for keys with and without a row. Errors: those of Lookup.
  Status Contains(const Key* keys, size_t n, uint8_t* out, const ParallelFor& parallel_for) const;
  // Writes the rows [begin, begin + n), which must be there, to `out`, (n, dim).
  void Read(uint64_t begin, size_t n, float* out, const ParallelFor& parallel_for) const;

  // Reads all of the file. Errors: kDataLoss for a checksum that is wrong, and for keys that are
  // not in the order of their hashes, or not in their bucket.
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
  // Writes the rows of keys, and calls absent(i) for those that have none.
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
