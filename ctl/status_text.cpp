#include "ctl/status_text.h"

#include <fmt/core.h>

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "base/units.h"

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
  *out += fmt::format("  {:<12} {}\n", name, value);
}

void daemon_block(std::string* out, const Json& daemon) {
  *out += fmt::format("elixird {}, pid {}, up {}\n", text(field(daemon, "version")),
                      number(field(daemon, "pid")), duration(field(daemon, "uptime_s")));
  line(out, "threads", by_node(field(daemon, "threads_by_node")) + " (NUMA node: threads)");
  line(out, "pages", bytes(field(daemon, "page_bytes")));
  const Json& bandwidth = field(daemon, "bandwidth_gb_s");
  line(out, "bandwidth",
       bandwidth.is_number() && bandwidth.get<double>() == 0
           ? "not measured"
           : number(bandwidth, "{:.1f} GB/s in place, measured"));
}

std::string host_memory(const Json& session) {
  const Json& kinds = field(session, "bytes_by_kind");
  const Json& filling = field(session, "filling_bytes");
  if (filling.is_number() && filling > 0) {
    return fmt::format("being reserved: {} of {}", bytes(filling),
                       bytes(field(session, "need_bytes")));
  }
  return fmt::format(
      "{}, {} bytes a parameter (control {}, grads {}, params {}, state {}, peer {})",
      bytes(field(session, "host_bytes")), number(field(session, "host_bytes_per_param"), "{:.2f}"),
      bytes(field(kinds, "control")), bytes(field(kinds, "grads")), bytes(field(kinds, "params")),
      bytes(field(kinds, "state")), bytes(field(kinds, "peer")));
}

std::string device(const Json& session) {
  std::string result = bytes(field(session, "device_bytes"));
  const Json& pageable = field(session, "pageable_bytes");
  if (pageable.is_number() && pageable.get<double>() > 0) {
    result += fmt::format(
        "; SLOW COPIES: {} of host memory could not be page-locked (elixirctl doctor tells why)",
        bytes(pageable));
  }
  return result;
}

void session_block(std::string* out, const Json& session) {
  *out += fmt::format("\nsession {}, job {}, {}\n", text(field(session, "id")),
                      text(field(session, "job")), text(field(session, "state")));
  line(out, "ranks",
       fmt::format("{} of {} here (pids {}), {} exchange", list(field(session, "ranks")),
                   list(field(session, "world_size")), list(field(session, "pids")),
                   text(field(session, "exchange"))));
  line(out, "chunks",
       fmt::format("{} of {} elements, {} of home gpu, {}, {} waste",
                   number(field(session, "chunks")), number(field(session, "chunk_numel")),
                   number(field(session, "gpu_chunks")), text(field(session, "dtype")),
                   percent(field(session, "waste_ratio"))));
  line(out, "parameters", number(field(session, "params"), "{:.2f} M", 1e-6));
  line(out, "host memory", host_memory(session));
  line(out, "device", device(session));
  line(out, "steps done",
       fmt::format("{}, loss {}, queue depth {}", number(field(session, "steps_done")),
                   number(field(session, "loss_last_step"), "{:.4f}"),
                   number(field(session, "queue_depth"))));
  line(out, "update",
       fmt::format("{} Mparam/s now, {} mean, {} of the measured bandwidth",
                   number(field(session, "update_mparam_s"), "{:.1f}"),
                   number(field(session, "update_mparam_s_mean"), "{:.1f}"),
                   percent(field(session, "update_fraction_of_bandwidth"))));
  line(out, "last step",
       fmt::format("{} gathers, {} evictions, {} to the device, {} from it",
                   number(field(session, "gathers_last_step")),
                   number(field(session, "evictions_last_step")),
                   bytes(field(session, "h2d_bytes_last_step")),
                   bytes(field(session, "d2h_bytes_last_step"))));
  line(out, "times",
       fmt::format("{} ms, {} exposed, {} up, {} down, {} update",
                   number(field(session, "step_ms"), "{:.1f}"),
                   number(field(session, "exposed_ms"), "{:.1f}"),
                   number(field(session, "h2d_ms"), "{:.1f}"),
                   number(field(session, "d2h_ms"), "{:.1f}"),
                   number(field(session, "update_ms"), "{:.1f}")));
  line(out, "gradients",
       fmt::format("norm {}, scaled by {}, {} steps applied, {} skipped",
                   number(field(session, "grad_norm"), "{:.4g}"),
                   number(field(session, "grad_scale"), "{:.4g}"),
                   number(field(session, "applied")), number(field(session, "skipped"))));
}

}  // namespace

std::string status_text(std::string_view answer) {
  const Json status = Json::parse(answer, nullptr, /*allow_exceptions=*/false);
  std::string out;
  daemon_block(&out, field(status, "daemon"));
  const Json& sessions = field(status, "sessions");
  if (!sessions.is_array() || sessions.empty()) return out + "\nno sessions\n";
  for (const Json& session : sessions) session_block(&out, session);
  return out;
}

}  // namespace elixir::ctl
