#include "tests/fake_cuda/counters.h"

#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/fake_cuda/device_memory.h"
#include "tests/fake_cuda/races.h"
#include "tests/fake_cuda/runtime.h"
#include "tests/fake_cuda/settings.h"

namespace fake_cuda {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kKindNames[kWorkKinds] = {"kernels", "elixir_kernels", "gemms", "h2d", "d2h",
                                                "d2d",     "memsets",        "other"};

Json json_of(const CountAndBytes& counter) {
  return {{"count", counter.count}, {"bytes", counter.bytes}};
}

Json devices_json() {
  Json devices = Json::array();
  for (const auto& [device, made] : runtime().contexts) {
    const DeviceMemory& memory = memory_of(device);
    devices.push_back({{"device", device},
                       {"contexts", made ? 1 : 0},
                       {"peak_bytes", memory.peak_bytes()},
                       {"used_bytes", memory.used_bytes()},
                       {"mallocs", memory.allocations()},
                       {"frees", memory.frees()},
                       {"failures", memory.failures()}});
  }
  return devices;
}

// The stream that torch computes on, unless it is told otherwise.
bool is_default(int stream) {
  for (const auto& [device, default_stream] : runtime().default_streams) {
    if (default_stream != nullptr && default_stream->number == stream) return true;
  }
  return false;
}

Json stream_json(const Stream& stream) {
  const StreamCounters& counters = stream.counters;
  Json json = {{"stream", stream.number},
               {"device", stream.device},
               {"default", is_default(stream.number)},
               {"first_ns", counters.first_ns},
               {"last_ns", counters.last_ns}};
  Json works = Json::object(), busy = Json::object();
  for (int kind = 0; kind < kWorkKinds; ++kind) {
    if (counters.works[kind] == 0) continue;
    works[kKindNames[kind]] = counters.works[kind];
    busy[kKindNames[kind]] = counters.busy_ns[kind];
  }
  json["works"] = works;
  json["busy_ns"] = busy;
  json["event_records"] = counters.event_records;
  json["event_waits"] = counters.event_waits;
  return json;
}

// Of streams that anything was enqueued on: torch makes dozens that stay empty.
Json streams_json() {
  Json streams = Json::array();
  for (const auto& stream : runtime().streams) {
    const StreamCounters& counters = stream->counters;
    if (stream->works + counters.event_records + counters.event_waits == 0) continue;
    streams.push_back(stream_json(*stream));
  }
  return streams;
}

Json copies_json(const Counters& counters) {
  Json copies = Json::array();
  for (const auto& [key, counter] : counters.copies) {
    const auto& [direction, kind, size, stream] = key;
    copies.push_back({{"direction", direction},
                      {"memory", kind},
                      {"size", size},
                      {"stream", stream},
                      {"count", counter.count},
                      {"bytes", counter.bytes}});
  }
  return copies;
}

Json waits_json(const Counters& counters) {
  Json waits = Json::array();
  for (const auto& [key, count] : counters.host_waits) {
    waits.push_back({{"call", key.first},
                     {"stream", key.second},
                     {"default", is_default(key.second)},
                     {"count", count}});
  }
  return waits;
}

// "%p" in the name stands for the process' number.
std::string report_path() {
  std::string path = settings().report;
  const size_t at = path.find("%p");
  if (at != std::string::npos) path.replace(at, 2, std::to_string(getpid()));
  return path;
}

Json counters_json() {
  const Counters& counters = runtime().counters;
  return {{"pid", getpid()},
          {"host_ns", runtime().enqueuers.now_ns},
          {"devices", devices_json()},
          {"streams", streams_json()},
          {"launches", counters.launches},
          {"copies", copies_json(counters)},
          {"bad_copies", counters.bad_copies},
          {"host_waits", waits_json(counters)},
          {"registered", json_of(counters.registered)},
          {"refused", json_of(counters.refused)},
          {"private_files", json_of(counters.private_files)},
          {"calls", counters.calls},
          {"counts", counters.counts},
          {"injected_error", static_cast<int>(runtime().injected)},
          {"races", races_found()},
          {"race_list", races_json()}};
}

}  // namespace

const char* size_class(size_t bytes) {
  if (bytes < (size_t{4} << 10)) return "<4K";
  if (bytes < (size_t{64} << 10)) return "<64K";
  if (bytes < (size_t{1} << 20)) return "<1M";
  if (bytes < (size_t{16} << 20)) return "<16M";
  return bytes < (size_t{256} << 20) ? "<256M" : ">=256M";
}

void Counters::count_copy(const char* direction, bool pinned, size_t bytes, int stream) {
  CountAndBytes& copy =
      copies[{direction, pinned ? "pinned" : "pageable", size_class(bytes), stream}];
  ++copy.count;
  copy.bytes += bytes;
}

void write_report() {
  if (settings().report.empty() || runtime().counters.calls.empty()) return;
  std::ofstream file(report_path());
  file << counters_json().dump(1) << '\n';
}

}  // namespace fake_cuda
