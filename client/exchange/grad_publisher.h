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

// Tells elixird of gradients and steps once the device's copies have arrived in shared memory, so
// that nobody who runs the model waits for them. What has arrived already the caller publishes; for
// the rest a thread waits, started when it is first needed. Everything is published in the order of
// the calls. Called by the thread that runs backward and step().
//
// It also says which gradients elixird adds up: where a step had several micro-steps, or is to have
// them (StepRules::accumulate), all are summed while backward goes on; in a job that has its first
// second micro-step, what is in the slot then.
class GradPublisher {
 public:
  GradPublisher(Device& device, Session& session, const shm::StepRules& rules);
  // What was given is still published, unless the session has failed.
  ~GradPublisher();
  GradPublisher(const GradPublisher&) = delete;

  // Publishes the chunk's gradient behind what is on Stream::kDownload now, and on Stream::kUpload
  // where elixird may overwrite what uploads read before the step is posted.
  void publish(uint32_t chunk, uint32_t step, uint32_t micro_step, bool behind_uploads);

  // What was published since the last post does not count. All ranks discard alike.
  void discard() { ++discards_; }

  // Before the slot is written for this micro-step: waits until what it holds of the step is in the
  // sums, where that counts.
  void free_slot(uint32_t chunk, uint32_t step, uint32_t micro_step);

  // Posts the step behind everything published before and everything that is on Stream::kUpload and
  // Stream::kDownload now: once all ranks have posted, the slots that uploads read are written.
  // `complete` may fill in what copies bring, just before. Waits for the post before to be out.
  void post(const shm::StepRecord& record, std::function<void(shm::StepRecord&)> complete = {});

  // Waits until all is published. Throws what went wrong, as every call does from then on.
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
      sum_steps_;  // by chunk: whose gradients are the last that were to be summed
  std::vector<DeviceEvent> downloaded_, uploaded_;  // by chunk
  DeviceEvent all_uploaded_, all_downloaded_;

  Mutex mutex_;
  CondVar changed_;
  std::deque<Item> items_ ELIXIR_GUARDED_BY(mutex_);  // the front is being carried out
  bool stopping_ ELIXIR_GUARDED_BY(mutex_) = false;
  Status failure_ ELIXIR_GUARDED_BY(mutex_);
  // Of the post in items_: written while none is, read by who carries it out.
  shm::StepRecord record_{};
  std::function<void(shm::StepRecord&)> complete_;
  std::thread thread_;
};

}  // namespace elixir
