// read_restore(): a stored folder becomes states.

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/log.h"
#include "checkpoint/left_out.h"
#include "checkpoint/load_plan.h"
#include "checkpoint/stored_folder.h"
#include "checkpoint/value_check.h"
#include "daemon/heap_reserve.h"
#include "daemon/left_out.h"
#include "daemon/saving.h"
#include "optim_cpu/master.h"

namespace elixir::daemon {
namespace {

using checkpoints::LoadRange;
using checkpoints::StateKind;

constexpr uint64_t kPieceNumel = 1024;

// Puts what is read where it belongs, of the ranks of this node. Different threads bring different
// elements.
class States final : public checkpoints::StateSink {
 public:
  explicit States(const Restoring& restoring)
      : restoring_(restoring), shape_(restoring.shape), type_(restoring.shape.type) {}

  // A run that begins with what the folder has.
  void forget_moments() const {
    for (const Snapshot::Rank& rank : restoring_.ranks) {
      for (uint32_t i = 0; i < shape_.n_chunks * shape_.n_moments; ++i) {
        const uint32_t slot = restoring_.slots.of(i / shape_.n_moments);
        float* const moment = rank.memory->moment(i % shape_.n_moments, slot, 0);
        std::fill_n(moment, shape_.shard_numel(), 0.0f);
      }
    }
  }

  void take(const LoadRange& range, std::span<const std::byte> bytes) override {
    const shm::ParameterPlace& place = restoring_.places[range.parameter];
    if (shape_.on_gpu(place.chunk)) return;  // trainers bring them
    if (range.numel == 0) return;
    const shm::ChunkRun run = shm::chunks_of(place, shape_, range.first, range.numel);
    for (uint32_t chunk = run.first; chunk < run.end(); ++chunk) {
      const shm::ParameterPart part = shm::part_in(place, shape_, chunk, range.first, range.numel);
      take_into(chunk, part.offset, part.offset + part.numel, range,
                bytes.data() + (part.first - range.first) * range.dtype->bytes);
    }
  }

 private:
  // Elements [begin, end) of the chunk.
  void take_into(uint32_t chunk, uint64_t begin, uint64_t end, const LoadRange& range,
                 const std::byte* bytes) const {
    for (const Snapshot::Rank& rank : restoring_.ranks) {
      const uint64_t from = std::max(begin, shape_.shard_begin(rank.shard));
      const uint64_t to = std::min(end, shape_.shard_end(rank.shard));
      for (uint64_t at = from; at < to; at += kPieceNumel) {
        const uint64_t numel = std::min(kPieceNumel, to - at);
        put(range, bytes + (at - begin) * range.dtype->bytes,
            {rank.memory, restoring_.slots.of(chunk), shape_.frozen(chunk),
             at - shape_.shard_begin(rank.shard), numel});
      }
    }
  }

  // Elements of a rank's shard of a chunk; at most kPieceNumel.
  struct Target {
    const SessionMemory* memory;
    uint32_t slot;
    bool frozen;
    uint64_t at, numel;
  };

  void put(const LoadRange& range, const std::byte* bytes, const Target& to) const {
    switch (range.kind) {
      case StateKind::kExpAvg:
      case StateKind::kExpAvgSq: {
        const uint32_t moment = range.kind == StateKind::kExpAvg ? 0 : 1;
        std::memcpy(to.memory->moment(moment, to.slot, to.at), bytes, to.numel * sizeof(float));
        return;
      }
      case StateKind::kMasterLow: {
        uint16_t low[kPieceNumel];
        std::memcpy(low, bytes, to.numel * sizeof(uint16_t));
        optim::complete_master(type_, low, to.numel, to.memory->param(to.slot, to.at),
                               to.memory->master(to.slot, to.at));
        return;
      }
      case StateKind::kParam:
      case StateKind::kMaster: {
        // Nothing that arithmetic could change: bits that are a NaN may mean something else.
        if (to.frozen && range.dtype->name == checkpoints::dtype_of(type_).name) {
          std::memcpy(to.memory->param(to.slot, to.at), bytes, to.numel * element_bytes(type_));
          return;
        }
        float values[kPieceNumel];
        optim::read_values(range.dtype->name, bytes, to.numel, values);
        float unused[kPieceNumel];  // nobody keeps masters of frozen parameters
        void* const master = to.frozen ? static_cast<void*>(unused)
                                       : static_cast<void*>(to.memory->master(to.slot, to.at));
        optim::load_master(type_, values, to.numel, to.memory->param(to.slot, to.at), master);
        return;
      }
    }
  }

  const Restoring& restoring_;
  const shm::Shape& shape_;
  const ComputeType type_;
};

// The folder was written beside what the job has. Of several nodes each has a part, of which the
// hash says nothing.
Status check_values(const Restoring& restoring, const checkpoints::StoredFolder& folder) {
  if (restoring.ranks.size() != restoring.shape.ranks) {
    log_warn("left_out_not_compared",
             "folder='{}' why=\"of several nodes each has a part of what the folder leaves out\"",
             restoring.path);
    return Status();
  }
  const bool all = folder.holds_states_alone();
  std::optional<checkpoints::LeftOut> here =
      left_out_of(all ? LeftOutKind::kAll : LeftOutKind::kFrozen, restoring.shape, restoring.places,
                  restoring.slots, restoring.ranks, restoring.progress.cancelled);
  if (!here) return error(Code::kUnavailable, "the load was broken off");
  if (all) here->hash += restoring.device_hash;
  return checkpoints::check_left_out(folder, *here);
}

Status read_into(Restoring& restoring) {
  const Result<checkpoints::StoredFolder> folder =
      checkpoints::open_stored_folder(restoring.folder.get(), restoring.path);
  if (!folder.ok()) return folder.status();
  const Result<checkpoints::LoadPlan> plan = checkpoints::plan_load(
      *folder, restoring.wanted, {.states = restoring.states, .ignored = restoring.ignored});
  if (!plan.ok()) return plan.status();
  if (plan->left_out > 0) ELIXIR_RETURN_IF_ERROR(check_values(restoring, *folder));
  restoring.bytes.store(plan->bytes, std::memory_order_relaxed);
  if (folder->manifest) {
    restoring.step = folder->manifest->step;
    restoring.applied = plan->has_states ? folder->manifest->updates : 0;
  }
  restoring.updates = plan->updates;
  restoring.touched = true;
  States states(restoring);
  if (restoring.states && !plan->has_states) states.forget_moments();
  checkpoints::ValueCheck checked(restoring.wanted, restoring.shape.type, states);
  for (const auto* const pieces : {&plan->params, &plan->states}) {
    ELIXIR_RETURN_IF_ERROR(checkpoints::read_pieces(*folder, *pieces, restoring.threads,
                                                    &restoring.progress, checked));
  }
  return checked.status(*folder, *plan);
}

}  // namespace

void read_restore(Restoring& restoring) {
  try {
    restoring.status = read_into(restoring);
  } catch (const std::bad_alloc&) {
    note_no_memory();
    restoring.status = no_memory_left();
  }
  restoring.folder.reset();  // here: its file system may not answer
}

}  // namespace elixir::daemon
