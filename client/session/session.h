#pragma once

// One rank's session with elixird: attach, the mapped memory, doorbells, waits. No torch, no GPU.
//
// One thread owns it. Others may call load_chunk. Once all is loaded, one other thread may call
// publish_grad and post_step, one the functions for swing chunks, and any thread
// folder_ended_within, folder_result and folder_progress.
//
// Every wait ends within a tenth of a second when elixird or a rank of this node dies, with a
// Status that names it (for other nodes: SessionOptions::liveness). A wait for elixird alone ends
// after request_timeout_s. A wait for the other ranks' step has no limit, because a rank may
// evaluate or save for as long as it likes.

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/interrupt.h"
#include "base/mutex.h"
#include "base/oom_watch.h"
#include "base/status.h"
#include "client/session/control_channel.h"
#include "client/session/folders.h"
#include "client/session/host_range.h"
#include "client/session/says_wait.h"
#include "shm/attach_socket.h"
#include "shm/layout.h"
#include "shm/load_part.h"
#include "shm/messages.h"
#include "shm/parameter_table.h"
#include "shm/runtime_folder.h"
#include "shm/segment.h"
#include "shm/shape.h"
#include "shm/step_rules.h"

namespace elixir {

// With `pins_params` device_ranges() will be page-locked: see protect_params().
struct SessionOptions : shm::RankPosition, shm::RankWishes {
  std::string runtime_dir;   // "": the folders of shm::daemon_places()
  std::string launch;        // the launch that elixird belongs to, if no folder is named
  std::string job;           // equal on every rank
  std::string ranks_said;    // why there are other ranks, for messages; "": not known
  bool start_daemon = true;  // starts elixird if none listens
  shm::StepRules rules = {};
  // with_memory() adds to these limits.
  double ranks_timeout_s = 600;    // for the other ranks to attach and load
  double request_timeout_s = 600;  // for elixird to answer a request
  // Every wait calls it about ten times a second; a status that is not ok ends the wait.
  std::function<Status()> liveness;
};

// The limit of a wait in which elixird may have to fill the memory of `local_ranks` ranks, or one
// of them to load it. A thread takes a quarter of an hour per TiB, and elixird may be silent all
// that time. (The attach socket reports elixird's end at once.)
double with_memory(double timeout_s, const shm::Shape& shape, uint32_t local_ranks);

class Session {
 public:
  // Finds or starts elixird, attaches, and waits until every rank of the job has attached. `places`
  // says where each parameter lies; it must be the same on all ranks.
  static Result<std::unique_ptr<Session>> attach(const shm::Shape& shape,
                                                 const std::vector<shm::ParameterPlace>& places,
                                                 const SessionOptions& options);
  ~Session();

  const shm::Shape& shape() const { return shape_; }
  uint32_t rank() const { return options_.rank; }
  uint64_t page_bytes() const { return page_bytes_; }
  pid_t elixird_pid() const { return elixird_pid_; }  // 0: in a namespace that does not see it

  uint32_t local_rank() const { return options_.local_rank; }

  // Shape::grad_slot_numel() elements; written by this rank alone.
  std::byte* grad_slot(uint32_t chunk) const;
  // The shard of a chunk that a rank of this node keeps, and its FP32 masters: shard_end -
  // shard_begin elements, after the last step that was passed to wait_param(). Valid until this
  // rank posts the next step. The masters of a step are complete once the step is finished.
  const std::byte* param_shard(uint32_t chunk, uint32_t local_rank) const;
  void read_masters(uint32_t chunk, uint32_t local_rank, float* values) const;
  void read_moment(uint32_t chunk, uint32_t local_rank, uint32_t moment, float* values) const;
  // Only `numel` elements of the shard, from `first` on.
  void read_masters(uint32_t chunk, uint32_t local_rank, uint64_t first, uint64_t numel,
                    float* values) const;
  void read_moment(uint32_t chunk, uint32_t local_rank, uint32_t moment, uint64_t first,
                   uint64_t numel, float* values) const;
  uint64_t shard_numel_of(uint32_t local_rank) const;

  // With `pins_params`, the memory to page-lock for the device: grads, params and swing memory.
  // Params and swing memory are this rank's or all ranks'. With swing memory, all ranks' grads are
  // included. All of it is mapped for writing, because CUDA page-locks no other shared memory.
  std::vector<HostRange> device_ranges() const;
  // Call it once device_ranges() are page-locked: memory that this rank only reads becomes
  // write-protected. Page-locked pages stay page-locked.
  Status protect_params();

