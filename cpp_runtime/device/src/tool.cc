#include "tool.h"

#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <functional>
#include <map>
#include <sys/stat.h>
#include <unistd.h>

#include "account.h"
#include "chunks.h"
#include "error.h"
#include "install.h"
#include "keeper.h"
#include "layout.h"
#include "lock.h"
#include "metrics.h"
#include "options.h"
#include "output.h"
#include "receive.h"
#include "repair.h"
#include "sha256.h"
#include "site.h"
#include "sources.h"
#include "status.h"
#include "supervise.h"
#include "switch.h"
#include "trial.h"
#include "trial_run.h"

namespace edgepack::device {
namespace {

void Print(const std::string& text) { (void)std::fwrite(text.data(), 1, text.size(), stdout); }

/// The folder above the one this program lies in, whatever it was called by.
std::string OwnFolder() {
  std::array<char, PATH_MAX> path;  // NOLINT(*-member-init): filled by the call
  const ssize_t size = readlink("/proc/self/exe", path.data(), path.size());
  if (size < 0) ThrowErrno("read link", "/proc/self/exe");
  const std::string self(path.data(), static_cast<std::size_t>(size));
  const std::string bin = self.substr(0, self.rfind('/'));
  return bin.substr(0, bin.rfind('/'));
}

std::string ReadUserFile(const std::string& path) {
  Fd fd = OpenPath(path, O_RDONLY);
  if (!fd) ThrowErrno("open", path);
  return File(std::move(fd), path).ReadAll(std::size_t{1} << 20U);
}

std::string UserName() {
  for (const char* variable : {"USER", "LOGNAME"}) {
    if (const char* name = std::getenv(variable)) return name;  // NOLINT(concurrency-mt-unsafe)
  }
  return "user " + std::to_string(geteuid());
}

std::string Home() {
  if (const char* home = std::getenv("HOME")) return home;  // NOLINT(concurrency-mt-unsafe)
  throw Error(kExitUsage, "usage", "there is no HOME", "give --root DIR");
}

std::string FullPath(const std::string& path) {
  std::array<char, PATH_MAX> resolved;  // NOLINT(*-member-init): filled by the call
  if (realpath(path.c_str(), resolved.data()) == nullptr) ThrowErrno("find", path);
  return resolved.data();
}

/// The folder of the user's own units, made if it is not there.
std::string UserUnits() {
  const char* config = std::getenv("XDG_CONFIG_HOME");  // NOLINT(concurrency-mt-unsafe)
  const bool is_set = config != nullptr && config[0] == '/';
  std::string path = is_set ? std::string(config) : Home() + "/.config";
  for (const char* part : {"", "/systemd", "/user"}) {
    path += part;
    if (mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) ThrowErrno("make folder", path);
  }
  return path;
}

int Fail(const Error& error, bool as_json) {
  if (as_json) {
    JsonWriter json;
    json.BeginObject().Key("error");
    WriteError(error, &json);
    Print(json.EndObject().text() + "\n");
  } else {
    (void)std::fprintf(stderr, "error: %s\n", error.message.c_str());
    if (!error.hint.empty()) (void)std::fprintf(stderr, "\nhint: %s\n", error.hint.c_str());
  }
  return error.exit_code;
}

class Tool {
 public:
  /// `mask` is the umask that edgepack-run gets.
  Tool(Options options, mode_t mask) : options_(std::move(options)), mask_(mask) {
    if (options_.by.empty()) options_.by = UserName();
  }

  [[nodiscard]] int Run() const {
    const std::map<std::string, std::function<int()>> commands = {
        {"install", [&] { return Install(); }},
        {"activate", [&] { return Activate(Word("the id of a release")); }},
        {"rollback", [&] { return Rollback(); }},
        {"prune", [&] { return Prune(); }},
        {"verify", [&] { return Verify(); }},
        {"status", [&] { return Status(); }},
        {"metrics", [&] { return Metrics(); }},
        {"recover", [&] { return Recover(); }},
        {"repair", [&] { return RepairAll(); }},
        {"run", [&] { return options_.supervise ? SuperviseApp() : RunApp(); }},
        {"service", [&] { return Service(); }},
        {"trial", [&] { return DoTrial(); }},
        {"trust", [&] { return ShowOrSetTrust(); }},
        {"chunks", [&] { return Chunks(); }},
        {"receive", [&] { return Receive(Root(), STDIN_FILENO, STDOUT_FILENO); }},
    };
    const auto found = commands.find(options_.command);
    if (found == commands.end()) {
      throw Error(kExitUsage, "usage", "unknown command: " + options_.command,
                  "edgepack-device --help lists them");
    }
    if (options_.dry_run && options_.command != "prune") {
      throw Error(kExitUsage, "usage", "--dry-run is prune's only");
    }
    return found->second();
  }

