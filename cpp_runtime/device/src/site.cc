#include "site.h"

#include <cerrno>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"
#include "layout.h"

namespace edgepack::device {
namespace {

/// A new folder is there for good once the one that it is in was flushed.
void MakeFolder(const std::string& path) {
  if (access(path.c_str(), F_OK) == 0) return;
  if (mkdir(path.c_str(), 0755) == 0) {
    const std::size_t slash = path.rfind('/');
    Folder::Open(slash == std::string::npos ? "." : path.substr(0, slash + 1)).Sync();
  } else if (errno != EEXIST) {
    ThrowErrno("make folder", path);
  }
}

void MakeFolders(const std::string& path) {
  for (std::size_t at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1)) {
    MakeFolder(path.substr(0, at));
  }
  MakeFolder(path);
}

Folder OwnFolder(const std::string& path) {
  Folder folder = Folder::Open(path);
  const struct stat status = folder.Status();
  if (status.st_uid != geteuid()) {
    throw Error(kExitDevice, "wrong-user",
                path + " belongs to user " + std::to_string(status.st_uid) + ", this is user " +
                    std::to_string(geteuid()),
                "log in as its owner, or choose another folder with --root");
  }
  return folder;
}

}  // namespace

Site::Site(Folder folder)
    : root(std::move(folder)), store(root), releases(root, store), state(root), trust(root) {}

Site Site::Make(const std::string& path) {
  MakeFolders(path);
  return Site(OwnFolder(path));
}

Site Site::Open(const std::string& path) {
  if (access(path.c_str(), F_OK) != 0 && errno == ENOENT) {
    throw Error(kExitDevice, "no-release", "nothing is installed in " + path,
                "edgepack deploy, or ./install in an unpacked bundle, puts it there");
  }
  return Site(OwnFolder(path));
}

}  // namespace edgepack::device
