#include "client/probe/first_probe.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "base/process_stat.h"
#include "base/processors.h"
#include "base/subprocess.h"
#include "base/text_file.h"

namespace elixir::probe {
namespace {

using planner::ProbedMachine;

namespace fs = std::filesystem;

constexpr useconds_t kPollMicroseconds = 50'000;
// Ranks that wait for the one that measures allow it twice its limit.
constexpr double kOthersLimits = 2;
constexpr size_t kMostAnswers = 16;
constexpr char kCorrected[] = "corrected by what was measured in a training: ";

bool forbidden() {
  const char* const value = std::getenv("ELIXIR_PROBE");
  return value != nullptr && std::string_view(value) == "0";
}

// ELIXIR_PROBE_SECONDS.
double limit_from_environment(double otherwise) {
  const char* const value = std::getenv("ELIXIR_PROBE_SECONDS");
  if (value == nullptr || *value == '\0') return otherwise;
  char* end = nullptr;
  const double seconds = std::strtod(value, &end);
  if (*end == '\0' && seconds > 0 && seconds <= kMostProbeSeconds) return seconds;
  log_warn("probe_seconds_ignored", "value=\"{}\" needed=\"more than 0, at most {}\" instead={}",
           std::string_view(value).substr(0, 40), kMostProbeSeconds, otherwise);
  return otherwise;
}

Status not_measured(const std::string& why) {
  return error(Code::kUnavailable, "{}: elixirctl probe measures this machine", why);
}

class Cache {
 public:
  explicit Cache(const FirstProbe& first) : first_(first) {}

  std::optional<KnownMachine> load() const {
    const bool named = planner::machine_file_is_named();
    std::optional<ProbedMachine> of_host =
        usable(planner::machine_cache_path(), named ? kAny : kThis);
    if (of_host && (named || of_host->machine.probed.empty())) {
      return KnownMachine{std::move(*of_host)};  // somebody's wish
    }
    std::optional<ProbedMachine> own = usable(planner::hardware_cache_path(first_.hardware), kThis);
    const bool later = own && of_host && of_host->machine.probed > own->machine.probed;  // ISO 8601
    if (!own || later) own = std::move(of_host);
    if (!own) return std::nullopt;
    own->hardware = first_.hardware;
    return KnownMachine{std::move(*own), /*correctable=*/true};
  }

  // Where the first probe's result is kept, and its lock beside it.
  Result<std::string> path() const { return planner::hardware_cache_path(first_.hardware); }

  Status store(const ProbedMachine& probed) const {
    const Result<std::string> own = path(), of_host = planner::machine_cache_path();
    if (!own.ok()) return own.status();
    ELIXIR_RETURN_IF_ERROR(planner::store_machine(*own, probed));
    if (planner::machine_file_is_named()) return Status();  // that one is somebody's
    std::error_code failure;
    if (!of_host.ok() || fs::exists(*of_host, failure) || failure) return of_host.status();
    return planner::store_machine(*of_host, probed);  // for elixirctl plan
  }

 private:
  enum Hardware { kAny, kThis };

  static std::string what_of(const ProbedMachine& probed) {
    if (!probed.hardware.empty()) return probed.hardware;
    return probed.device.empty() ? probed.machine.name : probed.device;
  }

  std::optional<ProbedMachine> usable(const Result<std::string>& path, Hardware wanted) const {
    if (!path.ok()) return std::nullopt;
    Result<std::optional<ProbedMachine>> file = planner::load_machine(*path);
    if (!file.ok()) {
      log_warn("machine_file_not_used", "text=\"{}\"", file.status().message());
      return std::nullopt;
    }
    if (!*file) {
      if (wanted == kAny) {
        log_warn("machine_file_not_used", "text=\"{}: there is no such file\"", *path);
      }
      return std::nullopt;
    }
    const ProbedMachine& probed = **file;
    const bool same_kind = (probed.device == "cpu") != first_.on_gpus;
    // Files of earlier releases do not tell.
    const bool same =
        wanted == kAny || probed.hardware.empty() || probed.hardware == first_.hardware;
    const bool enough = wanted == kAny || probed.machine.gpus >= first_.devices;
    if (same_kind && same && enough) return std::move(*file);
    log_format(wanted == kAny ? LogLevel::kWarn : LogLevel::kInfo, "machine_file_of_other_hardware",
               "path=\"{}\" has=\"{} x {}\" here=\"{} x {}\"",
               fmt::make_format_args(*path, probed.machine.gpus, what_of(probed), first_.devices,
                                     first_.hardware));
    return std::nullopt;
  }