 private:
  [[nodiscard]] std::string Word(const char* what) const {
    if (options_.words.size() != 1) {
      throw Error(kExitUsage, "usage", options_.command + " takes " + what);
    }
    return options_.words[0];
  }

  [[nodiscard]] std::string Root() const {
    if (options_.root) return *options_.root;
    std::string own = OwnFolder();
    if (access((own + "/" + kStore).c_str(), F_OK) == 0) return own;
    throw Error(kExitUsage, "usage", "which releases?",
                "give --root DIR, or run the program that is installed there");
  }

  [[nodiscard]] Lock TakeLock(const Site& site) const {
    return {site.root, {0, options_.by, "", options_.command, ""}, options_.wait_s};
  }

  [[nodiscard]] Progress Steps() const {
    if (options_.json) return [](const std::string& /*what*/) {};
    return [](const std::string& what) { (void)std::fprintf(stderr, "%s\n", what.c_str()); };
  }

  [[nodiscard]] int Install() const {
    const std::string path = options_.words.empty() ? OwnFolder() : Word("one bundle");
    const std::unique_ptr<BundleSource> source = OpenBundle(path);
    InstallRequest request;
    request.by = options_.by;
    if (options_.signers) request.signers = ReadUserFile(*options_.signers);
    request.keep = options_.keep;
    request.allow_downgrade = options_.allow_downgrade;
    request.activate = options_.activate;
    request.retest = options_.retest;
    request.name = options_.name;
    const std::string root = options_.root
                                 ? *options_.root
                                 : Home() + "/edgepack/" + ParseManifest(source->Manifest()).name;
    const Site site = Site::Make(root);
    const Lock lock = TakeLock(site);
    Switch(site, Steps()).Recover();
    const InstallReport report = Installer(site, Steps(), request).Install(source.get());
    if (options_.json) {
      JsonWriter json;
      report.Write(&json);
      Print(json.text() + "\n");
    } else {
      Print("release " + report.release + " in " + root + ": " + report.outcome + "\n");
      if (report.same_version) {
        Print("release " + *report.same_version + ", which was here, has the same version\n");
      }
      if (report.pinned) {
        Print("from now on only bundles of these signers are taken:\n" + *report.pinned);
      }
    }
    return 0;
  }

  [[nodiscard]] int Activate(const std::string& release) const {
    const Site site = Site::Open(Root());
    const Lock lock = TakeLock(site);
    const Switch to(site, Steps());
    to.Recover();
    return ActivateLocked(site, to, release);
  }

  [[nodiscard]] int Rollback() const {
    if (options_.to) return Activate(*options_.to);
    const Site site = Site::Open(Root());
    const Lock lock = TakeLock(site);
    const Switch to(site, Steps());
    to.Recover();
    const std::optional<std::string> previous = site.releases.Named(kPrevious);
    if (!previous) {
      throw Error(kExitDevice, "no-release", "there is no release before the current one",
                  "edgepack-device status lists them; --to ID names one");
    }
    return ActivateLocked(site, to, *previous);
  }

  [[nodiscard]] int ActivateLocked(const Site& site, const Switch& to,
                                   const std::string& release) const {
    if (!IsReleaseId(release) || !site.releases.Has(release)) {
      throw Error(kExitDevice, "no-release", "there is no release " + release,
                  "edgepack-device status lists them");
    }
    const std::optional<std::string> before = site.releases.Named(kCurrent);
    const Health health = to.Activate(release, options_.by);
    if (options_.json) {
      JsonWriter json;
      json.BeginObject().Key("release").String(release).Key("before").StringOrNull(before);
      json.Key("previous").StringOrNull(site.releases.Named(kPrevious)).Key("health");
      health.Write(&json);
      Print(json.EndObject().text() + "\n");
    } else {
      Print("release " + release + " is current\n");
    }
    return 0;
  }

  [[nodiscard]] int Prune() const {
    const Site site = Site::Open(Root());
    const Switch to(site, Steps());
    std::vector<std::string> removed;
    if (options_.dry_run) {
      removed = to.Removable(options_.keep, site.releases.Named(kCurrent).value_or(""));
    } else {
      const Lock lock = TakeLock(site);
      to.Recover();
      removed = to.Prune(options_.keep);
    }
    const std::string verb = options_.dry_run ? "would remove " : "removed ";
    JsonWriter json;
    json.BeginObject().Key("dry_run").Bool(options_.dry_run).Key("removed").BeginArray();
    for (const std::string& id : removed) {
      json.String(id);
      if (!options_.json) Print(verb + id + "\n");
    }
    if (options_.json) Print(json.EndArray().EndObject().text() + "\n");
    return 0;
  }

