#pragma once

#include <string>
#include <vector>

#include "site.h"

namespace edgepack::device {

/// What is installed, for programs: one JSON object. Only reads.
std::string StatusJson(const Site& site);
/// The same in a few lines of words.
std::string StatusText(const Site& site);
/// What is damaged and easily seen: nothing but state, trust and manifests is read.
std::vector<std::string> Problems(const Site& site);
/// Whether a release is being tested, or a test was interrupted.
bool HasPending(const Site& site);
/// Whose bundles are taken, for programs: {"signers", "list"}. The list is null if none is pinned.
std::string TrustJson(const Trust& trust);

}  // namespace edgepack::device
