#include "sshsig.h"

#include <algorithm>
#include <crypto_hash_sha512.h>
#include <crypto_sign_ed25519.h>
#include <optional>
#include <set>
#include <vector>

#include "allowed_signers.h"
#include "error.h"
#include "sha256.h"
#include "ssh_wire.h"

namespace edgepack::device {
namespace {

constexpr std::string_view kBegin = "-----BEGIN SSH SIGNATURE-----";
constexpr std::string_view kEnd = "-----END SSH SIGNATURE-----";
constexpr std::string_view kSshsigMagic = "SSHSIG";
constexpr uint32_t kVersion = 1;
constexpr size_t kMostSignatures = 8;
// Authenticator data of FIDO2: someone touched the key.
constexpr uint8_t kUserPresent = 0x01;

[[noreturn]] void Bad(const std::string& problem) {
  throw Refused("bad-signature", "the bundle's signature is not valid: " + problem,
                "sign it again: edgepack sign");
}

std::string_view Bytes(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

const unsigned char* Unsigned(std::string_view data) {
  return reinterpret_cast<const unsigned char*>(data.data());
}

std::string Sha256Of(std::string_view data) {
  Sha256 hash;
  hash.Update(data.data(), data.size());
  const auto digest = hash.Digest();
  return std::string(Bytes(digest.data(), digest.size()));
}

std::string Sha512Of(std::string_view data) {
  unsigned char digest[crypto_hash_sha512_BYTES];
  crypto_hash_sha512(digest, Unsigned(data), data.size());
  return std::string(Bytes(digest, sizeof digest));
}

// The fields of PROTOCOL.sshsig's blob.
struct Signature {
  PublicKey key;
  std::string purpose;
  std::string reserved;
  std::string hash;
  std::string value;  // 64 bytes
  uint8_t flags = 0;  // of a hardware key, as is
  std::string counter;
};

// The base64 between the two marker lines, without its line ends.
std::string Dearmor(std::string_view text) {
  if (text.substr(0, kBegin.size()) != kBegin) Bad("it does not begin with " + std::string(kBegin));
  text.remove_prefix(kBegin.size());
  const size_t end = text.find(kEnd);
  if (end == std::string_view::npos) Bad("it is cut short");
  const std::string_view after = text.substr(end + kEnd.size());
  if (after.find_first_not_of("\r\n") != std::string_view::npos) Bad("something follows its end");
  std::string encoded;
  for (const char c : text.substr(0, end)) {
    if (c != '\n' && c != '\r') encoded += c;
  }
  const std::optional<std::string> blob = DecodeBase64(encoded);
  if (!blob) Bad("it is not base64");
  return *blob;
}

Signature ParseSignature(std::string_view armored) {
  const std::string blob = Dearmor(armored);
  WireReader reader(blob);
  if (reader.Bytes(kSshsigMagic.size()) != kSshsigMagic) Bad("it is not an SSH signature");
  if (reader.Uint32() != kVersion) Bad("it is of another version");
  const auto key = reader.String();
  const auto purpose = reader.String();
  const auto reserved = reader.String();
  const auto hash = reader.String();
  const auto value = reader.String();
  if (!value || !reader.AtEnd()) Bad("it is damaged");
  Signature signature;
  const std::optional<PublicKey> parsed = ParsePublicKey(*key);
  if (!parsed) Bad("its key is not of type ssh-ed25519 or sk-ssh-ed25519@openssh.com");
  signature.key = *parsed;
  signature.purpose = *purpose;
  signature.reserved = *reserved;
  signature.hash = *hash;

  WireReader inner(*value);
  const auto type = inner.String();
  const auto bytes = inner.String();
  const char* const expected = parsed->hardware ? "sk-ssh-ed25519@openssh.com" : "ssh-ed25519";
  if (!bytes || *type != expected || bytes->size() != crypto_sign_ed25519_BYTES) {
    Bad("it is damaged");
  }
  signature.value = *bytes;
  if (parsed->hardware) {
    const auto flags = inner.Byte();
    const auto counter = inner.Bytes(4);
    if (!counter) Bad("it is damaged");
    signature.flags = *flags;
    signature.counter = *counter;
  }
  if (!inner.AtEnd()) Bad("it is damaged");
  return signature;
}

bool Verifies(const Signature& signature, std::string_view message) {
  std::string signed_data(kSshsigMagic);
  signed_data += WireString(signature.purpose);
  signed_data += WireString(signature.reserved);
  signed_data += WireString(signature.hash);
  signed_data += WireString(signature.hash == "sha512" ? Sha512Of(message) : Sha256Of(message));
  if (signature.key.hardware) {
    signed_data = Sha256Of(signature.key.application) + static_cast<char>(signature.flags) +
                  signature.counter + Sha256Of(signed_data);
  }
  return crypto_sign_ed25519_verify_detached(Unsigned(signature.value), Unsigned(signed_data),
                                             signed_data.size(),
                                             Unsigned(signature.key.point)) == 0;
}

// Each from its first line to its last; what is none stays in the last.
std::vector<std::string_view> SplitSignatures(std::string_view text) {
  std::vector<std::string_view> blocks;
  for (;;) {
    const size_t end = text.find(kEnd);
    const size_t next = end == std::string_view::npos ? end : text.find(kBegin, end);
    blocks.push_back(text.substr(0, next));
    if (next == std::string_view::npos) return blocks;
    if (blocks.size() == kMostSignatures) Bad("it has more than 8 parts");
    text.remove_prefix(next);
  }
}

std::string Utc(std::time_t time) {
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &parts)};
}

// Why `signer` cannot sign now; nothing if it can.
std::optional<Error> Refusal(const AllowedSigner& signer, std::time_t now,
                             std::string_view purpose) {
  const std::string who = "the key " + signer.key.Fingerprint() + " of " + signer.principals;
  if (signer.namespaces && !MatchesPatterns(purpose, *signer.namespaces)) {
    return Refused("unknown-signer", who + " is pinned for other namespaces than " +
                                         std::string(purpose) + ": " + *signer.namespaces);
  }
  if (signer.valid_after && now < *signer.valid_after) {
    return Refused(
        "expired-key",
        who + " is valid only after " + Utc(*signer.valid_after) + "; here it is " + Utc(now),
        "is the device's clock right?");
  }
  if (signer.valid_before && now >= *signer.valid_before) {
    return Refused(
        "expired-key",
        who + " was valid before " + Utc(*signer.valid_before) + "; here it is " + Utc(now),
        "sign the bundle with a key that is valid");
  }
  return std::nullopt;
}

}  // namespace

