#include "daemon/snapshot.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace elixir::daemon {
namespace {

constexpr uint32_t kNoSlot = UINT32_MAX;

}  // namespace

Snapshot::Snapshot(const shm::Shape& shape, const StateSlots& slots, std::vector<Rank> ranks,
                   uint64_t shadow_bytes)
    : shape_(shape),
      ranks_(std::move(ranks)),
      slots_(slots),
      slot_bytes_(round_up(ranks_.size() * shape.image_bytes(), shm::kSectionAlignBytes)),
      slot_of_(shape.total_chunks(), kNoSlot),
      state_(shape.total_chunks(), State::kLive),
      copies_(shape.n_chunks),
      staged_(ranks_.size(), 0),
      to_copy_(shape.first_swing()),
      left_(shape.total_chunks()),
      hold_(shape.total_chunks(), Hold::kNone) {
  released_.reserve(shape.n_chunks);
  for (uint32_t chunk = shape_.n_chunks; chunk < shape_.all_chunks(); ++chunk) {
    state_[chunk] = State::kAwaited;
  }
  n_slots_ = std::min<uint64_t>(shadow_bytes / slot_bytes_, shape_.first_swing());
  if (n_slots_ == 0) return;
  void* const memory = ::mmap(nullptr, n_slots_ * slot_bytes_, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {  // updates are held instead
    n_slots_ = 0;
    return;
  }
  // Advice: a crash dump without them; and huge pages, which are filled in a fraction of the time.
  ::madvise(memory, n_slots_ * slot_bytes_, MADV_DONTDUMP);
  ::madvise(memory, n_slots_ * slot_bytes_, MADV_HUGEPAGE);
  shadow_ = static_cast<std::byte*>(memory);
  for (uint64_t slot = n_slots_; slot > 0; --slot) {
    free_slots_.push_back(static_cast<uint32_t>(slot - 1));
  }
}

Snapshot::~Snapshot() {
  if (shadow_ != nullptr) ::munmap(shadow_, n_slots_ * slot_bytes_);
}

std::byte* Snapshot::slot_image(uint32_t slot, uint32_t local_rank) const {
  return shadow_ + slot * slot_bytes_ + local_rank * shape_.image_bytes();
}

// ---- the event loop ----

Snapshot::Gate Snapshot::ask(uint32_t chunk, uint32_t slot) {
  ELIXIR_CHECK(chunk < shape_.n_chunks, "chunk {} of {} is updated", chunk, shape_.n_chunks);
  const MutexLock lock(mutex_);
  if (over_ || slot != slots_.of(chunk)) return Gate::kOpen;
  State& state = state_[chunk];
  if (state == State::kPutBack || (state == State::kLive && take_slot(chunk))) {
    state = State::kCopying;
    return Gate::kCopy;
  }
  if (state != State::kLive && state != State::kWritingLive) return Gate::kOpen;
  hold_[chunk] = Hold::kUpdate;
  return Gate::kHeld;
}

bool Snapshot::hold(uint32_t chunk, uint32_t slot) {
  const MutexLock lock(mutex_);
  const State state = state_[chunk];
  if (over_ || slot != slots_.of(chunk) || state == State::kCopied ||
      state == State::kWritingCopy || state == State::kWritten) {
    return false;
  }
  hold_[chunk] = Hold::kSlot;
  return true;
}

void Snapshot::take_released(std::vector<uint32_t>* chunks) {
  ELIXIR_CHECK(chunks->capacity() >= shape_.n_chunks, "room for {} of {} chunks",
               chunks->capacity(), shape_.n_chunks);
  chunks->clear();
  const MutexLock lock(mutex_);
  std::swap(released_, *chunks);
}

void Snapshot::release(uint32_t chunk) {
  if (std::exchange(hold_[chunk], Hold::kNone) != Hold::kNone) released_.push_back(chunk);
}

// Where its copy goes. False: there is no room.
bool Snapshot::take_slot(uint32_t chunk) {
  if (free_slots_.empty()) return false;
  slot_of_[chunk] = free_slots_.back();
  free_slots_.pop_back();
  used_slots_peak_ = std::max(used_slots_peak_, n_slots_ - free_slots_.size());
  return true;
}

bool Snapshot::staged(uint32_t local_rank, uint32_t chunk) {
  const MutexLock lock(mutex_);
  uint32_t& count = staged_[local_rank];
  const bool taken = count == staged_written_;  // the one before
  if (!shape_.on_gpu(chunk) || chunk != shape_.n_chunks + count || !taken) return false;
  ++count;
  const bool all = std::all_of(staged_.begin(), staged_.end(),
                               [count](uint32_t other) { return other >= count; });
  if (!all) return true;
  state_[chunk] = State::kStaged;
  changed_.notify_all();
  return true;
}

uint32_t Snapshot::staged_written() const {
  const MutexLock lock(mutex_);
  return staged_written_;
}

bool Snapshot::awaits_staging() const {
  const MutexLock lock(mutex_);
  return !over_ && shape_.n_gpu_chunks > *std::min_element(staged_.begin(), staged_.end());
}

void Snapshot::end() {
  const MutexLock lock(mutex_);
  if (std::exchange(over_, true)) return;
  for (uint32_t chunk = 0; chunk < shape_.n_chunks; ++chunk) release(chunk);
  changed_.notify_all();
}

uint64_t Snapshot::shadow_peak_bytes() const {
  const MutexLock lock(mutex_);
  return used_slots_peak_ * slot_bytes_;
}

uint64_t Snapshot::shadow_there_bytes() const {
  const MutexLock lock(mutex_);
  return std::max(used_slots_peak_, taken_slots_) * slot_bytes_;
}

// ---- workers ----

void Snapshot::copy(const Slice& slice) {
  std::byte* const image = slot_image(slot_of_[slice.chunk], slice.rank);
  const SessionMemory& from = *ranks_[slice.rank].memory;
  const uint64_t element = element_bytes(shape_.type), master = master_bytes(shape_.type);
  const uint32_t slot = slots_.of(slice.chunk);
  std::memcpy(image + slice.begin * element, from.param(slot, slice.begin), slice.numel * element);
  if (master > 0) {
    std::memcpy(image + shape_.image_master_offset() + slice.begin * master,
                from.master(slot, slice.begin), slice.numel * master);
  }
  for (uint32_t i = 0; i < shape_.n_moments; ++i) {
    std::memcpy(image + shape_.image_moment_offset(i) + slice.begin * sizeof(float),
                from.moment(i, slot, slice.begin), slice.numel * sizeof(float));
  }
}

void Snapshot::copied(uint32_t chunk) {
  const MutexLock lock(mutex_);
  ELIXIR_CHECK(state_[chunk] == State::kCopying, "chunk {} is copied, and nobody asked", chunk);
  state_[chunk] = State::kCopied;
  copies_.push_back(chunk);
  changed_.notify_one();
}

// ---- writers ----

// In which order they are written while they are live.
uint32_t Snapshot::in_order(uint32_t number) const {
  if (number >= shape_.n_chunks) return number;
  return (number + shape_.first_swing()) % shape_.n_chunks;
}

std::optional<uint32_t> Snapshot::take() {
  const uint32_t staged = shape_.n_chunks + staged_written_;  // one after the other
  if (shape_.on_gpu(staged) && state_[staged] == State::kStaged) {
    state_[staged] = State::kWritingStaged;
    return staged;
  }
  for (; n_begun_ < state_.size(); ++n_begun_) {
    const uint32_t chunk = in_order(n_begun_);
    if (state_[chunk] != State::kLive) continue;
    state_[chunk] = State::kWritingLive;
    return chunk;
  }
  const uint32_t chunk = copies_.first();
  if (chunk == ChunkList::kNone) return std::nullopt;
  copies_.remove(chunk);
  state_[chunk] = State::kWritingCopy;
  return chunk;
}

std::optional<Snapshot::Item> Snapshot::next() {
  MutexLock lock(mutex_);
  for (;;) {
    if (over_) return std::nullopt;
    if (const std::optional<uint32_t> chunk = take()) {
      ++in_hand_;
      return item_of(*chunk);
    }
    if (left_ == in_hand_) return std::nullopt;
    changed_.wait(lock);
  }
}

Snapshot::Item Snapshot::item_of(uint32_t chunk) const {
  Item item;
  item.chunk = chunk;
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    const State state = state_[chunk];
    item.ranks.push_back(state == State::kWritingStaged ? image_arrays(ranks_[rank].staging)
                         : state == State::kWritingCopy
                             ? image_arrays(slot_image(slot_of_[chunk], rank))
                             : live_arrays(rank, chunk));
    item.ranks.back().shard = ranks_[rank].shard;
  }
  return item;
}

