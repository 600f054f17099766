#include "receive.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <optional>
#include <unistd.h>
#include <vector>

#include "chunks.h"
#include "common/json.h"
#include "error.h"
#include "faults.h"
#include "install.h"
#include "layout.h"
#include "lock.h"
#include "manifest_reader.h"
#include "output.h"
#include "trial.h"
#include "wire.h"
#include "zstd.h"

namespace edgepack::device {
namespace {

constexpr std::int64_t kProtocol = 1;
constexpr double kSilenceS = 150;
constexpr std::size_t kMaxTextBytes = std::size_t{1} << 20U;
constexpr std::uint32_t kMaxFrameBytes = std::uint32_t{256} << 10U;
// What zstd makes of incompressible data is a little longer.
constexpr std::uint32_t kMaxPackedBytes = kMaxFrameBytes + 1024;
// Below this the list of chunks costs more than it saves.
constexpr std::uint64_t kMinChunkedBytes = std::uint64_t{1} << 20U;

enum FrameKind : std::uint8_t { kData = 1, kZstd = 2, kCopy = 3, kEndOfBlob = 4, kEndOfAll = 5 };

struct Frame {
  std::uint8_t kind;
  std::uint32_t a;
  std::uint32_t b;
};

struct Request {
  bool plan = false;
  std::string session;
  double wait_s = 0;
  std::string manifest;
  std::optional<std::string> signature;
  InstallRequest install;
  /// The release is not activated: it has a trial by these rules.
  std::optional<TrialRules> trial;
};

Error Confused(const std::string& what) {
  return {kExitUsage, "usage", "the other side broke the protocol: " + what,
          "use the same version of edgepack on both sides"};
}

std::optional<std::string> ReadOptional(WireInput* in, std::uint64_t size) {
  if (size > kMaxTextBytes) throw Confused("a signature is too long");
  if (size == 0) return std::nullopt;
  return in->ReadText(static_cast<std::size_t>(size));
}

Request ReadRequest(const std::string& line, WireInput* in) {
  const JsonDocument document(line, "request", "usage");
  JsonObject root = document.Root();
  if (root.Int("protocol") != kProtocol) throw Confused("another protocol is asked for");
  Request request;
  const std::string op = root.String("op");
  // "split" is a trial whose candidate answers, too.
  const bool tries = op == "trial" || op == "split";
  if (op != "deploy" && op != "plan" && !tries) throw Confused("op " + op);
  request.plan = op == "plan";
  if (tries) {
    JsonObject rules = root.Object("trial");
    request.trial = TrialRules::Read(&rules);
    request.install.activate = false;
  }
  if (root.HasValue("session")) request.session = root.String("session");
  request.wait_s = root.Number("wait_s");
  request.install.by = root.String("by");
  if (root.HasValue("time")) request.install.time = static_cast<std::time_t>(root.Int("time"));
  request.install.keep = static_cast<int>(root.Int("keep"));
  request.install.allow_downgrade = root.Bool("allow_downgrade");
  request.install.retest = root.Bool("retest");
  const std::uint64_t manifest_bytes = root.Size("manifest_bytes");
  if (manifest_bytes > kMaxManifestBytes) throw Confused("a manifest is too long");
  request.manifest = in->ReadText(static_cast<std::size_t>(manifest_bytes));
  request.signature = ReadOptional(in, root.Size("signature_bytes"));
  request.install.signers = ReadOptional(in, root.Size("signers_bytes"));
  return request;
}

/// Blobs that are installed and may have much in common with the needed ones.
class Bases {
 public:
  explicit Bases(const Site& site) : site_(&site) {}

  /// The blob that lies at the same path, in the current release if possible; "" if there is none.
  [[nodiscard]] std::string Find(const FileEntry& file) const {
    if (file.size < kMinChunkedBytes) return "";
    std::vector<std::string> ids = site_->releases.Ids();
    if (const std::optional<std::string> current = site_->releases.Named(kCurrent)) {
      ids.insert(ids.begin(), *current);
    }
    for (const std::string& id : ids) {
      if (std::string base = In(id, file); !base.empty()) return base;
    }
    return "";
  }

 private:
  [[nodiscard]] std::string In(const std::string& id, const FileEntry& file) const {
    try {
      for (const FileEntry& entry : site_->releases.Load(id).manifest.files) {
        const bool same_place = entry.path == file.path && entry.sha256 != file.sha256;
        if (same_place && site_->store.Has(entry.sha256)) return entry.sha256;
      }
    } catch (const Error&) {
      return "";  // damaged: of no help
    }
    return "";
  }

