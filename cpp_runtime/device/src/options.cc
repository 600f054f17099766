#include "options.h"

#include <cmath>
#include <cstdlib>

#include "common/command_line.h"
#include "common/error.h"

namespace edgepack::device {
namespace {

double Decimal(const char* name, const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !std::isfinite(value)) {
    throw UsageError(std::string(name) + ": '" + text + "' is not a number");
  }
  return value;
}

}  // namespace

Options ParseOptions(const std::vector<std::string>& words) {
  Options options;
  OptionTable table;
  table.hint = "edgepack-device --help lists them";
  table.switches = {
      {"--json", [&] { options.json = true; }},
      {"--allow-downgrade", [&] { options.allow_downgrade = true; }},
      {"--no-activate", [&] { options.activate = false; }},
      {"--retest", [&] { options.retest = true; }},
      {"--dry-run", [&] { options.dry_run = true; }},
      {"--supervise", [&] { options.supervise = true; }},
      {"--respawn", [&] { options.respawn = true; }},
      {"--low-ports", [&] { options.low_ports = true; }},
      {"--timer", [&] { options.timer = true; }},
      {"--check", [&] { options.check = true; }},
      {"--version", [&] { options.command = "--version"; }},
      {"--help", [&] { options.command = "--help"; }},
  };
  using Value = const std::string&;
  table.values = {
      {"--root", [&](Value text) { options.root = text; }},
      {"--signers", [&](Value text) { options.signers = text; }},
      {"--name", [&](Value text) { options.name = text; }},
      {"--textfile", [&](Value text) { options.textfile = text; }},
      {"--app", [&](Value text) { options.app_metrics = text; }},
      {"--to", [&](Value text) { options.to = text; }},
      {"--user", [&](Value text) { options.user = text; }},
      {"--owner", [&](Value text) { options.owner = text; }},
      {"--writable", [&](Value text) { options.writable.push_back(text); }},
      {"--group", [&](Value text) { options.groups.push_back(text); }},
      {"--reads", [&](Value text) { options.reads.push_back(text); }},
      {"--log", [&](Value text) { options.log = text; }},
      {"--lock", [&](Value text) { options.lock = text; }},
      {"--by", [&](Value text) { options.by = text; }},
      {"--wait", [&](Value text) { options.wait_s = WholeNumber("--wait", text, 0); }},
      {"--for", [&](Value text) { options.rules.seconds = Decimal("--for", text); }},
      {"--share", [&](Value text) { options.rules.share = Decimal("--share", text); }},
      {"--split", [&](Value text) { options.rules.split = Decimal("--split", text); }},
      {"--min-agreement",
       [&](Value text) { options.rules.min_agreement = Decimal("--min-agreement", text); }},
      {"--max-latency",
       [&](Value text) { options.rules.max_latency = Decimal("--max-latency", text); }},
      {"--min-pictures",
       [&](Value text) { options.rules.min_pictures = WholeNumber("--min-pictures", text, 1); }},
      {"--keep-disagreements",
       [&](Value text) {
         options.rules.keep_disagreements = WholeNumber("--keep-disagreements", text, 0);
       }},
      {"--keep", [&](Value text) { options.keep = WholeNumber("--keep", text, 1); }},
  };
  table.word = [&](Value word) {
    if (options.command.empty()) {
      options.command = word;
    } else {
      options.words.push_back(word);
    }
  };
  table.rest = [&](std::vector<std::string> rest) { options.app_words = std::move(rest); };
  ReadCommandLine(words, table);
  if (options.command.empty()) throw UsageError("no command", table.hint);
  return options;
}

const char* HelpText() {
  return R"(Installs, tests, switches and removes releases of a model on this device.

usage: edgepack-device COMMAND [options]

  install [BUNDLE]     install a folder or .tar.gz; default: the folder of this program
  activate ID          make an installed release current, and keep it if it passes its test
  rollback             activate the previous release, or the one of --to ID
  prune                remove all but the current, the previous and the newest releases
  verify [ID]          check the hashes of all files of a release, or of all releases
  status               print the current release, since when, by whom, and its last test
  metrics              print the status and the app's metrics, for Prometheus
  recover              finish or undo an operation that a crash or power cut interrupted
  repair               restore files that a failing card damaged, and list the lost ones
  run [-- WORDS]       verify the current release and start its edgepack-run with WORDS
  run --supervise      keep edgepack-run running as a service, until SIGTERM
  service status       print whether the service that holds --lock runs, and its process
  service stop         stop that service
  trial start ID       run release ID beside the current one on a share of its pictures, then
                       activate or drop it
  trial status         print the last trial
  trial stop           end the trial without a decision
  trial activate       end the trial and make its release current
  trial resume         go on with a trial that a reboot interrupted
  trust show           print the signers whose bundles this device accepts
  trust set FILE       replace these signers (FILE as OpenSSH's allowed_signers)
  trust update FILE    replace them if the present signers signed FILE, in FILE.sig
  chunks FILE          print the chunks of a file: offset, size and hash
  receive              the device's side of `edgepack deploy`

  --root DIR           folder of the releases; default: where this program is installed;
                       for install: ~/edgepack/<name>
  --json               print one JSON object instead of text
  --wait S             seconds to wait for another command's lock (60)
  --keep N             number of releases to keep (3)
  --user NAME          run --supervise, by root: the app's account
  --writable DIR       run --supervise, by root: a folder the app may write to; repeat for more
  --group NAME         run --supervise, by root: an extra group for the app; repeat for more
  --reads PATH         run --supervise --check: a path that the app must be able to read if it
                       exists, and to write if it is a device; repeat for more
  --low-ports          run --supervise, by root: the app may listen on ports below 1024
  --owner NAME         run --supervise or recover, by root: the account that owns the releases
  --log FILE           run --supervise: log to FILE instead of stderr, at most two files of 1 MB
  --lock FILE          run --supervise: lock FILE, so that a second supervisor ends at once
  --respawn            run --supervise: start the supervisor again if it is killed
  --check              run --supervise: only check whether the app could run
  --textfile DIR       metrics: write to DIR/edgepack-<name>.prom, for the textfile collector of
                       Prometheus' node exporter
  --timer              metrics --textfile: install a systemd timer of this user, every 30 s
  --app FILE           metrics: the file of edgepack-run --metrics; default: from the service's args
  --by NAME            name to record as the operator; default: the user
  --signers FILE       install: pin these signers, if none are pinned yet
  --name NAME          install: refuse a bundle of another name
  --allow-downgrade    install: accept a lower version than the highest so far
  --no-activate        install: do not make the release current
  --retest             install: test the release even if it passed before
  --for S              trial start: seconds it lasts (7200)
  --share S            trial start: share of the pictures, above 0 and at most 1 (0.1)
  --split S            trial start: share of all pictures that ID answers, at most --share (0)
  --min-agreement S    trial start: agreement that is needed, 0 to 1 (0.98)
  --max-latency S      trial start: the most latency, as a multiple of the current release's (1.2)
  --min-pictures N     trial start: compared pictures that are needed (20)
  --keep-disagreements N
                       trial start: small pictures to keep of those that differ, at most 100 (0)
  --dry-run            prune: print what would be removed, and remove nothing
  --version, --help

exit codes: 0 ok, 2 usage, 5 bundle refused, 7 device, disk, lock or user,
            8 the test failed and the previous release is current again, 9 as 8, by time limit
)";
}

}  // namespace edgepack::device
