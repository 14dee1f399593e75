#include "planner/search/step_of.h"

#include <algorithm>

#include "base/check.h"

namespace elixir::planner {
namespace {

// By operator, the parameters whose gradients are complete after it.
std::vector<std::vector<uint32_t>> complete_gradients(const Setting& setting) {
  const ModelProfile& profile = setting.profile;
  const uint32_t last_step = static_cast<uint32_t>(profile.steps.size()) - 1;
  std::vector<uint32_t> after = profile.gradient_after;
  if (after.empty()) {
    after.assign(profile.params.size(), last_step);
    for (uint32_t i = profile.backward_first(); i <= last_step; ++i) {
      for (const uint32_t param : profile.steps[i]) after[param] = i;
    }
  }
  std::vector<std::vector<uint32_t>> complete(profile.steps.size());
  for (uint32_t param = 0; param < after.size(); ++param) {
    if (!profile.params[param].frozen) complete[after[param]].push_back(param);
  }
  return complete;
}

void add_gradient(uint32_t chunk, uint64_t numel, StepOperator* after) {
  for (size_t i = 0; i < after->gradients.size(); ++i) {
    if (after->gradients[i] != chunk) continue;
    after->gradient_numel[i] += numel;
    return;
  }
  after->gradients.push_back(chunk);
  after->gradient_numel.push_back(numel);
}

// Update rates are measured in BF16, where an element's gradient, parameter, its master's other
// half and the moments are 14 bytes read and 12 written; in FP32 they are 16 and 12. Memory binds.
constexpr double kFp32UpdateShare = 26.0 / 28;

// Of host memory, for an element's update: parameter and states there and back, and a gradient of
// each rank or, with collectives, of all together. Stores of early updates go past the caches, so
// that they move no more.
uint32_t update_bytes(const shm::Shape& shape) {
  const uint64_t element = element_bytes(shape.type);
  return static_cast<uint32_t>(2 * (element + shape.element_state_bytes()) +
                               shape.shard_gradients() * element);
}

// What memory was measured to do for updates and copies together, else in place; where that is
// more, what a leg was measured to do alone, which memory then does as well.
double dram_bytes(const Machine& machine, const StepModel& step) {
  const StepRates& rates = step.rates;
  const double both = rates.h2d_bytes + rates.d2h_bytes;
  const double link = rates.joint_bytes > 0 ? std::min(rates.joint_bytes, both) : both;
  const double update = step.update_bytes * rates.cpu_update_numel;
  const double beside = 1e9 * machine.cpu_update_beside_copies_gparam_s;
  const double together = beside > 0 ? link + step.update_bytes * beside : 1e9 * machine.dram_gb_s;
  return std::max({together, link, update});
}

StepRates rates_of(const Machine& machine, uint32_t dtype_bytes) {
  const double share = dtype_bytes == 4 ? kFp32UpdateShare : 1;
  StepRates rates;
  rates.h2d_bytes = 1e9 * machine.h2d_gb_s;
  rates.d2h_bytes = 1e9 * machine.d2h_gb_s;
  rates.joint_bytes = 1e9 * machine.joint_gb_s;
  rates.g2g_bytes = machine.gpus > 1 ? 1e9 * machine.g2g_gb_s : 0;
  rates.cpu_update_numel = 1e9 * share * machine.cpu_update_gparam_s;
  rates.gpu_update_numel = 1e9 * share * machine.gpu_update_gparam_s;
  return rates;
}

// By operator: 1 if an operation on a parcel comes before it.
std::vector<uint8_t> parcel_ends_of(const ModelProfile& profile) {
  std::vector<uint8_t> ends(profile.steps.size() + 1, 0);
  for (const SentParcel& parcel : profile.parcels) {
    ends[parcel.put_after + 1] = ends[parcel.get_before] = 1;
  }
  return ends;
}

void add_operators(const Setting& setting, StepModel* step) {
  const ModelProfile& profile = setting.profile;
  const std::vector<std::vector<uint32_t>> chunks = chunks_of_steps(profile, setting.packing);
  const std::vector<std::vector<uint32_t>> complete = complete_gradients(setting);
  const std::vector<uint8_t> parcel_ends = parcel_ends_of(profile);
  std::vector<uint32_t> place;  // of the profile's operators among the step's
  for (uint32_t i = 0; i < profile.steps.size(); ++i) {
    const bool begins = i == profile.backward_first();
    if (begins) step->backward_begin = static_cast<uint32_t>(step->operators.size());
    if (begins || parcel_ends[i] != 0 || step->operators.empty() ||
        step->operators.back().chunks != chunks[i]) {
      step->operators.push_back({.chunks = chunks[i]});
    }
    place.push_back(static_cast<uint32_t>(step->operators.size() - 1));
    StepOperator& last = step->operators.back();
    last.compute_s += setting.compute.seconds[i];
    for (const uint32_t param : complete[i]) {
      const uint32_t first = setting.packing.places[param].chunk;
      const uint32_t run = setting.packing.run[first];
      if (run == 1) add_gradient(first, profile.params[param].numel, &last);
      // Chunk by chunk, backwards, as client/train/grad_offload has them.
      for (uint32_t j = run; run > 1 && j-- > 0;) {
        add_gradient(first + j, setting.packing.numel[first + j], &last);
      }
    }
  }
  for (const SentParcel& parcel : profile.parcels) {
    step->parcels.push_back(
        {place[parcel.put_after], place[parcel.get_before], static_cast<double>(parcel.bytes)});
  }
  step->parcels_of_pass = static_cast<uint32_t>(profile.parcels.size());
}

}  // namespace

StepModel step_of(const Setting& setting, const Candidate& candidate, const StepRuntime& runtime) {
  StepModel step;
  const shm::Shape shape = shape_of(setting, candidate);
  step.chunk_numel = shape.block_bytes() / setting.profile.dtype_bytes();
  step.dtype_bytes = setting.profile.dtype_bytes();
  step.state_bytes = static_cast<uint32_t>(shape.element_state_bytes());
  step.ranks = setting.machine.gpus;
  step.collective = candidate.exchange == Exchange::kCollective;
  step.accumulates = setting.accumulates;
  step.rcache_blocks = candidate.rcache_blocks;
  step.long_blocks = candidate.long_blocks;
  step.update_bytes = update_bytes(shape);
  step.rates = rates_of(setting.machine, setting.profile.dtype_bytes());
  if (setting.machine.dram_gb_s > 0) step.rates.dram_bytes = dram_bytes(setting.machine, step);
  step.runtime = runtime;
  for (uint32_t chunk = 0; chunk < setting.packing.total_chunks(); ++chunk) {
    step.chunks.push_back({placement_of(setting, candidate, chunk), setting.packing.numel[chunk],
                           chunk >= setting.packing.n_chunks, setting.packing.run[chunk]});
  }
  add_operators(setting, &step);
  return step;
}

double host_update_s(const Setting& setting, const Candidate& candidate) {
  const double rate = rates_of(setting.machine, setting.profile.dtype_bytes()).cpu_update_numel;
  if (rate == 0) return 0;
  uint64_t numel = 0;
  for (uint32_t chunk = 0; chunk < setting.packing.n_chunks; ++chunk) {
    const bool on_cpu = placement_of(setting, candidate, chunk) == Placement::kCpu;
    numel += on_cpu ? setting.packing.numel[chunk] : 0;
  }
  return static_cast<double>(numel) / rate;
}

StepModel repeated(const StepModel& once, uint32_t micro_steps) {
  ELIXIR_CHECK(micro_steps > 0, "a step without a pass");
  StepModel step = once;
  for (uint32_t micro_step = 1; micro_step < micro_steps; ++micro_step) {
    const auto before = static_cast<uint32_t>(step.operators.size());
    step.operators.insert(step.operators.end(), once.operators.begin(), once.operators.end());
    for (const StepParcel& parcel : once.parcels) {
      step.parcels.push_back({before + parcel.put_after, before + parcel.get_before, parcel.bytes});
    }
  }
  return step;
}

}  // namespace elixir::planner
