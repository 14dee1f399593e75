#include "daemon/session_memory.h"

#include <numa.h>
#include <numaif.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <utility>

#include "daemon/placement.h"

namespace elixir::daemon {
namespace {

// Preferred, not bound: where a node is full, memory of another one is slower, but a strict policy
// would call the out-of-memory killer.
void prefer_node(void* address, uint64_t bytes, int node) {
  if (node < 0 || numa_available() < 0) return;
  bitmask* nodes = numa_allocate_nodemask();
  numa_bitmask_setbit(nodes, static_cast<unsigned>(node));
  ::mbind(address, bytes, MPOL_PREFERRED, nodes->maskp, nodes->size + 1, 0);  // advice
  numa_free_nodemask(nodes);
}

// Swapped ones count; a hole's do not.
int64_t blocks_of(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 ? info.st_blocks : 0;
}

uint64_t page_bytes_of(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 ? static_cast<uint64_t>(info.st_blksize) : 0;
}

void write_header(const shm::Segment& control, const SessionMemory::Options& options) {
  auto* header = new (control.data()) shm::ControlHeader{};
  header->magic = shm::kControlMagic;
  header->layout_version = shm::kLayoutVersion;
  header->header_bytes = sizeof(shm::ControlHeader);
  header->session_id = options.session_id;
  header->rank = options.rank;
  header->ranks = options.shape.ranks;
  header->compute_type = static_cast<uint32_t>(options.shape.type);
  header->n_chunks = options.shape.n_chunks;
  header->chunk_numel = options.shape.chunk_numel;
  header->shard_numel = options.shape.shard_numel();
}

}  // namespace

Result<SessionMemory> SessionMemory::create(const Options& options) {
  const shm::Shape& shape = options.shape;
  ELIXIR_CHECK(options.rank < shape.ranks, "rank {} of {}", options.rank, shape.ranks);
  std::vector<const void*> locked;
  const auto prepare = [&](void* address, uint64_t bytes) {
    prefer_node(address, bytes, options.numa_node);
    if (lock_as_filled(address, bytes)) locked.push_back(address);
  };
  Result<shm::Segment> control =
      shm::Segment::create_unfilled("elixir-control", shape.control_bytes(), prepare);
  if (!control.ok()) return control.status();
  Result<shm::Segment> grads =
      shm::Segment::create_unfilled("elixir-grads", shape.grads_bytes(), prepare);
  if (!grads.ok()) return grads.status();
  Result<shm::Segment> params =
      shm::Segment::create_unfilled("elixir-params", shape.params_bytes(), prepare);
  if (!params.ok()) return params.status();
  Result<shm::Segment> state =
      shm::Segment::create_unfilled("elixir-state", shape.state_bytes(), prepare);
  if (!state.ok()) return state.status();
  Result<shm::Segment> sums =
      options.sums ? shm::Segment::create_unfilled("elixir-sums", shape.sums_bytes(), prepare)
                   : shm::Segment::create_empty("elixir-sums", shape.sums_bytes(), prepare);
  if (!sums.ok()) return sums.status();
  std::optional<shm::Segment> swing;
  if (shape.n_swing_chunks > 0) {
    Result<shm::Segment> made =
        shm::Segment::create_unfilled("elixir-swing", shape.swing_bytes(), prepare);
    if (!made.ok()) return made.status();
    swing.emplace(std::move(*made));
  }
  SessionMemory memory(shape, std::move(*control), std::move(*grads), std::move(*params),
                       std::move(*state), std::move(*sums), std::move(swing));
  std::vector<const shm::Segment*> filled = {&memory.control_, &memory.grads_, &memory.params_,
                                             &memory.state_};
  if (memory.swing_) filled.push_back(&*memory.swing_);
  if (options.sums) filled.push_back(&memory.sums_);
  ELIXIR_RETURN_IF_ERROR(fill_segments(filled, options.fill));
  write_header(memory.control_, options);
  memory.put_chunks_first();
  ELIXIR_RETURN_IF_ERROR(memory.open_for_reading());
  memory.guard(filled);
  memory.locked_ = std::move(locked);
  for (const shm::Segment* segment : filled) memory.keep_in_memory(*segment);
  if (options.numa_node >= 0) memory.off_node_bytes_ = bytes_off_node(filled, options.numa_node);
  return memory;
}

void SessionMemory::put_chunks_first() const {
  for (uint32_t chunk = 0; chunk < shape_.n_chunks; ++chunk) {
    chunk_record(chunk).slot.store(shape_.first_slot(chunk), std::memory_order_relaxed);
  }
}

void SessionMemory::sums_filled() {
  const bool guarded = std::any_of(guarded_.begin(), guarded_.end(),
                                   [&](const Guarded& one) { return one.fd == sums_.fd(); });
  if (guarded) return;
  guard(std::array<const shm::Segment*, 1>{&sums_});
  keep_in_memory(sums_);
}

// Or watch it.
void SessionMemory::keep_in_memory(const shm::Segment& filled) {
  if (std::find(locked_.begin(), locked_.end(), filled.data()) != locked_.end()) {
    locked_bytes_ += filled.bytes();
  } else {
    swap_watch_.add({filled.data(), filled.bytes()});
  }
}

void SessionMemory::guard(std::span<const shm::Segment* const> filled) {
  for (const shm::Segment* segment : filled) {
    guarded_.push_back(
        {segment->fd(), blocks_of(segment->fd()),
         SigbusGuard(segment->data(), segment->bytes(), page_bytes_of(segment->fd()))});
  }
}

bool SessionMemory::lost_pages() const {
  return std::any_of(guarded_.begin(), guarded_.end(), [](const Guarded& segment) {
    return segment.guard.hit() || blocks_of(segment.fd) < segment.blocks;
  });
}

void SessionMemory::close_for_ranks() {
  for (UniqueFd* fd : {&params_for_reading_, &state_for_reading_, &sums_for_reading_,
                       &swing_for_reading_, &grads_for_reading_}) {
    fd->reset();
  }
}

Status SessionMemory::open_for_reading() {
  const auto open = [](const shm::Segment& segment, UniqueFd* fd) {
    Result<UniqueFd> opened = segment.read_only_fd();
    if (opened.ok()) *fd = std::move(*opened);
    return opened.status();
  };
  ELIXIR_RETURN_IF_ERROR(open(params_, &params_for_reading_));
  ELIXIR_RETURN_IF_ERROR(open(state_, &state_for_reading_));
  if (swing_) ELIXIR_RETURN_IF_ERROR(open(*swing_, &swing_for_reading_));
  ELIXIR_RETURN_IF_ERROR(open(grads_, &grads_for_reading_));
  return open(sums_, &sums_for_reading_);
}

std::vector<int> SessionMemory::for_ranks(bool to_be_pinned, bool to_owner) const {
  std::vector<int> fds = {to_be_pinned ? params_.fd() : params_for_reading_.get(),
                          state_for_reading_.get()};
  if (!swing_) {
    if (shape_.side_bytes() > 0) fds.push_back(grads_for_reading_.get());
    return fds;
  }
  fds.push_back(to_be_pinned || to_owner ? swing_->fd() : swing_for_reading_.get());
  // A trainer's update takes all ranks' gradients of its shard, as a worker's does.
  if (shape_.exchange == shm::Exchange::kHost) {
    fds.push_back(to_be_pinned ? grads_.fd() : grads_for_reading_.get());
  }
  return fds;
}

Status SessionMemory::close_to_new_writers() {
  for (shm::Segment* segment : {&control_, &grads_, &params_, &state_, &sums_}) {
    ELIXIR_RETURN_IF_ERROR(segment->close_to_new_writers());
  }
  return swing_ ? swing_->close_to_new_writers() : Status();
}

shm::StepRecord SessionMemory::copy_step_record(uint32_t step) const {
  shm::StepRecord copy;
  std::memcpy(&copy,
              control_.data() + shape_.step_records_offset() +
                  (step % shm::kStepRing) * sizeof(shm::StepRecord),
              sizeof copy);
  return copy;
}

std::byte* SessionMemory::master(uint32_t slot, uint64_t at) const {
  if (master_bytes(shape_.type) == 0) return nullptr;
  if (shape_.in_swing_memory(slot)) {
    return swing_->data() + shape_.swing_slot_offset(slot) + shape_.image_master_offset() +
           at * master_bytes(shape_.type);
  }
  return state_.data() + shape_.master_offset() + index(slot, at) * master_bytes(shape_.type);
}

float* SessionMemory::moment(uint32_t moment, uint32_t slot, uint64_t at) const {
  if (shape_.in_swing_memory(slot)) {
    std::byte* const first = swing_->data() + shape_.swing_slot_offset(slot);
    return reinterpret_cast<float*>(first + shape_.image_moment_offset(moment)) + at;
  }
  return reinterpret_cast<float*>(state_.data() + shape_.moment_offset(moment)) + index(slot, at);
}

optim::StatePlace SessionMemory::place(uint32_t slot, uint64_t at) const {
  optim::StatePlace place{.param = param(slot, at), .master = master(slot, at)};
  for (uint32_t i = 0; i < shape_.n_moments; ++i) place.moments[i] = moment(i, slot, at);
  return place;
}

}  // namespace elixir::daemon
