#pragma once

#include "client/device/host_device.h"
#include "client/device/paced_link.h"
#include "client/device/paced_stream.h"

namespace elixir {

struct HostDeviceOptions {
  uint64_t memory_limit_bytes = 0;  // 0: no limit
  // Emulates a device behind a link of this speed; without one, copies are done when a call
  // returns.
  std::optional<HostLink> link = {};
  double operator_us = 0;  // the least time of an operator that reads parameters

  bool paced() const { return link || operator_us != 0; }
};

// A HostDevice that emulates a slower device, for experiments and tests.
//
// With a link, kUpload, kDownload, kKeepUp and kKeepDown are separate streams (paced_link.h). When
// kCompute must wait for them, the calling thread waits. For kGather and kReduce it waits only
// before it does their work. A transfer on another stream goes through the copy stream of its
// direction, behind the work of both streams. Updates, norms and sums on a copy stream first wait
// for that stream. Swing streams are threads (paced_stream.h) that do only copies and updates.
class PacedDevice final : public HostDevice {
 public:
  // Throws kInvalidArgument for impossible times and speeds.
  explicit PacedDevice(const HostDeviceOptions& options);

  bool copies_at_once() const override { return link_ == nullptr; }
  DeviceEvent create_event() override;

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

  // Sleeps until operator_us after the end of the previous operator, on an ideal clock: a late
  // wake-up is caught up. Waits of kCompute, kGather and kReduce for copies do not count as the
  // operator's time; waits in synchronize() do.
  void end_operator() override;

 private:
  void transfer(Stream stream, Stream direction, std::byte* to, const std::byte* from,
                size_t bytes);
  bool on_link(Stream stream) const {
    return link_ != nullptr && (stream == Stream::kUpload || stream == Stream::kDownload ||
                                stream == Stream::kKeepUp || stream == Stream::kKeepDown);
  }
  // A place in a stream's work; for a swing stream, a number of its operations.
  struct Point {
    LinkPoint link = {};
    PacedStream* swing = nullptr;
    uint64_t operations = 0;
  };
  // This function and those below need a link.
  std::unique_ptr<PacedStream>& made_swing(Stream stream);  // null: nothing was enqueued there
  PacedStream& swing(Stream stream);
  LinkPoint point_of(Stream stream);
  Point point_of(DeviceEvent event);
  void wait_for(Stream stream, const LinkPoint& point);
  // Waits until the calling thread may do the stream's next work.
  void catch_up(Stream stream);
  void stall(const LinkPoint& point);

  // constant
  const double operator_us_;
  // the calling thread's
  LinkPoint awaited_[kStreams];    // kGather and kReduce have not waited for these yet
  int64_t operator_end_ns_ = 0;    // end of the latest, on the ideal clock; 0: none so far
  int64_t operator_begin_ns_ = 0;  // when the thread came to the current one
  // any thread's
  Mutex events_mutex_;
  std::vector<Point> events_ ELIXIR_GUARDED_BY(events_mutex_);  // empty without a link
  std::unique_ptr<PacedLink> link_;  // ends before memory and log, which it uses
  // They end before link_. Each is made at its first use, by the thread that uses it.
  std::unique_ptr<PacedStream> swings_[kSwingStreams];
};

}  // namespace elixir
