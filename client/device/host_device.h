#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "client/device/copy_log.h"
#include "client/device/device.h"
#include "client/device/paced_link.h"

namespace elixir {

struct HostDeviceOptions {
  uint64_t memory_limit_bytes = 0;  // 0: as much as there is
  // Plays a device behind a link of this speed; without one, copies are done when a call returns.
  std::optional<HostLink> link = {};
  double operator_us = 0;  // what an operator that reads parameters takes at least
};

// Everything on the CPU: "device" memory is ordinary memory, and kCompute, kGather and kReduce are
// the calling thread.
//
// Without a link all work is done when a call returns. With one, kUpload and kDownload are streams
// of their own (paced_link.h): the calling thread waits for them where kCompute does, and, for the
// other two, when it comes to do their work. A transfer asked of another stream than its
// direction's goes through the direction's, behind both; update() and squared_norm() on a copy
// stream wait for it.
class HostDevice final : public Device {
 public:
  explicit HostDevice(const HostDeviceOptions& options = {});

  bool copies_at_once() const override { return link_ == nullptr; }
  std::byte* allocate(size_t bytes, const char* what, const char* remedy) override;
  std::byte* allocate_host(size_t bytes, const char* what) override;
  DeviceEvent create_event() override;
  bool pins_host_memory() const override { return false; }
  Status pin(const std::byte*, size_t) override { return Status(); }
  void unpin(const std::byte*) override {}

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

  // Sleeps until operator_us after the end of the operator before, on an ideal clock: a late
  // awakening is caught up. What kCompute, kGather and kReduce waited for copies meanwhile does not
  // count as the operator's time; what synchronize() waited does.
  void end_operator() override;

  LinkTimes link_times() override { return log_.link_times(); }
  void keep_spans() override { log_.keep_spans(); }
  std::vector<StreamSpan> take_spans() override { return log_.take_spans(); }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };

  std::byte* new_memory(size_t bytes, const char* what, const char* remedy);
  void transfer(Stream stream, Stream direction, std::byte* to, const std::byte* from,
                size_t bytes);
  void end_collective(Stream stream);
  bool on_link(Stream stream) const {
    return link_ != nullptr && (stream == Stream::kUpload || stream == Stream::kDownload);
  }
  // With a link, as what follows.
  LinkPoint point_of(Stream stream);
  LinkPoint point_of(DeviceEvent event);
  void wait_for(Stream stream, const LinkPoint& point);
  // Until the calling thread may do the stream's work.
  void catch_up(Stream stream);
  void stall(const LinkPoint& point);

  // constant
  const HostDeviceOptions options_;
  // the calling thread's
  std::vector<std::unique_ptr<std::byte, Free>> memory_;
  LinkPoint awaited_[kStreams];  // by kGather and kReduce, whose turn has not come yet
  int64_t collective_begin_ns_[kStreams] = {};  // of kGather and kReduce; 0: none
  int64_t operator_end_ns_ = 0;    // of the latest, on the ideal clock; 0: there was none
  int64_t operator_begin_ns_ = 0;  // of the one in hand, when the thread came to it
  // any thread's
  Mutex events_mutex_;
  std::vector<LinkPoint> events_ ELIXIR_GUARDED_BY(events_mutex_);  // empty without a link
  CopyLog log_;
  std::unique_ptr<PacedLink> link_;  // ends first: memory_ and log_ are in use until then
};

}  // namespace elixir
