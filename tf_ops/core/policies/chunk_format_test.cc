// Chunks that are not what they should be.
#include "core/policies/chunk_format.h"

#include <string>

#include "core/policies/test_admission.h"

namespace sok {
namespace {

constexpr ChunkIdentity kIdentity = {0x0123456789abcdefull, 7};

Code CodeOf(const Result<std::string_view>& result) { return result.status().code(); }

// An admission that has seen the key 5, and the only chunk that this has changed.
struct Saved {
  explicit Saved(const AdmissionConfig& config) : admission(Make(config)) {
    Observe(*admission, {5});
    chunk = admission->ChangedChunks().at(0);
    bytes = admission->Dump(chunk).value();
  }
  std::unique_ptr<Admission> admission;
  uint32_t chunk;
  std::string bytes;
};

TEST_CASE("a chunk has the bytes that its format says") {
  const std::string bytes = EncodeChunk(kIdentity, "counters");
  const std::string head("SOKA\1\0\0\0\xef\xcd\xab\x89\x67\x45\x23\x01\7\0\0\0\x8\0\0\0\0\0\0\0",
                         28);
  CHECK(bytes.substr(0, 28) == head);
  CHECK(bytes.size() == 44);
  CHECK(bytes.substr(36) == "counters");
  CHECK(DecodeChunk(kIdentity, bytes).value() == "counters");
}

TEST_CASE("a chunk that was cut short or grew is refused at every length") {
  const std::string bytes = EncodeChunk(kIdentity, "counters");
  for (size_t size = 0; size < bytes.size(); ++size) {
    REQUIRE(CodeOf(DecodeChunk(kIdentity, bytes.substr(0, size))) == Code::kDataLoss);
  }
  CHECK(CodeOf(DecodeChunk(kIdentity, bytes + '\0')) == Code::kDataLoss);
}

TEST_CASE("a chunk with any bit changed is refused") {
  const std::string bytes = EncodeChunk(kIdentity, "thirteen bits");
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string changed = bytes;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ 1 << bit % 8);
    const bool version = bit / 32 == 1;
    REQUIRE(CodeOf(DecodeChunk(kIdentity, changed)) ==
            (version ? Code::kInvalidArgument : Code::kDataLoss));
  }
}

TEST_CASE("a chunk of another config, number or kind is refused, and nothing has changed") {
  for (const AdmissionConfig& config : EveryKind(3)) {
    CAPTURE(config.kind);
    CAPTURE(config.counter_bits);
    const Saved saved(config);
    std::vector<AdmissionConfig> others = EveryKind(3);
    for (const AdmissionConfig& other : EveryKind(2)) others.push_back(other);
    others.push_back(BloomConfig(3, 20001, 1e-8, 4));
    others.push_back(BloomConfig(3, 20000, 1.1e-8, 4));
    int same = 0;
    for (const AdmissionConfig& other : others) {
      const auto admission = Make(other);
      Observe(*admission, {1, 5, 5});
      admission->ChangedChunks();
      admission->MarkSaved();
      const Status status = admission->Load(saved.chunk % admission->chunks(), saved.bytes);
      if (status.ok()) {
        ++same;
        continue;
      }
      CHECK(status.code() == Code::kInvalidArgument);
      CHECK(status.message().find("Received: chunk") != std::string::npos);
      CHECK(Observe(*admission, {5}) == Answers{1});
    }
    CHECK(same == 1);
    const Status outside = saved.admission->Load(saved.admission->chunks(), saved.bytes);
    CHECK(outside.code() == Code::kInvalidArgument);
    CHECK(!saved.admission->Dump(saved.admission->chunks()).ok());
    if (saved.admission->chunks() > 1) {
      CHECK(
          !saved.admission->Load((saved.chunk + 1) % saved.admission->chunks(), saved.bytes).ok());
    }
  }
}

TEST_CASE("a chunk with a correct checksum around counters that cannot be is refused") {
  const AdmissionConfig config = FrequencyConfig(3);
  const Saved saved(config);
  const uint64_t fingerprint = ReadLittleEndian(saved.bytes.data() + 8, 8);
  const ChunkIdentity identity = {fingerprint, saved.chunk};
  const std::string counter = saved.bytes.substr(36);
  REQUIRE(counter.size() == 12);
  const auto admission = Make(config);
  CHECK(admission->Load(saved.chunk, EncodeChunk(identity, counter)).ok());
  const std::string key = counter.substr(0, 8);
  const std::string other("\x09\0\0\0\0\0\0\0\1\0\0\0", 12);
  for (const std::string& payload :
       {counter.substr(0, 11), counter + key, counter + counter, counter + other,
        key + std::string(4, '\0'), key + std::string("\4\0\0\0", 4)}) {
    const Status status = admission->Load(saved.chunk, EncodeChunk(identity, payload));
    CHECK(status.code() == Code::kDataLoss);
    CHECK(status.message().find("Expected chunk " + std::to_string(saved.chunk)) == 0);
  }
  CHECK(Observe(*admission, {5, 5}) == Answers{0, 1});

  const Saved bloom(BloomConfig(3, 100, 0.01, 4));
  const ChunkIdentity of_bloom = {ReadLittleEndian(bloom.bytes.data() + 8, 8), 0};
  const std::string counters = bloom.bytes.substr(36);
  CHECK(bloom.admission->Load(0, EncodeChunk(of_bloom, counters)).ok());
  CHECK(bloom.admission->Load(0, EncodeChunk(of_bloom, counters.substr(1))).code() ==
        Code::kDataLoss);
}

}  // namespace
}  // namespace sok
