// Blobs: resumed, hashed before they count, linked or copied, collected; and the lock.
#include <array>
#include <cerrno>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

#include <doctest/doctest.h>

#include "lock.h"
#include "sha256.h"
#include "support.h"

namespace edgepack::device {
namespace {

using testing::Contains;
using testing::ErrorOf;
using testing::ReadFile;
using testing::TempFolder;
using testing::WriteFile;

void Write(Part* part, const std::string& text) { part->Write(text.data(), text.size()); }

/// From now on this thread makes no hard links, as Android's policy has it. Returns whether the
/// kernel does that: under qemu it does not.
bool ForbidHardLinks() {
  std::array<sock_filter, 4> program = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_linkat, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  sock_fprog filter = {program.size(), program.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST_CASE("where there can be no hard links, what is linked is copied") {
  const TempFolder temp;
  const Folder root = Folder::Open(temp.path());
  const Store store(root);
  const std::string text(100000, 'x');
  const std::string sha256 = Sha256Hex(text);
  Part part = store.Begin(sha256);
  Write(&part, text);
  CHECK(part.Finish());
  WriteFile(temp / "old", "first layout");
  const std::string old = Sha256Hex("first layout");
  bool forbidden = false;
  std::thread([&] {
    forbidden = ForbidHardLinks();
    if (!forbidden) return;
    WriteFile(temp / "there", "another");
    store.LinkTo(sha256, true, root, "there");
    store.LinkTo(sha256, false, root, "new");
    store.Adopt(root, "old", old);
  }).join();
  if (!forbidden) return;
  for (const char* name : {"there", "new"}) {
    struct stat status = {};
    CHECK(stat((temp / name).c_str(), &status) == 0);
    CHECK(status.st_nlink == 1);
    CHECK((status.st_mode & 0777U) == 0555);
    CHECK(ReadFile(temp / name) == text);
  }
  CHECK(store.Check(sha256) == Store::Condition::kWhole);
  CHECK(store.Check(old) == Store::Condition::kWhole);
  CHECK(root.Names() ==
        std::vector<std::string>{"incoming", "new", "old", "releases", "store", "there"});
}

TEST_CASE("a blob whose upload was cut goes on where it was") {
  const TempFolder temp;
  const Store store(Folder::Open(temp.path()));
  const std::string sha256 = Sha256Hex("hello world");
  {
    Part part = store.Begin(sha256);
    Write(&part, "hello ");
  }
  CHECK(store.PartSize(sha256) == 6);
  CHECK_FALSE(store.Has(sha256));
  Part part = store.Begin(sha256);
  CHECK(part.size() == 6);
  Write(&part, "world");
  CHECK(part.Finish());
  CHECK(store.Check(sha256) == Store::Condition::kWhole);
  CHECK(ReadFile(temp / ("store/" + sha256)) == "hello world");
  CHECK(store.PartSize(sha256) == 0);
  struct stat status = {};
  CHECK(stat((temp / ("store/" + sha256)).c_str(), &status) == 0);
  CHECK((status.st_mode & 0777U) == 0444);
}

TEST_CASE("a blob with another hash never gets into the store") {
  const TempFolder temp;
  const Store store(Folder::Open(temp.path()));
  const std::string sha256 = Sha256Hex("right");
  Part part = store.Begin(sha256);
  Write(&part, "wrong");
  CHECK_FALSE(part.Finish());
  CHECK_FALSE(store.Has(sha256));
  CHECK(store.PartSize(sha256) == 0);
}

TEST_CASE("damage is found, a link is no blob, and only what is not needed goes") {
  const TempFolder temp;
  const Store store(Folder::Open(temp.path()));
  for (const char* text : {"one", "two", "three"}) {
    Part part = store.Begin(Sha256Hex(text));
    Write(&part, text);
    CHECK(part.Finish());
  }
  const std::string one = Sha256Hex("one");
  CHECK(store.Sum().blobs == 3);
  CHECK(store.Sum().bytes == 11);
  WriteFile(temp / ("store/" + one), "ONE");
  CHECK(store.Check(one) == Store::Condition::kDamaged);
  CHECK(store.Check(Sha256Hex("four")) == Store::Condition::kMissing);
  store.Collect({one, Sha256Hex("two")});
  CHECK(store.Has(one));
  CHECK(store.Has(Sha256Hex("two")));
  CHECK_FALSE(store.Has(Sha256Hex("three")));
  unlink((temp / ("store/" + one)).c_str());
  CHECK(symlink("/etc/passwd", (temp / ("store/" + one)).c_str()) == 0);
  CHECK(Contains(ErrorOf([&] { (void)store.Check(one); }), "store/" + one));
}

TEST_CASE("a folder of the store that is a link to elsewhere is refused") {
  const TempFolder temp;
  const TempFolder elsewhere;
  CHECK(symlink(elsewhere.path().c_str(), (temp / "store").c_str()) == 0);
  CHECK(Contains(ErrorOf([&] { const Store store(Folder::Open(temp.path())); }), "/store"));
}

TEST_CASE("who waits for a lock is told who holds it; it ends with its owner") {
  const TempFolder temp;
  const Folder root = Folder::Open(temp.path());
  CHECK_FALSE(Lock::Look(root).has_value());
  {
    const Lock lock(root, {0, "ann@desk", "", "install", ""}, 0);
    const std::string error = ErrorOf([&] {
      const Lock second(root, {0, "bob@desk", "", "prune", ""}, 0.1);
    });
    CHECK(Contains(error, "locked: ann@desk (process " + std::to_string(getpid())));
    CHECK(Contains(error, "install since 20"));
    const std::optional<Holder> holder = Lock::Look(root);
    REQUIRE(holder.has_value());
    CHECK(holder->by == "ann@desk");
  }
  const Lock lock(root, {0, "bob@desk", "", "prune", ""}, 0);
}

TEST_CASE("a lock of the first layout counts until the device was booted again") {
  const TempFolder temp;
  const Folder root = Folder::Open(temp.path());
  const std::string boot = ReadFile("/proc/sys/kernel/random/boot_id").substr(0, 36);
  const std::string link = temp / ".lock";
  CHECK(symlink(("desk-00 17 token " + boot).c_str(), link.c_str()) == 0);
  CHECK(Contains(ErrorOf([&] {
                   const Lock lock(root, {0, "bob", "", "prune", ""}, 0);
                 }),
                 "an earlier edgepack holds the lock"));
  unlink(link.c_str());
  CHECK(symlink("desk-00 17 token 00000000-0000-0000-0000-000000000000", link.c_str()) == 0);
  const Lock lock(root, {0, "bob", "", "prune", ""}, 0);
  CHECK(Lock::Look(root)->by == "bob");
}

}  // namespace
}  // namespace edgepack::device
