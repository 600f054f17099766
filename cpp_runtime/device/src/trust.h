#pragma once

#include <ctime>
#include <optional>
#include <string>

#include "folder.h"
#include "manifest_reader.h"
#include "sshsig.h"

namespace edgepack::device {

/// The folder trust/: what was pinned at the first install.
class Trust {
 public:
  /// Who signed a bundle, if anybody; and the list of signers to pin, if there is none here yet.
  struct Verdict {
    std::optional<Signer> signer;
    std::optional<std::string> pin;
  };

  explicit Trust(const Folder& root);

  /// The pinned list, in OpenSSH's format; nothing if no signature is asked for.
  [[nodiscard]] std::optional<std::string> signers() const;
  /// The board that the first bundle was for; nothing if that is lost or damaged.
  [[nodiscard]] std::optional<std::string> board() const;
  /// Now, or later: no earlier than the latest time seen here.
  [[nodiscard]] std::time_t Now() const;
  /// The same; but if `second`, another machine's clock, says the same as this one's, that is it.
  [[nodiscard]] std::time_t Now(std::optional<std::time_t> second) const;

  /// Whether a manifest may be used. `offered` is a list that comes with it, which counts only if
  /// none is pinned, or the same. Without any list the signature's own key is taken.
  /// Throws Error "unsigned", "bad-signature", "unknown-signer", "expired-key".
  [[nodiscard]] Verdict Check(const std::string& manifest,
                              const std::optional<std::string>& signature,
                              const std::optional<std::string>& offered,
                              std::optional<std::time_t> second = std::nullopt) const;
  /// Throws Error "wrong-board".
  void CheckBoard(const Manifest& manifest) const;

  void RemoveLeftovers() const { folder_.RemoveUnfinished(); }
  void Pin(const Verdict& verdict, const Manifest& manifest) const;
  /// Replaces the pinned list, and forgets what time it was: whoever may do this is to be believed.
  /// Throws Error "bad-signers" for one that makes no sense.
  void SetSigners(const std::string& list) const;
  /// Notes the time, unless it is more than a year later than the latest noted: a clock that is
  /// that wrong once would end every key with an end, for ever.
  void Tick() const;
  /// Notes the time where `Tick` would not, earlier than what was noted or much later, if `second`
  /// agrees with the clock.
  void TakeTime(std::optional<std::time_t> second) const;

 private:
  [[nodiscard]] std::optional<std::time_t> Seen() const;
  void Note(std::time_t time) const;

  Folder folder_;
};

}  // namespace edgepack::device
