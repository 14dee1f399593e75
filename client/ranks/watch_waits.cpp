// Waits of ranks in collectives: who is told of them, and which can never end.

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "client/ranks/watch_thread.h"

namespace elixir {

void PeerWatch::State::look_at_waiting() {
  const Waiting now{
      waiting_number.load(std::memory_order_relaxed), waiting_in.load(std::memory_order_relaxed),
      device_made.load(std::memory_order_relaxed), device_oldest.load(std::memory_order_relaxed),
      device_in.load(std::memory_order_relaxed)};
  if (now != seen) {
    seen = now;
    seen_since_ns = monotonic_ns();
    seen_told = false;
    seen_notes = WaitNotes(kSayWaitingSeconds, kSayWaitingSeconds);
  }
  tell_wait();
  say_what_is_waited_for();
  if (!seen.waits() || seen_told || seconds_since(seen_since_ns) < kStuckSeconds) return;
  seen_told = true;
  if (rank == 0) {
    note_stuck(0, seen);
  } else {
    send_all({WatchFrameType::kWaiting, rank, Code::kOk,
              fmt::format("{} {} {} {} {}", seen.number, seen.in, seen.made, seen.oldest,
                          seen.oldest_in)},
             rank);
  }
}

// Of a collective of a device it is not known for whom it waits.
void PeerWatch::State::tell_wait() {
  std::function<void(uint32_t, int64_t)> tell;
  {
    const MutexLock lock(mutex);
    tell = on_wait;
    on_wait_running = tell != nullptr;
  }
  if (!tell) return;
  const uint32_t peer =
      seen.in == 0 ? kUnknownPeer : waiting_for.load(std::memory_order_relaxed);  // orders nothing
  tell(peer, seen.waits() ? seen_since_ns : 0);
  {
    const MutexLock lock(mutex);
    on_wait_running = false;
  }
  changed.notify_all();
}

void PeerWatch::State::say_what_is_waited_for() {
  const double waited_s = seconds_since(seen_since_ns);
  if (seen.in == 0 || !seen_notes.due(waited_s)) return;
  const uint32_t peer = waiting_for.load(std::memory_order_relaxed);
  if (peer >= members.size()) return;
  log_info("waiting", "rank={} in=\"{}\" number={} missing=\"{}\" seconds={:.0f}", rank,
           CollectiveSignature::unpack(seen.in).name(), seen.number, members[peer].name(),
           waited_s);
}

// What a rank has told stays true when it goes on, so nobody is accused of having been slow.
void PeerWatch::State::note_stuck(uint32_t who, const Waiting& waiting) {
  ELIXIR_CHECK(who < stuck.size(), "rank {} of {}", who, stuck.size());
  stuck[who] = waiting;
  for (uint32_t other = 0; other < stuck.size(); ++other) {
    std::string how = difference(who, other);
    if (how.empty()) how = difference(other, who);
    if (how.empty()) continue;
    const Status status =
        error(Code::kProtocol,
              "{}. Every rank must run the same operators, read parameters in the same order and "
              "make the same calls: see where the program takes another way on some ranks",
              how);
    return note_fault(status, status);
  }
}

// By which the two can never both go on; empty: they may. A collective needs all ranks, so those
// that wait in one number must wait in the same.
std::string PeerWatch::State::difference(uint32_t who, uint32_t other) const {
  const auto text = [](uint64_t in) { return CollectiveSignature::unpack(in).name(); };
  const Waiting &a = stuck[who], &b = stuck[other];
  const std::string name = members[who].name(), others_name = members[other].name();
  if (a.in != 0 && b.in != 0 && a.number == b.number && a.in != b.in) {
    return fmt::format("{} waits in {} while {} waits in {}, both as their collective number {}",
                       name, text(a.in), others_name, text(b.in), a.number);
  }
  if (a.oldest != 0 && a.oldest == b.oldest && a.oldest_in != b.oldest_in) {
    return fmt::format(
        "{} waits in {} while {} waits in {}, both as collective number {} of their devices", name,
        text(a.oldest_in), others_name, text(b.oldest_in), a.oldest);
  }
  if (b.in != 0 && a.before() <= b.number && a.made > b.made) {
    return fmt::format(
        "{} has made {} collectives on its device where {}, which waits in {}, has made {}", name,
        a.made, others_name, text(b.in), b.made);
  }
  return "";
}

}  // namespace elixir
