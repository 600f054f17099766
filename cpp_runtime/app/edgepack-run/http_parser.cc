#include "http_parser.h"

#include <algorithm>
#include <arpa/inet.h>
#include <cctype>
#include <charconv>
#include <limits>
#include <llhttp/llhttp.h>
#include <utility>

namespace edgepack {
namespace {

/// What a chunk of a single byte has around it, and some.
constexpr std::size_t kFramingPerByte = 16;

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const int letter = std::tolower(static_cast<unsigned char>(c)) - 'a';
  return letter >= 0 && letter < 6 ? letter + 10 : -1;
}

std::string_view Trim(std::string_view text) {
  constexpr const char* kBlanks = " \t";
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);
}

/// A name as RFC 3986 has it: letters, digits, some signs, and escapes.
bool IsName(std::string_view text) {
  constexpr std::string_view kSigns = "-._~!$&'()*+,;=";
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%') {
      if (text.size() - i < 3 || HexDigit(text[i + 1]) < 0 || HexDigit(text[i + 2]) < 0) {
        return false;
      }
      i += 2;
    } else if (std::isalnum(static_cast<unsigned char>(text[i])) == 0 &&
               kSigns.find(text[i]) == std::string_view::npos) {
      return false;
    }
  }
  return true;
}

/// Cuts the authority of an absolute-form target off, into `host`; what is left is its path.
std::string_view CutAuthority(std::string_view target, std::string* host) {
  const std::size_t start = target.find("://") + 3;
  const std::size_t end = std::min(target.find_first_of("/?", start), target.size());
  *host = target.substr(start, end - start);
  target.remove_prefix(end);
  return target;
}

/// The path of a request's target; nothing if it has a bad escape.
std::optional<std::string> PathOf(std::string_view target) {
  target = target.substr(0, target.find('?'));
  std::string path;
  for (std::size_t i = 0; i < target.size(); ++i) {
    if (target[i] != '%') {
      path += target[i];
      continue;
    }
    if (target.size() - i < 3) return std::nullopt;
    const int high = HexDigit(target[i + 1]);
    const int low = HexDigit(target[i + 2]);
    if (high < 0 || low < 0 || high + low == 0) return std::nullopt;
    path += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return path;
}

}  // namespace

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) {
    return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  });
  return lower;
}

std::optional<HttpAuthority> ParseAuthority(std::string_view text) {
  HttpAuthority authority;
  std::string_view rest;
  if (!text.empty() && text.front() == '[') {
    const std::size_t end = text.find(']');
    if (end == std::string_view::npos) return std::nullopt;
    authority.host = LowerCase(text.substr(0, end + 1));
    rest = text.substr(end + 1);
    in6_addr digits = {};
    const std::string inside = authority.host.substr(1, end - 1);
    if (inet_pton(AF_INET6, inside.c_str(), &digits) != 1) return std::nullopt;
    authority.address = true;
  } else {
    const std::size_t colon = std::min(text.find(':'), text.size());
    authority.host = LowerCase(text.substr(0, colon));
    rest = text.substr(colon);
    if (!IsName(authority.host)) return std::nullopt;
    if (!authority.host.empty() && authority.host.back() == '.') authority.host.pop_back();
    in_addr digits = {};
    authority.address = inet_pton(AF_INET, authority.host.c_str(), &digits) == 1;
  }
  if (rest.empty()) return authority;
  if (rest.front() != ':') return std::nullopt;
  rest.remove_prefix(1);
  if (rest.empty()) return authority;
  int port = 0;
  const auto [next, error] = std::from_chars(rest.data(), rest.data() + rest.size(), port);
  if (error != std::errc() || next != rest.data() + rest.size() || port < 0 ||
      port > std::numeric_limits<std::uint16_t>::max()) {
    return std::nullopt;
  }
  authority.port = port;
  return authority;
}

