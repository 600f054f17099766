#include "trust.h"

#include <algorithm>
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

std::optional<std::string> Trust::board() const {
  std::optional<std::string> name;
  try {
    name = Read(folder_, kBoard);
  } catch (const Error& error) {
    if (error.kind != "damaged") throw;
  }
  // The end of its line says that it is whole.
  if (!name || name->size() < 2 || name->back() != '\n') return std::nullopt;
  name->pop_back();
  const bool plain = std::all_of(name->begin(), name->end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
  });
  return plain ? name : std::nullopt;
}

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
    verdict.signer = VerifySignature(manifest, *signature, *list, now);
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

void Trust::Pin(const Verdict& verdict, const Manifest& manifest) const {
  if (verdict.pin && !signers()) folder_.Replace(kSigners, *verdict.pin, "pin.signers");
  if (!board()) folder_.Replace(kBoard, manifest.board + "\n", "pin.board");
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
