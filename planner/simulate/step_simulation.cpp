// Time, the compute stream, and what is told of a step. What moves and what is updated:
// step_transfers.cpp.

#include "planner/simulate/step_simulation.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace elixir::planner {
namespace {

StepSpan::Row row_of(HostMemory::User user) {
  switch (user) {
    case HostMemory::kUp:
      return StepSpan::Row::kH2d;
    case HostMemory::kDown:
      return StepSpan::Row::kD2h;
    default:
      return StepSpan::Row::kUpdate;
  }
}

}  // namespace

StepSimulation::StepSimulation(const StepModel& model, const StepProgram& program, bool keep_spans)
    : model_(model),
      program_(program),
      n_operators_(static_cast<uint32_t>(model.operators.size())),
      keep_spans_(keep_spans),
      host_({model.rates.h2d_bytes, model.rates.d2h_bytes, model.rates.joint_bytes,
             model.rates.dram_bytes}),
      ends_(1),
      here_(model.chunks.size(), 0),
      grads_(model.chunks.size(), Grads::kNone),
      free_blocks_(model.runtime.grad_blocks),
      parcels_(model.parcels.size(), Parcel::kHere),
      updates_(model.chunks.size(), 0),
      early_done_(model.chunks.size(), 0) {
  forget_chunks();
}

// ---- time ----

Status StepSimulation::run_step() {
  const Status status = run_until_step_ends();
  check_invariant();
  return status;
}

Status StepSimulation::run_until_step_ends() {
  const uint32_t before = step_;
  while (start_all()) {
    if (step_ != before) return Status();
  }
  for (;;) {
    const double next_s = next_event_s();
    if (next_s == kNoEvent) {
      return error(Code::kInternal, "the simulated step {} stands still at operator {} of {}",
                   step_, operator_, n_operators_);
    }
    ELIXIR_CHECK(next_s >= now_s_, "after {} s comes {} s", now_s_, next_s);
    now_s_ = next_s;
    finish_due();
    while (start_all()) {
      if (step_ != before) return Status();
    }
  }
}

// Starts what can be started now; false when nothing could.
bool StepSimulation::start_all() {
  bool any = start_published() || commit();
  any |= start_early();
  any |= start_swing();
  any |= start_compute();
  if (model_.runtime.host_ahead) any |= issue_fetches(n_operators_);
  any |= host_.start(now_s_);
  any |= g2g_.start(now_s_);
  any |= swing_.start(now_s_);
  return any;
}

double StepSimulation::next_event_s() const {
  return std::min({end_s_, host_.line(HostMemory::kUp).end_s, host_.line(HostMemory::kDown).end_s,
                   host_.line(HostMemory::kUpdate).end_s, g2g_.line.end_s, swing_.line.end_s});
}

void StepSimulation::finish_due() {
  finish_due(HostMemory::kUp);
  finish_due(HostMemory::kDown);
  if (g2g_.line.busy && g2g_.line.end_s <= now_s_) {
    add_span({StepSpan::Row::kG2g, g2g_.line.job.chunk, g2g_.line.begin_s, now_s_});
    finish_job(g2g_.line.finish());
  }
  finish_due(HostMemory::kUpdate);
  if (swing_.line.busy && swing_.line.end_s <= now_s_) {
    finish_job(swing_.line.finish());  // without a row: copies on both sides show it
  }
  if (doing_ != Doing::kNothing && end_s_ <= now_s_) finish_compute();
}

void StepSimulation::finish_due(HostMemory::User user) {
  const Line& line = host_.line(user);
  if (!line.busy || line.end_s > now_s_) return;
  add_span({row_of(user), line.job.chunk, line.begin_s, now_s_, line.job.of_activations()});
  finish_job(host_.finish(user, now_s_));
}

void StepSimulation::add_span(StepSpan span) {
  if (keep_spans_ && span.end_s > span.begin_s) spans_.push_back(span);
}

// ---- the compute stream ----

void StepSimulation::begin(Doing what, double seconds) {
  doing_ = what;
  begin_s_ = now_s_;
  end_s_ = now_s_ + seconds;
}

void StepSimulation::finish_compute() {
  const Doing done = doing_;
  const double took_s = end_s_ - begin_s_;
  doing_ = Doing::kNothing;
  end_s_ = kNoEvent;
  running_s_ += took_s;
  if (done != Doing::kCopyStall) compute_done_s_ += took_s;
  if (done == Doing::kOperator) {
    add_span({StepSpan::Row::kCompute, operator_, begin_s_, now_s_});
    finish_operator();
  } else if (done == Doing::kGpuUpdate) {
    add_span({StepSpan::Row::kGpuUpdate, 0, begin_s_, now_s_});
  }
}

void StepSimulation::finish_operator() {
  taking_gradients_ = true;
  next_part_ = 0;
  take_gradients();
}

