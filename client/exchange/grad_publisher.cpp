// Data path, hop 2 of 6: gradients are published when they have arrived.

#include "client/exchange/grad_publisher.h"

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/throw_error.h"
#include "client/tensors/torch_failure.h"

namespace elixir {

GradPublisher::GradPublisher(Device& device, Session& session)
    : device_(device),
      session_(session),
      all_uploaded_(device.create_event()),
      all_downloaded_(device.create_event()) {
  for (uint32_t chunk = 0; chunk < session.shape().n_chunks; ++chunk) {
    downloaded_.push_back(device.create_event());
    uploaded_.push_back(device.create_event());
  }
}

GradPublisher::~GradPublisher() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void GradPublisher::publish(uint32_t chunk, uint32_t step, uint32_t round, bool behind_uploads) {
  device_.record(downloaded_[chunk], Stream::kDownload);
  if (behind_uploads) device_.record(uploaded_[chunk], Stream::kUpload);
  Item item;
  item.chunk = chunk;
  item.step = step;
  item.round = round;
  item.first = downloaded_[chunk];
  item.second = behind_uploads ? uploaded_[chunk] : downloaded_[chunk];
  enqueue(item);
}

void GradPublisher::post(const shm::StepRecord& record,
                         std::function<void(shm::StepRecord&)> complete) {
  // One post at a time: its events and its record are in use until it is out.
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] {
      return std::none_of(items_.begin(), items_.end(),
                          [](const Item& item) { return item.posts; });
    });
    throw_if_error(failure_);
  }
  device_.record(all_uploaded_, Stream::kUpload);
  device_.record(all_downloaded_, Stream::kDownload);
  record_ = record;
  complete_ = std::move(complete);
  Item item;
  item.posts = true;
  item.first = all_uploaded_;
  item.second = all_downloaded_;
  enqueue(item);
}

void GradPublisher::enqueue(const Item& item) {
  {
    const std::lock_guard lock(mutex_);
    throw_if_error(failure_);
    const bool first = items_.empty();
    if (!first || !device_.done(item.first) || !device_.done(item.second)) {
      items_.push_back(item);
      if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
      changed_.notify_all();
      return;
    }
  }
  const Status status = carry_out(item);
  if (status.ok()) return;
  const std::lock_guard lock(mutex_);
  failure_ = status;
  throw_if_error(failure_);
}

Status GradPublisher::carry_out(const Item& item) {
  if (!item.posts) return session_.publish_grad(item.chunk, item.step, item.round);
  if (complete_) complete_(record_);
  return session_.post_step(record_);
}

void GradPublisher::run() {
  // On CUDA a thread's first call makes a context on its current device, which begins as device 0.
  // A device that has failed refuses even that.
  std::optional<c10::DeviceGuard> guard;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !items_.empty(); });
    if (items_.empty()) return;
    const Item item = items_.front();
    const bool give_up = !failure_.ok();
    lock.unlock();
    Status status;
    if (!give_up) {
      try {
        if (!guard) guard.emplace(device_.torch_device());
        device_.synchronize(item.first);
        device_.synchronize(item.second);
        status = carry_out(item);
      } catch (const Error& failure) {
        status = Status(failure.code(), failure.what());
      } catch (const std::exception& failure) {
        status = error(Code::kInternal, "publishing gradients: {}", failure_text(failure));
      }
    }
    // The model's thread may wait for what will never be published.
    if (!status.ok()) session_.fail(status);
    lock.lock();
    if (failure_.ok()) failure_ = status;
    items_.pop_front();
    changed_.notify_all();
  }
}

void GradPublisher::await(uint32_t chunk) {
  const auto of_chunk = [chunk](const Item& item) { return !item.posts && item.chunk == chunk; };
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return std::none_of(items_.begin(), items_.end(), of_chunk); });
  throw_if_error(failure_);
}

void GradPublisher::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return items_.empty(); });
  throw_if_error(failure_);
}

}  // namespace elixir