  // Loads FP32 initial values of a chunk: the grad_slot_numel values that a grad slot covers. For a
  // frozen chunk they are words (exchange.h), whose bytes are kept. Call it before step 1, once for
  // every chunk placed on the CPU and every frozen one. You may call it again while all posted
  // steps are finished, between two await_loaded() of every rank. With the host exchange, only rank
  // 0 calls it, for all ranks. Any thread; several chunks at a time if their Shape::load_slot
  // differ.
  Status load_chunk(uint32_t chunk, const float* values);
  // Waits until everything is loaded and all ranks have called it; every rank calls it. `call` is
  // the program's call. The log and kTimedOut name it, and the ranks that have not called it, if
  // they are known.
  Status await_loaded(const std::string& call = "the loading of weights");

  // This rank's statements about the trained parameters in a step: whether each has a gradient, and
  // its group of hyperparameters. Index: the parameter's number in the table. `step` is one of the
  // last kStepRing - 2, or the next one. Call say_gradient() before the chunk is published.
  // forget_gradients() takes back all statements of the step.
  std::span<shm::GradGroup> grad_groups(uint32_t step) const;
  void say_gradient(uint32_t step, uint32_t parameter, uint32_t group);
  void forget_gradients(uint32_t step);
  // How often each trained parameter has been updated through step finished_step. REQUIRES:
  // Shape::tells_updates().
  std::span<const shm::UpdateCount> update_counts() const;
  // Publishes the hyperparameters of record.step, before its first gradient. REQUIRES:
  // StepRules::opens_steps().
  void open_step(const shm::StepRecord& record);
  // Hop 2: publishes that a chunk's gradients of a micro-step are in its grad slot.
  struct PublishedGrads {
    uint32_t step = 0, micro_step = 0;  // both count from 1
    // How often this rank has dropped what it had published of the step. After a drop every chunk
    // is published again, from micro-step 1 on.
    uint32_t discards = 0;
    // Another micro-step may follow, so elixird adds these gradients to the FP32 sums as soon as
    // every rank of the node has published as much.
    bool to_sum = false;
  };
  Status publish_grad(uint32_t chunk, const PublishedGrads& of);
  // Sets `to_sum` later, for the last publication. REQUIRES: the thread that publishes calls it, or
  // it is called after that thread has published.
  Status request_sum(uint32_t chunk);
  // Call it after publish_grad() or request_sum(). Waits until elixird has added up the slot's
  // gradients, or until they no longer count because another rank has dropped its own. Then you may
  // overwrite them. REQUIRES: this rank has published all gradients that it has made (or
  // is_taken()). One thread at a time.
  Status wait_taken(uint32_t chunk);
  // Whether wait_taken() would return at once.
  bool is_taken(uint32_t chunk) const;
  // Hop 2: posts `record.step`. REQUIRES: publish_grad of every chunk for this step. elixird checks
  // it, and ends the job if it does not hold. Waits only while elixird has not committed the step
  // before the last one.
  Status post_step(const shm::StepRecord& record);

  // Replaces SessionOptions::request_timeout_s from now on. REQUIRES: no call is in progress.
  void set_request_timeout_s(double seconds) { request_timeout_s_ = seconds; }

  // The word for this rank's waits for others outside of the session: SaysWait.
  std::atomic<shm::SaidWait>& said_wait() const { return header().said_wait; }

  // Ends the session for this rank: every call and wait, of any thread, returns this status.
  void fail(const Status& status);
  // fail(), because an interrupt (base/interrupt.h) has left `call` while elixird or other ranks
  // were in the middle of it. status() returns it from now on, without a wait.
  void break_off(const std::string& call);
  Status status() const;
  // An interrupt has left a wait since the last step was posted, and that step is not finished. It
  // may never be: a rank may be missing.
  bool interrupted() const;

  // Waits until the chunk's param slots hold the weights after `step` (0: the initial ones).
  Status wait_param(uint32_t chunk, uint32_t step);
  // The greatest step whose weights they hold.
  uint32_t param_step(uint32_t chunk) const;
  // Waits until every rank has posted the step. Then it will happen, or it is skipped. REQUIRES:
  // step is one of the last kStepRing - 2 posted.
  Result<shm::StepResult> wait_committed(uint32_t step);
  // The last step whose result wait_committed() returns without waiting.
  uint32_t committed_step() const;
  // Waits until the step's update is done.
  Status wait_finished(uint32_t step);
  // The cost of the update of the last finished step; step 0 before the first.
  shm::UpdateResult last_finished() const;
  // When the workers began the chunk's last update and ended it, CLOCK_MONOTONIC.
  struct UpdateTimes {
    uint64_t begin_ns, end_ns;
  };
  UpdateTimes update_times(uint32_t chunk) const;

  // ---- side.cpp ----

  // Copies rank 0's bytes to all ranks, with the host exchange; every rank passes the same size.
  // Waits for the other ranks without a limit, and sends nothing to elixird. Only one thread may
  // call it.
  Status broadcast(std::span<std::byte> bytes);
  // How often this rank has begun to wait for other ranks, in any call. Any thread.
  uint64_t waits_for_ranks() const {
    return waits_for_ranks_.load(std::memory_order_relaxed);  // a count: orders nothing
  }

