#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/clock.h"
#include "base/compute_type_names.h"
#include "base/host_memory.h"
#include "base/processors.h"
#include "base/version.h"
#include "daemon/daemon.h"
#include "daemon/waits.h"
#include "shm/layout.h"
#include "shm/shape.h"

namespace elixir::daemon {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kRequestsAtOnce = 16;
// JSON values allocate in their destructors, which only the reserve can help.
constexpr std::string_view kNoMemory =
    R"({"error":"elixird has no memory left for an answer: ask again later"})";
constexpr int64_t kRecentNs = 50'000'000;

// Bytes that one parameter's update reads and writes in host memory: gradients of all ranks, or
// their FP32 sum, the states, the parameter. Passes over gradients before the update are not in it.
double cpu_bytes_per_param(const Job& job) {
  const shm::Shape& shape = job.options().shape;
  const double n = shape.shard_gradients();
  const double element = static_cast<double>(element_bytes(shape.type));
  const double grads = job.has_sums() ? sizeof(float) : n * element;
  return (shape.type == ComputeType::kFp16 ? 26 : 24) + grads;
}

double mparam_s(uint64_t numel, int64_t ns) {
  return ns > 0 ? static_cast<double>(numel) * 1e3 / static_cast<double>(ns) : 0;
}

// The greatest over ranks: ranks run the same plan, so as a rule they are equal.
uint64_t greatest(const JobStatistics& statistics, uint64_t shm::StepRecord::*field) {
  uint64_t value = 0;
  for (const shm::StepRecord& record : statistics.records_last) {
    value = std::max(value, record.*field);
  }
  return value;
}

// Of the node: each rank has its own.
uint64_t sum_of(const JobStatistics& statistics, uint64_t shm::StepRecord::*field) {
  uint64_t value = 0;
  for (const shm::StepRecord& record : statistics.records_last) value += record.*field;
  return value;
}

double mean_ms(const JobStatistics& statistics, uint64_t shm::StepRecord::*field_ns) {
  double sum_ns = 0;
  for (const shm::StepRecord& record : statistics.records_last) {
    sum_ns += static_cast<double>(record.*field_ns);
  }
  const auto ranks = static_cast<double>(std::max<size_t>(1, statistics.records_last.size()));
  return sum_ns / ranks * 1e-6;
}

Json bytes_by_kind(const Job& job) {
  uint64_t control = 0, grads = 0, params = 0, state = 0, sums = 0, swing = 0;
  for (const auto& session : job.sessions()) {
    if (session == nullptr || session->memory == nullptr) continue;
    control += session->memory->control().bytes();
    grads += session->memory->grads().bytes();
    params += session->memory->params().bytes();
    state += session->memory->state().bytes();
    if (job.has_sums()) sums += session->memory->sums().bytes();
    if (session->memory->swing() != nullptr) swing += session->memory->swing()->bytes();
  }
  return {{"control", control}, {"grads", grads}, {"params", params},
          {"state", state},     {"sums", sums},   {"swing", swing}};
}

// Of its ranks' memory that is there; null where the system does not tell.
template <typename Bytes>
Json sum_of_memories(const Job& job, Bytes bytes) {
  uint64_t sum = 0;
  for (const auto& session : job.sessions()) {
    if (session == nullptr || session->memory == nullptr) continue;
    const std::optional<uint64_t> of_rank = bytes(*session->memory);
    if (!of_rank) return nullptr;
    sum += *of_rank;
  }
  return sum;
}

Json nodes_of_ranks(const Job& job) {
  Json nodes = Json::array();
  for (const auto& session : job.sessions()) {
    nodes.push_back(session == nullptr ? Json() : Json(session->memory_node));
  }
  return nodes;
}

Json pids_json(const Job& job) {
  Json pids = Json::array();
  for (const auto& session : job.sessions()) {
    if (session != nullptr) pids.push_back(session->pid);
  }
  return pids;
}

Json waits_json(const Job& job) {
  Json waits = Json::array();
  for (const RankWait& wait : waits_of(job)) {
    waits.push_back(
        {{"rank", wait.rank}, {"for", wait.for_what}, {"since_s", seconds_since(wait.since_ns)}});
  }
  return waits;
}

// Null before the first save.
Json saves_json(const Job& job) {
  const SaveStatistics& saves = job.saves();
  const Saving* const now = job.saving();
  if (now == nullptr && saves.published + saves.failed + saves.dropped == 0) return nullptr;
  return {{"published", saves.published},
          {"failed", saves.failed},
          {"dropped", saves.dropped},
          {"step", now != nullptr ? now->manifest.step : saves.step_last},
          {"done_bytes", now != nullptr ? now->done_bytes.load(std::memory_order_relaxed) : 0},
          {"bytes", now != nullptr ? now->bytes.load(std::memory_order_relaxed) : 0},
          {"stall_ms_last", saves.stall_ms_last},
          {"write_s_last", saves.write_s_last},
          {"error_last", saves.error_last}};
}

void add_early_updates(const Job& job, Json* json) {
  const JobStatistics& statistics = job.statistics();
  (*json)["spare_slots"] = job.options().shape.n_spare_slots;
  (*json)["early_chunks_last_step"] = statistics.early_chunks_last;
  (*json)["early_hits_last_step"] = statistics.early_hits_last;
  (*json)["early_chunks"] = statistics.early_chunks_sum;
  (*json)["early_hits"] = statistics.early_hits_sum;
}

// What the last step's update moved.
double update_gb_s(const Job& job) {
  const JobStatistics& statistics = job.statistics();
  return mparam_s(statistics.updated_numel_last, statistics.update_ns_last) * 1e-3 *
         cpu_bytes_per_param(job);
}

Json job_json(const Job& job, const BandwidthWatch& bandwidth) {
  const shm::Shape& shape = job.options().shape;
  const JobStatistics& statistics = job.statistics();
  const double numel = static_cast<double>(job.numel());
  const double slots =
      static_cast<double>(shape.total_chunks()) * static_cast<double>(shape.chunk_numel);
  const double rate = mparam_s(statistics.updated_numel_last, statistics.update_ns_last);
  const double rate_mean = mparam_s(statistics.updated_numel_sum, statistics.update_ns_sum);
  Json json;
  json["id"] = job.options().id;
  json["job"] = job.options().name;
  json["state"] = job_phase_name(job.phase());
  json["waiting"] = waits_json(job);
  json["ranks"] = job.local_ranks();
  json["world_size"] = shape.ranks;
  json["exchange"] = shm::exchange_name(shape.exchange);
  json["pids"] = pids_json(job);
  json["dtype"] = compute_type_name(shape.type);
  json["params"] = job.numel();
  json["chunks"] = shape.all_chunks();
  json["frozen_chunks"] = shape.n_frozen_chunks;
  json["gpu_chunks"] = shape.n_gpu_chunks;
  json["chunk_numel"] = shape.chunk_numel;
  json["waste_ratio"] = (slots - numel) / numel;
  json["host_bytes"] = job.reserved_bytes();
  json["filling_bytes"] = job.filling_bytes();
  json["need_bytes"] = job.need_bytes();
  json["save_bytes"] = job.save_memory().bytes;
  json["host_bytes_per_param"] = static_cast<double>(job.reserved_bytes()) / numel;
  json["bytes_by_kind"] = bytes_by_kind(job);
  json["locked_bytes"] = sum_of_memories(
      job, [](const SessionMemory& memory) { return std::optional(memory.locked_bytes()); });
  json["swapped_bytes"] =
      sum_of_memories(job, [](const SessionMemory& memory) { return memory.swapped_bytes(); });
  json["numa_nodes"] = nodes_of_ranks(job);
  json["off_node_bytes"] =
      sum_of_memories(job, [](const SessionMemory& memory) { return memory.off_node_bytes(); });
  json["steps_done"] = job.machine().finished_step();
  json["update_mparam_s"] = rate;
  json["update_mparam_s_mean"] = rate_mean;
  const std::optional<double> share = bandwidth.share_of(update_gb_s(job));
  json["update_fraction_of_bandwidth"] = share ? Json(*share) : Json();
  json["queue_depth"] = job.step_in_hand() ? job.work()->chunks_left() : 0;
  json["gathers_last_step"] = greatest(statistics, &shm::StepRecord::gathers);
  json["evictions_last_step"] = greatest(statistics, &shm::StepRecord::evictions);
  json["h2d_bytes_last_step"] = greatest(statistics, &shm::StepRecord::h2d_bytes);
  json["d2h_bytes_last_step"] = greatest(statistics, &shm::StepRecord::d2h_bytes);
  json["device_bytes"] = greatest(statistics, &shm::StepRecord::device_bytes);
  json["pageable_bytes"] = greatest(statistics, &shm::StepRecord::pageable_bytes);
  json["activation_bytes"] = sum_of(statistics, &shm::StepRecord::activation_bytes);
  json["d2d_bytes"] = greatest(statistics, &shm::StepRecord::d2d_bytes);
  add_early_updates(job, &json);
  json["swing_chunks"] = shape.n_swing_chunks;
  json["update_ms"] = static_cast<double>(statistics.update_ns_last) * 1e-6;
  json["step_ms"] = mean_ms(statistics, &shm::StepRecord::step_ns);
  json["exposed_ms"] = mean_ms(statistics, &shm::StepRecord::exposed_ns);
  json["h2d_ms"] = mean_ms(statistics, &shm::StepRecord::h2d_ns);
  json["d2h_ms"] = mean_ms(statistics, &shm::StepRecord::d2h_ns);
  json["grad_norm"] = statistics.verdict_last.grad_norm;  // null: not asked for, or not finite
  json["grad_scale"] = statistics.verdict_last.grad_scale;
  json["applied"] = statistics.steps - statistics.skipped;
  json["skipped"] = statistics.skipped;
  json["lost_doorbells"] = job.lost_doorbells();
  json["late_wakes"] = greatest(statistics, &shm::StepRecord::late_wakes);
  json["loss_last_step"] = statistics.metric_mean_last;
  if (const Json saves = saves_json(job); !saves.is_null()) json["checkpoints"] = saves;
  return json;
}

}  // namespace