struct HttpParser::State {
  explicit State(std::function<std::size_t(const HttpRequest&)> most) : most_body(std::move(most)) {
    llhttp_settings_init(&settings);
    settings.on_url = [](llhttp_t* parser, const char* at, std::size_t size) {
      Of(parser)->target.append(at, size);
      return 0;
    };
    settings.on_header_field = [](llhttp_t* parser, const char* at, std::size_t size) {
      return Of(parser)->Append(at, size, &State::field);
    };
    settings.on_header_value = [](llhttp_t* parser, const char* at, std::size_t size) {
      return Of(parser)->Append(at, size, &State::value);
    };
    settings.on_header_value_complete = [](llhttp_t* parser) { return Of(parser)->TakeHeader(); };
    settings.on_headers_complete = [](llhttp_t* parser) { return Of(parser)->TakeHead(); };
    settings.on_body = [](llhttp_t* parser, const char* at, std::size_t size) {
      return Of(parser)->TakeBody({at, size});
    };
    settings.on_message_complete = [](llhttp_t* parser) {
      Of(parser)->complete = true;
      return static_cast<int>(HPE_PAUSED);
    };
    Begin();
  }

  static State* Of(llhttp_t* parser) { return static_cast<State*>(parser->data); }

  void Begin() {
    llhttp_init(&machine, HTTP_REQUEST, &settings);
    machine.data = this;
    request = {};
    target.clear();
    field.clear();
    value.clear();
    transfer_encoding.clear();
    hosts = 0;
    head_bytes = framing_bytes = 0;
    head_complete = complete = expects_continue = false;
  }

  int Append(const char* at, std::size_t size, std::string State::*to) {
    // A chunked body's trailers say nothing that is wanted here.
    if (!head_complete) (this->*to).append(at, size);
    return 0;
  }

  int Fail(int status) {
    failed = status;
    return static_cast<int>(HPE_USER);
  }

  int TakeHeader() {
    const std::string name = LowerCase(field);
    const std::string text(Trim(value));
    field.clear();
    value.clear();
    if (name == "host") {
      if (++hosts > 1) return Fail(400);
      request.host = text;
    } else if (name == "content-type") {
      if (!request.content_type.empty()) return Fail(400);
      request.content_type = LowerCase(text.substr(0, text.find_first_of("; \t")));
    } else if (name == "origin") {
      if (request.origin) return Fail(400);
      request.origin = text;
    } else if (name == "sec-fetch-site") {
      if (request.fetch_site) return Fail(400);
      request.fetch_site = LowerCase(text);
    } else if (name == "authorization") {
      if (!request.authorization.empty()) return Fail(400);
      request.authorization = text;
    } else if (name == "transfer-encoding") {
      transfer_encoding += (transfer_encoding.empty() ? "" : ",") + LowerCase(text);
    } else if (name == "expect") {
      if (LowerCase(text) != "100-continue") return Fail(417);
      expects_continue = true;
    } else if (name == "content-encoding") {
      if (LowerCase(text) != "identity") return Fail(415);
    } else if (name == "inference-header-content-length") {
      std::size_t bytes = 0;
      const char* const end = text.data() + text.size();
      const auto [next, error] = std::from_chars(text.data(), end, bytes);
      if (request.json_bytes || error != std::errc() || next != end) return Fail(400);
      request.json_bytes = bytes;
    }
    return 0;
  }

  int TakeHead() {
    if (machine.http_major != 1) return Fail(505);
    if (const int status = CheckCodings(); status != 0) return Fail(status);
    // A client of HTTP/1.0 has none to wait for.
    if (machine.http_minor == 0) expects_continue = false;
    request.method = llhttp_method_name(static_cast<llhttp_method_t>(machine.method));
    if (request.method == "CONNECT") return Fail(501);
    if (hosts == 0 && machine.http_minor != 0) return Fail(400);
    std::string_view rest = target;
    const std::string scheme = LowerCase(rest.substr(0, 8));
    const bool absolute = scheme.substr(0, 7) == "http://" || scheme == "https://";
    // What it says of the host counts, then (RFC 9112, 3.2.2).
    if (absolute) rest = CutAuthority(rest, &request.host);
    if (!request.host.empty() && !ParseAuthority(request.host)) return Fail(400);
    const bool any = rest == "*" && request.method == "OPTIONS";
    if (!any && !absolute && (rest.empty() || rest.front() != '/')) return Fail(400);
    const std::optional<std::string> path = PathOf(rest);
    if (!path) return Fail(400);
    request.path = path->empty() ? "/" : *path;
    head_complete = true;
    limit = most_body(request);
    const bool sized = (machine.flags & F_CONTENT_LENGTH) != 0;
    return sized && machine.content_length > limit ? Fail(413) : 0;
  }

