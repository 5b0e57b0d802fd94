// Damaged files, and files that are made to mislead: each is refused or returns only right rows,
// and no call reads outside of it.
#include <doctest/doctest.h>

#include <cstring>
#include <string>

#include "core/base/checksum.h"
#include "core/base/test_folder.h"
#include "core/base/test_threads.h"
#include "core/serving/test_served_rows.h"

namespace sok {
namespace {

uint64_t HeaderEnd(const std::string& file) {
  uint64_t length;
  std::memcpy(&length, file.data(), sizeof(length));
  return 8 + length;
}

// Gives the header a checksum that fits, as an attacker would.
void SignHeader(std::string* file, uint64_t rows) {
  const uint64_t end = HeaderEnd(*file);
  const uint64_t sum = Checksum(file->data(), end, 0);
  std::memcpy(&(*file)[end + 8 * rows], &sum, sizeof(sum));
}

// Replaces `from` by `to`, and changes the padding so that the length stays the same.
bool Replace(std::string* file, const std::string& from, const std::string& to) {
  const size_t at = file->find(from);
  if (at == std::string::npos || at >= HeaderEnd(*file)) return false;
  std::string head = file->substr(0, HeaderEnd(*file));
  const size_t length = head.size();
  head.replace(at, from.size(), to);
  head.resize(length, ' ');
  file->replace(0, length, head);
  return true;
}

class HostileFile {
 public:
  HostileFile(ServingType type, int dim, size_t n, std::mt19937_64* random)
      : rows_(RandomRows(n, dim, random)) {
    ServingHeader header = HeaderOf(type, dim);
    header.missing = MissingRows{"uniform", -1, 1, 5, 0};
    REQUIRE(WriteRows(path(), header, rows_).ok());
    bytes_ = ReadAll(path());
    asked_ = rows_.keys;
    for (int i = 0; i < 50; ++i) asked_.push_back((*random)());
    right_ = LookUp(*Value(ServedRows::Open(path())), asked_);
  }

  std::string path() const { return folder_ / "rows"; }
  const std::string& bytes() const { return bytes_; }
  size_t rows() const { return rows_.keys.size(); }

  enum Outcome { kRefused, kFoundByVerify, kRight };
  // Opens a file with this content, and calls all methods.
  Outcome Try(const std::string& bytes) const {
    WriteAll(path(), bytes);
    const auto opened = ServedRows::Open(path());
    if (!opened.ok()) {
      CHECK(Contains(opened.status(), path()));
      return kRefused;
    }
    const ServedRows& rows = *opened.value();
    std::vector<float> out(asked_.size() * static_cast<size_t>(rows.dim()));
    std::vector<uint8_t> there(asked_.size());
    const Status looked = rows.Lookup(asked_.data(), asked_.size(), out.data(), SerialFor);
    const Status contained = rows.Contains(asked_.data(), asked_.size(), there.data(), SerialFor);
    CHECK(looked.ok() == contained.ok());
    std::vector<float> all(rows.size() * static_cast<size_t>(rows.dim()));
    rows.Read(0, rows.size(), all.data(), SerialFor);
    const Status verified = rows.Verify(SerialFor);
    if (!verified.ok()) {
      CHECK(Contains(verified, path()));
      return kFoundByVerify;
    }
    REQUIRE(looked.ok());
    CHECK(out == right_);
    return kRight;
  }

