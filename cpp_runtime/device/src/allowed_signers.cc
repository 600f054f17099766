#include "allowed_signers.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <set>
#include <utility>

#include "common/json.h"
#include "error.h"
#include "sha256.h"
#include "ssh_wire.h"

namespace edgepack::device {
namespace {

constexpr std::string_view kPlain = "ssh-ed25519";
constexpr std::string_view kHardware = "sk-ssh-ed25519@openssh.com";
constexpr std::string_view kBlanks = " \t";
constexpr const char* kForm = "principals [options] key-type base64 [comment]";

bool IsControl(char c) { return (static_cast<unsigned char>(c) < ' ' && c != '\t') || c == '\x7f'; }

bool IsBlank(char c) { return c == ' ' || c == '\t'; }

// One line of the file.
class LineParser {
 public:
  LineParser(std::string_view line, size_t number) : rest_(line), number_(number) {}

  AllowedSigner Parse() {
    AllowedSigner signer;
    signer.principals = Principals();
    const std::string_view word = PeekWord();
    if (word != kPlain && word != kHardware) {
      if (IsKeyType(word)) {
        Fail("a key of type " + std::string(word),
             "edgepack takes ssh-ed25519 and sk-ssh-ed25519@openssh.com: ssh-keygen -t ed25519");
      }
      ParseOptions(signer);
    }
    const std::string_view type = Word();
    const std::string_view encoded = Word();
    const std::optional<std::string> blob = DecodeBase64(encoded);
    std::optional<PublicKey> key;
    if (blob) key = ParsePublicKey(*blob);
    if (!key || type != (key->hardware ? kHardware : kPlain)) {
      Fail("no valid key of type " + std::string(type));
    }
    signer.key = std::move(*key);
    return signer;  // what follows is a comment
  }

 private:
  [[noreturn]] void Fail(const std::string& problem, std::string hint = {}) const {
    throw Refused("bad-signers",
                  "allowed signers, line " + std::to_string(number_) + ": " + problem,
                  std::move(hint));
  }

  static bool IsKeyType(std::string_view word) {
    return word.substr(0, 4) == "ssh-" || word.substr(0, 3) == "sk-" ||
           word.substr(0, 6) == "ecdsa-" || word.find("-cert-") != std::string_view::npos;
  }

  static std::string Lower(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    return text;
  }

  static bool IsOption(std::string_view lower) {
    return lower == "namespaces" || lower == "valid-after" || lower == "valid-before";
  }

