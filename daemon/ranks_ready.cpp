// The two messages that bring a rank its memory's descriptors. How many descriptors of a user may
// be under way is bounded by the kernel (as many as RLIMIT_NOFILE, over all processes), and all
// ranks' for all ranks are more than that soon: what cannot be sent now is sent once others have
// taken theirs.

#include <utility>

#include "daemon/daemon.h"

namespace elixir::daemon {
namespace {

// Of all ranks of the node, for this one. It page-locks what it reads: with the collective exchange
// its own params.
std::vector<int> rank_descriptors(const Session& reader) {
  const bool reads_all = reader.job->options().shape.exchange == shm::Exchange::kHost;
  std::vector<int> fds;
  for (const auto& owner : reader.job->sessions()) {
    const bool pins = reader.pins_params && (reads_all || owner.get() == &reader);
    const bool own = owner.get() == &reader;
    for (const int fd : owner->memory->for_ranks(pins, own)) fds.push_back(fd);
  }
  return fds;
}

Status send_ranks_ready(const Session& session) {
  shm::RanksReady ready{};
  ready.local_ranks = session.job->local_ranks();
  return shm::send_message(session.socket, ready, rank_descriptors(session), 0);
}

bool anything_owed(const Job& job) {
  for (const auto& session : job.sessions()) {
    if (session != nullptr && session->owed != Owed::kNothing) return true;
  }
  return false;
}

}  // namespace

Status Daemon::send_attach_reply(const Session& session) {
  shm::AttachReply reply{};
  reply.session_id = session.id;
  reply.token = session.token;
  reply.page_bytes = page_bytes_;
  const int fds[] = {session.memory->control().fd(), session.memory->grads().fd(),
                     session.memory->sums_for_reading()};
  return shm::send_message(session.socket, reply, fds, 0);
}

// Again at every Hello and tick until nothing is owed.
void Daemon::send_owed(Job& job) {
  for (const auto& session : job.sessions()) {
    if (session == nullptr || session->owed == Owed::kNothing) continue;
    if (job.phase() == JobPhase::kEnding || session->socket < 0) return;
    const bool reply = session->owed == Owed::kAttachReply;
    const Status sent = reply ? send_attach_reply(*session) : send_ranks_ready(*session);
    if (sent.code() == Code::kResourceExhausted) return;
    if (sent.code() == Code::kUnavailable) return job.lose_rank(*session);
    if (!sent.ok()) return job.end_session(*session, sent);
    session->owed = Owed::kNothing;
    if (reply && job.attached(*session)) return on_all_attached(job);
    if (!reply && !anything_owed(job)) job.ranks_are_told();
  }
}

void Daemon::on_all_attached(Job& job) {
  std::vector<uint32_t> threads;
  for (const NodeThreads& group : pool_->groups()) threads.push_back(group.threads);
  job.begin_work(threads, config_.slice_numel);
  for (const auto& session : job.sessions()) session->owed = Owed::kRanksReady;
  send_owed(job);
}

}  // namespace elixir::daemon
