// launch_adam gives the bits of the scalar reference.

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <thread>

#include "base/compute_type_names.h"
#include "base/processors.h"
#include "kernels/kernels.h"
#include "tests/kernels/adam_steps.h"
#include "tests/kernels/device_array.h"
#include "tests/optim_cpu/states.h"

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

// [at, at + numel) of `states` updated on the device.
void update_on_device(DeviceStates& device, States& states, size_t at, size_t numel,
                      const AdamStep& step, const Stream& stream) {
  device.upload(states, stream);
  const int n_grads = static_cast<int>(states.grads.size());
  const Status status = launch_adam(device.span(n_grads, at, numel), step, stream);
  ASSERT_TRUE(status.ok()) << status.message();
  device.download(states, stream);
  stream.wait();
}

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
    update_on_device(device, states, 0, block_numel, step, stream);
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

// Every element once, none outside the span.
TEST(AdamOnGpu, AnyLengthAndEightGradients) {
  constexpr size_t kBeyond = 64, kLongest = 12345;
  const Stream stream;
  for (ComputeType type : optim::kTypes) {
    DeviceStates device(type, kLongest + 2 * kBeyond, kGradsMax);
    for (size_t numel : {0, 1, 3, 4, 5, 7, 8, 9, 1023, 1024, 2047, 2048, 2049, 4099, 12345}) {
      for (int n_grads = 1; n_grads <= kGradsMax; ++n_grads) {
        const size_t at = 8 * (numel % 3);  // whatever the type, a multiple of 16 bytes
        Random random(numel * 10 + static_cast<size_t>(n_grads));
        States states(type, numel + 2 * kBeyond, n_grads);
        states.fill(random);
        States expected = states;
        const AdamStep step = optim::make_adam_step({}, 5, 0.5);
        update_on_device(device, states, at, numel, step, stream);
        optim::adam_update(Isa::kScalar, expected.span(at, numel), step);
        EXPECT_TRUE(states.same_bits(expected))
            << compute_type_name(type) << " " << numel << " elements, " << n_grads << " gradients";
      }
    }
  }
}

TEST(AdamOnGpu, TakesTheSumOverRounds) {
  const Stream stream;
  for (ComputeType type : optim::kTypes) {
    for (size_t numel : {size_t{5}, size_t{4099}, test_numel(1 << 20)}) {
      Random random(numel);
      std::vector<float> sum(numel);
      for (float& value : sum) value = optim::bits_float(random.float_of_any_kind());
      States states(type, numel, 1);
      states.fill(random);
      States expected = states;
      const AdamStep step = optim::make_adam_step({}, 5, 0.5);
      UpdateSpan span = expected.span();
      span.grad_sum = sum.data();
      optim::adam_update(Isa::kScalar, span, step);
      const DeviceArray<float> device_sum(sum);
      DeviceStates device(type, numel, 1);
      device.upload(states, stream);
      UpdateSpan device_span = device.span(1, 0, numel);
      device_span.grad_sum = device_sum.data();
      device_span.grads = nullptr;
      ASSERT_TRUE(launch_adam(device_span, step, stream).ok());
      device.download(states, stream);
      stream.wait();
      EXPECT_TRUE(states.same_bits(expected)) << compute_type_name(type) << " " << numel;
    }
  }
}

TEST(AdamOnGpu, SixtyFourGradients) {
  const Stream stream;
  for (ComputeType type : optim::kTypes) {
    Random random(4);
    States states(type, 5001, optim::kMaxGrads);
    states.fill(random);
    States expected = states;
    DeviceStates device(type, states.numel, optim::kMaxGrads);
    const AdamStep step = optim::make_adam_step({}, 2, 1.0 / optim::kMaxGrads);
    update_on_device(device, states, 0, states.numel, step, stream);
    optim::adam_update(Isa::kScalar, expected.span(), step);
    EXPECT_TRUE(states.same_bits(expected)) << compute_type_name(type);
  }
}

// Negative control: gradients summed in another order, and one beta that is not the reference's.
TEST(AdamOnGpu, AnotherSumOrConstantIsSeen) {
  const Stream stream;
  for (ComputeType type : optim::kTypes) {
    Random random(8);
    States states(type, 5001, 3);
    states.fill(random);
    States expected = states, reversed = states, other_beta = states;
    std::swap(reversed.grads.front(), reversed.grads.back());
    DeviceStates device(type, states.numel, 3);
    const AdamStep step = optim::make_adam_step({}, 5, 0.5);
    AdamStep other = step;
    other.beta2 = std::nextafter(step.beta2, 0.0f);
    optim::adam_update(Isa::kScalar, expected.span(), step);
    update_on_device(device, states, 0, states.numel, step, stream);
    update_on_device(device, reversed, 0, states.numel, step, stream);
    update_on_device(device, other_beta, 0, states.numel, other, stream);
    EXPECT_TRUE(states.same_bits(expected)) << compute_type_name(type);
    EXPECT_FALSE(reversed.same_bits(expected)) << compute_type_name(type);
    EXPECT_FALSE(other_beta.same_bits(expected)) << compute_type_name(type);
  }
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
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_NE(status.message().find("CUDA failed to run the Adam update of 100 elements: "),
            std::string::npos)
      << status.message();

  EXPECT_TRUE(launch_adam(device.span(1, 0, 100), step, captured).ok());
  captured.wait();
}

}  // namespace
}  // namespace elixir::kernels
