#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "daemon/doorbells.h"
#include "daemon/early_updates.h"
#include "daemon/grad_tracker.h"
#include "daemon/held_tasks.h"
#include "daemon/job_machine.h"
#include "daemon/job_work.h"
#include "daemon/saving.h"
#include "daemon/session.h"
#include "daemon/step_check.h"
#include "daemon/swing_updates.h"
#include "optim_cpu/verdict.h"
#include "shm/messages.h"
#include "shm/parameter_table.h"

namespace elixir::daemon {

// The interface of a job to the outside: worker threads, and the way to its ranks. The Daemon
// implements it, and so do tests. Called on the event loop; no function waits or calls the job.
class JobPorts {
 public:
  // Hands the work to the workers. Job::work_done() follows when they have given it back.
  virtual void submit(JobWork* work) = 0;
  // Acknowledges the rank's request.
  virtual void reply(const Session& session, uint64_t request_id) = 0;
  // Tells the rank why the job ends, and which rank is the cause (kNoRank: none).
  virtual void tell(const Session& session, const Status& why, uint32_t cause) = 0;
  // Closes a session's socket: the rank sees end-of-file.
  virtual void close(int socket) = 0;
  // Makes the job's memory for sums of gradients, and says in `progress` how far that is;
  // Job::sums_filled() follows.
  virtual void fill_sums(Job& job, std::shared_ptr<FillProgress> progress) = 0;
  // Writes the folder. Job::saving_moved() follows whenever its snapshot has moved, and
  // Job::save_over() once it is over.
  virtual void start_save(Job& job, std::shared_ptr<Saving> saving) = 0;
  // Reads the folder into the job's memory; Job::restore_over() follows.
  virtual void start_restore(Job& job, std::shared_ptr<Restoring> restoring) = 0;
  // Bytes that copies of states may take beside the memory of all jobs.
  virtual uint64_t free_bytes() = 0;
  // Frees the save's memory in the background, because that takes long.
  virtual void free_later(std::shared_ptr<Saving> saving) = 0;
  // Nothing uses the job's memory any more, and its ranks have heard of the end. The implementation
  // makes the job impossible to find, and keeps it until the verb in progress has returned.
  virtual void over(Job& job) = 0;

 protected:
  ~JobPorts() = default;
};

// Ranks that want a folder saved after the same step.
struct SaveAsked {
  uint32_t after_step = 0;
  std::string name;
  std::vector<std::optional<SavePart>> parts;  // by local rank
  int64_t held_since_ns = 0;  // since when the next step waits for the save before it
  bool complete() const;
};

// A save that was rejected, and the ranks that have heard it, a bit each.
struct SaveRefused {
  uint32_t after_step = 0;
  Status status;
  uint64_t heard = 0;
};

// Memory of saves beside the job's own: copies of chunks, and the data that ranks bring.
struct SaveMemory {
  uint64_t bytes = 0, there_bytes = 0;  // allowed, and used
};

// Figures in status about folders that were saved.
struct SaveStatistics {
  uint64_t published = 0, failed = 0, dropped = 0;
  uint64_t step_last = 0;  // the step of the last one published
  double write_s_last = 0, stall_ms_last = 0;
  std::string error_last = {};
};

// Figures in status about finished steps.
struct JobStatistics {
  uint64_t steps = 0;
  int64_t update_ns_last = 0;
  int64_t update_ns_sum = 0;
  uint64_t updated_numel_last = 0;  // parameters that elixird updated here: UpdateResult's
  uint64_t updated_numel_sum = 0;
  uint32_t early_chunks_last = 0, early_hits_last = 0;  // UpdateResult's
  uint64_t early_chunks_sum = 0, early_hits_sum = 0;
  std::vector<shm::StepRecord> records_last;  // by rank
  double metric_mean_last = 0;
  optim::Verdict verdict_last;
  uint64_t skipped = 0;
};

// The ranks of one training on this node: their arrival, their gradients and steps, their end. They
// are counted from 0, on this node.
//
// Only the event loop uses it. Workers use its JobWork while it is submitted. Threads that fill a
// session's memory use its FillProgress. Trainers use the mapped memory, where nothing is trusted.
// A verb that finds a broken rule ends the job with a fault, or returns a status for end_session().
// Any verb may end the job. After JobPorts::over(), every verb does nothing.
//
// The functions are grouped by file: job.cpp, doorbells.cpp, publications.cpp, dispatcher.cpp,
// open_step.cpp and early.cpp (hop 3 of the data path), swing.cpp, ending.cpp.
class Job {
 public:
  // The request of its first rank. Later ranks must ask for the same, except `workers`.
  struct Options {
    uint64_t id = 0;
    std::string name;
    shm::Shape shape;
    shm::StepRules rules;
    uint32_t local_ranks = 1;  // on this node
    shm::TableDigest table = {};
    std::vector<shm::ParameterPlace> places;
    uint32_t workers = 0;  // the most threads; 0: all

