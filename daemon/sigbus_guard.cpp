#include "daemon/sigbus_guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>

#include "base/check.h"
#include "base/mutex.h"

namespace elixir::daemon {
namespace {

// The signal handler reads it in any thread at any time, so it is made of atomics and never moves.
struct Slot {
  std::atomic<uintptr_t> begin{0};  // 0: free. Stored last, cleared first
  std::atomic<uintptr_t> end{0};
  std::atomic<uintptr_t> page_bytes{0};
  std::atomic<bool> hit{false};
};

std::array<Slot, SigbusGuard::kMostGuards> slots;
std::atomic<int> slots_used{0};  // those behind have never been used

Slot* slot_of(uintptr_t address) {
  const int used = slots_used.load(std::memory_order_acquire);
  for (int i = 0; i < used; ++i) {
    Slot& slot = slots[static_cast<size_t>(i)];
    // Acquire: end and page_bytes of this begin; partner: the release in SigbusGuard().
    const uintptr_t begin = slot.begin.load(std::memory_order_acquire);
    const uintptr_t end = slot.end.load(std::memory_order_acquire);
    if (begin == 0 || address < begin || address >= end) continue;
    // The faulting range's own slot does not change now; another one's may.
    if (slot.begin.load(std::memory_order_acquire) == begin) return &slot;
  }
  return nullptr;
}

// Async-signal-safe: atomics and a system call.
bool put_zeros(uintptr_t address) {
  Slot* const slot = slot_of(address);
  if (slot == nullptr) return false;
  const uintptr_t page_bytes = slot->page_bytes.load(std::memory_order_relaxed);
  const uintptr_t page = address / page_bytes * page_bytes;
  // Not mmap(), which is not said to be async-signal-safe, and which the thread sanitizer takes for
  // a write of the page: other threads read it meanwhile, and meet the hole or these zeros.
  if (::syscall(SYS_mmap, page, page_bytes, PROT_READ | PROT_WRITE,
                MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == -1) {
    return false;
  }
  slot->hit.store(true, std::memory_order_relaxed);
  return true;
}

void on_sigbus(int number, siginfo_t* info, void*) {
  const int errno_before = errno;
  const bool of_kernel = info->si_code > 0;
  if (!of_kernel || !put_zeros(reinterpret_cast<uintptr_t>(info->si_addr))) {
    ::signal(number, SIG_DFL);  // the access is tried again and ends the process
    if (!of_kernel) ::raise(number);
  }
  errno = errno_before;
}

void install() {
  struct sigaction action {};
  action.sa_sigaction = on_sigbus;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigemptyset(&action.sa_mask);
  ELIXIR_CHECK(::sigaction(SIGBUS, &action, nullptr) == 0, "sigaction: errno {}", errno);
}

// Room for all: a guard that ends takes no memory.
struct FreeSlots {
  Mutex mutex;
  std::array<int, SigbusGuard::kMostGuards> free ELIXIR_GUARDED_BY(mutex);
  size_t n_free ELIXIR_GUARDED_BY(mutex) = 0;
};

// Never destroyed: guards may outlive it.
FreeSlots& free_slots() {
  static FreeSlots* const one = new FreeSlots;
  return *one;
}

int take_slot() {
  FreeSlots& all = free_slots();
  const MutexLock lock(all.mutex);
  if (all.n_free > 0) return all.free[--all.n_free];
  const int used = slots_used.load(std::memory_order_relaxed);
  if (used == 0) install();
  if (used == SigbusGuard::kMostGuards) return -1;
  slots_used.store(used + 1, std::memory_order_release);
  return used;
}

}  // namespace

SigbusGuard::SigbusGuard(void* address, uint64_t bytes, uint64_t page_bytes) : slot_(take_slot()) {
  const auto begin = reinterpret_cast<uintptr_t>(address);
  ELIXIR_CHECK(page_bytes > 0 && begin % page_bytes == 0, "pages of {} bytes from {:#x} on",
               page_bytes, begin);
  if (slot_ < 0) return;
  Slot& slot = slots[static_cast<size_t>(slot_)];
  slot.hit.store(false, std::memory_order_relaxed);
  slot.end.store(begin + bytes, std::memory_order_relaxed);
  slot.page_bytes.store(page_bytes, std::memory_order_relaxed);
  // Release: the range; partner: the handler's acquire.
  slot.begin.store(begin, std::memory_order_release);
}

SigbusGuard::~SigbusGuard() {
  if (slot_ < 0) return;
  slots[static_cast<size_t>(slot_)].begin.store(0, std::memory_order_release);
  FreeSlots& all = free_slots();
  const MutexLock lock(all.mutex);
  all.free[all.n_free++] = slot_;
}

bool SigbusGuard::hit() const {
  return slot_ >= 0 && slots[static_cast<size_t>(slot_)].hit.load(std::memory_order_relaxed);
}

}  // namespace elixir::daemon
