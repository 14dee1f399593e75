#include "planner/estimate/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/compute_type_names.h"
#include "base/units.h"
#include "base/wrapped.h"
#include "planner/plan/plan_json.h"
#include "planner/search/benefit.h"
#include "planner/search/make_plan.h"
#include "planner/search/refusal.h"
#include "shm/shape.h"

namespace elixir::planner {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Of a GPU or a host whose memory is not given: they hold any model.
constexpr uint64_t kAmpleBytes = uint64_t{1} << 60;

// For which a plan either fits or does not; how fast it is does not matter here.
Machine machine_of(const EstimateRequest& request) {
  Machine machine;
  machine.gpus = request.gpus;
  machine.nodes = std::max(request.gpus / request.gpus_per_node, 1u);
  machine.gpu_memory_bytes = request.gpu_memory_bytes.value_or(kAmpleBytes);
  machine.overhead_bytes = kDeviceOverheadBytes;
  machine.host_memory_bytes = request.host_memory_bytes.value_or(kAmpleBytes);
  for (double* const rate : {&machine.d2h_gb_s, &machine.h2d_gb_s, &machine.g2g_gb_s,
                             &machine.gpu_update_gparam_s, &machine.cpu_update_gparam_s,
                             &machine.dram_gb_s, &machine.gpu_tflops, &machine.gpu_fp32_tflops}) {
    *rate = 1;
  }
  return machine;
}

double difference(uint64_t a, uint64_t b) {
  return static_cast<double>(a) - static_cast<double>(b);
}

bool whole_nodes(const EstimateRequest& request) {
  return request.gpus % std::min(request.gpus, request.gpus_per_node) == 0;
}

struct Room {
  double bytes = 0;  // less than 0: does not fit
  StateBytes states = {};
  std::optional<LeastPlan> least = {};  // of Elixir's plans
};

// Beside a step's activations, of a GPU or, where that lacks, of a node's host.
Result<Room> room_beside(StateStrategy strategy, const EstimateReport& report,
                         const ModelProfile& profile, const Activations& regions = {}) {
  const EstimateRequest& request = report.request;
  const Machine machine = machine_of(request);
  const uint64_t allowed = allowed_bytes(machine, profile);
  if (strategy != StateStrategy::kElixir) {
    const StateBytes states = state_bytes(strategy, request);
    const bool host_holds = states.host() <= usable_host_bytes(machine.host_memory_bytes);
    return Room{host_holds && allowed > 0 ? difference(allowed, states.gpu()) : -1, states};
  }
  const Result<LeastPlan> least =
      least_plan(profile, machine,
                 {.layout = {.chunk_numel = report.options.chunk_numel}, .regions = regions});
  if (!least.ok()) return least.status();
  return Room{least->room_bytes, StateBytes(least->bytes), *least};
}

Result<ReportRow> make_row(StateStrategy strategy, const EstimateReport& report) {
  const ReportOptions& options = report.options;
  const EstimateRequest& request = report.request;
  ReportRow row{.strategy = strategy, .bytes = state_bytes(strategy, request)};
  const std::optional<uint64_t>& host_memory = request.host_memory_bytes;
  const bool host_holds =
      !host_memory.has_value() || row.bytes.host() <= usable_host_bytes(*host_memory);
  const bool gpu_holds =
      !report.u_allowed_bytes.has_value() || row.bytes.gpu() <= *report.u_allowed_bytes;
  if (host_memory.has_value() || request.gpu_memory_bytes.has_value()) {
    row.fits = host_holds && gpu_holds;
  }
  if (strategy == StateStrategy::kElixir && !whole_nodes(request)) {
    if (row.fits.has_value()) row.fits = false;
    if (request.gpu_memory_bytes.has_value() && options.profiles != nullptr) row.largest_batch = 0;
    return row;
  }
  const bool gpu_known = request.gpu_memory_bytes.has_value();
  const bool searched = gpu_known || strategy == StateStrategy::kElixir;
  if (!searched || options.profiles == nullptr) return row;
  const Result<const ModelProfile*> step = options.profiles->at(options.profiled_batch());
  if (!step.ok()) return step.status();
  const Result<Room> room = room_beside(strategy, report, **step);
  if (!room.ok()) return room.status();
  row.bytes = room->states;
  row.least = room->least;
  if (row.fits.has_value()) row.fits = room->bytes >= 0;
  if (!gpu_known) return row;
  bool sends = false;
  const auto largest_with = [&](const Activations& regions) {
    return largest_that_fits(
        [&](uint64_t batch) -> Result<double> {
          const Result<const ModelProfile*> profile = options.profiles->at(batch);
          if (!profile.ok()) return profile.status();
          const Result<Room> beside = room_beside(strategy, report, **profile, regions);
          if (!beside.ok()) return beside.status();
          sends |= beside->bytes >= 0 && beside->least && beside->least->sends;
          return beside->bytes;
        },
        kMaxBatch);
  };
  const Result<uint64_t> largest = largest_with({});
  if (!largest.ok()) return largest.status();
  row.largest_batch = *largest;
  if (!sends) return row;
  const Result<uint64_t> on_device = largest_with({.mode = Activations::Mode::kRecompute});
  if (!on_device.ok()) return on_device.status();
  row.largest_batch_on_device = *on_device;
  return row;
}

OrderedJson kinds_of(const StateBytes& bytes) {
  return {{"gpu_params", bytes.gpu_params},           {"gpu_grads", bytes.gpu_grads},
          {"gpu_states", bytes.gpu_states},           {"gpu_rcache", bytes.gpu_rcache},
          {"gpu_grad_blocks", bytes.gpu_grad_blocks}, {"host_params", bytes.host_params},
          {"host_grads", bytes.host_grads},           {"host_states", bytes.host_states},
          {"host_waiting", bytes.host_waiting},       {"host_activations", bytes.host_activations}};
}

OrderedJson row_of(const ReportRow& row) {
  OrderedJson json = {{"gpu_bytes", row.bytes.gpu()},
                      {"host_bytes_per_node", row.bytes.host()},
                      {"by_kind", kinds_of(row.bytes)}};
  if (row.fits.has_value()) json["fits"] = *row.fits;
  if (row.largest_batch.has_value()) json["largest_batch"] = *row.largest_batch;
  if (row.largest_batch_on_device) json["largest_batch_on_device"] = *row.largest_batch_on_device;
  if (row.least && row.least->fits()) {
    json["chunk_numel"] = row.least->chunk_numel;
    json["rcache_blocks"] = row.least->candidate.rcache_blocks;
    json["long_blocks"] = row.least->candidate.long_blocks;
    json["long_numel"] = row.least->long_numel;
  }
  return json;
}

// Of Elixir's row; null: no profile is known.
const LeastPlan* least_of(const EstimateReport& report) {
  for (const ReportRow& row : report.rows) {
    if (row.least) return &*row.least;
  }
  return nullptr;
}

const char* told_exchange(const EstimateReport& report) {
  const LeastPlan* const least = least_of(report);
  return exchange_name(least != nullptr ? least->candidate.exchange
                                        : estimated_exchange(report.request));
}

// "7.5 B", "124.4 M"
std::string people_count(uint64_t count) {
  const auto number = static_cast<double>(count);
  if (count >= 1'000'000'000'000) return fmt::format("{:.4g} T", number / 1e12);
  if (count >= 1'000'000'000) return fmt::format("{:.4g} B", number / 1e9);
  if (count >= 1'000'000) return fmt::format("{:.4g} M", number / 1e6);
  return fmt::format("{}", count);
}

std::string bytes_or_dash(uint64_t bytes) { return bytes == 0 ? "-" : format_bytes(bytes); }

// "yes", or the bytes that are missing.
std::string fits_text(const ReportRow& row, const EstimateReport& report) {
  if (*row.fits) return "yes";
  if (row.strategy == StateStrategy::kElixir && !whole_nodes(report.request)) {
    return "no: the nodes differ";
  }
  const uint64_t allowed = report.u_allowed_bytes.value_or(UINT64_MAX);
  if (row.bytes.gpu() > allowed) {
    return fmt::format("no: GPU {} short",
                       format_bytes(row.bytes.gpu() - allowed + report.activations_short_bytes));
  }
  const uint64_t host = usable_host_bytes(report.request.host_memory_bytes.value_or(UINT64_MAX));
  if (row.bytes.host() <= host) return "no: activations";
  return fmt::format("no: host {} short", format_bytes(row.bytes.host() - host));
}

// Some of Elixir's states are on the GPUs, since the host lacks room.
bool states_move(const EstimateReport& report) {
  return std::any_of(report.rows.begin(), report.rows.end(), [](const ReportRow& row) {
    return row.strategy == StateStrategy::kElixir && row.bytes.gpu_states > 0;
  });
}

std::string table_row(const ReportRow& row, const EstimateReport& report) {
  std::string line = fmt::format("  {:<13}{:>11}{:>15}", strategy_name(row.strategy),
                                 bytes_or_dash(row.bytes.gpu()), bytes_or_dash(row.bytes.host()));
  if (states_move(report)) {
    const bool moves = row.strategy == StateStrategy::kElixir;
    line += fmt::format("{:>12}", moves ? bytes_or_dash(row.bytes.gpu_states) : "");
  }
  if (row.largest_batch.has_value()) {
    line +=
        fmt::format("{:>11}", *row.largest_batch == 0 ? "-" : fmt::to_string(*row.largest_batch));
  }
  if (row.fits.has_value()) line += fmt::format("  {}", fits_text(row, report));
  return line + "\n";
}

std::string table_head(const EstimateReport& report) {
  const ReportRow& first = report.rows.front();
  std::string line = fmt::format("  {:<13}{:>11}{:>15}", "", "per GPU", "host per node");
  if (states_move(report)) line += fmt::format("{:>12}", "GPU states");
  if (first.largest_batch.has_value()) line += fmt::format("{:>11}", "max batch");
  if (first.fits.has_value()) line += "  will it fit";
  return line + "\n";
}

// "the least that it runs with, host exchange, 1 block of 58.7 M elements and 1 of 528.5 M"
std::string elixir_text(const EstimateReport& report) {
  const LeastPlan* const least = least_of(report);
  std::string text = fmt::format(
      "{}, {} exchange",
      least != nullptr ? "the least that it runs with" : "chunks as long as the largest parameter",
      told_exchange(report));
  if (least == nullptr || !least->fits()) return text;
  text +=
      fmt::format(", {} block{} of {} elements", least->candidate.rcache_blocks,
                  least->candidate.rcache_blocks == 1 ? "" : "s", people_count(least->chunk_numel));
  if (least->candidate.long_blocks > 0) {
    text +=
        fmt::format(" and {} of {}", least->candidate.long_blocks, people_count(least->long_numel));
  }
  for (const ReportRow& row : report.rows) {
    if (!row.largest_batch_on_device) continue;
    text += fmt::format("; its largest batch without activations in host memory is {}",
                        *row.largest_batch_on_device);
  }
  return text;
}

// "" if there are none.
std::string quantised_text(const EstimateReport& report) {
  std::string text;
  for (const QuantisedWeights& weights : report.options.quantised) {
    text += fmt::format("{} parameters are quantised, {}: {} tensor{} of {}.\n",
                        people_count(weights.params), weights.type, weights.tensors,
                        weights.tensors == 1 ? "" : "s", format_bytes(weights.bytes));
  }
  if (text.empty()) return text;
  return text + fmt::format(
                    "Elixir cannot train quantised weights. The figures are those of the same "
                    "model with all weights in {}: dequantise it first.\n",
                    compute_type_name(report.request.type));
}

// What the figures are of.
std::string foot(const EstimateReport& report) {
  const ReportOptions& options = report.options;
  const std::string sequences =
      fmt::format("sequences of {} tokens, activations {}", options.step.seq,
                  options.step.checkpoint_activations ? "checkpointed" : "kept");
  std::string text = "Model states, without activations.\n";
  if (report.activation_bytes.has_value()) {
    text = fmt::format("Model states. In addition, a step takes {} on each GPU: {} {}.\n",
                       format_bytes(*report.activation_bytes), options.step.batch, sequences);
  } else if (options.profiles != nullptr && report.u_allowed_bytes.has_value()) {
    text += fmt::format("The largest batch is per GPU, in {}.\n", sequences);
  }
  if (report.u_allowed_bytes.has_value()) {
    text += fmt::format(
        "A GPU of {} can hold {} of them: {:.0f} % of the rest, and at least {} stay free.\n",
        format_bytes(*report.request.gpu_memory_bytes), format_bytes(*report.u_allowed_bytes),
        100 * kAllocatedShare, format_bytes(kDeviceOverheadBytes));
  }
  const bool gpu_known = report.request.gpu_memory_bytes.has_value();
  const bool host_known = report.request.host_memory_bytes.has_value();
  if (gpu_known != host_known) {
    text +=
        fmt::format("The memory of the {} is not given: \"will it fit\" is about the {} alone.\n",
                    gpu_known ? "host" : "GPUs", gpu_known ? "GPUs" : "host");
  }
  text += quantised_text(report);
  text += fmt::format("elixir: {}. The largest parameter{} has {} elements.\n", elixir_text(report),
                      report.largest_assumed ? " (assumed)" : "",
                      people_count(report.request.largest_param));
  return wrapped(text, {}) + "\n";
}

}  // namespace

Result<const ModelProfile*> BatchProfiles::at(uint64_t batch) {
  const auto known = made_.find(batch);
  if (known != made_.end()) return &known->second;
  Result<ModelProfile> made = make_(batch);
  if (!made.ok()) return made.status();
  return &made_.emplace(batch, std::move(*made)).first->second;
}

Result<EstimateReport> make_report(const EstimateRequest& request, const ReportOptions& options) {
  ELIXIR_CHECK(check_request(request).ok(), "{}", check_request(request).message());
  EstimateReport report{.request = request, .options = options};
  report.largest_assumed = request.largest_param == 0;
  if (report.largest_assumed) report.request.largest_param = assumed_largest_param(request.params);
  ModelProfile step;  // that of no sequence where none is asked for
  if (options.step.batch > 0 && options.profiles != nullptr) {
    const Result<const ModelProfile*> profile = options.profiles->at(options.profiled_batch());
    if (!profile.ok()) return profile.status();
    step = **profile;
    report.activation_bytes = step.activation_bytes;
  }
  if (request.gpu_memory_bytes.has_value()) {
    const Machine machine = machine_of(request);
    report.u_allowed_bytes = allowed_bytes(machine, step);
    report.activations_short_bytes = activations_short(step, machine, *report.u_allowed_bytes);
  }
  for (const StateStrategy strategy : kStateStrategies) {
    Result<ReportRow> row = make_row(strategy, report);
    if (!row.ok()) return row.status();
    report.rows.push_back(*row);
  }
  if (options.zero) {
    report.zero =
        zero_arithmetic({.gpus = request.gpus,
                         .gpu_memory_bytes = request.gpu_memory_bytes.value_or(0),
                         .batch = static_cast<uint64_t>(std::max<int64_t>(options.step.batch, 0)),
                         .seq = static_cast<uint64_t>(options.step.seq),
                         .shape = options.zero_shape});
  }
  return report;
}

std::string to_json(const EstimateReport& report) {
  const EstimateRequest& request = report.request;
  OrderedJson json = {{"params", request.params}, {"gpus", request.gpus}};
  json["gpus_per_node"] = request.gpus_per_node;
  json["dtype"] = compute_type_name(request.type);
  if (!report.options.name.empty()) json["model"] = report.options.name;
  json["largest_param"] = request.largest_param;
  json["largest_param_assumed"] = report.largest_assumed;
  json["exchange"] = told_exchange(report);
  const ModelRequest& step = report.options.step;
  if (step.batch > 0) json["batch"] = step.batch;
  if (report.options.profiles != nullptr) {
    json["seq"] = step.seq;
    json["checkpoint_activations"] = step.checkpoint_activations;
  }
  if (report.activation_bytes.has_value()) json["activation_bytes"] = *report.activation_bytes;
  if (report.u_allowed_bytes.has_value()) json["u_allowed_bytes"] = *report.u_allowed_bytes;
  for (const QuantisedWeights& weights : report.options.quantised) {
    json["quantised"].push_back({{"type", weights.type},
                                 {"tensors", weights.tensors},
                                 {"params", weights.params},
                                 {"bytes", weights.bytes}});
    json["trainable"] = false;
  }
  for (const ReportRow& row : report.rows) json[strategy_name(row.strategy)] = row_of(row);
  if (report.zero) json["zero"] = OrderedJson::parse(to_json(*report.zero));
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace);
}

std::string to_text(const EstimateReport& report) {
  const EstimateRequest& request = report.request;
  std::string text =
      fmt::format("{}{} parameters, {}, {} GPU{}, {} in a node\n\n",
                  report.options.name.empty() ? "" : report.options.name + ": ",
                  people_count(request.params), compute_type_name(request.type), request.gpus,
                  request.gpus == 1 ? "" : "s", std::min(request.gpus, request.gpus_per_node));
  text += table_head(report);
  for (const ReportRow& row : report.rows) text += table_row(row, report);
  text += "\n" + foot(report);
  if (!report.zero) return text;
  const std::string zero = to_text(*report.zero, report.activation_bytes.value_or(0));
  return text + "\n" +
         (zero.empty() ? "ZeRO's arithmetic needs --gpu-memory, or --model and --batch.\n" : zero);
}

}  // namespace elixir::planner
