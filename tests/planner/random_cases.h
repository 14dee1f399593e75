#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <random>

#include "planner/models/transformer_config.h"
#include "planner/search/make_plan.h"
#include "tests/planner/gpt_profile.h"

namespace elixir::planner::testing {

// A model, a machine and a request, drawn at random. Equal seeds give equal cases.
struct RandomCase {
  TransformerConfig config;
  GptStep step;
  ModelProfile profile;
  Machine machine;  // nodes of eight GPUs, or fewer GPUs on one node
  PlanRequest request;
};

class RandomCases {
 public:
  explicit RandomCases(uint64_t seed) : random_(seed) {}

  RandomCase next() {
    RandomCase one;
    one.config = model();
    one.step = {.batch = uint64_t{1} << below(5),
                .seq = uint64_t{128} << below(5),
                .checkpointed = below(4) != 0,
                .type = below(4) == 0 ? ComputeType::kFp32 : ComputeType::kBf16};
    one.profile = gpt_profile(one.config, one.step);
    freeze(&one.profile);
    one.machine = machine(one.profile);
    constexpr std::optional<UpdateMode> kTimes[] = {{},
                                                    {},
                                                    UpdateMode::kDeferred,
                                                    UpdateMode::kImmediate,
                                                    UpdateMode::kSync,
                                                    UpdateMode::kEarly};
    one.request.update = kTimes[below(6)];
    if (one.step.type != ComputeType::kFp32 && below(3) == 0) one.profile.type = ComputeType::kFp16;
    constexpr uint32_t kPasses[] = {1, 1, 1, 2, 3, 16};
    one.request.accumulate = kPasses[below(6)];
    one.request.host_ahead = below(8) != 0;
    one.request.copies_at_once = below(8) == 0;
    return one;
  }

  uint64_t below(uint64_t n) { return random_() % n; }
  // Evenly distributed in the logarithm.
  double between(double low, double high) {
    const double share = static_cast<double>(random_() >> 11) * 0x1p-53;
    return low * std::pow(high / low, share);
  }

 private:
  // A Llama, Mistral, GPT-2 or OPT, with grouped queries, tied or not, 1 to 32 layers.
  TransformerConfig model() {
    TransformerConfig config;
    config.name = "random";
    constexpr Family kFamilies[] = {Family::kLlama, Family::kLlama, Family::kGpt2, Family::kOpt};
    config.family = kFamilies[below(4)];
    constexpr int64_t kVocabularies[] = {257, 32000, 50257, 128256, 262144};
    config.vocabulary = kVocabularies[below(5)];
    config.context = 4096;
    config.heads = int64_t{1} << (2 + below(5));
    config.width = config.heads * (below(2) == 0 ? 64 : 128);
    config.kv_heads = config.family == Family::kLlama ? config.heads >> below(3) : config.heads;
    config.layers = 1 + static_cast<int64_t>(below(32));
    config.mlp_width = config.width * static_cast<int64_t>(2 + below(3));
    config.tied = config.family != Family::kLlama || below(3) == 0;
    return config;
  }

  // Freezes parameters of one model in three: all except the last ones, or some here and there.
  void freeze(ModelProfile* profile) {
    if (below(3) != 0) return;
    const size_t n = profile->params.size();
    const bool scattered = below(2) == 0;
    const size_t trained = 1 + below(n);
    for (size_t i = 0; i + 1 < n; ++i) {
      profile->params[i].frozen = scattered ? below(n) >= trained : i + trained < n;
    }
  }

  // GPU memory ranges from hardly more than the activations to all states.
  Machine machine(const ModelProfile& profile) {
    Machine machine;
    constexpr uint32_t kGpus[] = {1, 1, 1, 2, 4, 8, 16, 64, 256, 1024};
    machine.gpus = kGpus[below(10)];
    machine.nodes = machine.gpus > 8 ? machine.gpus / 8 : 1;
    const double frozen = static_cast<double>(profile.total_numel() - profile.trained_numel());
    const double states =
        16.0 * static_cast<double>(profile.trained_numel()) + profile.dtype_bytes() * frozen;
    machine.gpu_memory_bytes =
        static_cast<uint64_t>(1.25 * static_cast<double>(profile.activation_bytes) +
                              static_cast<double>(profile.buffer_bytes) +
                              states * between(0.03, 2) / std::sqrt(machine.gpus));
    machine.host_memory_bytes =
        static_cast<uint64_t>(states * between(0.8, 12) *
                              (machine.gpus > 1 ? std::sqrt(machine.gpus) : 1) / machine.nodes);
    machine.h2d_gb_s = machine.gpus * between(4, 60);
    machine.d2h_gb_s = machine.h2d_gb_s * between(0.5, 1.2);
    machine.joint_gb_s =
        below(2) == 0 ? 0 : (machine.h2d_gb_s + machine.d2h_gb_s) * between(0.55, 1);
    machine.g2g_gb_s = between(3, 300);
    machine.cpu_update_gparam_s = machine.nodes * between(0.5, 12);
    machine.gpu_update_gparam_s = machine.gpus * between(10, 100);
    machine.dram_gb_s = machine.nodes * 100.0;
    machine.gpu_tflops = between(10, 800);
    if (below(2) == 0) machine.gpu_fp32_tflops = machine.gpu_tflops / between(1, 16);
    machine.paper_parameter_ps = below(2) == 0 ? 0 : between(1, 400);
    return machine;
  }

  std::mt19937_64 random_;
};

}  // namespace elixir::planner::testing
