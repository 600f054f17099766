#pragma once

#include <string>

#include "file.h"
#include "manifest_reader.h"

namespace edgepack::device {

/// Whether this machine's kernel and CPU are what a bundle was built for.
/// Throws Error "wrong-cpu".
void CheckMachine(const Manifest& manifest);

/// Whether this machine has the dynamic loader and the glibc that a program or library of the
/// bundle asks for; `name` is its path there. What is no ELF file of this kind is let pass: a test
/// run tells. Throws Error "wrong-libc".
void CheckLibc(const File& elf, const std::string& name);

/// What a test's outcome depends on besides the release: kernel, C library, CPUs.
std::string SystemName();

/// The version in a glibc's own text, "GNU C Library (...) stable release version 2.31.", or "".
std::string GlibcVersionIn(const std::string& library);
/// The highest GLIBC_<version> that an ELF file asks for, or "".
std::string GlibcNeededBy(const std::string& elf);
/// "2.9" comes before "2.31".
bool IsOlder(const std::string& version, const std::string& than);

}  // namespace edgepack::device