std::string Daemon::status_json() const {
  Json threads = Json::object();
  for (const NodeThreads& group : pool_->groups()) {
    threads[std::to_string(group.node)] = group.threads;
  }
  uint64_t lost_doorbells = lost_doorbells_;
  for (const auto& [id, job] : jobs_) lost_doorbells += job->lost_doorbells();
  Json shared = Json::array();
  for (const Neighbour& one : neighbours_) {
    shared.push_back({{"pid", one.pid}, {"processors", one.processors}});
  }
  Json json;
  json["daemon"] = {{"pid", ::getpid()},
                    {"version", kVersion},
                    {"layout_version", shm::kLayoutVersion},
                    {"runtime_dir", folder_.path},
                    {"launch", config_.launch},
                    {"memory_group", memory_group()},
                    {"processors", usable_processors().size()},
                    {"shares_processors_with", std::move(shared)},
                    {"uptime_s", seconds_since(start_ns_)},
                    {"threads_by_node", std::move(threads)},
                    {"page_bytes", page_bytes_},
                    {"bandwidth_gb_s", bandwidth_.gb_s()},
                    {"bandwidth_basis", name_in(kBasisNames, bandwidth_.basis())},
                    {"lost_doorbells", lost_doorbells},
                    {"times_without_memory", times_without_memory()}};
  json["jobs"] = Json::array();
  for (const auto& [id, job] : jobs_) json["jobs"].push_back(job_json(*job, bandwidth_));
  // A peer's text (a job's name) may be no UTF-8.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void Daemon::note_bandwidths() {
  for (const auto& [id, job] : jobs_) {
    const auto numel = static_cast<double>(job->statistics().updated_numel_last);
    bandwidth_.moved(update_gb_s(*job), numel * cpu_bytes_per_param(*job));
  }
}