  const Site* site_;
};

/// A bundle at the other end of a link.
class WireSource final : public BundleSource {
 public:
  /// `lock` is nobody else's from the moment on when nothing more is expected from the link.
  WireSource(Request* request, WireInput* in, WireOutput* out, Lock* lock)
      : request_(request), in_(in), out_(out), lock_(lock) {}

  std::string Manifest() override { return request_->manifest; }
  std::optional<std::string> Signature() override { return request_->signature; }

  void Fill(const Plan& plan, const Site& site) override {
    SendState(plan, site);
    for (const Need& need : plan.needs) ReceiveBlob(need, site.store);
    if (!plan.needs.empty() && NextFrame().kind != kEndOfAll) throw Confused("more than needed");
    Step("receive.done");
    lock_->Keep();
    (void)signal(SIGTERM, SIG_IGN);  // of a claim that was on its way
  }

  void SendState(const Plan& plan, const Site& site) {
    JsonWriter json;
    json.BeginObject().Key("event").String("state");
    json.Key("current").StringOrNull(plan.current);
    json.Key("previous").StringOrNull(plan.previous);
    json.Key("unchanged").Bool(plan.unchanged);
    json.Key("same_version").StringOrNull(plan.same_version).Key("remove").BeginArray();
    for (const std::string& id : plan.remove) json.String(id);
    json.EndArray().Key("needs").BeginArray();
    for (const Need& need : plan.needs) {
      json.BeginObject().Key("sha256").String(need.file.sha256).Key("path").String(need.file.path);
      json.Key("size").Int(static_cast<std::int64_t>(need.file.size));
      json.Key("have").Int(static_cast<std::int64_t>(site.store.PartSize(need.file.sha256)));
      json.Key("base");
      WriteBase(Bases(site).Find(need.file), site.store, &json);
      json.EndObject();
    }
    json.EndArray().EndObject();
    out_->WriteLine(json.text());
  }

  [[nodiscard]] std::uint64_t received_bytes() const { return received_bytes_; }
  [[nodiscard]] std::uint64_t copied_bytes() const { return copied_bytes_; }

 private:
  struct Base {
    File file;
    std::vector<Chunk> chunks;
  };

  void WriteBase(const std::string& sha256, const Store& store, JsonWriter* json) {
    if (sha256.empty()) {
      bases_.emplace_back();
      json->Null();
      return;
    }
    File file = store.Open(sha256);
    std::vector<Chunk> chunks = CutIntoChunks(file);
    json->BeginObject().Key("sha256").String(sha256);
    json->Key("chunks").String(EncodeChunks(chunks)).EndObject();
    bases_.emplace_back(Base{std::move(file), std::move(chunks)});
  }

  Frame NextFrame() {
    std::array<unsigned char, 9> bytes = {};
    in_->Read(bytes.data(), bytes.size());
    const auto number = [&](std::size_t at) {
      std::uint32_t value = 0;
      for (std::size_t i = 4; i > 0; --i) value = (value << 8U) | bytes.at(at + i - 1);
      return value;
    };
    return {bytes[0], number(1), number(5)};
  }

  void ReceiveBlob(const Need& need, const Store& store) {
    const std::optional<Base>& base = bases_.at(next_++);
    Part part = store.Begin(need.file.sha256);
    for (Frame frame = NextFrame(); frame.kind != kEndOfBlob; frame = NextFrame()) {
      Step("receive.frame");
      switch (frame.kind) {
        case kData:
          ReceiveData(frame, need.file, &part);
          break;
        case kZstd:
          ReceivePacked(frame, need.file, &part);
          break;
        case kCopy:
          if (!base) throw Confused("a copy of nothing");
          CopyChunks(frame, *base, need.file, &part);
          break;
        default:
          throw Confused("a frame of kind " + std::to_string(frame.kind));
      }
    }
    if (part.size() < need.file.size || !part.Finish()) {
      part.Discard();
      throw Error(kExitDevice, "corrupt-transfer",
                  need.file.path + " did not arrive as it is in the manifest",
                  "deploy again; if it happens again, memory or disk may be failing");
    }
  }

  void ReceiveData(const Frame& frame, const FileEntry& file, Part* part) {
    if (frame.a > kMaxFrameBytes) throw Confused("a frame is too long");
    in_->Read(Room(frame.a), frame.a);
    received_bytes_ += frame.a;
    Append(buffer_.data(), frame.a, file, part);
  }

