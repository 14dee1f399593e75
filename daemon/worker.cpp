// Data path, hop 4 of 6.
//
// A worker takes one slice: sums the ranks' gradients, adds up their squares, updates the states
// and writes the param slot, as the chunk's task says.

#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/clock.h"
#include "daemon/job_work.h"
#include "optim_cpu/gradients.h"
#include "optim_cpu/master.h"
#include "shm/load_part.h"

namespace elixir::daemon {

static_assert(shm::kMaxLocalRanks <= optim::kMaxGrads);

JobWork::JobWork(Options options)
    : options_(std::move(options)),
      isa_(optim::best_isa()),
      tasks_(options_.shape.n_chunks),
      revisions_(options_.shape.n_chunks * options_.ranks.size()),
      queue_(options_.slices.by_group.size()),
      cursors_(options_.slices.by_group.size()),
      progress_(std::make_unique<Progress[]>(options_.shape.n_chunks)) {
  ELIXIR_CHECK(options_.thread_limits.size() == queue_.size(), "{} groups of {} have slices",
               queue_.size(), options_.thread_limits.size());
  ELIXIR_CHECK(!options_.ranks.empty() && options_.ranks.size() <= optim::kMaxGrads,
               "{} ranks on a node", options_.ranks.size());
  for (size_t group = 0; group < queue_.size(); ++group) {
    queue_[group].reserve(options_.slices.by_group[group].size());
  }
  if (options_.shape.exchange == shm::Exchange::kHost) {
    squares_ = std::make_unique<SharedNorm[]>(options_.shape.n_chunks);
  }
}

// Relaxed here and in begin_*: no worker holds this object; the pool's mutex publishes it.
void JobWork::rewind() {
  for (size_t group = 0; group < cursors_.size(); ++group) {
    cursors_[group].next.store(0, std::memory_order_relaxed);
    cursors_[group].end = static_cast<uint32_t>(queue_[group].size());
  }
}

void JobWork::queue_chunk(uint32_t chunk) {
  for (size_t group = 0; group < queue_.size(); ++group) {
    const std::vector<uint32_t>& first = options_.slices.chunk_first[group];
    for (uint32_t slice = first[chunk]; slice < first[chunk + 1]; ++slice) {
      queue_[group].push_back(slice);
    }
  }
}

void JobWork::begin_tasks(std::span<const ChunkTask> tasks, const StepWork& step,
                          const GradTracker& tracker, int64_t begin_ns) {
  ELIXIR_CHECK(!tasks.empty() && tasks.size() <= tasks_.size(), "{} tasks on {} chunks",
               tasks.size(), tasks_.size());
  ELIXIR_CHECK(chunks_left() == 0 && exhausted(), "{} tasks are still in flight", chunks_left());
  kind_ = Kind::kTasks;
  step_ = step;
  begin_ns_ = begin_ns;
  for (std::vector<uint32_t>& queue : queue_) queue.clear();
  const auto ranks = static_cast<uint32_t>(options_.ranks.size());
  for (const ChunkTask& task : tasks) {
    const uint32_t chunk = task.chunk;
    ELIXIR_CHECK(chunk < tasks_.size() && (!task.squares || squares_ != nullptr),
                 "a task on chunk {} of {}{}", chunk, tasks_.size(),
                 task.squares ? ", for its squares" : "");
    tasks_[chunk] = task;
    for (uint32_t rank = 0; (task.sum_up || task.dropped != 0) && rank < ranks; ++rank) {
      revisions_[uint64_t{chunk} * ranks + rank] = tracker.noted(rank, chunk).revision;
    }
    Progress& progress = progress_[chunk];
    progress.slices_left.store(options_.slices.slices_of_chunk[chunk], std::memory_order_relaxed);
    progress.update_begin_ns.store(0, std::memory_order_relaxed);
    if (task.squares) {
      for (auto& limb : squares_[chunk].limb) limb.store(0, std::memory_order_relaxed);
      squares_[chunk].nonfinite.store(0, std::memory_order_relaxed);
    }
    queue_chunk(chunk);
  }
  chunks_left_.store(static_cast<uint32_t>(tasks.size()), std::memory_order_relaxed);
  rewind();
}

void JobWork::begin_load(uint32_t rank, uint32_t chunk, shm::LoadPart part) {
  ELIXIR_CHECK(chunks_left() == 0 && exhausted(), "{} tasks are still in flight", chunks_left());
  ELIXIR_CHECK(rank < options_.ranks.size() && chunk < options_.slices.slices_of_chunk.size(),
               "a load by rank {} of {}, of chunk {} of {}", rank, options_.ranks.size(), chunk,
               options_.slices.slices_of_chunk.size());
  kind_ = Kind::kLoad;
  loader_ = rank;
  part_ = part;
  for (std::vector<uint32_t>& queue : queue_) queue.clear();
  queue_chunk(chunk);
  rewind();
}

bool JobWork::exhausted(uint32_t group) const {
  // Relaxed: only a hint for who takes the work; completion is ordered by slices_left.
  return cursors_[group].next.load(std::memory_order_relaxed) >= cursors_[group].end;
}

bool JobWork::exhausted() const {
  for (uint32_t group = 0; group < cursors_.size(); ++group) {
    if (!exhausted(group)) return false;
  }
  return true;
}

bool JobWork::run_slice(uint32_t group, uint32_t worker) {
  Cursor& cursor = cursors_[group];
  // The look first keeps the counter from running on when workers poll an exhausted job.
  if (cursor.next.load(std::memory_order_relaxed) >= cursor.end) return false;
  const uint32_t taken = cursor.next.fetch_add(1, std::memory_order_relaxed);
  if (taken >= cursor.end) return false;
  const Slice& slice = options_.slices.by_group[group][queue_[group][taken]];
  if (kind_ == Kind::kLoad) {
    load(slice);
  } else {
    run_task(slice, worker);
    complete_slice(slice.chunk);
  }
  return true;
}

void JobWork::run_task(const Slice& slice, uint32_t worker) {
  const ChunkTask& task = tasks_[slice.chunk];
  if (task.sum_up || task.squares) take(slice, task);
  if (task.copy) snapshot_->copy(slice);
  if (task.update || task.out_of_place()) {
    if ((task.owners >> slice.rank & 1) != 0) update(slice, task, worker);
  }
}

// What a rank's grad slot holds for the elements of the slice.
const std::byte* JobWork::grad(const Slice& slice, uint32_t rank) const {
  const bool whole_chunks = options_.shape.exchange == shm::Exchange::kHost;
  const uint64_t start =
      whole_chunks ? options_.shape.shard_begin(options_.ranks[slice.rank].shard) : 0;
  return options_.ranks[rank].memory->grad(slice.chunk, start + slice.begin);
}

// The gradients of the slice, of those of `ranks` that have some: with the host exchange each of
// them, else the one that keeps the shard.
int JobWork::gather_grads(const Slice& slice, uint64_t ranks, const void** grads) const {
  if (options_.shape.exchange == shm::Exchange::kCollective) {
    grads[0] = grad(slice, slice.rank);
    return static_cast<int>(ranks >> slice.rank & 1);
  }
  int n_grads = 0;
  for (uint32_t rank = 0; rank < options_.ranks.size(); ++rank) {
    if ((ranks >> rank & 1) != 0) grads[n_grads++] = grad(slice, rank);
  }
  return n_grads;
}

void JobWork::take(const Slice& slice, const ChunkTask& task) {
  float* const sum = options_.ranks[slice.rank].memory->grad_sum(slice.chunk, slice.begin);
  const void* grads[optim::kMaxGrads];
  optim::GradientSpan span;
  span.grads = grads;
  span.numel = slice.numel;
  if (task.of_sums && !task.sum_up) {  // nothing is new
    span.type = ComputeType::kFp32;
    span.n_grads = 1;
    grads[0] = sum;
  } else {
    span.type = options_.shape.type;
    span.n_grads = gather_grads(slice, task.sum_up ? task.ranks : ~uint64_t{0}, grads);
    span.grad_sum = task.sum_up ? sum : nullptr;
    span.begins_sum = task.begins_sum;
  }
  if (span.n_grads == 0) return;
  NormSum squares = {};
  optim::take_gradients(isa_, span, task.squares ? &squares : nullptr);
  if (task.squares) add_squares(slice.chunk, squares);
}

void JobWork::add_squares(uint32_t chunk, const NormSum& squares) {
  SharedNorm& sum = squares_[chunk];
  for (int i = 0; i < kNormLimbs; ++i) {
    if (squares.limb[i] == 0) continue;
    sum.limb[i].fetch_add(squares.limb[i], std::memory_order_relaxed);
  }
  if (squares.nonfinite == 0) return;
  sum.nonfinite.fetch_add(squares.nonfinite, std::memory_order_relaxed);
}

NormSum JobWork::squares() const {
  ELIXIR_CHECK(squares_ != nullptr, "with the collective exchange trainers sum up squares");
  NormSum total = {};
  for (uint32_t chunk = 0; chunk < options_.shape.n_chunks; ++chunk) {
    NormSum part;
    for (int i = 0; i < kNormLimbs; ++i) {
      part.limb[i] = squares_[chunk].limb[i].load(std::memory_order_relaxed);
    }
    part.nonfinite = squares_[chunk].nonfinite.load(std::memory_order_relaxed);
    add(total, part);
  }
  return total;
}

void JobWork::update(const Slice& slice, const ChunkTask& task, uint32_t worker) {
  // Published with the chunk, by way of slices_left. Of two workers that begin it together,
  // either's.
  std::atomic<uint64_t>& begin_ns = progress_[slice.chunk].update_begin_ns;
  if (begin_ns.load(std::memory_order_relaxed) == 0) {
    begin_ns.store(static_cast<uint64_t>(monotonic_ns()), std::memory_order_relaxed);
  }
  // Parameters of one kind are updated together: as a rule all of the slice.
  const uint64_t shard_begin = options_.shape.shard_begin(options_.ranks[slice.rank].shard);
  const uint64_t end = slice.begin + slice.numel;
  const auto starts = options_.updates->starts(slice.chunk);
  auto next = std::upper_bound(
      starts.begin(), starts.end(), shard_begin + slice.begin,
      [](uint64_t offset, const ParameterUpdates::Start& start) { return offset < start.offset; });
  Slice run = slice;
  if (next == starts.begin()) return copy_run(run, task);  // padding alone
  const optim::AdamStep* step = options_.updates->step_of(std::prev(next)->part);
  for (;; ++next) {
    const bool last = next == starts.end() || next->offset >= shard_begin + end;
    const optim::AdamStep* const others = last ? nullptr : options_.updates->step_of(next->part);
    if (!last && others == step) continue;
    const uint64_t run_end = last ? end : next->offset - shard_begin;
    run.numel = run_end - run.begin;
    if (step != nullptr) {
      update_run(run, task, worker, *step);
    } else {
      copy_run(run, task);
    }
    if (last) return;
    run.begin = run_end;
    step = others;
  }
}

void JobWork::update_run(const Slice& run, const ChunkTask& task, uint32_t worker,
                         const optim::AdamStep& step) {
  const SessionMemory& mine = *options_.ranks[run.rank].memory;
  const void* grads[optim::kMaxGrads];
  optim::UpdateSpan span;
  span.type = options_.shape.type;
  if (task.of_sums) {
    span.grad_sum = mine.grad_sum(run.chunk, run.begin);
  } else {
    span.n_grads = gather_grads(run, ~uint64_t{0}, grads);
    span.grads = grads;
  }
  const uint32_t slot = options_.slots->of(run.chunk);
  const optim::StatePlace from = mine.place(slot, run.begin);
  span.param = from.param;
  span.master = from.master;
  std::copy(std::begin(from.moments), std::end(from.moments), std::begin(span.moments));
  span.numel = run.numel;
  if (!task.out_of_place()) {
    optim::RedoRecord* const redo = options_.redo_records ? mine.redo(worker) : nullptr;
    return optim::adam_update(isa_, span, step, redo, mine.index(slot, run.begin));
  }
  const optim::StatePlace to = mine.place(task.slot, run.begin);
  span.results = &to;
  optim::adam_update(isa_, span, step);
}

// What an update out of place leaves as it is goes with the chunk.
void JobWork::copy_run(const Slice& run, const ChunkTask& task) {
  if (!task.out_of_place()) return;
  const SessionMemory& mine = *options_.ranks[run.rank].memory;
  const optim::StatePlace from = mine.place(options_.slots->of(run.chunk), run.begin);
  const optim::StatePlace to = mine.place(task.slot, run.begin);
  std::memcpy(to.param, from.param, run.numel * element_bytes(options_.shape.type));
  if (to.master != nullptr) {
    std::memcpy(to.master, from.master, run.numel * master_bytes(options_.shape.type));
  }
  for (uint32_t i = 0; i < options_.shape.n_moments; ++i) {
    std::memcpy(to.moments[i], from.moments[i], run.numel * sizeof(float));
  }
}

// 16-bit types arrive in two passes. The first half waits in the param slot, where nobody looks
// before the job is loaded.
void JobWork::load(const Slice& slice) {
  constexpr uint64_t kPieceNumel = 1024;
  const bool own_alone = options_.shape.exchange == shm::Exchange::kCollective;
  if (own_alone && slice.rank != loader_) return;
  const SessionMemory& mine = *options_.ranks[slice.rank].memory;
  Slice from = slice;
  from.chunk = options_.shape.load_slot(slice.chunk);  // whose slot carries it
  const std::byte* source = grad(from, loader_);
  const uint32_t slot = options_.slots->of(slice.chunk);
  std::byte* param = mine.param(slot, slice.begin);
  if (part_ != shm::LoadPart::kLowHalf) {
    std::memcpy(param, source, slice.numel * element_bytes(options_.shape.type));
    return;
  }
  float values[kPieceNumel];
  for (uint64_t at = 0; at < slice.numel; at += kPieceNumel) {
    const uint64_t numel = std::min(kPieceNumel, slice.numel - at);
    shm::take_part(param + at * sizeof(uint16_t), numel, shm::LoadPart::kHighHalf, values);
    shm::take_part(source + at * sizeof(uint16_t), numel, shm::LoadPart::kLowHalf, values);
    optim::load_master(options_.shape.type, values, numel, mine.param(slot, slice.begin + at),
                       mine.master(slot, slice.begin + at));
  }
}

}  // namespace elixir::daemon
