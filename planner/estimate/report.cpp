#include "planner/estimate/report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/units.h"
#include "planner/search/benefit.h"

namespace elixir::planner {
namespace {

using OrderedJson = nlohmann::ordered_json;

// On the line through one sequence and two.
uint64_t at_batch(uint64_t one, uint64_t two, uint64_t batch) {
  return one + (two > one ? two - one : 0) * (batch - 1);
}

// What one step of options.batch sequences needs beside model states; nothing when none is asked
// for.
ModelProfile step_bytes(const ReportOptions& options) {
  ModelProfile profile;
  if (options.batch_bytes.has_value() && options.batch.has_value()) {
    const BatchBytes& bytes = *options.batch_bytes;
    profile.activation_bytes = at_batch(bytes.activation_1, bytes.activation_2, *options.batch);
    profile.buffer_bytes = at_batch(bytes.buffer_1, bytes.buffer_2, *options.batch);
  }
  return profile;
}

ReportRow make_row(StateStrategy strategy, const EstimateReport& report) {
  const ReportOptions& options = report.options;
  ReportRow row{.strategy = strategy, .bytes = state_bytes(strategy, report.request)};
  const std::optional<uint64_t>& host_memory = report.request.host_memory_bytes;
  const bool host_holds = !host_memory.has_value() || row.bytes.host() <= *host_memory;
  const bool gpu_holds =
      !report.u_allowed_bytes.has_value() || row.bytes.gpu() <= *report.u_allowed_bytes;
  if (host_memory.has_value() || options.gpu_memory_bytes.has_value()) {
    row.fits = host_holds && gpu_holds;
  }
  if (options.gpu_memory_bytes.has_value() && options.batch_bytes.has_value()) {
    row.largest_batch =
        host_holds ? largest_batch(row.bytes.gpu(), *options.gpu_memory_bytes, *options.batch_bytes)
                   : 0;
  }
  return row;
}

OrderedJson kinds_of(const StateBytes& bytes) {
  return {{"gpu_params", bytes.gpu_params},           {"gpu_grads", bytes.gpu_grads},
          {"gpu_states", bytes.gpu_states},           {"gpu_rcache", bytes.gpu_rcache},
          {"gpu_grad_blocks", bytes.gpu_grad_blocks}, {"host_params", bytes.host_params},
          {"host_grads", bytes.host_grads},           {"host_states", bytes.host_states}};
}

OrderedJson row_of(const ReportRow& row) {
  OrderedJson json = {{"gpu_bytes", row.bytes.gpu()},
               {"host_bytes_per_node", row.bytes.host()},
               {"by_kind", kinds_of(row.bytes)}};
  if (row.fits.has_value()) json["fits"] = *row.fits;
  if (row.largest_batch.has_value()) json["largest_batch"] = *row.largest_batch;
  return json;
}

const char* exchange_name(const EstimateReport& report) {
  return estimated_exchange(report.request) == Exchange::kHost ? "host" : "collective";
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
  const uint64_t allowed = report.u_allowed_bytes.value_or(UINT64_MAX);
  if (row.bytes.gpu() > allowed) {
    return fmt::format("no: GPU {} short", format_bytes(row.bytes.gpu() - allowed));
  }
  return fmt::format("no: host {} short",
                     format_bytes(row.bytes.host() - *report.request.host_memory_bytes));
}

std::string table_row(const ReportRow& row, const EstimateReport& report) {
  // Less than a byte is shown of the one parameter whose size --params does not say.
  const bool epsilon = row.strategy == StateStrategy::kZero3Offload && row.bytes.gpu() == 0;
  std::string line = fmt::format("  {:<14}{:>12}{:>16}", strategy_name(row.strategy),
                                 epsilon ? "about 0" : bytes_or_dash(row.bytes.gpu()),
                                 bytes_or_dash(row.bytes.host()));
  if (row.largest_batch.has_value()) {
    line +=
        fmt::format("{:>15}", *row.largest_batch == 0 ? "-" : fmt::to_string(*row.largest_batch));
  }
  if (row.fits.has_value()) line += fmt::format("   {}", fits_text(row, report));
  return line + "\n";
}

std::string table_head(const EstimateReport& report) {
  const ReportRow& first = report.rows.front();
  std::string line = fmt::format("  {:<14}{:>12}{:>16}", "", "a GPU", "a node's host");
  if (first.largest_batch.has_value()) line += fmt::format("{:>15}", "largest batch");
  if (first.fits.has_value()) line += "   will it fit";
  return line + "\n";
}

// What the figures are of.
std::string foot(const EstimateReport& report) {
  const ReportOptions& options = report.options;
  const std::string sequences =
      fmt::format("sequences of {} tokens, activations {}", options.seq,
                  options.checkpoint_activations ? "checkpointed" : "kept");
  std::string text = "Model states, without activations.\n";
  if (report.activation_bytes.has_value()) {
    text = fmt::format("Model states. Beside them a step takes {} of a GPU: {} {}.\n",
                       format_bytes(*report.activation_bytes), *options.batch, sequences);
  } else if (options.batch_bytes.has_value()) {
    text += fmt::format("The largest batch: of a GPU, {}.\n", sequences);
  }
  if (report.u_allowed_bytes.has_value()) {
    text += fmt::format("A GPU of {} holds {} of them: {:.0f} % of what is left.\n",
                        format_bytes(*report.options.gpu_memory_bytes),
                        format_bytes(*report.u_allowed_bytes), 100 * kAllocatedShare);
  }
  text += fmt::format(
      "elixir: the least it runs with, {} exchange; the largest parameter{} has {} elements.\n",
      exchange_name(report), report.largest_assumed ? ", assumed," : "",
      people_count(report.request.largest_param));
  return text;
}

}  // namespace

EstimateReport make_report(const EstimateRequest& request, const ReportOptions& options) {
  EstimateReport report{.request = request, .options = options};
  report.largest_assumed = request.largest_param == 0;
  const ModelProfile step = step_bytes(options);
  if (step.activation_bytes > 0) report.activation_bytes = step.activation_bytes;
  if (options.gpu_memory_bytes.has_value()) {
    Machine machine;
    machine.gpu_memory_bytes = *options.gpu_memory_bytes;
    report.u_allowed_bytes = allowed_bytes(machine, step);
  }
  for (StateStrategy strategy : kStateStrategies) report.rows.push_back(make_row(strategy, report));
  // Only now: ZeRO-3's epsilon is not made of an assumption.
  if (report.largest_assumed) report.request.largest_param = assumed_largest_param(request.params);
  return report;
}

std::string to_json(const EstimateReport& report) {
  const EstimateRequest& request = report.request;
  OrderedJson json = {{"params", request.params}, {"gpus", request.gpus}};
  json["gpus_per_node"] = request.gpus_per_node;
  json["dtype"] = compute_type_name(request.type);
  if (!report.options.model.empty()) json["model"] = report.options.model;
  json["largest_param"] = request.largest_param;
  json["largest_param_assumed"] = report.largest_assumed;
  json["exchange"] = exchange_name(report);
  if (report.options.batch.has_value()) json["batch"] = *report.options.batch;
  if (report.options.batch_bytes.has_value()) {
    json["seq"] = report.options.seq;
    json["checkpoint_activations"] = report.options.checkpoint_activations;
  }
  if (report.activation_bytes.has_value()) json["activation_bytes"] = *report.activation_bytes;
  if (report.u_allowed_bytes.has_value()) json["u_allowed_bytes"] = *report.u_allowed_bytes;
  for (const ReportRow& row : report.rows) json[strategy_name(row.strategy)] = row_of(row);
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace);
}

std::string to_text(const EstimateReport& report) {
  const EstimateRequest& request = report.request;
  std::string text =
      fmt::format("{}{} parameters, {}, {} GPU{}, {} in a node\n\n",
                  report.options.model.empty() ? "" : report.options.model + ": ",
                  people_count(request.params), compute_type_name(request.type), request.gpus,
                  request.gpus == 1 ? "" : "s", std::min(request.gpus, request.gpus_per_node));
  text += table_head(report);
  for (const ReportRow& row : report.rows) text += table_row(row, report);
  return text + "\n" + foot(report);
}

}  // namespace elixir::planner
