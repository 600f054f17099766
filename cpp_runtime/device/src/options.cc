#include "options.h"

#include "common/command_line.h"
#include "common/error.h"

namespace edgepack::device {

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

  install [BUNDLE]     a folder or .tar.gz; default: the folder this program lies in
  activate ID          make an installed release current, if it passes its test
  rollback             the same with the release before the current one, or --to ID
  prune                remove all but the current, the previous and the newest releases
  verify [ID]          read every byte of a release, or of all
  status               what is current, since when, by whom, and how it is
  metrics              the same and what the app says, for Prometheus
  recover              end what a crash or power cut interrupted
  repair               bring back what a rotten card damaged, and say what was lost
  run [-- WORDS]       verify the current release and become its edgepack-run
  run --supervise      keep it running as a service, until SIGTERM
  service status       whether one runs that has --lock; its process
  service stop         end it
  trust show           whose bundles are taken here
  trust set FILE       take those of these signers (OpenSSH's allowed_signers)
  trust update FILE    the same, if the signers before signed it: FILE.sig
  chunks FILE          where a file is cut into chunks: offset, size and hash
  receive              the other end of `edgepack deploy`

  --root DIR           the releases; default: the folder this program is installed in;
                       for install ~/edgepack/<name>
  --json               one JSON object instead of words
  --wait S             for somebody else's lock (60)
  --keep N             releases that stay (3)
  --user NAME          run --supervise: the account, when root starts it
  --writable DIR       run --supervise, by root: what that account may write to; again for each
  --group NAME         run --supervise, by root: a group that account is in then; again for each
  --reads PATH         run --supervise --check: what that account must be able to read, if it is
                       there, or of a device to write, too; again for each
  --low-ports          run --supervise, by root: that account may listen on ports below 1024
  --owner NAME         run --supervise, recover: whose the releases are, when root starts it
  --log FILE           run --supervise: at most two files of 1 MB instead of stderr
  --lock FILE          run --supervise: held while it runs; a second one ends at once
  --respawn            run --supervise: start it again when it is killed
  --check              run --supervise: only say whether it could run
  --textfile DIR       metrics: write them to DIR/edgepack-<name>.prom, for the textfile
                       collector of Prometheus' node exporter
  --timer              metrics --textfile: have systemd do so every 30 s, as this user
  --app FILE           metrics: what edgepack-run --metrics writes, if not as the service's args say
  --by NAME            who does it; default: the user
  --signers FILE       install: pin these signers, if none are
  --name NAME          install: refuse a bundle of another name
  --allow-downgrade    install: an older version than was active before
  --no-activate        install: only put it there
  --retest             install: test it even if it passed before
  --dry-run            prune: only say what it would remove
  --version, --help

exit codes: 0 ok, 2 usage, 5 bundle refused, 7 device, disk, lock or user,
            8 the test failed and the release before is current again, 9 the same by time limit
)";
}

}  // namespace edgepack::device
