// launch_adam gives the bits of the scalar reference.

#include <atomic>
#include <thread>

#include "base/compute_type_names.h"
#include "base/processors.h"
#include "kernels/kernels.h"
#include "tests/kernels/adam_cases.h"
#include "tests/kernels/device_array.h"
#include "tests/optim_cpu/states.h"
#include "tests/support/matchers.h"

namespace elixir::kernels {
namespace {

using optim::AdamStep;
using optim::Isa;
using optim::Random;
using optim::States;
using optim::UpdateSpan;

// The arrays of a States in device memory.
class DeviceStates {
 public:
  DeviceStates(ComputeType type, size_t numel, int n_grads)
      : type_(type),
        param_(numel * element_bytes(type)),
        master_(numel * master_bytes(type)),
        exp_avg_(numel),
        exp_avg_sq_(numel) {
    for (int i = 0; i < n_grads; ++i) grads_.emplace_back(numel * element_bytes(type));
  }

  void upload(const States& states, cudaStream_t stream) {
    param_.upload(states.param, stream);
    master_.upload(states.master, stream);
    exp_avg_.upload(states.exp_avg, stream);
    exp_avg_sq_.upload(states.exp_avg_sq, stream);
    for (size_t i = 0; i < states.grads.size(); ++i) grads_[i].upload(states.grads[i], stream);
  }

  void download(States& states, cudaStream_t stream) const {
    param_.download(states.param, stream);
    master_.download(states.master, stream);
    exp_avg_.download(states.exp_avg, stream);
    exp_avg_sq_.download(states.exp_avg_sq, stream);
  }

  // The gradients' addresses stay valid until the next call.
  UpdateSpan span(int n_grads, size_t at, size_t numel) {
    grad_pointers_.clear();
    for (const DeviceArray<std::byte>& grad : grads_) {
      grad_pointers_.push_back(grad.data() + at * element_bytes(type_));
    }
    return {.type = type_,
            .n_grads = n_grads,
            .grads = grad_pointers_.data(),
            .param = param_.data() + at * element_bytes(type_),
            .master = master_.data() + at * master_bytes(type_),
            .moments = {exp_avg_.data() + at, exp_avg_sq_.data() + at},
            .numel = numel};
  }

 private:
  ComputeType type_;
  DeviceArray<std::byte> param_, master_;
  DeviceArray<float> exp_avg_, exp_avg_sq_;
  std::vector<DeviceArray<std::byte>> grads_;
  std::vector<const void*> grad_pointers_;
};

constexpr int kGradsMax = 8;

// Blocks of tuples, on a thread and a stream of their own.
void check_blocks(ComputeType type, size_t blocks, size_t block_numel, std::atomic<size_t>& next,
                  std::atomic<size_t>& unequal) {
  const std::vector<AdamStep> steps = optim::adam_steps();
  const Stream stream;
  DeviceStates device(type, block_numel, kGradsMax);
  for (size_t block = next++; block < blocks; block = next++) {
    Random random(block * 3 + static_cast<uint64_t>(type));
    // One block in four sums the gradients of 2 to 8 ranks.
    const int n_grads = block % 4 == 0 ? 2 + static_cast<int>(random.below(kGradsMax - 1)) : 1;
    States states(type, block_numel, n_grads);
    states.fill(random);
    States expected = states;
    const AdamStep& step = steps[block % steps.size()];
    device.upload(states, stream);
    EXPECT_TRUE(launch_adam(device.span(n_grads, 0, block_numel), step, stream).ok());
    device.download(states, stream);
    stream.wait();
    optim::adam_update(Isa::kScalar, expected.span(), step);
    if (!states.same_bits(expected)) ++unequal;
  }
}

TEST(AdamOnGpu, HundredMillionTuplesOfEachTypeHaveTheScalarReferencesBits) {
  constexpr size_t kBlockNumel = 1 << 18;
  const size_t blocks = test_numel(100'000'000) / kBlockNumel + 1;
  for (ComputeType type : optim::kTypes) {
    std::atomic<size_t> next = 0, unequal = 0;
    std::vector<std::thread> threads;
    for (size_t i = 0; i < usable_processors().size(); ++i) {
      threads.emplace_back([&] { check_blocks(type, blocks, kBlockNumel, next, unequal); });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(unequal, 0U) << compute_type_name(type) << ": of " << blocks << " blocks of "
                           << kBlockNumel << " tuples";
  }
}

// A span of `states`, in device memory of its own.
void update_states(States& states, size_t at, size_t numel, const float* sum,
                   const AdamStep& step) {
  const Stream stream;
  const int n_grads = static_cast<int>(states.grads.size());
  DeviceStates device(states.type, states.numel, n_grads);
  DeviceArray<float> device_sum(numel + 1);
  if (sum != nullptr) device_sum.upload({sum, sum + numel}, stream);
  device.upload(states, stream);
  const UpdateSpan span = device.span(n_grads, at, numel);
  const float* const given = sum == nullptr ? nullptr : device_sum.data();
  const Status status = launch_adam(optim::span_of(span, given), step, stream);
  ASSERT_TRUE(status.ok()) << status.message();
  device.download(states, stream);
  stream.wait();
}

TEST(AdamOnGpu, AnyLengthOfGradientsOrOfTheirSumOverRounds) {
  std::vector<size_t> lengths = {0, 1, 3, 4, 5, 7, 8, 9, 1023, 1024, 2047, 2048, 2049, 4099, 12345};
  lengths.push_back(test_numel(1 << 20));
  optim::check_any_length(lengths, update_states);
}

TEST(AdamOnGpu, AnotherSumOrConstantIsSeen) {
  optim::check_another_sum_or_constant_is_seen(update_states);
}

// CUDA refuses work on the legacy stream while another is captured.
TEST(AdamOnGpu, ARefusedLaunchSaysSoAndLeavesNoErrorBehind) {
  const Stream captured;
  DeviceStates device(ComputeType::kBf16, 100, 1);
  const AdamStep step = optim::make_adam_step({}, 1, 1);
  must(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal));
  const Status status = launch_adam(device.span(1, 0, 100), step, cudaStreamLegacy);
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  cudaGraph_t graph = nullptr;
  (void)cudaStreamEndCapture(captured, &graph);
  if (graph != nullptr) must(cudaGraphDestroy(graph));
  (void)cudaGetLastError();
  expect_refused(status, Code::kInternal, {"CUDA failed to run the Adam update of 100 elements: "});
  EXPECT_TRUE(launch_adam(device.span(1, 0, 100), step, captured).ok());
  captured.wait();
}

}  // namespace
}  // namespace elixir::kernels
