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

// Rows come in any order. The file takes the place of an older one when it is complete and on the
// device; every other end leaves nothing behind. An error, of which the message says what to do,
// makes the writer useless. One thread at a time may use it.
class ServedRowsWriter {
 public:
  static constexpr size_t kMemory = size_t{256} << 20;

  // The header's `rows` and `bucket_bits` are not read. Rows that need more than `memory` bytes are
  // sorted with the help of a temporary file in the folder of `path`. Errors: kInvalidArgument for
  // a header that no file can have; those of ReplacementFile::Open.
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
  Status error_;  // what further calls return
};

}  // namespace sok
