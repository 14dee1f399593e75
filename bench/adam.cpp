// bench/adam: the CPU update against the memory bandwidth of the same machine in the same run.

#include "optim_cpu/adam.h"

#include <sys/mman.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/cli.h"
#include "base/compute_type_names.h"
#include "base/inherited.h"
#include "base/processors.h"
#include "base/units.h"
#include "client/probe/inplace.h"
#include "client/probe/thread_team.h"
#include "optim_cpu/master.h"

namespace elixir::bench {
namespace {

using optim::Isa;
using probe::InplaceLoop;
using probe::ThreadTeam;

constexpr size_t kSliceNumel = 1 << 16;  // one call of adam_update

struct Arguments {
  uint64_t numel = uint64_t{32} << 20;
  int rounds = 15;
  int threads = 0;  // 0: all
  std::vector<std::string> dtypes = {"bf16", "fp16", "fp32"};
  std::vector<std::string> isas;  // none: all that the processor has
  bool redo = false;
  bool out_of_place = false;
  bool processor_time = false;
  bool json = false;
};

// Memory as elixird's: shared, in whatever pages the machine gives shared memory.
std::byte* map_shared(uint64_t bytes) {
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  ELIXIR_CHECK(memory != MAP_FAILED, "{} of shared memory", format_bytes(bytes));
  return static_cast<std::byte*>(memory);
}

// Arrays a power of two apart collide in the caches of some processors (Zen 4: half the rate),
// which is a property of the sizes chosen here and not of the update.
constexpr uint64_t kGapBytes = 17 * 4096;
constexpr uint64_t kArenaMultiple = uint64_t{1} << 20;

// Gradient, parameter and states of `numel` parameters, with plausible values.
class Job {
 public:
  // `spare`: with room for results that are not in place.
  Job(ComputeType type, size_t numel, int threads, bool spare) : type_(type), redo_(threads) {
    const uint64_t element = element_bytes(type), master = master_bytes(type);
    const uint64_t states = element + master + 8;
    arena_bytes_ =
        round_up((element + (spare ? 2 : 1) * states) * numel + 9 * kGapBytes, kArenaMultiple);
    arena_ = map_shared(arena_bytes_);
    std::byte* next = arena_;
    auto take = [&next, numel](uint64_t bytes_per_param) {
      return std::exchange(next, next + bytes_per_param * numel + kGapBytes);
    };
    grads_ = take(element);
    param_ = take(element);
    master_ = take(master);
    exp_avg_ = reinterpret_cast<float*>(take(sizeof(float)));
    exp_avg_sq_ = reinterpret_cast<float*>(take(sizeof(float)));
    if (spare) {
      spare_.param = take(element);
      spare_.master = take(master);
      for (int i = 0; i < 2; ++i) spare_.moments[i] = reinterpret_cast<float*>(take(sizeof(float)));
    }
    std::vector<float> values(kSliceNumel), unused(kSliceNumel);
    for (size_t i = 0; i < kSliceNumel; ++i) {
      values[i] = static_cast<float>(static_cast<int>(i * 2654435761U >> 16 & 0xffff) - 0x8000) *
                  (0.1f / 0x8000);
    }
    for (size_t at = 0; at < numel; at += kSliceNumel) {
      optim::load_master(type, values.data(), kSliceNumel, grads_ + at * element_bytes(type),
                         unused.data());
      optim::load_master(type, values.data(), kSliceNumel, param_ + at * element_bytes(type),
                         master_ + at * master_bytes(type));
    }
  }

  // Into the spare arrays, from where they are never read.
  void update_out_of_place(Isa isa, size_t begin, size_t end) {
    const optim::AdamStep step = optim::make_adam_step({}, 100, 1);
    for (size_t at = begin; at < end; at += kSliceNumel) {
      const void* const grads = grads_ + at * element_bytes(type_);
      optim::UpdateSpan span = span_at(at, &grads);
      const optim::StatePlace results{
          .param = static_cast<std::byte*>(spare_.param) + at * element_bytes(type_),
          .master = static_cast<std::byte*>(spare_.master) + at * master_bytes(type_),
          .moments = {spare_.moments[0] + at, spare_.moments[1] + at}};
      span.results = &results;
      optim::adam_update(isa, span, step);
    }
  }
  void update(Isa isa, size_t begin, size_t end, optim::RedoRecord* redo) {
    const optim::AdamStep step = optim::make_adam_step({}, 100, 1);
    for (size_t at = begin; at < end; at += kSliceNumel) {
      const void* const grads = grads_ + at * element_bytes(type_);
      optim::adam_update(isa, span_at(at, &grads), step, redo, at);
    }
  }

