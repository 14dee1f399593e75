#pragma once

#include <poll.h>

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/fd.h"
#include "base/host_memory.h"
#include "base/machine_load.h"
#include "daemon/background.h"
#include "daemon/bandwidth_watch.h"
#include "daemon/config.h"
#include "daemon/descriptors.h"
#include "daemon/heap_reserve.h"
#include "daemon/job.h"
#include "daemon/neighbours.h"
#include "daemon/topology.h"
#include "daemon/worker_pool.h"
#include "daemon/zmq_gate.h"
#include "daemon/zmq_router.h"
#include "shm/attach_socket.h"
#include "shm/messages.h"
#include "shm/runtime_folder.h"

namespace elixir::daemon {

inline constexpr uint32_t kBackgroundThreads = 2, kTablesThreads = 1;
// At the start. Later there is one per job, because a disk may never answer.
inline constexpr uint32_t kFolderThreads = 1;
// A thread of this niceness gets a tenth of a processor that an updating thread also wants.
inline constexpr int kTablesNiceness = 10;
inline constexpr int64_t kBandwidthLookNs = 5'000'000'000;

// An AttachRequest that would start a job.
struct AttachAttempt {
  uint64_t id = 0;  // in the order of arrival
  shm::AttachRequest request;
  std::vector<shm::ParameterPlace> places;  // once read; moves to the job
  bool waits_for_memory = false;
};

// One accepted attach socket.
struct Connection {
  UniqueFd socket;
  shm::PeerCredentials peer{};
  UniqueFd process;  // readable once it has ended; invalid: only end-of-file says so
  int64_t accepted_ns = 0;
  uint64_t session_id = 0;  // 0: has not attached
  // Set until its AttachRequest is decided: while its parameter table is read, or while the job
  // waits for memory of others.
  std::optional<AttachAttempt> attempt = {};
};

// Descriptors that the event loop polls beside connections and their processes.
inline constexpr size_t kPolledBeside = 7;

// elixird's event loop: one thread that owns sockets and jobs, admits ranks, passes their messages
// to their Job, and never waits for a peer. The functions are grouped by file: event_loop.cpp,
// workers.cpp, attach.cpp, admission.cpp, neighbours.cpp, reserve.cpp, ranks_ready.cpp,
// control.cpp, ports.cpp, folder_requests.cpp, lack_of_memory.cpp, status.cpp. daemon/README.md
// says who owns what.
class Daemon final : public JobPorts {
 public:
  // Takes the folder's lock (kAlreadyRunning when another elixird has it), starts the threads and
  // listens. REQUIRES: SIGTERM, SIGINT, SIGHUP and SIGQUIT are blocked in this thread.
  static Result<std::unique_ptr<Daemon>> start(const Config& config);
  ~Daemon();

  // Serves until a signal or idleness ends it. Returns the exit code.
  int run();

 private:
  explicit Daemon(const Config& config) : config_(config) {}

  // ---- event_loop.cpp ----
  Status open(const shm::RuntimeFolder& folder);
  Status bind_channels();
  bool has_untold() const;
  Status listen();
  void close_listener();
  bool holds_folder() const;
  void remove_sockets() const;
  void serve_once();
  void on_signal();
  void on_tick();
  void check_timeouts(int64_t now_ns);
  void on_work_done(const JobWork* work);
  bool idle_too_long(int64_t now_ns);

  // ---- workers.cpp ----
  void start_threads();
  uint32_t threads_to_measure() const;
  void note_work();
  bool workers_are_free() const;
  void look_at_bandwidth(int64_t now_ns);
  void measure_again();
  void on_measured(const Bandwidth& measured, bool idle);
  void choose_workers();

  // ---- attach.cpp ----
  void accept_connections();
  bool read_connection(int socket);
  void on_process_end(int socket);
  void handle_attach(Connection& connection, shm::Packet packet);
  void on_table_read(int socket, uint64_t attempt_id,
                     Result<std::vector<shm::ParameterPlace>> places);
  void attempt_attach(Connection& connection);
  // `places`: read from the request's parameter table; empty: it was not read.
  Status admit(Connection& connection, Job& job, const shm::AttachRequest& request,
               std::span<const shm::ParameterPlace> places);
  void greet(Connection& connection);
  void refuse(Connection& connection, const Status& status);
  void send_refusal(const Connection& connection, const Status& status);
  void retry_waiting();

