#include "client/train/save_request.h"

#include <utility>

#include "base/throw_error.h"
#include "client/saving.h"

namespace elixir {
namespace {

constexpr double kLookSeconds = 0.1;  // so long a session's end may wait for a wait
constexpr double kNsPerSecond = 1e9;

}  // namespace

SaveRequest::SaveRequest(Session& session, uint32_t number, std::string path, uint64_t step)
    : number_(number), path_(std::move(path)), step_(step), session_(&session) {}

// An error is an outcome, too: elixird or a rank is lost.
void SaveRequest::keep(const Result<bool>& ended) {
  if (outcome_ || session_ == nullptr) return;
  if (!ended.ok()) outcome_ = FolderOutcome{.status = ended.status()};
  if (ended.ok() && *ended) outcome_ = session_->folder_result(number_);
}

bool SaveRequest::look_for(double seconds) {
  Session* session = nullptr;
  {
    const MutexLock lock(mutex_);
    if (outcome_ || session_ == nullptr) return true;
    session = session_;
    ++users_;
  }
  struct Use {
    SaveRequest& request;
    ~Use() {
      const MutexLock lock(request.mutex_);
      --request.users_;
      request.unused_.notify_all();
    }
  };
  const Use use{*this};
  const Result<bool> ended = session->folder_ended_within(number_, seconds);
  const MutexLock lock(mutex_);
  keep(ended);
  return outcome_.has_value() || session_ == nullptr;
}

bool SaveRequest::done() { return in_child() || look_for(0); }

double SaveRequest::progress() {
  if (in_child()) return 0;
  const MutexLock lock(mutex_);
  if (outcome_ || session_ == nullptr) return 1;
  const FolderProgress seen = session_->folder_progress(number_);
  return seen.bytes == 0 ? 0
                         : static_cast<double>(seen.done_bytes) / static_cast<double>(seen.bytes);
}

SaveReport SaveRequest::wait() {
  if (in_child()) {
    throw Error(error(Code::kInvalidArgument,
                      "wait() for the save of '{}' in a forked child of the trainer: wait in the "
                      "process that called save()",
                      path_));
  }
  while (!look_for(kLookSeconds)) continue;
  const MutexLock lock(mutex_);
  if (!outcome_) {
    throw Error(error(Code::kUnavailable,
                      "the optimizer ended before the save of '{}', so its outcome is unknown "
                      "here: elixird continues to write; `elixirctl checkpoint list` shows the "
                      "result; call wait() before the optimizer ends",
                      path_));
  }
  throw_if_error(outcome_->status);
  return {.path = path_,
          .step = step_,
          .bytes = outcome_->bytes,
          .shadow_bytes = outcome_->shadow_bytes,
          .shadow_peak_bytes = outcome_->shadow_peak_bytes,
          .stall_s = static_cast<double>(outcome_->stall_ns) / kNsPerSecond,
          .write_s = static_cast<double>(outcome_->write_ns) / kNsPerSecond,
          .not_finite = outcome_->not_finite};
}

void SaveRequest::close() {
  look();
  MutexLock lock(mutex_);
  session_ = nullptr;
  while (users_ > 0) unused_.wait(lock);
}

Saving::Saving(std::shared_ptr<SaveRequest> request) : request_(std::move(request)) {}
bool Saving::done() const { return request_->done(); }
double Saving::progress() const { return request_->progress(); }
SaveReport Saving::wait() { return request_->wait(); }

}  // namespace elixir
