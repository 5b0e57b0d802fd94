#include "core/serving/serving_format.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "core/base/flat_json.h"
#include "core/base/status_macros.h"
#include "core/base/utf8.h"

namespace sok {
namespace {

constexpr char kFormat[] = "sok-embed rows";
constexpr char kVersion[] = "1";
constexpr char kHash[] = "splitmix64-variant13";  // Mix64
constexpr char kZeros[] = "zeros";

// The names in __metadata__ that the format itself uses.
constexpr const char* kOwnNames[] = {"format", "format_version", "hash",        "name",   "dim",
                                     "dtype",  "rows",           "bucket_bits", "missing"};

constexpr const char* kTypeNames[] = {"float32", "float16", "int8", "int4"};
constexpr const char* kRowDtypes[] = {"F32", "F16", "I8", "U8"};

std::string Json(const std::string& text) { return nlohmann::json(text).dump(); }

std::string MissingText(const MissingRows& missing) {
  return "{\"kind\":" + Json(missing.kind) + ",\"a\":" + nlohmann::json(missing.a).dump() +
         ",\"b\":" + nlohmann::json(missing.b).dump() +
         ",\"seed\":" + std::to_string(missing.seed) +
         ",\"group\":" + std::to_string(missing.group) + "}";
}

Status Damaged(const std::string& what) {
  return Status(Code::kDataLoss, what +
                                     " The file is damaged, or something else wrote it: export "
                                     "it again.");
}

// Reads values of a header.
class HeaderReader {
 public:
  explicit HeaderReader(const FlatJson& json) : json_(json) {}

  Status Text(const std::string& name, std::string* text) const {
    if (json_.Get("/__metadata__/" + name, text)) return Status();
    return Damaged("Expected '" + name +
                   "' in the __metadata__ of a file of rows. Received: none.");
  }

  // Reads a number of decimal digits that is at most `most`.
  Status Number(const std::string& name, uint64_t most, uint64_t* number) const {
    std::string text;
    SOK_RETURN_IF_ERROR(Text(name, &text));
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, *number);
    if (error == std::errc() && stop == end && *number <= most) return Status();
    return Damaged("Expected '" + name + "' of a file of rows to be a number of at most " +
                   std::to_string(most) + ". Received: '" + text + "'.");
  }

  Status Column(const ServingColumn& column) const {
    const std::string at = std::string("/") + column.name;
    std::string dtype;
    bool same = json_.Get(at + "/dtype", &dtype) && dtype == column.dtype;
    same = same && SameNumbers(at + "/shape", column.shape);
    same = same && SameNumbers(at + "/data_offsets", {column.begin, column.end()});
    if (same) return Status();
    const std::string name = "the tensor '" + std::string(column.name) + "'";
    return Damaged("Expected " + name + " of dtype " + column.dtype + " and shape " +
                   Shown(column.shape) + " at data offsets " + Shown({column.begin, column.end()}) +
                   ", as the __metadata__ of this file of rows gives it. Received: " +
                   (json_.has_container(at)
                        ? name + " of dtype " + (dtype.empty() ? "unknown" : dtype.substr(0, 20)) +
                              " and shape " + Shown(Numbers(at + "/shape")) + " at data offsets " +
                              Shown(Numbers(at + "/data_offsets"))
                        : "no tensor of that name") +
                   ".");
  }

 private:
  bool SameNumbers(const std::string& at, const std::vector<uint64_t>& numbers) const {
    return Numbers(at) == numbers && !json_.has(at + "/" + std::to_string(numbers.size()));
  }

  // Returns the numbers of a list, at most four, up to the first value that is not a number.
  std::vector<uint64_t> Numbers(const std::string& at) const {
    std::vector<uint64_t> numbers;
    uint64_t number;
    while (numbers.size() < 4 && json_.Get(at + "/" + std::to_string(numbers.size()), &number)) {
      numbers.push_back(number);
    }
    return numbers;
  }

  static std::string Shown(const std::vector<uint64_t>& numbers) {
    std::string text;
    for (const uint64_t number : numbers)
      text += (text.empty() ? "" : ", ") + std::to_string(number);
    return "[" + text + "]";
  }

