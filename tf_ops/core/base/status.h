// Errors as values. Nothing in the core throws on bad input or calls exit.
#pragma once

#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace sok {

enum class Code {
  kOk,
  kInvalidArgument,     // the caller passed something that can never be right
  kOutOfRange,          // a key outside of the range that the table was made for
  kResourceExhausted,   // the table is full, or memory is, or the disk
  kFailedPrecondition,  // right at another time, not in the table's present state
  kNotFound,            // a file or a folder that is not there
  kPermissionDenied,    // the system does not let this process at a file, or it is read-only
  kUnavailable,         // somebody else holds it now
  kDataLoss,            // what a file holds is damaged
  kInternal,
};

// Copies need no memory: what an error says must reach the caller also where that has ended.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message)
      : code_(code), message_(std::make_shared<const std::string>(std::move(message))) {}
  // Needs no memory.
  static Status Literal(Code code, const char* literal) {
    Status status;
    status.code_ = code;
    status.literal_ = literal;
    return status;
  }

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  std::string message() const { return std::string(text()); }
  // The same without memory; valid as long as the status is.
  std::string_view text() const { return message_ == nullptr ? literal_ : *message_; }

 private:
  Code code_ = Code::kOk;
  std::string_view literal_;
  std::shared_ptr<const std::string> message_;  // null: the literal is the text
};

inline Status InvalidArgument(std::string message) {
  return Status(Code::kInvalidArgument, std::move(message));
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

// The error with the text that fn returns; with the literal where there is no memory for that. For
// errors that the caller must be told, since something has changed.
template <typename Fn>
Status ErrorOrLiteral(Code code, const char* literal, const Fn& fn) {
  try {
    return Status(code, fn());
  } catch (const std::bad_alloc&) {
    return Status::Literal(code, literal);
  }
}

}  // namespace sok
