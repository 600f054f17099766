#include "repair.h"

#include <algorithm>
#include <utility>

#include "allowed_signers.h"
#include "error.h"
#include "layout.h"
#include "switch.h"

namespace edgepack::device {
namespace {

class Mender {
 public:
  Mender(const Site& site, const Progress& progress, std::string by)
      : site_(&site), to_(site, progress), by_(std::move(by)) {}

  RepairReport Run() {
    Signers();
    // What came whole may be what is damaged: a new device tool, for instance.
    Try("incoming", [&] { site_->store.FinishParts(); });
    Releases();
    // Which records those that are damaged, and ends what a damaged pending.json may have been.
    Try("what was being tested", [&] {
      const bool damaged = IsDamaged([&] { (void)site_->state.pending(); });
      to_.Recover();
      if (damaged) Mended("state/pending.json: what is current was tested again");
    });
    Try("current", [&] { Current(); });
    Try("state/highest.json", [&] {
      const std::optional<std::string> current = site_->releases.Named(kCurrent);
      if (site_->state.HasHighest() || !current) return;
      const std::string name = site_->releases.Load(*current).manifest.name;
      const std::optional<std::int64_t> highest = site_->state.highest(name);
      if (!highest) return;
      site_->state.Raise(name, *highest);
      Mended("state/highest.json: version " + std::to_string(*highest) + ", from the records");
    });
    Try("trust/board", [&] { Board(); });
    Try("bin/edgepack-device", [&] {
      if (const auto current = site_->releases.Named(kCurrent)) to_.UpdateTool(*current);
    });
    Try("incoming", [&] { site_->store.RemoveParts(); });
    return std::move(report_);
  }

 private:
  void Mended(std::string what) { report_.mended.push_back(std::move(what)); }
  void Lost(std::string what) { report_.lost.push_back(std::move(what)); }

  template <typename Function>
  void Try(const std::string& what, Function function) {
    try {
      function();
    } catch (const Error& error) {
      if (error.kind == "disk-full") throw;
      Lost(what + ": " + error.message);
    }
  }

  template <typename Function>
  static bool IsDamaged(Function function) {
    try {
      function();
    } catch (const Error& error) {
      if (error.kind != "damaged") throw;
      return true;
    }
    return false;
  }

  /// Never guessed: whoever is not on the list must not get onto it.
  void Signers() {
    Try("trust/allowed_signers", [&] {
      try {
        if (const auto list = site_->trust.signers()) {
          ParseAllowedSigners(*list);
          return;
        }
      } catch (const Error& error) {
        Lost("trust/allowed_signers: " + error.message + "; nothing is installed before " + kSet);
        return;
      }
      const std::vector<Record> records = site_->state.Records();
      if (std::any_of(records.begin(), records.end(),
                      [](const Record& record) { return !record.signer.empty(); })) {
        Lost(std::string("trust/allowed_signers: gone; nothing is installed before ") + kSet);
      }
    });
  }

  void Releases() {
    for (const std::string& id : site_->releases.Ids()) {
      const std::vector<std::string> problems = site_->releases.Problems(id);
      if (problems.empty()) {
        Try("release " + id, [&] { KeepCopy(id); });
        continue;
      }
      const std::string what = "release " + id + ": " + problems[0];
      try {
        RestoreManifest(id);
        site_->releases.Repair(id);
      } catch (const Error& error) {
        if (error.kind == "disk-full") throw;
      }
      if (site_->releases.Problems(id).empty()) {
        Mended(what + "; linked anew");
      } else {
        Lost(what + "; deploy its bundle again");
      }
    }
  }

  void KeepCopy(const std::string& id) const {
    const SignedManifest bundle = site_->releases.Load(id);
    const std::optional<Record> record = site_->state.Find(id);
    if (record && record->health) site_->state.KeepCopy(id, bundle.bytes, bundle.signature);
  }

  /// A manifest that cannot be read, or is not the recorded one, from its second copy.
  void RestoreManifest(const std::string& id) const {
    const std::optional<State::Copy> copy = site_->state.FindCopy(id);
    if (!copy) return;
    try {
      if (site_->releases.Load(id).bytes == copy->manifest) return;
    } catch (const Error& error) {
      if (error.kind == "io") throw;
    }
    site_->releases.Restore(id, copy->manifest, copy->signature);
  }

  [[nodiscard]] bool IsWhole(const std::optional<std::string>& id) const {
    return id && site_->releases.Problems(*id).empty();
  }

  /// The newest whole release that once passed its test, if what is current is none such.
  void Current() {
    if (!site_->releases.Named(kPrevious) && site_->root.Has(kPrevious)) {
      site_->root.RemoveTree(kPrevious);
      Mended("previous: it named no release");
    }
    if (IsWhole(site_->releases.Named(kCurrent))) return;
    std::vector<Record> records = site_->state.Records();
    std::sort(records.begin(), records.end(), [](const Record& a, const Record& b) {
      return std::pair(a.activated_at, a.serial) > std::pair(b.activated_at, b.serial);
    });
    for (const Record& record : records) {
      if (record.activated_at.empty() || !site_->releases.Has(record.release) ||
          !IsWhole(record.release)) {
        continue;
      }
      to_.Activate(record.release, by_);
      Mended("current: release " + record.release + " is it now");
      return;
    }
    if (!site_->releases.Ids().empty() || site_->root.Has(kCurrent)) {
      Lost("current: no release is whole that ever passed its test; deploy one");
    }
  }

  void Board() {
    const std::optional<std::string> current = site_->releases.Named(kCurrent);
    const bool board = site_->trust.board().has_value();
    if (!current || (board && site_->trust.name())) return;
    const Manifest manifest = site_->releases.Load(*current).manifest;
    site_->trust.Pin({}, manifest);
    Mended(board ? "trust/name: " + manifest.name + ", from the current release"
                 : "trust/board: " + manifest.board + ", from the current release");
  }

  static constexpr char kSet[] = "`edgepack-device trust set FILE`";
  const Site* site_;
  Switch to_;
  std::string by_;
  RepairReport report_;
};

}  // namespace

RepairReport Repair(const Site& site, const Progress& progress, const std::string& by) {
  return Mender(site, progress, by).Run();
}

}  // namespace edgepack::device