bool StepSimulation::start_compute() {
  if (doing_ != Doing::kNothing) return false;
  if (taking_gradients_) return take_gradients();
  if (!gpu_work_s_.empty()) {
    begin(Doing::kGpuUpdate, gpu_work_s_.front());
    gpu_work_s_.pop_front();
    return true;
  }
  return operator_ == n_operators_ ? finish_step() : start_operator();
}

// As client/train/engine's acquire(): what the operator needs, then what comes next.
bool StepSimulation::start_operator() {
  const bool issued = issue_fetches(operator_);
  if (!parcels_let(operator_) || !chunks_here()) return issued;
  for (const GradientPart& part : program_.gradients[operator_]) {
    if (!updated(part.chunk)) return issued;  // its gradient slot is still read
  }
  if (!stall_paid_ && copies_stall()) return true;
  issue_fetches(n_operators_);
  begin(Doing::kOperator, model_.operators[operator_].compute_s);
  return true;
}

bool StepSimulation::chunks_here() const {
  const UseList& uses = program_.uses;
  const auto chunks =
      uses.chunks().subspan(uses.begin(operator_), uses.end(operator_) - uses.begin(operator_));
  return std::all_of(chunks.begin(), chunks.end(),
                     [&](uint32_t chunk) { return here_[chunk] != 0; });
}

// The part of copies that is not hidden is waited for before the next operator, less what the
// compute stream waited anyway.
bool StepSimulation::copies_stall() {
  stall_paid_ = true;
  const double copies_s =
      host_.line(HostMemory::kUp).busy_s(now_s_) + host_.line(HostMemory::kDown).busy_s(now_s_);
  const double idle_s = now_s_ - running_s_;
  owed_s_ += (1 - model_.runtime.copies_hidden) * (copies_s - settled_copies_s_);
  owed_s_ = std::max(0.0, owed_s_ - (idle_s - settled_idle_s_));
  settled_copies_s_ = copies_s;
  settled_idle_s_ = idle_s;
  if (owed_s_ <= 0) return false;
  begin(Doing::kCopyStall, owed_s_);
  owed_s_ = 0;
  return true;
}

// ---- swing chunks ----

// A shard's image, of all ranks.
double StepSimulation::swing_bytes(uint32_t chunk) const {
  return static_cast<double>(model_.chunks[chunk].numel) *
         (model_.state_bytes + model_.dtype_bytes);
}

// A chunk a buffer. With its states go up the gradients of every rank, or their sum.
bool StepSimulation::start_swing() {
  if (swinging_ == kSwingLanes || to_swing_.empty()) return false;
  ++swinging_;
  const uint32_t chunk = to_swing_.front();
  to_swing_.pop_front();
  const uint64_t of_ranks = (program_.collective ? 1 : model_.ranks) * model_.dtype_bytes;
  const double gradient_bytes = static_cast<double>(model_.chunks[chunk].numel) *
                                static_cast<double>(model_.accumulates ? sizeof(float) : of_ranks);
  push_copy(
      HostMemory::kUp,
      {.kind = Job::Kind::kStatesUp, .chunk = chunk, .amount = swing_bytes(chunk) + gradient_bytes},
      1);
  return true;
}

// ---- blocks ----

// Those that are updated are stale.
void StepSimulation::forget_chunks() {
  std::fill(here_.begin(), here_.end(), uint8_t{0});
  for (const uint32_t chunk : program_.held) here_[chunk] = 1;
}

void StepSimulation::check_invariant() const {
  for (size_t kind = 0; kind < kKinds; ++kind) {
    const size_t next = next_fetch_[kind], all = program_.fetches[kind].size();
    ELIXIR_CHECK(operator_ <= n_operators_ && first_ahead_[kind] <= next && next <= all,
                 "operator {} of {}, fetch {} of {}", operator_, n_operators_, next, all);
  }
  uint32_t in_blocks = 0, early = 0;
  for (uint32_t chunk = 0; chunk < grads_.size(); ++chunk) {
    early += early_done_[chunk];
    in_blocks += grads_[chunk] == Grads::kInBlock ? 1 : 0;
    ELIXIR_CHECK(updates_[chunk] <= step_ + 1, "chunk {} is updated {} times in {} steps", chunk,
                 updates_[chunk], step_);
  }
  ELIXIR_CHECK(in_blocks == filling_.size(), "gradients of {} chunks are in {} blocks", in_blocks,
               filling_.size());
  // Each block is free, is being filled, or is on its way out.
  const uint32_t blocks = model_.runtime.grad_blocks;
  ELIXIR_CHECK(blocks == 0 || free_blocks_ + filling_.size() <= blocks,
               "{} blocks are free and {} in use, of {}", free_blocks_, filling_.size(), blocks);
  early += early_in_hand_ ? 1 : 0;
  ELIXIR_CHECK(early == early_taken_ && early_taken_ <= model_.runtime.spare_slots,
               "{} chunks have {} slots, of {}", early, early_taken_, model_.runtime.spare_slots);
  ELIXIR_CHECK(swinging_ <= kSwingLanes && swinging_ + to_swing_.size() <= updates_left_,
               "{} chunks swing, {} wait for it, of {} updates", swinging_, to_swing_.size(),
               updates_left_);
}

