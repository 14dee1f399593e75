#include "planner/simulate/step_program.h"

#include <algorithm>
#include <cmath>

namespace elixir::planner {
namespace {

bool usable(double value) { return std::isfinite(value) && value >= 0; }

Status check_operator(const StepModel& model, uint32_t index) {
  const StepOperator& op = model.operators[index];
  if (!usable(op.compute_s)) {
    return error(Code::kInvalidArgument, "operator {} takes {} s", index, op.compute_s);
  }
  if (!op.gradient_numel.empty() && op.gradient_numel.size() != op.gradients.size()) {
    return error(Code::kInvalidArgument, "operator {}: {} gradients and {} lengths of them", index,
                 op.gradients.size(), op.gradient_numel.size());
  }
  for (const std::vector<uint32_t>* chunks : {&op.chunks, &op.gradients}) {
    for (const uint32_t chunk : *chunks) {
      if (chunk < model.chunks.size()) continue;
      return error(Code::kInvalidArgument, "operator {} names chunk {} of {}", index, chunk,
                   model.chunks.size());
    }
  }
  for (const uint32_t chunk : op.chunks) {
    const uint64_t run = model.chunks[chunk].run;
    if (run > 0 && run <= model.chunks.size() - chunk) continue;
    return error(Code::kInvalidArgument, "operator {} names chunk {} of {}, with which {} begin",
                 index, chunk, model.chunks.size(), run);
  }
  return Status();
}

Status check_step_model(const StepModel& model) {
  const StepRates& rates = model.rates;
  for (const double rate :
       {rates.h2d_bytes, rates.d2h_bytes, rates.joint_bytes, rates.g2g_bytes,
        rates.cpu_update_numel, rates.gpu_update_numel, rates.copy_latency_s, rates.dram_bytes}) {
    if (!usable(rate)) return error(Code::kInvalidArgument, "a rate or latency of {}", rate);
  }
  const double hidden = model.runtime.copies_hidden;
  if (!(hidden >= 0 && hidden <= 1)) {
    return error(Code::kInvalidArgument, "copies_hidden = {}: it must be in [0, 1]", hidden);
  }
  const size_t parcels = model.parcels.size();
  if (parcels > 0 && (model.parcels_of_pass == 0 || parcels % model.parcels_of_pass != 0)) {
    return error(Code::kInvalidArgument, "{} parcels in passes of {}", parcels,
                 model.parcels_of_pass);
  }
  for (const StepParcel& parcel : model.parcels) {
    const bool apart =
        parcel.put_after < parcel.get_before && parcel.get_before < model.operators.size();
    if (usable(parcel.bytes) && apart) continue;
    return error(Code::kInvalidArgument, "a parcel of {} bytes, from operator {} to {} of {}",
                 parcel.bytes, parcel.put_after, parcel.get_before, model.operators.size());
  }
  if (model.ranks == 0) return error(Code::kInvalidArgument, "a step of 0 ranks");
  for (uint32_t i = 0; i < model.operators.size(); ++i) {
    ELIXIR_RETURN_IF_ERROR(check_operator(model, i));
  }
  return Status();
}

void add_uses(const StepModel& model, StepProgram* program) {
  std::vector<uint32_t> gathered;
  program->uses.reserve(model.operators.size(), model.operators.size());
  for (const StepOperator& op : model.operators) {
    gathered.clear();
    for (const uint32_t chunk : op.chunks) {
      const bool stays = program->alone && model.chunks[chunk].placement == Placement::kGpu;
      if (!stays) gathered.push_back(chunk);
    }
    program->uses.add(gathered);
  }
}

// Empty: none begins a run.
std::vector<uint8_t> long_chunks(const StepModel& model) {
  std::vector<uint8_t> is_long;
  for (uint32_t chunk = 0; chunk < model.chunks.size(); ++chunk) {
    if (model.chunks[chunk].run <= 1) continue;
    is_long.resize(model.chunks.size(), 0);
    is_long[chunk] = 1;
  }
  return is_long;
}

// Chunks that blocks hold, each in one of its kind.
std::vector<uint32_t> by_block(std::span<const uint32_t> held, const CacheBlocks& blocks) {
  std::vector<uint32_t> in_blocks, in_long;
  for (const uint32_t chunk : held) {
    (blocks.in_long_block(chunk) ? in_long : in_blocks).push_back(chunk);
  }
  if (in_long.empty()) return in_blocks;
  in_blocks.resize(blocks.blocks, kNone);
  in_blocks.insert(in_blocks.end(), in_long.begin(), in_long.end());
  return in_blocks;
}

// Frozen chunks that a step ends with are there when the next begins, as client/rcache keeps them:
// until a step ends with what it began with.
Status add_fetches(const StepModel& model, StepProgram* program) {
  constexpr int kMostSteps = 8;
  const std::vector<uint8_t> is_long = long_chunks(model);
  const CacheBlocks blocks{model.rcache_blocks, model.long_blocks, is_long};
  Result<std::vector<CacheFetch>> fetches = std::vector<CacheFetch>();
  for (int step = 0; step < kMostSteps; ++step) {
    const std::vector<uint32_t> in_blocks = by_block(program->held, blocks);
    fetches = schedule_fetches(program->uses, blocks, in_blocks);
    if (!fetches.ok()) return fetches.status();
    std::vector<uint32_t> held = held_after(*fetches, in_blocks);
    std::erase_if(held, [&](uint32_t chunk) { return !model.chunks[chunk].frozen; });
    std::sort(held.begin(), held.end());
    // The fetches kept are those that begin with `held`.
    if (held == program->held || step + 1 == kMostSteps) break;
    program->held = std::move(held);
  }
  for (const CacheFetch& fetch : *fetches) {
    program->fetches[blocks.in_long_block(fetch.chunk) ? 1 : 0].push_back(fetch);
  }
  return Status();
}

void add_gradients(const StepModel& model, StepProgram* program) {
  program->gradients.resize(model.operators.size());
  program->has_gradient.assign(model.chunks.size(), 0);
  for (size_t i = model.operators.size(); i-- > 0;) {
    const StepOperator& op = model.operators[i];
    for (size_t j = op.gradients.size(); j-- > 0;) {
      const uint32_t chunk = op.gradients[j];
      if (model.chunks[chunk].frozen) continue;
      const bool completes = program->has_gradient[chunk] == 0;
      program->has_gradient[chunk] = 1;
      const uint64_t whole_numel = completes ? model.chunks[chunk].numel : 0;
      const uint64_t numel = op.gradient_numel.empty() ? whole_numel : op.gradient_numel[j];
      if (numel > 0 || completes) program->gradients[i].push_back({chunk, numel, completes});
    }
    // They were taken from the back, so that the last one of a chunk is known.
    std::vector<GradientPart>& parts = program->gradients[i];
    parts = {parts.rbegin(), parts.rend()};
  }
}

// Micro-steps follow from how much of a chunk's gradient came, where that is told.
void end_micro_steps(const StepModel& model, StepProgram* program) {
  std::vector<uint64_t> numel(model.chunks.size(), 0);
  for (std::vector<GradientPart>& parts : program->gradients) {
    for (GradientPart& part : parts) {
      numel[part.chunk] += part.numel;
      part.ends_micro_step = part.completes || numel[part.chunk] >= model.chunks[part.chunk].numel;
      if (part.ends_micro_step) numel[part.chunk] = 0;
    }
  }
}

void add_update_order(const StepModel& model, StepProgram* program) {
  std::vector<uint8_t> seen(model.chunks.size(), 0);
  const auto add = [&](uint32_t chunk) {
    if (seen[chunk] != 0 || model.chunks[chunk].frozen) return;
    seen[chunk] = 1;
    program->update_order.push_back(chunk);
    if (model.chunks[chunk].placement == Placement::kGpu)
      program->gpu_numel += model.chunks[chunk].numel;
  };
  for (const StepOperator& op : model.operators) {
    for (const uint32_t first : op.chunks) {
      for (uint32_t i = 0; i < model.chunks[first].run; ++i) add(first + i);
    }
  }
  for (uint32_t chunk = 0; chunk < model.chunks.size(); ++chunk) add(chunk);
}

}  // namespace

Result<StepProgram> make_step_program(const StepModel& model) {
  ELIXIR_RETURN_IF_ERROR(check_step_model(model));
  StepProgram program;
  program.alone = model.ranks == 1;
  program.collective = !program.alone && model.collective;
  program.chunk_bytes = model.chunk_numel * model.dtype_bytes;
  add_uses(model, &program);
  ELIXIR_RETURN_IF_ERROR(add_fetches(model, &program));
  add_gradients(model, &program);
  end_micro_steps(model, &program);
  add_update_order(model, &program);
  return program;
}

}  // namespace elixir::planner
