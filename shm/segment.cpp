#include "shm/segment.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <new>

#include "base/fork.h"
#include "base/units.h"

namespace elixir::shm {
namespace {

namespace ipc = boost::interprocess;

constexpr uint64_t kHugePageBytes = Segment::kFillAlignBytes;
constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

uint64_t free_huge_bytes() {
  std::ifstream file("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
  uint64_t pages = 0;
  file >> pages;
  return pages * kHugePageBytes;
}

// Small segments are not worth a huge page: at most a sixteenth may be rounding.
bool worth_huge_pages(uint64_t bytes) {
  return bytes >= 16 * kHugePageBytes && free_huge_bytes() >= round_up(bytes, kHugePageBytes);
}

bool is_huge(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 && info.st_blksize == static_cast<blksize_t>(kHugePageBytes);
}

// The value in brackets: "always within_size advise [never] deny force".
std::string selected(const char* path) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    if (word.starts_with('[') && word.ends_with(']')) return word.substr(1, word.size() - 2);
  }
  return "";
}

bool shared_memory_may_have_huge_pages() {
  const std::string all = selected("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  const std::string size =
      selected("/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/shmem_enabled");
  const std::string& counts = size.empty() || size == "inherit" ? all : size;
  return counts != "" && counts != "never" && counts != "deny";
}

// munmap of huge pages takes whole ones only, so the mapping has them whole.
uint64_t mapped_bytes(int fd, uint64_t bytes) {
  return is_huge(fd) ? round_up(bytes, kHugePageBytes) : bytes;
}

Result<ipc::mapped_region> map_region(const MemFd& memfd, uint64_t bytes, Access access) {
  try {
    ipc::mapped_region region(
        memfd, access == Access::kReadWrite ? ipc::read_write : ipc::read_only, 0, bytes);
    // A crash must not write the states of all jobs to a disk, while trainers believe that elixird
    // stands still. Advice: may be refused.
    ::madvise(region.get_address(), bytes, MADV_DONTDUMP);
    return region;
  } catch (const ipc::interprocess_exception& failure) {
    return error(Code::kResourceExhausted, "cannot map {} of shared memory: {}",
                 format_bytes(bytes), failure.what());
  }
}

}  // namespace

Result<Segment> Segment::create(const std::string& name, uint64_t bytes,
                                const std::function<void(void*, uint64_t)>& before_reserve) {
  if (worth_huge_pages(bytes)) {
    Result<Segment> huge = create_filled(MFD_HUGETLB | MFD_HUGE_2MB, name, bytes, before_reserve);
    if (huge.ok()) return huge;  // else another segment was faster to take the pages
  }
  return create_filled(0, name, bytes, before_reserve);
}

Result<Segment> Segment::create_filled(unsigned page_flags, const std::string& name, uint64_t bytes,
                                       const std::function<void(void*, uint64_t)>& before_reserve) {
  Result<Segment> made = create_with(page_flags, name, bytes, before_reserve);
  if (!made.ok()) return made;
  ELIXIR_RETURN_IF_ERROR(made->fill(0, made->bytes()));
  return made;
}

Result<Segment> Segment::create_unfilled(
    const std::string& name, uint64_t bytes,
    const std::function<void(void*, uint64_t)>& before_reserve) {
  if (worth_huge_pages(bytes)) {
    // The mapping takes its pages out of the pool already: filling it finds them.
    Result<Segment> huge = create_with(MFD_HUGETLB | MFD_HUGE_2MB, name, bytes, before_reserve);
    if (huge.ok()) return huge;
  }
  return create_with(0, name, bytes, before_reserve);
}

Result<Segment> Segment::create_empty(const std::string& name, uint64_t bytes,
                                      const std::function<void(void*, uint64_t)>& before_reserve) {
  return create_with(0, name, bytes, before_reserve);
}

// Through the mapping: unlike fallocate this follows the NUMA policy and the advice on huge pages
// that the mapping has. fallocate is for kernels before 5.14.
Status Segment::fill(uint64_t offset, uint64_t bytes) const {
  ELIXIR_CHECK(
      offset % kFillAlignBytes == 0 && offset <= this->bytes() && bytes <= this->bytes() - offset,
      "[{}, +{}) of a segment of {} bytes", offset, bytes, this->bytes());
#ifdef MADV_POPULATE_WRITE
  int failure = 0;
  do {
    failure = ::madvise(data() + offset, bytes, MADV_POPULATE_WRITE) == 0 ? 0 : errno;
  } while (failure == EINTR);
  if (failure == 0) return Status();
  const bool unknown = failure == EINVAL;
#else
  const bool unknown = true;
#endif
  while (unknown) {
    const auto from = static_cast<off_t>(offset), length = static_cast<off_t>(bytes);
    if (::fallocate(fd(), 0, from, length) == 0) return Status();
    if (errno != EINTR) break;
  }
  return errno_status(Code::kResourceExhausted,
                      "cannot reserve " + format_bytes(bytes) + " of shared memory");
}

Result<Segment> Segment::create_with(unsigned page_flags, const std::string& name, uint64_t bytes,
                                     const std::function<void(void*, uint64_t)>& before_reserve) {
  ELIXIR_CHECK(bytes > 0, "the segment '{}' is empty", name);
  MemFd memfd(UniqueFd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING | page_flags)));
  if (memfd.get() < 0) return errno_status(Code::kInternal, "memfd_create");
  bytes = mapped_bytes(memfd.get(), bytes);
  while (::ftruncate(memfd.get(), static_cast<off_t>(bytes)) != 0) {
    if (errno == EINTR) continue;
    const char* const remedy =
        errno == EFBIG
            ? " (elixird's limit for files, which includes memory, is smaller: ulimit -f)"
            : "";
    return errno_status(Code::kResourceExhausted,
                        "cannot share " + format_bytes(bytes) + " of memory" + remedy);
  }
  Result<ipc::mapped_region> region = map_region(memfd, bytes, Access::kReadWrite);
  if (!region.ok()) return region.status();
  ::madvise(region->get_address(), bytes, MADV_HUGEPAGE);  // advice: may be refused
  if (before_reserve) before_reserve(region->get_address(), bytes);
  if (::fcntl(memfd.get(), F_ADD_SEALS, kSizeSeals) != 0) {
    return errno_status(Code::kInternal, "F_ADD_SEALS");
  }
  return Segment(std::move(memfd), std::move(*region));
}

