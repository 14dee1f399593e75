#include "tests/failing_calls/under_failures.h"

#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "checkpoint/listing.h"
#include "tests/client/session_job.h"
#include "tests/support/outcomes.h"

namespace elixir::testing {
namespace {

namespace fs = std::filesystem;

constexpr double kGiveBackS = test::kPatienceS;
constexpr FailingCall kNothing = {Call::kNone};

constexpr FailingCall kOfBothSides[] = {
    {Call::kEpollWait, EINTR, Way::kError, Maker::kLibzmq},
    {Call::kMemfdCreate, EMFILE},
    {Call::kMmap, ENOMEM},
    {Call::kPoll, EINTR},
    {Call::kPoll, ENOMEM},
    {Call::kPoll, EINTR, Way::kError, Maker::kLibzmq},
    {Call::kReceive, EINTR},
    {Call::kReceive, EAGAIN},
    {Call::kReceive, ENOMEM},
    {Call::kReceive, 0, Way::kWithoutDescriptors},
    {Call::kReceive, 0, Way::kShort},
    {Call::kSend, EINTR},
    {Call::kSend, EAGAIN},
    {Call::kSend, ENOBUFS},
    {Call::kThread, EAGAIN},
};

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  return names;
}

// Of a request for a folder. A disk's failure is that of one save: after the codes of a session
// that is of no use any more elixir-train does not go on.
Status judge_request(const Status& status, const FailingCall& failing) {
  if (status.ok()) return Status();
  const bool full = failing.failure == ENOSPC || failing.failure == EDQUOT;
  if (full && status.message().find("make room there") == std::string::npos) {
    return error(Code::kInternal, "it does not say what mends it: {}", status.message());
  }
  const bool goes_on = status.code() == Code::kResourceExhausted ||
                       status.code() == Code::kInternal ||
                       status.code() == Code::kInvalidArgument || status.code() == Code::kBadInput;
  if (!(full || failing.failure == EIO) || goes_on) return Status();
  return error(Code::kInternal, "it ends the run, as {}: {}", code_name(status.code()),
               status.message());
}

}  // namespace

std::vector<FailingCall> with_both_sides(std::span<const FailingCall> of_one) {
  std::vector<FailingCall> all(of_one.begin(), of_one.end());
  all.insert(all.end(), std::begin(kOfBothSides), std::end(kOfBothSides));
  return all;
}

// ---- what must hold ----

bool UnderFailures::is_trainer() { return under_test() == ::getpid(); }

void UnderFailures::train_first() {
  if (!is_trainer()) before_ = holding_at_rest(under_test());
  for (const char* job : {"first", "second"}) {  // a trainer's first session leaves some open
    must(run_job(job, kNothing, [] {}));
  }
  if (is_trainer()) before_ = holding(under_test());
}

uint64_t UnderFailures::expect_holds(const FailingCall& failing) {
  failed_ = 0;
  const uint64_t made = count(failing);
  for (const uint64_t at : chosen(made)) {
    const Status status = holds_under(failing, at, kGiveBackS);
    EXPECT_TRUE(status.ok()) << describe(failing, at) << ": " << status.message();
    if (!daemon().running()) break;
  }
  EXPECT_TRUE(made == 0 || failed_ > 0) << describe(failing, 0);
  return made;
}

uint64_t UnderFailures::count(const FailingCall& failing) {
  const Status status = run_job("counted", kNothing, [this] { only_count(&plan()); });
  EXPECT_TRUE(status.ok()) << status.message();
  if (!is_trainer() && is_steady_) {  // a look at the status, and the end of the job, count
    EXPECT_NE(daemon().ask_status(), "");
    must(gives_back(under_test(), before_, kGiveBackS));
  }
  return plan().count(failing.maker, failing.call);
}

Status UnderFailures::holds_under(const FailingCall& failing, uint64_t at, double limit_s) {
  uint32_t failed = 0;
  const auto disarm = [&] {
    failed += plan().failed;
    only_count(&plan());
  };
  const Status under = run_job("under", failing, [&] { arm(&plan(), failing, at); });
  const bool of_job_alone = is_trainer() || !is_steady_;
  if (of_job_alone) disarm();
  ELIXIR_RETURN_IF_ERROR(under);
  if (!is_trainer() && daemon().ask_status() == "") {
    return error(Code::kInternal, "no answer to 'status'");
  }
  if (!daemon().running()) return error(Code::kInternal, "elixird has ended");
  ELIXIR_RETURN_IF_ERROR(gives_back(under_test(), before_, limit_s));
  if (!of_job_alone) disarm();
  failed_ += failed;
  if (failed == 0 && is_steady_ && is_steady(failing.call)) {
    return error(Code::kInternal, "no call has failed");
  }
  return run_job("next", kNothing, [] {});
}

