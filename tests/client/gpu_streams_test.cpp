// Threads with CUDA streams of their own. Needs a GPU, or tests/fake_cuda, whose vector clocks find
// a wait between streams that is left out.

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <thread>
#include <vector>

#include "base/throw_error.h"
#include "client/elixir.h"
#include "client/torch_device/cuda_library.h"
#include "tests/client/first_operator.h"
#include "tests/client/small_training.h"
#include "tests/client/with_elixird.h"
#include "tests/support/matchers.h"
#include "tests/support/patience.h"
#include "tests/support/thrown.h"

namespace elixir::test {
namespace {

constexpr int kThreads = 3;

class GpuStreams : public WithElixird {
 protected:
  void SetUp() override { throw_if_error(prepare_cuda(at::kCUDA)); }
  // Where the fake is: none.
  void TearDown() override {
    const auto races = reinterpret_cast<uint64_t (*)()>(dlsym(RTLD_DEFAULT, "fake_cuda_races"));
    EXPECT_EQ(races == nullptr ? 0u : races(), 0u);
  }

  static Options options_of(uint32_t blocks) {
    Options options;
    options.device = "cuda";
    options.layout = {.chunk_numel = kLayerNumel, .rcache_blocks = blocks};
    return options;
  }

  // `body(thread)` in kThreads threads at a time, each with a stream of its own.
  template <class Body>
  static void in_streams(Body body) {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&body, thread] {
        const c10::impl::VirtualGuardImpl cuda(at::kCUDA);
        const c10::StreamGuard own(cuda.getStreamFromGlobalPool(c10::Device(at::kCUDA, 0)));
        const at::NoGradGuard no_grad;
        body(thread);
        cuda.synchronizeStream(cuda.getStream(c10::Device(at::kCUDA, 0)));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
};

// Thread 1 waits for a block. Thread 0 brings its chunk in, in another stream, and thread 2 keeps
// thread 1 back until then: it finds the chunk there, and its stream has waited for nothing.
TEST_F(GpuStreams, WhoWaitedForABlockFindsWhatAnotherStreamBrought) {
  Stack model(kThreads);
  AdamW optimizer(model, AdamWOptions{}, options_of(/*blocks=*/2));
  const at::Tensor x = optimizer.to_device(at::ones({4, kLayerSide}));
  std::atomic<bool> full = false, calls = false, called = false, read = false;
  std::atomic<pid_t> reader = 0, caller = 0;
  const auto wait_for = [](const std::atomic<bool>& flag) {
    EXPECT_TRUE(eventually([&] { return flag.load(); }));
  };
  const auto wait_for_sleep = [](const std::atomic<pid_t>& thread) {
    EXPECT_TRUE(eventually([&] { return thread != 0 && asleep(thread); }));
  };
  at::Tensor y;
  in_streams([&](int thread) {
    if (thread == 0) {
      std::optional<Gathered> gathered_here = gathered({model.layers[0]->weight});
      const FirstOperator holds([&] {
        full = true;
        wait_for_sleep(reader);
        calls = true;
        wait_for_sleep(caller);
        gathered_here.reset();
        gathered_here.emplace(gathered({model.layers[2]->weight}));
      });
      (void)model.layers[1](x);
      wait_for(called);
      wait_for(read);
    } else if (thread == 1) {
      wait_for(full);
      reader = gettid();
      y = model.layers[2](x);
      read = true;
    } else {
      wait_for(calls);
      caller = gettid();
      expect_thrown(Code::kInvalidArgument, {"elixir::gathered()"}, [&] { optimizer.step(); });
      called = true;
    }
  });
  EXPECT_TRUE(at::equal(y.cpu(), model.layers[2](x).cpu()));
}

// Each layer in a block that a thread before may have filled, and a block fewer than threads.
TEST_F(GpuStreams, EvaluationsWhoseBlocksRunOutAreInOrder) {
  Stack model(kLayers);
  AdamW optimizer(model, AdamWOptions{}, options_of(kThreads - 1));
  const at::Tensor x = optimizer.to_device(at::ones({4, kLayerSide}));
  const at::Tensor expected = model.forward(x, in_order()).detach().cpu();
  in_streams([&](int) {
    for (int i = 0; i < 20; ++i) {
      const at::Tensor y = model.forward(x, in_order());
      EXPECT_TRUE(at::equal(y.cpu(), expected));
    }
  });
}

TEST_F(GpuStreams, InputsAndStepsOfSeveralThreadsDoNotMeet) {
  Stack model(kLayers);
  AdamW optimizer(model, AdamWOptions{}, options_of(4));
  const at::Tensor x = optimizer.to_device(at::ones({4, kLayerSide}));
  std::atomic<int> running = kThreads;
  in_streams([&](int thread) {
    if (thread == 0) {  // trains, as long as the others bring inputs
      const at::AutoGradMode grad(true);
      while (running > 1) {
        optimizer.zero_grad();
        const at::Tensor loss = model.forward(x, in_order()).square().mean();
        loss.backward();
        optimizer.step(loss.detach());
      }
      return;
    }
    for (int i = 0; i < 200; ++i) {
      const at::Tensor values = at::full({1 << 12}, 1000.0f * static_cast<float>(thread) + i);
      const at::Tensor here = optimizer.to_device(values);
      if (i % 10 == 0) (void)model.forward(x, in_order());
      EXPECT_TRUE(at::equal(here.cpu(), values)) << "input " << i << " of thread " << thread;
    }
    --running;
  });
  EXPECT_GT(optimizer.stats().step, 0u);
}

}  // namespace
}  // namespace elixir::test
