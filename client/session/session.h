#pragma once

// One rank's session with elixird: attach, the mapped memory, doorbells, waits. No torch, no GPU.
// Owned by one thread; others may call load_chunk, and, once all is loaded, one of them
// publish_grad and post_step, one what is said of swing chunks, and any of them
// folder_ended_within, folder_result and folder_progress. Every wait ends within a tenth of a
// second of elixird's death, or that of a rank of this node, with a Status that names it (of other
// nodes: SessionOptions::liveness). A wait for elixird alone ends after request_timeout_s; one for
// the other ranks' step has no other end, since a rank may evaluate or save for as long as it
// likes.

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
#include "base/mutex.h"
#include "base/status.h"
#include "client/session/control_channel.h"
#include "client/session/folders.h"
#include "client/session/host_range.h"
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
  std::string runtime_dir;   // "": as shm::daemon_places() says
  std::string launch;        // whose elixird it is, where no folder is named
  std::string job;           // the same on every rank
  bool start_daemon = true;  // where none listens
  shm::StepRules rules = {};
  // Beside what with_memory() adds:
  double ranks_timeout_s = 600;    // for the other ranks to attach and load
  double request_timeout_s = 600;  // for elixird to answer a request
  // Asked about ten times a second in every wait: a status that is not ok ends it.
  std::function<Status()> liveness;
};

// The limit of a wait in which elixird may have to fill all memory of so many ranks, or one of them
// to load it: a TiB takes a thread a quarter of an hour, and no time without a word from elixird is
// too long for that (its end is noticed at once, by the attach socket).
double with_memory(double timeout_s, const shm::Shape& shape, uint32_t local_ranks);

class Session {
 public:
  // Finds or starts elixird, attaches, and waits until every rank of the job has. The table says
  // where each parameter lies; it must be the same on all ranks.
  static Result<std::unique_ptr<Session>> attach(const shm::Shape& shape,
                                                 const std::vector<shm::ParameterPlace>& places,
                                                 const SessionOptions& options);
  ~Session();

  const shm::Shape& shape() const { return shape_; }
  uint32_t rank() const { return options_.rank; }
  uint64_t page_bytes() const { return page_bytes_; }

  uint32_t local_rank() const { return options_.local_rank; }

  // Shape::grad_slot_numel() elements; written by this rank alone.
  std::byte* grad_slot(uint32_t chunk) const;
  // The shard that a rank of this node keeps of a chunk, and its FP32 masters: shard_end -
  // shard_begin elements, where they lie after the last step that wait_param() was for; good until
  // this rank has posted the next one. The masters of a step are there once it is finished.
  const std::byte* param_shard(uint32_t chunk, uint32_t local_rank) const;
  void read_masters(uint32_t chunk, uint32_t local_rank, float* values) const;
  void read_moment(uint32_t chunk, uint32_t local_rank, uint32_t moment, float* values) const;

  // With `pins_params`, what is page-locked for the device: grads, this rank's params or all of
  // them, and so of swing memory; with that, all ranks' grads. All of it is mapped for writing,
  // since CUDA page-locks nothing else of shared memory.
  std::vector<HostRange> device_ranges() const;
  // Once that is done: what this rank only reads cannot be written any more. Page-locked pages
  // stay so.
  Status protect_params();

  // Before step 1, once for every chunk placed on the CPU and every frozen one, and again while all
  // posted steps are finished, between two await_loaded() of every rank: FP32 initial values
  // of what a grad slot covers, grad_slot_numel of them; of a frozen chunk words (exchange.h),
  // whose bytes it keeps. Host exchange: rank 0 alone, for all. Any thread, several chunks of
  // different Shape::load_slot at a time.
  Status load_chunk(uint32_t chunk, const float* values);
  // Every rank: waits until all that is to be loaded is, and all ranks are here. `call`: what the
  // program called, for the log and kTimedOut, which say who has not called it, as far as is known.
  Status await_loaded(const std::string& call = "the loading of weights");