  [[nodiscard]] int Verify() const {
    const Site site = Site::Open(Root());
    const std::vector<std::string> ids =
        options_.words.empty() ? site.releases.Ids()
                               : std::vector<std::string>{Word("the id of a release")};
    bool whole = true;
    JsonWriter json;
    json.BeginObject().Key("releases").BeginArray();
    for (const std::string& id : ids) {
      const std::vector<std::string> problems =
          IsReleaseId(id) ? site.releases.Problems(id) : std::vector<std::string>{"is no release"};
      whole = whole && problems.empty();
      json.BeginObject().Key("release").String(id).Key("problems").BeginArray();
      if (!options_.json) Print(id + (problems.empty() ? ": whole\n" : ": damaged\n"));
      for (const std::string& problem : problems) {
        json.String(problem);
        if (!options_.json) Print("  " + problem + "\n");
      }
      json.EndArray().EndObject();
    }
    if (options_.json) Print(json.EndArray().EndObject().text() + "\n");
    return whole ? 0 : kExitBundle;
  }

  [[nodiscard]] int Status() const {
    const Site site = Site::Open(Root());
    Print(options_.json ? StatusJson(site) + "\n" : StatusText(site));
    return 0;
  }

  [[nodiscard]] int Metrics() const {
    if (!options_.words.empty()) throw Error(kExitUsage, "usage", "metrics takes no words");
    if (options_.timer && !options_.textfile) {
      throw Error(kExitUsage, "usage", "--timer needs --textfile DIR");
    }
    const Site site = Site::Open(Root());
    if (!options_.textfile) {
      const std::string text = MetricsText(site, options_.app_metrics);
      JsonWriter json;
      json.BeginObject().Key("metrics").String(text).EndObject();
      Print(options_.json ? json.text() + "\n" : text);
      return 0;
    }
    // Told to others: from everywhere the same.
    const std::string folder = FullPath(*options_.textfile);
    const std::string path = WriteTextfile(site, options_.app_metrics, folder);
    if (!options_.timer) return 0;
    Print("# " + path + " is written every 30 s after these:\n" +
          WriteTimer(site, options_.app_metrics, folder, UserUnits(),
                     FullPath(Root()) + "/" + kBin + "/" + kTool));
    return 0;
  }

  [[nodiscard]] int Recover() const {
    if (options_.owner && geteuid() == 0) {
      const Account owner = AccountOf(*options_.owner);
      if (owner.uid == 0) {
        NeedRootsOwn(Root());
      } else {
        Become(owner);
      }
    }
    const Site site = Site::Open(Root());
    const Lock lock = TakeLock(site);
    Switch(site, Steps()).Recover();
    return Status();
  }

  [[nodiscard]] int RepairAll() const {
    const Site site = Site::Open(Root());
    const Lock lock = TakeLock(site);
    const RepairReport report = Repair(site, Steps(), options_.by);
    JsonWriter json;
    json.BeginObject();
    for (const auto& [key, lines] : {std::pair("mended", report.mended), {"lost", report.lost}}) {
      json.Key(key).BeginArray();
      for (const std::string& line : lines) {
        json.String(line);
        if (!options_.json) Print(std::string(key) + ": " + line + "\n");
      }
      json.EndArray();
    }
    if (options_.json) Print(json.EndObject().text() + "\n");
    return report.lost.empty() ? 0 : kExitBundle;
  }

  [[nodiscard]] int RunApp() const {
    const Site site = Site::Open(Root());
    {
      const Lock lock = TakeLock(site);
      Switch(site, Steps()).Recover();
    }
    const std::optional<std::string> current = site.releases.Named(kCurrent);
    if (!current) {
      throw Error(kExitDevice, "no-release", "no release is current",
                  "edgepack deploy, or edgepack-device activate, makes one so");
    }
    site.releases.Verify(*current);
    // Not by way of `current`, which may name another release by now.
    std::string app = site.releases.PathOf(*current) + "/" + kApp;
    std::vector<char*> argv = {app.data()};
    std::vector<std::string> words = options_.app_words;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    umask(mask_);
    execv(argv[0], argv.data());
    ThrowErrno("start", app);
  }

  [[nodiscard]] int SuperviseApp() const {
    SuperviseOptions how;
    how.root = Root();
    how.args = options_.app_words;
    how.user = options_.user;
    how.owner = options_.owner;
    how.writable = options_.writable;
    how.groups = options_.groups;
    how.reads = options_.reads;
    how.low_ports = options_.low_ports;
    how.log = options_.log;
    if (options_.check) {
      CheckService(how);
      return 0;
    }
    std::optional<ServiceLock> lock;
    if (options_.lock) {
      lock = options_.respawn ? ServiceLock::TakePatiently(*options_.lock)
                              : ServiceLock::Take(*options_.lock);
      if (!lock) return 0;
    }
    if (!options_.respawn) return Supervise(how).code;
    how.keeper = getpid();
    return Keep([&](const std::string& why) -> Outcome {
      try {
        how.why = why;
        return Supervise(how);
      } catch (const Error& error) {
        // What was typed wrong stays wrong.
        return {Fail(error, options_.json), error.exit_code != kExitUsage};
      }
    });
  }