// Who asks in a loop gets what the one before got, while nothing has happened to a job.
const std::string& Daemon::recent_status() {
  const int64_t now_ns = monotonic_ns();
  if (document_.empty() || now_ns - document_ns_ > kRecentNs) {
    note_bandwidths();
    look_for_neighbours_while_idle(now_ns);
    document_ = status_json();
    document_ns_ = now_ns;
  }
  return document_;
}

void Daemon::drain_status() {
  // Who asks after seeing a step finished gets it counted. The pool's wake-up is on its way.
  const bool about_to_be_counted = std::any_of(jobs_.begin(), jobs_.end(), [](const auto& entry) {
    const Job& job = *entry.second;
    return job.step_in_hand() && job.work_in_hand() && job.work()->chunks_left() == 0;
  });
  if (about_to_be_counted) return;
  for (int left = kRequestsAtOnce;; --left) {
    if (left == 0) {
      messages_left_ = true;
      return;
    }
    const RouterMessage* const request = status_router_->receive();
    if (request == nullptr) return;
    const bool known = request->well_formed && request->body == "status";
    if (known) note_brought(request->connection, Brought::kRequest);
    std::string_view answer =
        R"({"error":"unknown request; the one frame 'status' is understood"})";
    const auto send = [&] {
      // A peer that has gone does not want it any more.
      [[maybe_unused]] const Status sent = status_router_->send(
          request->routing_id, request->empty_delimiter, std::as_bytes(std::span(answer)));
    };
    try {
      if (known && has_heap_reserve()) {
        answer = recent_status();
      } else if (known) {
        answer = kNoMemory;
      }
      send();
    } catch (const std::bad_alloc&) {
      note_no_memory();
      document_.clear();
      answer = kNoMemory;
      contain(send);
    }
  }
}

}  // namespace elixir::daemon