  // ---- folder_requests.cpp ----
  void read_session(Session& rank, Result<shm::Packet> packet);
  Status read_request(Session& rank, shm::Packet packet);
  Status count_request(Session& rank, uint32_t number, uint64_t details_bytes);
  Session* session_of(uint64_t id) const;  // null: it is over
  Status read_save(Session& rank, const shm::SaveFolder& message, shm::Packet packet);
  Status read_load(Session& rank, const shm::LoadFolder& message, shm::Packet packet);
  void leave_hung_folders();

  // ---- admission.cpp ----
  Job* job_named(std::string_view name) const;
  Status check_limits(const shm::AttachRequest& request) const;
  Result<Job*> create_job(AttachAttempt* attempt);
  Status check_kept_tables() const;
  uint64_t ranks_without_memory() const;
  void keep_descriptors_for_jobs() const;
  void look_at_descriptors();

  // ---- neighbours.cpp ----
  void look_for_neighbours(int64_t now_ns);
  void look_for_neighbours_while_idle(int64_t now_ns);
  void take_neighbours(std::vector<Neighbour> found);

  // ---- reserve.cpp ----
  void look_for_swapped(int64_t now_ns);
  MemoryRoom room_for_jobs() const;
  bool memory_moves() const;
  Status check_memory(const Job::Options& job, bool* wait_for_memory) const;
  FillOptions fill_options(const Session& session, FillProgress* progress) const;
  void reserve(Session& session, int32_t numa_node);
  void on_reserved(Job& job, uint32_t local_rank, Result<SessionMemory> memory,
                   uint64_t page_bytes);

  // ---- ranks_ready.cpp ----
  Status send_attach_reply(const Session& session);
  void send_owed(Job& job);
  void on_all_attached(Job& job);

  // ---- control.cpp ----
  void drain_control();
  void handle_control(const RouterMessage& message);
  void handle_hello(const RouterMessage& message);
  void note_dropped(const RouterMessage& message, const std::string& why);
  void tell_dropped();

  // ---- ports.cpp: requests of jobs ----
  void submit(JobWork* work) override;
  void reply(const Session& session, uint64_t request_id) override;
  void tell(const Session& session, const Status& why, uint32_t cause) override;
  void close(int socket) override;
  void fill_sums(Job& job, std::shared_ptr<FillProgress> progress) override;
  void start_save(Job& job, std::shared_ptr<Saving> saving) override;
  void start_restore(Job& job, std::shared_ptr<Restoring> restoring) override;
  uint64_t free_bytes() override;
  void free_later(std::shared_ptr<Saving> saving) override;
  void over(Job& job) override;
  void free_ended();
  template <typename Owned>
  void free_in_background(std::shared_ptr<Owned> owned, uint64_t bytes);

  // ---- lack_of_memory.cpp ----

  // If memory runs out, only the owner of the work ends: the job, or, without a job, the function.
  template <typename Function>
  void contain(Job& job, Function&& function);
  template <typename Function>
  static void contain(Function&& function);
  // Calls `function` with every job, except those that have been given up. Allocates nothing.
  template <typename Function>
  void for_each_job(Function&& function);
  void give_up_jobs();
  void look_at_memory();
  // contain() for a connection: if it has a place in a job, that job ends; else it is rejected.
  template <typename Function>
  void contain_connection(int socket, Function&& function);
  void end_for_lack_of_memory(int socket);

  // ---- status.cpp ----
  void drain_status();
  void note_bandwidths();
  const std::string& recent_status();
  std::string status_json() const;

  const Config config_;
  shm::RuntimeFolder folder_;
  int64_t start_ns_ = 0;
  DescriptorLimit descriptors_{0};

  // Opened once, in start().
  UniqueFd lock_, listener_, signals_, work_done_, background_done_, gate_closed_;
  std::unique_ptr<ZmqRouter> control_, status_router_;