  ComputeType type() const { return type_; }
  // All of the job's memory: bandwidth differs between one piece of memory and another by a third
  // on a virtual machine, so it is measured on the pages that the update works on.
  std::span<uint64_t> words() {
    return {reinterpret_cast<uint64_t*>(arena_), arena_bytes_ / sizeof(uint64_t)};
  }
  optim::RedoRecord* redo(int thread) { return &redo_[static_cast<size_t>(thread)]; }
  // Gradient read; parameter, what completes it and both moments read and written. FP16's
  // parameter is not read: its master holds all of it.
  uint64_t bytes_per_param() const {
    const uint64_t param = (type_ == ComputeType::kFp16 ? 1 : 2) * element_bytes(type_);
    return element_bytes(type_) + param + 2 * master_bytes(type_) + 4 * sizeof(float);
  }

 private:
  optim::UpdateSpan span_at(size_t at, const void* const* grads) const {
    return {.type = type_,
            .n_grads = 1,
            .grads = grads,
            .param = param_ + at * element_bytes(type_),
            .master = master_ + at * master_bytes(type_),
            .moments = {exp_avg_ + at, exp_avg_sq_ + at},
            .numel = kSliceNumel};
  }

  ComputeType type_;
  std::vector<optim::RedoRecord> redo_;
  std::byte* arena_;
  uint64_t arena_bytes_;
  std::byte* grads_;
  std::byte* param_;
  std::byte* master_;
  float* exp_avg_;
  float* exp_avg_sq_;
  optim::StatePlace spare_;
};

// The rates of one measured thing, one a round.
class Rates {
 public:
  void add(double rate) { rates_.push_back(rate); }
  bool empty() const { return rates_.empty(); }
  double median() const {
    std::vector<double> sorted = rates_;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }

 private:
  std::vector<double> rates_;
};

struct Measured {
  Job* job;
  Isa isa;
  ThreadTeam* team;
  size_t numel;
  Rates gparam_s, out_of_place_gparam_s;
};

struct Bandwidth {
  Job* job;
  ThreadTeam* team;
  InplaceLoop loop;
  Rates gb_s;
};

// Thread `thread` of `threads` works on [first, last) of `numel`, in whole slices.
std::pair<size_t, size_t> part_of(size_t numel, int thread, int threads) {
  const size_t slices = numel / kSliceNumel;
  const auto i = static_cast<size_t>(thread), n = static_cast<size_t>(threads);
  return {slices * i / n * kSliceNumel, slices * (i + 1) / n * kSliceNumel};
}

void measure(Bandwidth& bandwidth) {
  const std::span<uint64_t> words = bandwidth.job->words();
  const int threads = bandwidth.team->threads();
  const double seconds = bandwidth.team->time([&](int thread) {
    const auto [first, last] = part_of(words.size(), thread, threads);
    bandwidth.loop.run(words.data() + first, last - first, 0);
  });
  bandwidth.gb_s.add(2e-9 * static_cast<double>(words.size_bytes()) / seconds);
}

void measure(Measured& one, const Arguments& arguments) {
  const int threads = one.team->threads();
  const auto rate = [&](const auto& update) {
    const double seconds = one.team->time([&](int thread) {
      const auto [first, last] = part_of(one.numel, thread, threads);
      update(thread, first, last);
    });
    return 1e-9 * static_cast<double>(one.numel) / seconds;
  };
  one.gparam_s.add(rate([&](int thread, size_t first, size_t last) {
    one.job->update(one.isa, first, last, arguments.redo ? one.job->redo(thread) : nullptr);
  }));
  if (!arguments.out_of_place) return;
  one.out_of_place_gparam_s.add(rate(
      [&](int, size_t first, size_t last) { one.job->update_out_of_place(one.isa, first, last); }));
}

// The fastest loop on this team, on the memory of `job` or, when that is null, of any.
const Bandwidth& best_of(const std::vector<Bandwidth>& bandwidths, const ThreadTeam* team,
                         const Job* job) {
  const Bandwidth* best = nullptr;
  for (const Bandwidth& one : bandwidths) {
    if (one.team != team || (job != nullptr && one.job != job)) continue;
    if (best == nullptr || one.gb_s.median() > best->gb_s.median()) best = &one;
  }
  return *best;
}

void print(const std::vector<Bandwidth>& bandwidths, const std::vector<Measured>& results,
           const ThreadTeam* all, bool json) {
  nlohmann::ordered_json report;
  report["inplace_gb_s"] = best_of(bandwidths, all, nullptr).gb_s.median();
  report["results"] = nlohmann::ordered_json::array();
  const ThreadTeam* printed = nullptr;
  for (const Measured& one : results) {
    const Bandwidth& bandwidth = best_of(bandwidths, one.team, one.job);
    const double inplace_gb_s = bandwidth.gb_s.median();
    const double gparam_s = one.gparam_s.median();
    const uint64_t bytes = one.job->bytes_per_param();
    const double fraction = gparam_s * static_cast<double>(bytes) / inplace_gb_s;
    report["results"].push_back({{"dtype", compute_type_name(one.job->type())},
                                 {"isa", optim::isa_name(one.isa)},
                                 {"threads", one.team->threads()},
                                 {"gparam_s", gparam_s},
                                 {"bytes_per_param", bytes},
                                 {"inplace_gb_s", inplace_gb_s},
                                 {"fraction", fraction}});
    const double out_of_place =
        one.out_of_place_gparam_s.empty() ? 0 : one.out_of_place_gparam_s.median() / gparam_s;
    if (out_of_place > 0) report["results"].back()["out_of_place"] = out_of_place;
    if (json) continue;
    if (printed != one.team) std::cout << fmt::format("{} threads\n", one.team->threads());
    printed = one.team;
    std::cout << fmt::format(
        "  {:<5} {:<7} {:6.3f} Gparam/s x {} B = {:.3f} of {:.1f} GB/s in place ({}){}\n",
        compute_type_name(one.job->type()), optim::isa_name(one.isa), gparam_s, bytes, fraction,
        inplace_gb_s, bandwidth.loop.name,
        out_of_place > 0 ? fmt::format("; out of place {:.3f} times that", out_of_place) : "");
  }
  if (json) std::cout << report.dump() << "\n";
}

Result<std::vector<Isa>> wanted_isas(const std::vector<std::string>& names) {
  std::vector<Isa> isas;
  for (Isa isa : optim::kIsas) {
    if (names.empty() && isa <= optim::best_isa()) isas.push_back(isa);
  }
  for (const std::string& name : names) {
    const Result<Isa> isa = parse_name(optim::kIsaNames, name);
    if (!isa.ok()) return isa.status();
    if (!optim::isa_supported(*isa)) {
      return error(Code::kInvalidArgument, "this processor does not have {}; the best it has is {}",
                   name, optim::isa_name(optim::best_isa()));
    }
    isas.push_back(*isa);
  }
  return isas;
}

Status run(const Arguments& arguments) {
  const Result<std::vector<Isa>> isas = wanted_isas(arguments.isas);
  if (!isas.ok()) return isas.status();
  const int n_all =
      arguments.threads != 0 ? arguments.threads : static_cast<int>(usable_processors().size());
  const ThreadTeam::Clock clock =
      arguments.processor_time ? ThreadTeam::Clock::kProcessorTime : ThreadTeam::Clock::kWall;
  ThreadTeam one(1, clock), all(n_all, clock);
  std::vector<ThreadTeam*> teams = {&one};
  if (n_all > 1) teams.push_back(&all);
  const size_t numel = round_up(arguments.numel, kSliceNumel * static_cast<uint64_t>(n_all));

  std::vector<Job> jobs;
  for (const std::string& name : arguments.dtypes) {
    const Result<ComputeType> type = parse_name(kComputeTypeNames, name);
    if (!type.ok()) return type.status();
    jobs.emplace_back(*type, numel, n_all, arguments.out_of_place);
  }
  std::vector<Bandwidth> bandwidths;
  std::vector<Measured> results;
  for (ThreadTeam* team : teams) {
    for (Job& job : jobs) {
      for (const InplaceLoop& loop : probe::inplace_loops())
        bandwidths.push_back({&job, team, loop, {}});
      // The scalar reference is slow enough to be timed on less.
      for (Isa isa : *isas) {
        const size_t part = isa == Isa::kScalar ? round_up(numel / 8, kSliceNumel * n_all) : numel;
        results.push_back({&job, isa, team, part, {}, {}});
      }
    }
  }
  // Everything once a round, so that a machine that is busy for a while slows all of it.
  for (int round = 0; round < arguments.rounds; ++round) {
    for (Bandwidth& bandwidth : bandwidths) measure(bandwidth);
    for (Measured& result : results) measure(result, arguments);
  }
  print(bandwidths, results, teams.back(), arguments.json);
  return Status();
}

}  // namespace
}  // namespace elixir::bench

