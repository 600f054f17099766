// Input: an armoured signature, a NUL, a file of allowed signers. The message is fixed.
#include <algorithm>
#include <string>

#include "allowed_signers.h"
#include "common/fuzz/fuzz.h"
#include "sshsig.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace edgepack;
  using namespace edgepack::device;
  const std::string_view text = Text(data, size);
  const size_t middle = std::min(text.find('\0'), text.size());
  const std::string_view armored = text.substr(0, middle);
  const std::string_view signers = text.substr(std::min(middle + 1, text.size()));
  try {
    for (const AllowedSigner& signer : ParseAllowedSigners(signers)) {
      EDGEPACK_REQUIRE(signer.key.point.size() == 32);
      EDGEPACK_REQUIRE(!signer.principals.empty());
      EDGEPACK_REQUIRE(ParsePublicKey(signer.key.blob).has_value());
      EDGEPACK_REQUIRE(signer.key.hardware == !signer.key.application.empty());
    }
  } catch (const Error& error) {
    RequireRefusal(error);
  }
  try {
    // A key that is pinned on first use makes a list that can be read again.
    const std::string key = KeyOfSignature(armored);
    EDGEPACK_REQUIRE(ParseAllowedSigners("first " + key).front().key.Line() == key);
  } catch (const Error& error) {
    RequireRefusal(error);
  }
  try {
    const Signer signer = VerifySignature("{}\n", armored, signers, 1795262400);
    EDGEPACK_REQUIRE(!signer.principal.empty());
    EDGEPACK_REQUIRE(signer.fingerprint.substr(0, 7) == "SHA256:");
  } catch (const Error& error) {
    RequireRefusal(error);
  }
  return 0;
}
