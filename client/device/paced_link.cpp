#include "client/device/paced_link.h"

#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "base/check.h"
#include "base/clock.h"

namespace elixir {
namespace {

// A transfer goes in pieces of so much time of the link: how soon one direction sees that the other
// began or ended.
constexpr double kPieceNs = 1e6;
constexpr size_t kLeastPieceBytes = 64 << 10;
constexpr unsigned long kTimerSlackNs = 1000;  // 50 us by default

}  // namespace

void sleep_until_ns(int64_t time_ns) {
  const timespec time{.tv_sec = time_ns / 1'000'000'000, .tv_nsec = time_ns % 1'000'000'000};
  while (::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr) == EINTR) {
  }
}

void LinkPoint::add(const LinkPoint& other) {
  uploads = std::max(uploads, other.uploads);
  downloads = std::max(downloads, other.downloads);
  kept_ups = std::max(kept_ups, other.kept_ups);
  kept_downs = std::max(kept_downs, other.kept_downs);
}

PacedLink::PacedLink(const HostLink& link, CopyLog& log)
    : link_(link),
      log_(log),
      up_{.bytes_per_ns = link.h2d_gb_s},
      down_{.bytes_per_ns = link.d2h_gb_s} {
  ELIXIR_CHECK(link.h2d_gb_s > 0 && link.d2h_gb_s > 0 && link.joint_gb_s >= 0, "{} and {}, {} GB/s",
               link.h2d_gb_s, link.d2h_gb_s, link.joint_gb_s);
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's own threads
  for (const Stream stream : {Stream::kUpload, Stream::kDownload}) {
    worker(stream).thread = std::thread([this, stream] { work_off(stream); });
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

PacedLink::~PacedLink() {
  {
    const MutexLock lock(mutex_);
    ending_ = true;
  }
  for (Worker* each : {&up_worker_, &down_worker_}) {
    each->work.notify_one();
    each->thread.join();
  }
}

// ---- the callers ----

LinkPoint PacedLink::point(Stream stream, uint64_t operations) {
  LinkPoint point;
  if (is_kept(stream)) {
    (goes_up(stream) ? point.kept_ups : point.kept_downs) = operations;
  } else {
    (goes_up(stream) ? point.uploads : point.downloads) = operations;
  }
  return point;
}

LinkPoint PacedLink::enqueue(Stream stream, Operation operation) {
  ELIXIR_CHECK(is_kept(stream) || stream == Stream::kUpload || stream == Stream::kDownload,
               "stream {}", static_cast<int>(stream));
  operation.enqueued_ns = monotonic_ns();
  LinkPoint behind;
  {
    const MutexLock lock(mutex_);
    Line& to = line(stream);
    to.queue.push_back(operation);
    ++to.enqueued;
    behind = point(stream, to.enqueued);
  }
  worker(stream).work.notify_one();
  return behind;
}

LinkPoint PacedLink::transfer(Stream stream, std::byte* to, const std::byte* from, size_t bytes) {
  return enqueue(stream, {.kind = Kind::kTransfer, .to = to, .from = from, .bytes = bytes});
}

void PacedLink::copy(Stream stream, std::byte* to, const std::byte* from, size_t bytes) {
  enqueue(stream, {.kind = Kind::kCopy, .to = to, .from = from, .bytes = bytes});
}

void PacedLink::zero(Stream stream, std::byte* memory, size_t bytes) {
  enqueue(stream, {.kind = Kind::kZero, .to = memory, .bytes = bytes});
}

void PacedLink::wait(Stream stream, const LinkPoint& point) {
  enqueue(stream, {.kind = Kind::kWait, .point = point});
}

LinkPoint PacedLink::end(Stream stream) {
  const MutexLock lock(mutex_);
  return point(stream, line(stream).enqueued);
}

bool PacedLink::done(const LinkPoint& point) {
  const MutexLock lock(mutex_);
  return reached(point);
}

void PacedLink::synchronize(const LinkPoint& point) {
  MutexLock lock(mutex_);
  while (!reached(point)) done_.wait(lock);
}

// ---- the threads ----

void PacedLink::work_off(Stream direction) {
  ::prctl(PR_SET_TIMERSLACK, kTimerSlackNs);
  MutexLock lock(mutex_);
  Side& mine = side(direction);
  for (;;) {
    if (mine.idle()) mine.transferring = false;
    while (!ending_ && mine.idle()) worker(direction).work.wait(lock);
    if (mine.idle()) return;
    Line& next = mine.line.queue.empty() ? mine.kept : mine.line;
    const Operation operation = next.queue.front();
    next.queue.pop_front();
    if (operation.kind == Kind::kWait) {
      wait_for(direction, operation.point, lock);
    } else {
      // Between two transfers the direction stays busy, whatever lies between them.
      mine.transferring |= operation.kind == Kind::kTransfer;
      const int64_t begin_ns = std::max(mine.clock_ns, operation.enqueued_ns);
      int64_t end_ns = mine.clock_ns;
      lock.unlock();
      if (operation.kind == Kind::kTransfer) end_ns = run_transfer(direction, operation, begin_ns);
      if (operation.kind == Kind::kCopy) std::memcpy(operation.to, operation.from, operation.bytes);
      if (operation.kind == Kind::kZero) std::memset(operation.to, 0, operation.bytes);
      lock.lock();
      mine.clock_ns = end_ns;
    }
    ++next.done;
    done_.notify_all();
  }
}

// A wait holds up both streams of the direction. Whatever it waits for was enqueued before it, and
// only copies of activations can be behind it: nothing enqueued earlier waits for these.
void PacedLink::wait_for(Stream direction, const LinkPoint& point, MutexLock& lock) {
  if (reached(point)) return;
  Side& mine = side(direction);
  mine.transferring = false;
  while (!reached(point)) done_.wait(lock);
  mine.clock_ns = std::max(mine.clock_ns, other_side(direction).clock_ns);
}

double PacedLink::rate(Stream direction) {
  const Side& mine = side(direction);
  const double joint = link_.joint_gb_s;
  if (joint == 0) return mine.bytes_per_ns;
  const Side& beside = other_side(direction);
  const double share =
      beside.transferring ? std::max(joint / 2, joint - beside.bytes_per_ns) : joint;
  return std::min(mine.bytes_per_ns, share);
}

int64_t PacedLink::run_transfer(Stream direction, const Operation& operation, int64_t begin_ns) {
  // Nothing is copied before the latency is over, so that a wait left out shows.
  const int64_t start_ns = begin_ns + static_cast<int64_t>(link_.latency_us * 1e3);
  sleep_until_ns(start_ns);
  double link_ns = 0;
  int64_t copying_ns = 0, now_ns = monotonic_ns();
  const auto end_ns = [&] {
    return start_ns + std::max(static_cast<int64_t>(link_ns), copying_ns);
  };
  for (size_t at = 0; at < operation.bytes;) {
    double bytes_per_ns;
    {
      const MutexLock lock(mutex_);
      bytes_per_ns = rate(direction);
    }
    const size_t most = std::max(kLeastPieceBytes, static_cast<size_t>(bytes_per_ns * kPieceNs));
    const size_t piece = std::min(most, operation.bytes - at);
    std::memcpy(operation.to + at, operation.from + at, piece);
    copying_ns += monotonic_ns() - now_ns;
    at += piece;
    link_ns += static_cast<double>(piece) / bytes_per_ns;
    sleep_until_ns(end_ns());
    now_ns = monotonic_ns();
  }
  const int64_t ended_ns = std::max(end_ns(), now_ns - kMostLateNs);
  log_.add({direction, begin_ns, ended_ns, operation.bytes});
  return ended_ns;
}

}  // namespace elixir
