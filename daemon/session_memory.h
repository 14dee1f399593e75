#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "daemon/fill.h"
#include "daemon/memory_lock.h"
#include "daemon/sigbus_guard.h"
#include "optim_cpu/redo.h"
#include "shm/layout.h"
#include "shm/segment.h"
#include "shm/shape.h"

namespace elixir::daemon {

static_assert(sizeof(optim::RedoRecord) <= shm::kRedoRecordBytes);

// The memfds of one session, mapped, reserved in full and bound to a NUMA node. Movable; the
// memory is freed when it is destroyed here and unmapped by the trainers.
//
// A trainer can write control, grads and swing. If it page-locks the params that it reads, it can
// write them, too. So everything in control is copied before use. In the others any bits are valid
// values. Only elixird writes state and sums. The redo records in state say where something is
// being written.
class SessionMemory {
 public:
  struct Options {
    shm::Shape shape;
    uint64_t session_id = 0;
    uint32_t rank = 0;
    int numa_node = -1;  // -1: no policy
    bool sums = false;   // filled from the start
    FillOptions fill = {};
  };

  // Takes as long as the kernel needs to clear the pages: seconds for large models. After a
  // failure, it gives back what it has reserved before it returns.
  static Result<SessionMemory> create(const Options& options);

  const shm::Segment& control() const { return control_; }
  const shm::Segment& grads() const { return grads_; }
  const shm::Segment& params() const { return params_; }
  const shm::Segment& state() const { return state_; }
  // Has no page before it is filled.
  const shm::Segment& sums() const { return sums_; }
  // Null without swing chunks.
  const shm::Segment* swing() const { return swing_ ? &*swing_ : nullptr; }
  // A descriptor of sums that cannot be mapped for writing.
  int sums_for_reading() const { return sums_for_reading_.get(); }
  // The descriptors of this session in RanksReady. They cannot be mapped for writing, except params
  // and swing memory with `to_be_pinned`, and swing memory with `to_owner`.
  std::vector<int> for_ranks(bool to_be_pinned, bool to_owner) const;
  // Call it once the descriptors have been sent to every rank: closes those that were only for
  // sending.
  void close_for_ranks();
  // Call it once every trainer has mapped its memory.
  Status close_to_new_writers();
  // Whether pages are lost with their contents. Either a trainer that may write here has taken
  // reserved pages back, or the system had no page when one was used.
  bool lost_pages() const;
  // Puts every chunk into its first slot.
  void put_chunks_first() const;
  // The sums are filled now, if they were not from the start. Calling it again changes nothing.
  void sums_filled();
  // Bytes of the filled memory, in three figures. The system may not swap out locked bytes. Swapped
  // bytes are those of the rest that it has swapped out, as look_for_swapped() finds them, piece by
  // piece. Off-node bytes are not on Options::numa_node. Empty: the system does not tell.
  uint64_t locked_bytes() const { return locked_bytes_; }
  std::optional<uint64_t> swapped_bytes() const { return swap_watch_.swapped_bytes(); }
  void look_for_swapped(uint64_t bytes) { swap_watch_.look(bytes); }
  std::optional<uint64_t> off_node_bytes() const { return off_node_bytes_; }
  // Bytes of all segments except sums.
  uint64_t bytes() const {
    return control_.bytes() + grads_.bytes() + params_.bytes() + state_.bytes() +
           (swing_ ? swing_->bytes() : 0);
  }

  shm::ControlHeader& header() const {
    return *reinterpret_cast<shm::ControlHeader*>(control_.data());
  }
  // A copy of a record that the trainer can write.
  shm::StepRecord copy_step_record(uint32_t step) const;
  shm::StepResult& step_result(uint32_t step) const {
    return reinterpret_cast<shm::StepResult*>(control_.data() +
                                              shape_.step_results_offset())[step % shm::kStepRing];
  }
  // By parameter that is trained.
  shm::GradGroup* grad_groups(uint32_t step) const {
    return reinterpret_cast<shm::GradGroup*>(control_.data() + shape_.grad_groups_offset(step));
  }
  shm::UpdateResult& update_result(uint32_t step) const {
    return reinterpret_cast<shm::UpdateResult*>(
        control_.data() + shape_.update_results_offset())[step % shm::kStepRing];
  }
  shm::FolderResult& folder_result(uint32_t number) const {
    return reinterpret_cast<shm::FolderResult*>(
        control_.data() + shape_.folder_results_offset())[number % shm::kFolderRing];
  }
  shm::GradRecord& grad_record(uint32_t chunk) const {
    return reinterpret_cast<shm::GradRecord*>(control_.data() +
                                              shape_.grad_records_offset())[chunk];
  }
  shm::ChunkRecord& chunk_record(uint32_t chunk) const {
    return reinterpret_cast<shm::ChunkRecord*>(control_.data() +
                                               shape_.chunk_records_offset())[chunk];
  }

