#include "client/profile/step_recorder.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "client/profile/operator_work.h"

namespace elixir {
namespace {

// Autograd adds gradients that meet into the first of them where it holds the only reference, but
// not if that is a meta tensor; this does it for it. Of the operators of backward, only that sum
// has an operand which nobody else holds.
bool adds_into_first(const c10::OperatorHandle& op, const std::vector<c10::IValue>& stack) {
  if (at::GradMode::is_enabled() || op.schema().name() != "aten::add" ||
      op.schema().overload_name() != "Tensor") {
    return false;
  }
  const at::Tensor& first = (stack.end() - 3)->toTensor();
  const at::Tensor& second = (stack.end() - 2)->toTensor();
  constexpr size_t kHolders = 2;  // autograd's buffer and the stack
  return first.is_meta() && first.sizes() == second.sizes() &&
         first.scalar_type() == second.scalar_type() && first.is_non_overlapping_and_dense() &&
         first.use_count() <= kHolders && first.storage().use_count() == 1;
}

}  // namespace

StepRecorder::StepRecorder(at::Device device, size_t parameters, MemoryCount* memory)
    : device_(device), memory_(memory) {
  step_.gradient_after.assign(parameters, -1);
  step_.shared.assign(parameters, false);
  last_use_.assign(parameters, -1);
}

void StepRecorder::run(const c10::OperatorHandle& op, c10::DispatchKeySet below,
                       std::vector<c10::IValue>* stack) {
  std::optional<OperatorDescription> description;
  if (depth_ == 0) {
    begin_operator();
    see_inputs(op, *stack);
    description.emplace(op, *stack, device_);
  }
  if (depth_ == 0 && adds_into_first(op, *stack)) {
    c10::IValue sum = *(stack->end() - 3);
    stack->resize(stack->size() - op.schema().arguments().size());
    stack->push_back(std::move(sum));
    note_work(description->with_results(op, *stack, /*in_place=*/true));
    return;
  }
  try {
    const Deeper inside(&depth_);
    op.redispatchBoxed(below, stack);
  } catch (...) {
    if (step_.failed_operator.empty()) step_.failed_operator = op.schema().name();
    throw;
  }
  if (depth_ != 0) return;
  note_memory();
  note_work(description->with_results(op, *stack));
}

void StepRecorder::note_work(const planner::OperatorWork& work) {
  const bool before =
      step_.work.empty() || (backward_ && step_.backward_begin == step_.work.size());
  const size_t step = before ? step_.work.size() : step_.work.size() - 1;
  if (second_run_) {
    second_run_->push_back({step, work});
  } else {
    add_work(step, work);
  }
}

void StepRecorder::add_work(size_t step, const planner::OperatorWork& work) {
  (step < step_.work.size() ? step_.work[step] : before_first_).add(work);
}

void StepRecorder::second_run_begins() {
  second_run_.emplace();
  ++second_runs_;
}

void StepRecorder::second_run_ends(uint32_t left_out) noexcept {
  if (!second_run_) return;  // a function that runs backward inside of it
  const size_t run = second_run_->size() - std::min<size_t>(left_out, second_run_->size());
  for (size_t i = 0; i < run; ++i) {
    add_work((*second_run_)[i].step, (*second_run_)[i].work);
    if (region_ && backward_) note_second_run((*second_run_)[i]);
  }
  second_run_.reset();
}

// Regions inside of a region that keeps its products keep nothing: their products are no others.
void StepRecorder::note_second_run(const WorkOfStep& one) {
  std::vector<planner::SecondRunWork>& works = step_.numbered_regions[*region_].second_run;
  const auto step = static_cast<uint32_t>(one.step);
  if (works.empty() || works.back().step != step) works.push_back({.step = step});
  const bool kept = second_runs_ == 1 && one.work.flops() > 0;
  (kept ? works.back().products : works.back().others).add(one.work);
}

void StepRecorder::acquire(std::span<const uint32_t> parameters, const char* /*operator_name*/) {
  if (depth_ == 0) {
    reads_.assign(parameters.begin(), parameters.end());
    return;
  }
  std::vector<uint32_t>& reads = step_.steps.back();
  for (const uint32_t parameter : parameters) {
    if (std::find(reads.begin(), reads.end(), parameter) == reads.end()) {
      reads.push_back(parameter);
    }
  }
}

void StepRecorder::begin_operator() {
  if (reads_.empty()) return;
  note_memory();
  ended_.reset();
  note_uses(reads_);
  step_.steps.push_back(std::exchange(reads_, {}));
  step_.work.push_back(std::exchange(before_first_, {}));
  step_.peaks.push_back(memory_->current_bytes());
}

// A parameter that an operator uses again after one that did not is used in two places.
void StepRecorder::note_uses(const std::vector<uint32_t>& parameters) {
  if (backward_) return;
  const auto now = static_cast<int64_t>(step_.steps.size());
  for (const uint32_t parameter : parameters) {
    int64_t& last = last_use_[parameter];
    if (last >= 0 && last < now - 1) step_.shared[parameter] = true;
    last = now;
  }
}

void StepRecorder::note_memory() {
  const uint64_t peak = memory_->take_recent_peak();
  if (region_) {
    uint64_t& most = run_of(*region_, backward_).peak_bytes;
    most = std::max(most, peak);
  }
  if (ended_) {
    uint64_t& most = run_of(ended_->first, ended_->second).after_bytes;
    most = std::max(most, peak);
  }
  if (!step_.peaks.empty()) step_.peaks.back() = std::max(step_.peaks.back(), peak);
}

void StepRecorder::see_inputs(const c10::OperatorHandle& op,
                              const std::vector<c10::IValue>& stack) {
  for (auto value = stack.end() - static_cast<ptrdiff_t>(op.schema().arguments().size());
       value != stack.end(); ++value) {
    if (value->isTensor()) {
      see_input(value->toTensor());
    } else if (value->isTensorList()) {
      for (const at::Tensor& tensor : value->toTensorVector()) see_input(tensor);
    }
  }
}

void StepRecorder::see_input(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.device() != device_) return;
  if (chunk_storage_of(tensor) != nullptr || is_counted(tensor.storage())) return;
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return;
  if (!known_.insert(tensor.storage().unsafeGetStorageImpl()).second) return;
  inputs_.push_back(tensor.storage());
  step_.input_bytes += MemoryCount::rounded(tensor.storage().nbytes());
}