  const FirstProbe& first_;
};

// Who holds it may read, measure and write the files of the folder.
class ProbeLock {
 public:
  enum class Wait : uint8_t { kNone, kHeedsInterrupts };

  // `alone`: a file system without locks is no error.
  static Result<ProbeLock> take(double limit_s, bool alone, Wait wait) {
    const Result<std::string> folder = planner::cache_folder();
    if (!folder.ok()) return folder.status();
    std::error_code failure;
    fs::create_directories(*folder, failure);
    const std::string path = *folder + "/lock";
    ProbeLock lock;
    lock.file_ = UniqueFd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!lock.file_.valid()) return unusable(path);
    for (const int64_t start_ns = monotonic_ns(); ::flock(lock.file_.get(), LOCK_EX | LOCK_NB) != 0;
         ::usleep(kPollMicroseconds)) {
      if (errno != EWOULDBLOCK && errno != EINTR) {
        if (alone) return lock;
        return unusable(path);
      }
      if (wait == Wait::kHeedsInterrupts) check_interrupt();
      if (seconds_since(start_ns) >= limit_s) {
        return not_measured(fmt::format("another program has held {} for {:.0f} s", path, limit_s));
      }
    }
    return lock;
  }

 private:
  static Status unusable(const std::string& path) {
    return error(Code::kUnavailable,
                 "{} cannot be opened and locked: {}; set XDG_CACHE_HOME to a folder that can be "
                 "written",
                 path, std::generic_category().message(errno));
  }

  UniqueFd file_;
};

// What the first rank of a node has found, for the others. REQUIRES: a ProbeLock is held.
class Answer {
 public:
  explicit Answer(const FirstProbe& first) {
    const Result<std::string> folder = planner::cache_folder();
    const size_t key =
        std::hash<std::string>{}(fmt::format("{}@{} {}", first.job, host_name(), starter()));
    path_ = fmt::format("{}/{}{:016x}.json", folder.ok() ? *folder : "", kPrefix, key);
  }

  // Empty if this rank is the first.
  std::optional<Result<KnownMachine>> load() const {
    struct stat about {};
    if (::stat(path_.c_str(), &about) != 0) return std::nullopt;
    if (std::time(nullptr) - about.st_mtime > kAnswerSeconds) return std::nullopt;
    const Result<std::string> text = read_ordinary_file(path_);
    if (!text.ok()) return std::nullopt;
    if (!text->starts_with('{')) return Result<KnownMachine>(Status(Code::kUnavailable, *text));
    Result<ProbedMachine> probed = planner::probed_from_json(*text);
    if (!probed.ok()) return std::nullopt;
    const bool correctable = !probed->hardware.empty();
    return Result<KnownMachine>(KnownMachine{std::move(*probed), correctable});
  }

  Status store(const Result<KnownMachine>& known) const {
    ProbedMachine probed = known.ok() ? known->probed : ProbedMachine();
    if (known.ok() && !known->correctable) probed.hardware.clear();
    planner::keep_newest(kPrefix, kMostAnswers, path_);
    const Status written =
        write_text_file(path_, known.ok() ? planner::to_json(probed) : known.status().message());
    if (written.ok()) return written;
    return error(Code::kUnavailable, "{}; set XDG_CACHE_HOME to a folder that can be written",
                 written.message());
  }

 private:
  static constexpr char kPrefix[] = "job-";

  // A job's name may be the same at its next start. Its starter, the ranks' parent, is another one.
  static std::string starter() {
    constexpr int kStartTime = 19;
    const pid_t parent = ::getppid();
    const std::optional<ProcessStat> stat = process_stat(parent);
    return fmt::format("{} {}", parent, stat ? stat->field(kStartTime) : "");
  }

