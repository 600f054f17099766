#include "http_address.h"

#include <arpa/inet.h>
#include <cstdint>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "common/command_line.h"
#include "common/error.h"

namespace edgepack {

HttpAddress HttpAddress::Parse(const std::string& option, const std::string& text) {
  HttpAddress address;
  if (text.substr(0, 5) == "unix:") {
    address.path = text.substr(5);
    if (address.path.empty() || address.path.native().size() >= sizeof(sockaddr_un::sun_path)) {
      throw UsageError(option + ": '" + text + "': the path is empty or too long for a socket");
    }
    return address;
  }
  const std::size_t colon = text.rfind(':');
  address.host = colon == std::string::npos ? "127.0.0.1" : text.substr(0, colon);
  if (address.host.size() > 1 && address.host.front() == '[' && address.host.back() == ']') {
    address.host = address.host.substr(1, address.host.size() - 2);
  }
  if (address.host == "localhost") address.host = "127.0.0.1";
  address.port =
      WholeNumber(option, text.substr(colon == std::string::npos ? 0 : colon + 1), 0, UINT16_MAX);
  in6_addr digits = {};
  if (inet_pton(AF_INET, address.host.c_str(), &digits) != 1 &&
      inet_pton(AF_INET6, address.host.c_str(), &digits) != 1) {
    throw UsageError(option + ": '" + address.host + "' is no address of digits",
                     "for example 127.0.0.1:8080, 0.0.0.0:8080 or [::1]:8080");
  }
  return address;
}

}  // namespace edgepack