Signer VerifySignature(std::string_view message, std::string_view armored,
                       std::string_view allowed_signers, std::time_t now,
                       std::string_view purpose) {
  const std::vector<AllowedSigner> signers = ParseAllowedSigners(allowed_signers);
  const Signature signature = ParseSignature(armored);
  if (signature.purpose != purpose) {
    Bad("it was made for another purpose than " + std::string(purpose));
  }
  if (signature.hash != "sha512" && signature.hash != "sha256") {
    Bad("its hash is neither sha512 nor sha256");
  }
  std::optional<Error> refusal;
  const AllowedSigner* found = nullptr;
  for (const AllowedSigner& signer : signers) {
    if (signer.key.blob != signature.key.blob) continue;
    refusal = Refusal(signer, now, purpose);
    if (!refusal) {
      found = &signer;
      break;
    }
  }
  if (found == nullptr && !refusal) {
    throw Refused("unknown-signer",
                  "the bundle is signed by " + signature.key.Fingerprint() +
                      ", which is not among the allowed signers",
                  "sign it with a key that is pinned on the device, or pin this one: "
                  "edgepack-device trust set FILE");
  }
  if (signature.key.hardware && (signature.flags & kUserPresent) == 0) {
    Bad("nobody touched the hardware key");
  }
  if (!Verifies(signature, message)) Bad("it is not over this manifest, or was changed");
  if (refusal) throw Error(*refusal);
  return {found->principals, found->key.Fingerprint()};
}

std::vector<Signer> VerifySignatures(std::string_view message, std::string_view armored,
                                     std::string_view allowed_signers, std::time_t now,
                                     std::string_view purpose) {
  const auto needed = static_cast<std::size_t>(ParseSignersPolicy(allowed_signers).min_signers);
  std::vector<Signer> signers;
  std::set<std::string> names;
  std::set<std::string> keys;
  std::optional<Error> refusal;
  const std::vector<std::string_view> blocks = SplitSignatures(armored);
  for (const std::string_view block : blocks) {
    try {
      Signer signer = VerifySignature(message, block, allowed_signers, now, purpose);
      // Two keys of one name are one person's, and two lines may name one key.
      const bool other_name = names.insert(signer.principal).second;
      const bool other_key = keys.insert(signer.fingerprint).second;
      if (other_name && other_key) signers.push_back(std::move(signer));
    } catch (const Error& error) {
      if (error.kind != "unknown-signer" && error.kind != "expired-key") throw;
      if (!refusal) refusal = error;
    }
  }
  if (signers.empty() && refusal) throw Error(*refusal);
  if (signers.size() < needed) {
    throw Refused("too-few-signers",
                  std::to_string(signers.size()) + " of " + std::to_string(needed) +
                      " signers that the pinned list asks for",
                  "have others sign it as well: edgepack sign BUNDLE --key FILE --add");
  }
  return signers;
}

std::string KeyOfSignature(std::string_view armored) { return ParseSignature(armored).key.Line(); }

}  // namespace edgepack::device
