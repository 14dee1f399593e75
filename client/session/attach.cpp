// How a session begins and ends: the attach conversation of shm/messages.h.

#include <unistd.h>

#include <algorithm>

#include "base/check.h"
#include "base/clock.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "client/session/session.h"
#include "shm/attach_socket.h"
#include "shm/find_daemon.h"
#include "shm/messages.h"

namespace elixir {
namespace {

constexpr int kAttachPollMs = kInterruptRoundMs;
constexpr const char* kIdleExitSeconds = "10";
constexpr double kLeastFillBytesPerSecond = 256 << 20;  // a quarter of one thread's on 4 KiB pages

template <typename Message>
Status as_status(const shm::Packet& packet) {
  const Result<Message> message = shm::decode_message<Message>(packet.bytes);
  if (!message.ok()) return message.status();
  return Status(static_cast<Code>(message->code), std::string(shm::get_text(message->text)));
}

}  // namespace

double with_memory(double timeout_s, const shm::Shape& shape, uint32_t local_ranks) {
  const uint64_t bytes = local_ranks * (shape.session_bytes() + shape.sums_bytes());
  return timeout_s + static_cast<double>(bytes) / kLeastFillBytesPerSecond;
}

Result<std::unique_ptr<Session>> Session::attach(const shm::Shape& shape,
                                                 const std::vector<shm::ParameterPlace>& places,
                                                 const SessionOptions& options) {
  ELIXIR_RETURN_IF_ERROR(shm::check_shape(shape));
  ELIXIR_CHECK(options.rank < shape.ranks && options.local_rank < options.local_ranks &&
                   options.local_ranks <= shape.ranks,
               "rank {} of {}, {} of {} on this node", options.rank, shape.ranks,
               options.local_rank, options.local_ranks);
  std::unique_ptr<Session> session(new Session(shape, options));
  ELIXIR_RETURN_IF_ERROR(session->connect(places));
  return session;
}

Session::~Session() {
  // A rank that leaves by an exception is not done: without a goodbye the others hear of a death.
  const bool failing = std::uncaught_exceptions() > exceptions_at_start_;
  if (attach_socket_.valid() && fault_.ok() && !failing && !interrupted()) {
    // A peer's death may have closed the socket meanwhile: then there is nobody to tell.
    const Status ignored = shm::send_message(attach_socket_.get(), shm::Detach{});
    (void)ignored;
  }
}

Status Session::connect(const std::vector<shm::ParameterPlace>& parameters) {
  const Result<shm::DaemonPlaces> places =
      shm::daemon_places(options_.runtime_dir, options_.launch);
  if (!places.ok()) return places.status();
  shm::FoundDaemon daemon;
  if (options_.start_daemon) {
    shm::DaemonStart start;
    // Nobody else will stop a daemon that a lone trainer started.
    start.extra_arguments = {"--exit-when-idle", kIdleExitSeconds};
    Result<shm::FoundDaemon> found = shm::find_or_start_daemon(*places, start);
    if (!found.ok()) return found.status();
    daemon = std::move(*found);
  } else {
    daemon.folder = shm::daemon_folder(*places);
  }
  const shm::RuntimeFolder& folder = daemon.folder;
  if (daemon.pid > 0) {
    log_info("elixird_started", "pid={} runtime_dir={} log={}", daemon.pid, folder.path,
             folder.log_file());
  }
  Result<UniqueFd> socket = shm::connect_attach(folder.attach_socket());
  if (!socket.ok()) return socket.status();
  attach_socket_ = std::move(*socket);
  const Result<shm::PeerCredentials> peer = shm::peer_credentials(attach_socket_.get());
  if (peer.ok()) elixird_pid_ = peer->pid;
  if (elixird_pid_ > 0) oom_watch_.emplace(std::to_string(elixird_pid_));

  ELIXIR_RETURN_IF_ERROR(send_attach_request(parameters));
  ELIXIR_RETURN_IF_ERROR(receive_attach_reply());
  ELIXIR_RETURN_IF_ERROR(receive_ranks());

  // This folder's, as this process sees it: elixird may see it at another path.
  Result<std::unique_ptr<ControlChannel>> channel =
      ControlChannel::connect(folder.control_endpoint(), [this] { return check_wait(); });
  if (!channel.ok()) return channel.status();
  control_channel_ = std::move(*channel);
  shm::Hello hello{};
  hello.session_id = session_id_;
  hello.token = token_;
  return control_channel_->request<shm::Ack>(hello, "hello", options_.request_timeout_s).status();
}

Status Session::send_attach_request(const std::vector<shm::ParameterPlace>& places) {
  const std::vector<std::byte> table = shm::encode_table(places);
  const Result<UniqueFd> table_fd = shm::write_table_fd(table);
  if (!table_fd.ok()) return table_fd.status();
  shm::AttachRequest request{};
  if (options_.job.empty() || options_.job.size() >= sizeof request.job) {
    return error(
        Code::kInvalidArgument,
        "the job's name has {} bytes; 1 to {} are possible: set ELIXIR_JOB to a shorter one",
        options_.job.size(), sizeof request.job - 1);
  }
  shm::set_text(request.job, options_.job);
  request.shape = shape_;
  request.rules = options_.rules;
  request.position = options_;
  request.table = {table.size(), shm::table_xxh64(table)};
  request.wishes = options_;
  const int fd = table_fd->get();
  return shm::send_message(attach_socket_.get(), request, std::span(&fd, 1));
}

Result<shm::Packet> Session::receive_from_daemon(const char* what, double timeout_s,
                                                 const std::string& why) {
  const int64_t start_ns = monotonic_ns();
  WaitNotes notes(2);
  for (;;) {
    check_interrupt();
    Result<shm::Packet> packet = shm::receive_packet(attach_socket_.get(), kAttachPollMs);
    const double waited_s = seconds_since(start_ns);
    if (!packet.ok() && packet.status().code() == Code::kTimedOut && waited_s < timeout_s) {
      if (options_.liveness) ELIXIR_RETURN_IF_ERROR(options_.liveness());
      if (notes.due(waited_s)) {
        log_info("waiting", "for=\"{}\" seconds={:.0f}{}", what, waited_s, why);
      }
      continue;
    }
    if (!packet.ok() && packet.status().code() == Code::kTimedOut) {
      return error(Code::kTimedOut,
                   "waited {:.0f} s for {} (this is one of {} ranks of the node): look at "
                   "elixird's log and start all ranks",
                   waited_s, what, options_.local_ranks);
    }
    if (!packet.ok()) return packet.status();
    if (packet->end_of_file()) {
      const std::string oom = killed_by_kernel();
      return error(Code::kUnavailable,
                   "elixird closed the connection while this rank waited for {}{}", what,
                   oom.empty() ? "" : ": " + oom);
    }
    const Result<shm::MessageHeader> header = shm::decode_header(packet->bytes);
    if (!header.ok()) return header.status();
    const auto type = static_cast<shm::MessageType>(header->type);
    if (type == shm::MessageType::kRefusal) return as_status<shm::Refusal>(*packet);
    if (type == shm::MessageType::kSessionFault) return as_status<shm::SessionFault>(*packet);
    return packet;
  }
}

Status Session::receive_attach_reply() {
  Result<shm::Packet> packet = receive_from_daemon(
      "memory from elixird", with_memory(options_.request_timeout_s, shape_, options_.local_ranks));
  if (!packet.ok()) return packet.status();
  const Result<shm::AttachReply> reply = shm::decode_message<shm::AttachReply>(packet->bytes);
  if (!reply.ok()) return reply.status();
  if (packet->fds.size() != 3) {
    return error(Code::kProtocol, "elixird sent {} descriptors, not 3", packet->fds.size());
  }
  session_id_ = reply->session_id;
  token_ = reply->token;
  page_bytes_ = reply->page_bytes;

  Result<shm::Segment> control =
      shm::Segment::map(std::move(packet->fds[0]), shape_.control_bytes(), shm::Access::kReadWrite);
  if (!control.ok()) return control.status();
  control_.emplace(std::move(*control));
  control_->keep_from_children();
  const shm::ControlHeader& seen = header();
  if (seen.magic != shm::kControlMagic || seen.layout_version != shm::kLayoutVersion ||
      seen.n_chunks != shape_.n_chunks || seen.rank != options_.rank ||
      seen.chunk_numel != shape_.chunk_numel || seen.shard_numel != shape_.shard_numel()) {
    return error(Code::kVersionMismatch,
                 "elixird laid out the session otherwise than this program expects (layout version "
                 "{} against {}): install the same Elixir for both and restart elixird",
                 seen.layout_version, shm::kLayoutVersion);
  }
  Result<shm::Segment> grads =
      shm::Segment::map(std::move(packet->fds[1]), shape_.grads_bytes(), shm::Access::kReadWrite);
  if (!grads.ok()) return grads.status();
  grads_.emplace(std::move(*grads));
  grads_->keep_from_children();
  Result<shm::Segment> sums =
      shm::Segment::map(std::move(packet->fds[2]), shape_.sums_bytes(), shm::Access::kReadOnly);
  if (!sums.ok()) return sums.status();
  sums_.emplace(std::move(*sums));
  sums_->keep_from_children();
  return Status();
}

Status Session::receive_ranks() {
  const std::string& said = options_.ranks_said;
  Result<shm::Packet> packet = receive_from_daemon(
      "the other ranks", with_memory(options_.ranks_timeout_s, shape_, options_.local_ranks),
      said.empty() ? "" : fmt::format(" because=\"{}\"", said));
  if (packet.status().code() == Code::kTimedOut && !said.empty()) {  // elixird's limit, or ours
    return error(Code::kTimedOut, "{}; {}", packet.status().message(), said);
  }
  if (!packet.ok()) return packet.status();
  const Result<shm::RanksReady> ready = shm::decode_message<shm::RanksReady>(packet->bytes);
  if (!ready.ok()) return ready.status();
  const size_t fds_per_rank = shm::descriptors_of_rank(shape_);
  if (ready->local_ranks != options_.local_ranks ||
      packet->fds.size() != fds_per_rank * options_.local_ranks) {
    return error(Code::kProtocol, "elixird sent {} descriptors of {} ranks, not {} of {}",
                 packet->fds.size(), ready->local_ranks, fds_per_rank * options_.local_ranks,
                 options_.local_ranks);
  }
  for (uint32_t rank = 0; rank < options_.local_ranks; ++rank) {
    ELIXIR_RETURN_IF_ERROR(
        map_rank(rank, std::span(packet->fds).subspan(rank * fds_per_rank, fds_per_rank)));
  }
  return Status();
}

Status Session::map_rank(uint32_t local_rank, std::span<UniqueFd> fds) {
  const bool pins = options_.pins_params != 0 && reads_params_of(local_rank);
  const shm::Access access = pins ? shm::Access::kReadWrite : shm::Access::kReadOnly;
  Result<shm::Segment> params = shm::Segment::map(std::move(fds[0]), shape_.params_bytes(), access);
  if (!params.ok()) return params.status();
  Result<shm::Segment> state =
      shm::Segment::map(std::move(fds[1]), shape_.state_bytes(), shm::Access::kReadOnly);
  if (!state.ok()) return state.status();
  ELIXIR_CHECK(ranks_.size() == local_rank, "rank {} is mapped as number {}", local_rank,
               ranks_.size());
  params->keep_from_children();
  state->keep_from_children();
  RankMemory memory{std::move(*params), std::move(*state), std::nullopt, std::nullopt};
  const bool own = local_rank == options_.local_rank;
  const bool swings = shape_.n_swing_chunks > 0;
  if (swings) {
    Result<shm::Segment> swing =
        shm::Segment::map(std::move(fds[2]), shape_.swing_bytes(),
                          pins || own ? shm::Access::kReadWrite : shm::Access::kReadOnly);
    if (!swing.ok()) return swing.status();
    swing->keep_from_children();
    memory.swing.emplace(std::move(*swing));
  }
  const bool side = shape_.side_bytes() > 0 && !own;
  if (swings ? shape_.exchange == shm::Exchange::kHost : side) {
    Result<shm::Segment> grads = shm::Segment::map(std::move(fds.back()), shape_.grads_bytes(),
                                                   swings ? access : shm::Access::kReadOnly);
    if (!grads.ok()) return grads.status();
    grads->keep_from_children();
    memory.grads.emplace(std::move(*grads));
  }
  ranks_.push_back(std::move(memory));
  return Status();
}

std::string Session::killed_by_kernel() const { return oom_watch_ ? oom_watch_->verdict() : ""; }

// elixird ended the session without room for a SessionFault, or it is gone itself.
Status Session::end_of_file_status() const {
  if (control_) {
    // Acquire: fault_rank was stored before. Pairs with the release in daemon/ending.
    const uint32_t fault = header().fault.load(std::memory_order_acquire);
    if (fault != 0) {
      return error(static_cast<Code>(fault),
                   "elixird ended the job because of rank {}: see its log",
                   header().fault_rank.load(std::memory_order_relaxed));
    }
  }
  const std::string oom = killed_by_kernel();
  return error(Code::kUnavailable,
               "elixird is gone ({}); its weights of this run are lost: start the program again",
               oom.empty() ? "killed or crashed" : oom);
}

// In each round of a wait.
Status Session::check_wait() {
  check_interrupt();
  return check_alive();
}

bool Session::interrupted() const {
  return control_ && interrupts() > interrupts_at_post_.load(std::memory_order_relaxed) &&
         header().finished_step.load(std::memory_order_relaxed) <
             posted_.load(std::memory_order_relaxed);
}

void Session::break_off(const std::string& call) {
  fail(error(Code::kUnavailable,
             "{} was interrupted while elixird or other ranks were in the middle of it, and the "
             "job of this optimizer has ended: build the optimizer again, and load a checkpoint",
             call));
  broken_off_.store(true, std::memory_order_release);  // with status()
}

Status Session::status() const {
  if (!broken_off_.load(std::memory_order_acquire)) return Status();
  const MutexLock lock(fault_mutex_);
  return fault_;
}

// The attach socket is silent while all is well.
Status Session::check_alive() {
  const MutexLock lock(fault_mutex_);
  if (!fault_.ok()) return fault_;
  if (options_.liveness) ELIXIR_RETURN_IF_ERROR(options_.liveness());
  Result<shm::Packet> packet = shm::receive_packet(attach_socket_.get(), 0);
  if (!packet.ok() && packet.status().code() == Code::kTimedOut) return Status();
  if (!packet.ok()) {
    fault_ = packet.status();
  } else if (packet->end_of_file()) {
    fault_ = end_of_file_status();
  } else {
    fault_ = as_status<shm::SessionFault>(*packet);
  }
  return fault_;
}

}  // namespace elixir
