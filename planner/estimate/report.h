#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "planner/estimate/estimate.h"
#include "planner/estimate/quantised.h"
#include "planner/estimate/zero_arithmetic.h"
#include "planner/models/model_request.h"
#include "planner/plan/plan.h"
#include "planner/profile.h"
#include "planner/search/make_plan.h"

namespace elixir::planner {

// A model's profiles by the number of sequences in a step. Each is made once.
class BatchProfiles {
 public:
  using Make = std::function<Result<ModelProfile>(uint64_t batch)>;

  explicit BatchProfiles(Make make) : make_(std::move(make)) {}
  Result<const ModelProfile*> at(uint64_t batch);

 private:
  const Make make_;
  std::map<uint64_t, ModelProfile> made_;
};

// Facts about the model beside its number of parameters.
struct ReportOptions {
  std::string name = "";              // the model's, for people; "": none
  ModelRequest step = {.batch = 0};   // a batch other than 0: its activations count in `fits`
  BatchProfiles* profiles = nullptr;  // for sequences of step.seq tokens; null: not known
  uint64_t chunk_numel = 0;           // for Elixir's plans; 0: the length that needs least of a GPU
  bool zero = false;                  // ZeRO's own arithmetic is asked for
  ZeroShape zero_shape = {};          // for it

  std::vector<QuantisedWeights> quantised = {};  // part of the parameters

  // The number of sequences whose activations and buffers decide how much memory is left for model
  // states.
  uint64_t profiled_batch() const {
    return step.batch == 0 ? 1 : static_cast<uint64_t>(step.batch);
  }
};

struct ReportRow {
  StateStrategy strategy = StateStrategy::kDdp;
  // Elixir's with a profile: those of `least`. All others: state_bytes().
  StateBytes bytes = {};
  // Whether U_allowed holds bytes.gpu() and kHostShare of the host's memory holds bytes.host(), as
  // far as either limit is known. Activations are those of the requested batch or, if the profiles
  // are known, of one sequence. For Elixir with a profile: whether make_plan() finds a plan.
  std::optional<bool> fits = {};
  std::optional<LeastPlan> least = {};         // Elixir's, if a profile is known
  std::optional<uint64_t> largest_batch = {};  // 0: not one sequence fits, or the host is too small
  // If inputs of regions must lie in host memory for it: the largest batch without that.
  std::optional<uint64_t> largest_batch_on_device = {};
};

// The result of `elixirctl estimate`.
struct EstimateReport {
  EstimateRequest request;
  ReportOptions options;
  bool largest_assumed = false;                   // request.largest_param was not known
  std::optional<uint64_t> activation_bytes = {};  // for options.step
  std::optional<uint64_t> u_allowed_bytes = {};   // per GPU, for model states
  uint64_t activations_short_bytes = 0;           // missing if activations leave nothing; else 0
  std::vector<ReportRow> rows = {};               // in the order of kStateStrategies
  std::optional<ZeroArithmetic> zero = {};        // if options.zero
};

// REQUIRES: check_request() is OK. Returns the errors of options.profiles, and least_plan()'s for
// options.chunk_numel.
Result<EstimateReport> make_report(const EstimateRequest& request, const ReportOptions& options);

// {"params", "gpus", ..., "ddp": {"gpu_bytes", "host_bytes_per_node", "by_kind": {"gpu_params",
// ...}, "fits", "largest_batch"}, "zero1": ...}.
// "fits", "largest_batch" and "largest_batch_on_device" are there if they are known. Elixir's row
// also has "chunk_numel", "rcache_blocks", "long_blocks" and "long_numel" of `least`. by_kind has
// every member of StateBytes; they add up to the two sums. options.zero adds "zero":
// to_json(ZeroArithmetic). Quantised weights add "quantised": [{"type", "tensors", "params",
// "bytes"}], and "trainable": false.
std::string to_json(const EstimateReport& report);

// A table for people.
std::string to_text(const EstimateReport& report);

}  // namespace elixir::planner
