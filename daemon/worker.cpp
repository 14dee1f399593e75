// Data path, hop 4 of 6.
//
// A worker takes one slice: sums the ranks' gradients, updates the states, writes the param slot.

#include <cstring>

#include "daemon/job_work.h"
#include "optim_cpu/master.h"
#include "shm/load_part.h"

namespace elixir::daemon {

static_assert(shm::kMaxLocalRanks <= optim::kMaxGrads);

JobWork::JobWork(Options options)
    : options_(std::move(options)),
      isa_(optim::best_isa()),
      cursors_(options_.slices.by_group.size()),
      slices_left_(std::make_unique<std::atomic<uint32_t>[]>(options_.shape.n_chunks)) {}

void JobWork::begin_step(uint32_t step, const optim::AdamStep& constants, int64_t commit_ns) {
  kind_ = Kind::kStep;
  step_ = step;
  constants_ = constants;
  commit_ns_ = commit_ns;
  // Relaxed: no worker holds this object; the pool's mutex publishes it.
  for (uint32_t chunk = 0; chunk < options_.shape.n_chunks; ++chunk) {
    slices_left_[chunk].store(options_.slices.slices_of_chunk[chunk], std::memory_order_relaxed);
  }
  chunks_left_.store(options_.shape.n_chunks, std::memory_order_relaxed);
  for (size_t group = 0; group < cursors_.size(); ++group) {
    cursors_[group].next.store(0, std::memory_order_relaxed);
    cursors_[group].end = static_cast<uint32_t>(options_.slices.by_group[group].size());
  }
}

void JobWork::begin_load(uint32_t rank, uint32_t chunk, shm::LoadPart part) {
  kind_ = Kind::kLoad;
  loader_ = rank;
  part_ = part;
  for (size_t group = 0; group < cursors_.size(); ++group) {
    const std::vector<uint32_t>& first = options_.slices.chunk_first[group];
    cursors_[group].next.store(first[chunk], std::memory_order_relaxed);
    cursors_[group].end = first[chunk + 1];
  }
}

bool JobWork::exhausted(uint32_t group) const {
  // Relaxed: only a hint for who takes the work; completion is ordered by slices_left_.
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
  const Slice& slice = options_.slices.by_group[group][taken];
  if (kind_ == Kind::kLoad) {
    load(slice);
  } else {
    update(slice, worker);
    complete_slice(slice.chunk);
  }
  return true;
}

// What a rank's grad slot holds for the elements of the slice.
const std::byte* JobWork::grad(const Slice& slice, uint32_t rank) const {
  const bool whole_chunks = options_.shape.exchange == shm::ExchangeKind::kHost;
  const uint64_t start =
      whole_chunks ? options_.shape.shard_begin(options_.ranks[slice.rank].shard) : 0;
  return options_.ranks[rank].memory->grad(slice.chunk, start + slice.begin);
}

void JobWork::update(const Slice& slice, uint32_t worker) {
  const SessionMemory& mine = *options_.ranks[slice.rank].memory;
  const void* grads[optim::kMaxGrads];
  optim::AdamSpan span;
  if (options_.shape.exchange == shm::ExchangeKind::kHost) {
    for (uint32_t rank = 0; rank < options_.shape.ranks; ++rank) grads[rank] = grad(slice, rank);
    span.n_grads = static_cast<int>(options_.shape.ranks);
  } else {
    grads[0] = grad(slice, slice.rank);
  }
  span.type = options_.shape.type;
  span.grads = grads;
  span.param = mine.param(slice.chunk, slice.begin);
  span.master = mine.master(slice.chunk, slice.begin);
  span.exp_avg = mine.exp_avg(slice.chunk, slice.begin);
  span.exp_avg_sq = mine.exp_avg_sq(slice.chunk, slice.begin);
  span.numel = slice.numel;
  optim::adam_update(isa_, span, constants_, mine.redo(worker),
                     mine.index(slice.chunk, slice.begin));
}

// 16-bit types arrive in two passes. The first half waits in the param slot, where nobody looks
// before the job is loaded.
void JobWork::load(const Slice& slice) {
  constexpr uint64_t kPieceNumel = 1024;
  const bool own_alone = options_.shape.exchange == shm::ExchangeKind::kCollective;
  if (own_alone && slice.rank != loader_) return;
  const SessionMemory& mine = *options_.ranks[slice.rank].memory;
  const std::byte* source = grad(slice, loader_);
  std::byte* param = mine.param(slice.chunk, slice.begin);
  if (part_ != shm::LoadPart::kLowHalf) {
    std::memcpy(param, source, slice.numel * element_bytes(options_.shape.type));
    return;
  }
  float values[kPieceNumel];
  for (uint64_t at = 0; at < slice.numel; at += kPieceNumel) {
    const uint64_t numel = std::min(kPieceNumel, slice.numel - at);
    shm::take_part(param + at * sizeof(uint16_t), numel, shm::LoadPart::kHighHalf, values);
    shm::take_part(source + at * sizeof(uint16_t), numel, shm::LoadPart::kLowHalf, values);
    optim::load_master(options_.shape.type, values, numel,
                       mine.param(slice.chunk, slice.begin + at),
                       mine.master(slice.chunk, slice.begin + at));
  }
}

}  // namespace elixir::daemon