void StepRecorder::ignore(const at::Tensor& tensor) {
  if (known_.insert(tensor.storage().unsafeGetStorageImpl()).second) {
    inputs_.push_back(tensor.storage());
  }
}

void StepRecorder::begin_backward() {
  note_memory();
  backward_ = true;
  step_.backward_begin = static_cast<uint32_t>(step_.steps.size());
}

void StepRecorder::gradient_complete(uint32_t parameter) {
  const size_t last = std::max<size_t>(step_.steps.size(), 1) - 1;
  step_.gradient_after[parameter] =
      static_cast<int64_t>(std::max<size_t>(last, step_.backward_begin));
}

RecordedRegion::Run& StepRecorder::run_of(uint32_t region, bool backward) {
  RecordedRegion& recorded = step_.numbered_regions[region];
  return backward ? recorded.backward : recorded.forward;
}

void StepRecorder::region_begins(std::optional<uint32_t> number,
                                 const std::vector<Boundary>& boundaries) {
  note_memory();
  ended_.reset();
  region_first_ = step_.steps.size();
  second_runs_ = 0;
  region_.reset();
  if (!number) return;
  // The program may hold regions of a pass without backward: they have the numbers before.
  if (!first_number_) first_number_ = step_.first_number = *number;
  if (*number < *first_number_) return;
  region_ = *number - *first_number_;
  if (step_.numbered_regions.size() <= *region_) step_.numbered_regions.resize(*region_ + 1);
  for (const auto& [storage, bytes] : boundaries) {
    const auto [known, first] = region_of_input_.emplace(storage, *region_);
    if (first) {
      step_.numbered_regions[*region_].input_bytes += bytes;
    } else if (known->second) {
      step_.numbered_regions[*known->second].input_bytes -= bytes;
      known->second.reset();
    }
  }
  RecordedRegion::Run& run = run_of(*region_, backward_);
  ++run.times;
  run.begin_bytes = run.peak_bytes = memory_->current_bytes();
}

void StepRecorder::region_ends() noexcept {
  note_memory();
  const bool reads = step_.steps.size() > region_first_;
  const planner::OperatorRange steps{static_cast<uint32_t>(region_first_),
                                     static_cast<uint32_t>(step_.steps.size() - 1)};
  if (region_) {
    RecordedRegion::Run& run = run_of(*region_, backward_);
    run.end_bytes = memory_->current_bytes();
    run.reads = reads;
    if (reads) run.steps = steps;
    ended_.emplace(*region_, backward_);
  }
  region_.reset();
  if (reads) step_.region_steps.push_back(steps);
}

RecordedStep StepRecorder::finish() {
  note_memory();
  step_.peak_bytes = memory_->peak_bytes();
  // Backward of a model whose backward reads no parameter.
  ELIXIR_CHECK(step_.work.size() == step_.steps.size() && step_.peaks.size() == step_.steps.size(),
               "{} steps, with the work of {} and the peaks of {}", step_.steps.size(),
               step_.work.size(), step_.peaks.size());
  if (!step_.work.empty()) step_.work.back().add(before_first_);
  const auto last = static_cast<int64_t>(std::max<size_t>(step_.steps.size(), 1) - 1);
  for (int64_t& after : step_.gradient_after) after = std::min(after, last);
  return std::move(step_);
}

}  // namespace elixir
