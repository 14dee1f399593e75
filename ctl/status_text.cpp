#include "ctl/status_text.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "base/units.h"
#include "base/wrapped.h"

namespace elixir::ctl {
namespace {

using Json = nlohmann::json;

const Json& field(const Json& object, const char* name) {
  static const Json kNothing;
  if (!object.is_object()) return kNothing;
  const auto place = object.find(name);
  return place == object.end() ? kNothing : *place;
}

// A number as `format` wants it, times `scale`; "-" for anything else.
std::string number(const Json& value, const char* format = "{:.0f}", double scale = 1) {
  if (!value.is_number() || !std::isfinite(value.get<double>())) return "-";
  return fmt::format(fmt::runtime(format), value.get<double>() * scale);
}

std::string bytes(const Json& value) {
  const double count = value.is_number() ? value.get<double>() : -1;
  return count >= 0 && count < 1e18 ? format_bytes(static_cast<uint64_t>(count)) : "-";
}

std::string text(const Json& value) {
  if (!value.is_string()) return value.is_number() ? number(value) : "-";
  std::string result = value.get<std::string>();
  for (char& c : result) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = '?';
  }
  return result;
}

// "1, 2" of an array; "0: 4, 1: 4" of an object; a lone number as it is.
std::string list(const Json& value) {
  if (!value.is_structured()) return text(value);
  std::string result;
  for (const auto& [key, entry] : value.items()) {
    if (!result.empty()) result += ", ";
    if (value.is_object()) result += text(Json(key)) + ": ";
    result += text(entry);
  }
  return result.empty() ? "-" : result;
}

std::string by_node(const Json& value) {
  if (!value.is_array()) return list(value);
  Json object = Json::object();  // an array: by place
  for (size_t node = 0; node < value.size(); ++node) object[std::to_string(node)] = value[node];
  return list(object);
}

std::string duration(const Json& seconds) {
  const double value = seconds.is_number() ? seconds.get<double>() : -1;
  if (!(value >= 0 && value < 1e12)) return "-";
  const auto whole = static_cast<int64_t>(value);
  if (whole < 60) return fmt::format("{} s", whole);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole / 60 % 60);
}

std::string percent(const Json& fraction) { return number(fraction, "{:.1f} %", 100); }

void line(std::string* out, const char* name, const std::string& value) {
  *out += labelled(fmt::format("  {}", name), value, 16);
}

// Those that compete for them in capital letters.
std::string processors(const Json& daemon) {
  std::string result = number(field(daemon, "processors"));
  const Json& others = field(daemon, "shares_processors_with");
  if (!others.is_array()) return result;
  for (const Json& other : others) {
    result += fmt::format("; SHARED: {} of them with elixird pid {}",
                          number(field(other, "processors")), number(field(other, "pid")));
  }
  return result;
}

// Others disturbed the measurement, or an update moved more: then it is a lower bound.
std::string bandwidth(const Json& daemon) {
  const Json& gb_s = field(daemon, "bandwidth_gb_s");
  if (gb_s.is_number() && gb_s.get<double>() == 0) return "not measured";
  const Json& basis = field(daemon, "bandwidth_basis");
  if (basis == "disturbed") {
    return number(gb_s, "at least {:.1f} GB/s in place: measured beside other work") +
           "; measured again once the machine is idle";
  }
  if (basis == "update") {
    return number(gb_s, "at least {:.1f} GB/s in place: an update moved more than was measured");
  }
  return number(gb_s, "{:.1f} GB/s in place, measured");
}

std::string fraction_of_bandwidth(const Json& job) {
  constexpr const char* kName = "update_fraction_of_bandwidth";
  if (job.contains(kName) && job[kName].is_null()) return "in the processors' caches";
  return percent(field(job, kName)) + " of the measured bandwidth";
}

