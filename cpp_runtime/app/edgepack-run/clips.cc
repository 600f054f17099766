#include "clips.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <dirent.h>
#include <fcntl.h>
#include <fstream>
#include <iterator>
#include <memory>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <opencv2/core.hpp>

#include "common/fd.h"
#include "common/json.h"
#include "platform/opencv/draw.h"

namespace edgepack {
namespace {

constexpr std::size_t kMostRules = 16;
constexpr double kMostRate = 30;
constexpr double kMostAround = 60;
constexpr std::int64_t kLeastRoom = 1 << 20;
constexpr std::int64_t kMostRoom = std::int64_t{1} << 40;
constexpr std::size_t kLeastKept = 2;
constexpr int kMostOfOneSecond = 100;
/// How late the end of a clip, or a request, may be noticed if no picture comes.
constexpr std::chrono::milliseconds kTick(100);

std::chrono::steady_clock::duration Seconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(seconds));
}

double Bounded(JsonObject* object, std::string_view key, double least, double most) {
  const double value = object->Number(key);
  if (!(value >= least && value <= most)) object->Fail(key, "is out of range");
  return value;
}

/// "20261128T161503Z", with `millis` "20261128T161503.250Z": names in the order of time.
std::string Stamp(std::chrono::system_clock::time_point time, bool millis) {
  const std::time_t whole = std::chrono::system_clock::to_time_t(time);
  const auto rest = std::chrono::duration_cast<std::chrono::milliseconds>(
      time - std::chrono::system_clock::from_time_t(whole));
  std::tm parts = {};
  gmtime_r(&whole, &parts);
  std::array<char, 32> text = {};
  static_cast<void>(std::strftime(text.data(), text.size(), "%Y%m%dT%H%M%S", &parts));
  std::array<char, 8> end = {"Z"};
  if (millis) {
    const int count = std::clamp(static_cast<int>(rest.count()), 0, 999);
    static_cast<void>(std::snprintf(end.data(), end.size(), ".%03dZ", count));
  }
  return std::string(text.data()) + end.data();
}

double Largest(const std::vector<ClipRule>& rules, double ClipRule::*value) {
  double largest = 0;
  for (const ClipRule& rule : rules) largest = std::max(largest, rule.*value);
  return largest;
}

/// Whether `rest` follows the name of a rule in that of one of its clips: a stamp, and a number.
bool IsStamp(std::string_view rest) {
  const std::string_view form = "00000000T000000Z";
  const auto is_digit = [](char sign) { return sign >= '0' && sign <= '9'; };
  const auto fits = [&](char sign, char wanted) {
    return wanted == '0' ? is_digit(sign) : sign == wanted;
  };
  if (rest.size() < form.size() || !std::equal(form.begin(), form.end(), rest.begin(),
                                               [&](char f, char r) { return fits(r, f); })) {
    return false;
  }
  const std::string_view number = rest.substr(form.size());
  if (number.empty()) return true;
  return number.size() > 1 && number.size() <= 4 && number.front() == '-' &&
         std::all_of(number.begin() + 1, number.end(), is_digit);
}

std::string ErrorText(int code) { return std::error_code(code, std::generic_category()).message(); }

/// A new file with these bytes, for its owner only; 0, or why there is none.
int WriteNew(const std::filesystem::path& path, const std::string& bytes) {
  Fd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return errno;
  int reason = 0;
  for (std::size_t done = 0; done < bytes.size() && reason == 0;) {
    const ssize_t size =
        Retry([&] { return write(fd.get(), bytes.data() + done, bytes.size() - done); });
    if (size <= 0) reason = size == 0 ? EIO : errno;
    done += static_cast<std::size_t>(std::max<ssize_t>(size, 0));
  }
  if (reason == 0 && fsync(fd.get()) != 0) reason = errno;
  if (reason != 0) unlink(path.c_str());
  return reason;
}

