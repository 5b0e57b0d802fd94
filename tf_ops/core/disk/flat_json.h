// Reads JSON without a tree.
//
// The destructor of a tree of nlohmann's asks for memory as soon as it has a child, and may not
// throw, so where memory ends it ends the process. Whatever runs while a storage is open reads
// through this, and writes values that have no child.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>

namespace sok {

// Holds the values of a JSON text by their paths, such as "/initializer/kind" and "/slots/0/width";
// the text's own path is empty. Of equal paths the last value counts.
class FlatJson {
 public:
  // Returns nothing for a text that is not JSON, is nested more than 16 deep, or has a path of more
  // than 256 bytes.
  static std::optional<FlatJson> Parse(const std::string& text);

  bool has(const std::string& path) const { return values_.count(path) > 0; }
  // Returns whether an object or an array is there.
  bool has_container(const std::string& path) const {
    return GetIf<std::monostate>(path) != nullptr;
  }
  // Reads the value at a path. Returns false if there is none, or one of another kind, or one that
  // T cannot hold.
  bool Get(const std::string& path, std::string* text) const;
  template <typename T>
  bool Get(const std::string& path, T* number) const {
    const auto* natural = GetIf<uint64_t>(path);
    const auto* negative = GetIf<int64_t>(path);
    if constexpr (std::is_integral_v<T>) {
      using Limits = std::numeric_limits<T>;
      if (natural != nullptr && *natural > uint64_t{Limits::max()}) return false;
      if (negative != nullptr && *negative < int64_t{Limits::min()}) return false;
    } else if (const auto* real = GetIf<double>(path)) {
      *number = static_cast<T>(*real);
      return true;
    }
    if (natural != nullptr) *number = static_cast<T>(*natural);
    if (negative != nullptr) *number = static_cast<T>(*negative);
    return natural != nullptr || negative != nullptr;
  }

 private:
  class Reader;
  // A negative integer is an int64_t, any other a uint64_t; objects and arrays are a monostate.
  using Value =
      std::variant<std::monostate, std::nullptr_t, bool, uint64_t, int64_t, double, std::string>;

  template <typename T>
  const T* GetIf(const std::string& path) const {
    const auto found = values_.find(path);
    return found == values_.end() ? nullptr : std::get_if<T>(&found->second);
  }

  std::map<std::string, Value> values_;
};

}  // namespace sok
