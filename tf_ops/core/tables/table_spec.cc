#include "core/tables/table_spec.h"

#include <cstddef>
#include <cstdlib>
#include <type_traits>

#include "core/base/flat_json.h"
#include "core/base/hash.h"
#include "core/base/start_vector.h"
#include "core/base/status_macros.h"

namespace sok {
namespace {

// Replaces each "%41" of a text by the byte that it stands for.
std::string PercentDecoded(const std::string& text) {
  std::string bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      bytes += static_cast<char>(std::strtoul(text.substr(i + 1, 2).c_str(), nullptr, 16));
      i += 2;
    } else {
      bytes += text[i];
    }
  }
  return bytes;
}

}  // namespace

Result<TableSpec> TableSpec::FromJson(const std::string& text) {
  const std::optional<FlatJson> json = FlatJson::Parse(text);
  if (!json.has_value() || !json->has_container("")) {
    return InvalidArgument("expected the description of a table as a JSON object, got '" + text +
                           "'");
  }
  TableSpec spec;
  size_t known = 1;  // the object itself is a value too
  std::string wrong;
  SOK_RETURN_IF_ERROR(VisitFields(&spec, [&](const std::string& name, auto* value) {
    const std::string path = "/" + name;
    if (!json->has(path)) return;
    ++known;
    if (json->Get(path, value)) return;
    if constexpr (std::is_floating_point_v<std::decay_t<decltype(*value)>>) {
      // JSON has no numbers that are not finite: they are "inf", "-inf" and "nan".
      std::string text;
      if (json->Get(path, &text)) {
        *value = static_cast<std::decay_t<decltype(*value)>>(std::strtod(text.c_str(), nullptr));
        return;
      }
    }
    wrong = name;
  }));
  if (!wrong.empty()) {
    return InvalidArgument("expected a value of " + wrong + " that a table can have, got " + text);
  }
  if (known != json->size()) {
    return InvalidArgument(
        "expected the description of a table with options that this release knows, got " + text +
        "; a newer sok-embed wrote it, or a name is misspelt");
  }
  spec.storage = PercentDecoded(spec.storage);
  return spec;
}

RowForm SeededForm(const TableSpec& spec) {
  RowForm form = spec.form;
  // The seed differs from the seeds of start vectors. It does not depend on the group: rows are
  // rounded alike in memory and in every group of a storage.
  form.seed = Mix64(Mix64(spec.seed + 2 * kGolden));
  return form;
}

}  // namespace sok
