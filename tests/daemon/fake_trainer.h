#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/details.h"
#include "optim_cpu/adam.h"
#include "shm/attach_socket.h"
#include "shm/messages.h"
#include "shm/parameter_table.h"
#include "shm/runtime_folder.h"
#include "shm/segment.h"
#include "shm/shape.h"
#include "tests/support/patience.h"

namespace elixir::daemon {
class Job;
}

namespace elixir::testing {

// One rank of a trainer, made of shm/ and ZeroMQ alone. It does exactly what a test wants, right or
// wrong. Every wait has a deadline of kDeadlineMs. Not thread-safe.
class FakeTrainer {
 public:
  static constexpr int kDeadlineMs = test::kPatienceMs;

  struct Options {
    shm::RuntimeFolder folder;
    std::string job = "job";
    uint32_t rank = 0;
    uint32_t first_rank = 0;   // this node's first rank
    uint32_t local_ranks = 0;  // ranks on this node; 0: all
    shm::Shape shape;
    std::vector<shm::ParameterPlace> places;
    uint32_t workers = 0;
    uint32_t accumulate = 1;  // above 1: the shape accumulates
    uint32_t immediate = 0;
    uint32_t norms = 0;
    uint32_t early = 0;
    uint32_t pins_params = 0;  // 1: maps for writing what it may
    bool keeps_sums = false;   // keeps the descriptor, for sums_fd()
    // The shm::GradGroup that it writes for a place; null: 1 for all places.
    std::function<uint8_t(uint32_t place, uint32_t step)> grad_group = {};
  };

  // Connects and attaches; maps control, grads and its own params. If elixird answers with a
  // `shm::Refusal`, the status has its code and text.
  static Result<std::unique_ptr<FakeTrainer>> attach(const Options& options);
  // Only asks to attach. elixird may need a long time to answer.
  static Result<std::unique_ptr<FakeTrainer>> ask(const Options& options);
  // A trainer of a job in this process. It uses the job's memory, and its messages call the job's
  // verbs. When it waits, it calls `go_on`, which does some pending work; false: there is none.
  // (job_fixture.cpp)
  static std::unique_ptr<FakeTrainer> beside(const Options& options, daemon::Job& job,
                                             std::function<bool()> go_on);
  // A view of another process's trainer: descriptors of its control segment, and of all ranks'
  // mapped segments.
  struct Watched {
    UniqueFd control;
    std::vector<UniqueFd> params, states, swings;
  };
  static Result<std::unique_ptr<FakeTrainer>> watch(const Options& options, Watched watched);
  ~FakeTrainer();

  // Waits for RanksReady, then maps the params and states of all ranks of the node.
  Status await_peers();
  Status hello();
  // Loads `values`, grad_slot_numel FP32 values per chunk.
  Status load(std::span<const std::vector<float>> values);
  Status await_ready();

