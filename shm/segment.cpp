#include "shm/segment.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "base/units.h"

namespace elixir::shm {
namespace {

namespace ipc = boost::interprocess;

constexpr uint64_t kHugePageBytes = 2ull << 20;
constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

uint64_t free_huge_bytes() {
  std::ifstream file("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
  uint64_t pages = 0;
  file >> pages;
  return pages * kHugePageBytes;
}

// Small segments are not worth a huge page: at most a sixteenth may be rounding.
UniqueFd make_memfd(const std::string& name, uint64_t* bytes) {
  const uint64_t huge_bytes = round_up(*bytes, kHugePageBytes);
  if (*bytes >= 16 * kHugePageBytes && free_huge_bytes() >= huge_bytes) {
    UniqueFd fd(
        ::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB | MFD_HUGE_2MB));
    if (fd.valid()) {
      *bytes = huge_bytes;
      return fd;
    }
  }
  return UniqueFd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
}

Result<ipc::mapped_region> map_region(const MemFd& memfd, uint64_t bytes, Access access) {
  try {
    return ipc::mapped_region(
        memfd, access == Access::kReadWrite ? ipc::read_write : ipc::read_only, 0, bytes);
  } catch (const ipc::interprocess_exception& failure) {
    return error(Code::kResourceExhausted, "cannot map {} of shared memory: {}",
                 format_bytes(bytes), failure.what());
  }
}

}  // namespace

Result<Segment> Segment::create(const std::string& name, uint64_t bytes,
                                const std::function<void(void*, uint64_t)>& before_reserve) {
  const uint64_t asked_bytes = bytes;
  MemFd memfd(make_memfd(name, &bytes));
  if (memfd.get() < 0) return errno_status(Code::kInternal, "memfd_create");
  if (::ftruncate(memfd.get(), static_cast<off_t>(bytes)) != 0) {
    return errno_status(Code::kResourceExhausted, "ftruncate of " + format_bytes(bytes));
  }
  Result<ipc::mapped_region> region = map_region(memfd, asked_bytes, Access::kReadWrite);
  if (!region.ok()) return region.status();
  ::madvise(region->get_address(), region->get_size(), MADV_HUGEPAGE);  // advice: may be refused
  if (before_reserve) before_reserve(region->get_address(), region->get_size());
  if (::fallocate(memfd.get(), 0, 0, static_cast<off_t>(bytes)) != 0) {
    return errno_status(Code::kResourceExhausted,
                        "cannot reserve " + format_bytes(bytes) + " of shared memory");
  }
  if (::fcntl(memfd.get(), F_ADD_SEALS, kSizeSeals) != 0) {
    return errno_status(Code::kInternal, "F_ADD_SEALS");
  }
  return Segment(std::move(memfd), std::move(*region));
}

Result<Segment> Segment::map(UniqueFd fd, uint64_t bytes, Access access) {
  MemFd memfd(std::move(fd));
  struct stat info {};
  if (::fstat(memfd.get(), &info) != 0) return errno_status(Code::kProtocol, "fstat of a memfd");
  if (static_cast<uint64_t>(info.st_size) < bytes) {
    return error(Code::kProtocol, "a shared-memory descriptor of {} bytes where {} are needed",
                 info.st_size, bytes);
  }
  const int seals = ::fcntl(memfd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return error(Code::kProtocol,
                 "a shared-memory descriptor that is not sealed against shrinking");
  }
  Result<ipc::mapped_region> region = map_region(memfd, bytes, access);
  if (!region.ok()) return region.status();
  return Segment(std::move(memfd), std::move(*region));
}

uint64_t Segment::page_bytes() const {
  struct stat info {};
  if (::fstat(memfd_.get(), &info) == 0 &&
      info.st_blksize == static_cast<blksize_t>(kHugePageBytes)) {
    return kHugePageBytes;
  }
  std::ifstream maps("/proc/self/smaps");
  const std::string start = fmt::format("{:x}-", reinterpret_cast<uintptr_t>(data()));
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.rfind(start, 0) == 0) inside = true;
    unsigned long long huge_kib = 0;
    if (inside && std::sscanf(line.c_str(), "ShmemPmdMapped: %llu kB", &huge_kib) == 1) {
      return huge_kib > 0 ? kHugePageBytes : static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    }
  }
  return static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace elixir::shm
