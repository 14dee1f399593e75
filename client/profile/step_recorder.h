#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "client/profile/counted_memory.h"
#include "client/tensors/checkpoint.h"
#include "client/tensors/chunk_source.h"
#include "client/tensors/chunk_storage.h"
#include "client/tensors/interception.h"
#include "client/tensors/region_observer.h"
#include "planner/profile.h"

namespace elixir {

// A checkpointed region of the recorded step. Bytes are those that torch holds.
struct RecordedRegion {
  struct Run {
    uint32_t times = 0;  // 1: it is recorded
    planner::OperatorRange steps = {};
    bool reads = false;  // an operator reads parameters; else `steps` is empty
    uint64_t begin_bytes = 0, end_bytes = 0, peak_bytes = 0;
    uint64_t after_bytes = 0;  // the peak behind it, until an operator reads parameters
  };
  Run forward, backward;
  std::vector<planner::SecondRunWork> second_run;  // by step, ascending
  uint64_t input_bytes = 0;
};

// The operators and the memory of one step. Parameters are indices.
struct RecordedStep {
  std::vector<std::vector<uint32_t>> steps;
  std::vector<planner::OperatorWork> work;  // by step, with the operators that follow it
  std::vector<uint64_t> peaks;              // by step: peak of memory until the next one begins
  std::vector<planner::OperatorRange> region_steps;
  std::vector<RecordedRegion> numbered_regions;  // by their number in the pass
  uint32_t first_number = 0;            // of the first one; others are of passes without backward
  std::vector<int64_t> gradient_after;  // by parameter; -1: it got none
  std::vector<bool> shared;             // by parameter
  uint32_t backward_begin = 0;
  uint64_t peak_bytes = 0, input_bytes = 0;
  std::string failed_operator;  // the innermost operator that threw
};

// Sees the operators of one forward and backward on this thread. Each parameter is a view of its
// own chunk storage, so operators on it and on its views are known.
class StepRecorder final : public OperatorObserver, public ChunkSource, public RegionObserver {
 public:
  StepRecorder(at::Device device, size_t parameters, MemoryCount* memory);

  // From here on, operators belong to backward.
  void begin_backward();
  void gradient_complete(uint32_t parameter);
  RecordedStep finish();
  const std::string& failed_operator() const { return step_.failed_operator; }

  // Ignores the tensor's storage: it is a buffer, neither an input nor an activation.
  void ignore(const at::Tensor& tensor);

  void run(const c10::OperatorHandle& op, c10::DispatchKeySet below,
           std::vector<c10::IValue>* stack) override;
  void acquire(std::span<const uint32_t> parameters, const char* operator_name) override;
  void release(std::span<const uint32_t> /*parameters*/) noexcept override {}
  void region_begins(std::optional<uint32_t> number,
                     const std::vector<Boundary>& boundaries) override;
  void region_ends() noexcept override;
  void left_out() override { begin_operator(); }
  void second_run_begins() override;
  void second_run_ends(uint32_t left_out) noexcept override;

 private:
  void begin_operator();
  void see_inputs(const c10::OperatorHandle& op, const std::vector<c10::IValue>& stack);
  void see_input(const at::Tensor& tensor);
  void note_uses(const std::vector<uint32_t>& parameters);
  void note_memory();
  void note_work(const planner::OperatorWork& work);
  void add_work(size_t step, const planner::OperatorWork& work);

  // Work that belongs to step `step`, which may not be there yet.
  struct WorkOfStep {
    size_t step = 0;
    planner::OperatorWork work;
  };
  RecordedRegion::Run& run_of(uint32_t region, bool backward);
  void note_second_run(const WorkOfStep& one);

  const at::Device device_;
  MemoryCount* const memory_;
  RecordedStep step_;
  int depth_ = 0;
  bool backward_ = false;
  size_t region_first_ = 0;
  std::optional<uint32_t> first_number_;
  // By storage: the region that has it as its input. Several: none of them can free it.
  std::unordered_map<const void*, std::optional<uint32_t>> region_of_input_;
  std::optional<uint32_t> region_;  // in numbered_regions, while it runs
  uint32_t second_runs_ = 0;        // in the region that runs
  // The last one that ran, and whether that was in backward; until an operator reads parameters.
  std::optional<std::pair<uint32_t, bool>> ended_;
  // By operator, while a region's second run lasts.
  std::optional<std::vector<WorkOfStep>> second_run_;
  planner::OperatorWork before_first_;  // by operators before forward's or backward's first step
  std::vector<uint32_t> reads_;         // by the operator that is about to run
  std::vector<int64_t> last_use_;       // by parameter, in forward; -1: none yet
  std::unordered_set<const c10::StorageImpl*> known_;
  std::vector<c10::Storage> inputs_;  // held, so that no address is used twice
};

}  // namespace elixir
