#pragma once

// The content of shared memory: the memfds of a session. shm/README.md says the same in prose.
// Every field has one writer.
//
// clang-format off
//   control   ControlHeader, then kStepRing each of StepRecord, StepResult and UpdateResult, then
//             kFolderRing FolderResults, then n_grad_slots each of GradRecord and ChunkRecord, then
//             n_swing_chunks SwingRecords, then with swing chunks n_parameters SwingParameters,
//             then with Shape::tells_updates() n_parameters UpdateCounts,
//             then GradGroup[kStepRing][n_parameters]
//   grads     n_grad_slots grad slots, of whole chunks or of shards        (written by the trainer)
//   params    Shape::n_param_slots param slots of shards                   (written by elixird)
//   state     redo records, then masters and moments, slot by slot          (written by elixird)
//   sums      FP32 sums of a step's gradients                              (written by elixird)
//   swing     images of shards of swing chunks, slot by slot                (written by both)
// clang-format on
//
// Sizes and offsets are in shm/shape.h.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/norm_sum.h"
#include "base/update_rule.h"

namespace elixir::shm {

inline constexpr uint64_t kControlMagic = 0x4c52544358494c45;  // "ELIXCTRL", little endian

// Raise it when any struct or constant of this file, of shm/shape.h or of shm/messages.h changes,
// or the details of a save or a load (checkpoint/details.h); then run scripts/versions.py --store.
inline constexpr uint32_t kLayoutVersion = 23;
// versions.py: version 23, 577710336f467db3

// Steps whose records are kept. A trainer is never more than two steps ahead of elixird.
inline constexpr uint32_t kStepRing = 8;

// A rank's requests for folders (SaveFolder, LoadFolder) whose results are kept. A trainer has at
// most kFolderRing - 1 unfinished requests.
inline constexpr uint32_t kFolderRing = 4;

// The header of a rank's side memory (Shape::side_offset), written by that rank. Rank 0 broadcasts
// pieces there: it puts piece `written` behind the header once all others have `read` the piece
// before it.
struct alignas(64) SideHeader {
  std::atomic<uint32_t> written;
  std::atomic<uint32_t> read;
};
static_assert(sizeof(SideHeader) == 64);

// Groups of parameters with hyperparameters of their own.
inline constexpr uint32_t kMaxParamGroups = 64;

inline constexpr size_t kCacheLine = 64;

// A wait of a rank that elixird cannot see by itself, or whose begin it does not know. The rank
// writes it once it has lasted a second. elixird only shows it in the status and the log. For kSum
// and kSwing elixird adds the awaited ranks, which it knows by itself.
enum class WaitsFor : uint8_t {
  kNothing = 0,
  kCollective = 1,  // others in a collective
  kSum = 2,         // others' gradients, in a backward pass (ControlHeader::awaited_sum)
  kBuffers = 3,     // others at the side memory
  kSwing = 4,       // others' updates of swing chunks
};
struct alignas(8) SaidWait {
  uint32_t what : 8 = 0;         // WaitsFor
  uint32_t rank_after : 24 = 0;  // 1 + the awaited rank; 0: unknown
  uint32_t since_s = 0;          // CLOCK_MONOTONIC

  bool operator==(const SaidWait&) const = default;
};
static_assert(sizeof(SaidWait) == 8 && std::atomic<SaidWait>::is_always_lock_free);

// The reason why elixird ended a session; 0 while it lives. Values of elixir::Code.
using FaultCode = uint32_t;

struct ControlHeader {
  // Written by elixird before attach returns, constant afterwards.
  uint64_t magic;
  uint32_t layout_version;
  uint32_t header_bytes;
  uint64_t session_id;
  uint32_t rank;  // this session's rank among all of the job
  uint32_t ranks;
  uint32_t compute_type;  // elixir::ComputeType
  uint32_t n_chunks;
  uint64_t chunk_numel;
  uint64_t shard_numel;
  uint64_t reserved[1];

