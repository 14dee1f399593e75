#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <new>
#include <string_view>

#include "base/clock.h"
#include "base/compute_type_names.h"
#include "base/host_memory.h"
#include "base/log.h"
#include "daemon/daemon.h"
#include "shm/peer_bytes.h"
#include "shm/shape.h"

namespace elixir::daemon {
namespace {

constexpr uint32_t kAcceptsAtOnce = 64;
constexpr uint32_t kRefusalLinesATick = 8;  // in the log
constexpr uint32_t kPacketsOfTheDead = 16;  // of an ended process, that are still read
constexpr size_t kSpareConnections = 64;  // beyond max_sessions: those about to attach or to leave

uint64_t random_token() {
  uint64_t token = 0;
  const ssize_t got = ::getrandom(&token, sizeof token, 0);
  ELIXIR_CHECK(got == sizeof token, "getrandom gave {} bytes", got);
  return token;
}

// Names stand in logs, in quotes, and in what `status` prints.
Status check_name(std::string_view name) {
  const auto plain = [](char character) {
    return character > ' ' && character < 0x7f &&
           std::string_view("'\"\\`").find(character) == std::string_view::npos;
  };
  if (!name.empty() && std::all_of(name.begin(), name.end(), plain)) return Status();
  return error(Code::kInvalidArgument,
               "a job's name has 1 or more printable ASCII characters and no space or quote: set "
               "ELIXIR_JOB to such a one");
}

Status check_rules(const shm::StepRules& rules) {
  if (rules.accumulate == 0 || rules.accumulate > shm::kMaxAccumulate) {
    return error(Code::kInvalidArgument,
                 "accumulate is {}; 1 to {} backward passes a step are possible", rules.accumulate,
                 shm::kMaxAccumulate);
  }
  if (rules.immediate > 1 || rules.norms > 1 || rules.early > 1 ||
      rules.early + rules.immediate > 1) {
    return error(Code::kProtocol,
                 "immediate is {}, norms {}, early {}; each must be 0 or 1, and one of early and "
                 "immediate 0",
                 rules.immediate, rules.norms, rules.early);
  }
  if (rules.immediate != 0 && rules.norms != 0) {
    return error(Code::kInvalidArgument,
                 "immediate updates with norms: clipping and the check for finite gradients need "
                 "the whole gradient before the first update; use early or deferred updates");
  }
  return Status();
}

Status check_places(const shm::AttachRequest& request) {
  const uint32_t ranks = request.shape.ranks;
  if (request.wishes.pins_params > 1) {
    return error(Code::kProtocol, "pins_params is {}; it must be 0 or 1",
                 request.wishes.pins_params);
  }
  if (request.position.rank >= ranks) {
    return error(Code::kInvalidArgument, "rank {} of a job of {} ranks", request.position.rank,
                 ranks);
  }
  const bool host = request.shape.exchange == shm::Exchange::kHost;
  const bool all_here =
      request.position.local_ranks == ranks && request.position.local_rank == request.position.rank;
  if (request.position.local_ranks == 0 || request.position.local_ranks > shm::kMaxLocalRanks ||
      request.position.local_ranks > ranks ||
      request.position.local_rank >= request.position.local_ranks || (host && !all_here)) {
    return error(Code::kInvalidArgument,
                 "local rank {} of {} in a job of {} ranks with the {} exchange: a node has at "
                 "most {}, and with the host exchange all of them",
                 request.position.local_rank, request.position.local_ranks, ranks,
                 shm::exchange_name(request.shape.exchange), shm::kMaxLocalRanks);
  }
  return Status();
}

// All that can be said without reading the table. Only a memfd will do for that: reading from any
// other file could take for ever.
Status check_request(const shm::AttachRequest& request, int table_fd) {
  ELIXIR_RETURN_IF_ERROR(check_name(shm::get_text(request.job)));
  ELIXIR_RETURN_IF_ERROR(shm::check_shape(request.shape));
  ELIXIR_RETURN_IF_ERROR(check_rules(request.rules));
  if (request.rules.immediate != 0 && request.shape.n_swing_chunks > 0) {
    return error(
        Code::kInvalidArgument,
        "immediate updates with swing chunks, which trainers update after the verdict: use "
        "deferred or early updates");
  }
  ELIXIR_RETURN_IF_ERROR(check_places(request));
  if (table_fd < 0 || ::fcntl(table_fd, F_GET_SEALS) < 0) {
    return error(Code::kProtocol, "AttachRequest without a memfd that holds the parameter table");
  }
  const uint64_t most_bytes = shm::most_table_bytes(request.shape);
  if (request.table.bytes > most_bytes) {
    return error(
        Code::kProtocol, "a parameter table of {} bytes; {} chunks of {} elements have at most {}",
        request.table.bytes, request.shape.total_chunks(), request.shape.chunk_numel, most_bytes);
  }
  return Status();
}

// A tenth of a second for 64 MiB: on a thread of its own.
Result<std::vector<shm::ParameterPlace>> read_places(const shm::AttachRequest& request,
                                                     int table_fd) {
  const Result<std::vector<std::byte>> bytes = shm::read_table_fd(table_fd, request.table.bytes);
  if (!bytes.ok()) return bytes.status();
  if (shm::table_xxh64(*bytes) != request.table.xxh64) {
    return error(Code::kProtocol, "the parameter table does not have the checksum announced");
  }
  return shm::decode_table(*bytes, request.shape);
}

bool same_table(const Job& job, const shm::AttachRequest& request) {
  return request.table == job.options().table;
}

// The first parameter that the two have differently.
std::string first_difference(std::span<const shm::ParameterPlace> agreed,
                             std::span<const shm::ParameterPlace> others) {
  const auto say = [](std::span<const shm::ParameterPlace> places, size_t i) {
    return i < places.size() ? fmt::format("'{}' of {} elements, in chunk {}", places[i].name,
                                           places[i].numel, places[i].chunk)
                             : std::string("nothing");
  };
  for (size_t i = 0; i < std::max(agreed.size(), others.size()); ++i) {
    if (i < agreed.size() && i < others.size() && agreed[i] == others[i]) continue;
    return fmt::format(": its parameter {} is {}; theirs is {}", i, say(others, i), say(agreed, i));
  }
  return "";
}

// `places`: where it has another table, what that says.
Status compare_with_job(const Job& job, const shm::AttachRequest& request,
                        std::span<const shm::ParameterPlace> places) {
  const Job::Options& agreed = job.options();
  if (request.shape == agreed.shape && request.rules == agreed.rules &&
      request.position.local_ranks == agreed.local_ranks && same_table(job, request)) {
    return Status();
  }
  return error(
      Code::kInvalidArgument,
      "rank {} of job '{}' has another plan than the ranks before it (ranks, compute type, "
      "chunks, parameters, accumulation or the kind of updates differ){}: run the same program "
      "with the same flags on every rank",
      request.position.rank, agreed.name,
      places.empty() ? "" : first_difference(agreed.places, places));
}

}  // namespace

void Daemon::accept_connections() {
  // Who connects as fast as we accept must not keep the loop here.
  for (uint32_t left = kAcceptsAtOnce; left > 0 && listener_.valid(); --left) {
    Result<UniqueFd> socket = shm::accept_attach(listener_.get());
    if (!socket.ok()) {
      const int failure = errno;
      if (failure == ECONNABORTED || failure == EINTR) continue;
      if (failure == EAGAIN) return;  // nobody is left to accept
      // The listener stays readable: look again at the next tick, not at once.
      log_warn("not_accepted", "cause=\"{}\" open={} remedy='ulimit -n, memory'",
               std::strerror(failure), connections_.size());
      accepting_ = false;
      return;
    }
    const Result<shm::PeerCredentials> peer = shm::peer_credentials(socket->get());
    if (!peer.ok()) {
      shm::empty_connection(socket->get());
      continue;
    }
    idle_since_ns_ = monotonic_ns();  // who looks whether we listen will come back to attach
    const int fd = socket->get();
    polled_.reserve(kPolledBeside + 2 * (connections_.size() + 1));
    Connection connection{std::move(*socket), *peer, shm::peer_process(fd), monotonic_ns()};
    Connection& kept = connections_[fd] = std::move(connection);
    contain_connection(fd, [&] { greet(kept); });
  }
}

// Who cannot stay is told so at once.
void Daemon::greet(Connection& connection) {
  if (connection.peer.uid != ::geteuid() && connection.peer.uid != 0) {
    refuse(connection, error(Code::kInvalidArgument, "this elixird serves user {}, not user {}",
                             ::geteuid(), connection.peer.uid));
  } else if (connections_.size() > config_.max_sessions + kSpareConnections) {
    refuse(connection,
           error(Code::kResourceExhausted, "{} trainers are connected; raise max_sessions ({})",
                 connections_.size(), config_.max_sessions));
  } else if (static_cast<uint64_t>(connection.socket.get()) >=
             descriptors_.first_refused(ranks_without_memory())) {
    refuse(connection,
           error(Code::kResourceExhausted,
                 "elixird's limit is {} descriptors, and nearly all are in use: raise the limit "
                 "({}) and restart it, or end other programs that are connected to it",
                 descriptors_.limit(), kDescriptorRemedy));
  }
}

// True when something was there to read.
bool Daemon::read_connection(int socket) {
  const auto found = connections_.find(socket);
  if (found == connections_.end()) return false;
  Connection& connection = found->second;
  document_.clear();
  const auto session = sessions_.find(connection.session_id);
  Result<shm::Packet> packet = no_memory_left();
  try {
    packet = shm::receive_packet(socket, 0);
  } catch (const std::bad_alloc&) {
    if (session == sessions_.end()) throw;
    note_no_memory();
    return false;  // a rank's goodbye, as a rule: nothing was read, and it is looked at again
  }
  if (!packet.ok() && packet.status().code() == Code::kTimedOut) return false;
  if (session != sessions_.end()) {
    Session& rank = *session->second;
    const bool ended = !packet.ok() || packet->end_of_file();
    if (!rank.job->given_up()) {
      read_session(rank, std::move(packet));
    } else if (ended) {
      rank.job->leave(rank);
    }
  } else if (!packet.ok()) {
    refuse(connection, packet.status());
  } else if (packet->end_of_file()) {
    close(socket);  // came to see whether we listen
  } else {
    handle_attach(connection, std::move(*packet));
  }
  return true;
}

// Its children may hold the socket for as long as they like. What it said before counts.
void Daemon::on_process_end(int socket) {
  for (uint32_t left = kPacketsOfTheDead; left > 0 && read_connection(socket);) --left;
  const auto found = connections_.find(socket);
  if (found == connections_.end()) return;
  const auto session = sessions_.find(found->second.session_id);
  if (session == sessions_.end()) return close(socket);
  Session& rank = *session->second;
  rank.job->given_up() ? rank.job->leave(rank) : rank.job->lose_rank(rank);
}

void Daemon::handle_attach(Connection& connection, shm::Packet packet) {
  const Result<shm::AttachRequest> request = shm::decode_message<shm::AttachRequest>(packet.bytes);
  if (!request.ok()) return refuse(connection, request.status());
  if (stopping_) return refuse(connection, error(Code::kUnavailable, "elixird is being stopped"));
  if (connection.attempt)
    return refuse(connection, error(Code::kProtocol, "a second AttachRequest"));
  const int table_fd = packet.fds.size() == 1 ? packet.fds[0].get() : -1;
  if (const Status status = check_request(*request, table_fd); !status.ok()) {
    return refuse(connection, status);
  }
  // The ranks after the first announce the same table, or are refused: another one is read to say
  // where it differs.
  Job* const job = job_named(shm::get_text(request->job));
  if (job != nullptr && same_table(*job, *request)) {
    const Status status = admit(connection, *job, *request, {});
    return status.ok() ? void() : refuse(connection, status);
  }
  if (const Status status = job == nullptr ? check_limits(*request) : Status(); !status.ok()) {
    return refuse(connection, status);
  }
  connection.attempt.emplace();
  connection.attempt->id = next_id_++;
  connection.attempt->request = *request;
  struct Reading {
    UniqueFd table;
    Result<std::vector<shm::ParameterPlace>> places = no_memory_left();  // until they are read
  };
  const auto reading = std::make_shared<Reading>();
  reading->table = std::move(packet.fds[0]);
  tables_->start(
      [reading, request = *request] {
        reading->places = read_places(request, reading->table.get());
        reading->table.reset();
      },
      [this, reading, socket = connection.socket.get(), id = connection.attempt->id] {
        contain_connection(socket, [&] { on_table_read(socket, id, std::move(reading->places)); });
      });
}

void Daemon::on_table_read(int socket, uint64_t attempt_id,
                           Result<std::vector<shm::ParameterPlace>> places) {
  const auto found = connections_.find(socket);
  if (found == connections_.end()) return;  // it did not wait
  Connection& connection = found->second;
  if (!connection.attempt || connection.attempt->id != attempt_id) return;  // another one's socket
  if (!places.ok()) return refuse(connection, places.status());
  connection.attempt->places = std::move(*places);
  attempt_attach(connection);
}

// Its table has been read: as soon as there is memory for the job, it has a session.
void Daemon::attempt_attach(Connection& connection) {
  AttachAttempt& attempt = *connection.attempt;
  if (stopping_) return refuse(connection, error(Code::kUnavailable, "elixird is being stopped"));
  Job* job = job_named(shm::get_text(attempt.request.job));
  if (job == nullptr) {
    attempt.waits_for_memory = false;
    const Result<Job*> created = create_job(&attempt);
    if (!created.ok() && attempt.waits_for_memory) {
      const Status kept = check_kept_tables();
      return kept.ok() ? void() : refuse(connection, kept);
    }
    if (!created.ok()) return refuse(connection, created.status());
    job = *created;
  }
  const shm::AttachRequest request = attempt.request;
  const std::vector<shm::ParameterPlace> places = std::move(attempt.places);
  connection.attempt.reset();
  const Status status = admit(connection, *job, request, places);
  if (!status.ok()) refuse(connection, status);
}

// A session for the request, with its memory on the way.
Status Daemon::admit(Connection& connection, Job& job, const shm::AttachRequest& request,
                     std::span<const shm::ParameterPlace> places) {
  ELIXIR_RETURN_IF_ERROR(compare_with_job(job, request, places));
  Session claimed;
  claimed.id = next_id_;
  claimed.token = random_token();
  claimed.rank = request.position.rank;
  claimed.local_rank = request.position.local_rank;
  claimed.pid = connection.peer.pid;
  if (claimed.pid > 0) claimed.oom_watch.emplace(std::to_string(claimed.pid));
  claimed.pins_params = request.wishes.pins_params != 0;
  claimed.socket = connection.socket.get();
  const Result<Session*> session = job.claim(std::move(claimed));
  if (!session.ok()) return session.status();
  connection.session_id = next_id_++;
  sessions_[connection.session_id] = *session;
  log_info("attach",
           "job='{}' session={} rank={} ranks={} pid={} dtype={} chunks={} swing_chunks={} "
           "gpu_chunks={} "
           "chunk_numel={} exchange={}",
           job.options().name, connection.session_id, request.position.rank, request.shape.ranks,
           connection.peer.pid, compute_type_name(request.shape.type), request.shape.n_chunks,
           request.shape.n_swing_chunks, request.shape.n_gpu_chunks, request.shape.chunk_numel,
           shm::exchange_name(request.shape.exchange));
  reserve(**session, request.wishes.numa_node);
  return Status();
}

// In place of an AttachReply. A peer that does not take it has lost interest.
void Daemon::send_refusal(const Connection& connection, const Status& status) {
  if (refusal_lines_ < kRefusalLinesATick) {
    ++refusal_lines_;
    log_warn("refuse", "pid={} code={} text='{}'", connection.peer.pid, code_name(status.code()),
             status.message());
  } else {
    ++refusals_untold_;  // who is refused as fast as it asks must not fill the log
  }
  shm::Refusal refusal{};
  refusal.code = static_cast<uint32_t>(status.code());
  shm::set_text(refusal.text, told(status));
  [[maybe_unused]] const Status sent = shm::send_message(connection.socket.get(), refusal, {}, 0);
}

void Daemon::refuse(Connection& connection, const Status& status) {
  send_refusal(connection, status);
  close(connection.socket.get());
}

// In the order of their arrival.
void Daemon::retry_waiting() {
  std::map<uint64_t, int> waiting;
  for (const auto& [socket, connection] : connections_) {
    const bool waits = connection.attempt && connection.attempt->waits_for_memory;
    if (waits) waiting[connection.attempt->id] = socket;
  }
  for (const auto& [id, socket] : waiting) {
    const auto found = connections_.find(socket);
    if (found == connections_.end()) continue;
    contain_connection(socket, [&] { attempt_attach(found->second); });
  }
}

}  // namespace elixir::daemon
