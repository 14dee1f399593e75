#pragma once

// A stream of a PacedDevice beside the link's two. Its own thread does copies of both directions
// and updates one after another, as a CUDA stream would. The link gets a copy once all work before
// it on this stream is done, except copies in the same direction. An update takes its real time.

#include <array>
#include <cstdint>
#include <deque>
#include <thread>

#include "base/mutex.h"
#include "client/device/paced_link.h"
#include "optim_cpu/adam.h"

namespace elixir {

// Any thread may call anything; operations are in the order of the calls.
class PacedStream {
 public:
  // `link` must outlive the stream. Throws std::system_error when a thread cannot start.
  explicit PacedStream(PacedLink& link);
  ~PacedStream();  // returns when all enqueued work is done
  PacedStream(const PacedStream&) = delete;
  PacedStream& operator=(const PacedStream&) = delete;

  void transfer(Stream direction, std::byte* to, const std::byte* from, size_t bytes);
  void update(const optim::UpdateSpan& span, const optim::AdamStep& step);

  uint64_t end();  // the number of operations enqueued so far
  bool done(uint64_t operations);
  void synchronize(uint64_t operations);  // the caller waits

 private:
  struct Operation {
    bool updates = false;
    Stream direction = Stream::kUpload;
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    size_t bytes = 0;
    optim::UpdateSpan span = {};
    std::array<const void*, optim::kMaxGrads> grads =
        {};  // a copy of span.grads: the caller owns that array
    optim::AdamStep step = {};
  };
  void enqueue(const Operation& operation);
  void begin(const Operation& operation) ELIXIR_REQUIRES(mutex_);
  void work_off();

  PacedLink& link_;
  Mutex mutex_;
  CondVar changed_;
  bool ending_ ELIXIR_GUARDED_BY(mutex_) = false;
  std::deque<Operation> queue_ ELIXIR_GUARDED_BY(mutex_);
  // The number of copies that the link has, their common direction, and the point behind the last.
  uint64_t under_way_ ELIXIR_GUARDED_BY(mutex_) = 0;
  Stream direction_ ELIXIR_GUARDED_BY(mutex_) = Stream::kUpload;
  LinkPoint copied_ ELIXIR_GUARDED_BY(mutex_);
  uint64_t enqueued_ ELIXIR_GUARDED_BY(mutex_) = 0, done_ ELIXIR_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

}  // namespace elixir
