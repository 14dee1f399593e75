#include "client/device/paced_stream.h"

#include <signal.h>

#include <algorithm>

namespace elixir {

PacedStream::PacedStream(PacedLink& link) : link_(link) {
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // signals are for the program's own threads
  thread_ = std::thread([this] { work_off(); });
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

PacedStream::~PacedStream() {
  {
    const MutexLock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void PacedStream::enqueue(const Operation& operation) {
  {
    const MutexLock lock(mutex_);
    ++enqueued_;
    const bool joins = under_way_ > 0 && direction_ == operation.direction;
    const bool idle = done_ + 1 == enqueued_;
    if (!operation.updates && queue_.empty() && (joins || idle)) {
      begin(operation);
    } else {
      queue_.push_back(operation);
    }
  }
  changed_.notify_all();
}

// Of a copy: the link has it.
void PacedStream::begin(const Operation& operation) {
  ++under_way_;
  direction_ = operation.direction;
  copied_ = link_.transfer(operation.direction, operation.to, operation.from, operation.bytes);
}

void PacedStream::transfer(Stream direction, std::byte* to, const std::byte* from, size_t bytes) {
  enqueue({.direction = direction, .to = to, .from = from, .bytes = bytes});
}

void PacedStream::update(const optim::UpdateSpan& span, const optim::AdamStep& step) {
  Operation operation{.updates = true, .span = span, .step = step};
  std::copy_n(span.grads, span.grad_sum == nullptr ? span.n_grads : 0, operation.grads.begin());
  enqueue(operation);
}

uint64_t PacedStream::end() {
  const MutexLock lock(mutex_);
  return enqueued_;
}

bool PacedStream::done(uint64_t operations) {
  const MutexLock lock(mutex_);
  return done_ >= operations;
}

void PacedStream::synchronize(uint64_t operations) {
  MutexLock lock(mutex_);
  while (done_ < operations) changed_.wait(lock);
}

void PacedStream::work_off() {
  MutexLock lock(mutex_);
  for (;;) {
    while (!ending_ && queue_.empty() && under_way_ == 0) changed_.wait(lock);
    if (under_way_ > 0) {
      const LinkPoint point = copied_;
      const uint64_t copies = under_way_;
      lock.unlock();
      link_.synchronize(point);
      lock.lock();
      under_way_ -= copies;
      done_ += copies;
    } else if (queue_.empty()) {
      return;
    } else {
      Operation operation = queue_.front();
      queue_.pop_front();
      if (!operation.updates) {
        begin(operation);
        continue;
      }
      lock.unlock();
      operation.span.grads = operation.grads.data();
      optim::adam_update(optim::best_isa(), operation.span, operation.step);
      lock.lock();
      ++done_;
    }
    changed_.notify_all();
  }
}

}  // namespace elixir