    // A rank's memory, with or without the memory for sums of gradients.
    uint64_t rank_bytes(bool sums) const {
      return shape.session_bytes() + (sums ? shape.sums_bytes() : 0);
    }
  };
  // `ports` outlives the job.
  Job(Options options, JobPorts* ports);
  Job(const Job&) = delete;

  // ---- job.cpp: ranks come, load and say hello ----

  // Takes a rank's place. kInvalidArgument when another has it.
  Result<Session*> claim(Session session);
  // The memory of Session::reservation is there, or the reason why not: then the job ends.
  void reserved(Session& session, Result<SessionMemory> memory);
  // Logs each rank whose memory is being reserved, every few seconds.
  void say_what_is_being_reserved(int64_t now_ns);
  // The rank has its AttachReply. True if it is the last rank: call begin_work() next.
  bool attached(const Session& session);
  // Cuts slices for worker groups with these numbers of threads. REQUIRES: attached() was true.
  void begin_work(std::span<const uint32_t> threads_of_group, uint64_t slice_numel);
  // The descriptors of all ranks have been sent to every rank.
  void ranks_are_told();
  // The rank has mapped its memory. Once all ranks have, the memory is closed to new writers.
  void said_hello(Session& session, std::string routing_id);
  Status load_chunk(const Session& session, const shm::LoadChunk& message);
  // Answers the request once the job is loaded and, if the request says so, every rank has asked.
  void await_ready(Session& session, const shm::AwaitReady& request);

  // ---- doorbells.cpp, publications.cpp, dispatcher.cpp: what a rank has written in shared memory,
  // and what the workers did ----

  // The doorbell of a post has rung.
  void heard_post(Session& session, uint32_t step);
  // Reads the rank's posted_step. Ends a session that broke the rules.
  void look_at_posted(Session& session);
  // Reads a chunk's gradients that a doorbell announced.
  Status look_at_grads(const Session& session, uint32_t chunk);
  // The rank has updated its part of a swing chunk.
  void heard_swing(Session& session);
  // Reads all words of all ranks, because doorbells may get lost.
  void look_at_everything();
  // The workers have given work() back.
  void work_done();
  // The memory of JobPorts::fill_sums() is there, or the reason why not: then the job ends.
  void sums_filled(const Status& status);

  // ---- folders.cpp, saves.cpp: states come from a folder, or go to one ----

  // The data of a rank's request has been read, or the reason why not.
  void heard_save(Session& session, const shm::SaveFolder& message, Result<SavePart> part);
  void heard_load(Session& session, const shm::LoadFolder& message,
                  Result<checkpoints::Details> details, UniqueFd folder);
  Status staged_chunk(const Session& session, const shm::StagedChunk& message);
  // Writers have finished chunks for which updates, or a rank's staging memory, wait.
  void saving_moved();
  void save_over();
  void restore_over();
  // Writes the progress to shared memory, for ranks that wait.
  void tell_folder_progress();
  // Logs a save or a load that makes no progress.
  void say_what_stands_still(int64_t now_ns);

  // ---- ending.cpp: ranks go ----

