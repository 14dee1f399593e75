#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/device/device.h"
#include "client/trace/trace_writer.h"

namespace elixir {

class Session;

// Writes Options::trace, step by step: operators between two stalls, copies (also of swing chunks),
// collectives, and elixird's update of each chunk. Owned by the thread that steps.
class StepTrace {
 public:
  // Several ranks: rank 0 writes `path`, rank r `path`.r. Throws when the file cannot be written.
  StepTrace(const std::string& path, uint32_t rank, Device& device);
  // Writes the device's spans since the last step was posted. If a write failed, the log says
  // which.
  ~StepTrace();

  // Adds a span of operators without a stall, on a device that runs them when they are called.
  // (Other devices report it themselves: Device::take_spans.)
  void add_compute(int64_t begin_ns, int64_t end_ns);

  // Call it when the step is about to be posted. Writes all that is known about the step, and about
  // updates since the last call.
  void end_step(uint32_t step, const Session& session);

 private:
  void write(const std::vector<StreamSpan>& spans);
  void add_updates(const Session& session);

  Device& device_;
  std::unique_ptr<TraceWriter> writer_;
  uint32_t step_ = 0;                    // the last one
  std::vector<StreamSpan> compute_;      // spans of the current step
  std::vector<uint64_t> update_end_ns_;  // by chunk: end of the last update that was written
};

}  // namespace elixir
