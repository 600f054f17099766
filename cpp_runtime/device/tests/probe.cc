// Asks one of the tool's readers about a file and prints the answer as JSON:
//
//   device-probe manifest FILE
//   device-probe archive FILE
//   device-probe signature MESSAGE SIGNATURE ALLOWED_SIGNERS NOW
//
// Exit code 0 with what was read, else the error's own with {"kind", "message", "hint"}.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <unistd.h>

#include "archive.h"
#include "error.h"
#include "json.h"
#include "manifest_reader.h"
#include "sha256.h"
#include "sshsig.h"

namespace edgepack::device {
namespace {

std::string ReadAll(const char* path) {
  const int fd = open(path, O_RDONLY);
  if (fd < 0) throw DeviceError(kExitUsage, "usage", std::string("cannot open ") + path);
  std::string data;
  char buffer[65536];
  ssize_t count;
  while ((count = read(fd, buffer, sizeof buffer)) > 0) {
    data.append(buffer, static_cast<size_t>(count));
  }
  close(fd);
  return data;
}

void ProbeManifest(const char* path, JsonWriter& json) {
  const Manifest manifest = ParseManifest(ReadAll(path));
  json.BeginObject().Key("schema").Int(manifest.schema);
  json.Key("name").String(manifest.name).Key("board").String(manifest.board);
  json.Key("release").String(manifest.release).Key("triple").String(manifest.triple);
  json.Key("cpu").String(manifest.cpu).Key("glibc").String(manifest.glibc);
  json.Key("hwcaps").BeginArray();
  for (const std::string& hwcap : manifest.hwcaps) json.String(hwcap);
  json.EndArray().Key("version").Int(manifest.version);
  json.Key("tolerance").Number(manifest.tolerance).Key("timeout_s").Number(manifest.timeout_s);
  json.Key("model_sha256").String(manifest.model_sha256).Key("files").BeginObject();
  for (const FileEntry& file : manifest.files) {
    json.Key(file.path).BeginArray().String(file.sha256);
    json.Int(static_cast<int64_t>(file.size)).Bool(file.executable).EndArray();
  }
  json.EndObject().EndObject();
}

void ProbeArchive(const char* path, JsonWriter& json) {
  const int fd = open(path, O_RDONLY);
  if (fd < 0) throw DeviceError(kExitUsage, "usage", std::string("cannot open ") + path);
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

void ProbeSignature(char** arguments, JsonWriter& json) {
  const std::string armored = ReadAll(arguments[1]);
  const Signer signer = VerifySignature(ReadAll(arguments[0]), armored, ReadAll(arguments[2]),
                                        std::strtoll(arguments[3], nullptr, 10));
  json.BeginObject().Key("principal").String(signer.principal);
  json.Key("fingerprint").String(signer.fingerprint);
  json.Key("key").String(KeyOfSignature(armored)).EndObject();
}

int Main(int argc, char** argv) {
  JsonWriter json;
  try {
    if (argc == 3 && std::strcmp(argv[1], "manifest") == 0) {
      ProbeManifest(argv[2], json);
    } else if (argc == 3 && std::strcmp(argv[1], "archive") == 0) {
      ProbeArchive(argv[2], json);
    } else if (argc == 6 && std::strcmp(argv[1], "signature") == 0) {
      ProbeSignature(argv + 2, json);
    } else {
      throw DeviceError(kExitUsage, "usage", "manifest, archive or signature");
    }
  } catch (const DeviceError& error) {
    JsonWriter refusal;
    refusal.BeginObject().Key("kind").String(error.kind).Key("message").String(error.message);
    refusal.Key("hint").String(error.hint).EndObject();
    std::puts(refusal.text().c_str());
    return error.exit_code;
  }
  std::puts(json.text().c_str());
  return 0;
}

}  // namespace
}  // namespace edgepack::device

int main(int argc, char** argv) { return edgepack::device::Main(argc, argv); }