  const FlatJson& json_;
};

Result<MissingRows> ParseMissing(const std::string& text) {
  const std::optional<FlatJson> json = FlatJson::Parse(text);
  MissingRows missing;
  if (json.has_value() && json->Get("/kind", &missing.kind) && json->Get("/a", &missing.a) &&
      json->Get("/b", &missing.b) && json->Get("/seed", &missing.seed) &&
      json->Get("/group", &missing.group)) {
    return missing;
  }
  return Damaged(
      "Expected 'missing' of a file of rows to be zeros, or an initializer with kind, a, b, seed "
      "and group. Received: '" +
      text.substr(0, 200) + "'.");
}

}  // namespace

const char* ServingTypeName(ServingType type) { return kTypeNames[static_cast<size_t>(type)]; }

Result<ServingType> ServingTypeOf(const std::string& name) {
  for (size_t i = 0; i < std::size(kTypeNames); ++i) {
    if (name == kTypeNames[i]) return static_cast<ServingType>(i);
  }
  return InvalidArgument(
      "Expected the dtype of rows to be float32, float16, int8 or int4. Received: '" + name + "'.");
}

int BucketBits(uint64_t rows) {
  int bits = 0;
  while (static_cast<double>(rows >> bits) > 8 * 1.4142135623730951) ++bits;
  return bits;
}

std::string ShownKey(Key key) {
  std::string shown = std::to_string(key);
  if (key >> 63) shown += " (" + std::to_string(static_cast<int64_t>(key)) + " as int64)";
  return shown;
}

uint64_t ServingColumn::blocks() const {
  return summed ? (bytes + kServingBlock - 1) / kServingBlock : 0;
}

ServingLayout::ServingLayout(ServingType type, int dim, uint64_t rows, int bucket_bits) {
  const auto width = static_cast<uint64_t>(dim);
  const uint64_t offsets = (uint64_t{1} << bucket_bits) + 1;
  const uint64_t row_bytes = ServedRowBytes(type, dim);
  columns_[kKeys] = {"keys", "U64", {rows}, 0, 8 * rows, true};
  columns_[kOffsets] = {"offsets", "U32", {offsets}, 0, 4 * offsets, true};
  columns_[kScaleBias] = {"scale_bias", "F16", {rows, 2}, 0, HasScale(type) ? 4 * rows : 0, true};
  columns_[kRows] = {"rows",
                     kRowDtypes[static_cast<size_t>(type)],
                     {rows, type == ServingType::kInt4 ? row_bytes : width},
                     0,
                     row_bytes * rows,
                     true};
  uint64_t sums = 1;
  for (const ServingColumn& column : columns_) sums += column.blocks();
  columns_[kChecksums] = {"checksums", "U64", {sums}, 0, 8 * sums, false};
  uint64_t at = 0;
  for (size_t i = 0; i < kColumns; ++i) {
    if (i == kPadding) {  // a row of 64 bytes lies in one line of the cache
      const uint64_t gap = -at % 64;
      columns_[i] = {"padding", "U8", {gap}, 0, gap, false};
    }
    columns_[i].begin = at;
    at += columns_[i].bytes;
  }
}

uint64_t ServingLayout::FirstChecksum(Index index) const {
  uint64_t first = 1;
  for (size_t i = 0; i < index; ++i) first += columns_[i].blocks();
  return first;
}

