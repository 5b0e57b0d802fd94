// Writes a file of rows that are served.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "core/base/file.h"
#include "core/base/status.h"
#include "core/base/types.h"
#include "core/serving/row_sorter.h"
#include "core/serving/serving_format.h"

namespace sok {

// Takes rows in any order. The file replaces an older file once it is complete and on the device;
// if it does not come to that, nothing is left of it. After an error, whose message says what to
// do, the writer is useless. One thread at a time may use it.
class ServedRowsWriter {
 public:
  static constexpr size_t kMemory = size_t{256} << 20;

  // The header's `rows` and `bucket_bits` are not read. If rows need more than `memory` bytes, they
  // are sorted with a temporary file in the folder of `path`. Errors: kInvalidArgument for a header
  // that no file can have; as ReplacementFile::Open returns.
  static Result<std::unique_ptr<ServedRowsWriter>> Open(const std::string& path,
                                                        ServingHeader header,
                                                        size_t memory = kMemory);

  // Takes n keys and their rows, (n, dim). Errors: kInvalidArgument, naming the key, for values
  // that the type cannot hold.
  Status Add(const Key* keys, const float* rows, size_t n, const ParallelFor& parallel_for);

  // Writes the file. Errors: kInvalidArgument for a key that came twice.
  Status Finish();

  // Returns the number of rows in the file. Only valid after Finish.
  uint64_t rows() const { return header_.rows; }
  // Returns the length of the file. Only valid after Finish.
  uint64_t file_bytes() const { return file_->bytes(); }

 private:
  ServedRowsWriter(std::unique_ptr<ReplacementFile> file, ServingHeader header, size_t memory);

  Status WriteColumns(const ServingLayout& layout, const std::string& head);

  const std::unique_ptr<ReplacementFile> file_;
  ServingHeader header_;
  const size_t row_bytes_;
  RowSorter sorter_;
  Status error_;  // further calls return it
};

}  // namespace sok
