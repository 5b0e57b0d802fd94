#include "core/base/status.h"

#include <doctest/doctest.h>

#include <string>

namespace sok {
namespace {

std::string Shouted(const std::string& rule) { return "<" + rule + ">"; }

}  // namespace

TEST_CASE("the fields of an error stand where its form names them") {
  const Status status(Code::kOutOfRange, "{group} has dimension {dim}, not {got}; {group}",
                      {{"group", "group 7"}, {"dim", 4}, {"got", size_t{1} << 40}});
  CHECK(status.code() == Code::kOutOfRange);
  CHECK(status.text() == "group 7 has dimension 4, not 1099511627776; group 7");
}

TEST_CASE("braces that name no field, and those in a field, stand for themselves") {
  const auto text = [](const char* form) {
    return InvalidArgument(form, {{"path", "/a/{rule}/{path}"}, {"rule", RuleName{"{path}"}}})
        .message();
  };
  CHECK(text("{path}: {rule}") == "/a/{rule}/{path}: {path}");
  CHECK(text("{\"format\":1} in {path}") == "{\"format\":1} in /a/{rule}/{path}");
  CHECK(text("{other}{") == "{other}{");
  CHECK(text("{path") == "{path");
  CHECK(text("") == "");
}

TEST_CASE("a front end has its own words for rules, and for nothing else") {
  const Status status = InvalidArgument("'{path}': expected one of {known}, got '{got}' in {path}",
                                        {{"path", "got 'adam'"},
                                         {"known", RuleNames{{"adam", "kv_adam", "sgd"}}},
                                         {"got", RuleName{"adam"}}});
  CHECK(status.text() ==
        "'got 'adam'': expected one of adam, kv_adam, sgd, got 'adam' in got 'adam'");
  CHECK(status.Worded(Shouted) ==
        "'got 'adam'': expected one of <adam>, <kv_adam>, <sgd>, got '<adam>' in got 'adam'");
}

TEST_CASE("an error without rules has the same words everywhere") {
  CHECK(InvalidArgument("expected 'adam'").Worded(Shouted) == "expected 'adam'");
  CHECK(Status::Literal(Code::kInternal, "no 'adam'").Worded(Shouted) == "no 'adam'");
  CHECK(Status().Worded(Shouted) == "");
}

TEST_CASE("words around an error leave its kind and its fields") {
  const Status inner(Code::kDataLoss, "got {rule}", {{"rule", RuleName{"lion"}}});
  const Status outer = inner.Within("adam and {rule}: ", "; lion").Within("> ");
  CHECK(outer.code() == Code::kDataLoss);
  CHECK(outer.text() == "> adam and {rule}: got lion; lion");
  CHECK(outer.Worded(Shouted) == "> adam and {rule}: got <lion>; lion");
  CHECK(inner.text() == "got lion");
  const Status literal = Status::Literal(Code::kInternal, "no room").Within("a: ", ", b");
  CHECK(literal.text() == "a: no room, b");
}

TEST_CASE("copies of an error share its text, so that they need no memory") {
  const Status status(Code::kInternal, "got {rule}", {{"rule", RuleName{"lion"}}});
  const Status copy = status;
  CHECK(copy.text().data() == status.text().data());
}

TEST_CASE("an error whose text finds no memory is told by a literal") {
  const Status told = ErrorOrLiteral(Code::kInternal, "no memory for more",
                                     []() -> Status { throw std::bad_alloc(); });
  CHECK(told.code() == Code::kInternal);
  CHECK(told.text() == "no memory for more");
  const Status whole =
      ErrorOrLiteral(Code::kInternal, "no memory for more", [] { return InvalidArgument("all"); });
  CHECK(whole.code() == Code::kInvalidArgument);
  CHECK(whole.text() == "all");
}

}  // namespace sok