  // Fills the slot and publishes nothing.
  void fill_grad_slot(uint32_t chunk, const void* grads);
  // Hops 1 and 2: writes the gradients (in the shape's type, grad_slot_numel) into the slot, then
  // grad_step, grad_micro_step and another grad_publication. With accumulate > 1, and from the
  // second micro-step on, elixird must sum them.
  void write_grads(uint32_t chunk, const void* grads, uint32_t step, uint32_t micro_step = 1);
  // Discards what was written since the last post, as zero_grad() does.
  void discard() { ++discards_; }
  // Writes only the shm::GradGroups of the places in the chunk, as write_grads() does.
  void write_groups(uint32_t chunk, uint32_t step);
  shm::GradGroup* grad_groups(uint32_t step) const {  // by place
    return in_control<shm::GradGroup>(options_.shape.grad_groups_offset(step));
  }
  // Replaces Options::grad_group from now on.
  void say(std::function<uint8_t(uint32_t place, uint32_t step)> grad_group) {
    options_.grad_group = std::move(grad_group);
  }
  // Request the sum of the gradients written last: without the doorbell, and with it.
  void write_request(uint32_t chunk);
  void request_sum(uint32_t chunk);
  void ring_grads(uint32_t chunk);  // GradsPublished
  // Beside a job: does some pending work; false: there is none.
  bool go_on() const { return go_on_ && go_on_(); }
  // Waits until elixird has taken the gradients written last.
  Status wait_taken(uint32_t chunk);
  Status wait_param(uint32_t chunk, uint32_t step);
  void write_record(const shm::StepRecord& record) {  // fills its slot
    step_record(record.step) = record;
  }
  // Fills the record's slot, then stores open_step.
  void open(const shm::StepRecord& record);
  // Fills the record's slot, stores posted_step and rings.
  void post(const shm::StepRecord& record);
  void post_silently(const shm::StepRecord& record);  // without the doorbell
  // Returns kUnavailable, with the fault's code in the text, if the session ended first.
  Status wait_finished(uint32_t step);
  // The points that the update of a swing chunk reaches, in order.
  enum class SwingPoint { kUp, kUpdated, kDown, kSlotStored, kStepStored, kRung };
  static constexpr SwingPoint kSwingPoints[] = {SwingPoint::kUp,         SwingPoint::kUpdated,
                                                SwingPoint::kDown,       SwingPoint::kSlotStored,
                                                SwingPoint::kStepStored, SwingPoint::kRung};
  using SwingPause = std::function<void(uint32_t chunk, SwingPoint point)>;
  // Updates this rank's shards of all swing chunks, unless the step is skipped. Calls `pause` at
  // each point.
  Status swing(uint32_t step, const SwingPause& pause = {});
  // Waits until elixird lets the chunk be updated.
  Status wait_swing(uint32_t chunk, uint32_t step);
  shm::SwingRecord& swing_record(uint32_t chunk) const {
    const shm::Shape& shape = options_.shape;
    return in_control<shm::SwingRecord>(shape.swing_records_offset())[chunk - shape.first_swing()];
  }
  void ring_swing(uint32_t chunk);
  std::byte* swing_memory() const { return swings_[options_.rank - options_.first_rank]->data(); }
  // Segments of the node's ranks.
  const shm::Segment& state(uint32_t local_rank) const { return *states_[local_rank]; }
  const shm::Segment& params(uint32_t local_rank) const { return *params_[local_rank]; }
  const shm::Segment& grads() const { return *grads_; }
  int sums_fd() const { return sums_.get(); }  // its own sums
  // The whole chunk's FP32 masters, from the states of the node's ranks.
  std::vector<float> masters(uint32_t chunk) const;
  std::vector<float> exp_avg(uint32_t chunk) const { return moment(0, chunk); }
  std::vector<float> exp_avg_sq(uint32_t chunk) const { return moment(1, chunk); }
  shm::StepResult step_result(uint32_t step) const {
    return in_control<shm::StepResult>(options_.shape.step_results_offset())[step % shm::kStepRing];
  }
  shm::UpdateResult update_result(uint32_t step) const {
    return in_control<shm::UpdateResult>(
        options_.shape.update_results_offset())[step % shm::kStepRing];
  }
  uint32_t param_step(uint32_t chunk) const;  // or the last skipped step, if it is later
  // The whole chunk, joined from all ranks' param slots, in the shape's type.
  std::vector<std::byte> gather(uint32_t chunk) const;

  // ---- fake_folders.cpp: requests for folders; each returns its number ----

  // Adds shapes of one dimension to rank 0's details. Also saves chunks placed on the GPU; each
  // waits for stage().
  uint32_t save(const std::string& parent, const std::string& name, uint32_t after_step,
                checkpoints::Details details = {});
  void stage(uint32_t number, uint32_t chunk);  // says that the chunk lies in the staging memory
  uint32_t load(const std::string& path, bool states = true);
  // Sends the message unchanged, with these descriptors.
  template <typename Message>
  void send_request(Message message, std::span<const int> fds) {
    EXPECT_TRUE(try_request(message, fds).ok());
  }
  // Fails once elixird has ended the session.
  template <typename Message>
  Status try_request(Message message, std::span<const int> fds) {
    return shm::send_message(socket_.get(), message, fds);
  }
  Status wait_heard(uint32_t number);  // returns the error that rejected it
  Status wait_over(uint32_t number);   // returns how it ended
  const shm::FolderResult& folder_result(uint32_t number) const;

