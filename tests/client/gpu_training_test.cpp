// Training on a CUDA device: the bits of LibTorch's gradients with the scalar reference, whatever
// the plan. Needs a GPU.

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/compute_type_names.h"
#include "base/throw_error.h"
#include "client/torch_device/cuda_library.h"
#include "tests/client/small_training.h"
#include "tests/client/with_elixird.h"

namespace elixir::test {
namespace {

class GpuTraining : public WithElixird {
 protected:
  void SetUp() override {
    // cuBLAS reads it once, before its first work.
    ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 1);
    throw_if_error(prepare_cuda(at::kCUDA));  // the reference moves to the GPU before any optimizer
    at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
  }

  static TrainingPlan plan_of(ComputeType dtype) {
    TrainingPlan plan;
    plan.device = "cuda";
    plan.dtype = dtype;
    plan.steps = 20;
    return plan;
  }
};

// Runs without a GPU, too, over tests/fake_cuda, where torch's kernels compute nothing: every test
// here begins as this one does.
TEST_F(GpuTraining, StartsAndReachesTheDevice) {
  TrainingPlan plan = plan_of(ComputeType::kBf16);
  plan.steps = 3;
  train_with_scalar_reference(plan);
  plan.chunk_numel = largest_parameter_numel();
  plan.clip_norm = 1;  // norms of two chunks and more
  for (const double share : {0.0, 0.5, 1.0}) {
    plan.gpu_state_share = share;
    EXPECT_EQ(train_through_elixird(plan).weights.size(),
              train_with_scalar_reference(plan).weights.size());
  }
}

TEST_F(GpuTraining, EveryPlanGivesTheBitsOfLibTorchWithTheScalarReference) {
  for (const ComputeType dtype : {ComputeType::kFp32, ComputeType::kBf16}) {
    TrainingPlan plan = plan_of(dtype);
    const TrainingOutcome reference = train_with_scalar_reference(plan);
    plan.chunk_numel = largest_parameter_numel();
    for (const double share : {0.0, 0.25, 0.5, 1.0}) {
      for (const uint32_t blocks : {2u, 4u, 100u}) {
        plan.gpu_state_share = share;
        plan.rcache_blocks = blocks;
        SCOPED_TRACE(
            fmt::format("{}, share {}, {} blocks", compute_type_name(dtype), share, blocks));
        expect_equal_weights(train_through_elixird(plan), reference);
      }
    }
  }
}

TEST_F(GpuTraining, ClippingRoundsAndImmediateUpdatesGiveTheBitsOfTheScalarReference) {
  for (const uint32_t accumulate : {1u, 2u}) {
    TrainingPlan plan = plan_of(ComputeType::kBf16);
    plan.accumulate = accumulate;
    plan.chunk_numel = largest_parameter_numel();
    const TrainingOutcome unclipped = train_with_scalar_reference(plan);
    plan.update = UpdateMode::kImmediate;
    expect_equal_weights(train_through_elixird(plan), unclipped);
    plan.update = UpdateMode::kDeferred;
    plan.clip_norm = unclipped.grad_norms[plan.steps / 2];
    const TrainingOutcome reference = train_with_scalar_reference(plan);
    for (const double share : {0.0, 0.5, 1.0}) {
      SCOPED_TRACE(fmt::format("accumulate {}, share {}", accumulate, share));
      plan.gpu_state_share = share;
      const TrainingOutcome ours = train_through_elixird(plan);
      expect_equal_weights(ours, reference);
      EXPECT_EQ(ours.grad_norms, reference.grad_norms);
    }
  }
}

// Clipped in some steps and not in others.
TEST_F(GpuTraining, EarlyUpdatesSwingChunksAndLongParametersGiveTheBitsOfTheScalarReference) {
  for (const ComputeType dtype : {ComputeType::kFp32, ComputeType::kBf16}) {
    TrainingPlan plan = plan_of(dtype);
    plan.chunk_numel = largest_parameter_numel();
    plan.clip_norm = train_with_scalar_reference(plan).grad_norms[plan.steps / 2];
    const TrainingOutcome reference = train_with_scalar_reference(plan);
    plan.update = UpdateMode::kEarly;
    plan.rcache_blocks = 8;
    for (const uint64_t chunk_numel : {largest_parameter_numel(), largest_parameter_numel() / 2}) {
      for (const uint32_t stride : {0u, 1u, 2u}) {
        for (const uint32_t slots : {1u, 100u}) {
          plan.chunk_numel = chunk_numel;
          plan.swing_stride = stride;
          plan.spare_slots = slots;
          SCOPED_TRACE(fmt::format("{}, {} elements a chunk, stride {}, {} slots",
                                   compute_type_name(dtype), chunk_numel, stride, slots));
          const TrainingOutcome ours = train_through_elixird(plan);
          EXPECT_EQ(ours.plan.n_swing_chunks > 0, stride > 0);
          EXPECT_EQ(ours.plan.long_blocks > 0, chunk_numel < largest_parameter_numel());
          expect_equal_weights(ours, reference);
        }
      }
    }
  }
}

TEST_F(GpuTraining, Gpt2SmallInBf16HasEqualBitsForAllSharesAndBlocks) {
  TrainingPlan plan = plan_of(ComputeType::kBf16);
  plan.model = "gpt2-small";
  plan.seq = 256;
  plan.batch = 4;
  plan.lr = 1e-4;
  const TrainingOutcome reference = train_with_scalar_reference(plan);
  for (const auto& [share, blocks] :
       {std::pair{0.0, 2u}, {0.0, 0u}, {0.3, 3u}, {0.7, 1000u}, {1.0, 0u}}) {
    plan.gpu_state_share = share;
    plan.rcache_blocks = blocks;
    SCOPED_TRACE(fmt::format("share {}, {} blocks", share, blocks));
    expect_equal_weights(train_through_elixird(plan), reference);
  }
  plan.update = UpdateMode::kEarly;
  plan.gpu_state_share = 0;
  plan.rcache_blocks = 0;
  for (const uint32_t stride : {0u, 2u}) {
    plan.swing_stride = stride;
    SCOPED_TRACE(fmt::format("early updates, stride {}", stride));
    expect_equal_weights(train_through_elixird(plan), reference);
  }
}

}  // namespace
}  // namespace elixir::test
