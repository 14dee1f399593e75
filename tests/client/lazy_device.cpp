#include "tests/client/lazy_device.h"

#include <algorithm>
#include <cstring>

#include "kernels/alignment.h"

namespace elixir::test {

std::byte* LazyDevice::allocate(size_t bytes, const char* what, const char* remedy) {
  const std::lock_guard lock(mutex_);
  std::byte* memory = memory_.allocate(bytes, what, remedy);
  allocated_bytes_ = memory_.allocated_bytes();
  return memory;
}

std::byte* LazyDevice::allocate_host(size_t bytes, const char* what) {
  const std::lock_guard lock(mutex_);
  return memory_.allocate_host(bytes, what);
}

DeviceEvent LazyDevice::create_event() {
  const std::lock_guard lock(mutex_);
  events_.push_back({});
  return {static_cast<uint32_t>(events_.size() - 1)};
}

Status LazyDevice::pin(const std::byte* host, size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes > kPinPieceBytes) return error(Code::kInternal, "a piece of {} bytes", bytes);
  pins_.push_back(host);
  return Status();
}

void LazyDevice::unpin(const std::byte* host) {
  const std::lock_guard lock(mutex_);
  std::erase(pins_, host);
}

void LazyDevice::enqueue(Stream stream, std::function<void()> work) {
  if (stream == Stream::kCompute) return work();
  queue(stream).work.push_back(std::move(work));
  ++queue(stream).enqueued;
  size_t pending = 0;
  for (const Queue& each : queues_) pending += each.work.size();
  most_pending_ = std::max(most_pending_, pending);
}

void LazyDevice::run_until(Stream stream, uint64_t position) {
  Queue& mine = queue(stream);
  while (mine.done < position && !mine.work.empty()) {
    const std::function<void()> work = std::move(mine.work.front());
    mine.work.pop_front();
    ++mine.done;
    work();
  }
}

void LazyDevice::check_upload(Stream stream, const std::byte* device) {
  const auto found = read_since_.find(device);
  if (found == read_since_.end() || queue(stream).compute_clock > found->second) return;
  violate(fmt::format("an upload into memory that operators may be reading (clock {} against {})",
                      queue(stream).compute_clock, found->second));
}

// A swing stream computes itself what it downloads.
bool LazyDevice::is_behind_compute(Stream stream) {
  const Queue& mine = queue(stream);
  return stream == Stream::kCompute || is_swing(stream) || mine.behind_reduction ||
         mine.compute_clock >= compute_clock_;
}

void LazyDevice::check_behind_compute(Stream stream, const char* what) {
  if (is_behind_compute(stream)) return;
  violate(fmt::format("{} that does not wait for what computes it (clock {} against {})", what,
                      queue(stream).compute_clock, compute_clock_));
}

void LazyDevice::note_copy(Stream stream, const std::byte* to, size_t bytes) {
  if (stream == Stream::kCompute) copies_[to] = {bytes, ++compute_copies_};
}

void LazyDevice::check_behind_copies(Stream stream, const std::byte* from, size_t bytes) {
  if (stream == Stream::kCompute) return;
  for (auto copy = copies_.lower_bound(from); copy != copies_.end() && copy->first < from + bytes;
       ++copy) {
    if (copy->second.number <= queue(stream).compute_copies) continue;
    violate(fmt::format("a download of what was copied there later (copy {} against {})",
                        copy->second.number, queue(stream).compute_copies));
  }
}

// Which memory a collective reads is not known here; the download of what it leaves is checked
// against the copies into it.
void LazyDevice::check_reduction(Queue& reductions) {
  if (reductions.compute_clock == reductions.reduced_clock) {
    violate(fmt::format(
        "a reduction waits for nothing of kCompute that the last one had not waited for (clock {})",
        reductions.reduced_clock));
  }
  reductions.reduced_clock = reductions.compute_clock;
  reductions.behind_reduction = true;
}

