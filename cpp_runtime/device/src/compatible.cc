#include "compatible.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <elf.h>
#include <fcntl.h>
#include <iterator>
#include <optional>
#include <set>
#include <sys/auxv.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <vector>

#include "error.h"

namespace edgepack::device {
namespace {

constexpr std::size_t kMaxLibraryBytes = std::size_t{64} << 20U;

struct Architecture {
  const char* name;    // the first word of a triple
  const char* kernel;  // what `uname -m` begins with
};
// A 64-bit ARM kernel runs 32-bit programs; armv8l is such a kernel's 32-bit personality.
constexpr std::array<Architecture, 6> kArchitectures = {{{"arm", "armv7"},
                                                         {"arm", "armv8"},
                                                         {"arm", "aarch64"},
                                                         {"aarch64", "aarch64"},
                                                         {"x86_64", "x86_64"},
                                                         {"aarch64", "arm64"}}};

// A 64-bit kernel lists the AArch64 names only. Every ARMv8-A core that can run 32-bit programs has
// these there (Linux, Documentation/arch/arm64/elf_hwcaps.rst and
// arch/arm/include/uapi/asm/hwcap.h).
constexpr std::array<const char*, 11> kArmv8AsArmv7 = {
    "half", "thumb", "fastmult", "edsp", "tls", "idiva", "idivt", "vfp", "vfpv3", "vfpv4", "neon"};

// What the kernel hands to every program, where there is no /proc: names of /proc/cpuinfo.
struct Capability {
  const char* name;
  std::uint32_t vector;
  std::uint64_t bit;
};
#if defined(__arm__)
constexpr std::array<Capability, 17> kCapabilities = {{{"half", AT_HWCAP, HWCAP_HALF},
                                                       {"thumb", AT_HWCAP, HWCAP_THUMB},
                                                       {"fastmult", AT_HWCAP, HWCAP_FAST_MULT},
                                                       {"vfp", AT_HWCAP, HWCAP_VFP},
                                                       {"edsp", AT_HWCAP, HWCAP_EDSP},
                                                       {"neon", AT_HWCAP, HWCAP_NEON},
                                                       {"vfpv3", AT_HWCAP, HWCAP_VFPv3},
                                                       {"tls", AT_HWCAP, HWCAP_TLS},
                                                       {"vfpv4", AT_HWCAP, HWCAP_VFPv4},
                                                       {"idiva", AT_HWCAP, HWCAP_IDIVA},
                                                       {"idivt", AT_HWCAP, HWCAP_IDIVT},
                                                       {"vfpd32", AT_HWCAP, HWCAP_VFPD32},
                                                       {"aes", AT_HWCAP2, HWCAP2_AES},
                                                       {"pmull", AT_HWCAP2, HWCAP2_PMULL},
                                                       {"sha1", AT_HWCAP2, HWCAP2_SHA1},
                                                       {"sha2", AT_HWCAP2, HWCAP2_SHA2},
                                                       {"crc32", AT_HWCAP2, HWCAP2_CRC32}}};
#elif defined(__aarch64__)
constexpr std::array<Capability, 35> kCapabilities = {{{"fp", AT_HWCAP, HWCAP_FP},
                                                       {"asimd", AT_HWCAP, HWCAP_ASIMD},
                                                       {"aes", AT_HWCAP, HWCAP_AES},
                                                       {"pmull", AT_HWCAP, HWCAP_PMULL},
                                                       {"sha1", AT_HWCAP, HWCAP_SHA1},
                                                       {"sha2", AT_HWCAP, HWCAP_SHA2},
                                                       {"crc32", AT_HWCAP, HWCAP_CRC32},
                                                       {"atomics", AT_HWCAP, HWCAP_ATOMICS},
                                                       {"fphp", AT_HWCAP, HWCAP_FPHP},
                                                       {"asimdhp", AT_HWCAP, HWCAP_ASIMDHP},
                                                       {"asimdrdm", AT_HWCAP, HWCAP_ASIMDRDM},
                                                       {"jscvt", AT_HWCAP, HWCAP_JSCVT},
                                                       {"fcma", AT_HWCAP, HWCAP_FCMA},
                                                       {"lrcpc", AT_HWCAP, HWCAP_LRCPC},
                                                       {"sha3", AT_HWCAP, HWCAP_SHA3},
                                                       {"sm3", AT_HWCAP, HWCAP_SM3},
                                                       {"sm4", AT_HWCAP, HWCAP_SM4},
                                                       {"asimddp", AT_HWCAP, HWCAP_ASIMDDP},
                                                       {"sha512", AT_HWCAP, HWCAP_SHA512},
                                                       {"sve", AT_HWCAP, HWCAP_SVE},
                                                       {"asimdfhm", AT_HWCAP, HWCAP_ASIMDFHM},
                                                       {"dit", AT_HWCAP, HWCAP_DIT},
                                                       {"uscat", AT_HWCAP, HWCAP_USCAT},
                                                       {"ilrcpc", AT_HWCAP, HWCAP_ILRCPC},
                                                       {"flagm", AT_HWCAP, HWCAP_FLAGM},
                                                       {"ssbs", AT_HWCAP, HWCAP_SSBS},
                                                       {"sb", AT_HWCAP, HWCAP_SB},
                                                       {"paca", AT_HWCAP, HWCAP_PACA},
                                                       {"flagm2", AT_HWCAP2, HWCAP2_FLAGM2},
                                                       {"frint", AT_HWCAP2, HWCAP2_FRINT},
                                                       {"i8mm", AT_HWCAP2, HWCAP2_I8MM},
                                                       {"bf16", AT_HWCAP2, HWCAP2_BF16},
                                                       {"rng", AT_HWCAP2, HWCAP2_RNG},
                                                       {"bti", AT_HWCAP2, HWCAP2_BTI},
                                                       {"mte", AT_HWCAP2, HWCAP2_MTE}}};
#else
constexpr std::array<Capability, 0> kCapabilities = {};
#endif

constexpr std::array<const char*, 9> kLibcs = {"/lib/arm-linux-gnueabihf/libc.so.6",
                                               "/lib/aarch64-linux-gnu/libc.so.6",
                                               "/lib/x86_64-linux-gnu/libc.so.6",
                                               "/lib64/libc.so.6",
                                               "/lib/libc.so.6",
                                               "/usr/lib/libc.so.6",
                                               "/usr/lib64/libc.so.6",
                                               "/usr/lib/arm-linux-gnueabihf/libc.so.6",
                                               "/usr/lib/aarch64-linux-gnu/libc.so.6"};

bool StartsWith(const std::string& text, const std::string& prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

std::string ReadSystemFile(const char* path) {
  const File file(OpenPath(path, O_RDONLY), path);
  return file.fd() < 0 ? "" : file.ReadAll(kMaxLibraryBytes);
}

std::vector<std::string> Words(const std::string& text) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find_first_of(" \t\n", at), text.size());
    if (end > at) words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

/// The values of all lines of /proc/cpuinfo with that key.
std::vector<std::string> CpuValues(const std::string& info, const std::string& key) {
  std::vector<std::string> values;
  for (std::size_t at = 0; at < info.size();) {
    const std::size_t end = std::min(info.find('\n', at), info.size());
    const std::string line = info.substr(at, end - at);
    const std::size_t colon = line.find(':');
    if (colon != std::string::npos && StartsWith(line, key) &&
        line.find_first_not_of(" \t", key.size()) == colon) {
      values.push_back(line.substr(colon + 1));
    }
    at = end + 1;
  }
  return values;
}

/// Features that all cores have.
std::set<std::string> CpuFeatures(const std::string& info) {
  std::vector<std::string> lists = CpuValues(info, "Features");
  if (lists.empty()) lists = CpuValues(info, "flags");
  std::set<std::string> features;
  if (info.empty()) {
    for (const Capability& one : kCapabilities) {
      if ((getauxval(one.vector) & one.bit) != 0) features.insert(one.name);
    }
  }
  for (std::size_t i = 0; i < lists.size(); ++i) {
    const std::vector<std::string> words = Words(lists[i]);
    std::set<std::string> core(words.begin(), words.end());
    if (i > 0) {
      std::set<std::string> both;
      std::set_intersection(core.begin(), core.end(), features.begin(), features.end(),
                            std::inserter(both, both.end()));
      core = std::move(both);
    }
    features = std::move(core);
  }
  if (features.count("asimd") != 0) features.insert(kArmv8AsArmv7.begin(), kArmv8AsArmv7.end());
  return features;
}

std::string InstalledGlibc() {
  for (const char* path : kLibcs) {
    std::string version = GlibcVersionIn(ReadSystemFile(path));
    if (!version.empty()) return version;
  }
  return "";
}

/// The digits and dots at `at`.
std::string VersionAt(const std::string& text, std::size_t at) {
  const std::size_t end = std::min(text.find_first_not_of("0123456789.", at), text.size());
  std::string version = text.substr(at, end - at);
  while (!version.empty() && version.back() == '.') version.pop_back();
  return version;
}

/// The dynamic loader that a program names, or "".
template <typename Header, typename Segment>
std::string LoaderIn(const std::string& elf) {
  Header header;
  if (elf.size() < sizeof(header)) return "";
  std::memcpy(&header, elf.data(), sizeof(header));
  for (std::size_t i = 0; i < header.e_phnum; ++i) {
    const std::uint64_t at = header.e_phoff + i * sizeof(Segment);
    Segment segment;
    if (at > elf.size() || elf.size() - at < sizeof(segment)) return "";
    std::memcpy(&segment, elf.data() + at, sizeof(segment));
    if (segment.p_type != PT_INTERP) continue;
    if (segment.p_offset > elf.size() || segment.p_filesz > elf.size() - segment.p_offset)
      return "";
    const std::string path = elf.substr(static_cast<std::size_t>(segment.p_offset),
                                        static_cast<std::size_t>(segment.p_filesz));
    return path.substr(0, path.find('\0'));
  }
  return "";
}

std::string Loader(const std::string& elf) {
  if (!StartsWith(elf, ELFMAG) || elf.size() <= EI_CLASS) return "";
  return elf[EI_CLASS] == ELFCLASS32 ? LoaderIn<Elf32_Ehdr, Elf32_Phdr>(elf)
                                     : LoaderIn<Elf64_Ehdr, Elf64_Phdr>(elf);
}

}  // namespace

void CheckMachine(const Manifest& manifest) {
  struct utsname system = {};
  uname(&system);
  const std::string kernel = static_cast<const char*>(system.machine);
  const std::string wanted = manifest.triple.substr(0, manifest.triple.find('-'));
  const bool runs = std::any_of(kArchitectures.begin(), kArchitectures.end(), [&](const auto& one) {
    return wanted == one.name && StartsWith(kernel, one.kernel);
  });
  if (!runs) {
    throw Refused("wrong-cpu",
                  "the bundle is for " + manifest.triple + ", this device's kernel runs " + kernel,
                  "package the model for a board of this kind: edgepack boards");
  }
  const std::set<std::string> features = CpuFeatures(ReadSystemFile("/proc/cpuinfo"));
  std::string missing;
  for (const std::string& name : manifest.hwcaps) {
    if (features.count(name) == 0) missing += (missing.empty() ? "" : ", ") + name;
  }
  if (!missing.empty()) {
    throw Refused("wrong-cpu",
                  "the bundle is for " + manifest.cpu + " (" + manifest.board +
                      "), this device's CPU lacks " + missing,
                  "package the model for the device's own board, or for armv7 or aarch64");
  }
}

void CheckLibc(const File& elf, const std::string& name) {
  const std::string content = elf.ReadAll(kMaxLibraryBytes);
  const std::string loader = Loader(content);
  if (!loader.empty() && access(loader.c_str(), F_OK) != 0) {
    throw Refused("wrong-libc", name + " wants the loader " + loader + ", which is not here",
                  "this system has another word size, float ABI or C library: package the model "
                  "for a board of its kind");
  }
  const std::string needed = StartsWith(content, ELFMAG) ? GlibcNeededBy(content) : "";
  const std::string here = needed.empty() ? "" : InstalledGlibc();
  if (!here.empty() && IsOlder(here, needed)) {
    throw Refused("wrong-libc", name + " needs glibc " + needed + ", this system has " + here,
                  "build with --toolchain zig, for a board whose glibc is " + here + " or older");
  }
}

std::string SystemName() {
  struct utsname system = {};
  uname(&system);
  std::string name = std::string(static_cast<const char*>(system.release)) + " " +
                     static_cast<const char*>(system.machine);
  if (const std::string glibc = InstalledGlibc(); !glibc.empty()) name += ", glibc " + glibc;
  for (const std::string& part : CpuValues(ReadSystemFile("/proc/cpuinfo"), "CPU part")) {
    name += "," + part;
  }
  return name;
}

std::string GlibcVersionIn(const std::string& library) {
  const std::string mark = " release version ";
  const std::size_t text = library.find("GNU C Library (");
  if (text == std::string::npos) return "";
  const std::size_t at = library.find(mark, text);
  if (at == std::string::npos || at - text > 200) return "";
  return VersionAt(library, at + mark.size());
}

std::string GlibcNeededBy(const std::string& elf) {
  const std::string mark = std::string(1, '\0') + "GLIBC_";
  std::string highest;
  for (std::size_t at = elf.find(mark); at != std::string::npos; at = elf.find(mark, at + 1)) {
    const std::string next = VersionAt(elf, at + mark.size());
    if (!next.empty() && (highest.empty() || IsOlder(highest, next))) highest = next;
  }
  return highest;
}

bool IsOlder(const std::string& version, const std::string& than) {
  const char* left = version.c_str();
  const char* right = than.c_str();
  while (*left != '\0' || *right != '\0') {
    char* next = nullptr;
    const auto a = std::strtol(left, &next, 10);
    left = next + (*next == '.' ? 1 : 0);
    if (left == next && *next != '\0') left += std::strlen(left);
    const auto b = std::strtol(right, &next, 10);
    right = next + (*next == '.' ? 1 : 0);
    if (right == next && *next != '\0') right += std::strlen(right);
    if (a != b) return a < b;
  }
  return false;
}

}  // namespace edgepack::device
