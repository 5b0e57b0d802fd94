// Errors as values. Nothing in the core throws on bad input or calls exit.
#pragma once

#include <cstddef>
#include <functional>
#include <initializer_list>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace sok {

enum class Code {
  kOk,
  kInvalidArgument,     // the caller passed something that can never be right
  kOutOfRange,          // a key outside of the range that the table was made for
  kResourceExhausted,   // the table is full, or memory is, or the disk
  kFailedPrecondition,  // right at another time, not in the table's present state
  kNotFound,            // a file or a folder that is not there
  kPermissionDenied,    // the system does not let this process at a file, or it is read-only
  kUnavailable,         // another process or caller holds it now
  kDataLoss,            // what a file holds is damaged
  kInternal,
};

// The name of a row optimizer's rule in the core. Users may know the rule by another name: see
// Status::Worded.
struct RuleName {
  std::string name;
};
struct RuleNames {
  std::vector<std::string> names;
};

// A named part of an error's text. Its type says whether a front end must translate it to the name
// that users know.
class ErrorField {
 public:
  enum class Type {
    kText,  // means the same in every language binding: a path, a number, a value as it came
    kRule,  // the core's names of rules, one or several; commas stand between them in the text
  };

  ErrorField(const char* name, std::string text)
      : name_(name), type_(Type::kText), values_{std::move(text)} {}
  template <typename Integer, typename = std::enable_if_t<std::is_integral_v<Integer>>>
  ErrorField(const char* name, Integer number) : ErrorField(name, std::to_string(number)) {}
  ErrorField(const char* name, RuleName rule)
      : name_(name), type_(Type::kRule), values_{std::move(rule.name)} {}
  ErrorField(const char* name, RuleNames rules)
      : name_(name), type_(Type::kRule), values_(std::move(rules.names)) {}

  std::string_view name() const { return name_; }
  Type type() const { return type_; }
  const std::vector<std::string>& values() const { return values_; }

 private:
  const char* name_;  // a literal
  Type type_;
  std::vector<std::string> values_;
};

// Success, or an error of some kind with a message. The message is made from a form and typed
// fields, so that a front end can replace a field by the name that its users know, without
// searching the text.
//
// Copying allocates no memory: an error must reach the caller also when memory has run out.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), content_(Content::Of(std::move(message))) {}
  // The text is `form`, in which "{group}" is replaced by the field of that name. Braces around
  // another name stay as they are, and so do braces within the text of a field.
  Status(Code code, std::string_view form, std::initializer_list<ErrorField> fields);
  // Allocates no memory.
  static Status Literal(Code code, const char* literal) {
    Status status;
    status.code_ = code;
    status.literal_ = literal;
    return status;
  }

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  // The text with the names that the core uses.
  std::string message() const { return std::string(text()); }
  // The same text, without allocating memory; valid as long as the status is.
  std::string_view text() const {
    return content_ == nullptr ? literal_ : std::string_view(content_->text);
  }

  // The text with each name of a rule replaced by what `word` returns for it.
  using WordRule = std::function<std::string(const std::string& rule)>;
  std::string Worded(const WordRule& word) const;
  // The same error with text before and after its own: where it happened, or what to do about it.
  Status Within(std::string_view before, std::string_view after = "") const;

 private:
  // The part of the text that is the name of a rule.
  struct Place {
    size_t begin;
    size_t size;
  };
  struct Content {
    static std::shared_ptr<const Content> Of(std::string text, std::vector<Place> rules = {}) {
      return std::make_shared<const Content>(Content{std::move(text), std::move(rules)});
    }

    std::string text;
    std::vector<Place> rules;  // one after another
  };

  Code code_ = Code::kOk;
  std::string_view literal_;
  std::shared_ptr<const Content> content_;  // null: the literal is the text
};

inline Status InvalidArgument(std::string message) {
  return Status(Code::kInvalidArgument, std::move(message));
}
inline Status InvalidArgument(std::string_view form, std::initializer_list<ErrorField> fields) {
  return Status(Code::kInvalidArgument, form, fields);
}

// A value, or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT: implicit by design
  Result(Status status) : status_(std::move(status)) {}  // NOLINT: implicit by design

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  // Only valid if ok().
  T& value() { return *value_; }
  const T& value() const { return *value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

// Calls fn, which returns a Status. If memory runs out within fn, this is returned as an error and
// not thrown, for callers that must undo something.
template <typename Fn>
Status OrNoMemory(const Fn& fn) {
  try {
    return fn();
  } catch (const std::bad_alloc&) {
    return Status::Literal(Code::kResourceExhausted, "there was not enough memory for the call");
  }
}

// Returns the error that fn returns; or an error of this kind with the literal as text if there is
// no memory for fn's error. It is for errors that must reach the caller because something has
// changed.
template <typename Fn>
Status ErrorOrLiteral(Code code, const char* literal, const Fn& fn) {
  try {
    return fn();
  } catch (const std::bad_alloc&) {
    return Status::Literal(code, literal);
  }
}

}  // namespace sok