  std::string path_;
};

Result<ProbedMachine> measure(const FirstProbe& first) {
  std::string program = first.program.empty() ? installed_program("elixir-probe") : first.program;
  if (program.empty()) return not_measured("elixir-probe is not installed beside this program");
  const Result<ProgramRun> run =
      run_to_end({.argv = {program, "--quick", first.on_gpus ? "--device=cuda" : "--device=cpu",
                           fmt::format("--gpus={}", first.devices)},
                  .extra_environment = {},
                  .parent_death_signal = SIGKILL},
                 first.limit_s);
  if (!run.ok()) return not_measured(run.status().message());
  if (run->timed_out) {
    return not_measured(
        fmt::format("the first probe took more than {:.0f} s "
                    "(ELIXIR_PROBE_SECONDS gives it more)",
                    first.limit_s));
  }
  if (run->exit_code != 0) {
    return not_measured(fmt::format("{} ended with {}", program, run->exit_code));
  }
  Result<ProbedMachine> probed = planner::probed_from_json(run->output);
  if (!probed.ok()) return not_measured(probed.status().message());
  return probed;
}

// REQUIRES: a ProbeLock is held, if measuring may be needed.
Result<KnownMachine> ask(const FirstProbe& first, const Cache& cache) {
  if (std::optional<KnownMachine> known = cache.load()) return std::move(*known);
  if (forbidden()) return not_measured("this machine has not been measured, and ELIXIR_PROBE is 0");
  const Result<std::string> path = cache.path();
  if (!path.ok()) return path.status();
  // A warning: a terminal shows these alone, and the start takes longer this time.
  log_warn("first_probe", "measures=\"{}\" limit_s={:.0f} keeps=\"{}\" off=\"ELIXIR_PROBE=0\"",
           first.hardware, first.limit_s, *path);
  const int64_t start_ns = monotonic_ns();
  Result<ProbedMachine> probed = measure(first);
  if (!probed.ok()) return probed.status();
  probed->hardware = first.hardware;
  const Status stored = cache.store(*probed);
  log_info("first_probe_done", "seconds={:.1f} kept=\"{}\"", seconds_since(start_ns),
           stored.ok() ? "yes" : stored.message());
  return KnownMachine{std::move(*probed), /*correctable=*/true};
}

}  // namespace

Result<KnownMachine> load_or_measure(const FirstProbe& asked) {
  FirstProbe first = asked;
  first.limit_s = limit_from_environment(asked.limit_s);
  if (first.hardware.empty()) return not_measured("CUDA shows no GPU");
  ELIXIR_CHECK(first.devices > 0 && first.ranks > 0 && first.limit_s >= 0,
               "{} devices of {} ranks in {} s", first.devices, first.ranks, first.limit_s);
  const Cache cache(first);
  const bool alone = first.ranks == 1;
  if (alone) {
    if (std::optional<KnownMachine> known = cache.load()) return std::move(*known);
    if (forbidden()) return ask(first, cache);
  }
  const Result<ProbeLock> lock =
      ProbeLock::take(kOthersLimits * first.limit_s, alone, ProbeLock::Wait::kHeedsInterrupts);
  if (!lock.ok()) return lock.status();
  if (alone) return ask(first, cache);
  const Answer answer(first);
  if (std::optional<Result<KnownMachine>> told = answer.load()) return std::move(*told);
  // First something to tell, so that a rank which cannot tell does not measure.
  ELIXIR_RETURN_IF_ERROR(answer.store(not_measured("the first rank has not ended its probe")));
  Result<KnownMachine> known = ask(first, cache);
  ELIXIR_RETURN_IF_ERROR(answer.store(known));
  return known;
}

Status correct_rates(const ProbedMachine& planned_with, const std::vector<planner::LegOff>& off,
                     const std::string& training) {
  ELIXIR_CHECK(!planned_with.hardware.empty(), "rates of no hardware are corrected");
  const Result<ProbeLock> lock = ProbeLock::take(0, /*alone=*/true, ProbeLock::Wait::kNone);
  if (!lock.ok()) return lock.status();
  const FirstProbe first{.hardware = planned_with.hardware,
                         .on_gpus = planned_with.device != "cpu",
                         .devices = planned_with.machine.gpus};
  const Cache cache(first);
  const std::optional<KnownMachine> now = cache.load();
  const bool same = now && now->correctable &&
                    now->probed.machine.probed <= planned_with.machine.probed;  // ISO 8601
  if (!same) return error(Code::kUnavailable, "the rates were forgotten or measured again since");
  ProbedMachine corrected = planned_with;
  corrected.machine = planner::corrected(planned_with.machine, off);
  ELIXIR_RETURN_IF_ERROR(planner::check_machine(corrected.machine));
  std::erase_if(corrected.notes,
                [](const std::string& note) { return note.starts_with(kCorrected); });
  corrected.notes.push_back(std::string(kCorrected) + training);
  const Result<std::string> path = cache.path();
  return path.ok() ? planner::store_machine(*path, corrected) : path.status();
}

}  // namespace elixir::probe