  shm::SwingRecord& swing_record(uint32_t chunk) const {
    return reinterpret_cast<shm::SwingRecord*>(
        control_.data() + shape_.swing_records_offset())[chunk - shape_.first_swing()];
  }
  shm::SwingParameter& swing_parameter(uint32_t parameter) const {
    return reinterpret_cast<shm::SwingParameter*>(control_.data() +
                                                  shape_.swing_parameters_offset())[parameter];
  }
  // By trained parameter. REQUIRES: Shape::tells_updates().
  shm::UpdateCount* update_counts() const {
    return reinterpret_cast<shm::UpdateCount*>(control_.data() + shape_.update_counts_offset());
  }

  // Element `at` of this rank's shard of the chunk that lies in a slot (StateSlots), in each array.
  std::byte* param(uint32_t slot, uint64_t at) const {
    std::byte* const first = shape_.in_swing_memory(slot)
                                 ? swing_->data() + shape_.swing_slot_offset(slot)
                                 : params_.data() + shape_.param_slot_offset(slot);
    return first + at * element_bytes(shape_.type);
  }
  // Null with FP32, where the parameter is the master.
  std::byte* master(uint32_t slot, uint64_t at) const;
  float* moment(uint32_t moment, uint32_t slot, uint64_t at) const;
  optim::StatePlace place(uint32_t slot, uint64_t at) const;
  // Element `at` of this rank's shard of a chunk. REQUIRES, before reading or writing there: sums()
  // is filled.
  float* grad_sum(uint32_t chunk, uint64_t at) const {
    return reinterpret_cast<float*>(sums_.data()) + chunk * shape_.shard_numel() + at;
  }
  // Element `at` of the chunk's slot: of the whole chunk, or of this rank's shard, depending on the
  // exchange.
  const std::byte* grad(uint32_t chunk, uint64_t at) const {
    return grads_.data() + shape_.grad_slot_offset(chunk) + at * element_bytes(shape_.type);
  }
  optim::RedoRecord* redo(uint32_t worker) const {
    return reinterpret_cast<optim::RedoRecord*>(state_.data() + shape_.redo_offset(worker));
  }
  // Position in the arrays of the state, and in the numbering of the redo records. REQUIRES: the
  // slot is not of the swing memory, where nothing is updated in place.
  uint64_t index(uint32_t slot, uint64_t at) const { return slot * shape_.shard_numel() + at; }

 private:
  SessionMemory(const shm::Shape& shape, shm::Segment control, shm::Segment grads,
                shm::Segment params, shm::Segment state, shm::Segment sums,
                std::optional<shm::Segment> swing)
      : shape_(shape),
        control_(std::move(control)),
        grads_(std::move(grads)),
        params_(std::move(params)),
        state_(std::move(state)),
        sums_(std::move(sums)),
        swing_(std::move(swing)) {}

  Status open_for_reading();
  void guard(std::span<const shm::Segment* const> filled);
  void keep_in_memory(const shm::Segment& filled);

  struct Guarded {
    int fd = -1;         // the segment's
    int64_t blocks = 0;  // its number of blocks when it was filled
    SigbusGuard guard;
  };

  shm::Shape shape_;
  shm::Segment control_, grads_, params_, state_, sums_;
  std::optional<shm::Segment> swing_;
  UniqueFd params_for_reading_, state_for_reading_, sums_for_reading_;
  UniqueFd grads_for_reading_, swing_for_reading_;  // swing: with swing chunks
  std::vector<Guarded> guarded_;                    // the filled segments
  std::vector<const void*> locked_;  // addresses of segments that are locked as they fill
  uint64_t locked_bytes_ = 0;
  SwapWatch swap_watch_;
  std::optional<uint64_t> off_node_bytes_ = 0;
};

}  // namespace elixir::daemon