  void SkipBlanks() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(kBlanks), rest_.size()));
  }

  std::string_view PeekWord() {
    SkipBlanks();
    return rest_.substr(0, rest_.find_first_of(kBlanks));
  }

  std::string_view Word() {
    const std::string_view word = PeekWord();
    if (word.empty()) Fail("it ends too early", kForm);
    rest_.remove_prefix(word.size());
    return word;
  }

  // A word, or several in double quotes. ssh-keygen takes quotes within a word, too, and an
  // option for a principal: what it says of the key would then count for nothing.
  std::string Principals() {
    SkipBlanks();
    std::string names;
    if (!rest_.empty() && rest_.front() == '"') {
      names = Quoted("principals");
      if (!rest_.empty() && !IsBlank(rest_.front())) Fail("no blank after the principals");
    } else {
      names = Word();
      const std::string option = Lower(names.substr(0, names.find('=')));
      if (option == "cert-authority" || (IsOption(option) && option.size() < names.size())) {
        Fail("no principal before " + option, kForm);
      }
    }
    if (names.find_first_of("\"\\") != std::string::npos) Fail("a quote in the principals", kForm);
    CheckNames(names);
    return names;
  }

  void CheckNames(std::string_view names) const {
    for (;;) {
      const size_t comma = names.find(',');
      const std::string_view name = names.substr(0, comma);
      if (name.empty() || name.front() == '!') Fail("principals: one that is nobody's name");
      if (comma == std::string_view::npos) return;
      names.remove_prefix(comma + 1);
    }
  }

  // What stands in double quotes, where \" is a quote.
  std::string Quoted(const std::string& what) {
    std::string text;
    for (size_t i = 1; i < rest_.size(); ++i) {
      if (rest_[i] == '"') {
        rest_.remove_prefix(i + 1);
        if (text.empty()) Fail(what + ": empty");
        return text;
      }
      if (rest_[i] == '\\' && i + 1 < rest_.size() && rest_[i + 1] == '"') ++i;
      text += rest_[i];
    }
    Fail(what + ": no closing quote");
  }

  void ParseOptions(AllowedSigner& signer) {
    SkipBlanks();
    for (;;) {
      const std::string_view name = rest_.substr(0, rest_.find_first_of("=, \t"));
      const std::string shown(name);
      const std::string lower = Lower(shown);
      rest_.remove_prefix(name.size());
      if (lower == "cert-authority") Fail("certificates are not supported", "list each key itself");
      if (!IsOption(lower)) {
        Fail("unknown option '" + shown + "'", "known: namespaces, valid-after, valid-before");
      }
      if (rest_.size() < 2 || rest_[0] != '=' || rest_[1] != '"') {
        Fail(shown + ": no value in double quotes");
      }
      rest_.remove_prefix(1);
      SetOption(signer, lower, Quoted(lower));
      if (rest_.empty() || IsBlank(rest_.front())) break;
      if (rest_.front() != ',') Fail("no comma after " + lower);
      rest_.remove_prefix(1);
    }
    if (signer.valid_after && signer.valid_before && *signer.valid_before <= *signer.valid_after) {
      Fail("valid-before is not later than valid-after");
    }
  }

  void SetOption(AllowedSigner& signer, const std::string& name, std::string value) {
    if (name == "namespaces") {
      if (signer.namespaces) Fail(name + ": given twice");
      signer.namespaces = std::move(value);
      return;
    }
    std::optional<std::time_t>& time =
        name == "valid-after" ? signer.valid_after : signer.valid_before;
    if (time) Fail(name + ": given twice");
    time = Time(name, value);
  }

  // YYYYMMDD or YYYYMMDDHHMM[SS], in local time unless Z follows.
  [[nodiscard]] std::time_t Time(const std::string& name, const std::string& text) const {
    std::string digits = text;
    const bool utc = !digits.empty() && digits.back() == 'Z';
    if (utc) digits.pop_back();
    const bool numeric =
        std::all_of(digits.begin(), digits.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!numeric || (digits.size() != 8 && digits.size() != 12 && digits.size() != 14)) {
      FailTime(name, text);
    }
    digits.resize(14, '0');
    const auto number = [&digits](size_t offset, size_t count) {
      int value = 0;
      for (const char c : digits.substr(offset, count)) value = value * 10 + (c - '0');
      return value;
    };
    std::tm given{};
    given.tm_year = number(0, 4) - 1900;
    given.tm_mon = number(4, 2) - 1;
    given.tm_mday = number(6, 2);
    given.tm_hour = number(8, 2);
    given.tm_min = number(10, 2);
    given.tm_sec = number(12, 2);
    given.tm_isdst = -1;
    std::tm normal = given;
    const std::time_t time = utc ? timegm(&normal) : mktime(&normal);
    // The 31st of June becomes another day.
    if (time < 0 || normal.tm_mon != given.tm_mon || normal.tm_mday != given.tm_mday ||
        given.tm_hour > 23 || given.tm_min > 59 || given.tm_sec > 59) {
      FailTime(name, text);
    }
    return time;
  }

  [[noreturn]] void FailTime(const std::string& name, const std::string& text) const {
    Fail(name + ": '" + text + "' is no time", "YYYYMMDD[HHMM[SS]], with Z for UTC: 20270131Z");
  }

  std::string_view rest_;
  size_t number_;
};

}  // namespace

std::string PublicKey::Fingerprint() const {
  Sha256 hash;
  hash.Update(blob.data(), blob.size());
  const auto digest = hash.Digest();
  std::string text = EncodeBase64({reinterpret_cast<const char*>(digest.data()), digest.size()});
  while (text.back() == '=') text.pop_back();
  return "SHA256:" + text;
}

std::string PublicKey::Line() const {
  return std::string(hardware ? kHardware : kPlain) + " " + EncodeBase64(blob);
}

std::optional<PublicKey> ParsePublicKey(std::string_view blob) {
  WireReader reader(blob);
  const auto type = reader.String();
  const auto point = reader.String();
  if (!type || !point || point->size() != 32 || (*type != kPlain && *type != kHardware)) {
    return std::nullopt;
  }
  PublicKey key;
  key.hardware = *type == kHardware;
  if (key.hardware) {
    const auto application = reader.String();
    if (!application || application->empty()) return std::nullopt;
    key.application = *application;
  }
  if (!reader.AtEnd()) return std::nullopt;
  key.blob = blob;
  key.point = *point;
  return key;
}

