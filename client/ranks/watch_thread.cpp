#include "client/ranks/watch_thread.h"

#include <fmt/ranges.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <span>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "client/ranks/tcp.h"

namespace elixir {
namespace {

constexpr size_t kMaxPending = 64;  // connections that have not said who they are yet
constexpr double kHelloS = 10;      // the time they have
constexpr double kLingerS = 2;      // for the others' goodbyes, at the end
constexpr int kPollMs = 200;
constexpr int kLookMs = 1000;     // how often it looks whether its rank waits
constexpr size_t kMostNamed = 4;  // of ranks that died together

// `failure`: as WatchConnection::Received has it.
bool is_death(int failure) { return failure == 0 || failure == ECONNRESET || failure == EPIPE; }

Status lost(const Member& member, int failure) {
  if (failure == EPROTO) {
    return error(Code::kPeerLost, "{} sent what no rank sends, and was given up", member.name());
  }
  return error(Code::kPeerLost,
               "{} is lost: {}, for {} s; see whether {} and the network between are up",
               member.name(), std::strerror(failure), PeerWatch::kLostMachineSeconds, member.host);
}

Status dead(const std::vector<std::string>& names) {
  if (names.size() == 1) {
    return error(Code::kPeerLost, "{} died or was killed; its own output says more", names[0]);
  }
  const std::span named = std::span(names).first(std::min(names.size(), kMostNamed));
  const std::string others = named.size() == names.size()
                                 ? ""
                                 : fmt::format(" and {} others", names.size() - named.size());
  return error(Code::kPeerLost, "{}{} died or were killed; their own output says more",
               fmt::join(named, ", "), others);
}

}  // namespace

void PeerWatch::State::signal() const {
  const uint64_t one = 1;
  const ssize_t ignored = ::write(wake.get(), &one, sizeof one);
  (void)ignored;  // full: it will wake up
}

void PeerWatch::State::start() {
  {
    const MutexLock lock(mutex);
    connected.assign(members.size(), false);
    connected[0] = connected[rank] = true;
  }
  stuck.resize(members.size());
  wake.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  ELIXIR_CHECK(wake.valid(), "eventfd");
  sigset_t all, before;  // signals are for the program's own threads
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  thread = std::thread([this] { run(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::pthread_setname_np(thread.native_handle(), "elixir_watch");
}

void PeerWatch::State::run() {
  for (const WatchFrame& frame : early_frames) {
    if (!handle_frame(0, frame)) peers.erase(0);
  }
  for (;;) {
    handle_fault();
    {
      const MutexLock lock(mutex);
      if (leaving) break;
    }
    poll_once(pending.empty() ? kLookMs : kPollMs);
    look_at_waiting();
    look_at_health();
  }
  handle_fault();
  if (!faulted.load(std::memory_order_acquire)) say_goodbye();
}

void PeerWatch::State::note_fault(const Status& own, const Status& for_others) {
  ELIXIR_CHECK(!own.ok() && !for_others.ok(), "a fault without a cause");
  {
    const MutexLock lock(mutex);
    if (!fault.ok()) return;
    fault = own;
    fault_for_others = for_others;
    faulted.store(true, std::memory_order_release);  // with the acquire of status()
  }
  changed.notify_all();
  signal();
}

void PeerWatch::State::note_own_fault(const Status& status) {
  note_fault(status,
             status.code() == Code::kPeerLost
                 ? status
                 : error(Code::kPeerLost, "{} failed: {}", members[rank].name(), status.message()));
}

// Tells the others, once, and calls back, once.
void PeerWatch::State::handle_fault() {
  if (!faulted.load(std::memory_order_acquire)) return;
  if (!fault_told) {
    fault_told = true;
    send_all({WatchFrameType::kFault, rank, fault_for_others.code(), fault_for_others.message()},
             rank);
  }
  std::function<void(const Status&)> call;
  {
    const MutexLock lock(mutex);
    std::swap(call, callback);
    callback_running = call != nullptr;
  }
  if (!call) return;
  call(fault);
  {
    const MutexLock lock(mutex);
    callback_running = false;
  }
  changed.notify_all();
}

void PeerWatch::State::poll_once(int timeout_ms) {
  std::vector<pollfd> entries = {{wake.get(), POLLIN, 0}};
  std::vector<uint32_t> ranks;
  for (const auto& [peer, connection] : peers) {
    entries.push_back({connection.fd(), POLLIN, 0});
    ranks.push_back(peer);
  }
  for (const Pending& entry : pending) entries.push_back({entry.connection.fd(), POLLIN, 0});
  if (listener.valid()) entries.push_back({listener.get(), POLLIN, 0});
  ::poll(entries.data(), entries.size(), timeout_ms);

  uint64_t count = 0;
  const ssize_t ignored = ::read(wake.get(), &count, sizeof count);
  (void)ignored;
  std::vector<Ended> ended;
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (entries[i + 1].revents != 0) read_peer(ranks[i], &ended);
  }
  if (!ended.empty() && !goodbye_said) note_ended(ended);
  read_pending();
  if (listener.valid()) accept_all();
}

void PeerWatch::State::accept_all() {
  for (;;) {
    UniqueFd socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) {
      // Out of descriptors, say: the connection stays readable, and is tried again, not at once.
      if (errno != EAGAIN && errno != ECONNABORTED) ::usleep(kPollMs * 1000);
      return;
    }
    if (!set_lost_after(socket.get(), kLostMachineSeconds).ok()) continue;
    // A rank whose connection is dropped here in favour of others comes again.
    if (pending.size() == kMaxPending) pending.erase(pending.begin());
    pending.push_back({WatchConnection(std::move(socket)), monotonic_ns()});
  }
}

void PeerWatch::State::read_pending() {
  for (size_t i = 0; i < pending.size();) {
    WatchConnection& connection = pending[i].connection;
    const WatchConnection::Received received = connection.receive();
    const bool said = !received.frames.empty();
    const bool admitted = said && !received.ended && admit(connection, received.frames[0]);
    if (said && !admitted) log_warn("watch_dropped", "cause=\"a stranger's connection\"");
    if (said || received.ended || seconds_since(pending[i].since_ns) > kHelloS) {
      pending.erase(pending.begin() + static_cast<ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
}

// Takes the connection over, if it is a rank's.
bool PeerWatch::State::admit(WatchConnection& connection, const WatchFrame& hello) {
  if (hello.type != WatchFrameType::kHello || hello.text != endpoint.token || hello.rank == 0 ||
      hello.rank >= members.size() || peers.contains(hello.rank)) {
    return false;
  }
  bool all = true;
  {
    const MutexLock lock(mutex);
    if (connected[hello.rank]) return false;  // it was here and has left
    connected[hello.rank] = true;
    all = n_missing() == 0;
  }
  connection.send({WatchFrameType::kWelcome, rank, Code::kOk, ""});
  if (fault_told) {
    connection.send(
        {WatchFrameType::kFault, rank, fault_for_others.code(), fault_for_others.message()});
  }
  peers.emplace(hello.rank, std::move(connection));
  if (all) listener.reset();
  changed.notify_all();
  return true;
}

void PeerWatch::State::read_peer(uint32_t peer, std::vector<Ended>* ended) {
  const auto place = peers.find(peer);
  const WatchConnection::Received received = place->second.receive();
  for (const WatchFrame& frame : received.frames) {
    if (!handle_frame(peer, frame)) {
      peers.erase(place);
      return;
    }
  }
  if (!received.ended) return;
  peers.erase(place);
  ended->push_back({peer, received.failure});
}

// Of those that are found dead together any may be the first, and the cause: a launcher kills the
// other ranks of its node at once.
void PeerWatch::State::note_ended(const std::vector<Ended>& ended) {
  std::vector<std::string> names;
  for (const Ended& each : ended) {
    if (is_death(each.failure)) names.push_back(members[each.peer].name());
  }
  const Status status =
      names.empty() ? lost(members[ended[0].peer], ended[0].failure) : dead(names);
  note_fault(status, status);
}

// False when the peer has left.
bool PeerWatch::State::handle_frame(uint32_t peer, const WatchFrame& frame) {
  if (frame.type == WatchFrameType::kFault) {
    const Status status(frame.code == Code::kOk ? Code::kPeerLost : frame.code, frame.text);
    note_fault(status, status);
  } else if (frame.type == WatchFrameType::kWaiting && rank == 0) {
    Waiting waiting;
    if (std::sscanf(frame.text.c_str(), "%" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64,
                    &waiting.number, &waiting.in, &waiting.made, &waiting.oldest,
                    &waiting.oldest_in) == 5) {
      note_stuck(peer, waiting);
    }
  } else if (frame.type == WatchFrameType::kGoodbye && frame.rank < members.size()) {
    note_left(rank == 0 ? peer : frame.rank);
    return rank != 0 && frame.rank != 0;
  }
  return true;
}

void PeerWatch::State::look_at_health() {
  if (faulted.load(std::memory_order_acquire)) return;
  std::function<Status()> ask;
  {
    const MutexLock lock(mutex);
    ask = ask_health;
    health_running = ask != nullptr;
  }
  if (!ask) return;
  const Status status = ask();
  {
    const MutexLock lock(mutex);
    health_running = false;
  }
  changed.notify_all();
  if (status.ok()) return;
  if (unwell_since_ns == 0) unwell_since_ns = monotonic_ns();
  // Another rank's failure is felt here: that rank, or the death of one, says more.
  if (status.code() == Code::kPeerLost && seconds_since(unwell_since_ns) < kBlameS) return;
  note_own_fault(status);
}

// The first one to leave is told to all: it explains why a collective fails afterwards.
void PeerWatch::State::note_left(uint32_t who) {
  {
    const MutexLock lock(mutex);
    if (first_left) return;
    first_left = who;
  }
  if (rank == 0) send_all({WatchFrameType::kGoodbye, who, Code::kOk, ""}, who);
  changed.notify_all();
}

void PeerWatch::State::send_all(const WatchFrame& frame, uint32_t except) {
  for (const auto& [peer, connection] : peers) {
    if (peer != except) connection.send(frame);
  }
}

// Rank 0 stays until the others have said theirs, and the others until it has heard theirs.
void PeerWatch::State::say_goodbye() {
  bool in_order;
  {
    const MutexLock lock(mutex);
    in_order = !failing;
  }
  if (!in_order) {
    const std::string text =
        fmt::format("{} ended with an error; its own output says more", members[rank].name());
    send_all({WatchFrameType::kFault, rank, Code::kPeerLost, text}, rank);
    return;
  }
  goodbye_said = true;
  send_all({WatchFrameType::kGoodbye, rank, Code::kOk, ""}, rank);
  const int64_t start_ns = monotonic_ns();
  while (!peers.empty() && seconds_since(start_ns) < kLingerS &&
         !faulted.load(std::memory_order_acquire)) {
    poll_once(kPollMs);
  }
}

}  // namespace elixir
