// Signatures in OpenSSH's format, PROTOCOL.sshsig of its source, by Ed25519 keys: plain ones and
// those of FIDO hardware (PROTOCOL.u2f).
#ifndef EDGEPACK_DEVICE_SSHSIG_H_
#define EDGEPACK_DEVICE_SSHSIG_H_

#include <ctime>
#include <string>
#include <string_view>
#include <vector>

namespace edgepack::device {

// What a bundle's signature is made for (`ssh-keygen -Y sign -n`): one for a file of another
// purpose is worth nothing here.
inline constexpr char kSignatureNamespace[] = "edgepack-bundle";

struct Signer {
  std::string principal;    // as in the file of allowed signers
  std::string fingerprint;  // "SHA256:" and base64, as ssh-keygen -l prints it
};

// What a list of signers is signed for, with the keys of the list that it replaces.
inline constexpr char kSignersNamespace[] = "edgepack-signers";

// Checks that `armored` is a signature over `message` by a key that `allowed_signers` (see
// allowed_signers.h) lists for the namespace and for the time `now`, and says whose.
// Throws Error: "bad-signature" (damaged, of another kind, or not over this message),
// "unknown-signer", "expired-key" (also for one not valid yet), or what ParseAllowedSigners throws.
Signer VerifySignature(std::string_view message, std::string_view armored,
                       std::string_view allowed_signers, std::time_t now,
                       std::string_view purpose = kSignatureNamespace);

// The same for several signatures, one after the other, as many as the list's policy asks for at
// least: who signed, by different names and keys. Those of others, or by keys whose time is over,
// count for nothing; one that is not over `message` is an error. Throws "too-few-signers", too.
std::vector<Signer> VerifySignatures(std::string_view message, std::string_view armored,
                                     std::string_view allowed_signers, std::time_t now,
                                     std::string_view purpose = kSignatureNamespace);

// The key in a signature, which is not checked: "ssh-ed25519 AAAA...", to be pinned.
// Throws Error "bad-signature".
std::string KeyOfSignature(std::string_view armored);

}  // namespace edgepack::device

#endif  // EDGEPACK_DEVICE_SSHSIG_H_