  void detach();  // says goodbye
  void die();     // end-of-file without a goodbye
  // The next attach packet, decoded as SessionFault.
  Result<shm::SessionFault> wait_session_fault();
  Status wait_end_of_file();

  shm::ControlHeader& header() const { return *in_control<shm::ControlHeader>(0); }
  shm::GradRecord& grad_record(uint32_t chunk) const {
    return in_control<shm::GradRecord>(options_.shape.grad_records_offset())[chunk];
  }
  shm::ChunkRecord& chunk_record(uint32_t chunk) const {
    return in_control<shm::ChunkRecord>(options_.shape.chunk_records_offset())[chunk];
  }
  int attach_socket() const { return socket_.get(); }

  // Keeps its mappings from child processes, as the client library does.
  void keep_memory_from_children();

  // Sends raw bytes on the control channel: for messages that no correct trainer sends.
  void send_raw(std::span<const std::byte> bytes);
  template <typename Message>
  void send(Message message, uint64_t request_id = 0) {
    shm::seal_message(message, request_id);
    send_raw(std::as_bytes(std::span(&message, 1)));
  }
  // The next control message, or kTimedOut.
  Result<std::vector<std::byte>> receive(int timeout_ms = kDeadlineMs);

 private:
  struct Dealer;
  using Memory = std::shared_ptr<shm::Segment>;
  explicit FakeTrainer(const Options& options);
  Status finish_attach(const shm::Packet& packet);
  void find_swing_slots();
  template <typename Words>
  Words* in_control(uint64_t offset) const {
    return reinterpret_cast<Words*>(control_->data() + offset);
  }
  shm::StepRecord& step_record(uint32_t step) const {
    return in_control<shm::StepRecord>(options_.shape.step_records_offset())[step % shm::kStepRing];
  }
  std::vector<float> moment(uint32_t moment, uint32_t chunk) const;
  const std::byte* param_of(uint32_t local_rank, uint32_t chunk) const;
  const std::byte* master_of(uint32_t local_rank, uint32_t chunk) const;
  const float* moment_of(uint32_t moment, uint32_t local_rank, uint32_t chunk) const;
  void update_image(uint32_t chunk, uint32_t step, std::byte* image) const;
  uint32_t slot(uint32_t chunk) const;
  Status wait_word(std::atomic<uint32_t>& word, std::atomic<uint32_t>& waiters, uint32_t value,
                   const char* what);
  template <typename Message>
  Status request(Message message);

  Options options_;  // constant after construction, except what say() sets
  UniqueFd socket_;
  std::unique_ptr<Dealer> dealer_;
  uint64_t session_id_ = 0, token_ = 0;
  uint64_t next_request_ = 1;
  uint32_t discards_ = 0;  // since the last post
  uint32_t requests_ = 0;  // requests for folders so far
  Memory control_, grads_;
  std::unique_ptr<shm::Segment> staging_;
  UniqueFd sums_;
  std::vector<Memory> params_, states_;  // by local rank
  // Only with swing chunks: all ranks' swing memory; all ranks' grads (host exchange); its own
  // sums; the lanes' spare slots.
  std::vector<Memory> swings_, all_grads_;
  Memory own_sums_;
  std::vector<uint32_t> swing_spare_;
  // Beside a job.
  std::function<void(std::span<const std::byte>)> deliver_;
  std::function<bool()> go_on_;
};

// The constants for the `updates`-th update of a parameter with this shm::GradGroup.
optim::AdamStep adam_step(const shm::StepRecord& record, uint32_t group, uint64_t updates,
                          double grad_scale);

}  // namespace elixir::testing
