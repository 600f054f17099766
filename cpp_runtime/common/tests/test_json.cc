#include <doctest/doctest.h>

#include "common/error.h"
#include "common/json.h"
#include "common/tests/support.h"

namespace edgepack::testing {

TEST_CASE("JSON is written as it is read") {
  JsonWriter json;
  json.BeginObject().Key("text").String("a\"b\\c\n\x01 \xc3\xa4");
  json.Key("list").BeginArray().Int(-3).Number(0.1).Number(1e300).Bool(true).Null().EndArray();
  json.Key("empty").BeginObject().EndObject().Key("last").Int(1).EndObject();
  CHECK(json.text() ==
        "{\"text\":\"a\\\"b\\\\c\\u000a\\u0001 \xc3\xa4\","
        "\"list\":[-3,0.1,1e+300,true,null],\"empty\":{},\"last\":1}");
  const JsonDocument document(json.text(), "it", "kind");
  JsonObject top = document.Root();
  CHECK(top.String("text") == "a\"b\\c\n\x01 \xc3\xa4");
  CHECK(top.Int("last") == 1);
  CHECK_THROWS_WITH_AS(top.Int("text"), "it: text: not an integer of 64 bits", Error);
  CHECK_THROWS_WITH_AS(top.Finish(), "it: list: unknown key", Error);
  CHECK_THROWS_WITH_AS(top.Int("none"), "it: none: missing", Error);
}

TEST_CASE("bytes that are no UTF-8 are written as U+FFFD") {
  // A lone continuation, an overlong slash, half a surrogate pair, above U+10FFFF, a cut sequence.
  for (const char* bad : {"\x80", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"}) {
    JsonWriter json;
    json.BeginArray().String(bad).EndArray();
    CHECK(json.text().find("\xef\xbf\xbd") == 2);
  }
}

TEST_CASE("JSON that is none, or not an object, or says a thing twice") {
  for (const char* bad :
       {"", "{", "[1]", "3", "{\"a\":1,}", "{\"a\":1} x", "{\"a\":NaN}", "{\"a\":\"\xff\"}",
        "{'a':1}", "{\"a\":1,\"a\":1}", "{\"a\":\"\\ud800\"}"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS((void)JsonDocument(bad, "it", "kind").Root(), Error);
  }
}

TEST_CASE("a value of another kind") {
  const JsonDocument document(
      R"({"text": "1", "big": 9223372036854775808, "half": 0.5, "no": null, "list": [1, "a"],
          "objects": [{}, {"a": [0.5, 2]}], "table": {"b/c": {"n": -1}}})",
      "it.json", "kind", "do this");
  JsonObject top = document.Root();
  CHECK(ErrorOf([&] { top.Int("text"); }) == "kind: it.json: text: not an integer of 64 bits");
  CHECK(Contains(ErrorOf([&] { top.Int("big"); }), "not an integer of 64 bits"));
  CHECK(Contains(ErrorOf([&] { top.Int("half"); }), "not an integer of 64 bits"));
  CHECK(Contains(ErrorOf([&] { top.Number("text"); }), "text: not a number"));
  CHECK(Contains(ErrorOf([&] { top.Bool("no"); }), "no: neither true nor false"));
  CHECK(Contains(ErrorOf([&] { top.String("no"); }), "no: not a string"));
  CHECK(Contains(ErrorOf([&] { top.Ints("text"); }), "text: not a list"));
  CHECK(Contains(ErrorOf([&] { top.Ints("list"); }), "list: not a list of integers"));
  CHECK(Contains(ErrorOf([&] { top.Strings("list"); }), "list: not a list of strings"));
  CHECK(Contains(ErrorOf([&] { top.Numbers("list"); }), "list: not a list of numbers"));
  CHECK(Contains(ErrorOf([&] { top.Objects("list"); }), "list[0] is no JSON object"));
  CHECK(Contains(ErrorOf([&] { top.Object("half"); }), "half is no JSON object"));
  CHECK(top.Objects("objects").at(1).Numbers("a") == std::vector<double>{0.5, 2});
  CHECK_FALSE(top.OptionalNumber("no"));
  CHECK(top.OptionalNumber("half") == 0.5);
  CHECK_FALSE(top.HasValue("no"));
  CHECK(top.Has("no"));
  CHECK_FALSE(top.Has("yes"));
  top.ForEachObject("table", [](const std::string& key, JsonObject object) {
    CHECK(key == "b/c");
    CHECK(object.Int("n", -1, 1) == -1);
    CHECK(ErrorOf([&] { object.Int("n", 0, 7); }) ==
          "kind: it.json: table.b/c.n: -1 is not between 0 and 7");
    CHECK(Contains(ErrorOf([&] { object.Size("n"); }),
                   "table.b/c.n: -1 is not between 0 and 9223372036854775807"));
  });
  try {
    top.Fail("half", "not whole");
  } catch (const Error& error) {
    CHECK(error.exit_code == kExitBundle);
    CHECK(error.hint == "do this");
  }
}

TEST_CASE("no depth is too deep") {
  const std::string text = R"({"a":)" + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  const JsonDocument document(text, "it", "kind");
  JsonObject top = document.Root();
  CHECK(Contains(ErrorOf([&] { top.Ints("a"); }), "not a list of integers"));
}

}  // namespace edgepack::testing