  void ReceivePacked(const Frame& frame, const FileEntry& file, Part* part) {
    if (frame.a > kMaxPackedBytes || frame.b > kMaxFrameBytes)
      throw Confused("a frame is too long");
    const std::string packed = in_->ReadText(frame.a);
    received_bytes_ += frame.a;
    Step("receive.unpack");
    if (ZstdDecompress(Room(frame.b), frame.b, packed.data(), packed.size()) != frame.b) {
      throw Confused("a frame is shorter than it says");
    }
    Append(buffer_.data(), frame.b, file, part);
  }

  void CopyChunks(const Frame& frame, const Base& base, const FileEntry& file, Part* part) {
    const std::uint64_t end = std::uint64_t{frame.a} + frame.b;
    if (end > base.chunks.size()) throw Confused("a chunk that is not here");
    for (std::size_t i = frame.a; i < end; ++i) {
      const Chunk& chunk = base.chunks[i];
      Step("receive.copy");
      if (base.file.ReadAt(chunk.offset, Room(chunk.size), chunk.size) != chunk.size) {
        throw Error(kExitDevice, "io", base.file.path() + " was changed meanwhile");
      }
      copied_bytes_ += chunk.size;
      Append(buffer_.data(), chunk.size, file, part);
    }
  }

  char* Room(std::size_t size) {
    if (buffer_.size() < size) buffer_.resize(size);
    return buffer_.data();
  }

  static void Append(const void* data, std::size_t size, const FileEntry& file, Part* part) {
    if (size > file.size - part->size()) {
      throw Confused(file.path + " is longer than the manifest says");
    }
    part->Write(data, size);
  }

  Request* request_;
  WireInput* in_;
  WireOutput* out_;
  Lock* lock_;
  std::vector<std::optional<Base>> bases_;
  std::size_t next_ = 0;
  std::vector<char> buffer_;
  std::uint64_t received_bytes_ = 0;
  std::uint64_t copied_bytes_ = 0;
};

void SendStep(const std::string& name, WireOutput* out) {
  JsonWriter json;
  json.BeginObject().Key("event").String("step").Key("name").String(name).EndObject();
  out->WriteLine(json.text());
}

void SendDone(const InstallReport* report, WireOutput* out) {
  JsonWriter json;
  json.BeginObject().Key("event").String("done").Key("report");
  if (report != nullptr) {
    report->Write(&json);
  } else {
    json.BeginObject().EndObject();
  }
  json.EndObject();
  out->WriteLine(json.text());
}

void SendError(const Error& error, WireOutput* out) {
  JsonWriter json;
  json.BeginObject().Key("event").String("error").Key("error");
  WriteError(error, &json);
  json.Key("exit").Int(error.exit_code).EndObject();
  out->WriteLine(json.text());
}

void Deploy(const std::string& root, Request* request, WireInput* in, WireOutput* out) {
  const Site site = Site::Make(root);
  Lock lock(site.root, {0, request->install.by, "", "receiving a release", request->session},
            request->wait_s);
  const Progress progress = [&](const std::string& what) { SendStep(what, out); };
  Switch(site, progress).Recover();
  WireSource source(request, in, out, &lock);
  InstallReport report = Installer(site, progress, request->install).Install(&source);
  if (request->trial) {
    report.health =
        StartTrial(site, progress, report.release, *request->trial, request->install.by);
    report.health_fresh = true;
  }
  report.received_bytes = source.received_bytes();
  report.copied_bytes = source.copied_bytes();
  SendDone(&report, out);
}

void Preview(const std::string& root, Request* request, WireInput* in, WireOutput* out) {
  const Site site = Site::Make(root);
  WireSource source(request, in, out, nullptr);
  const Progress progress = [](const std::string& /*what*/) {};
  source.SendState(Installer(site, progress, request->install).MakePlan(&source), site);
  SendDone(nullptr, out);
}

}  // namespace

int Receive(const std::string& root, int in_fd, int out_fd) {
  // Nothing that happens to the link may end us in mid-switch. (It fails for a leader, who is what
  // it would make us.)
  setsid();
  (void)signal(SIGHUP, SIG_IGN);
  (void)signal(SIGPIPE, SIG_IGN);
  WireInput in(in_fd, kSilenceS);
  WireOutput out(out_fd);
  try {
    const std::string line = in.ReadLine();
    if (line.empty()) return 0;
    Request request = ReadRequest(line, &in);
    if (request.plan) {
      Preview(root, &request, &in, &out);
    } else {
      Deploy(root, &request, &in, &out);
    }
    return 0;
  } catch (const Error& error) {
    SendError(error, &out);
    return error.exit_code;
  }
}

}  // namespace edgepack::device
