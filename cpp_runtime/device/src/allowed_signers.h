// OpenSSH's list of who may sign: ALLOWED SIGNERS in ssh-keygen(1).
#ifndef EDGEPACK_DEVICE_ALLOWED_SIGNERS_H_
#define EDGEPACK_DEVICE_ALLOWED_SIGNERS_H_

#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace edgepack::device {

// An Ed25519 public key, plain or of FIDO hardware.
struct PublicKey {
  std::string blob;         // as in a key file, decoded
  std::string point;        // 32 bytes
  std::string application;  // of a hardware key, such as "ssh:"; else empty
  bool hardware = false;

  [[nodiscard]] std::string Fingerprint() const;
  // "ssh-ed25519 AAAA..."
  [[nodiscard]] std::string Line() const;
};

struct AllowedSigner {
  std::string principals;
  PublicKey key;
  std::optional<std::string> namespaces;  // patterns; without it: any
  std::optional<std::time_t> valid_after;
  std::optional<std::time_t> valid_before;
};

// What a list asks for beside its keys, in comments that begin with "# edgepack:", so that
// ssh-keygen reads it, too: "# edgepack: serial = 7", "min-signers = 2", "require-valid-until =
// yes".
struct SignersPolicy {
  int64_t serial = 0;  // a list that is signed by pinned keys replaces one of a lower serial only
  int64_t min_signers =
      1;  // how many of the list have to sign a bundle, by different names and keys
  bool require_valid_until = false;
};

// Throws Error "bad-signers" for one that is not understood, or given twice.
SignersPolicy ParseSignersPolicy(std::string_view text);

// Stricter than ssh-keygen, which skips what it does not understand: any such line makes the whole
// file an error. Options: namespaces, valid-after, valid-before. Keys: ssh-ed25519 and
// sk-ssh-ed25519@openssh.com, no certificates.
// Throws Error "bad-signers" with the line's number, also when no key is listed, or fewer than its
// own policy asks for.
std::vector<AllowedSigner> ParseAllowedSigners(std::string_view text);

// Nothing if `blob` is no such key.
std::optional<PublicKey> ParsePublicKey(std::string_view blob);

// A list of patterns as in ssh_config(5): commas, * and ?, and ! for what must not match.
bool MatchesPatterns(std::string_view text, std::string_view patterns);

}  // namespace edgepack::device

#endif  // EDGEPACK_DEVICE_ALLOWED_SIGNERS_H_
