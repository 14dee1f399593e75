#include "tests/fake_nccl/wire.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace fake_nccl {
namespace {

constexpr long kWaitNs = 20'000'000;

struct Id {
  char magic[8];
  uint64_t token;
  int pid, fd;
};
constexpr char kMagic[8] = {'f', 'a', 'k', 'e', 'n', 'c', 'c', 'l'};
static_assert(sizeof(Id) <= sizeof(ncclUniqueId));

[[noreturn]] void stop(const char* what) {
  std::perror(what);
  std::abort();
}

Shared* map(int fd) {
  void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) stop("fake NCCL: mmap");
  return static_cast<Shared*>(memory);
}

}  // namespace

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kAllGather:
      return "all-gather";
    case Kind::kReduceScatter:
      return "reduce-scatter";
    case Kind::kAllReduce:
      return "all-reduce";
  }
  return "unknown";
}

std::string MessageHead::name() const {
  return std::string(name_of(kind)) + " of " + std::to_string(bytes) + " bytes of type " +
         std::to_string(type);
}

// The descriptor stays open as long as this process: the others come when they like.
ncclUniqueId make_unique_id() {
  Id id{};
  std::memcpy(id.magic, kMagic, sizeof kMagic);
  if (getrandom(&id.token, sizeof id.token, 0) != sizeof id.token) stop("fake NCCL: getrandom");
  id.pid = getpid();
  id.fd = memfd_create("fake_nccl", MFD_CLOEXEC);
  if (id.fd < 0 || ftruncate(id.fd, sizeof(Shared)) != 0) stop("fake NCCL: memfd");
  Shared* const shared = map(id.fd);
  shared->token = id.token;
  munmap(shared, sizeof(Shared));
  ncclUniqueId result{};
  std::memcpy(&result, &id, sizeof id);
  return result;
}

std::unique_ptr<Wire> Wire::open(const ncclUniqueId& unique_id) {
  Id id;
  std::memcpy(&id, &unique_id, sizeof id);
  if (std::memcmp(id.magic, kMagic, sizeof kMagic) != 0) return nullptr;
  const std::string path = "/proc/" + std::to_string(id.pid) + "/fd/" + std::to_string(id.fd);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return nullptr;
  const bool whole = lseek(fd, 0, SEEK_END) == static_cast<off_t>(sizeof(Shared));
  Shared* const shared = whole ? map(fd) : nullptr;
  close(fd);
  if (shared == nullptr) return nullptr;
  std::unique_ptr<Wire> wire(new Wire(shared));
  return shared->token == id.token ? std::move(wire) : nullptr;
}

Wire::~Wire() { munmap(shared_, sizeof(Shared)); }

void Wire::await_change(uint32_t seen_pulse) {
  const timespec limit{0, kWaitNs};
  syscall(SYS_futex, &shared_->pulse, FUTEX_WAIT, seen_pulse, &limit, nullptr, 0);
}

void Wire::raise_pulse() {
  shared_->pulse.fetch_add(1, std::memory_order_release);  // with the acquire of pulse()
  syscall(SYS_futex, &shared_->pulse, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace fake_nccl
