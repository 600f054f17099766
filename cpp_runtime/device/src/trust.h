#pragma once

#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include "folder.h"
#include "manifest_reader.h"
#include "sshsig.h"

namespace edgepack::device {

/// The folder trust/: what was pinned at the first install.
class Trust {
 public:
  /// Who signed a bundle, if anybody; and the list of signers to pin, if there is none here yet.
  struct Verdict {
    std::vector<Signer> signers;
    std::optional<std::string> pin;
  };

  explicit Trust(const Folder& root);

  /// The pinned list, in OpenSSH's format; nothing if no signature is asked for.
  [[nodiscard]] std::optional<std::string> signers() const;
  /// The board that the first bundle was for; nothing if that is lost or damaged.
  [[nodiscard]] std::optional<std::string> board() const;
  /// The name of the bundles that are taken, and their product; nothing as for `board`, or if the
  /// first bundle came when no name was noted.
  [[nodiscard]] std::optional<std::string> name() const;
  [[nodiscard]] std::optional<std::string> product() const;
  /// Now, or later: no earlier than the latest time seen here.
  [[nodiscard]] std::time_t Now() const;
  /// The same; but if `second`, another machine's clock, says the same as this one's, that is it.
  [[nodiscard]] std::time_t Now(std::optional<std::time_t> second) const;

  /// Whether a manifest may be used. `offered` is a list that comes with it, which counts only if
  /// none is pinned, or the same. Without any list the signature's own key is taken.
  /// Throws Error "unsigned", "bad-signature", "unknown-signer", "expired-key", "too-few-signers".
  [[nodiscard]] Verdict Check(const std::string& manifest,
                              const std::optional<std::string>& signature,
                              const std::optional<std::string>& offered,
                              std::optional<std::time_t> second = std::nullopt) const;
  /// Throws Error "wrong-board".
  void CheckBoard(const Manifest& manifest) const;
  /// Whether it is of the product, and still valid. Throws Error "wrong-product", "expired-bundle".
  void CheckProduct(const Manifest& manifest) const;
  void CheckTime(const Manifest& manifest, std::optional<std::time_t> second) const;

  void RemoveLeftovers() const { folder_.RemoveUnfinished(); }
  void Pin(const Verdict& verdict, const Manifest& manifest) const;
  /// Replaces the pinned list, and forgets what time it was: whoever may do this is to be believed.
  /// Throws Error "bad-signers" for one that makes no sense.
  void SetSigners(const std::string& list) const;
  /// Replaces the pinned list by one that the pinned signers signed, and of a higher serial: what
  /// anybody may bring. Throws Error "no-signers", "downgrade", and as `Check`.
  void UpdateSigners(const std::string& list, const std::string& signature) const;
  /// Notes the time, unless it is more than a year later than the latest noted: a clock that is
  /// that wrong once would end every key with an end, for ever.
  void Tick() const;
  /// Notes the time where `Tick` would not, earlier than what was noted or much later, if `second`
  /// agrees with the clock.
  void TakeTime(std::optional<std::time_t> second) const;

 private:
  [[nodiscard]] std::optional<std::string> Line(const char* name) const;
  [[nodiscard]] std::optional<std::time_t> Seen() const;
  void Note(std::time_t time) const;

  Folder folder_;
};

}  // namespace edgepack::device
