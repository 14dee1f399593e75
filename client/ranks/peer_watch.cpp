#include "client/ranks/peer_watch.h"

#include <poll.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "base/check.h"
#include "base/clock.h"
#include "client/ranks/tcp.h"
#include "client/ranks/watch_thread.h"

namespace elixir {
namespace {

constexpr int kPeerPollMs = 200;
constexpr double kDeathFirstS = 1;

std::chrono::steady_clock::time_point in_seconds(double seconds) {
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(
             std::chrono::duration<double>(seconds));
}

std::string new_token() {
  unsigned char bytes[16];
  ELIXIR_CHECK(::getrandom(bytes, sizeof bytes, 0) == sizeof bytes, "getrandom");
  std::string token;
  for (const unsigned char byte : bytes) token += fmt::format("{:02x}", byte);
  return token;
}

}  // namespace

std::string WatchEndpoint::encode() const {
  return fmt::format("{}\t{}\t{}", address, port, token);
}

Result<WatchEndpoint> WatchEndpoint::decode(std::string_view text) {
  const size_t first = text.find('\t'), second = text.find('\t', first + 1);
  WatchEndpoint result;
  if (first != text.npos && second != text.npos) {
    result.address = text.substr(0, first);
    result.token = text.substr(second + 1);
    const std::string_view port = text.substr(first + 1, second - first - 1);
    std::from_chars(port.data(), port.data() + port.size(), result.port);
  }
  if (result.port == 0 || result.token.size() != 32) {
    return error(Code::kProtocol,
                 "rank 0's address for the watch cannot be read ({} bytes): do "
                 "all ranks run the same Elixir?",
                 text.size());
  }
  return result;
}

PeerWatch::PeerWatch(std::unique_ptr<State> state) : state_(std::move(state)) { state_->start(); }

Result<std::unique_ptr<PeerWatch>> PeerWatch::listen(const std::string& address,
                                                     std::vector<Member> members) {
  ELIXIR_CHECK(!members.empty(), "a watch over nobody");
  Result<UniqueFd> listener = listen_tcp(address);
  if (!listener.ok()) return listener.status();
  const Result<uint16_t> port = port_of(listener->get());
  if (!port.ok()) return port.status();
  auto state = std::make_unique<State>();
  state->members = std::move(members);
  state->endpoint = {address, *port, new_token()};
  if (state->members.size() > 1) state->listener = std::move(*listener);
  return std::unique_ptr<PeerWatch>(new PeerWatch(std::move(state)));
}

Result<std::unique_ptr<PeerWatch>> PeerWatch::connect(const WatchEndpoint& endpoint, uint32_t rank,
                                                      std::vector<Member> members,
                                                      double timeout_s) {
  ELIXIR_CHECK(rank > 0 && rank < members.size(), "rank {} of {} connects to rank 0", rank,
               members.size());
  const int64_t start_ns = monotonic_ns();
  auto state = std::make_unique<State>();
  state->rank = rank;
  state->members = std::move(members);
  for (;;) {
    const double left_s = timeout_s - seconds_since(start_ns);
    Result<UniqueFd> socket = connect_tcp(
        endpoint.address, endpoint.port, left_s, "rank 0's watch",
        "the ranks must reach one another by TCP: see firewalls, and set GLOO_SOCKET_IFNAME to the "
        "interface they share");
    if (!socket.ok()) return socket.status();
    ELIXIR_RETURN_IF_ERROR(set_lost_after(socket->get(), kLostMachineSeconds));
    WatchConnection connection(std::move(*socket));
    connection.send({WatchFrameType::kHello, rank, Code::kOk, endpoint.token});
    WatchConnection::Received received;
    while (received.frames.empty() && !received.ended && seconds_since(start_ns) < timeout_s) {
      pollfd entry{connection.fd(), POLLIN, 0};
      ::poll(&entry, 1, kPeerPollMs);
      received = connection.receive();
    }
    if (!received.frames.empty() && received.frames[0].type == WatchFrameType::kWelcome) {
      state->peers.emplace(0, std::move(connection));
      state->early_frames.assign(received.frames.begin() + 1, received.frames.end());
      return std::unique_ptr<PeerWatch>(new PeerWatch(std::move(state)));
    }
    if (seconds_since(start_ns) >= timeout_s) {
      return error(Code::kTimedOut,
                   "rank 0 has not admitted this rank, {}, to its watch at {} "
                   "within {:.0f} s",
                   rank, endpoint_name(endpoint.address, endpoint.port), timeout_s);
    }
    ::usleep(kPeerPollMs * 1000);
  }
}

Status PeerWatch::await_connected(double timeout_s) {
  State& state = *state_;
  MutexLock lock(state.mutex);
  const auto end = in_seconds(timeout_s);
  bool in_time = true;
  while (state.fault.ok() && state.n_missing() > 0 && in_time) {
    in_time = state.changed.wait_until(lock, end);
  }
  if (!state.fault.ok()) return state.fault;
  const size_t missing = state.n_missing();
  if (missing == 0) return Status();
  const auto first = static_cast<size_t>(
      std::find(state.connected.begin(), state.connected.end(), false) - state.connected.begin());
  return error(Code::kTimedOut,
               "{} of {} ranks have not connected to rank 0's watch at {} within "
               "{:.0f} s, {} among them; look at its output",
               missing, state.connected.size(),
               endpoint_name(state.endpoint.address, state.endpoint.port), timeout_s,
               state.members[first].name());
}

PeerWatch::~PeerWatch() {
  {
    State& state = *state_;
    const MutexLock lock(state.mutex);
    state.leaving = true;
    state.failing = std::uncaught_exceptions() > state.exceptions_at_start;
  }
  state_->signal();
  state_->thread.join();
}

const WatchEndpoint& PeerWatch::endpoint() const { return state_->endpoint; }
const std::vector<Member>& PeerWatch::members() const { return state_->members; }

Status PeerWatch::status() const {
  if (!state_->faulted.load(std::memory_order_acquire)) return Status();  // with note_fault
  return state_->fault;
}

Status PeerWatch::await_status(double timeout_s) const {
  const State& state = *state_;
  MutexLock lock(state.mutex);
  // A rank that has left may be the cause, and a death that becomes known at once is the better
  // one.
  const auto death_first = in_seconds(std::min(timeout_s, kDeathFirstS));
  const auto end = in_seconds(timeout_s);
  bool in_time = true;
  while (state.fault.ok() && in_time) in_time = state.changed.wait_until(lock, death_first);
  in_time = true;
  while (state.fault.ok() && !state.first_left && in_time) {
    in_time = state.changed.wait_until(lock, end);
  }
  if (!state.fault.ok() || !state.first_left) return state.fault;
  return error(Code::kPeerLost,
               "{} has left the job, with nothing wrong, while this rank still "
               "works with it: do all ranks make the same number of steps?",
               state.members[*state.first_left].name());
}

void PeerWatch::report(const Status& status) { state_->note_own_fault(status); }

void PeerWatch::set_waiting(uint64_t number, CollectiveSignature collective) {
  // The thread takes what it reads here and below for what it is only when it finds all of it
  // unchanged for seconds: nothing is ordered.
  state_->waiting_in.store(number == 0 ? 0 : collective.pack(), std::memory_order_relaxed);
  if (number != 0) state_->waiting_number.store(number, std::memory_order_relaxed);
}

void PeerWatch::set_on_device(uint64_t made, uint64_t oldest, CollectiveSignature of_oldest) {
  state_->device_made.store(made, std::memory_order_relaxed);  // as in set_waiting
  state_->device_in.store(oldest == 0 ? 0 : of_oldest.pack(), std::memory_order_relaxed);
  state_->device_oldest.store(oldest, std::memory_order_relaxed);
}

void PeerWatch::set_waiting_for(uint32_t peer) {
  state_->waiting_for.store(peer, std::memory_order_relaxed);  // for a text: orders nothing
}

void PeerWatch::set_on_wait(std::function<void(uint32_t peer, int64_t since_ns)> tell) {
  State& state = *state_;
  MutexLock lock(state.mutex);
  state.on_wait = std::move(tell);
  while (state.on_wait_running) state.changed.wait(lock);
}

void PeerWatch::set_health(std::function<Status()> ask) {
  State& state = *state_;
  MutexLock lock(state.mutex);
  state.ask_health = std::move(ask);
  while (state.health_running) state.changed.wait(lock);
}

void PeerWatch::set_callback(std::function<void(const Status&)> callback) {
  State& state = *state_;
  MutexLock lock(state.mutex);
  state.callback = std::move(callback);
  if (state.callback) {
    lock.unlock();
    state.signal();
  } else {
    while (state.callback_running) state.changed.wait(lock);
  }
}

}  // namespace elixir