// ---- what is told ----

const StepSimulation::StepEnd& StepSimulation::last_begin() const {
  ELIXIR_CHECK(ends_.size() >= 2, "no step has ended yet");
  return ends_[ends_.size() - 2];
}

bool StepSimulation::finish_step() {
  if (!posted_) {
    post();
    return true;
  }
  // Where ranks must agree, step() waits for the gradients.
  const bool after_backward = model_.runtime.update == UpdateMode::kSync;
  if ((program_.collective || after_backward) && committing_) return false;
  if (after_backward && updates_left_ > 0) return false;
  if (program_.collective && !gpu_updates_pushed_) {
    gpu_updates_pushed_ = true;
    if (program_.gpu_numel > 0) {
      update_on_gpu();
      return true;
    }
  }
  StepEnd end = totals_;
  end.at_s = now_s_;
  end.compute_s = compute_done_s_;
  end.h2d_s = host_.line(HostMemory::kUp).busy_s(now_s_);
  end.d2h_s = host_.line(HostMemory::kDown).busy_s(now_s_);
  end.g2g_s = g2g_.line.busy_s(now_s_);
  end.update_s = host_.line(HostMemory::kUpdate).busy_s(now_s_);
  ends_.push_back(end);
  ++step_;
  operator_ = 0;
  posted_ = gpu_updates_pushed_ = stall_paid_ = false;
  next_fetch_ = first_ahead_ = {};
  next_put_ = next_get_ = 0;
  forget_chunks();
  return true;
}

StepTimes StepSimulation::last_step() const {
  const StepEnd &end = ends_.back(), &begin = last_begin();
  StepTimes times;
  times.step_s = end.at_s - begin.at_s;
  times.compute_s = end.compute_s - begin.compute_s;
  times.h2d_s = end.h2d_s - begin.h2d_s;
  times.d2h_s = end.d2h_s - begin.d2h_s;
  times.g2g_s = end.g2g_s - begin.g2g_s;
  times.update_s = end.update_s - begin.update_s;
  times.exposed_s = std::max(0.0, times.step_s - times.compute_s);
  times.h2d_bytes = end.h2d_bytes - begin.h2d_bytes;
  times.d2h_bytes = end.d2h_bytes - begin.d2h_bytes;
  times.g2g_bytes = end.g2g_bytes - begin.g2g_bytes;
  times.gathers = end.gathers - begin.gathers;
  const std::pair<Leg, double> legs[] = {{Leg::kCompute, times.compute_s},
                                         {Leg::kH2d, times.h2d_s},
                                         {Leg::kD2h, times.d2h_s},
                                         {Leg::kG2g, times.g2g_s},
                                         {Leg::kUpdate, times.update_s}};
  times.busiest = std::max_element(std::begin(legs), std::end(legs), [](auto& a, auto& b) {
                    return a.second < b.second;
                  })->first;
  return times;
}

// Those that reach into the step, cut at its ends.
std::vector<StepSpan> StepSimulation::last_spans() const {
  const double from_s = last_begin().at_s, to_s = ends_.back().at_s;
  std::vector<StepSpan> spans;
  const auto add = [&](const StepSpan& span) {
    const double begin_s = std::max(span.begin_s, from_s), end_s = std::min(span.end_s, to_s);
    if (end_s <= begin_s) return;
    spans.push_back({span.row, span.index, begin_s - from_s, end_s - from_s, span.activations});
  };
  for (const StepSpan& span : spans_) add(span);
  const auto add_open = [&](const Line& line, StepSpan::Row row) {
    if (line.busy) {
      add({row, line.job.chunk, line.begin_s, to_s, line.job.of_activations()});
    }
  };
  add_open(host_.line(HostMemory::kUp), StepSpan::Row::kH2d);
  add_open(host_.line(HostMemory::kDown), StepSpan::Row::kD2h);
  add_open(g2g_.line, StepSpan::Row::kG2g);
  add_open(host_.line(HostMemory::kUpdate), StepSpan::Row::kUpdate);
  std::stable_sort(spans.begin(), spans.end(), [](const StepSpan& a, const StepSpan& b) {
    return a.row != b.row ? a.row < b.row : a.begin_s < b.begin_s;
  });
  return spans;
}

}  // namespace elixir::planner
