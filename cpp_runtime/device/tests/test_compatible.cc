// Versions of C libraries, as they stand in real files.
#include <sys/utsname.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include "compatible.h"
#include "support.h"

namespace edgepack::device {
namespace {

using testing::Contains;
using testing::ErrorOf;
using testing::TempFolder;
using testing::WriteFile;

TEST_CASE("a version is compared part by part") {
  CHECK(IsOlder("2.9", "2.31"));
  CHECK(IsOlder("2.31", "2.31.1"));
  CHECK(IsOlder("0.4.9", "0.5"));
  CHECK_FALSE(IsOlder("2.31", "2.9"));
  CHECK_FALSE(IsOlder("2.31", "2.31"));
  CHECK_FALSE(IsOlder("10.0", "9.9"));
  CHECK_FALSE(IsOlder("unreleased", "unreleased"));
}

TEST_CASE("the version in glibc's own text") {
  CHECK(GlibcVersionIn("x\nGNU C Library (Debian GLIBC 2.31-13+deb11u11) stable release version "
                       "2.31.\nCopyright") == "2.31");
  CHECK(GlibcVersionIn("GNU C Library (Ubuntu GLIBC 2.35-0ubuntu3) stable release version 2.35.") ==
        "2.35");
  CHECK(GlibcVersionIn("musl libc (armhf)\nVersion 1.2.3").empty());
}

TEST_CASE("the highest version that a program asks for") {
  const std::string names("\0GLIBC_2.4\0GLIBC_2.28\0GLIBC_2.7\0GLIBC_PRIVATE\0", 46);
  CHECK(GlibcNeededBy(names) == "2.28");
  CHECK(GlibcNeededBy("text about GLIBC_2.99").empty());
}

TEST_CASE("a program for a loader or a glibc that is not here") {
  const TempFolder temp;
  const auto check = [&](const std::string& content) {
    WriteFile(temp / "app", content);
    return ErrorOf([&] { CheckLibc(Folder::Open(temp.path()).OpenFile("app"), "bin/app"); });
  };
  // A 32-bit header with one segment behind it, PT_INTERP.
  const std::string path = "/lib/ld-none.so.1";
  std::string elf(
      "\x7f"
      "ELF\1\1\1",
      7);
  elf.resize(52);
  elf[28] = 52;  // e_phoff
  elf[44] = 1;   // e_phnum
  std::string segment(32, '\0');
  segment[0] = 3;  // PT_INTERP
  segment[4] = 84;
  segment[16] = static_cast<char>(path.size() + 1);
  elf += segment + path + std::string(1, '\0');
  CHECK(Contains(check(elf), "wrong-libc: bin/app wants the loader /lib/ld-none.so.1"));
  elf.resize(60);
  CHECK(check(elf).empty());
  CHECK(check("#!/bin/sh\n").empty());
}

TEST_CASE("this machine has a name") {
  struct utsname system = {};
  uname(&system);
  const std::string name = SystemName();
  const std::string kernel = static_cast<const char*>(system.release);
  CHECK(name.compare(0, kernel.size() + 1, kernel + " ") == 0);
  // A C library is named with its version, or not at all.
  const std::size_t glibc = name.find("glibc");
  CHECK((glibc == std::string::npos || Contains(name.substr(glibc), "glibc 2.")));
}

}  // namespace
}  // namespace edgepack::device
