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

// The name that a row optimizer's rule has in the core. Users may know it by another: see
// Status::Worded.
struct RuleName {
  std::string name;
};
struct RuleNames {
  std::vector<std::string> names;
};

// A part of an error's text that has a name, and a type that says in whose words it is.
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

// Success, or an error of some kind with a text for people. The text is made from a form and typed
// fields, which a front end can put into its users' words without looking for them in the text.
//
// Copies need no memory: what an error says must reach the caller also where that has ended.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), content_(Content::Of(std::move(message))) {}
  // The text is `form`, where "{group}" stands for the field of that name. Braces around another
  // name stand for themselves, and so do those in what a field says.
  Status(Code code, std::string_view form, std::initializer_list<ErrorField> fields);
  // Needs no memory.
  static Status Literal(Code code, const char* literal) {
    Status status;
    status.code_ = code;
    status.literal_ = literal;
    return status;
  }

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  // In the core's words.
  std::string message() const { return std::string(text()); }
  // The same without memory; valid as long as the status is.
  std::string_view text() const {
    return content_ == nullptr ? literal_ : std::string_view(content_->text);
  }

  // The text with every name of a rule as `word` has it.
  using WordRule = std::function<std::string(const std::string& rule)>;
  std::string Worded(const WordRule& word) const;
  // The same error with words around its text: where it happened, or what to do about it.
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

// Calls fn, which returns a Status. Memory that ends within it is an error like others, for callers
// that have something to put back.
template <typename Fn>
Status OrNoMemory(const Fn& fn) {
  try {
    return fn();
  } catch (const std::bad_alloc&) {
    return Status::Literal(Code::kResourceExhausted, "there was not enough memory for the call");
  }
}

// The error that fn returns; one of this kind with the literal where there is no memory for that.
// For errors that the caller must be told, since something has changed.
template <typename Fn>
Status ErrorOrLiteral(Code code, const char* literal, const Fn& fn) {
  try {
    return fn();
  } catch (const std::bad_alloc&) {
    return Status::Literal(code, literal);
  }
}

}  // namespace sok
