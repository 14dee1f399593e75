#include "client/trace/trace_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <iterator>

#include "base/check.h"
#include "base/clock.h"

namespace elixir {
namespace {

constexpr size_t kBufferBytes = 64 << 10;
constexpr size_t kMostEventBytes = 4096;
constexpr size_t kMostNameBytes = 256;

// Kineto, which writes the traces of torch's profiler, counts from the beginning of the quarter of
// a year of 365.2425 days, so that a double holds nanoseconds (its ChromeTraceBaseTime).
constexpr int64_t kQuarterNs = int64_t{7'889'238} * 1'000'000'000;

// Thread ids that no thread has.
constexpr int64_t kFirstTid = 1'000'000'000;
constexpr int64_t kUnknownPid = 1'000'000'000;

constexpr const char* kRowNames[] = {"compute", "H2D", "D2H", "gather", "reduce"};

int64_t realtime_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

// Of a few tries that which took the least time.
int64_t epoch_offset_ns() {
  int64_t offset_ns = 0, least_ns = INT64_MAX;
  for (int i = 0; i < 10; ++i) {
    const int64_t before_ns = monotonic_ns(), epoch_ns = realtime_ns(), after_ns = monotonic_ns();
    if (after_ns - before_ns >= least_ns) continue;
    least_ns = after_ns - before_ns;
    offset_ns = epoch_ns - before_ns - least_ns / 2;
  }
  return offset_ns;
}

// A JSON string. What is not ASCII becomes '?': the file is valid whatever a name holds.
void append_string(std::string& text, std::string_view value) {
  text += '"';
  for (const char c : value.substr(0, kMostNameBytes)) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      text += '\\';
      text += c;
    } else if (byte < 0x20) {
      fmt::format_to(std::back_inserter(text), "\\u{:04x}", byte);
    } else {
      text += byte < 0x7f ? c : '?';
    }
  }
  text += '"';
}

// Microseconds. REQUIRES: ns >= 0.
void append_us(std::string& text, int64_t ns) {
  ELIXIR_CHECK(ns >= 0, "{} ns", ns);
  fmt::format_to(std::back_inserter(text), "{}.{:03}", ns / 1000, ns % 1000);
}

Status file_failure(const char* what, const std::string& path, int number) {
  return error(
      Code::kInvalidArgument,
      "cannot {} the trace {}: {}; give --trace a file in a folder that can be written and "
      "has room",
      what, path, std::strerror(number));
}

}  // namespace

Result<std::unique_ptr<TraceWriter>> TraceWriter::open(const TraceOptions& options) {
  UniqueFd file(::open(options.path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file.valid()) return file_failure("open", options.path, errno);
  std::unique_ptr<TraceWriter> writer(new TraceWriter(std::move(file), options));
  writer->begin_file();
  return writer;
}

TraceWriter::TraceWriter(UniqueFd file, const TraceOptions& options)
    : options_(options),
      trainer_pid_(::getpid()),
      elixird_pid_(options.elixird_pid == 0 ? kUnknownPid : options.elixird_pid),
      base_ns_(realtime_ns() / kQuarterNs * kQuarterNs),
      to_epoch_ns_(epoch_offset_ns()),
      file_(std::move(file)) {
  text_.reserve(kBufferBytes);
}

TraceWriter::~TraceWriter() { (void)close(); }

// Several ranks may be put into one trace: their updates are threads of one elixird.
void TraceWriter::begin_file() {
  const MutexLock lock(mutex_);
  fmt::format_to(std::back_inserter(text_),
                 "{{\"displayTimeUnit\": \"ms\", \"baseTimeNanoseconds\": {}, \"traceEvents\": [",
                 base_ns_);
  name_row("process_name", trainer_pid_, 0, fmt::format("trainer, rank {}", options_.rank));
  for (size_t row = 0; row < std::size(kRowNames); ++row) {
    name_row("thread_name", trainer_pid_, kFirstTid + static_cast<int64_t>(row), kRowNames[row]);
  }
  name_row("process_name", elixird_pid_, 0, "elixird");
  name_row("thread_name", elixird_pid_, kFirstTid + options_.rank,
           fmt::format("update, rank {}", options_.rank));
}

void TraceWriter::begin_event() {
  if (text_.size() + kMostEventBytes > kBufferBytes) flush();
  text_ += first_event_ ? "\n" : ",\n";
  first_event_ = false;
}

void TraceWriter::name_row(const char* kind, int64_t pid, int64_t tid, std::string_view name) {
  begin_event();
  fmt::format_to(
      std::back_inserter(text_),
      "{{\"ph\": \"M\", \"name\": \"{}\", \"pid\": {}, \"tid\": {}, \"args\": {{\"name\": ", kind,
      pid, tid);
  append_string(text_, name);
  text_ += "}}";
}

void TraceWriter::span(TraceRow row, const char* name, int64_t begin_ns, int64_t end_ns,
                       const TraceArgs& args) {
  const bool of_elixird = row == TraceRow::kUpdate;
  const int64_t pid = of_elixird ? elixird_pid_ : trainer_pid_;
  const int64_t tid = kFirstTid + (of_elixird ? options_.rank : static_cast<int64_t>(row));
  const int64_t at_ns = std::max<int64_t>(0, begin_ns + to_epoch_ns_ - base_ns_);
  const MutexLock lock(mutex_);
  if (!file_.valid() || !failure_.ok()) return;
  begin_event();
  const auto out = std::back_inserter(text_);
  fmt::format_to(
      out, "{{\"ph\": \"X\", \"cat\": \"elixir\", \"pid\": {}, \"tid\": {}, \"name\": ", pid, tid);
  append_string(text_, name);
  text_ += ", \"ts\": ";
  append_us(text_, at_ns);
  text_ += ", \"dur\": ";
  append_us(text_, std::max<int64_t>(0, end_ns - begin_ns));
  text_ += ", \"args\": {";
  const char* separator = "";
  const auto argument = [&](const char* key, auto value) {
    fmt::format_to(out, "{}\"{}\": {}", separator, key, value);
    separator = ", ";
  };
  if (args.step >= 0) argument("step", args.step);
  if (args.chunk >= 0) argument("chunk", args.chunk);
  if (args.bytes > 0) argument("bytes", args.bytes);
  text_ += "}}";
}

void TraceWriter::flush() {
  std::string_view left = text_;
  while (!left.empty() && failure_.ok()) {
    const ssize_t written = ::write(file_.get(), left.data(), left.size());
    if (written >= 0) {
      left.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      failure_ = file_failure("write", options_.path, errno);
    }
  }
  text_.clear();
}

Status TraceWriter::close() {
  const MutexLock lock(mutex_);
  if (!file_.valid()) return failure_;
  text_ += "\n]}\n";
  flush();
  if (::close(file_.release()) != 0 && failure_.ok()) {  // where a file system writes late
    failure_ = file_failure("write", options_.path, errno);
  }
  return failure_;
}

}  // namespace elixir