  // ---- swing.cpp: swing chunks, whose shards this rank updates; by one thread, any ----

  // Waits until the chunk may be updated for `step`, which was committed and not skipped. Its
  // gradients are there then, and nobody reads the slot that the update writes.
  Status wait_swing(uint32_t chunk, uint32_t step);
  // Whether it may be updated now.
  bool may_swing(uint32_t chunk, uint32_t step) const;
  // elixird's statements; call these after wait_swing(). swings_sums() says that the chunk's
  // gradients are in grad_sum(), not in the ranks' grad slots. swing_parameter() gives all ranks'
  // common statement about a trained parameter in the chunk (shm::GradGroup), and how often the
  // parameter has been updated, this step included.
  bool swings_sums(uint32_t chunk) const;
  struct SwingParameter {
    uint8_t group = shm::kNoGradient;
    uint32_t updates = 0;
  };
  SwingParameter swing_parameter(uint32_t parameter) const;
  // The step's record, as this rank has posted it.
  const shm::StepRecord& posted_record(uint32_t step) const {
    // Acquire, pairs with post_step()'s release. The verdict that the caller has seen came through
    // elixird, and a thread sanitizer knows nothing of that order.
    header().posted_step.load(std::memory_order_acquire);
    return step_record(step);
  }
  // The image of this rank's shard of a chunk (Shape::image_bytes) in a slot of the swing memory.
  std::byte* swing_image(uint32_t slot) const;
  // The slot of the chunk's weights and states after the last step passed to wait_param().
  uint32_t slot(uint32_t chunk) const;
  // The gradients of this rank's shard of a swing chunk in a rank's grad slot. With the host
  // exchange, it takes any local rank; otherwise only this one.
  const std::byte* shard_grads(uint32_t chunk, uint32_t local_rank) const;
  // Says that the states after `step` are in the slot, which is the one of the chunk's lane.
  Status swing_updated(uint32_t chunk, uint32_t slot, uint32_t step);

  // ---- folders.cpp ----

  // Asks elixird to write the states after the last posted step into a new folder. Returns the
  // request's number, or why elixird rejects it. Every rank of the node calls it. If chunks are
  // placed on the GPU, call await_begun() next. Then call stage_chunk() for each of them, in
  // ascending order, with its image (Shape::image_bytes) in the staging memory. Each call of
  // stage_chunk() returns once that memory is free again, or the request is over. REQUIRES:
  // after_step is posted.
  Result<uint32_t> save_folder(const FolderToSave& save);
  Status await_begun(uint32_t number);
  Status stage_chunk(uint32_t number, uint32_t chunk);
  // Asks elixird to load the chunks that it keeps on this node from a folder. It replaces all
  // load_chunk() calls. You may also call it later, while all posted steps are finished, between
  // two await_loaded() of every rank. Only the lowest rank of the node calls it.
  Result<uint32_t> load_folder(const FolderToLoad& load);
  // Waits at most `seconds` for the end of a request. Returns whether it is over, so that
  // folder_result() is valid.
  Result<bool> folder_ended_within(uint32_t number, double seconds);
  // REQUIRES: `number` is one of the last kFolderRing - 1 requests.
  FolderOutcome folder_result(uint32_t number) const;
  FolderProgress folder_progress(uint32_t number) const;

  // FP32 sums of this rank's shard over the micro-steps; valid once wait_taken() has returned.
  const float* grad_sum(uint32_t chunk) const;

 private:
  Session(const shm::Shape& shape, const SessionOptions& options)
      : shape_(shape),
        options_(options),
        request_timeout_s_(options.request_timeout_s),
        revisions_(shape.n_chunks),
        loads_(shape.n_grad_slots(), 0) {}

