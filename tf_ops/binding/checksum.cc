// The checksums of files that Python writes and reads, and counts of admissions in them.
#include "core/base/checksum.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "binding/binding.h"
#include "core/policies/admission_counts.h"

namespace sok::binding {
namespace {

using BytesIn = Array<const uint8_t>;

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
      "merge_admissions",
      [](const std::vector<nb::bytes>& parts, const nb::callable& mine) {
        std::vector<std::string_view> dumps;
        for (const nb::bytes& part : parts) {
          if (part.size() > 0) dumps.emplace_back(part.c_str(), part.size());
        }
        const std::string merged = Value(MergeCounts(dumps, [&](std::vector<int64_t> keys) {
          const size_t n = keys.size();
          const nb::object kept = mine(ToNumpy(std::move(keys))).attr("view")("uint8");
          const auto flags = nb::cast<Array<const uint8_t>>(kept);
          CheckSize("mine", flags.size(), n, "one a key");
          return std::vector<uint8_t>(flags.data(), flags.data() + flags.size());
        }));
        return nb::bytes(merged.data(), merged.size());
      },
      nb::arg("parts"), nb::arg("mine"),
      "Merges the counts of the admissions of several workers; `mine` returns which keys stay.");
}

}  // namespace sok::binding
