// Reads JSON into a flat map instead of a tree.
//
// The trees of nlohmann/json, the library that parses the text, can end the process: where memory
// has run out, the destructor of a tree with children asks for more, and may not throw. Code that
// runs while a storage is open must survive that, so it reads JSON through this class, and writes
// only values of nlohmann's that have no children. Objects do not change after Parse, and any
// number of threads may read one at once. Functions report errors by what they return.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <variant>

namespace sok {

// Holds the values of a JSON text by their paths, such as "/initializer/kind" and "/slots/0/width".
// The path of the outermost value is empty. Where a text has two values of one path, the last one
// counts.
class FlatJson {
 public:
  // Returns the values of a text. Returns nullopt if it is not JSON, is nested more than 16 deep,
  // or has a path of more than 256 bytes.
  static std::optional<FlatJson> Parse(const std::string& text);

  // Returns the number of values, objects and arrays among them.
  size_t size() const { return values_.size(); }
  bool has(const std::string& path) const { return values_.count(path) > 0; }
  // Returns whether an object or an array is at the path.
  bool has_container(const std::string& path) const {
    return GetIf<std::monostate>(path) != nullptr;
  }
  bool has_null(const std::string& path) const { return GetIf<std::nullptr_t>(path) != nullptr; }
  // Writes the value at a path to the second argument. Returns false, and writes nothing, if the
  // value is absent, of another kind, or a number that T cannot hold.
  bool Get(const std::string& path, std::string* text) const;
  bool Get(const std::string& path, bool* flag) const;
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
  // A negative integer is an int64_t, and any other integer a uint64_t. The place of an object or
  // an array has a monostate.
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