void UnderFailures::expect_sees_calls_never_made() {
  const Status status = holds_under({Call::kMemfdCreate, EMFILE}, 1000, kGiveBackS);
  EXPECT_EQ(status.message(), "no call has failed");
}

void UnderFailures::expect_sees_open_descriptors(uint64_t at) {
  const Status status = holds_under({Call::kMemfdCreate, 0, Way::kLeak}, at, /*limit_s=*/1);
  EXPECT_NE(status.message().find("descriptors and 0 memfds"), std::string::npos)
      << status.message();
}

// ---- the jobs ----

Status TrainsUnderFailures::run_job(const std::string& job, const FailingCall& failing,
                                    const std::function<void()>& from_here) {
  from_here();
  const auto session = begin_job(daemon(), job);
  const Status trained = session.ok() ? step(**session, 1) : session.status();
  if (!trained.ok()) {
    const bool says_why = failing.call != Call::kNone && trained.code() != Code::kTimedOut;
    return says_why ? judge_reason(trained, failing) : trained;
  }
  const std::vector<float> weights = weights_of(**session);
  if (weights_.empty()) weights_ = weights;
  return weights == weights_ ? Status() : error(Code::kInternal, "other weights");
}

// What is not asked for, since something before it failed, is ok.
Status KeepsUnderFailures::run_job(const std::string& job, const FailingCall& failing,
                                   const std::function<void()>& from_here) {
  if (job != "next") folder_.emplace();
  for (const std::string& name : names_in(folder_->path())) {
    if (checkpoints::step_of_name(name)) fs::remove_all(folder_->path(name));
  }
  Status trained, saved[2], loaded;
  std::vector<float> weights, read;
  {
    const auto session = begin_job(daemon(), job);
    trained = session.ok() ? step(**session, 1) : session.status();
    from_here();
    for (uint32_t i = 0; i < 2 && trained.ok(); ++i) {
      if (i > 0) trained = step(**session, i + 1);
      if (trained.ok()) saved[i] = save(**session, folder_->path(), i + 1);
    }
    if (trained.ok()) weights = weights_of(**session);
    if (trained.ok() && saved[1].ok()) {
      loaded = load(**session, folder_->path(checkpoints::step_name(2)));
      if (loaded.ok()) read = weights_of(**session);
    }
  }
  const bool told = !trained.ok() || !saved[0].ok() || !saved[1].ok() || !loaded.ok();
  if (plan().failed > 0 && !told) ++untold_;
  for (const Status& status : {trained, saved[0], saved[1], loaded}) {
    if (status.ok()) continue;
    if (status.code() == Code::kTimedOut || failing.call == Call::kNone) return status;
    // Of file systems that lack a call, and say so.
    if (failing.failure == EOPNOTSUPP || failing.failure == EINVAL) return status;
    ELIXIR_RETURN_IF_ERROR(judge_reason(status, failing));
  }
  for (const Status& status : {saved[0], saved[1], loaded}) {
    ELIXIR_RETURN_IF_ERROR(judge_request(status, failing));
  }
  if (weights_.empty()) weights_ = weights;
  if (trained.ok() && weights != weights_) return error(Code::kInternal, "other weights");
  if (!read.empty() && read != weights_) return error(Code::kInternal, "other weights were read");
  return judge_folder(failing, trained.ok() && saved[1].ok());
}

Status KeepsUnderFailures::judge_folder(const FailingCall& failing, bool saved) const {
  const auto all = checkpoints::list_checkpoints(folder_->path());
  if (!all.ok()) return all.status();
  for (const checkpoints::ListedCheckpoint& listed : *all) {
    if (!listed.valid) return error(Code::kInternal, "{}: {}", listed.path, listed.why);
  }
  if (saved && (all->empty() || all->back().step != 2)) {
    return error(Code::kInternal, "what was saved is not there");
  }
  for (const std::string& name : names_in(folder_->path())) {
    const bool finished = checkpoints::step_of_name(name).has_value();
    // What a removal left goes with the next save; a folder that was not finished, at once.
    const bool left = failing.call != Call::kNone && name.starts_with(".deleting-");
    if (!finished && !left) return error(Code::kInternal, "{} was left", name);
  }
  return Status();
}

}  // namespace elixir::testing
