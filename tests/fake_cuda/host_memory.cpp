#include "tests/fake_cuda/host_memory.h"

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

#include "tests/fake_cuda/races.h"
#include "tests/fake_cuda/runtime.h"
#include "tests/fake_cuda/settings.h"

namespace fake_cuda {
namespace {

struct Registration {
  size_t bytes;
  bool ours;  // of cudaHostAlloc
};
// By address.
std::map<uintptr_t, Registration>& registrations() {
  static auto* const all = new std::map<uintptr_t, Registration>;
  return *all;
}

uint64_t& pinned_bytes() {
  static uint64_t bytes = 0;
  return bytes;
}

struct Mappings {
  bool whole = false;         // no hole
  bool writable = true;       // every page
  bool private_file = false;  // any page
};

// What /proc/self/maps says of a range.
Mappings mappings_of(uintptr_t begin, uintptr_t end) {
  Mappings found;
  std::ifstream maps("/proc/self/maps");
  uintptr_t reached = begin;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t from = 0, to = 0;
    uint64_t inode = 0;
    char dash = 0;
    std::string protection, offset, device;
    std::istringstream fields(line);
    fields >> std::hex >> from >> dash >> to >> protection >> offset >> device >> std::dec >> inode;
    if (to <= reached || from >= end) continue;
    if (from > reached) break;  // a hole
    reached = to;
    if (protection[1] != 'w') found.writable = false;
    if (protection[3] == 'p' && inode != 0) found.private_file = true;
    if (reached >= end) break;
  }
  found.whole = reached >= end;
  return found;
}

// Pinning for writing makes a private mapping's pages the process' own.
void copy_pages(uintptr_t begin, uintptr_t end) {
  const auto page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  for (uintptr_t at = begin; at < end; at = (at / page_bytes + 1) * page_bytes) {
    auto* const byte = reinterpret_cast<volatile char*>(at);
    *byte = *byte;
  }
}

cudaError_t refuse(cudaError_t error, size_t bytes) {
  CountAndBytes& refused = runtime().counters.refused;
  ++refused.count;
  refused.bytes += bytes;
  return error;
}

void keep(uintptr_t begin, size_t bytes, bool ours) {
  registrations()[begin] = {bytes, ours};
  pinned_bytes() += bytes;
}

void forget(std::map<uintptr_t, Registration>::iterator registration) {
  pinned_bytes() -= registration->second.bytes;
  forget_accesses(registration->first, registration->second.bytes);
  registrations().erase(registration);
}

bool beyond_limit(size_t bytes) { return pinned_bytes() + bytes > settings().pin_limit_bytes; }

}  // namespace

cudaError_t register_host(void* memory, size_t bytes, unsigned flags) {
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  if (memory == nullptr || bytes == 0) return refuse(cudaErrorInvalidValue, bytes);
  if ((flags & cudaHostRegisterReadOnly) != 0) return refuse(cudaErrorNotSupported, bytes);
  if (locking_of(memory, bytes) != Locking::kPageable) {
    return refuse(cudaErrorHostMemoryAlreadyRegistered, bytes);
  }
  const Mappings mappings = mappings_of(begin, begin + bytes);
  if (!mappings.whole || !mappings.writable) return refuse(cudaErrorInvalidValue, bytes);
  if (beyond_limit(bytes)) return refuse(cudaErrorMemoryAllocation, bytes);
  Counters& counters = runtime().counters;
  if (mappings.private_file) {
    ++counters.private_files.count;
    counters.private_files.bytes += bytes;
    copy_pages(begin, begin + bytes);
  }
  ++counters.registered.count;
  counters.registered.bytes += bytes;
  keep(begin, bytes, /*ours=*/false);
  return cudaSuccess;
}

cudaError_t unregister_host(void* memory) {
  const auto found = registrations().find(reinterpret_cast<uintptr_t>(memory));
  if (found == registrations().end() || found->second.ours) {
    return cudaErrorHostMemoryNotRegistered;
  }
  forget(found);
  return cudaSuccess;
}

void* allocate_host(size_t bytes) {
  constexpr size_t kPageBytes = 4096;
  const size_t rounded = (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  void* const memory = std::aligned_alloc(kPageBytes, rounded);
  if (memory != nullptr) keep(reinterpret_cast<uintptr_t>(memory), rounded, /*ours=*/true);
  return memory;
}

bool free_host(void* memory) {
  const auto found = registrations().find(reinterpret_cast<uintptr_t>(memory));
  if (found == registrations().end() || !found->second.ours) return false;
  forget(found);
  std::free(memory);
  return true;
}

Locking locking_of(const void* memory, size_t bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(memory), end = begin + bytes;
  const auto next = registrations().lower_bound(begin);
  if (next != registrations().begin()) {
    const auto before = std::prev(next);
    const uintptr_t before_end = before->first + before->second.bytes;
    if (before_end > begin) return before_end >= end ? Locking::kPinned : Locking::kAcross;
  }
  if (next == registrations().end() || next->first >= end) return Locking::kPageable;
  const bool all = next->first == begin && begin + next->second.bytes >= end;
  return all ? Locking::kPinned : Locking::kAcross;
}

}  // namespace fake_cuda
