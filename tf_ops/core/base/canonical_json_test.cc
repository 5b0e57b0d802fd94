#include "core/base/canonical_json.h"

#include <doctest/doctest.h>

namespace sok {

TEST_CASE("canonical JSON is what json.dumps writes with sorted names and no spaces") {
  const auto canonical = [](const std::string& text) { return CanonicalJson(text).value_or("-"); };
  CHECK(canonical("{ \"b\" : [1, -2, null, true], \"a\" : {} }") ==
        "{\"a\":{},\"b\":[1,-2,null,true]}");
  CHECK(canonical("[10,9,8]") == "[10,9,8]");
  CHECK(canonical("[\"\"]") == "[\"\"]");
  CHECK(canonical("{\"a\":1,\"b\":2,\"a\":3}") == "{\"a\":3,\"b\":2}");
  CHECK(canonical("{\"\xc3\xa9\":\"\x7f\\u0001\\n\\\"/\"}") ==
        "{\"\\u00e9\":\"\\u007f\\u0001\\n\\\"/\"}");
  // The first of these is a smaller code point, and a greater number of UTF-16.
  CHECK(canonical("{\"\xf0\x9f\x98\x80\":1,\"\xef\xbf\xbd\":2}") ==
        "{\"\\ufffd\":2,\"\\ud83d\\ude00\":1}");
  CHECK(canonical("18446744073709551615") == "18446744073709551615");
  CHECK(canonical("{\"a\":1") == "-");
  CHECK(canonical("[NaN]") == "-");
}

TEST_CASE("a name of the outermost object is left out, and no other") {
  CHECK(CanonicalJson("{\"sum\":1,\"a\":{\"sum\":2}}", "sum") == "{\"a\":{\"sum\":2}}");
}

}  // namespace sok
