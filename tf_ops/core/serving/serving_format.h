// The format of a file of rows that are served: a safetensors file in which the order and the
// places of the tensors follow from a few numbers. docs/reference/serving-rows.md describes it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/base/types.h"

namespace sok {

// The type that values of rows have in the file.
enum class ServingType { kFloat32, kFloat16, kInt8, kInt4 };

// Returns "float32", "float16", "int8" or "int4".
const char* ServingTypeName(ServingType type);
Result<ServingType> ServingTypeOf(const std::string& name);

// Says whether a row has a scale and a bias.
constexpr bool HasScale(ServingType type) { return type >= ServingType::kInt8; }

// Returns the bytes of a row, without its scale and bias.
inline size_t ServedRowBytes(ServingType type, int dim) {
  const auto values = static_cast<size_t>(dim);
  switch (type) {
    case ServingType::kFloat32:
      return 4 * values;
    case ServingType::kFloat16:
      return 2 * values;
    case ServingType::kInt8:
      return values;
    case ServingType::kInt4:
      return (values + 1) / 2;
  }
  return 0;
}

// The arguments of Initializer::Make, for keys that have no row.
struct MissingRows {
  std::string kind;
  double a = 0, b = 0;
  uint64_t seed = 0, group = 0;
};

// Describes a file.
struct ServingHeader {
  static constexpr int kMostDim = 1 << 20;
  static constexpr uint64_t kMostRows = 0xfffffffe;  // numbers of rows have 32 bits
  static constexpr int kMostBucketBits = 29;

  std::string name;
  ServingType type = ServingType::kFloat32;
  int dim = 0;
  uint64_t rows = 0;
  int bucket_bits = 0;
  std::optional<MissingRows> missing;                      // none: their rows are zeros
  std::vector<std::pair<std::string, std::string>> extra;  // written, but not read
};

// Returns the number of bits with which buckets have about 8 keys.
int BucketBits(uint64_t rows);

// Returns the bucket of a key by its hash.
inline uint64_t BucketOf(uint64_t hash, int bucket_bits) {
  return bucket_bits == 0 ? 0 : hash >> (64 - bucket_bits);
}

// One tensor of the file.
struct ServingColumn {
  const char* name;
  const char* dtype;
  std::vector<uint64_t> shape;
  uint64_t begin = 0;  // offset in the data, which begins at a page of the file
  uint64_t bytes = 0;
  bool summed = false;  // its blocks have checksums

  uint64_t end() const { return begin + bytes; }
  uint64_t blocks() const;  // of kServingBlock bytes
};

// The bytes of a column that a checksum covers. The last checksum of a column covers the rest.
constexpr uint64_t kServingBlock = uint64_t{1} << 20;
// The data begins at a multiple of this in the file.
constexpr uint64_t kServingPage = 4096;
// No header is longer.
constexpr uint64_t kMostHeaderBytes = uint64_t{1} << 22;

// The places of a file's tensors, in their order in the file.
class ServingLayout {
 public:
  enum Index { kKeys, kChecksums, kOffsets, kScaleBias, kPadding, kRows, kColumns };

  ServingLayout(ServingType type, int dim, uint64_t rows, int bucket_bits);

  const ServingColumn& operator[](Index index) const { return columns_[index]; }
  const std::array<ServingColumn, kColumns>& columns() const { return columns_; }
  // Returns whether the file has this tensor: only integers have scale_bias.
  static bool Has(ServingType type, size_t index) { return index != kScaleBias || HasScale(type); }
  uint64_t bytes() const { return columns_[kRows].end(); }
  // Returns the number of the first checksum of a column; number 0 is the header's checksum.
  uint64_t FirstChecksum(Index index) const;

 private:
  std::array<ServingColumn, kColumns> columns_;
};

// Returns the bytes of a file before its data. Errors: kInvalidArgument for a name or an extra
// string that is not UTF-8, for an extra whose name the format itself uses, and for a header that
// would be too long.
Result<std::string> ServingHeaderBytes(const ServingHeader& header, const ServingLayout& layout);

// Parses the header of a file whose data has `data_bytes`. Every tensor must be at its place in
// ServingLayout, and the tensors must fill the data. Errors: kDataLoss, and kInvalidArgument for a
// file of a later format.
Result<ServingHeader> ParseServingHeader(const std::string& text, uint64_t data_bytes);

// Returns a key as text for a message: as uint64, and also as int64 if that differs.
std::string ShownKey(Key key);

}  // namespace sok