  // What this rank says of the trained parameters in a step, one of the last kStepRing - 2 or the
  // next: by number in the table, which has a gradient, and of which group of hyperparameters.
  // Said before its chunk is published. forget_gradients: of none, as before the step's first.
  std::span<shm::GradGroup> grad_groups(uint32_t step) const;
  void say_gradient(uint32_t step, uint32_t parameter, uint32_t group);
  void forget_gradients(uint32_t step);
  // How often each trained parameter has been updated through step finished_step. REQUIRES:
  // Shape::tells_updates().
  std::span<const shm::UpdateCount> update_counts() const;
  // With `immediate`, before the first gradient of record.step is published: its hyperparameters.
  void open_step(const shm::StepRecord& record);
  // Hop 2. The chunk's gradients of this micro-step of a step lie in its grad slot.
  struct PublishedGrads {
    uint32_t step = 0, micro_step = 0;  // both count from 1
    // So often what was published of the step has been dropped. With another count every chunk is
    // published again, from micro-step 1 on.
    uint32_t discards = 0;
    // Another micro-step may follow: elixird adds these to the FP32 sums as soon as every rank of
    // the node has published as much.
    bool to_sum = false;
  };
  Status publish_grad(uint32_t chunk, const PublishedGrads& of);
  // The same for what was published last, where `to_sum` was not said. REQUIRES: by the thread that
  // publishes, or once it has.
  Status request_sum(uint32_t chunk);
  // After either: waits until the slot's gradients have been added up, or another rank's discard
  // has made them count no more. They may be overwritten. REQUIRES: nothing that this rank has made
  // is still to be published (or is_taken()); by one thread at a time.
  Status wait_taken(uint32_t chunk);
  // Whether it would return at once.
  bool is_taken(uint32_t chunk) const;
  // Hop 2. Posts `record.step`; REQUIRES: publish_grad of every chunk for this step.
  // Nothing here checks it: elixird ends the job where it is not so.
  // Waits only while elixird has not committed the step before the last one.
  Status post_step(const shm::StepRecord& record);

  // In the place of SessionOptions::request_timeout_s from here on. REQUIRES: no call is in
  // progress.
  void set_request_timeout_s(double seconds) { request_timeout_s_ = seconds; }

  // Ends the session for this rank: every call and wait, of any thread, returns this status.
  void fail(const Status& status);

  // Waits until the chunk's param slots hold the weights after `step` (0: the initial ones).
  Status wait_param(uint32_t chunk, uint32_t step);
  // The greatest step whose weights they hold.
  uint32_t param_step(uint32_t chunk) const;
  // Waits until every rank has posted the step: it will happen, or is skipped. REQUIRES: step is
  // one of the last kStepRing - 2 posted.
  Result<shm::StepResult> wait_committed(uint32_t step);
  // The last step whose result wait_committed() has without waiting.
  uint32_t committed_step() const;
  // Waits until the step's update is done.
  Status wait_finished(uint32_t step);
  // What the update of the last finished step took; step 0 before the first.
  shm::UpdateResult last_finished() const;
  // When the workers began the chunk's last update and ended it, CLOCK_MONOTONIC.
  struct UpdateTimes {
    uint64_t begin_ns, end_ns;
  };
  UpdateTimes update_times(uint32_t chunk) const;

  // ---- side.cpp ----

  // Rank 0's bytes become everyone's; host exchange, as many on every rank. Waits for the other
  // ranks, without a limit, and without a word to elixird. By one thread.
  Status broadcast(std::span<std::byte> bytes);
  // How often this rank has begun to wait for other ranks, in any call. Any thread.
  uint64_t waits_for_ranks() const {
    return waits_for_ranks_.load(std::memory_order_relaxed);  // a count: orders nothing
  }

  // ---- swing.cpp: swing chunks, whose shards this rank updates; by one thread, any ----

  // Waits until the chunk may be updated for `step`, which was committed and not skipped: its
  // gradients are there, and nobody reads the slot into which it goes.
  Status wait_swing(uint32_t chunk, uint32_t step);
  // That it may, now.
  bool may_swing(uint32_t chunk, uint32_t step) const;
  // After that, what elixird says: the chunk's gradients are grad_sum(), not the ranks' grad slots;
  // what all ranks say of a trained parameter that is in the chunk (shm::GradGroup), and how often
  // it has been updated, the step included.
  bool swings_sums(uint32_t chunk) const;
  struct SwingParameter {
    uint8_t group = shm::kNoGradient;
    uint32_t updates = 0;
  };
  SwingParameter swing_parameter(uint32_t parameter) const;
  // The step's record, as this rank has posted it.
  const shm::StepRecord& posted_record(uint32_t step) const {
    // Acquire, of post_step()'s release: the verdict that the caller has seen came by way of
    // elixird, of whose order a thread sanitizer knows nothing.
    header().posted_step.load(std::memory_order_acquire);
    return step_record(step);
  }
  // The image of this rank's shard of a chunk (Shape::image_bytes) in a slot of the swing memory.
  std::byte* swing_image(uint32_t slot) const;
  // Where the chunk's weights and states lie after the last step that wait_param() was for.
  uint32_t slot(uint32_t chunk) const;
  // A rank's gradients of this rank's shard of a swing chunk, as they stand in its grad slot. Host
  // exchange: of every rank; else of this one.
  const std::byte* shard_grads(uint32_t chunk, uint32_t local_rank) const;
  // The states after `step` lie in the slot, that of the chunk's lane.
  Status swing_updated(uint32_t chunk, uint32_t slot, uint32_t step);

  // ---- folders.cpp ----

