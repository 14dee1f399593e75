#pragma once

// The thread of a PeerWatch, and the state that it shares with other threads. See peer_watch.h.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/mutex.h"
#include "base/status.h"
#include "client/ranks/peer_watch.h"
#include "client/ranks/watch_connection.h"

namespace elixir {

struct PeerWatch::State {
  struct Pending {
    WatchConnection connection;
    int64_t since_ns;
  };
  struct Ended {
    uint32_t peer;
    int failure;  // as WatchConnection::Received has it
  };

  // Starts the thread. It ends when `leaving` is set and signal() is called. It says goodbye,
  // unless `failing` is set.
  void start();
  // Wakes the thread.
  void signal() const;
  // Only the first fault counts. Any thread.
  void note_fault(const Status& own, const Status& for_others);
  // A fault of this rank, or one of another rank that it knows of (kPeerLost).
  void note_own_fault(const Status& status);
  // Ranks that have not connected.
  size_t n_missing() const ELIXIR_REQUIRES(mutex) {
    return static_cast<size_t>(std::count(connected.begin(), connected.end(), false));
  }

  // constant once the thread runs
  uint32_t rank = 0;
  std::vector<Member> members;
  WatchEndpoint endpoint;
  UniqueFd wake;  // an eventfd: something below has changed
  const int exceptions_at_start = std::uncaught_exceptions();

  // the watch thread's
  UniqueFd listener;                          // rank 0, until all are connected
  std::vector<Pending> pending;               // rank 0
  std::map<uint32_t, WatchConnection> peers;  // rank 0: the others; another rank: rank 0
  std::vector<WatchFrame> early_frames;       // came with the welcome
  bool fault_told = false, goodbye_said = false;
  // A rank's progress, and what it waits for. Signatures are packed; 0: it does not wait.
  struct Waiting {
    uint64_t number = 0;  // its last host collective
    uint64_t in = 0;      // the signature of that collective, while it waits in it
    uint64_t made = 0;    // number of its device's collectives so far
    uint64_t oldest = 0;  // the first of them that is not done; 0: all are done
    uint64_t oldest_in = 0;

    bool operator==(const Waiting&) const = default;
    bool waits() const { return in != 0 || oldest != 0; }
    // The number of the host collective before which it has made those of its device.
    uint64_t before() const { return in != 0 ? number : number + 1; }
  };
  Waiting seen;  // this rank's
  int64_t seen_since_ns = 0;
  bool seen_told = false;
  WaitNotes seen_notes{kSayWaitingSeconds, kSayWaitingSeconds};
  int64_t unwell_since_ns = 0;  // 0: this rank is well
  std::vector<Waiting> stuck;   // rank 0: each rank's last message

  // written by the thread that makes collectives, read by the watch thread
  std::atomic<uint64_t> waiting_number = 0, waiting_in = 0;
  std::atomic<uint64_t> device_made = 0, device_oldest = 0, device_in = 0;
  std::atomic<uint32_t> waiting_for = 0;

  // written under the mutex before `faulted` is set (release), read after it is seen (acquire)
  Status fault, fault_for_others;
  std::atomic<bool> faulted = false;

  mutable Mutex mutex;
  mutable CondVar changed;
  std::function<void(const Status&)> callback ELIXIR_GUARDED_BY(mutex);
  bool callback_running ELIXIR_GUARDED_BY(mutex) = false;
  std::function<Status()> ask_health ELIXIR_GUARDED_BY(mutex);
  bool health_running ELIXIR_GUARDED_BY(mutex) = false;
  std::function<void(uint32_t, int64_t)> on_wait ELIXIR_GUARDED_BY(mutex);
  bool on_wait_running ELIXIR_GUARDED_BY(mutex) = false;
  std::vector<bool> connected ELIXIR_GUARDED_BY(mutex);
  std::optional<uint32_t> first_left ELIXIR_GUARDED_BY(mutex);
  bool leaving ELIXIR_GUARDED_BY(mutex) = false;
  bool failing ELIXIR_GUARDED_BY(mutex) = false;

  std::thread thread;

  // the thread
  void run();
  void handle_fault();
  void poll_once(int timeout_ms);
  void accept_all();
  void read_pending();
  bool admit(WatchConnection& connection, const WatchFrame& hello);
  void read_peer(uint32_t peer, std::vector<Ended>* ended);
  void note_ended(const std::vector<Ended>& ended);
  bool handle_frame(uint32_t peer, const WatchFrame& frame);
  void note_left(uint32_t who);
  void send_all(const WatchFrame& frame, uint32_t except);
  void look_at_waiting();
  void tell_wait();
  void say_what_is_waited_for();
  void look_at_health();
  void note_stuck(uint32_t who, const Waiting& waiting);
  std::string difference(uint32_t who, uint32_t other) const;
  void say_goodbye();
};

}  // namespace elixir
