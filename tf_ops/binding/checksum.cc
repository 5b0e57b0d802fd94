// The checksums of files that Python writes and reads.
#include "core/base/checksum.h"

#include <string_view>

#include "binding/binding.h"
#include "core/policies/chunk_format.h"

namespace sok::binding {
namespace {

using BytesIn = Array<const uint8_t>;

std::string_view View(const BytesIn& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

void BindChecksums(nb::module_& module) {
  module.def(
      "checksum",
      [](const BytesIn& bytes, uint64_t file_offset) {
        const GilReleased released;
        return Checksum(bytes.data(), bytes.size(), file_offset);
      },
      nb::arg("bytes").noconvert(), nb::arg("file_offset"),
      "XXH3-64 of the bytes, seeded with the offset in the file at which they start.");
  module.def(
      "admission_chunk_checksum",
      [](const BytesIn& header, const BytesIn& payload) {
        const GilReleased released;
        return ChunkChecksum(View(header), View(payload));
      },
      nb::arg("header").noconvert(), nb::arg("payload").noconvert(),
      "The checksum of a chunk of an admission: of its first 28 bytes and of its payload.");
}

}  // namespace sok::binding
