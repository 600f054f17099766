// Asks one of the tool's readers about a file and prints the answer as JSON:
//
//   device-probe manifests        (on stdin: for each its size, a newline and its bytes)
//   device-probe archive FILE
//   device-probe signature MESSAGE SIGNATURE ALLOWED_SIGNERS NOW
//   device-probe signers MESSAGE SIGNATURE NOW    (lists on stdin, as manifests are)
//
// Exit code 0 with what was read, else the error's own with {"kind", "message", "hint"}. What is
// on stdin gets a line each, and the code is 0.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <unistd.h>
#include <vector>

#include "archive.h"
#include "common/json.h"
#include "error.h"
#include "manifest_reader.h"
#include "sha256.h"
#include "sshsig.h"

namespace edgepack::device {
namespace {

std::string ReadAll(const char* path) {
  const int fd = open(path, O_RDONLY);
  if (fd < 0) throw Error(kExitUsage, "usage", std::string("cannot open ") + path);
  std::string data;
  char buffer[65536];
  ssize_t count;
  while ((count = read(fd, buffer, sizeof buffer)) > 0) {
    data.append(buffer, static_cast<size_t>(count));
  }
  close(fd);
  return data;
}

void WriteStrings(const std::vector<std::string>& strings, JsonWriter& json) {
  json.BeginArray();
  for (const std::string& string : strings) json.String(string);
  json.EndArray();
}

void WriteService(const ServiceTable& service, JsonWriter& json) {
  WriteStrings(service.args, json.BeginObject().Key("args"));
  json.Key("restart").String(service.restart);
  json.Key("watchdog_s").Number(service.watchdog_s.value_or(NAN)).Key("memory_mb");
  if (service.memory_mb) {
    json.Int(static_cast<int64_t>(*service.memory_mb));
  } else {
    json.Null();
  }
  json.Key("user").StringOrNull(service.user);
  WriteStrings(service.writable, json.Key("writable"));
  json.EndObject();
}

void WriteManifest(const Manifest& manifest, JsonWriter& json) {
  json.BeginObject().Key("schema").Int(manifest.schema);
  json.Key("name").String(manifest.name).Key("board").String(manifest.board);
  json.Key("release").String(manifest.release).Key("triple").String(manifest.triple);
  json.Key("cpu").String(manifest.cpu).Key("glibc").String(manifest.glibc);
  WriteStrings(manifest.hwcaps, json.Key("hwcaps"));
  json.Key("version").Int(manifest.version);
  json.Key("tolerance").Number(manifest.tolerance).Key("timeout_s").Number(manifest.timeout_s);
  json.Key("max_latency_ms").Number(manifest.max_latency_ms.value_or(NAN));
  json.Key("max_memory_mb").Number(manifest.max_memory_mb.value_or(NAN));
  json.Key("service");
  if (manifest.service) {
    WriteService(*manifest.service, json);
  } else {
    json.Null();
  }
  json.Key("model_sha256").String(manifest.model_sha256).Key("files").BeginObject();
  for (const FileEntry& file : manifest.files) {
    json.Key(file.path).BeginArray().String(file.sha256);
    json.Int(static_cast<int64_t>(file.size)).Bool(file.executable).EndArray();
  }
  json.EndObject().EndObject();
}

void WriteRefusal(const Error& error, JsonWriter& json) {
  json.BeginObject().Key("kind").String(error.kind).Key("message").String(error.message);
  json.Key("hint").String(error.hint).EndObject();
}

/// A line of JSON for each text on stdin.
template <typename Ask>
int ProbeEach(Ask ask) {
  size_t size = 0;
  while (std::scanf("%zu", &size) == 1 && std::getchar() == '\n') {
    std::string text(size, '\0');
    if (std::fread(text.data(), 1, size, stdin) != size) return kExitUsage;
    JsonWriter json;
    try {
      ask(text, json);
    } catch (const Error& error) {
      WriteRefusal(error, json);
    }
    std::puts(json.text().c_str());
  }
  return 0;
}

int ProbeManifests() {
  return ProbeEach(
      [](const std::string& text, JsonWriter& json) { WriteManifest(ParseManifest(text), json); });
}

void ProbeArchive(const char* path, JsonWriter& json) {
  const int fd = open(path, O_RDONLY);
  if (fd < 0) throw Error(kExitUsage, "usage", std::string("cannot open ") + path);
  BundleArchive archive(fd, path);
  json.BeginObject();
  while (const auto member = archive.Next()) {
    Sha256 hash;
    char buffer[10000];
    while (const size_t count = archive.Read(buffer, sizeof buffer)) hash.Update(buffer, count);
    json.Key(member->path).BeginArray().String(hash.HexDigest());
    json.Int(static_cast<int64_t>(member->size)).Bool(member->executable).EndArray();
  }
  json.EndObject();
  close(fd);
}

void WriteSigner(const std::string& message, const std::string& armored, const std::string& list,
                 const char* now, JsonWriter& json) {
  const Signer signer = VerifySignature(message, armored, list, std::strtoll(now, nullptr, 10));
  json.BeginObject().Key("principal").String(signer.principal);
  json.Key("fingerprint").String(signer.fingerprint);
  json.Key("key").String(KeyOfSignature(armored)).EndObject();
}

void ProbeSignature(char** arguments, JsonWriter& json) {
  WriteSigner(ReadAll(arguments[0]), ReadAll(arguments[1]), ReadAll(arguments[2]), arguments[3],
              json);
}

int ProbeSigners(char** arguments) {
  const std::string message = ReadAll(arguments[0]);
  const std::string armored = ReadAll(arguments[1]);
  return ProbeEach([&](const std::string& list, JsonWriter& json) {
    WriteSigner(message, armored, list, arguments[2], json);
  });
}

int Main(int argc, char** argv) {
  JsonWriter json;
  try {
    if (argc == 2 && std::strcmp(argv[1], "manifests") == 0) return ProbeManifests();
    if (argc == 5 && std::strcmp(argv[1], "signers") == 0) return ProbeSigners(argv + 2);
    if (argc == 3 && std::strcmp(argv[1], "archive") == 0) {
      ProbeArchive(argv[2], json);
    } else if (argc == 6 && std::strcmp(argv[1], "signature") == 0) {
      ProbeSignature(argv + 2, json);
    } else {
      throw Error(kExitUsage, "usage", "manifests, archive, signature or signers");
    }
  } catch (const Error& error) {
    JsonWriter refusal;
    WriteRefusal(error, refusal);
    std::puts(refusal.text().c_str());
    return error.exit_code;
  }
  std::puts(json.text().c_str());
  return 0;
}

}  // namespace
}  // namespace edgepack::device

int main(int argc, char** argv) { return edgepack::device::Main(argc, argv); }