  // Constant once the threads run.
  std::vector<NodeCpus> nodes_;

  // Owned by the event loop.
  std::map<int, Connection> connections_;          // by socket
  std::map<uint64_t, Session*> sessions_;          // by id; owned by their jobs
  std::map<uint64_t, std::shared_ptr<Job>> jobs_;  // by id
  std::vector<std::shared_ptr<Job>> ended_;  // until the handlers that may hold them have returned
  std::unordered_map<std::string, uint64_t> bound_;  // routing id -> session id
  uint64_t next_id_ = 1;
  std::vector<pollfd> polled_;  // has room for all connections
  uint64_t told_times_without_memory_ = 0;
  int64_t next_memory_note_ns_ = 0;
  // Bytes of ended jobs and saves that the kernel does not have back yet.
  uint64_t releasing_bytes_ = 0;
  uint64_t page_bytes_ = 0;      // obtained by the latest session
  uint64_t lost_doorbells_ = 0;  // those of ended jobs
  uint32_t refusal_lines_ = 0;   // in the log since the last tick
  uint64_t refusals_untold_ = 0;
  bool gate_rang_ = false;     // there are counts to take, or new connections
  bool gate_watches_ = false;  // some connections are still silent
  GateCounts refused_;         // since the last line about them
  int64_t next_refused_note_ns_ = 0;
  uint64_t dropped_ = 0;  // messages of unknown senders, since the last line about them
  int64_t next_dropped_note_ns_ = 0;
  struct {
    uint64_t bytes = 0;
    std::string why;
  } last_dropped_;
  std::string document_;  // the latest status, and when it was written
  int64_t document_ns_ = 0;
  int64_t idle_since_ns_ = 0;
  int64_t next_tick_ns_ = 0;
  BandwidthWatch bandwidth_;
  OthersLoad others_;
  int64_t next_look_ns_ = 0;           // when to look at the machine's load, and the workers
  bool had_work_ = false;              // a job had work since the last look
  std::vector<Neighbour> neighbours_;  // other elixirds on its processors
  int64_t next_neighbours_ns_ = 0;     // when to look for them again
  int64_t next_swap_ns_ = 0;           // when to ask again whether the machine swaps
  uint64_t used_swap_bytes_ = 0;       // as it was then
  bool messages_left_ = false;         // ZeroMQ's descriptors do not say so again
  bool accepting_ = true;              // false until the next tick when descriptors have run out
  bool stopping_ = false;
  int exit_signal_count_ = 0;
  int64_t stop_ns_ = 0;         // when the first signal came; 0: none has
  uint64_t details_bytes_ = 0;  // held by folder requests that are being read

  // The event loop writes it, and the measuring thread reads it. Relaxed: it guards nothing.
  std::atomic<bool> stop_measuring_{false};

  // Last: their threads use everything above.
  std::unique_ptr<Background> background_;
  std::unique_ptr<Background> tables_;  // parameter tables: a thread of their own, so no fill waits
  std::unique_ptr<Background> folders_;  // saves and loads: minutes each, one per job
  std::unique_ptr<WorkerPool> pool_;
};

template <typename Function>
void Daemon::contain(Job& job, Function&& function) {
  try {
    function();
  } catch (const std::bad_alloc&) {
    note_no_memory();
    contain([&job] { job.give_up(); });
  }
}

template <typename Function>
void Daemon::contain(Function&& function) {
  try {
    function();
  } catch (const std::bad_alloc&) {
    note_no_memory();
  }
}

template <typename Function>
void Daemon::contain_connection(int socket, Function&& function) {
  try {
    function();
  } catch (const std::bad_alloc&) {
    note_no_memory();
    contain([&] { end_for_lack_of_memory(socket); });
  }
}

template <typename Function>
void Daemon::for_each_job(Function&& function) {
  for (auto at = jobs_.begin(); at != jobs_.end();) {
    const uint64_t id = at->first;
    Job& job = *at->second;
    if (!job.given_up()) contain(job, [&] { function(job); });
    at = jobs_.upper_bound(id);  // it may be over now
  }
}

}  // namespace elixir::daemon