  [[nodiscard]] int Service() const {
    const std::string action = Word("`status` or `stop`");
    if (!options_.lock || (action != "status" && action != "stop")) {
      throw Error(kExitUsage, "usage", "service takes `status` or `stop`, and --lock FILE");
    }
    if (action == "stop") {
      ServiceLock::Stop(*options_.lock);
      return 0;
    }
    constexpr int kNotRunning = 3;  // as init scripts say it
    const pid_t pid = ServiceLock::Holder(*options_.lock);
    Print(pid == 0 ? "stopped\n" : "running\nprocess " + std::to_string(pid) + "\n");
    return pid == 0 ? kNotRunning : 0;
  }

  [[nodiscard]] int DoTrial() const {
    const std::string action = options_.words.empty() ? "" : options_.words[0];
    const std::size_t words = action == "start" ? 2 : 1;
    if (options_.words.size() != words) {
      throw Error(kExitUsage, "usage",
                  "trial takes `start` and a release, `status`, `stop`, `activate` or `resume`");
    }
    const Site site = Site::Open(Root());
    if (action == "run") {
      RunTrial(site);
      return 0;
    }
    if (action == "start") {
      const Lock lock = TakeLock(site);
      Switch(site, Steps()).Recover();
      StartTrial(site, Steps(), options_.words[1], options_.rules, options_.by);
    } else if (action == "stop") {
      (void)StopTrial(site);
    } else if (action == "activate") {
      Trial trial = StopTrial(site);
      if (trial.phase == "stopped") {
        const Lock lock = TakeLock(site);
        const Switch to(site, Steps());
        to.Recover();
        to.Activate(trial.release, options_.by);
        trial.phase = "activated";
        trial.reason = "activated by the operator";
        SaveTrial(site.root, trial);
      }
    } else if (action == "resume") {
      ResumeTrial(site);
    } else if (action != "status") {
      throw Error(kExitUsage, "usage", "trial does not know `" + action + "`");
    }
    Print(options_.json ? TrialJson(site) + "\n" : TrialText(site));
    return 0;
  }

  [[nodiscard]] int ShowOrSetTrust() const {
    const Site site = Site::Open(Root());
    if (options_.words == std::vector<std::string>{"show"}) {
      Print(options_.json ? TrustJson(site.trust) + "\n"
                          : site.trust.signers().value_or(
                                "no signers are pinned: unsigned bundles are taken\n"));
      return 0;
    }
    const bool is_update = !options_.words.empty() && options_.words[0] == "update";
    if (options_.words.size() != 2 || (options_.words[0] != "set" && !is_update)) {
      throw Error(kExitUsage, "usage", "trust takes `show`, or `set` or `update` and a file");
    }
    const Lock lock = TakeLock(site);
    const std::string list = ReadUserFile(options_.words[1]);
    if (is_update) {
      site.trust.UpdateSigners(list, ReadUserFile(options_.words[1] + ".sig"));
    } else {
      site.trust.SetSigners(list);
    }
    if (options_.json) Print(TrustJson(site.trust) + "\n");
    return 0;
  }

  [[nodiscard]] int Chunks() const {
    const std::string path = Word("a file");
    Fd fd = OpenPath(path, O_RDONLY);
    if (!fd) ThrowErrno("open", path);
    for (const Chunk& chunk : CutIntoChunks(File(std::move(fd), path))) {
      Print(std::to_string(chunk.offset) + " " + std::to_string(chunk.size) + " " +
            Hex(chunk.hash.data(), chunk.hash.size()) + "\n");
    }
    return 0;
  }

  Options options_;
  mode_t mask_;
};

}  // namespace

int RunTool(const std::vector<std::string>& words) {
  bool as_json = false;
  for (const std::string& word : words) {
    if (word == "--") break;
    as_json = as_json || word == "--json";
  }
  // The app may run as another account than the one that installs it.
  const mode_t mask = umask(022);
  try {
    Options options = ParseOptions(words);
    if (options.command == "--version") {
      (void)std::printf("%s %s protocol 1\n", kTool, EDGEPACK_VERSION);
      return 0;
    }
    if (options.command == "--help") {
      Print(HelpText());
      return 0;
    }
    const int code = Tool(std::move(options), mask).Run();
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
    (void)std::fprintf(stderr, "error: the answer could not be written to standard output\n");
    return code == 0 ? kExitDevice : code;
  } catch (const Error& error) {
    return Fail(error, as_json);
  }
}

}  // namespace edgepack::device
