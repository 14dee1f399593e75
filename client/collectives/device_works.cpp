#include "client/collectives/device_works.h"

#include <c10/core/DeviceGuard.h>

#include <exception>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>

#include "base/clock.h"
#include "client/tensors/torch_failure.h"

namespace elixir {
namespace {

// How torch's text begins the line that says which of NCCL's errors it was (ncclRemoteError).
constexpr const char* kRemoteError = "ncclRemoteError";

Status failure_of(const char* what, std::exception_ptr exception) {
  try {
    std::rethrow_exception(std::move(exception));
  } catch (const std::exception& failure) {
    const std::string text = failure_text(failure);
    const bool remote = text.find(kRemoteError) != text.npos;
    return error(remote ? Code::kPeerLost : Code::kInternal,
                 "{} failed: {}; NCCL_DEBUG=INFO tells more", what, text);
  }
}

}  // namespace

void DeviceWorks::add(const char* what, c10::intrusive_ptr<c10d::Work> work,
                      CollectiveSignature collective) {
  const MutexLock lock(mutex_);
  under_way_.push_back({what, std::move(work), monotonic_ns(), collective});
  ++made_;
}

DeviceWorks::Progress DeviceWorks::progress() const {
  const MutexLock lock(mutex_);
  if (under_way_.empty()) return {made_};
  return {made_, made_ - under_way_.size() + 1, under_way_.front().collective};
}

bool DeviceWorks::all_done() const {
  const MutexLock lock(mutex_);
  return under_way_.empty();
}

// They end in their order, so the oldest one tells.
Status DeviceWorks::ask() {
  std::optional<c10::DeviceGuard> guard;  // or CUDA would make a context on device 0
  try {
    guard.emplace(device_);
  } catch (const std::exception& failure) {  // it has failed
    return error(Code::kInternal, "{}", failure_text(failure));
  }
  for (;;) {
    UnderWay oldest;
    {
      const MutexLock lock(mutex_);
      if (under_way_.empty()) return Status();
      oldest = under_way_.front();
    }
    bool done = false;
    ELIXIR_RETURN_IF_ERROR(ask(oldest, done));
    if (!done) return Status();
    const MutexLock lock(mutex_);
    under_way_.pop_front();
  }
}

Status DeviceWorks::ask(const UnderWay& oldest, bool& done) const {
  try {
    done = oldest.work->isCompleted();
    if (std::exception_ptr exception = oldest.work->exception()) {
      return failure_of(oldest.what, std::move(exception));
    }
  } catch (const std::exception&) {
    return failure_of(oldest.what, std::current_exception());
  }
  if (done || seconds_since(oldest.since_ns) < timeout_s_) return Status();
  return error(
      Code::kTimedOut,
      "{} has not ended within {:.0f} s: a rank has not joined it, or ranks made different "
      "ones (ELIXIR_COLLECTIVE_TIMEOUT_S allows more)",
      oldest.what, timeout_s_);
}

}  // namespace elixir
