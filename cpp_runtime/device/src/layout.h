#pragma once

namespace edgepack::device {

// What lies in the root folder of a model's releases:
//
//   bin/edgepack-device          the tool that was installed
//   store/<sha256>               content, read-only, by its hash
//   releases/<id>/...            hard links into the store (copies, if need be), and the manifest
//   current, previous            links to releases/<id>
//   state/<id>.json              who installed a release and when, and its health
//   state/pending.json           there while a release that was made current is being tested
//   state/rollbacks.json         how many releases failed here, and the last of them
//   state/trial.json             the last trial: which release, by what rules, how it goes or ended
//   trial/frames                 where the current release's app hands over pictures, in a trial
//   state/highest.json           the highest version that ever passed, by the bundle's name
//   trust/allowed_signers        whose bundles are taken; trust/board: for which board; trust/name
//   and
//                                trust/product: of which name and product
//   trust/clock                  its time is the latest that was seen
//   incoming/<sha256>.part       what a cut upload left
//   .lock                        who is changing something here
inline constexpr char kBin[] = "bin";
inline constexpr char kTool[] = "edgepack-device";
inline constexpr char kStore[] = "store";
inline constexpr char kReleases[] = "releases";
inline constexpr char kState[] = "state";
inline constexpr char kTrust[] = "trust";
inline constexpr char kIncoming[] = "incoming";
inline constexpr char kLock[] = ".lock";
inline constexpr char kCurrent[] = "current";
inline constexpr char kPrevious[] = "previous";

// What lies in a release.
inline constexpr char kApp[] = "bin/edgepack-run";
inline constexpr char kLibrary[] = "model/model.so";
inline constexpr char kExpected[] = "golden/expected.json";
inline constexpr char kBundleTool[] = "bin/edgepack-device";

}  // namespace edgepack::device