void daemon_block(std::string* out, const Json& daemon) {
  *out += fmt::format("elixird {}, pid {}, up {}\n", text(field(daemon, "version")),
                      number(field(daemon, "pid")), duration(field(daemon, "uptime_s")));
  const Json& launch = field(daemon, "launch");
  line(out, "serves",
       launch == "" ? "all launches that find or name it" : "launch " + text(launch));
  line(out, "folder", text(field(daemon, "runtime_dir")));
  line(out, "charged to", "cgroup " + text(field(daemon, "memory_group")));
  line(out, "processors", processors(daemon));
  line(out, "threads", by_node(field(daemon, "threads_by_node")) + " (NUMA node: threads)");
  line(out, "pages", bytes(field(daemon, "page_bytes")));
  line(out, "bandwidth", bandwidth(daemon));
}

std::string host_memory(const Json& job) {
  const Json& kinds = field(job, "bytes_by_kind");
  const Json& filling = field(job, "filling_bytes");
  if (filling.is_number() && filling > 0) {
    return fmt::format("being reserved: {} of {}", bytes(filling), bytes(field(job, "need_bytes")));
  }
  std::string result = fmt::format(
      "{}, {} bytes a parameter (control {}, grads {}, params {}, state {}, sums {}, swing {})",
      bytes(field(job, "host_bytes")), number(field(job, "host_bytes_per_param"), "{:.2f}"),
      bytes(field(kinds, "control")), bytes(field(kinds, "grads")), bytes(field(kinds, "params")),
      bytes(field(kinds, "state")), bytes(field(kinds, "sums")), bytes(field(kinds, "swing")));
  const Json& activations = field(job, "activation_bytes");
  if (activations.is_number() && activations > 0) {
    result += fmt::format("; activations {}, of the trainers", bytes(activations));
  }
  const Json& swapped = field(job, "swapped_bytes");
  if (swapped.is_number() && swapped > 0) {
    result += fmt::format("; SLOW UPDATES: {} are swapped out (ulimit -l unlimited for elixird)",
                          bytes(swapped));
  }
  const Json& elsewhere = field(job, "off_node_bytes");
  if (elsewhere.is_number() && elsewhere > 0) {
    result += fmt::format("; SLOW UPDATES: {} lie on another NUMA node than their threads",
                          bytes(elsewhere));
  }
  return result;
}

std::string device(const Json& job) {
  std::string result = bytes(field(job, "device_bytes"));
  const Json& pageable = field(job, "pageable_bytes");
  if (pageable.is_number() && pageable.get<double>() > 0) {
    result += fmt::format(
        "; SLOW COPIES: {} of host memory could not be page-locked (elixirctl doctor tells why)",
        bytes(pageable));
  }
  return result;
}

// Nothing before the first save.
void saves_line(std::string* out, const Json& saves) {
  if (!saves.is_object()) return;
  std::string result =
      fmt::format("{} published, {} failed, {} dropped", number(field(saves, "published")),
                  number(field(saves, "failed")), number(field(saves, "dropped")));
  const Json &done = field(saves, "done_bytes"), &all = field(saves, "bytes");
  if (all.is_number() && all.get<double>() > 0) {
    const double part = done.is_number() ? done.get<double>() / all.get<double>() : 0;
    result += fmt::format("; step {} under way, {}", number(field(saves, "step")), percent(part));
  } else {
    result += fmt::format("; last that of step {}", number(field(saves, "step")));
  }
  result += fmt::format("; last {} s, stall {} ms", number(field(saves, "write_s_last"), "{:.1f}"),
                        number(field(saves, "stall_ms_last"), "{:.1f}"));
  const Json& failure = field(saves, "error_last");
  if (failure.is_string() && !failure.get_ref<const std::string&>().empty()) {
    result += fmt::format("; LAST FAILURE: {}", text(failure));
  }
  line(out, "saves", result);
}

// A line each: nothing where nobody waits.
void waiting_lines(std::string* out, const Json& waits) {
  constexpr size_t kMostLines = 8;
  if (!waits.is_array()) return;
  for (size_t i = 0; i < std::min(waits.size(), kMostLines); ++i) {
    line(out, i == 0 ? "waiting" : "",
         fmt::format("rank {} for {}, {}", number(field(waits[i], "rank")),
                     text(field(waits[i], "for")), duration(field(waits[i], "since_s"))));
  }
  if (waits.size() > kMostLines)
    line(out, "", fmt::format("and {} more", waits.size() - kMostLines));
}

