#include "tests/failing_calls/planned_daemon.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

#include "base/check.h"
#include "base/clock.h"
#include "base/fd.h"
#include "tests/support/every_case.h"
#include "tests/support/patience.h"

namespace elixir::testing {
namespace {

constexpr uint64_t kMostChosen = 12;

constexpr std::array<const char*, kCalls> kNames = {
    "accept4",    "F_ADD_SEALS", "operator new",   "F_DUPFD_CLOEXEC", "epoll_ctl",
    "epoll_wait", "eventfd",     "fallocate",      "fsync",           "ftruncate",
    "futex",      "madvise",     "malloc",         "memfd_create",    "mkdirat",
    "mmap",       "open",        "SO_PEERPIDFD",   "pidfd_open",      "poll",
    "pread",      "pwrite",      "read",           "recvmsg",         "renameat2",
    "sendmsg",    "socket",      "pthread_create", "unlinkat",        "write"};

}  // namespace

std::string describe(const FailingCall& failing, uint64_t at) {
  const std::string how = failing.way == Way::kShort                ? "cut short"
                          : failing.way == Way::kWithoutDescriptors ? "without its descriptors"
                          : failing.way == Way::kLeak               ? "that leaks"
                                                      : std::strerror(failing.failure);
  return fmt::format("{} number {}{}: {}", kNames[static_cast<uint32_t>(failing.call)], at,
                     failing.maker == Maker::kLibzmq ? " by libzmq" : "", how);
}

bool passes_by_itself(const FailingCall& failing) {
  if (failing.way != Way::kError) return false;
  return failing.failure == EINTR || failing.failure == ECONNABORTED ||
         (failing.failure == EAGAIN && failing.call != Call::kThread);
}

// What elixird reads of other elixirds and of the machine differs from start to start.
bool is_steady(Call call) {
  return call != Call::kOpen && call != Call::kEpollWait && call != Call::kFutex &&
         call != Call::kPoll && call != Call::kRead && call != Call::kReceive &&
         call != Call::kWrite;
}

void only_count(CallPlan* plan) {
  plan->at = 0;
  plan->lasting = false;
  plan->every = false;
  plan->failed = 0;
  for (auto& of_maker : plan->made) {
    for (auto& count : of_maker) count = 0;
  }
}

void arm(CallPlan* plan, const FailingCall& failing, uint64_t at) {
  only_count(plan);
  plan->call = failing.call;
  plan->maker = failing.maker;
  plan->way = failing.way;
  plan->failure = failing.failure;
  plan->at = at;
}

std::vector<uint64_t> chosen(uint64_t made) {
  const uint64_t count = every_case() ? made : std::min(made, kMostChosen);
  std::vector<uint64_t> numbers;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t even = 1 + i * (made - 1) / std::max<uint64_t>(1, count - 1);
    numbers.push_back(i < count / 2 ? i + 1 : even);
  }
  return numbers;
}

PlannedDaemon::PlannedDaemon(const FailingCall& failing, uint64_t at) {
  const std::string path = folder_.path() + "/plan";
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ELIXIR_CHECK(::ftruncate(file.get(), sizeof(CallPlan)) == 0, "ftruncate");
  void* const place =
      ::mmap(nullptr, sizeof(CallPlan), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  ELIXIR_CHECK(place != MAP_FAILED, "mmap");
  plan_ = new (place) CallPlan;
  if (at > 0) arm(plan_, failing, at);
  const char* const asan_options = std::getenv("ASAN_OPTIONS");
  process_ = std::make_unique<DaemonProcess>(
      std::vector<std::string>{"--workers", "1"}, "",
      std::vector<std::string>{"env", std::string(kPlanVariable) + "=" + path,
                               "LD_PRELOAD=" FAILING_CALLS_LIBRARY,
                               // The sanitizer wants to be the first library.
                               fmt::format("ASAN_OPTIONS={}:verify_asan_link_order=0",
                                           asan_options == nullptr ? "" : asan_options)});
}

PlannedDaemon::~PlannedDaemon() {
  process_.reset();
  ::munmap(plan_, sizeof *plan_);
}

Status judge_reason(const Status& status, const FailingCall& failing) {
  const auto says = [&](const char* text) {
    return status.message().find(text) != std::string::npos;
  };
  const char* const cause = failing.way == Way::kShort ? "a packet larger"
                            : failing.way == Way::kWithoutDescriptors
                                ? "did not all fit"
                                : std::strerror(failing.failure);
  if (passes_by_itself(failing)) return error(Code::kInternal, "it ended: {}", status.message());
  if (!says(cause)) return error(Code::kInternal, "it does not say why: {}", status.message());
  if (failing.failure == EMFILE && (!says("ulimit -n") || says("smaller model"))) {
    return error(Code::kInternal, "it does not say what mends it: {}", status.message());
  }
  return Status();
}

Holding holding(pid_t pid) { return {open_descriptors(pid), mapped_memfds(pid)}; }

Holding holding_at_rest(pid_t pid) {
  constexpr double kRestS = 0.5;
  Holding least = holding(pid);
  // cannot fail by chance: more than it holds at rest only allows more afterwards.
  for (int64_t since_ns = monotonic_ns(); seconds_since(since_ns) < kRestS; ::usleep(5000)) {
    const Holding now = holding(pid);
    if (now.descriptors == least.descriptors && now.memfds == least.memfds) continue;
    least = now;
    since_ns = monotonic_ns();
  }
  return least;
}

Status gives_back(pid_t pid, const Holding& before, double limit_s) {
  Holding now;
  const bool given_back = test::eventually(
      [&] {
        now = holding(pid);
        return now.descriptors <= before.descriptors && now.memfds <= before.memfds;
      },
      limit_s);
  if (given_back) return Status();
  return error(Code::kInternal, "it holds {} descriptors and {} memfds, and held {} and {}",
               now.descriptors, now.memfds, before.descriptors, before.memfds);
}

}  // namespace elixir::testing
