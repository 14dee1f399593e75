#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace elixir::testing {

// Calls of the system that failing_calls.cpp stands in front of.
enum class Call : uint32_t {
  kAccept,
  kAddSeals,
  kAllocate,   // operator new: it throws, whatever libc has
  kDuplicate,  // F_DUPFD_CLOEXEC
  kEpollControl,
  kEpollWait,
  kEventfd,
  kFallocate,
  kFsync,
  kFtruncate,
  kFutex,
  kMadvise,
  kMalloc,  // libc's own malloc, calloc and realloc, under elixird's
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

// Whose code makes the call. libzmq ends its process where it cannot handle an error.
enum class Maker : uint32_t { kElixir, kLibzmq };
inline constexpr uint32_t kMakers = 2;

enum class Way : uint32_t {
  kError,               // -1 and `failure`; nothing is done
  kShort,               // of what is read or written, half: at least a byte
  kWithoutDescriptors,  // recvmsg: as when they do not fit below the process's limit
  kLeak,                // memfd_create: all is well, and a descriptor more is left open
};

// In a file that a test and the process under it both map: what that process has called, and which
// call is to fail. Any thread of either.
struct CallPlan {
  // Kernels before 5.14 and 6.5: no MADV_POPULATE_WRITE, no SO_PEERPIDFD.
  std::atomic<bool> old_kernel{false};
  std::array<std::array<std::atomic<uint64_t>, kCalls>, kMakers> made{};  // since arm()

  std::atomic<Call> call{Call::kNone};
  std::atomic<Maker> maker{Maker::kElixir};
  std::atomic<Way> way{Way::kError};
  std::atomic<int> failure{0};
  std::atomic<uint64_t> at{0};       // which of them, from 1; stored last. 0: none fails
  std::atomic<bool> lasting{false};  // those after it fail, too
  std::atomic<bool> every{false};    // every `at`-th fails
  std::atomic<uint32_t> failed{0};

  uint64_t count(Maker of, Call what) const {
    return made[static_cast<uint32_t>(of)][static_cast<uint32_t>(what)];
  }
};

// Where the file is: the environment of the process under test. Without it a plan of the process's
// own is used.
inline constexpr const char* kPlanVariable = "ELIXIR_FAILING_CALLS";

// The plan of this process, where it is linked with the library or has it preloaded.
CallPlan& call_plan();

}  // namespace elixir::testing
