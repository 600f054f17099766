#include "http_parser.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <llhttp/llhttp.h>
#include <utility>

namespace edgepack {
namespace {

std::string LowerCase(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const int letter = std::tolower(static_cast<unsigned char>(c)) - 'a';
  return letter >= 0 && letter < 6 ? letter + 10 : -1;
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
    head_bytes = 0;
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
    if (name == "host") request.host = value;
    if (name == "content-type") {
      request.content_type = LowerCase(value.substr(0, value.find_first_of("; \t")));
    }
    if (name == "expect") expects_continue = LowerCase(value) == "100-continue";
    if (name == "content-encoding" && LowerCase(value) != "identity") return Fail(415);
    if (name == "inference-header-content-length") {
      std::size_t bytes = 0;
      const char* const end = value.data() + value.size();
      const auto [next, error] = std::from_chars(value.data(), end, bytes);
      if (error != std::errc() || next != end) return Fail(400);
      request.json_bytes = bytes;
    }
    field.clear();
    value.clear();
    return 0;
  }

  int TakeHead() {
    if (machine.http_major != 1) return Fail(505);
    const std::optional<std::string> path = PathOf(target);
    if (!path) return Fail(400);
    request.path = *path;
    request.method = llhttp_method_name(static_cast<llhttp_method_t>(machine.method));
    head_complete = true;
    limit = most_body(request);
    const bool sized = (machine.flags & F_CONTENT_LENGTH) != 0;
    return sized && machine.content_length > limit ? Fail(413) : 0;
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
  std::size_t head_bytes = 0;
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
    if (head) part = part.substr(0, kMostHeadBytes - s.head_bytes);
    const llhttp_errno_t error = llhttp_execute(&s.machine, part.data(), part.size());
    std::size_t done = part.size();
    if (error == HPE_PAUSED) {
      done = static_cast<std::size_t>(llhttp_get_error_pos(&s.machine) - part.data());
    } else if (error != HPE_OK && s.failed == 0) {
      s.failed = error == HPE_INVALID_VERSION || error == HPE_PAUSED_H2_UPGRADE ? 505 : 400;
    }
    if (head) s.head_bytes += done;
    if (!s.head_complete && s.failed == 0 && s.head_bytes == kMostHeadBytes) s.failed = 431;
    used += done;
  }
  return used;
}

bool HttpParser::begun() const { return state_->head_bytes != 0; }
bool HttpParser::head_complete() const { return state_->head_complete; }
bool HttpParser::complete() const { return state_->complete; }
int HttpParser::failed() const { return state_->failed; }
bool HttpParser::expects_continue() const { return state_->expects_continue; }
std::size_t HttpParser::body_bytes() const { return state_->request.body.size(); }
bool HttpParser::keep_alive() const { return llhttp_should_keep_alive(&state_->machine) != 0; }

HttpRequest HttpParser::Take() {
  HttpRequest request = std::move(state_->request);
  state_->Begin();
  return request;
}

}  // namespace edgepack
