#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace elixir::testing {

// System calls that failing_calls.cpp intercepts.
enum class Call : uint32_t {
  kAccept,
  kAddSeals,
  kAllocate,   // operator new: it throws, even if libc has memory
  kDuplicate,  // F_DUPFD_CLOEXEC
  kEpollControl,
  kEpollWait,
  kEventfd,
  kFallocate,
  kFsync,
  kFtruncate,
  kFutex,
  kMadvise,
  kMalloc,  // libc's malloc, calloc and realloc, below elixird's own
  kMemfdCreate,
  kMkdir,  // mkdirat
  kMmap,
  kOpen,
  kPeerProcess,  // SO_PEERPIDFD
  kPidfdOpen,
  kPoll,
  kPread,
  kPwrite,  // and pwritev
  kRead,
  kReceive,  // recvmsg
  kRename,   // renameat, renameat2
  kSend,     // sendmsg
  kSocket,
  kThread,  // pthread_create
  kUnlink,  // unlinkat
  kWrite,
  kNone,
};
inline constexpr uint32_t kCalls = static_cast<uint32_t>(Call::kNone);

// The code that makes the call. libzmq ends its process on an error that it cannot handle.
enum class Maker : uint32_t { kElixir, kLibzmq };
inline constexpr uint32_t kMakers = 2;

enum class Way : uint32_t {
  kError,               // returns -1 with `failure`; nothing is done
  kShort,               // reads or writes half of the bytes, at least one
  kWithoutDescriptors,  // recvmsg: as if the process's limit had no room for them
  kLeak,                // memfd_create: succeeds, but leaves one more descriptor open
};

// The calls that a process has made, and the call that must fail. The plan lies in a file that the
// test and the process under test both map. Any thread of both may use it.
struct CallPlan {
  // Kernels before 5.14 and 6.5: no MADV_POPULATE_WRITE, no SO_PEERPIDFD.
  std::atomic<bool> old_kernel{false};
  std::array<std::array<std::atomic<uint64_t>, kCalls>, kMakers> made{};  // since arm()

  std::atomic<Call> call{Call::kNone};
  std::atomic<Maker> maker{Maker::kElixir};
  std::atomic<Way> way{Way::kError};
  std::atomic<int> failure{0};
  std::atomic<uint64_t> at{0};  // number of the failing call, from 1; stored last. 0: none fails
  std::atomic<bool> lasting{false};  // later calls fail, too
  std::atomic<bool> every{false};    // every `at`-th fails
  std::atomic<uint32_t> failed{0};

  uint64_t count(Maker of, Call what) const {
    return made[static_cast<uint32_t>(of)][static_cast<uint32_t>(what)];
  }
};

// The environment variable that gives the process under test its plan's path. Without it the
// process uses a plan of its own.
inline constexpr const char* kPlanVariable = "ELIXIR_FAILING_CALLS";

// The plan of this process. REQUIRES: the library is linked or preloaded.
CallPlan& call_plan();

}  // namespace elixir::testing