namespace {

constexpr std::string_view kPolicy = "# edgepack:";
constexpr int64_t kMostSigners = 8;

/// `text` without blanks at its ends.
std::string_view Trimmed(std::string_view text) {
  const size_t start = std::min(text.find_first_not_of(kBlanks), text.size());
  text.remove_prefix(start);
  while (!text.empty() && kBlanks.find(text.back()) != std::string_view::npos) {
    text.remove_suffix(1);
  }
  return text;
}

/// Nothing if `text` is no whole number from 1 to `most`.
std::optional<int64_t> Positive(std::string_view text, int64_t most) {
  if (text.empty() || text.size() > 15 || text.front() == '0') return std::nullopt;
  int64_t value = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return std::nullopt;
    value = value * 10 + (c - '0');
  }
  return value <= most ? std::optional<int64_t>(value) : std::nullopt;
}

bool SetPolicy(std::string_view key, std::string_view value, SignersPolicy* policy) {
  if (key == "require-valid-until") {
    policy->require_valid_until = value == "yes";
    return value == "yes";
  }
  const bool is_serial = key == "serial";
  if (!is_serial && key != "min-signers") return false;
  const std::optional<int64_t> number =
      Positive(value, is_serial ? std::numeric_limits<int64_t>::max() : kMostSigners);
  (is_serial ? policy->serial : policy->min_signers) = number.value_or(0);
  return number.has_value();
}

}  // namespace

SignersPolicy ParseSignersPolicy(std::string_view text) {
  SignersPolicy policy;
  std::set<std::string> seen;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.substr(0, kPolicy.size()) != kPolicy) continue;
    std::string_view rest = line.substr(kPolicy.size());
    if (!rest.empty() && rest.back() == '\r') rest.remove_suffix(1);
    const size_t equals = std::min(rest.find('='), rest.size());
    const std::string_view key = Trimmed(rest.substr(0, equals));
    const std::string_view value = Trimmed(rest.substr(std::min(equals + 1, rest.size())));
    if (!SetPolicy(key, value, &policy) || !seen.insert(std::string(key)).second) {
      throw Refused("bad-signers",
                    "allowed signers: cannot read, or given twice: " + ToUtf8(line.substr(0, 100)),
                    "# edgepack: serial = 7, min-signers = 2 (up to 8) or "
                    "require-valid-until = yes, a line each");
    }
  }
  return policy;
}

std::vector<AllowedSigner> ParseAllowedSigners(std::string_view text) {
  const SignersPolicy policy = ParseSignersPolicy(text);
  std::vector<AllowedSigner> signers;
  size_t number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    const size_t start = line.find_first_not_of(kBlanks);
    if (start == std::string_view::npos || line[start] == '#') continue;
    // Some are blanks to ssh-keygen, and zero is the end.
    if (std::any_of(line.begin(), line.end(), IsControl)) {
      throw Refused("bad-signers",
                    "allowed signers, line " + std::to_string(number) + ": a control character");
    }
    signers.push_back(LineParser(line, number).Parse());
  }
  if (signers.empty()) throw Refused("bad-signers", "allowed signers: no key is listed");
  std::set<std::string> names;
  std::set<std::string> keys;
  for (const AllowedSigner& signer : signers) {
    names.insert(signer.principals);
    keys.insert(signer.key.blob);
  }
  if (std::min(names.size(), keys.size()) < static_cast<size_t>(policy.min_signers)) {
    throw Refused("bad-signers", "allowed signers: min-signers is " +
                                     std::to_string(policy.min_signers) +
                                     ", fewer names or keys are listed");
  }
  return signers;
}

namespace {

// * and ?, without recursion: after a mismatch, the last * takes one more character.
bool MatchesPattern(std::string_view text, std::string_view pattern) {
  size_t t = 0;
  size_t p = 0;
  size_t star = std::string_view::npos;
  size_t resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace

bool MatchesPatterns(std::string_view text, std::string_view patterns) {
  bool matches = false;
  for (;;) {
    const size_t comma = patterns.find(',');
    std::string_view pattern = patterns.substr(0, comma);
    const bool negated = !pattern.empty() && pattern.front() == '!';
    if (negated) pattern.remove_prefix(1);
    if (MatchesPattern(text, pattern)) {
      if (negated) return false;
      matches = true;
    }
    if (comma == std::string_view::npos) return matches;
    patterns.remove_prefix(comma + 1);
  }
}

}  // namespace edgepack::device
