#pragma once

#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "client/device/host_device.h"

namespace elixir::test {

// Deliberate faults of a LazyDevice, so that the tests that rely on it can be seen to fail.
struct LazyFaults {
  bool compute_ignores_uploads = false;    // wait(kCompute, ...) for kUpload or kGather is dropped
  bool compute_ignores_downloads = false;  // wait(kCompute, ...) for kDownload or kReduce
  bool uploads_ignore_compute = false;     // wait(kUpload, ...) is dropped
  bool downloads_ignore_others = false;    // wait(kDownload, ...) is dropped
  bool reductions_ignore_compute = false;  // wait(kReduce, ...) is dropped
  bool compute_records_early = false;      // an event of kCompute is before its last copy
  bool host_does_not_wait = false;         // synchronize() returns at once
};

// A device whose copies happen as late as the contract of Device allows. Work on a stream other
// than kCompute waits until somebody must see its result, by an event. (Operators run at once, so
// kCompute does too.) A missing wait shows as wrong bytes.
//
// A copy that runs too early for an operator enqueued before it leaves no wrong bytes. Rules of
// order find it. Memory that kCompute may read takes an upload only behind a later event of
// kCompute. (It may read it once it has waited for the first event behind the upload.) A download
// must be behind the latest event of kCompute or behind one of kReduce. It must also be behind all
// that kCompute has copied there. Each reduction must wait for a new event of kCompute. Memory that
// kCompute fills must not still be on its way out.
//
// Another thread that calls synchronize() itself does the work that it waits for. A thread that
// calls done() does a piece of the work every other time.
class LazyDevice : public Device {
 public:
  LazyDevice() = default;
  explicit LazyDevice(const LazyFaults& faults) : faults_(faults) {}

  std::byte* allocate(size_t bytes, const char* what, const char* remedy) override;
  std::byte* allocate_host(size_t bytes, const char* what) override;
  DeviceEvent create_event() override;
  bool pins_host_memory() const override { return true; }
  Status pin(const std::byte*, size_t) override;
  void unpin(const std::byte*) override;

  void upload(Stream stream, std::byte* device, const std::byte* host, size_t bytes) override;
  void download(Stream stream, std::byte* host, const std::byte* device, size_t bytes) override;
  void copy(Stream stream, std::byte* to, const std::byte* from, size_t bytes) override;
  void zero(Stream stream, std::byte* device, size_t bytes) override;
  void update(Stream stream, const optim::UpdateSpan& span, const optim::AdamStep& step) override;
  void squared_norm(Stream stream, ComputeType type, const std::byte* values, size_t numel,
                    std::byte* result) override;
  void sum_gradients(Stream stream, ComputeType type, const std::byte* grads, size_t numel,
                     float* sums, bool begins) override;
  std::optional<TorchStream> begin_collective(Stream stream) override;

  void record(DeviceEvent event, Stream stream) override;
  void wait(Stream stream, DeviceEvent event) override;
  bool done(DeviceEvent event) override;
  void synchronize(DeviceEvent event) override;

  LinkTimes link_times() override { return {}; }
  void keep_spans() override {}
  std::vector<StreamSpan> take_spans() override { return {}; }

  // The first operation that was enqueued too early; empty: there was none.
  std::string violation() const {
    const std::lock_guard lock(mutex_);
    return violation_;
  }
  // Number of download() calls so far.
  size_t downloads() const {
    const std::lock_guard lock(mutex_);
    return downloads_;
  }
  size_t most_pending() const {
    const std::lock_guard lock(mutex_);
    return most_pending_;
  }
  size_t pins() const {
    const std::lock_guard lock(mutex_);
    return pins_.size();
  }

 private:
  struct Point {  // a place in a stream
    Stream stream = Stream::kCompute;
    uint64_t position = 0;       // operations before it
    uint64_t compute_clock = 0;  // kCompute's clock when it was recorded there
    uint64_t compute_copies = 0;
  };
  struct Queue {
    std::deque<std::function<void()>> work;
    uint64_t enqueued = 0, done = 0;
    uint64_t compute_clock = 0;     // clock of the latest event of kCompute it waited for
    uint64_t compute_copies = 0;    // kCompute's copies before that event
    bool behind_reduction = false;  // the stream has waited for kReduce since its last copy
    uint64_t reduced_clock = 0;     // kReduce: compute_clock at its last reduction
  };

  // REQUIRES: mutex_ is held, as for everything below.
  void enqueue(Stream stream, std::function<void()> work);
  void check_reduction(Queue& reductions);
  void run_until(Stream stream, uint64_t position);
  void check_upload(Stream stream, const std::byte* device);
  bool is_behind_compute(Stream stream);
  void check_behind_compute(Stream stream, const char* what);
  void note_copy(Stream stream, const std::byte* to, size_t bytes);
  void check_behind_copies(Stream stream, const std::byte* from, size_t bytes);
  void check_behind_downloads(Stream stream, const std::byte* to, size_t bytes);
  void violate(const std::string& what);
  bool dropped(Stream stream, Stream awaited) const;
  Queue& queue(Stream stream) { return queues_[static_cast<size_t>(stream)]; }

  const LazyFaults faults_{};
  mutable std::mutex mutex_;  // guards what follows
  HostDevice memory_;
  Queue queues_[kStreams];
  std::vector<Point> events_;
  uint64_t compute_clock_ = 0;
  // Uploaded memory that kCompute may read, and since when.
  std::map<const std::byte*, uint64_t> read_since_;
  // Memory that an event says is filled: operators read it once kCompute has waited for that event.
  // If nobody waits for it, no operator reads the memory, and it may be filled again at any time.
  std::map<uint32_t, std::set<const std::byte*>> filled_by_;
  std::set<const std::byte*> being_filled_[kStreams];  // since the stream's last event
  struct Copy {
    size_t bytes;
    uint64_t number;
  };
  std::map<const std::byte*, Copy> copies_;  // kCompute's copies, by destination
  uint64_t compute_copies_ = 0;
  struct Leaving {
    size_t bytes;
    Stream stream;
    uint64_t position;
  };
  std::map<const std::byte*, Leaving> leaving_;  // downloads, by source
  uint64_t compute_waited_[kStreams] = {};  // kCompute has waited for this position of each stream
  uint64_t polls_ = 0;
  size_t downloads_ = 0;
  std::vector<const std::byte*> pins_;
  std::string violation_;  // the first one
  size_t most_pending_ = 0;
};

}  // namespace elixir::test
