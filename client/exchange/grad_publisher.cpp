// Data path, hop 2 of 6: gradients are published when they have arrived.

#include "client/exchange/grad_publisher.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/interrupt.h"
#include "base/throw_error.h"

namespace elixir {

GradPublisher::GradPublisher(Device& device, Session& session, const shm::StepRules& rules)
    : device_(device),
      session_(session),
      sums_all_(rules.sums_all()),
      sum_steps_(session.shape().n_chunks, 0),
      all_uploaded_(device.create_event()),
      all_downloaded_(device.create_event()) {
  for (uint32_t chunk = 0; chunk < session.shape().n_chunks; ++chunk) {
    downloaded_.push_back(device.create_event());
    uploaded_.push_back(device.create_event());
  }
}

GradPublisher::~GradPublisher() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void GradPublisher::publish(uint32_t chunk, uint32_t step, uint32_t micro_step,
                            bool behind_uploads) {
  ELIXIR_CHECK(chunk < downloaded_.size(), "chunk {} of {}", chunk, downloaded_.size());
  // The step after one that had several micro-steps is taken for another such one.
  const bool to_sum =
      sums_all_ || micro_step > 1 || (several_step_ > 0 && step <= several_step_ + 1);
  if (to_sum) sum_steps_[chunk] = step;
  device_.record(downloaded_[chunk], Stream::kDownload);
  if (behind_uploads) device_.record(uploaded_[chunk], Stream::kUpload);
  Item item;
  item.chunk = chunk;
  item.grads = {.step = step, .micro_step = micro_step, .discards = discards_, .to_sum = to_sum};
  item.first = downloaded_[chunk];
  item.second = behind_uploads ? uploaded_[chunk] : downloaded_[chunk];
  enqueue(item);
}

void GradPublisher::free_slot(uint32_t chunk, uint32_t step, uint32_t micro_step) {
  ELIXIR_CHECK(chunk < sum_steps_.size(), "chunk {} of {}", chunk, sum_steps_.size());
  if (micro_step > 1) {
    several_step_ = step;
    sum_steps_[chunk] = step;
  } else if (sum_steps_[chunk] != step) {
    return;  // nothing of this step, or what was discarded before anybody asked for its sum
  }
  await(chunk);
  throw_if_error(session_.request_sum(chunk));
  {
    // Another rank may wait for what is still on its way.
    MutexLock lock(mutex_);
    while (!items_.empty() && !session_.is_taken(chunk)) wait_round(changed_, lock);
    throw_if_error(failure_);
  }
  throw_if_error(session_.wait_taken(chunk));
}

void GradPublisher::post(const shm::StepRecord& record,
                         std::function<void(shm::StepRecord&)> complete) {
  // One post at a time: its events and its record are in use until it is out.
  {
    MutexLock lock(mutex_);
    const auto posts = [](const Item& item) { return item.posts; };
    while (std::any_of(items_.begin(), items_.end(), posts)) wait_round(changed_, lock);
    throw_if_error(failure_);
  }
  discards_ = 0;
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
    const MutexLock lock(mutex_);
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
  const MutexLock lock(mutex_);
  failure_ = status;
  throw_if_error(failure_);
}

Status GradPublisher::carry_out(const Item& item) {
  if (!item.posts) return session_.publish_grad(item.chunk, item.grads);
  if (complete_) complete_(record_);
  return session_.post_step(record_);
}

void GradPublisher::run() {
  bool current = false;  // a device that has failed refuses even that
  MutexLock lock(mutex_);
  for (;;) {
    while (!stopping_ && items_.empty()) changed_.wait(lock);
    if (items_.empty()) return;
    const Item item = items_.front();
    const bool give_up = !failure_.ok();
    lock.unlock();
    Status status;
    if (!give_up) {
      try {
        if (!current) device_.make_current();
        current = true;
        device_.synchronize(item.first);
        device_.synchronize(item.second);
        status = carry_out(item);
      } catch (const Error& failure) {
        status = Status(failure.code(), failure.what());
      } catch (const std::exception& failure) {
        status = error(Code::kInternal, "publishing gradients: {}", failure.what());
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
  MutexLock lock(mutex_);
  while (std::any_of(items_.begin(), items_.end(), of_chunk)) wait_round(changed_, lock);
  throw_if_error(failure_);
}

void GradPublisher::drain() {
  MutexLock lock(mutex_);
  while (!items_.empty()) wait_round(changed_, lock);
  throw_if_error(failure_);
}

}  // namespace elixir
