#include "base/run_main.h"

#include <errno.h>  // program_invocation_short_name
#include <fcntl.h>
#include <limits.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <system_error>

#include "base/check.h"
#include "base/error.h"
#include "base/output_lost.h"
#include "base/printable.h"

namespace elixir {
namespace {

constexpr int kExhausted = static_cast<int>(Code::kResourceExhausted);
constexpr const char* kNoMemory =
    "no memory left: raise the limit (ulimit -v, ulimit -d, the cgroup's memory) or end other "
    "programs";
constexpr const char* kNoThreads =
    "cannot start a thread: raise the limits (ulimit -u, ulimit -v, TasksMax in the unit) or end "
    "other programs";

// Allocates nothing, so that lack of memory can be told.
void tell(const char* program, const char* text) {
  std::fprintf(stderr, "%s: %s\n", program, text);
}

bool lacks_threads(const std::exception& failure) {
  const auto* const system = dynamic_cast<const std::system_error*>(&failure);
  return system != nullptr && system->code().value() == EAGAIN;
}

// An exception that no block catches, such as one of a library's thread, or of LibTorch while it is
// loaded.
[[noreturn]] void end_uncaught() {
  try {
    if (std::current_exception() != nullptr) std::rethrow_exception(std::current_exception());
  } catch (const std::bad_alloc&) {
    tell(program_invocation_short_name, kNoMemory);
    ::_exit(kExhausted);
  } catch (const std::exception& failure) {
    if (lacks_threads(failure)) {
      tell(program_invocation_short_name, kNoThreads);
      ::_exit(kExhausted);
    }
    std::fprintf(stderr, "%s: uncaught exception: %s\n", program_invocation_short_name,
                 failure.what());
  } catch (...) {
  }
  std::abort();
}

// Initializers of shared libraries allocate, and oneMKL asks for the working directory. So this
// runs before them, where only plain calls of the system work, and once more in run_main().
void begin(int argc, char** argv, char**) {
  std::set_terminate(end_uncaught);
  char path[PATH_MAX];
  if (::syscall(SYS_getcwd, path, sizeof path) >= 0 || errno != ENOENT) return;
  const char* const program = argc > 0 ? argv[0] : "";
  const char* const slash = std::strrchr(program, '/');
  for (const char* const part : {slash == nullptr ? program : slash + 1,
                                 ": the working directory was removed: cd to another folder\n"}) {
    ::syscall(SYS_write, STDERR_FILENO, part, std::strlen(part));
  }
  ::_exit(static_cast<int>(Code::kBadInput));
}

// A sanitizer's own library is not ready so early: there run_main() is the first to call it.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define ELIXIR_BEGINS_LATE
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ELIXIR_BEGINS_LATE
#endif
#ifndef ELIXIR_BEGINS_LATE
using Begin = void(int, char**, char**);
[[gnu::section(".preinit_array"), gnu::used]] Begin* const before_libraries = begin;
#endif

// A descriptor that the program's starter had closed has nobody who waits for the output, even
// where there is no /dev/null (settle_inherited).
bool output_is_wanted() {
  const int flags = ::fcntl(STDOUT_FILENO, F_GETFL);
  return flags >= 0 && (flags & O_PATH) == 0;
}

int with_output(const char* program, int code) {
  const bool now = std::fflush(stdout) != 0;
  if ((!now && std::ferror(stdout) == 0) || !output_is_wanted()) return code;
  // An earlier flush has not kept its cause, so another write asks for it.
  const int cause = now || ::write(STDOUT_FILENO, "\n", 1) < 0 ? errno : 0;
  const Status status = output_lost(cause);
  tell(program, status.message().c_str());
  return code == 0 ? status.exit_code() : code;
}

int run_caught(const char* program, const std::function<int()>& run) {
  try {
    return run();
  } catch (const std::bad_alloc&) {
    tell(program, kNoMemory);
    return kExhausted;
  } catch (const std::exception& failure) {
    const Status status = status_of(failure);
    tell(program, printable(status.message()).c_str());
    return status.exit_code();
  }
}

}  // namespace

Status status_of(const std::exception& failure) {
  if (dynamic_cast<const std::bad_alloc*>(&failure) != nullptr) {
    return Status(Code::kResourceExhausted, kNoMemory);
  }
  if (lacks_threads(failure)) return Status(Code::kResourceExhausted, kNoThreads);
  const auto* const known = dynamic_cast<const Error*>(&failure);
  if (known != nullptr) return Status(known->code(), known->what());
  const std::string text = failure.what();
  if (text.find("DefaultCPUAllocator: ") != std::string::npos) {
    return Status(Code::kResourceExhausted, kNoMemory);
  }
  return Status(Code::kInternal, text.substr(0, text.find('\n')));  // LibTorch adds a stack
}

int run_main(const char* program, const std::function<int()>& run) {
  ELIXIR_CHECK(run != nullptr, "{} has nothing to run", program);
  std::string name = program;
  char* const words[] = {name.data(), nullptr};
  begin(1, const_cast<char**>(words), nullptr);
  return with_output(program, run_caught(program, run));
}

}  // namespace elixir