void job_block(std::string* out, const Json& job) {
  *out += fmt::format("\njob {} ({}), {}\n", text(field(job, "job")), text(field(job, "id")),
                      text(field(job, "state")));
  line(out, "ranks",
       fmt::format("{} of {} here (pids {}), {} exchange", list(field(job, "ranks")),
                   list(field(job, "world_size")), list(field(job, "pids")),
                   text(field(job, "exchange"))));
  waiting_lines(out, field(job, "waiting"));
  line(out, "chunks",
       fmt::format("{} of {} elements, {} placed on the GPU, {}, {} waste",
                   number(field(job, "chunks")), number(field(job, "chunk_numel")),
                   number(field(job, "gpu_chunks")), text(field(job, "dtype")),
                   percent(field(job, "waste_ratio"))));
  line(out, "parameters", number(field(job, "params"), "{:.2f} M", 1e-6));
  line(out, "host memory", host_memory(job));
  line(out, "device", device(job));
  line(out, "steps done",
       fmt::format("{}, loss {}, queue depth {}", number(field(job, "steps_done")),
                   number(field(job, "loss_last_step"), "{:.4f}"),
                   number(field(job, "queue_depth"))));
  line(out, "update",
       fmt::format("{} Mparam/s now, {} mean, {}", number(field(job, "update_mparam_s"), "{:.1f}"),
                   number(field(job, "update_mparam_s_mean"), "{:.1f}"),
                   fraction_of_bandwidth(job)));
  if (const Json& slots = field(job, "spare_slots"); slots.is_number() && slots.get<double>() > 0) {
    line(out, "early updates",
         fmt::format("{} of {} chunks in the last step, {} of them stood; {} of {} in all",
                     number(field(job, "early_chunks_last_step")), number(field(job, "chunks")),
                     number(field(job, "early_hits_last_step")), number(field(job, "early_hits")),
                     number(field(job, "early_chunks"))));
  }
  if (const Json& swing = field(job, "swing_chunks"); swing.is_number() && swing > 0) {
    line(out, "swing chunks",
         fmt::format("{} of {}, updated on the device by its trainers, beside the update above",
                     number(swing), number(field(job, "chunks"))));
  }
  line(out, "last step",
       fmt::format(
           "{} gathers, {} evictions, {} to the device, {} from it",
           number(field(job, "gathers_last_step")), number(field(job, "evictions_last_step")),
           bytes(field(job, "h2d_bytes_last_step")), bytes(field(job, "d2h_bytes_last_step"))));
  line(out, "times",
       fmt::format(
           "{} ms, {} exposed, {} up, {} down, {} update", number(field(job, "step_ms"), "{:.1f}"),
           number(field(job, "exposed_ms"), "{:.1f}"), number(field(job, "h2d_ms"), "{:.1f}"),
           number(field(job, "d2h_ms"), "{:.1f}"), number(field(job, "update_ms"), "{:.1f}")));
  for (const char* name : {"lost_doorbells", "late_wakes"}) {
    const Json& count = field(job, name);
    if (!count.is_number() || count.get<double>() <= 0) continue;
    line(out, "SLOW",
         fmt::format("{} {}: docs/elixird.md says what they cost", number(count), name));
  }
  line(out, "gradients",
       fmt::format("norm {}, scaled by {}, {} steps applied, {} skipped",
                   number(field(job, "grad_norm"), "{:.4g}"),
                   number(field(job, "grad_scale"), "{:.4g}"), number(field(job, "applied")),
                   number(field(job, "skipped"))));
  saves_line(out, field(job, "checkpoints"));
}

}  // namespace

std::string status_text(std::string_view answer) {
  const Json status = Json::parse(answer, nullptr, /*allow_exceptions=*/false);
  std::string out;
  daemon_block(&out, field(status, "daemon"));
  const Json& jobs = field(status, "jobs");
  if (!jobs.is_array() || jobs.empty()) return out + "\nno jobs\n";
  for (const Json& job : jobs) job_block(&out, job);
  return out;
}

}  // namespace elixir::ctl