int main(int argc, char** argv) {
  elixir::settle_inherited();
  elixir::bench::Arguments arguments;
  CLI::App app("The CPU update's rate and its fraction of this machine's in-place bandwidth.",
               "adam");
  elixir::init_cli(app);
  app.add_option("--numel", arguments.numel, "Parameters; well beyond the caches")
      ->check(CLI::PositiveNumber);
  app.add_option("--rounds", arguments.rounds, "Times each thing is measured; medians are given")
      ->check(CLI::PositiveNumber);
  app.add_option("--threads", arguments.threads, "Threads of \"all\" (default: all processors)")
      ->check(CLI::PositiveNumber);
  app.add_option("--dtype", arguments.dtypes, "Compute types: bf16, fp16, fp32");
  app.add_option("--isa", arguments.isas, "Instruction sets (default: all): scalar, avx2, avx512");
  app.add_flag("--redo", arguments.redo,
               "With redo records, which elixird leaves out, to see their cost");
  app.add_flag("--out-of-place", arguments.out_of_place,
               "Early updates, too, as a share of the rate in place");
  app.add_flag("--processor-time", arguments.processor_time,
               "By the threads' processor time, where others use the machine meanwhile");
  app.add_flag("--json", arguments.json, "Print one JSON object");
  if (const int code = elixir::parse_cli(app, argc, argv); code >= 0) return code;
  const elixir::Status status = elixir::bench::run(arguments);
  return status.ok() ? 0 : elixir::report_failure(app, status);
}
