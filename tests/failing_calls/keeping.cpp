#include "tests/failing_calls/keeping.h"

#include <fcntl.h>

#include <cerrno>
#include <filesystem>

#include "base/clock.h"
#include "base/fd.h"
#include "checkpoint/listing.h"
#include "tests/support/temporary_folder.h"

namespace elixir::testing {
namespace {

namespace fs = std::filesystem;

constexpr double kFolderLimitS = 15;  // for what takes milliseconds

UniqueFd open_folder(const std::string& path) {
  return UniqueFd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

checkpoints::Details details_of(const Session& session, uint64_t step) {
  checkpoints::Details details;
  const shm::Shape& shape = session.shape();
  details.shapes.assign(shape.n_parameters, {static_cast<int64_t>(shape.chunk_numel)});
  details.manifest.step = step;
  details.manifest.groups = {{.lr = 0.01, .weight_decay = 0, .hyper = {0.9, 0.999, 1e-8}}};
  details.keep.last = 1;
  return details;
}

Status end_of(Session& session, const Result<uint32_t>& number) {
  if (!number.ok()) return number.status();
  const Result<bool> ended = session.folder_ended_within(*number, kFolderLimitS);
  if (!ended.ok()) return ended.status();
  if (!*ended) return error(Code::kTimedOut, "a request of {:.0f} s", kFolderLimitS);
  return session.folder_result(*number).status;
}

Status save(Session& session, const std::string& folder, uint32_t step) {
  const UniqueFd parent = open_folder(folder);
  return end_of(session, session.save_folder({.parent = parent.get(),
                                              .name = checkpoints::step_name(step),
                                              .after_step = step,
                                              .details = details_of(session, step)}));
}

Status load(Session& session, const std::string& path) {
  ELIXIR_RETURN_IF_ERROR(session.await_loaded());
  const UniqueFd folder = open_folder(path);
  checkpoints::Details details;
  details.shapes = details_of(session, 0).shapes;
  ELIXIR_RETURN_IF_ERROR(end_of(
      session, session.load_folder({.folder = folder.get(), .path = path, .details = details})));
  return session.await_loaded();
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  return names;
}

// A disk's failure is that of one save: after the codes of a session that is of no use any more
// elixir-train does not go on.
Status judge_code(const Status& saved, const FailingCall& failing) {
  const bool of_disk =
      failing.failure == EIO || failing.failure == ENOSPC || failing.failure == EDQUOT;
  const bool goes_on = saved.ok() || saved.code() == Code::kResourceExhausted ||
                       saved.code() == Code::kInternal || saved.code() == Code::kInvalidArgument ||
                       saved.code() == Code::kBadInput;
  if (!of_disk || goes_on) return Status();
  return error(Code::kInternal, "it ends the run, as {}: {}", code_name(saved.code()),
               saved.message());
}

}  // namespace

Kept keep(const DaemonProcess& daemon, const std::string& job, const std::string& folder,
          const std::function<void()>& before_saves) {
  const int64_t start_ns = monotonic_ns();
  Kept kept;
  const auto session = begin_job(daemon, job);
  kept.trained = session.ok() ? step(**session, 1) : session.status();
  before_saves();
  for (uint32_t i = 0; i < 2 && kept.trained.ok(); ++i) {
    if (i > 0) kept.trained = step(**session, i + 1);
    if (kept.trained.ok()) kept.saved[i] = save(**session, folder, i + 1);
  }
  if (kept.trained.ok()) kept.weights = weights_of(**session);
  if (kept.trained.ok() && kept.saved[1].ok()) {
    kept.loaded = load(**session, folder + "/" + checkpoints::step_name(2));
    if (kept.loaded.ok()) kept.read = weights_of(**session);
  }
  kept.seconds = seconds_since(start_ns);
  return kept;
}

Kept KeepsUnderFailures::keep_undisturbed(const std::string& folder) {
  return keep(daemon(), "undisturbed", folder, [&] { only_count(&plan()); });
}

uint64_t KeepsUnderFailures::count(const FailingCall& failing) {
  const TemporaryFolder folder;
  const Kept kept = keep_undisturbed(folder.path());
  EXPECT_TRUE(kept.trained.ok()) << kept.trained.message();
  if (weights_.empty()) weights_ = kept.weights;
  const Status status = judge_kept(kept, {Call::kNone}, folder.path());
  EXPECT_TRUE(status.ok()) << status.message();
  return plan().count(failing.maker, failing.call);
}

Status KeepsUnderFailures::judge_kept(const Kept& kept, const FailingCall& failing,
                                      const std::string& folder) const {
  for (const Status& status : {kept.trained, kept.saved[0], kept.saved[1], kept.loaded}) {
    if (status.ok()) continue;
    if (kept.seconds > kFolderLimitS || failing.call == Call::kNone) return status;
    // Of file systems that lack a call, and say so.
    if (failing.failure == EOPNOTSUPP || failing.failure == EINVAL) return status;
    ELIXIR_RETURN_IF_ERROR(judge_reason(status, failing));
    const bool full = failing.failure == ENOSPC || failing.failure == EDQUOT;
    if (full && status.message().find("make room there") == std::string::npos) {
      return error(Code::kInternal, "it does not say what mends it: {}", status.message());
    }
  }
  for (const Status& status : {kept.saved[0], kept.saved[1], kept.loaded}) {
    ELIXIR_RETURN_IF_ERROR(judge_code(status, failing));
  }
  if (kept.trained.ok() && kept.weights != weights_) {
    return error(Code::kInternal, "other weights");
  }
  if (kept.trained.ok() && kept.saved[1].ok() && kept.loaded.ok() && kept.read != weights_) {
    return error(Code::kInternal, "other weights were read");
  }
  const auto all = checkpoints::list_checkpoints(folder);
  if (!all.ok()) return all.status();
  for (const checkpoints::ListedCheckpoint& listed : *all) {
    if (!listed.valid) return error(Code::kInternal, "{}: {}", listed.path, listed.why);
  }
  if (kept.trained.ok() && kept.saved[1].ok() && (all->empty() || all->back().step != 2)) {
    return error(Code::kInternal, "what was saved is not there");
  }
  for (const std::string& name : names_in(folder)) {
    const bool finished = checkpoints::step_of_name(name).has_value();
    // What a removal left goes with the next save; a folder that was not finished, at once.
    const bool left = failing.call != Call::kNone && name.starts_with(".deleting-");
    if (!finished && !left) return error(Code::kInternal, "{} was left", name);
  }
  return Status();
}

Status KeepsUnderFailures::holds_under(const FailingCall& failing, uint64_t at, double limit_s) {
  const TemporaryFolder folder;
  const Kept under = keep(daemon(), "under", folder.path(), [&] { arm(&plan(), failing, at); });
  const uint32_t failed = plan().failed;
  failed_ += failed;
  only_count(&plan());
  const bool told =
      !under.trained.ok() || !under.saved[0].ok() || !under.saved[1].ok() || !under.loaded.ok();
  if (failed > 0 && !told) ++untold_;
  ELIXIR_RETURN_IF_ERROR(judge_kept(under, failing, folder.path()));
  if (!daemon().running()) return error(Code::kInternal, "elixird has ended");
  ELIXIR_RETURN_IF_ERROR(gives_back(under_test(), before_, limit_s));
  for (const std::string& name : names_in(folder.path())) {
    if (checkpoints::step_of_name(name)) fs::remove_all(folder.path(name));
  }
  return judge_kept(keep_undisturbed(folder.path()), {Call::kNone}, folder.path());
}

}  // namespace elixir::testing