  /// What is wrong with a body's codings: one that has to be guessed at would end elsewhere for
  /// somebody else on the way.
  [[nodiscard]] int CheckCodings() const {
    if (transfer_encoding.empty() || (transfer_encoding == "chunked" && machine.http_minor != 0)) {
      return (machine.flags & F_TRANSFER_ENCODING) != 0 && transfer_encoding.empty() ? 400 : 0;
    }
    const std::string_view codings = transfer_encoding;
    const std::size_t last = codings.rfind(',');
    const bool unknown = last != std::string_view::npos && machine.http_minor != 0 &&
                         Trim(codings.substr(last + 1)) == "chunked" &&
                         codings.find("chunked") > last;
    return unknown ? 501 : 400;
  }

  int TakeBody(std::string_view bytes) {
    if (bytes.size() > limit - request.body.size()) return Fail(413);
    request.body += bytes;
    return 0;
  }

  llhttp_t machine = {};
  llhttp_settings_t settings = {};
  std::function<std::size_t(const HttpRequest&)> most_body;
  HttpRequest request;
  std::string target;
  std::string field;
  std::string value;
  std::string transfer_encoding;
  int hosts = 0;
  std::size_t head_bytes = 0;
  std::size_t framing_bytes = 0;  // of a body: what is not its data
  std::size_t limit = 0;
  bool head_complete = false;
  bool complete = false;
  bool expects_continue = false;
  int failed = 0;
};

HttpParser::HttpParser(std::function<std::size_t(const HttpRequest&)> most_body)
    : state_(std::make_unique<State>(std::move(most_body))) {}
HttpParser::~HttpParser() = default;

std::size_t HttpParser::Feed(std::string_view bytes) {
  State& s = *state_;
  std::size_t used = 0;
  while (used < bytes.size() && s.failed == 0 && !s.complete) {
    std::string_view part = bytes.substr(used);
    const bool head = !s.head_complete;
    const std::size_t body = s.request.body.size();
    if (head) part = part.substr(0, kMostHeadBytes - s.head_bytes);
    const llhttp_errno_t error = llhttp_execute(&s.machine, part.data(), part.size());
    std::size_t done = part.size();
    if (error == HPE_PAUSED) {
      done = static_cast<std::size_t>(llhttp_get_error_pos(&s.machine) - part.data());
    } else if (error != HPE_OK && s.failed == 0) {
      s.failed = error == HPE_INVALID_VERSION || error == HPE_PAUSED_H2_UPGRADE ? 505 : 400;
    }
    if (head) {
      s.head_bytes += done;
    } else {
      s.framing_bytes += done - std::min(done, s.request.body.size() - body);
      if (s.framing_bytes > kMostHeadBytes + kFramingPerByte * s.request.body.size()) {
        s.failed = 431;
      }
    }
    if (!s.head_complete && s.failed == 0 && s.head_bytes == kMostHeadBytes) s.failed = 431;
    used += done;
  }
  return used;
}

bool HttpParser::begun() const { return state_->head_bytes != 0; }
bool HttpParser::head_complete() const { return state_->head_complete; }
bool HttpParser::complete() const { return state_->complete; }
int HttpParser::failed() const { return state_->failed; }
const HttpRequest& HttpParser::head() const { return state_->request; }
bool HttpParser::expects_continue() const { return state_->expects_continue; }
std::size_t HttpParser::body_bytes() const { return state_->request.body.size(); }
bool HttpParser::keep_alive() const { return llhttp_should_keep_alive(&state_->machine) != 0; }

HttpRequest HttpParser::Take() {
  HttpRequest request = std::move(state_->request);
  state_->Begin();
  return request;
}

}  // namespace edgepack