 private:
  const TestFolder folder_;
  const TestRows rows_;
  std::string bytes_;
  std::vector<Key> asked_;
  std::vector<float> right_;
};

TEST_CASE("a file that was changed anywhere is refused, or found by its checksums") {
  std::mt19937_64 random(TestSeed());
  const int mutations = LongTests() ? 25000 : 1000;
  for (const ServingType type : kServingTypes) {
    const HostileFile file(type, 3, 100, &random);
    CHECK(file.Try(file.bytes()) == HostileFile::kRight);
    int changed = 0, right = 0;
    for (int i = 0; i < mutations; ++i) {
      std::string bytes = file.bytes();
      const auto place = [&] {  // the header is mostly spaces: half of the changes are elsewhere
        const size_t begin = random() % 2 == 0 ? 0 : HeaderEnd(file.bytes());
        const size_t end = begin == 0 && random() % 4 != 0 ? 1200 : bytes.size();
        return begin + random() % (end - begin);
      };
      switch (random() % 5) {
        case 0:
          bytes[place()] ^= static_cast<char>(1 << random() % 8);
          break;
        case 1:
          bytes[place()] = static_cast<char>(random());
          break;
        case 2:
          bytes.resize(random() % (bytes.size() + 100));
          break;
        case 3:
          bytes.erase(place(), random() % 20);
          break;
        case 4: {
          const size_t at = place() / 8 * 8;
          const uint64_t number = random() >> (random() % 64);
          if (at + 8 <= bytes.size()) std::memcpy(&bytes[at], &number, 8);
          break;
        }
      }
      changed += bytes != file.bytes();
      right += file.Try(bytes) == HostileFile::kRight;
    }
    CHECK(right == mutations - changed);
    CHECK(changed > mutations / 2);
  }
}

TEST_CASE("a header that lies is refused though its checksum fits") {
  std::mt19937_64 random(TestSeed());
  const HostileFile file(ServingType::kInt8, 4, 100, &random);
  const std::pair<const char*, const char*> lies[] = {
      {"\"rows\":\"100\"", "\"rows\":\"101\""},
      {"\"rows\":\"100\"", "\"rows\":\"4294967295\""},
      {"\"rows\":\"100\"", "\"rows\":\"18446744073709551615\""},
      {"\"rows\":\"100\"", "\"rows\":\"-1\""},
      {"\"dim\":\"4\"", "\"dim\":\"0\""},
      {"\"dim\":\"4\"", "\"dim\":\"1048576\""},
      {"\"dim\":\"4\"", "\"dim\":\"99999999999999999999\""},
      {"\"bucket_bits\":\"4\"", "\"bucket_bits\":\"3\""},
      {"\"bucket_bits\":\"4\"", "\"bucket_bits\":\"64\""},
      {"\"dtype\":\"int8\"", "\"dtype\":\"int4\""},
      {"\"dtype\":\"int8\"", "\"dtype\":\"float64\""},
      {"\"shape\":[100]", "\"shape\":[100,1]"},
      {"\"shape\":[100]", "\"shape\":[]"},
      {"\"shape\":[100,4]", "\"shape\":[100,5]"},
      {"\"data_offsets\":[0,800]", "\"data_offsets\":[8,808]"},
      {"\"data_offsets\":[0,800]", "\"data_offsets\":[0,18446744073709551615]"},
      {"\"data_offsets\":[0,800]", "\"data_offsets\":[-8,792]"},
      {"\"dtype\":\"U64\"", "\"dtype\":\"F64\""},
      {"\"keys\":", "\"k3ys\":"},
      {"\"seed\\\":5", "\"seed\\\":-5"},
      {"\"kind\\\":\\\"uniform", "\"kind\\\":\\\"cauchy"},
      {"\"b\\\":1.0", "\"b\\\":1e999"},
      {"splitmix64-variant13", "splitmix64-variant14"},
      {"\"format\":\"sok-embed rows\"", "\"format\":\"another\""},
      {"\"format_version\":\"1\"", "\"format_version\":\"2\""},
  };
  for (const auto& [from, to] : lies) {
    CAPTURE(from);
    CAPTURE(to);
    std::string bytes = file.bytes();
    REQUIRE(Replace(&bytes, from, to));
    SignHeader(&bytes, file.rows());
    CHECK(file.Try(bytes) == HostileFile::kRefused);
  }
  std::string same = file.bytes();
  REQUIRE(Replace(&same, "items", "other"));
  SignHeader(&same, file.rows());
  CHECK(file.Try(same) == HostileFile::kRight);
}

TEST_CASE("offsets that are wrong lead no lookup outside of the file") {
  std::mt19937_64 random(TestSeed());
  const HostileFile file(ServingType::kFloat32, 3, 100, &random);
  const ServingLayout layout(ServingType::kFloat32, 3, 100, BucketBits(100));
  const uint64_t first = HeaderEnd(file.bytes()) + layout[ServingLayout::kOffsets].begin;
  const uint64_t count = layout[ServingLayout::kOffsets].bytes / 4;
  for (uint64_t i = 0; i < count; ++i) {
    for (const uint32_t wrong : {101u, 0xffffffffu, 0x80000000u, 1u, 99u}) {
      std::string bytes = file.bytes();
      if (std::memcmp(&bytes[first + 4 * i], &wrong, 4) == 0) continue;
      std::memcpy(&bytes[first + 4 * i], &wrong, 4);
      const bool at_an_end = i == 0 || i + 1 == count;
      const auto expected = at_an_end ? HostileFile::kRefused : HostileFile::kFoundByVerify;
      CHECK(file.Try(bytes) == expected);
    }
  }
}

TEST_CASE("a length of the header that cannot be right is refused") {
  std::mt19937_64 random(TestSeed());
  const HostileFile file(ServingType::kFloat16, 3, 20, &random);
  const uint64_t real = HeaderEnd(file.bytes()) - 8;
  for (const uint64_t length :
       {uint64_t{0}, uint64_t{1}, real - 1, real + 1, real + 4096, uint64_t{100} << 20,
        ~uint64_t{0}, ~uint64_t{0} - 7, ~uint64_t{7}}) {
    std::string bytes = file.bytes();
    std::memcpy(bytes.data(), &length, sizeof(length));
    CHECK(file.Try(bytes) == HostileFile::kRefused);
  }
  std::string deep(4088, '[');
  const uint64_t length = deep.size();
  deep.insert(0, reinterpret_cast<const char*>(&length), sizeof(length));
  CHECK(file.Try(deep) == HostileFile::kRefused);
}

}  // namespace
}  // namespace sok