  Status connect(const std::vector<shm::ParameterPlace>& parameters);
  Status send_attach_request(const std::vector<shm::ParameterPlace>& places);
  Status receive_attach_reply();
  Status receive_ranks();
  Status map_rank(uint32_t local_rank, std::span<UniqueFd> fds);
  const std::byte* master_shard(uint32_t chunk, uint32_t local_rank) const;
  const float* moment_shard(uint32_t chunk, uint32_t local_rank, uint32_t moment) const;
  shm::SwingRecord& swing_record(uint32_t chunk) const;
  // Whether the device copies from the params of that rank.
  bool reads_params_of(uint32_t local_rank) const {
    return shape_.exchange == shm::Exchange::kHost || local_rank == options_.local_rank;
  }
  Status check_alive();
  Status check_wait();
  // Makes a call that cannot be made again after an interrupt.
  template <typename Call>
  Status whole(const char* name, const Call& call) {
    try {
      return call();
    } catch (...) {
      break_off(name);
      throw;
    }
  }
  template <typename Message>
  Status ring(const Message& doorbell);
  Status ring_grads(uint32_t chunk);
  Status end_of_file_status() const;
  std::string killed_by_kernel() const;  // OomWatch::verdict() about elixird
  std::string other_ranks() const;
  Status broadcast_pieces(std::span<std::byte> bytes);
  Status load_part(uint32_t chunk, shm::LoadPart part);
  // A wait ends request_timeout_s after it begins to depend on elixird alone. It does so once step
  // `committed` is committed, or, with kNobodyElse, at once.
  static constexpr uint32_t kNobodyElse = 0, kOtherRanks = UINT32_MAX;
  struct Wait {
    const std::atomic<uint32_t>& word;  // the wait ends when it reaches `number`
    std::atomic<uint32_t>& waiters;     // counts threads that sleep on it
    uint32_t number;
    const char* what;
    uint32_t committed;
    // For waits for other ranks that elixird does not see: what this rank waits for, and for which
    // rank.
    shm::WaitsFor says = shm::WaitsFor::kNothing;
    uint32_t rank = SaysWait::kUnknownRank;
    bool is_param_step = false;  // the wait also ends if the step is skipped
    uint32_t or_ended = 0;       // the wait also ends when this folder request is over; 0: none
  };
  bool folder_under_way() const;
  Result<uint32_t> next_request();
  Status await_turn(const FolderToSave& save);
  Status await_heard(uint32_t number);
  bool reached(const Wait& wait) const;
  bool reached_soon(const Wait& wait) const;
  Wait taken_wait(uint32_t chunk) const;
  // The value of `committed` for a wait that follows a step; `swings`: it waits for trainers'
  // updates, too.
  uint32_t alone_after(uint32_t step, bool swings) const;
  Status wait_word(const Wait& wait);
  Result<shm::Packet> receive_from_daemon(const char* what, double timeout_s,
                                          const std::string& why = "");

  shm::ControlHeader& header() const;
  shm::StepRecord& step_record(uint32_t step) const;
  shm::StepResult& step_result(uint32_t step) const;
  shm::UpdateResult& update_result(uint32_t step) const;
  shm::FolderResult& folder_record(uint32_t number) const;
  const std::byte* side(uint32_t local_rank) const;
  shm::GradRecord& grad_record(uint32_t chunk) const;
  shm::ChunkRecord& chunk_record(uint32_t chunk) const;

  const shm::Shape shape_;
  const SessionOptions options_;
  double request_timeout_s_;  // options_' value, or the one set later
  UniqueFd attach_socket_;
  std::optional<OomWatch> oom_watch_;  // elixird's control group
  std::unique_ptr<ControlChannel> control_channel_;
  std::optional<shm::Segment> control_;
  std::optional<shm::Segment> grads_;
  std::optional<shm::Segment> sums_;
  struct RankMemory {
    shm::Segment params, state;
    std::optional<shm::Segment> swing;  // with swing chunks
    std::optional<shm::Segment> grads;  // with swing chunks or side memory, and the host exchange
  };
  std::vector<RankMemory> ranks_;     // by local rank
  std::atomic<uint32_t> posted_ = 0;  // the last posted step
  // The step of this rank's last update of a swing chunk. If a thread has waited for elixird's word
  // on a chunk, that update happened before, through elixird. A thread sanitizer does not see other
  // processes, so the two threads also synchronise here.
  std::atomic<uint32_t> swung_ = 0;
  std::atomic<uint64_t> late_wakes_ = 0;          // timeouts although the word had changed
  std::atomic<uint64_t> waits_for_ranks_ = 0;     // counts: they order nothing
  std::vector<std::atomic<uint32_t>> revisions_;  // by chunk: how often it was published
  std::vector<uint32_t> loads_;  // by grad slot: number of loads; belongs to the slot's user
  uint64_t session_id_ = 0, token_ = 0, page_bytes_ = 0;
  pid_t elixird_pid_ = 0;
  std::atomic<uint32_t> requests_ = 0;  // requests for folders
  uint32_t broadcasts_ = 0;             // pieces of broadcasts
  const int exceptions_at_start_ = std::uncaught_exceptions();
  std::atomic<uint64_t> interrupts_at_post_ = interrupts();  // of the last posted step
  std::atomic<bool> broken_off_ = false;                     // fault_ is of break_off()
  mutable Mutex fault_mutex_;                                // also guards the attach socket
  Status fault_ ELIXIR_GUARDED_BY(fault_mutex_);         // once not ok, every later call returns it
  Mutex ring_mutex_;                                     // guards control_channel_ between
                                                         // doorbells
  bool in_call_ ELIXIR_GUARDED_BY(ring_mutex_) = false;  // a request has the channel
};

}  // namespace elixir