  // Written by the trainer.
  alignas(kCacheLine) std::atomic<uint32_t> posted_step;  // release: StepRecord[step] is complete
  // Release: the hyperparameters of StepRecord[step] are there. Only with
  // StepRules::opens_steps(), before the first gradient of the step is published.
  std::atomic<uint32_t> open_step;
  // Release, after any GradRecord was written: the count of such writes. elixird reads the records
  // of a rank again only if its count has changed.
  std::atomic<uint32_t> publications;
  // Release: 1 + the chunk whose grad_taken the rank waits for; 0: it does not wait. A rank that
  // waits has published all gradients that it has made. If all ranks that could publish wait,
  // elixird sums the gradients that are there. Cleared before the rank publishes again.
  std::atomic<uint32_t> awaited_sum;
  std::atomic<SaidWait> said_wait;  // relaxed on both sides: it orders no other data
  uint32_t trainer_reserved[10];

  // Written by elixird, the first two futex words.
  alignas(kCacheLine) std::atomic<uint32_t> committed_step;  // every rank posted it: it will happen
  std::atomic<uint32_t> finished_step;                       // every chunk of it is updated
  std::atomic<FaultCode> fault;
  std::atomic<uint32_t> fault_rank;  // meaningful once fault != 0
  // Release: this step was skipped, so the param slots of every chunk hold the weights after it,
  // whatever param_step says.
  std::atomic<uint32_t> skipped_through;
  // Written by the trainer (shm/futex.h): how many of its threads sleep on a futex word of this
  // line, and how many on a param_step. They lie beside the words, because elixird has this cache
  // line at hand when it stores the words.
  std::atomic<uint32_t> waiters, param_waiters;
  // Written by elixird, futex words. Release: elixird has received the rank's requests for folders
  // up to heard_request, and FolderResult says whether it rejected them. Requests up to
  // ended_request are over, and FolderResult has the outcome.
  std::atomic<uint32_t> heard_request, ended_request;
  // Release: the number of this rank's StagedChunks that elixird has taken. The staging memory is
  // then free again.
  std::atomic<uint32_t> staged_taken;
  uint32_t daemon_reserved[6];
};
static_assert(sizeof(ControlHeader) == 192);
static_assert(offsetof(ControlHeader, posted_step) == 64);
static_assert(offsetof(ControlHeader, committed_step) == 128);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

struct ParamGroupRecord {
  double lr, weight_decay;
  double hyper[kMaxHyper];  // named by the rule's row in kUpdateRules; the others are 0
};

// The param group of each trained parameter in a step, as one rank says it, in the order of the
// parameter table: kNoGradient, or 1 + the group. Slot step % kStepRing. The trainer writes it
// before it publishes the gradients of the parameter's chunk (if there are several, of the first).
// After a post it clears the words for the next step. If every rank of the node says kNoGradient,
// the parameter does not change, as in torch::optim if .grad is undefined. All ranks that say a
// group must say the same one.
using GradGroup = std::atomic<uint8_t>;
inline constexpr uint8_t kNoGradient = 0;
static_assert(sizeof(GradGroup) == 1 && GradGroup::is_always_lock_free);

// Actions that a rank asks for. elixird passes them to all ranks of the node, so that all do them
// after the same step.
enum Ask : uint64_t { kAskSave = 1, kAskStop = 2 };

// One rank's record of one step: its hyperparameters, and measurements of the rank. Written by the
// trainer before it stores posted_step; slot step % kStepRing. All fields before norm must be the
// same on all ranks, bit for bit.
struct StepRecord {
  uint32_t step;
  uint32_t rule;          // elixir::UpdateRule, the same in all steps
  double grad_scale;      // multiplies the sum of all ranks' gradients
  double clip_norm;       // limit for the L2 norm of the gradients after grad_scale; 0: none
  uint32_t check_finite;  // 1: a step with a gradient that is not finite is skipped
  uint32_t n_groups;      // 1 to kMaxParamGroups
  ParamGroupRecord groups[kMaxParamGroups];

  // The sum of squares, before grad_scale, of gradients that elixird does not see; only with
  // clip_norm or check_finite. Host exchange: gradients of the chunks placed on the GPU. Collective
  // exchange: gradients of all chunks of all ranks, the same sum on each rank; elixird adds
  // nothing.
  NormSum norm;

