#include "daemon/heap_reserve.h"

#include <sys/mman.h>

#include <atomic>
#include <cerrno>

#include "base/export.h"

namespace elixir::daemon {
namespace {

constexpr std::string_view kAtLength =
    "elixird has no memory left for this: end other jobs, or raise its limit and start it again "
    "(ulimit -d and -v, LimitDATA= and LimitAS= of its unit, vm.overcommit_memory)";

// malloc() needs them before any constructor has run.
constinit std::atomic<void*> reserve_place{nullptr};
constinit std::atomic<uint64_t> times_failed{0};

// Whoever takes the pointer gives the memory back, once. Relaxed: nobody ever writes there.
void give_reserve() {
  void* const place = reserve_place.exchange(nullptr, std::memory_order_relaxed);
  if (place != nullptr) ::munmap(place, kHeapReserveBytes);
}

}  // namespace

bool keep_heap_reserve() noexcept {
  if (has_heap_reserve()) return true;
  void* const place = ::mmap(nullptr, kHeapReserveBytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (place == MAP_FAILED) return false;
  void* none = nullptr;
  if (!reserve_place.compare_exchange_strong(none, place, std::memory_order_relaxed)) {
    ::munmap(place, kHeapReserveBytes);
  }
  return true;
}

bool has_heap_reserve() noexcept {
  return reserve_place.load(std::memory_order_relaxed) != nullptr;
}

void note_no_memory() noexcept { times_failed.fetch_add(1, std::memory_order_relaxed); }
uint64_t times_without_memory() noexcept { return times_failed.load(std::memory_order_relaxed); }

std::string_view told(const Status& status) noexcept {
  const bool at_length = status.message() == no_memory_left().message();
  return at_length ? kAtLength : std::string_view(status.message());
}

// libc's own, under the names that it keeps for who stands before it.
extern "C" {
void* __libc_malloc(size_t bytes) noexcept;
void* __libc_calloc(size_t count, size_t bytes) noexcept;
void* __libc_realloc(void* place, size_t bytes) noexcept;
}

namespace {

// Again, when there may be more: another thread may have given the reserve just now.
template <typename Allocate>
void* allocate_or_give(size_t bytes, Allocate by_libc) {
  void* const place = by_libc();
  if (place != nullptr || bytes > kSmallRequestBytes) return place;
  give_reserve();
  return by_libc();
}

}  // namespace
}  // namespace elixir::daemon

// Sanitizers have functions of their own in these places.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ELIXIR_OWN_MALLOC 0
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ELIXIR_OWN_MALLOC 0
#endif
#ifndef ELIXIR_OWN_MALLOC
#define ELIXIR_OWN_MALLOC 1
#endif

#if ELIXIR_OWN_MALLOC

extern "C" ELIXIR_PUBLIC void* malloc(size_t bytes) noexcept {
  using namespace elixir::daemon;
  return allocate_or_give(bytes, [bytes] { return __libc_malloc(bytes); });
}

extern "C" ELIXIR_PUBLIC void* calloc(size_t count, size_t bytes) noexcept {
  using namespace elixir::daemon;
  const bool large = bytes != 0 && count > kSmallRequestBytes / bytes;
  return allocate_or_give(large ? kSmallRequestBytes + 1 : count * bytes,
                          [count, bytes] { return __libc_calloc(count, bytes); });
}

// Of 0 bytes it frees, and null is no failure.
extern "C" ELIXIR_PUBLIC void* realloc(void* place, size_t bytes) noexcept {
  using namespace elixir::daemon;
  if (bytes == 0) return __libc_realloc(place, bytes);
  return allocate_or_give(bytes, [place, bytes] { return __libc_realloc(place, bytes); });
}

#endif