Snapshot::Arrays Snapshot::image_arrays(const std::byte* image) const {
  Arrays arrays;
  arrays.param = image;
  if (master_bytes(shape_.type) > 0) arrays.master = image + shape_.image_master_offset();
  for (uint32_t i = 0; i < shape_.n_moments; ++i) {
    arrays.moments[i] = image + shape_.image_moment_offset(i);
  }
  return arrays;
}

Snapshot::Arrays Snapshot::live_arrays(uint32_t local_rank, uint32_t chunk) const {
  const SessionMemory& memory = *ranks_[local_rank].memory;
  Arrays arrays;
  const uint32_t slot = slots_.of(chunk);
  arrays.param = memory.param(slot, 0);
  if (shape_.frozen(chunk)) return arrays;
  arrays.master = memory.master(slot, 0);
  for (uint32_t i = 0; i < shape_.n_moments; ++i) {
    arrays.moments[i] = reinterpret_cast<const std::byte*>(memory.moment(i, slot, 0));
  }
  return arrays;
}

void Snapshot::take_shadow_memory() {
  for (uint64_t slot = 0;; ++slot) {
    {
      const MutexLock lock(mutex_);
      taken_slots_ = slot;
      if (over_ || to_copy_ <= slot || slot == n_slots_) return;
    }
#ifdef MADV_POPULATE_WRITE  // advice, from Linux 5.14 on
    if (::madvise(shadow_ + slot * slot_bytes_, slot_bytes_, MADV_POPULATE_WRITE) != 0) return;
#endif
  }
}

// Its update comes: the event loop holds it, and asks again when it is woken.
bool Snapshot::put_back_if_wanted(uint32_t chunk) {
  const MutexLock lock(mutex_);
  const bool wanted = hold_[chunk] == Hold::kUpdate && state_[chunk] == State::kWritingLive;
  if (!wanted || !take_slot(chunk)) return false;
  state_[chunk] = State::kPutBack;
  --in_hand_;
  release(chunk);
  return true;
}

bool Snapshot::written(uint32_t chunk) {
  const MutexLock lock(mutex_);
  if (over_) return false;  // it may have been updated meanwhile
  State& state = state_[chunk];
  const bool staged = state == State::kWritingStaged;
  if (staged) ++staged_written_;
  if (chunk < shape_.first_swing()) --to_copy_;
  const bool none_released = released_.empty();
  if (state == State::kWritingCopy) free_slots_.push_back(slot_of_[chunk]);
  state = State::kWritten;
  release(chunk);
  --left_;
  --in_hand_;
  if (left_ == in_hand_) changed_.notify_all();
  return staged || (none_released && !released_.empty());  // those before have woken it
}

bool Snapshot::all_written() const {
  const MutexLock lock(mutex_);
  return left_ == 0;
}

}  // namespace elixir::daemon
