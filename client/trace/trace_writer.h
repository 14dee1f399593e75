#pragma once

// Writes a trace that chrome://tracing and Perfetto open. It shows a trainer's streams and
// elixird's updates of its chunks over time. It consists of complete events in the Chrome trace
// event format (JSON; "Trace Event Format", the Chromium project).
//
// The times in the file count from its "baseTimeNanoseconds" on the Unix epoch's clock. A trace of
// torch's profiler has the same base. So you can put the "traceEvents" of both files, and those of
// several ranks, into one list and get one trace.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/fd.h"
#include "base/mutex.h"
#include "base/status.h"
#include "client/device/stream.h"

namespace elixir {

// One line of the picture: the first five are threads of the trainer, the last one of elixird.
enum class TraceRow : uint8_t { kCompute, kUpload, kDownload, kGather, kReduce, kUpdate };

inline TraceRow trace_row(Stream stream) { return static_cast<TraceRow>(stream); }
static_assert(static_cast<int>(TraceRow::kCompute) == static_cast<int>(Stream::kCompute) &&
              static_cast<int>(TraceRow::kUpload) == static_cast<int>(Stream::kUpload) &&
              static_cast<int>(TraceRow::kDownload) == static_cast<int>(Stream::kDownload) &&
              static_cast<int>(TraceRow::kGather) == static_cast<int>(Stream::kGather) &&
              static_cast<int>(TraceRow::kReduce) == static_cast<int>(Stream::kReduce));

// An event's arguments. Negative values and zero bytes are left out.
struct TraceArgs {
  int64_t step = -1;
  int64_t chunk = -1;
  uint64_t bytes = 0;
};

struct TraceOptions {
  std::string path;
  uint32_t rank = 0;
  int64_t elixird_pid = 0;  // 0: not known
};

// Any thread may call it. Holds at most 64 KiB, which go to the file when they are full.
class TraceWriter {
 public:
  // Replaces the file. Returns kInvalidArgument, with the path and the cause, if the file cannot be
  // written.
  static Result<std::unique_ptr<TraceWriter>> open(const TraceOptions& options);
  ~TraceWriter();  // closes the file; the status of close() is lost
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  // Times are of CLOCK_MONOTONIC; an end before the begin counts as the begin. Events may come in
  // any order. After a write that failed, and after close(), nothing more is written.
  void span(TraceRow row, const char* name, int64_t begin_ns, int64_t end_ns,
            const TraceArgs& args = {});

  // Ends the file. Every call returns the error of the first write that failed.
  Status close();

 private:
  TraceWriter(UniqueFd file, const TraceOptions& options);
  void begin_file();
  void name_row(const char* kind, int64_t pid, int64_t tid, std::string_view name)
      ELIXIR_REQUIRES(mutex_);
  void begin_event() ELIXIR_REQUIRES(mutex_);
  void flush() ELIXIR_REQUIRES(mutex_);

  // constant
  const TraceOptions options_;
  const int64_t trainer_pid_, elixird_pid_;
  const int64_t base_ns_;      // the base of the file's times, on the Unix epoch's clock
  const int64_t to_epoch_ns_;  // CLOCK_REALTIME - CLOCK_MONOTONIC at the start

  Mutex mutex_;
  UniqueFd file_ ELIXIR_GUARDED_BY(mutex_);  // none: closed
  std::string text_ ELIXIR_GUARDED_BY(mutex_);
  bool first_event_ ELIXIR_GUARDED_BY(mutex_) = true;
  Status failure_ ELIXIR_GUARDED_BY(mutex_);
};

}  // namespace elixir
