#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "planner/estimate/estimate.h"
#include "planner/estimate/quantised.h"
#include "planner/models/model_request.h"
#include "planner/plan/plan.h"
#include "planner/profile.h"
#include "planner/search/make_plan.h"

namespace elixir::planner {

// Profiles of a model by the sequences of a step; each is made once.
class BatchProfiles {
 public:
  using Make = std::function<Result<ModelProfile>(uint64_t batch)>;

  explicit BatchProfiles(Make make) : make_(std::move(make)) {}
  Result<const ModelProfile*> at(uint64_t batch);

 private:
  const Make make_;
  std::map<uint64_t, ModelProfile> made_;
};

// What is known besides the number of parameters.
struct ReportOptions {
  std::string name = "";              // of the model, for people; "": none
  ModelRequest step = {.batch = 0};   // a batch that is not 0: its activations count in `fits`
  BatchProfiles* profiles = nullptr;  // of sequences of step.seq tokens; null: not known
  uint64_t chunk_numel = 0;           // of Elixir's plans; 0: the one that takes least of a GPU

  std::vector<QuantisedWeights> quantised = {};  // part of the parameters

  // Sequences of the step that says what is left for model states.
  uint64_t profiled_batch() const {
    return step.batch == 0 ? 1 : static_cast<uint64_t>(step.batch);
  }
};

struct ReportRow {
  StateStrategy strategy = StateStrategy::kDdp;
  StateBytes bytes = {};  // Elixir's where a profile is known: of `least`; else state_bytes()
  // Of those that are known, U_allowed holds bytes.gpu() and kHostShare of the host's memory
  // bytes.host(), with the batch asked for or, where their bytes are known, with one. Elixir's,
  // where a profile is: whether make_plan() finds a plan.
  std::optional<bool> fits = {};
  std::optional<LeastPlan> least = {};         // of Elixir's plans, where a profile is known
  std::optional<uint64_t> largest_batch = {};  // 0: not one sequence, or the host is too small
};

// What `elixirctl estimate` says.
struct EstimateReport {
  EstimateRequest request;
  ReportOptions options;
  bool largest_assumed = false;                   // request.largest_param was not known
  std::optional<uint64_t> activation_bytes = {};  // of options.step
  std::optional<uint64_t> u_allowed_bytes = {};   // of a GPU for model states
  uint64_t activations_short_bytes = 0;           // where activations leave nothing
  std::vector<ReportRow> rows = {};               // as kStateStrategies
};

// REQUIRES: check_request(). Errors are those of options.profiles, and least_plan()'s of
// options.chunk_numel.
Result<EstimateReport> make_report(const EstimateRequest& request, const ReportOptions& options);

// {"params", "gpus", ..., "ddp": {"gpu_bytes", "host_bytes_per_node", "by_kind": {"gpu_params",
// ...}, "fits", "largest_batch"}, "zero1": ...}; "fits" and "largest_batch" where they are known,
// and for Elixir "chunk_numel", "rcache_blocks", "long_blocks" and "long_numel" of `least`.
// by_kind has every member of StateBytes and adds up to the two sums. With quantised weights also
// "quantised": [{"type", "tensors", "params", "bytes"}], and "trainable": false.
std::string to_json(const EstimateReport& report);

// The same as a table for people.
std::string to_text(const EstimateReport& report);

}  // namespace elixir::planner
