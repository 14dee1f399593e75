#include "daemon/neighbours.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <iterator>
#include <vector>

#include "base/processors.h"
#include "tests/support/matchers.h"
#include "tests/support/patience.h"

namespace elixir::daemon {
namespace {

constexpr const char* kName = "elixir-standin";

// A process of that name that waits, bound to the processors, until it is destroyed.
class StandIn {
 public:
  explicit StandIn(const std::vector<int>& processors) {
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      bind_this_thread(processors);
      ::prctl(PR_SET_NAME, kName);
      for (;;) ::pause();
    }
  }
  ~StandIn() {
    kill();
    ::waitpid(pid_, nullptr, 0);
  }
  StandIn(const StandIn&) = delete;
  pid_t pid() const { return pid_; }
  void kill() const { ::kill(pid_, SIGKILL); }

 private:
  pid_t pid_ = -1;
};

// How many processors the process shares with this one, once it has its name; -1: it is not among
// those that do.
int64_t shared_with(const StandIn& other) {
  for (const Neighbour& one : neighbours(kName)) {
    if (one.pid == other.pid()) return one.processors;
  }
  return -1;
}

TEST(Neighbours, AreThoseOfTheNameThatShareProcessors) {
  const std::vector<int> usable = usable_processors();
  const StandIn all(usable), one({usable.back()});
  EXPECT_TRUE(test::eventually([&] { return shared_with(all) == std::ssize(usable); }));
  EXPECT_TRUE(test::eventually([&] { return shared_with(one) == 1; }));
  for (const Neighbour& other : neighbours("elixir-nobody")) ADD_FAILURE() << other.pid;
}

TEST(Neighbours, AreNoneWithProcessorsOfTheirOwn) {
  const std::vector<int> usable = usable_processors();
  if (usable.size() < 2) GTEST_SKIP() << "one processor";
  const StandIn first({usable[0]}), second({usable[1]});
  EXPECT_TRUE(test::eventually([&] { return shared_with(first) + shared_with(second) == 2; }));
  bind_this_thread({usable[1]});
  EXPECT_EQ(shared_with(first), -1);
  EXPECT_EQ(shared_with(second), 1);
  bind_this_thread(usable);
}

TEST(Neighbours, AreNoneThatHaveEnded) {
  const StandIn other(usable_processors());
  EXPECT_TRUE(test::eventually([&] { return shared_with(other) > 0; }));
  other.kill();
  EXPECT_TRUE(test::eventually([&] { return shared_with(other) == -1; })) << "nobody has reaped it";
}

}  // namespace
}  // namespace elixir::daemon
