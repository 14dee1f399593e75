// Children of a trainer. A program of its own: LibTorch's own ends of a process that has used its
// profiler hang in a child.

#include <ATen/ATen.h>
#include <sys/wait.h>
#include <torch/nn/modules/container/sequential.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>

#include "tests/client/small_training.h"
#include "tests/client/torch_ways.h"

namespace elixir::test {
namespace {

using torch::nn::Module;

class TorchFork : public WithElixird {};

enum class Leave { kExit, kQuickExit, kDestroy, kUse };

// What a child of fork() did with the parent's model and optimizer.
int child_of(Leave leave, Module& net, std::unique_ptr<AdamW>& optimizer,
             const std::function<void()>& forget_fixture) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    forget_fixture();  // which would stop the test's elixird at exit()
    ::alarm(20);       // a child that hangs ends by it
    if (leave == Leave::kQuickExit) ::_exit(7);
    if (leave == Leave::kDestroy) {
      optimizer.reset();
      ::_exit(7);
    }
    if (leave == Leave::kUse) {
      try {
        parameter(net, "0.weight").sum();
      } catch (const Error& failure) {
        const bool says = std::string(failure.what()).find("forked child") != std::string::npos;
        ::_exit(says ? 7 : 8);
      }
      ::_exit(9);
    }
    std::exit(7);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST_F(TorchFork, AForkedChildAndItsEnd) {
  // What collectives leave behind in a process must not be waited for by a child.
  run_elixir(kTwoRanksCollective, {}, [](Module& net, Trainer& t) { plain_steps(0, 1, net, t); });
  run_ranks(1, [&](const LaunchEnvironment& environment) {
    const auto net = small_net();
    Options options;
    options.environment = environment;
    auto optimizer = std::make_unique<AdamW>(*net, AdamWOptions{}, options);
    const auto train = [&] {
      net->as<torch::nn::SequentialImpl>()->forward(wave({6, 8}, 0)).square().mean().backward();
      optimizer->step();
    };
    train();
    for (const Leave leave : {Leave::kQuickExit, Leave::kExit, Leave::kDestroy, Leave::kUse}) {
      EXPECT_EQ(child_of(leave, *net, optimizer, [] { (void)daemon_.release(); }), 7);
      train();
      optimizer->synchronize();  // the session lives
    }
  });
}

}  // namespace
}  // namespace elixir::test