  // The states after the last posted step are to be written into a new folder: the request's
  // number, or why elixird refuses it. Every rank of the node. Then, where chunks are placed on the
  // GPU, await_begun(), and stage_chunk() for each, ascending: its image (Shape::image_bytes) lies
  // in the staging memory; returns once that is free again, or the request is over. REQUIRES:
  // after_step is posted.
  Result<uint32_t> save_folder(const FolderToSave& save);
  Status await_begun(uint32_t number);
  Status stage_chunk(uint32_t number, uint32_t chunk);
  // Chunks that elixird keeps on this node become what the folder holds, in the place of all
  // load_chunk() calls or, while all posted steps are finished, between two await_loaded() of every
  // rank. The lowest rank of the node.
  Result<uint32_t> load_folder(const FolderToLoad& load);
  // Whether a request is over, so that folder_result() is there.
  Result<bool> folder_ended_within(uint32_t number, double seconds);
  // REQUIRES: it is one of the last kFolderRing - 1 requests.
  FolderOutcome folder_result(uint32_t number) const;
  FolderProgress folder_progress(uint32_t number) const;

  // FP32 sums of this rank's shard over the micro-steps; once wait_taken has returned.
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
  // The device copies from the params of that rank.
  bool reads_params_of(uint32_t local_rank) const {
    return shape_.exchange == shm::Exchange::kHost || local_rank == options_.local_rank;
  }
  Status check_alive();
  template <typename Message>
  Status ring(const Message& doorbell);
  Status ring_grads(uint32_t chunk);
  Status end_of_file_status() const;
  std::string other_ranks() const;
  Status load_part(uint32_t chunk, shm::LoadPart part);
  // The limit of a wait: request_timeout_s from the moment on when it is for elixird alone, which
  // is when `committed` is committed; kNobodyElse: at once.
  static constexpr uint32_t kNobodyElse = 0, kOtherRanks = UINT32_MAX;
  struct Wait {
    const std::atomic<uint32_t>& word;  // until it has reached `number`
    std::atomic<uint32_t>& waiters;     // counts who sleeps on it
    uint32_t number;
    const char* what;
    uint32_t committed;
    bool is_param_step = false;  // or the step has been skipped
    uint32_t or_ended = 0;       // or this request for a folder is over; 0: none
  };
  bool folder_under_way() const;
  Result<uint32_t> next_request();
  Status await_turn(const FolderToSave& save);
  Status await_heard(uint32_t number);
  bool reached(const Wait& wait) const;
  bool reached_soon(const Wait& wait) const;
  Wait taken_wait(uint32_t chunk) const;
  // What `committed` is in a wait for what follows a step; `swings`: for updates of trainers, too.
  uint32_t alone_after(uint32_t step, bool swings) const;
  Status wait_word(const Wait& wait);
  Result<shm::Packet> receive_from_daemon(const char* what, double timeout_s);

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
  double request_timeout_s_;  // options_', or what it was set to
  UniqueFd attach_socket_;
  std::unique_ptr<ControlChannel> control_channel_;
  std::optional<shm::Segment> control_;
  std::optional<shm::Segment> grads_;
  std::optional<shm::Segment> sums_;
  struct RankMemory {
    shm::Segment params, state;
    std::optional<shm::Segment> swing;  // with swing chunks
    std::optional<shm::Segment> grads;  // with them or side memory, and the host exchange
  };
  std::vector<RankMemory> ranks_;     // of every rank of this node
  std::atomic<uint32_t> posted_ = 0;  // the last step
  // Of the last chunk that this rank has updated. Who waits for elixird's word on a chunk is behind
  // this rank's update of it by way of elixird; a thread sanitizer sees no other process, so the
  // two threads meet here as well.
  std::atomic<uint32_t> swung_ = 0;
  std::atomic<uint64_t> late_wakes_ = 0;          // waits that nobody ended in time
  std::atomic<uint64_t> waits_for_ranks_ = 0;     // counts: they order nothing
  std::vector<std::atomic<uint32_t>> revisions_;  // by chunk: published so often
  std::vector<uint32_t> loads_;                   // by grad slot: asked for; of who uses the slot
  uint64_t session_id_ = 0, token_ = 0, page_bytes_ = 0;
  std::atomic<uint32_t> requests_ = 0;  // for folders
  uint32_t broadcasts_ = 0;             // pieces of them
  const int exceptions_at_start_ = std::uncaught_exceptions();
  Mutex fault_mutex_;                             // and the attach socket's
  Status fault_ ELIXIR_GUARDED_BY(fault_mutex_);  // once not ok, what every later call returns
  Mutex ring_mutex_;                              // the control channel's, between doorbells
  bool in_call_ ELIXIR_GUARDED_BY(ring_mutex_) = false;  // a request has the channel
};

}  // namespace elixir
