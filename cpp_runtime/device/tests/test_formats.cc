// Hashes, encodings and patterns against the examples of their specifications.
#include <string>

#include <doctest/doctest.h>

#include "allowed_signers.h"
#include "error.h"
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

}  // namespace
}  // namespace edgepack::device
