#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/status.h"
#include "client/device/device.h"
#include "client/session/session.h"

namespace elixir {

// Publishes gradients and steps to elixird once the device's copies have arrived in shared memory.
// If they have arrived already, the caller publishes. Otherwise a thread waits for them, so the
// model's thread does not; it starts when it is first needed. Everything is published in the order
// of the calls. Called by the thread that runs backward and step().
//
// It also says which gradients elixird adds to the FP32 sums while backward still runs. These are
// all gradients, if steps have several micro-steps by rule (StepRules::accumulate) or the last step
// had several. Otherwise the sum begins with a second micro-step: free_slot() then asks elixird to
// add the gradients of the first one, which are still in the slot.
class GradPublisher {
 public:
  GradPublisher(Device& device, Session& session, const shm::StepRules& rules);
  // Still publishes everything that was given, unless the session has failed.
  ~GradPublisher();
  GradPublisher(const GradPublisher&) = delete;

  // Publishes the chunk's gradients behind the work that is on Stream::kDownload now. Pass
  // `behind_uploads` if elixird may update chunks before the post. Then they also go behind the
  // work on Stream::kUpload, because elixird may overwrite the memory that it reads.
  void publish(uint32_t chunk, uint32_t step, uint32_t micro_step, bool behind_uploads);

  // Gradients published since the last post do not count. All ranks must make the same discards.
  void discard() { ++discards_; }

  // Call it before you write the slot for this micro-step. If the slot holds gradients of this step
  // that must be summed, it waits until elixird has added them, or until they do not count.
  void free_slot(uint32_t chunk, uint32_t step, uint32_t micro_step);

  // Posts the step behind everything published before, and behind the work on Stream::kUpload and
  // Stream::kDownload now. Uploads must be done, because elixird writes the slots that they read
  // once all ranks have posted. Just before the post, `complete` may set fields of the record that
  // the copies bring. First waits until the previous post is out.
  void post(const shm::StepRecord& record, std::function<void(shm::StepRecord&)> complete = {});

  // Waits until all is published. Throws after a failure, as every later call does.
  void drain();

 private:
  struct Item {
    uint32_t chunk = 0;
    Session::PublishedGrads grads;
    bool posts = false;
    DeviceEvent first, second;
  };

  void await(uint32_t chunk);
  void enqueue(const Item& item);
  Status carry_out(const Item& item);
  void run();

  Device& device_;
  Session& session_;
  const bool sums_all_;
  uint32_t several_step_ = 0;  // the last one that had several micro-steps; 0: none
  uint32_t discards_ = 0;      // since the last post
  std::vector<uint32_t>
      sum_steps_;  // by chunk: the last step with gradients that elixird adds to the sums
  std::vector<DeviceEvent> downloaded_, uploaded_;  // by chunk
  DeviceEvent all_uploaded_, all_downloaded_;

  Mutex mutex_;
  CondVar changed_;
  std::deque<Item> items_ ELIXIR_GUARDED_BY(mutex_);  // the front is being carried out
  bool stopping_ ELIXIR_GUARDED_BY(mutex_) = false;
  Status failure_ ELIXIR_GUARDED_BY(mutex_);
  // For the post in items_. Written only while there is none, and read by the thread that posts.
  shm::StepRecord record_{};
  std::function<void(shm::StepRecord&)> complete_;
  std::thread thread_;
};

}  // namespace elixir