Result<Segment> Segment::map(UniqueFd fd, uint64_t bytes, Access access) {
  ELIXIR_CHECK(bytes > 0, "nothing of a segment to map");
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
  Result<ipc::mapped_region> region = map_region(memfd, mapped_bytes(memfd.get(), bytes), access);
  if (!region.ok()) return region.status();
  return Segment(std::move(memfd), std::move(*region));
}

Result<UniqueFd> Segment::read_only_fd() const {
  UniqueFd fd(::open(fmt::format("/proc/self/fd/{}", memfd_.get()).c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return errno_status(Code::kInternal, "opening a memfd for reading");
  return fd;
}

Status Segment::close_to_new_writers() {
  if (::fcntl(memfd_.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) == 0) return Status();
  return errno_status(Code::kUnavailable, "F_SEAL_FUTURE_WRITE on a memfd");
}

void Segment::keep_from_children() {
  ::madvise(data(), bytes(), MADV_DONTFORK);
  memfd_ = MemFd(UniqueFd());
  kept_from_forks_ = forks();
}

Segment::~Segment() {
  if (!kept_from_forks_ || *kept_from_forks_ == forks()) return;
  // In a child nothing of ours is mapped there: it may be another's by now.
  [[maybe_unused]] const auto* const not_ours =
      new (std::nothrow) ipc::mapped_region(std::move(region_));
}

Status Segment::protect() {
  if (::mprotect(data(), bytes(), PROT_READ) == 0) return Status();
  return errno_status(Code::kInternal, "mprotect of " + format_bytes(bytes()));
}

uint64_t Segment::page_bytes() const {
  if (is_huge(memfd_.get())) return kHugePageBytes;
  const auto base_page_bytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  // The system looks at every page to say what it gave: long where they are small.
  if (!shared_memory_may_have_huge_pages()) return base_page_bytes;
  std::ifstream maps("/proc/self/smaps");
  const std::string start = fmt::format("{:x}-", reinterpret_cast<uintptr_t>(data()));
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.rfind(start, 0) == 0) inside = true;
    unsigned long long huge_kib = 0;
    if (inside && std::sscanf(line.c_str(), "ShmemPmdMapped: %llu kB", &huge_kib) == 1) {
      return huge_kib > 0 ? kHugePageBytes : base_page_bytes;
    }
  }
  return base_page_bytes;
}

}  // namespace elixir::shm