  // The rank broke the rules, or its memory could not be reserved. It hears why. The others hear
  // that they lost it.
  void end_session(const Session& session, const Status& why);
  // End-of-file without Detach. A step that every rank had posted before will still happen.
  void lose_rank(Session& session);
  // A clean goodbye. The memory stays until all ranks have gone: the others map its params.
  void detach(Session& session);
  // elixird was stopped.
  void stop();
  // A verb has run out of memory halfway, so the state here may be wrong. From here on only the
  // verbs that hear of an end (reserved, work_done, sums_filled, save_over, restore_over), leave()
  // and this one are called. It tells the ranks, and ends the job when nothing uses its memory any
  // more. It needs no memory itself, and may be called again.
  void give_up();
  bool given_up() const { return given_up_; }
  // The rank has gone, with or without a goodbye.
  void leave(Session& session) { close(session); }
  // Ends the job if a rank's memory has lost pages (SessionMemory::lost_pages).
  void check_memory();
  // Looks in the next `bytes` of its memory for pages that the system has swapped out.
  void look_for_swapped(uint64_t bytes);
  // Ends the job if it, or ranks within a step, wait longer than the limit for a rank that is
  // missing or silent.
  void check_timeout(int64_t now_ns, uint32_t limit_s);

  // ---- its state ----

  const Options& options() const { return options_; }
  uint32_t local_ranks() const { return options_.local_ranks; }
  const Sessions& sessions() const { return sessions_; }
  const JobMachine& machine() const { return machine_; }
  const GradTracker& tracker() const { return tracker_; }
  const SwingUpdates& swings() const { return swings_; }
  JobPhase phase() const { return machine_.phase(); }
  const JobWork* work() const { return work_.get(); }  // null before begin_work()
  const JobStatistics& statistics() const { return statistics_; }
  const SaveStatistics& saves() const { return saves_; }
  const Saving* saving() const { return saving_.get(); }  // null: none is under way
  SaveMemory save_memory() const;
  // Whether the job is ending, and waits only for the thread of its save or load.
  bool waits_for_folder_alone() const;
  std::string folder_under_way() const;  // "": none
  uint64_t lost_doorbells() const { return doorbells_.lost(); }
  uint64_t numel() const { return numel_; }    // parameters, without padding
  bool has_sums() const { return has_sums_; }  // memory for sums of gradients
  uint64_t need_bytes() const;
  uint64_t reserved_bytes() const { return reserved_bytes_; }  // by ranks whose memory is there
  uint64_t swapped_bytes() const { return swapped_bytes_; }    // at the last look
  uint64_t filling_bytes() const;  // already filled for ranks whose memory is not there yet
  bool reserving() const;          // a background task makes memory for the job
  bool step_in_hand() const { return machine_.activity() == Activity::kStep; }
  bool work_in_hand() const { return submitted_; }  // at workers, or done but not counted yet

 private:
  // The stages of a step that every rank has posted. First, missing squares are taken. Then the
  // verdict is given, and the chunks are updated.
  enum class StepStage { kTaking, kUpdating };

  // ---- job.cpp ----
  void close_to_new_writers();
  void answer_ready();

  // ---- dispatcher.cpp ----
  void advance();
  bool start_next();
  void submit();
  void submit_tasks(bool completes_step);
  bool may_begin(ChunkTask& task);
  bool has_tasks() const { return !tasks_.empty() || !held_tasks_.empty(); }
  void submit_open_tasks();
  void take_released();
  void submit_held_tasks();
  void fill_sums();
  bool takes_early() const;
  uint32_t n_chunks() const { return options_.shape.n_chunks; }
  void take_ready();
  StepViolation check_post(uint32_t step);
  StepViolation check_grads(uint32_t step);
  StepViolation read_groups(uint32_t chunk, uint32_t step, uint32_t n_groups);
  bool begin_step(uint32_t step);
  optim::Verdict judge_step() const;
  uint64_t workers_numel() const;
  void commit_step();
  void publish_verdict() const;
  void load_done();
  void step_done();

  // ---- open_step.cpp ----
  StepViolation open_step(uint32_t step);
  StepViolation open_immediate(uint32_t step);

  // ---- early.cpp ----
  EarlyLimits early_limits() const;
  void begin_early_tasks();
  void open_early(uint32_t step);
  void undo_early(uint32_t chunk);
  void settle_early(bool all);
  void drop_early(bool all);
  bool early_stands() const;
  void take_early();

  // ---- swing.cpp ----
  void begin_swings();
  void tell_swing_parameters(uint32_t chunk);
  StateSlots::Lane swing_target(uint32_t chunk) const;
  void open_swings();
  void look_at_swings(Session& session);
  void swing_violation(Session& session, const std::string& what);
  void publish_swings();
  uint64_t gone_ranks() const;
  void take_over_swings();
  void give_up_swings();
  bool end_swings();
  void go_on_with_swings();
  void check_swings(int64_t now_ns, uint32_t limit_s);

