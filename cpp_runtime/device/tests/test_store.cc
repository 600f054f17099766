// Blobs: resumed, hashed before they count, collected; and the lock.
#include <sys/stat.h>
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
