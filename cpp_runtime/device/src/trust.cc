#include "trust.h"

#include <array>
#include <cstdlib>
#include <sys/stat.h>

#include "allowed_signers.h"
#include "clock.h"
#include "error.h"
#include "layout.h"

namespace edgepack::device {
namespace {

constexpr char kSigners[] = "allowed_signers";
constexpr char kBoard[] = "board";
constexpr char kName[] = "name";
constexpr char kProduct[] = "product";
constexpr char kClock[] = "clock";
constexpr std::size_t kMaxTrustBytes = std::size_t{1} << 20U;
constexpr std::time_t kDayS = 86400;
constexpr std::time_t kLeapS = 366 * kDayS;
// Time zones that somebody took for UTC are no disagreement.
constexpr std::time_t kAgreeS = kDayS;

bool Agree(std::time_t now, std::optional<std::time_t> second) {
  return second && *second >= now - kAgreeS && *second <= now + kAgreeS;
}

std::optional<std::string> Read(const Folder& folder, const char* name) {
  const std::optional<File> file = folder.Find(name);
  if (!file) return std::nullopt;
  return file->ReadAll(kMaxTrustBytes);
}

}  // namespace

Trust::Trust(const Folder& root) : folder_(root.MakeSub(kTrust)) {}

std::optional<std::string> Trust::signers() const { return Read(folder_, kSigners); }

std::optional<std::string> Trust::Line(const char* name) const {
  std::optional<std::string> line;
  try {
    line = Read(folder_, name);
  } catch (const Error& error) {
    if (error.kind != "damaged") throw;
  }
  // The end of its line says that it is whole.
  if (!line || line->size() < 2 || line->back() != '\n') return std::nullopt;
  line->pop_back();
  return IsSafeName(*line) ? line : std::nullopt;
}

std::optional<std::string> Trust::board() const { return Line(kBoard); }

std::optional<std::string> Trust::name() const { return Line(kName); }

std::optional<std::string> Trust::product() const { return Line(kProduct); }

std::optional<std::time_t> Trust::Seen() const {
  const std::optional<struct stat> seen = folder_.Status(kClock);
  if (!seen || !S_ISREG(seen->st_mode)) return std::nullopt;
  return seen->st_mtime;
}

std::time_t Trust::Now() const {
  const std::time_t now = std::time(nullptr);
  return std::max(now, Seen().value_or(now));
}

std::time_t Trust::Now(std::optional<std::time_t> second) const {
  const std::time_t now = std::time(nullptr);
  return Agree(now, second) ? now : Now();
}

Trust::Verdict Trust::Check(const std::string& manifest,
                            const std::optional<std::string>& signature,
                            const std::optional<std::string>& offered,
                            std::optional<std::time_t> second) const {
  const std::optional<std::string> pinned = signers();
  if (offered) {
    ParseAllowedSigners(*offered);
    if (pinned && *pinned != *offered) {
      throw Refused("unknown-signer", "other signers are pinned here than those given",
                    "leave out --signers, or change the pinned list on the device: "
                    "edgepack-device trust set FILE");
    }
  }
  Verdict verdict;
  std::optional<std::string> list = pinned ? pinned : offered;
  if (!signature) {
    if (!list) return verdict;
    throw Refused("unsigned", "the bundle is not signed, and signers are pinned here",
                  "sign it: edgepack sign BUNDLE --key FILE");
  }
  if (!list) {
    list = std::string("first-use namespaces=\"") + kSignatureNamespace + "\" " +
           KeyOfSignature(*signature) + "\n";
  }
  const std::time_t now = Now(second);
  try {
    verdict.signers = VerifySignatures(manifest, *signature, *list, now);
  } catch (Error& error) {
    if (error.kind == "expired-key" && std::time(nullptr) < now) {
      error.hint = "that is the latest time seen here, the clock says " +
                   Timestamp(std::time(nullptr)) +
                   "; if that is right: a signed `edgepack deploy`, or `edgepack trust set FILE`";
    }
    throw;
  }
  if (!pinned) verdict.pin = std::move(list);
  return verdict;
}

void Trust::CheckBoard(const Manifest& manifest) const {
  const std::optional<std::string> pinned = board();
  if (pinned && *pinned != manifest.board) {
    throw Refused("wrong-board",
                  "the bundle is for board " + manifest.board + ", this device is a " + *pinned,
                  "package the model for it: edgepack package --board " + *pinned);
  }
}

void Trust::CheckProduct(const Manifest& manifest) const {
  const std::optional<std::string> pinned = product();
  if (pinned && pinned != manifest.product) {
    throw Refused("wrong-product",
                  "the bundle is of " +
                      (manifest.product ? "product " + *manifest.product : "no product") +
                      ", this device is a " + *pinned,
                  "package it for it: product = \"" + *pinned + "\" in edgepack.toml");
  }
}

void Trust::CheckTime(const Manifest& manifest, std::optional<std::time_t> second) const {
  const std::time_t now = Now(second);
  if (manifest.valid_until && now > *manifest.valid_until) {
    throw Refused("expired-bundle",
                  "the bundle was valid until " + Timestamp(*manifest.valid_until) +
                      "; here it is " + Timestamp(now),
                  "get a newer one, or package it again: --valid-until");
  }
  if (manifest.valid_until) return;
  const std::optional<std::string> list = signers();
  if (list && ParseSignersPolicy(*list).require_valid_until) {
    throw Refused("expired-bundle",
                  "the bundle does not say until when it is valid, and the pinned list asks for it",
                  "package it again: --valid-until");
  }
}

void Trust::Pin(const Verdict& verdict, const Manifest& manifest) const {
  if (verdict.pin && !signers()) folder_.Replace(kSigners, *verdict.pin, "pin.signers");
  if (!board()) folder_.Replace(kBoard, manifest.board + "\n", "pin.board");
  if (!name()) folder_.Replace(kName, manifest.name + "\n", "pin.board");
  if (manifest.product && !product()) {
    folder_.Replace(kProduct, *manifest.product + "\n", "pin.board");
  }
}

void Trust::UpdateSigners(const std::string& list, const std::string& signature) const {
  const std::optional<std::string> pinned = signers();
  if (!pinned) {
    throw Refused("no-signers", "no signers are pinned here that could have signed a list",
                  "edgepack-device trust set FILE");
  }
  ParseAllowedSigners(list);
  (void)VerifySignatures(list, signature, *pinned, Now(), kSignersNamespace);
  const int64_t there = ParseSignersPolicy(*pinned).serial;
  const int64_t brought = ParseSignersPolicy(list).serial;
  if (list != *pinned && brought <= there) {
    throw Refused("downgrade",
                  "the list has serial " + std::to_string(brought) + ", the pinned one " +
                      std::to_string(there),
                  "give each list a higher one: # edgepack: serial = " + std::to_string(there + 1));
  }
  folder_.Replace(kSigners, list, "pin.signers");
}

void Trust::SetSigners(const std::string& list) const {
  ParseAllowedSigners(list);
  folder_.Replace(kSigners, list, "pin.signers");
  folder_.RemoveTree(kClock);
}

void Trust::Note(std::time_t time) const {
  folder_.SetFolderAside(kClock);
  const File clock = folder_.Create(kClock, 0644);
  struct timespec stamp = {};
  stamp.tv_sec = time;
  const std::array<struct timespec, 2> times = {stamp, stamp};
  if (futimens(clock.fd(), times.data()) != 0) ThrowErrno("set the time of", clock.path());
}

void Trust::Tick() const {
  const std::time_t now = std::time(nullptr);
  const std::optional<std::time_t> seen = Seen();
  if (!seen || (now > *seen && now - *seen <= kLeapS)) Note(now);
}

void Trust::TakeTime(std::optional<std::time_t> second) const {
  const std::time_t now = std::time(nullptr);
  const std::optional<std::time_t> seen = Seen();
  const bool usual = seen && *seen <= now && now - *seen <= kLeapS;  // then `Tick` notes it
  if (!usual && Agree(now, second)) Note(now);
}

}  // namespace edgepack::device