Result<std::string> ServingHeaderBytes(const ServingHeader& header, const ServingLayout& layout) {
  std::string text = "{\"__metadata__\":{";
  const auto add = [&](const std::string& name, const std::string& value) {
    text += Json(name) + ":" + Json(value) + ",";
  };
  if (!IsUtf8(header.name)) {
    return InvalidArgument("Expected the name of a file of rows in UTF-8. Received: '" +
                           EscapedUtf8(header.name) + "'.");
  }
  add("format", kFormat);
  add("format_version", kVersion);
  add("hash", kHash);
  add("name", header.name);
  add("dim", std::to_string(header.dim));
  add("dtype", ServingTypeName(header.type));
  add("rows", std::to_string(header.rows));
  add("bucket_bits", std::to_string(header.bucket_bits));
  add("missing", header.missing.has_value() ? MissingText(*header.missing) : kZeros);
  for (const auto& [name, value] : header.extra) {
    if (!IsUtf8(name) || !IsUtf8(value) || name.size() > 200) {
      return InvalidArgument(
          "Expected extra strings in UTF-8, under names of at most 200 bytes. Received: '" +
          EscapedUtf8(name) + "': '" + EscapedUtf8(value) + "'.");
    }
    for (const char* own : kOwnNames) {
      if (name != own) continue;
      return InvalidArgument("Expected extra strings under names of their own. Received: '" + name +
                             "', which the file uses itself.");
    }
    add(name, value);
  }
  text.back() = '}';
  for (size_t i = 0; i < layout.columns().size(); ++i) {
    if (!ServingLayout::Has(header.type, i)) continue;
    const ServingColumn& column = layout.columns()[i];
    text += "," + Json(column.name) + ":{\"dtype\":" + Json(column.dtype) +
            ",\"shape\":" + nlohmann::json(column.shape).dump() + ",\"data_offsets\":[" +
            std::to_string(column.begin) + "," + std::to_string(column.end()) + "]}";
  }
  text += "}";
  const uint64_t data = (8 + text.size() + kServingPage - 1) / kServingPage * kServingPage;
  if (data > kMostHeaderBytes) {
    return InvalidArgument("Expected a header of at most " + std::to_string(kMostHeaderBytes) +
                           " bytes. Received: " + std::to_string(text.size()) +
                           ". Write fewer extra strings.");
  }
  text.resize(data - 8, ' ');
  std::string bytes;
  for (int shift = 0; shift < 64; shift += 8) {
    bytes += static_cast<char>(text.size() >> shift & 0xff);
  }
  return bytes + text;
}

Result<ServingHeader> ParseServingHeader(const std::string& text, uint64_t data_bytes) {
  const std::optional<FlatJson> json = FlatJson::Parse(text);
  if (!json.has_value()) {
    return Damaged(
        "Expected the header of a file of rows. Received: a text that is not JSON, is nested "
        "too deep, or has names that are too long.");
  }
  const HeaderReader reader(*json);
  std::string format, version, hash, dtype, missing;
  SOK_RETURN_IF_ERROR(reader.Text("format", &format));
  SOK_RETURN_IF_ERROR(reader.Text("format_version", &version));
  if (format == kFormat && version != kVersion) {
    return InvalidArgument("Expected a file of rows in format version " + std::string(kVersion) +
                           ". Received: version '" + version +
                           "'. A newer sok-embed wrote it: read it with that one.");
  }
  SOK_RETURN_IF_ERROR(reader.Text("hash", &hash));
  if (format != kFormat || hash != kHash) {
    return Damaged("Expected a file of the format '" + std::string(kFormat) + "' with the hash '" +
                   kHash + "'. Received: format '" + format + "', hash '" + hash + "'.");
  }
  ServingHeader header;
  uint64_t dim, bits;
  SOK_RETURN_IF_ERROR(reader.Text("name", &header.name));
  SOK_RETURN_IF_ERROR(reader.Text("dtype", &dtype));
  SOK_RETURN_IF_ERROR(reader.Text("missing", &missing));
  SOK_RETURN_IF_ERROR(reader.Number("dim", ServingHeader::kMostDim, &dim));
  SOK_RETURN_IF_ERROR(reader.Number("rows", ServingHeader::kMostRows, &header.rows));
  SOK_RETURN_IF_ERROR(reader.Number("bucket_bits", ServingHeader::kMostBucketBits, &bits));
  SOK_ASSIGN_OR_RETURN(header.type, ServingTypeOf(dtype));
  if (dim == 0) return Damaged("Expected rows of a dim of at least 1. Received: dim 0.");
  header.dim = static_cast<int>(dim);
  header.bucket_bits = static_cast<int>(bits);
  if (missing != kZeros) {
    SOK_ASSIGN_OR_RETURN(header.missing, ParseMissing(missing));
  }
  const ServingLayout layout(header.type, header.dim, header.rows, header.bucket_bits);
  for (size_t i = 0; i < layout.columns().size(); ++i) {
    if (!ServingLayout::Has(header.type, i)) continue;
    SOK_RETURN_IF_ERROR(reader.Column(layout.columns()[i]));
  }
  if (layout.bytes() != data_bytes) {
    return Damaged("Expected " + std::to_string(layout.bytes()) +
                   " bytes of data, as the header of this file of rows says. Received: " +
                   std::to_string(data_bytes) + ".");
  }
  return header;
}

}  // namespace sok
