// What moves in a simulated step, and what is updated when.

#include <algorithm>

#include "base/check.h"
#include "planner/simulate/step_simulation.h"

namespace elixir::planner {
namespace {

double seconds(double amount, double rate) { return rate > 0 ? amount / rate : 0; }

}  // namespace

// `copies`: one after the other, each with the link's latency. Bytes count when they are asked for.
void StepSimulation::push_copy(HostMemory::User direction, Job job, uint64_t copies) {
  job.latency_s = job.amount > 0 ? static_cast<double>(copies) * model_.rates.copy_latency_s : 0;
  const auto bytes = static_cast<uint64_t>(job.amount);
  (direction == HostMemory::kUp ? totals_.h2d_bytes : totals_.d2h_bytes) += bytes;
  host_.line(direction).push(job);
}

void StepSimulation::finish_job(const Job& job) {
  switch (job.kind) {
    case Job::Kind::kFetch:
      return finish_fetch(job);
    case Job::Kind::kAllGather:
      here_[job.chunk] = 1;
      return;
    case Job::Kind::kReduce:
      if (!stays_on_device(job.chunk)) {
        return push_gradient({.chunk = job.chunk, .completes = job.completes},
                             static_cast<double>(program_.chunk_bytes));
      }
      ++free_blocks_;
      if (job.completes) finish_gradient(job.chunk);
      return;
    case Job::Kind::kGradient:
      ++free_blocks_;
      if (job.completes) finish_gradient(job.chunk);
      return;
    case Job::Kind::kPutAside:
      ++free_blocks_;
      return;
    case Job::Kind::kBringBack:
      return;
    case Job::Kind::kEviction:
      eviction_[model_.chunks[job.chunk].run > 1 ? 1 : 0] = Eviction::kDone;
      return;
    case Job::Kind::kStatesUp:
      // On a stream of its own: it waits for no operator, and none for it.
      swing_.line.push({.kind = Job::Kind::kSwing,
                        .chunk = job.chunk,
                        .amount = seconds(static_cast<double>(model_.chunks[job.chunk].numel),
                                          model_.rates.gpu_update_numel)});
      return;
    case Job::Kind::kSwing:
      return push_copy(
          HostMemory::kDown,
          {.kind = Job::Kind::kStatesDown, .chunk = job.chunk, .amount = swing_bytes(job.chunk)},
          1);
    case Job::Kind::kStatesDown:
      --swinging_;
      return finish_update(job.chunk);
    case Job::Kind::kUpdate:
      return finish_update(job.chunk);
    case Job::Kind::kKeepDown:
      if (job.completes) parcels_[job.chunk] = Parcel::kAway;
      return;
    case Job::Kind::kKeepUp:
      if (job.completes) parcels_[job.chunk] = Parcel::kHere;
      return;
    case Job::Kind::kEarly:
      early_in_hand_ = false;
      early_done_[job.chunk] = 1;
      return;
  }
}

// ---- parameters up ----

// Its parameters after the last step are where fetches read them.
bool StepSimulation::updated(uint32_t chunk) const {
  const StepChunk& c = model_.chunks[chunk];
  return c.frozen || c.placement == Placement::kGpu || updates_[chunk] >= step_;
}

bool StepSimulation::run_updated(uint32_t first) const {
  for (uint32_t chunk = first; chunk < first + model_.chunks[first].run; ++chunk) {
    if (!updated(chunk)) return false;
  }
  return true;
}

double StepSimulation::run_bytes(uint32_t first) const {
  return static_cast<double>(model_.chunks[first].run * program_.chunk_bytes);
}

bool StepSimulation::ahead_has_room(const CacheFetch& fetch) {
  if (fetch.needed_at <= operator_) return true;
  size_t ahead = 0;
  for (size_t kind = 0; kind < kKinds; ++kind) {
    size_t& first = first_ahead_[kind];
    while (first < next_fetch_[kind] && program_.fetches[kind][first].needed_at <= operator_) {
      ++first;
    }
    ahead += next_fetch_[kind] - first;
  }
  return ahead < model_.runtime.fetch_ahead;
}

// False while the chunk that loses its block is still there.
bool StepSimulation::evict(const CacheFetch& fetch, size_t kind) {
  if (!model_.runtime.evictions_copy_down || !fetch.evicted_returns) return true;
  if (model_.chunks[fetch.evicted].placement == Placement::kGpu) return true;  // it came from there
  if (eviction_[kind] == Eviction::kNone) {
    eviction_[kind] = Eviction::kUnderWay;
    const double copies = program_.collective ? 1 : model_.ranks;
    push_copy(HostMemory::kDown,
              {.kind = Job::Kind::kEviction,
               .chunk = fetch.evicted,
               .amount = copies * run_bytes(fetch.evicted)},
              1);
  }
  return eviction_[kind] == Eviction::kDone;
}

bool StepSimulation::issue(const CacheFetch& fetch, size_t kind) {
  if (!run_updated(fetch.chunk) || !evict(fetch, kind)) return false;
  eviction_[kind] = Eviction::kNone;
  ++next_fetch_[kind];
  ++totals_.gathers;
  if (fetch.evicted != kNone) here_[fetch.evicted] = 0;
  const bool of_gpu = model_.chunks[fetch.chunk].placement == Placement::kGpu;
  // Host exchange: each rank copies every rank's shard up. Collective: each copies its own; placed
  // on the GPU it is there.
  const uint64_t own_copies = of_gpu ? 0 : 1;
  const uint64_t copies = program_.collective ? own_copies : model_.ranks;
  push_copy(HostMemory::kUp,
            {.kind = Job::Kind::kFetch,
             .chunk = fetch.chunk,
             .amount = static_cast<double>(copies) * run_bytes(fetch.chunk)},
            copies * model_.chunks[fetch.chunk].run);
  return true;
}

// As client/rcache: of each kind's next one, as far as its block has room (operators before
// room_from are over), the one that is needed first.
bool StepSimulation::issue_next(uint32_t last_operator) {
  const CacheFetch* first = nullptr;
  size_t kind_of_first = 0;
  for (size_t kind = 0; kind < kKinds; ++kind) {
    if (next_fetch_[kind] == program_.fetches[kind].size()) continue;
    const CacheFetch& fetch = program_.fetches[kind][next_fetch_[kind]];
    if (fetch.needed_at > last_operator || fetch.room_from > operator_) continue;
    if (first != nullptr && fetch.needed_at >= first->needed_at) continue;
    first = &fetch;
    kind_of_first = kind;
  }
  return first != nullptr && ahead_has_room(*first) && issue(*first, kind_of_first);
}

bool StepSimulation::issue_fetches(uint32_t last_operator) {
  bool any = false;
  while (issue_next(last_operator)) any = true;
  return any;
}

void StepSimulation::finish_fetch(const Job& job) {
  if (!program_.collective) {
    here_[job.chunk] = 1;
    return;
  }
  totals_.g2g_bytes += static_cast<uint64_t>(run_bytes(job.chunk));
  g2g_.line.push({.kind = Job::Kind::kAllGather,
                  .chunk = job.chunk,
                  .amount = seconds(run_bytes(job.chunk), model_.rates.g2g_bytes)});
}

// ---- gradients down ----

bool StepSimulation::stays_on_device(uint32_t chunk) const {
  return model_.chunks[chunk].placement == Placement::kGpu;
}

// Of the operator that is over; false: the compute stream waits for a block.
bool StepSimulation::take_gradients() {
  const std::vector<GradientPart>& parts = program_.gradients[operator_];
  for (; next_part_ < parts.size(); ++next_part_) {
    if (needs_block(parts[next_part_].chunk) && !hold_block(parts[next_part_].chunk)) return false;
    take_gradient(parts[next_part_]);
  }
  taking_gradients_ = stall_paid_ = false;
  ++operator_;
  return true;
}

bool StepSimulation::needs_block(uint32_t chunk) const {
  return model_.runtime.grad_blocks > 0 && (program_.collective || !stays_on_device(chunk));
}

// As client/exchange/grad_blocks. What comes back is not waited for.
bool StepSimulation::hold_block(uint32_t chunk) {
  const auto bytes =
      static_cast<double>(program_.chunk_bytes) * (program_.collective ? 1 : model_.ranks);
  if (grads_[chunk] == Grads::kInBlock) {
    leave_block(chunk);
    filling_.push_back(chunk);
    return true;
  }
  if (free_blocks_ == 0) {
    // Where some are on their way out, one of them will be free.
    if (filling_.size() == model_.runtime.grad_blocks) {
      const uint32_t oldest = filling_.front();
      filling_.pop_front();
      grads_[oldest] = Grads::kAside;
      push_copy(HostMemory::kDown, {.kind = Job::Kind::kPutAside, .chunk = oldest, .amount = bytes},
                1);
    }
    return false;
  }
  if (grads_[chunk] == Grads::kAside) {
    push_copy(HostMemory::kUp, {.kind = Job::Kind::kBringBack, .chunk = chunk, .amount = bytes}, 1);
  }
  --free_blocks_;
  grads_[chunk] = Grads::kInBlock;
  filling_.push_back(chunk);
  return true;
}

void StepSimulation::leave_block(uint32_t chunk) {
  const auto place = std::find(filling_.begin(), filling_.end(), chunk);
  ELIXIR_CHECK(place != filling_.end(), "gradients of chunk {} are in no block", chunk);
  filling_.erase(place);
}

void StepSimulation::take_gradient(const GradientPart& part) {
  if (part.completes) ++gradients_under_way_;
  const bool in_block = needs_block(part.chunk);
  if (in_block && part.ends_micro_step) {
    leave_block(part.chunk);
    grads_[part.chunk] = Grads::kNone;
  }
  if (program_.collective) {
    if (!part.ends_micro_step) return;  // it comes together on the device
    totals_.g2g_bytes += program_.chunk_bytes;
    g2g_.line.push(
        {.kind = Job::Kind::kReduce,
         .chunk = part.chunk,
         .amount = seconds(static_cast<double>(program_.chunk_bytes), model_.rates.g2g_bytes),
         .completes = part.completes});
    return;
  }
  if (stays_on_device(part.chunk)) {
    if (part.completes) finish_gradient(part.chunk);
    return;
  }
  if (!in_block) {
    return push_gradient(part, static_cast<double>(model_.ranks * part.numel * model_.dtype_bytes));
  }
  if (part.ends_micro_step) {
    push_gradient(part, static_cast<double>(model_.ranks * program_.chunk_bytes));
  }
}

void StepSimulation::push_gradient(const GradientPart& part, double bytes) {
  push_copy(HostMemory::kDown,
            {.kind = Job::Kind::kGradient,
             .chunk = part.chunk,
             .amount = bytes,
             .completes = part.completes},
            1);
}

// The chunk's gradient is where its update reads it.
void StepSimulation::finish_gradient(uint32_t chunk) {
  ELIXIR_CHECK(gradients_under_way_ > 0, "the gradient of chunk {} comes twice", chunk);
  --gradients_under_way_;
  const Placement placement = model_.chunks[chunk].placement;
  const StepRuntime& runtime = model_.runtime;
  if (runtime.update == UpdateMode::kImmediate && placement == Placement::kCpu) {
    published_.push_back({chunk, host_.line(HostMemory::kUp).pushed});
  }
  if (runtime.update == UpdateMode::kEarly && placement == Placement::kCpu) {
    early_queue_.push_back(chunk);
  }
}

// ---- updates ----

// By CPU workers, at a share of their rate in place.
Job StepSimulation::update_job(Job::Kind kind, uint32_t chunk, double share) const {
  const auto numel = static_cast<double>(model_.chunks[chunk].numel);
  return {.kind = kind,
          .chunk = chunk,
          .amount = seconds(numel, share * model_.rates.cpu_update_numel),
          .memory_bytes = numel * model_.update_bytes};
}

void StepSimulation::push_update(uint32_t chunk) {
  const StepChunk& c = model_.chunks[chunk];
  ++updates_left_;
  if (c.placement == Placement::kCpu) {
    return host_.line(HostMemory::kUpdate).push(update_job(Job::Kind::kUpdate, chunk, 1));
  }
  to_swing_.push_back(chunk);
}

// Immediate updates: gradients that are in, once no upload reads the old parameters.
bool StepSimulation::start_published() {
  bool any = false;
  while (!published_.empty() &&
         published_.front().uploads <= host_.line(HostMemory::kUp).finished) {
    push_update(published_.front().chunk);
    published_.pop_front();
    any = true;
  }
  return any;
}

// Early updates, one at a time, the chunk that was complete last first, while the workers have
// nothing else. Uploads may go on: nothing that they read is written.
bool StepSimulation::start_early() {
  const Line& workers = host_.line(HostMemory::kUpdate);
  if (early_queue_.empty() || early_taken_ == model_.runtime.spare_slots) return false;
  if (early_in_hand_ || workers.busy || !workers.queue.empty()) return false;
  if (all_are_in()) return false;  // the commit comes first
  early_in_hand_ = true;
  host_.line(HostMemory::kUpdate)
      .push(update_job(Job::Kind::kEarly, early_queue_.back(), kEarlyUpdateShare));
  early_queue_.pop_back();
  ++early_taken_;
  return true;
}

// All operators of the step are over.
void StepSimulation::post() {
  posted_ = committing_ = true;
  posted_uploads_ = host_.line(HostMemory::kUp).pushed;
  if (program_.alone && program_.gpu_numel > 0) update_on_gpu();
}

// All chunks placed on the GPU, whose gradients are on the device.
void StepSimulation::update_on_gpu() {
  gpu_work_s_.push_back(
      seconds(static_cast<double>(program_.gpu_numel), model_.rates.gpu_update_numel));
}

// The step was posted, its gradients are where updates read them, and no upload reads parameters
// of the step before.
bool StepSimulation::all_are_in() const {
  return committing_ && gradients_under_way_ == 0 && published_.empty() &&
         host_.line(HostMemory::kUp).finished >= posted_uploads_;
}

// What waits for all gradients begins. An early update in hand is finished first; those that still
// wait are deferred ones from now on.
bool StepSimulation::commit() {
  if (!all_are_in() || early_in_hand_) return false;
  committing_ = false;
  early_queue_.clear();
  early_taken_ = 0;
  const bool immediate = model_.runtime.update == UpdateMode::kImmediate;
  for (const uint32_t chunk : program_.update_order) {
    if (model_.chunks[chunk].placement == Placement::kGpu) continue;  // with the step's end
    const bool swings = model_.chunks[chunk].placement == Placement::kSwing;
    if (immediate && !swings && program_.has_gradient[chunk] != 0) continue;
    if (!take_early(chunk)) push_update(chunk);
  }
  return true;
}

// Its slot is exchanged, which takes no time. False: it was not updated early.
bool StepSimulation::take_early(uint32_t chunk) {
  if (early_done_[chunk] == 0) return false;
  early_done_[chunk] = 0;
  ++updates_[chunk];
  return true;
}

void StepSimulation::finish_update(uint32_t chunk) {
  ELIXIR_CHECK(updates_left_ > 0, "the update of chunk {} ends twice", chunk);
  --updates_left_;
  ++updates_[chunk];
}

}  // namespace elixir::planner