  // ---- publications.cpp ----
  Status note_all_grads(Session& session);
  Status read_records(Session& session, bool by_tick);
  void note_grads_of_next_step();
  Status note_post(Session& session);
  Status note_awaited(const Session& session);
  void take_what_is_awaited();

  // ---- folders.cpp ----
  Status check_save(const Session& session, const shm::SaveFolder& message);
  Status join_save(const Session& session, const shm::SaveFolder& message, SavePart part);
  void drop_asked(const Status& why);
  Holds look_at_saves();
  void begin_save();
  std::shared_ptr<Saving> make_saving();
  void tell_saved(const Saving& saving);
  void begin_restore();
  void tell_staged();
  void count_hold(bool held);
  void free_retired();
  void refuse_all(const Session& session, uint32_t after_step, const Status& status);
  Status refused_before(const Session& session, uint32_t after_step);
  void cancel_save();

  // ---- ending.cpp ----
  void fail(Fault fault, bool finish_posted = false);
  void fail_if_waiting_for_detached();
  void fail_if_waiting_for_a_call();
  void check_midst_of_step(int64_t now_ns, uint32_t limit_s);
  void end_if_possible();
  void announce(const Fault& fault);
  void close(Session& session);

  const Options options_;
  JobPorts& ports_;
  const uint64_t numel_;

  JobMachine machine_;
  GradTracker tracker_;
  Doorbells doorbells_;
  Sessions sessions_;               // by local rank; null: not claimed yet
  int64_t phase_since_ns_;          // when the phase began, or its last rank attached
  uint64_t seen_publications_ = 0;  // at the tick before
  int64_t moved_ns_ = 0;            // when one came last, or nobody waited for one
  uint64_t reserved_bytes_ = 0;
  uint64_t swapped_bytes_ = 0;
  bool closed_to_new_writers_ = false;
  bool has_sums_;
  std::shared_ptr<FillProgress> sums_progress_;  // while they are being filled
  bool rang_ahead_ = false;                      // doorbells of a step that is not awaited yet
  bool over_ = false;
  bool given_up_ = false;
  std::vector<const SessionMemory*> memories_;  // by local rank, from begin_work() on
  std::unique_ptr<ParameterUpdates> updates_;
  std::unique_ptr<JobWork> work_;
  // Tasks of the activity in flight: those that go to the workers next (capacity for all chunks),
  // and those that a save holds.
  std::vector<ChunkTask> tasks_;
  HeldTasks held_tasks_;
  std::vector<uint32_t> released_;  // chunks that a save released just now; capacity for all
  bool submitted_ = false;          // workers have tasks
  bool completes_step_ = false;     // with the last of tasks_

  // The step in flight, or, if a step is open, the next one.
  StepStage stage_ = StepStage::kTaking;
  StepWork step_work_;
  std::vector<shm::StepRecord> records_, open_records_;  // copies, by rank
  // Immediate and early updates: the ranks' announcement, read when the first chunk was ready.
  std::optional<shm::StepRecord> opened_;
  bool made_for_others_ = false;  // early updates of the step had older hyperparameters
  StateSlots slots_;
  EarlyUpdates early_;
  std::vector<uint32_t> moved_;  // chunks that moved with the step in flight
  SwingUpdates swings_;
  int64_t swing_moved_ns_ = 0;         // when the last one was published; 0: since the last tick
  std::vector<ChunkTask> taken_over_;  // tasks of gone ranks that workers have
  std::vector<uint32_t> opened_swings_, published_swings_;  // just now
  optim::Verdict verdict_;
  double metric_mean_ = 0;
  uint64_t applied_ = 0;  // steps that were not skipped

  JobStatistics statistics_;

  std::optional<SaveAsked> asked_;
  std::optional<SaveRefused> refused_;  // the last save that was rejected
  // The frozen parameters' entry. Empty: no save knows it, or a load changed it.
  std::optional<checkpoints::LeftOut> frozen_left_out_;
  std::shared_ptr<Saving> saving_;        // null: none is under way
  std::shared_ptr<Saving> retired_;       // over, but workers still have its tasks
  std::shared_ptr<Restoring> restoring_;  // null: none is asked for
  bool announced_ = false;  // the fault was announced before the job's end, as a save continues
  SaveStatistics saves_;
};

}  // namespace elixir::daemon