void LazyDevice::check_behind_downloads(Stream stream, const std::byte* to, size_t bytes) {
  if (stream != Stream::kCompute) return;
  for (auto each = leaving_.begin(); each != leaving_.end();) {
    const Leaving& read = each->second;
    if (each->first + read.bytes <= to || each->first >= to + bytes) {
      ++each;
      continue;
    }
    const uint64_t waited = compute_waited_[static_cast<size_t>(read.stream)];
    if (waited < read.position) {
      violate(fmt::format("memory is filled that a download may be reading ({} against {})", waited,
                          read.position));
    }
    each = leaving_.erase(each);
  }
}

void LazyDevice::violate(const std::string& what) {
  if (violation_.empty()) violation_ = what;
}

// Collectives on the CPU happen at once: what they read must be there.
std::optional<TorchStream> LazyDevice::begin_collective(Stream stream) {
  const std::lock_guard lock(mutex_);
  run_until(stream, UINT64_MAX);
  if (stream == Stream::kReduce) check_reduction(queue(stream));
  return std::nullopt;
}

void LazyDevice::upload(Stream stream, std::byte* device, const std::byte* host, size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (!is_swing(stream)) {  // whose memory no operator reads
    check_upload(stream, device);
    for (auto& [event, filled] : filled_by_) filled.erase(device);
    being_filled_[static_cast<size_t>(stream)].insert(device);
  }
  h2d_bytes_ += bytes;
  enqueue(stream, [=] { std::memcpy(device, host, bytes); });
}

void LazyDevice::download(Stream stream, std::byte* host, const std::byte* device, size_t bytes) {
  const std::lock_guard lock(mutex_);
  d2h_bytes_ += bytes;
  ++downloads_;
  check_behind_compute(stream, "a download");
  check_behind_copies(stream, device, bytes);
  queue(stream).behind_reduction = false;
  enqueue(stream, [=] { std::memcpy(host, device, bytes); });
  leaving_[device] = {bytes, stream, queue(stream).enqueued};
}

void LazyDevice::copy(Stream stream, std::byte* to, const std::byte* from, size_t bytes) {
  const std::lock_guard lock(mutex_);
  note_copy(stream, to, bytes);
  check_behind_downloads(stream, to, bytes);
  enqueue(stream, [=] { std::memcpy(to, from, bytes); });
}

void LazyDevice::zero(Stream stream, std::byte* device, size_t bytes) {
  const std::lock_guard lock(mutex_);
  check_behind_downloads(stream, device, bytes);
  enqueue(stream, [=] { std::memset(device, 0, bytes); });
}

void LazyDevice::update(Stream stream, const optim::UpdateSpan& span, const optim::AdamStep& step) {
  const std::lock_guard lock(mutex_);
  const size_t n_grads = span.grad_sum == nullptr ? static_cast<size_t>(span.n_grads) : 0;
  const std::vector<const void*> grads(span.grads, span.grads + n_grads);
  enqueue(stream, [=, this] {
    optim::UpdateSpan copy = span;
    copy.grads = grads.data();
    memory_.update(stream, copy, step);
  });
}

// What it reads may leave the device on the same stream, so it does not use up a wait.
void LazyDevice::squared_norm(Stream stream, ComputeType type, const std::byte* values,
                              size_t numel, std::byte* result) {
  kernels::check_norm_pointers(values, result);
  const std::lock_guard lock(mutex_);
  check_behind_compute(stream, "a norm");
  enqueue(stream, [=, this] { memory_.squared_norm(stream, type, values, numel, result); });
}

// As a norm: what it reads is there behind what was enqueued on the stream.
void LazyDevice::sum_gradients(Stream stream, ComputeType type, const std::byte* grads,
                               size_t numel, float* sums, bool begins) {
  const std::lock_guard lock(mutex_);
  if (stream == Stream::kReduce) check_behind_compute(stream, "a sum");
  enqueue(stream, [=, this] { memory_.sum_gradients(stream, type, grads, numel, sums, begins); });
}