  double metric;       // the rank's report for this step, usually the loss
  uint64_t gathers;    // chunks copied into the rCache in this step
  uint64_t evictions;  // blocks taken from one chunk for another in this step
  uint64_t h2d_bytes, d2h_bytes, d2d_bytes;
  uint64_t device_bytes;  // what Elixir holds on the device now
  // Times in nanoseconds of the last step whose times were known at the post: this step on a CPU,
  // an earlier one on a GPU. step_ns: from the previous step() to that step's. exposed_ns: the part
  // of it in which the device's operators waited for chunks and gradients. h2d_ns, d2h_ns: how long
  // each direction of the link was busy.
  uint64_t step_ns, exposed_ns, h2d_ns, d2h_ns;
  uint64_t pageable_bytes;    // host memory that the device copies and that is not page-locked
  uint64_t activation_bytes;  // host memory that the trainer holds for activations
  uint64_t late_wakes;        // since the attach: waits that ended by timeout although the word had
                              // changed
  uint64_t asks;              // actions for all ranks after the step: bits of Ask
};
static_assert(sizeof(StepRecord) == 4416);

// The bytes that must be the same on all ranks. elixird compares those of its node, and trainers
// compare a hash of them.
inline std::span<const std::byte> hyperparameters_of(const StepRecord& record) {
  return std::as_bytes(std::span(&record, 1)).first(offsetof(StepRecord, norm));
}

// The outcome of one step. Written by elixird; slot step % kStepRing. Valid once committed_step >=
// step.
struct StepResult {
  uint32_t step;
  uint32_t skipped;    // 1: a gradient was not finite; no chunk is changed
  double metric_mean;  // mean over ranks, summed in rank order
  double grad_norm;    // after StepRecord::grad_scale, before clipping; NaN: not asked for
  double grad_scale;   // the update's scale: StepRecord's, clipped
  uint64_t applied;    // steps that were not skipped, this one included: Adam's step number
  uint64_t asks;       // the asks of all ranks, combined
  uint64_t reserved[2];
};
static_assert(sizeof(StepResult) == 64);

// The cost of a step's update. Written by elixird; slot step % kStepRing. Valid once finished_step
// >= step. It is not part of StepResult, because ranks read that one while the update runs.
struct UpdateResult {
  uint32_t step;
  uint32_t early_chunks;   // updated into spare slots before the post
  uint64_t update_ns;      // work on it from the first slice on, without pauses between chunks
  uint64_t updated_numel;  // parameters of all ranks that elixird updated
  uint32_t early_hits;     // early_chunks that the verdict kept
  uint32_t swing_chunks;   // swing chunks that trainers updated
};
static_assert(sizeof(UpdateResult) == 32);

// The outcome of a rank's request for a folder. Written by elixird; slot number % kFolderRing.
// `refused` is valid once ControlHeader::heard_request >= number, and if it is 1, so are code and
// text. All fields are valid once ended_request >= number. Until then done_bytes out of bytes is
// the progress. An accepted request may have failed before the rank looks, so code alone does not
// say that elixird rejected it.
struct FolderResult {
  uint32_t number;
  uint32_t code;  // elixir::Code
  std::atomic<uint64_t> bytes, done_bytes;
  uint64_t step;          // the step that was saved, or the loaded folder's step
  uint64_t shadow_bytes;  // the budget
  uint64_t shadow_peak_bytes;
  uint64_t stall_ns;  // time that updates waited for the save
  uint64_t write_ns;  // from the first byte to the rename of the folder
  uint32_t refused;   // 1: rejected
  uint32_t reserved_word;
  uint64_t not_finite;  // saved values of parameters and states that are not finite
  char text[1008];
};
static_assert(sizeof(FolderResult) == 1088);

// The cycle of one chunk of one session: param_step is s-1 -> the trainer fills the grad slot and
// publishes it for step s, once per micro-step -> workers update the chunk -> param_step = s. A
// skipped step sets ControlHeader::skipped_through = s for all chunks instead. Steps count from 1;
// param_step 0 means the initial weights, once the session is ready.
//
// The gradients of a step are those of its last publication, unless its micro-steps are summed. For
// a sum, a trainer sets to_sum for the slot's content before it fills the slot again, and waits
// until grad_taken has reached that revision. Otherwise it may publish a chunk again at any time.
// If it drops the gradients that it has published in the step (zero_grad()), it raises `discards`
// and publishes every chunk again. A sum contains only gradients with equal counts of discards.
//
// Each side writes its own records. The trainer's are packed, four per cache line, because elixird
// reads all of them once per step and rank. elixird's records have a cache line each, because
// workers write neighbouring ones at the same time.

// One word, because a reader that combined the revision of one publication with the discards of the
// next would sum it twice. Aligned so that clang, too, reads and writes it with one instruction.
struct alignas(8) GradPublication {
  uint32_t revision = 0;       // counts publications over all steps
  uint32_t discards : 31 = 0;  // how often the rank dropped gradients in this step before these
  uint32_t to_sum : 1 = 0;     // 1: to be added to the sums; set with the publication, or later

