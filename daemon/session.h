#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/oom_watch.h"
#include "daemon/fill.h"
#include "daemon/session_memory.h"

namespace elixir::daemon {

class Job;

// A session's memory while it is being reserved.
struct Reservation {
  uint64_t bytes = 0;  // to be filled
  int64_t since_ns = 0;
  WaitNotes notes{2};                      // in the log
  std::shared_ptr<FillProgress> progress;  // shared with the threads that fill
};

// The message with descriptors that a rank gets next. The kernel limits a user's descriptors in
// flight, so elixird may have to send it again.
enum class Owed { kNothing, kAttachReply, kRanksReady };

// One rank of a job. Owned by the event loop, like everything in this file.
struct Session {
  uint64_t id = 0;
  uint64_t token = 0;
  Job* job = nullptr;
  uint32_t rank = 0;        // among all ranks of the job: its shard
  uint32_t local_rank = 0;  // on this node: its place in Job::sessions()
  pid_t pid = -1;
  std::optional<OomWatch> oom_watch;  // its process's control group, from attach on
  bool pins_params = false;           // RankWishes'
  uint32_t worker_group = 0;          // on the node where its memory lies
  int memory_node = -1;               // its NUMA node; -1: there is only one
  int socket = -1;                    // its Connection's; -1: gone
  Owed owed = Owed::kNothing;
  std::string routing_id;                  // its ZeroMQ peer's; "": has not said hello
  std::optional<Reservation> reservation;  // until its memory is there, or has failed
  std::unique_ptr<SessionMemory> memory;   // null while it is being reserved
  std::optional<uint64_t> await_ready_id;  // request to answer when the job is loaded
  bool awaits_all_ranks = false;           // and when every rank has asked
  // Its requests for folders: how many have come, how many are over without a gap, and which later
  // ones are over. They end in any order, and are reported in the order of their numbers.
  uint32_t requests_come = 0, requests_over = 0;
  std::vector<uint32_t> over_early = {};
  // From the last look at all of its chunk records: ControlHeader::publications before it, the
  // awaited step, and whether a record was of a later step.
  uint32_t noted_publications = 0;
  uint32_t noted_step = 0;
  bool noted_ahead = false;
  // The time of its last progress: it got its memory, posted a step, or began a call. It may be
  // waiting for others since then.
  int64_t moved_ns = 0;
  void moved() { moved_ns = monotonic_ns(); }
  int64_t wait_logged_ns = 0;  // when the log last said that it waits
};

using Sessions = std::vector<std::unique_ptr<Session>>;

}  // namespace elixir::daemon