void LazyDevice::record(DeviceEvent event, Stream stream) {
  const std::lock_guard lock(mutex_);
  if (stream == Stream::kCompute) ++compute_clock_;
  const uint64_t early = faults_.compute_records_early && compute_copies_ > 0 ? 1 : 0;
  filled_by_[event.index].merge(being_filled_[static_cast<size_t>(stream)]);
  being_filled_[static_cast<size_t>(stream)].clear();
  events_[event.index] = {stream, queue(stream).enqueued, compute_clock_, compute_copies_ - early};
}

bool LazyDevice::dropped(Stream stream, Stream awaited) const {
  const bool on_its_way_out =
      awaited == Stream::kDownload || awaited == Stream::kReduce || awaited == Stream::kKeepDown;
  switch (stream) {
    case Stream::kCompute:
      return on_its_way_out ? faults_.compute_ignores_downloads : faults_.compute_ignores_uploads;
    case Stream::kUpload:
      return faults_.uploads_ignore_compute;
    case Stream::kDownload:
      return faults_.downloads_ignore_others;
    case Stream::kReduce:
      return faults_.reductions_ignore_compute;
    case Stream::kGather:
    case Stream::kKeepDown:
    case Stream::kKeepUp:
    case Stream::kSwing0:
    case Stream::kSwing1:
    case Stream::kSwing2:
      return false;
  }
  return false;
}

void LazyDevice::wait(Stream stream, DeviceEvent event) {
  const std::lock_guard lock(mutex_);
  const Point point = events_[event.index];
  if (dropped(stream, point.stream)) return;
  if (point.stream == Stream::kCompute) {
    Queue& mine = queue(stream);
    mine.compute_clock = std::max(mine.compute_clock, point.compute_clock);
    mine.compute_copies = std::max(mine.compute_copies, point.compute_copies);
    return;
  }
  std::set<const std::byte*>& filled = filled_by_[event.index];
  if (stream != Stream::kCompute) {
    being_filled_[static_cast<size_t>(stream)].merge(filled);
    filled.clear();
    Queue& mine = queue(stream);
    mine.behind_reduction |= point.stream == Stream::kReduce;
    mine.compute_copies = std::max(mine.compute_copies, queue(point.stream).compute_copies);
    return enqueue(stream, [this, point] { run_until(point.stream, point.position); });
  }
  run_until(point.stream, point.position);
  uint64_t& waited = compute_waited_[static_cast<size_t>(point.stream)];
  waited = std::max(waited, point.position);
  const bool went_out = point.stream == Stream::kDownload || point.stream == Stream::kReduce ||
                        point.stream == Stream::kKeepDown;
  if (went_out) return;
  ++compute_clock_;
  for (const std::byte* memory : filled) read_since_[memory] = compute_clock_;
  filled.clear();
}

bool LazyDevice::done(DeviceEvent event) {
  const std::lock_guard lock(mutex_);
  const Point& point = events_[event.index];
  if (point.stream == Stream::kCompute) return true;
  // Somebody polls: the work goes on, but not before it was seen to be late.
  if (++polls_ % 2 == 0) run_until(point.stream, queue(point.stream).done + 1);
  return queue(point.stream).done >= point.position;
}

void LazyDevice::synchronize(DeviceEvent event) {
  if (faults_.host_does_not_wait) return;
  const std::lock_guard lock(mutex_);
  const Point point = events_[event.index];
  if (point.stream != Stream::kCompute) return run_until(point.stream, point.position);
  // What the host enqueues from now on is behind it too.
  for (Queue& each : queues_) {
    each.compute_clock = std::max(each.compute_clock, point.compute_clock);
    each.compute_copies = std::max(each.compute_copies, point.compute_copies);
  }
}

}  // namespace elixir::test