  bool operator==(const GradPublication&) const = default;
};
static_assert(sizeof(GradPublication) == 8);
static_assert(std::atomic<GradPublication>::is_always_lock_free);

// Written by the trainer: step and micro-step first, then the publication, with release; pairs with
// the acquire in daemon/.
struct GradRecord {
  std::atomic<uint32_t> grad_step;
  std::atomic<uint32_t> grad_micro_step;  // counts from 1 in the step; usually the backward pass
  std::atomic<GradPublication> grad_publication;
};
static_assert(sizeof(GradRecord) == 16);

struct ChunkRecord {
  // Written by elixird. Release, then a futex wake if `waiters` asks for it; pairs with the acquire
  // in client/session.
  alignas(kCacheLine) std::atomic<uint32_t> param_step;
  // The last revision that was added to the sums or is no longer valid.
  std::atomic<uint32_t> grad_taken;
  // Begin and end of the chunk's last update by the workers; CLOCK_MONOTONIC. Written before
  // param_step.
  std::atomic<uint64_t> update_begin_ns, update_end_ns;
  // Release, then futex wake: how many LoadChunks elixird has taken from this grad slot. The slot
  // is then free again.
  std::atomic<uint32_t> loads_taken;
  // Written by the trainer (shm/futex.h): its threads that sleep on a futex word of this record.
  std::atomic<uint32_t> waiters;
  // The slot that holds the chunk's weights and states of param_step, the same on all ranks of the
  // node. Written before param_step. The slot gets no states of another step before every rank has
  // posted the next step.
  std::atomic<uint32_t> slot;
  // Only for swing chunks. swing_step: trainers may update the chunk for this step. Release, then
  // futex wake; pairs with the acquire in client/session. swing_sums is written before it.
  // swing_sums 1: the gradients are the FP32 sums; 0: they are in the ranks' grad slots.
  std::atomic<uint32_t> swing_sums, swing_step;
  uint32_t daemon_reserved[5];
};
static_assert(sizeof(ChunkRecord) == kCacheLine);

// For a swing chunk, written by the trainer: the states of this rank's shard after `step` are in
// `slot`, the spare slot of the chunk's lane (Shape::swing_lane). `step` is written last, with
// release, which pairs with the acquire in daemon/swing. Then a SwingUpdated doorbell follows.
struct SwingRecord {
  std::atomic<uint32_t> slot, step;
};
static_assert(sizeof(SwingRecord) == 8);

// For a trained parameter with elements in a swing chunk. `group`: the GradGroup on which all ranks
// of the node agree. `updates`: how often the parameter has been updated, this step included
// (Adam's step number). Written by elixird before it stores swing_step of the chunk.
struct SwingParameter {
  std::atomic<uint32_t> group, updates;
};
static_assert(sizeof(SwingParameter) == 8);

// How often a trained parameter has been updated, by gradients of any rank. Written by elixird
// before it stores finished_step with release, and after states were loaded.
using UpdateCount = std::atomic<uint32_t>;

}  // namespace elixir::shm
