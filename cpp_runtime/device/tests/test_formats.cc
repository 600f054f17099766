// Hashes, encodings and patterns against the examples of their specifications.
#include <string>

#include <doctest/doctest.h>

#include "allowed_signers.h"
#include "error.h"
#include "json.h"
#include "manifest_reader.h"
#include "sha256.h"
#include "ssh_wire.h"

namespace edgepack::device {
namespace {

// FIPS 180-2, appendix B.
TEST_CASE("SHA-256") {
  CHECK(Sha256Hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(Sha256Hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  Sha256 hash;
  const std::string part(1000, 'a');
  for (int i = 0; i < 1000; ++i) hash.Update(part.data(), part.size());
  CHECK(hash.HexDigest() == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// RFC 4648, section 10.
TEST_CASE("base64") {
  for (const auto& [plain, encoded] :
       {std::pair{"f", "Zg=="}, {"fo", "Zm8="}, {"foo", "Zm9v"}, {"foobar", "Zm9vYmFy"}}) {
    CHECK(EncodeBase64(plain) == encoded);
    CHECK(DecodeBase64(encoded) == plain);
  }
  // Cut, blanks, other alphabets, padding in the middle, and bits that would be lost.
  for (const char* bad : {"", "Zg", "Zg=", "Zm 9v", "Zm-v", "Zg==Zm9v", "Z===", "Zh=="}) {
    CAPTURE(bad);
    CHECK_FALSE(DecodeBase64(bad).has_value());
  }
}

TEST_CASE("what a wire reader has not got is nothing, for good") {
  WireReader reader(std::string_view("\0\0\0\2ab\0\0\0\1", 10));
  CHECK(reader.String() == "ab");
  CHECK_FALSE(reader.String().has_value());
  CHECK_FALSE(reader.Byte().has_value());
  CHECK_FALSE(reader.AtEnd());
}

// ssh_config(5), PATTERNS.
TEST_CASE("patterns") {
  CHECK(MatchesPatterns("edgepack-bundle", "edgepack-bundle"));
  CHECK(MatchesPatterns("edgepack-bundle", "git,edgepack-*"));
  CHECK(MatchesPatterns("192.168.0.7", "192.168.0.?"));
  CHECK(MatchesPatterns("abcabd", "*abd"));
  CHECK_FALSE(MatchesPatterns("edgepack-bundle", "git,file"));
  CHECK_FALSE(MatchesPatterns("edgepack-bundle", "edgepack"));
  CHECK_FALSE(MatchesPatterns("edgepack-bundle", "edgepack-*,!*-bundle"));
  CHECK_FALSE(MatchesPatterns("edgepack-bundle", "!git"));
  CHECK_FALSE(MatchesPatterns("edgepack-bundle", ""));
}

TEST_CASE("safe paths") {
  CHECK(IsSafePath("bin/edgepack-run"));
  CHECK(IsSafePath("_a/b+c@d.e"));
  for (const char* bad : {"", "/", "/etc/passwd", "a//b", "a/", "..", "a/../b", ".ssh/x", "-rf",
                          "a/-b", "a b", "a\nb", "a\\b", "ä"}) {
    CAPTURE(bad);
    CHECK_FALSE(IsSafePath(bad));
  }
  CHECK(IsSafePath(std::string(100, 'a')));
  CHECK_FALSE(IsSafePath(std::string(101, 'a')));
  CHECK_FALSE(IsSafePath(std::string("a\0b", 3)));
}

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
  CHECK_THROWS_WITH_AS(top.Int("text"), "it: text: not an integer of 64 bits", DeviceError);
  CHECK_THROWS_WITH_AS(top.Finish(), "it: list: unknown key", DeviceError);
  CHECK_THROWS_WITH_AS(top.Int("none"), "it: none: missing", DeviceError);
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
    CHECK_THROWS_AS(JsonDocument(bad, "it", "kind").Root(), DeviceError);
  }
}

}  // namespace
}  // namespace edgepack::device
