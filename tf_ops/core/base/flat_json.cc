#include "core/base/flat_json.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

namespace sok {

// Takes the values of a text from nlohmann's parser, which calls one method for each value, in the
// order of the text, and stops when a method returns false.
class FlatJson::Reader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Reader(std::map<std::string, Value>* values) : values_(*values) {}

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(int64_t value) override { return Add(value); }
  bool number_unsigned(uint64_t value) override { return Add(value); }
  bool number_float(double value, const std::string&) override { return Add(value); }
  bool string(std::string& value) override { return Add(std::move(value)); }
  bool binary(nlohmann::json::binary_t&) override { return false; }  // never occurs in a text
  bool start_object(size_t) override { return Open(kObject); }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override { return Open(0); }
  bool end_array() override { return Close(); }
  bool key(std::string& name) override { return PathOfChild(name); }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception&) override {
    return false;
  }

 private:
  static constexpr int64_t kObject = -1;
  static constexpr size_t kMostDepth = 16;
  static constexpr size_t kLongestPath = 256;
  struct Container {
    size_t path_size;
    int64_t next;  // index of an array's next value; kObject in an object
  };

  // Each value is stored with its whole path. Without a limit on the length of paths, a short text
  // with deep nesting would need memory that grows with the square of its length.
  bool PathOfChild(const std::string& name) {
    path_.resize(open_.back().path_size);
    if (path_.size() + 1 + name.size() > kLongestPath) return false;
    path_ += '/';
    path_ += name;
    return true;
  }
  bool Add(Value value) {
    if (!open_.empty() && open_.back().next != kObject) {
      if (!PathOfChild(std::to_string(open_.back().next++))) return false;
    }
    values_[path_] = std::move(value);
    return true;
  }
  bool Open(int64_t next) {
    if (open_.size() == kMostDepth || !Add(std::monostate())) return false;
    open_.push_back({path_.size(), next});
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  std::map<std::string, Value>& values_;
  std::string path_;  // the path of the next value, once it is known
  std::vector<Container> open_;
};

std::optional<FlatJson> FlatJson::Parse(const std::string& text) {
  FlatJson json;
  Reader reader(&json.values_);
  if (!nlohmann::json::sax_parse(text, &reader)) return std::nullopt;
  return json;
}

bool FlatJson::Get(const std::string& path, std::string* text) const {
  const auto* found = GetIf<std::string>(path);
  if (found != nullptr) *text = *found;
  return found != nullptr;
}

bool FlatJson::Get(const std::string& path, bool* flag) const {
  const auto* found = GetIf<bool>(path);
  if (found != nullptr) *flag = *found;
  return found != nullptr;
}

}  // namespace sok