/// Names in a folder; none if it cannot be read. Not std::filesystem: in a library built for
/// offsets of 32 bits its listing can end early.
std::vector<std::string> NamesIn(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> open(opendir(folder.c_str()), closedir);
  if (open == nullptr) return names;
  while (const dirent* const entry = readdir(open.get())) {  // NOLINT(concurrency-mt-unsafe)
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  return names;
}

/// The clips in `folder` whose names are `start` and a stamp, the oldest first; no links.
std::vector<std::filesystem::path> ClipsIn(const std::filesystem::path& folder,
                                           const std::string& start) {
  std::vector<std::filesystem::path> found;
  for (const std::string& name : NamesIn(folder)) {
    struct stat status = {};
    if (name.compare(0, start.size(), start) == 0 &&
        IsStamp(std::string_view{name}.substr(start.size())) &&
        lstat((folder / name).c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
      found.push_back(folder / name);
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::uint64_t BytesIn(const std::filesystem::path& folder) {
  std::uint64_t bytes = 0;
  for (const std::string& name : NamesIn(folder)) {
    struct stat status = {};
    if (lstat((folder / name).c_str(), &status) == 0) {
      bytes += static_cast<std::uint64_t>(status.st_size);
    }
  }
  return bytes;
}

/// What is in it are files only; a folder of somebody else's in it keeps it.
void Remove(const std::filesystem::path& clip) {
  for (const std::string& name : NamesIn(clip)) unlink((clip / name).c_str());
  rmdir(clip.c_str());
}

}  // namespace

std::vector<ClipRule> ReadClipRules(const std::filesystem::path& bundle) {
  std::ifstream file(bundle / "sinks.json", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const JsonDocument document(text, "sinks.json", "sinks",
                              "the bundle was made by another version of edgepack: make it again");
  JsonObject root = document.Root();
  std::vector<ClipRule> rules;
  for (JsonObject& when : root.Objects("when", kMostRules)) {
    if (!when.HasValue("clip")) continue;
    JsonObject clip = when.Object("clip");
    ClipRule rule;
    rule.name = when.String("name");
    rule.folder = clip.String("folder");
    if (!rule.folder.is_absolute()) clip.Fail("folder", "is not absolute");
    rule.before_s = Bounded(&clip, "before_s", 0, kMostAround);
    rule.after_s = Bounded(&clip, "after_s", 0, kMostAround);
    rule.frames_per_s = Bounded(&clip, "frames_per_s", 0.1, kMostRate);
    rule.bytes = static_cast<std::uint64_t>(clip.Int("bytes", kLeastRoom, kMostRoom));
    clip.Finish();
    rules.push_back(std::move(rule));
  }
  return rules;
}

Clips::Clips(std::vector<ClipRule> rules, std::ostream& err)
    : rules_(std::move(rules)),
      err_(err),
      interval_(Seconds(1 / Largest(rules_, &ClipRule::frames_per_s))),
      before_(Seconds(Largest(rules_, &ClipRule::before_s))),
      worker_([this] { Run(); }) {}

Clips::~Clips() { shown_.Close(); }

bool Clips::due() const { return Clock::now().time_since_epoch().count() >= next_; }

void Clips::Show(const cv::Mat& image) {
  if (image.empty() || !due()) return;
  Picture picture = {image.clone(), Clock::now(), Wall::now()};
  const Clock::time_point planned{Clock::duration(next_)};
  // The rate holds for a source whose pictures come a bit late, too.
  next_ = (std::max(planned, picture.seen - interval_) + interval_).time_since_epoch().count();
  shown_.Put(&picture);
}

void Clips::Save(std::string_view rule) {
  const std::lock_guard<std::mutex> guard(mutex_);
  for (const ClipRule& one : rules_) {
    const bool asked = std::find(asked_.begin(), asked_.end(), &one) != asked_.end();
    if (one.name == rule && !asked) asked_.push_back(&one);
  }
}

void Clips::Run() {
  for (const ClipRule& rule : rules_) {
    for (const auto& left : ClipsIn(rule.folder, "." + rule.name + "-")) {
      if (rmdir(left.c_str()) == 0) continue;
      const std::filesystem::path name = rule.folder / left.filename().string().substr(1);
      // What has no name of its own is found at the next start.
      static_cast<void>(std::rename(left.c_str(), name.c_str()));
    }
  }
  Picture picture;
  while (!shown_.ended()) {
    if (shown_.Take(&picture, kTick)) Keep(picture);
    std::vector<const ClipRule*> asked;
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      asked.swap(asked_);
    }
    for (const ClipRule* rule : asked) Begin(*rule);
    const Clock::time_point now = Clock::now();
    const auto over = std::stable_partition(clips_.begin(), clips_.end(), [&](const Clip& clip) {
      return !clip.failed && now < clip.until;
    });
    for (auto clip = over; clip != clips_.end(); ++clip) End(*clip);
    clips_.erase(over, clips_.end());
  }
  for (const Clip& clip : clips_) End(clip);
}

void Clips::Keep(const Picture& picture) {
  Kept kept = {{}, picture.seen, picture.time};
  try {
    kept.jpeg = EncodeJpeg(picture.image);
  } catch (const cv::Exception&) {
    ++failures_;  // larger than a JPEG can be
    return;
  }
  for (Clip& clip : clips_) Add(kept, &clip);
  kept_bytes_ += kept.jpeg.size();
  kept_.push_back(std::move(kept));
  while (kept_.size() > kLeastKept &&
         (kept_bytes_ > kMostBytes || picture.seen - kept_.front().seen > before_)) {
    kept_bytes_ -= kept_.front().jpeg.size();
    kept_.pop_front();
  }
}

void Clips::Begin(const ClipRule& rule) {
  const Clock::time_point now = Clock::now();
  const auto running = std::find_if(clips_.begin(), clips_.end(),
                                    [&](const Clip& clip) { return clip.rule == &rule; });
  if (running != clips_.end()) {
    running->until = std::min(now + Seconds(rule.after_s), running->most);
    return;
  }
  Clip clip = {&rule, {}, now + Seconds(rule.after_s), now + Seconds(kMostSeconds)};
  const std::string name = rule.name + "-" + Stamp(Wall::now(), false);
  int reason = EEXIST;
  for (int number = 1; reason == EEXIST && number <= kMostOfOneSecond; ++number) {
    clip.name = number == 1 ? name : name + "-" + std::to_string(number);
    if (access((rule.folder / clip.name).c_str(), F_OK) == 0) continue;
    reason = mkdir(Draft(clip).c_str(), 0700) == 0 ? 0 : errno;
  }
  if (reason != 0) {
    Fail(rule, Draft(clip).string() + ": " + ErrorText(reason));
    return;
  }
  // The last one is what the rule saw, however long ago that is.
  for (std::size_t i = 0; i < kept_.size(); ++i) {
    if (i + 1 == kept_.size() || now - kept_[i].seen <= Seconds(rule.before_s)) {
      Add(kept_[i], &clip);
    }
  }
  clips_.push_back(std::move(clip));
}

void Clips::Add(const Kept& kept, Clip* clip) {
  if (clip->failed) return;
  if (clip->bytes + kept.jpeg.size() > clip->rule->bytes) {
    clip->failed = true;
    Fail(*clip->rule, clip->name + " ends early: it is larger than all clips may be");
    return;
  }
  const std::filesystem::path path = Draft(*clip) / (Stamp(kept.time, true) + ".jpg");
  const int reason = WriteNew(path, kept.jpeg);
  if (reason == EEXIST) return;  // a clock that was set back
  if (reason != 0) {
    clip->failed = true;
    Fail(*clip->rule, path.string() + ": " + ErrorText(reason));
    return;
  }
  ++clip->pictures;
  clip->bytes += kept.jpeg.size();
}

void Clips::End(const Clip& clip) {
  if (clip.pictures == 0) {
    rmdir(Draft(clip).c_str());
    return;
  }
  if (std::rename(Draft(clip).c_str(), (clip.rule->folder / clip.name).c_str()) == 0) {
    ++written_;
  } else {
    Fail(*clip.rule, clip.name + ": " + ErrorText(errno));
  }
  Prune(*clip.rule);
}

void Clips::Prune(const ClipRule& rule) {
  std::vector<std::filesystem::path> folders = ClipsIn(rule.folder, rule.name + "-");
  std::uint64_t bytes = 0;
  for (auto folder = folders.rbegin(); folder != folders.rend(); ++folder) {
    bytes += BytesIn(*folder);
    if (bytes > rule.bytes && folder != folders.rbegin()) Remove(*folder);
  }
}

void Clips::Fail(const ClipRule& rule, const std::string& why) {
  ++failures_;
  err_ << "clip of " + rule.name + ": " + why + "\n" << std::flush;
}

std::filesystem::path Clips::Draft(const Clip& clip) {
  return clip.rule->folder / ("." + clip.name);
}

std::string Clips::Metrics() const {
  return "edgepack_clips_total " + std::to_string(written_) + "\nedgepack_clip_failures_total " +
         std::to_string(failures_) + "\n";
}

}  // namespace edgepack
