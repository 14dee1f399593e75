#include "client/step/step_trace.h"

#include <utility>

#include "base/enum_names.h"
#include "base/log.h"
#include "base/throw_error.h"
#include "client/session/session.h"

namespace elixir {
namespace {

constexpr EnumName<Stream> kWork[] = {{"operators", Stream::kCompute},
                                      {"copies up", Stream::kUpload},
                                      {"copies down", Stream::kDownload},
                                      {"all-gather", Stream::kGather},
                                      {"reduce-scatter", Stream::kReduce}};

}  // namespace

StepTrace::StepTrace(const std::string& path, uint32_t rank, Device& device) : device_(device) {
  TraceOptions options;
  options.path = rank == 0 ? path : fmt::format("{}.{}", path, rank);
  options.rank = rank;
  writer_ = value_or_throw(TraceWriter::open(options));
  device.keep_spans();
}

StepTrace::~StepTrace() {
  try {
    write(device_.take_spans());
  } catch (const std::exception& failure) {
    log_warn("trace", "text=\"{}\"", failure.what());
  }
  const Status status = writer_->close();
  if (!status.ok()) log_warn("trace", "text=\"{}\"", status.message());
}

void StepTrace::add_compute(int64_t begin_ns, int64_t end_ns) {
  constexpr int64_t kLeastNs = 1000;  // less cannot be seen
  if (end_ns - begin_ns < kLeastNs) return;
  compute_.push_back({Stream::kCompute, begin_ns, end_ns, 0});
}

void StepTrace::end_step(uint32_t step, const Session& session) {
  step_ = step;
  write(std::exchange(compute_, {}));
  write(device_.take_spans());
  add_updates(session);
}

void StepTrace::write(const std::vector<StreamSpan>& spans) {
  for (const StreamSpan& span : spans) {
    writer_->span(trace_row(span.stream), name_in(kWork, span.stream), span.begin_ns, span.end_ns,
                  {.step = step_, .bytes = span.bytes});
  }
}

void StepTrace::add_updates(const Session& session) {
  update_end_ns_.resize(session.shape().n_chunks, 0);
  for (uint32_t chunk = 0; chunk < session.shape().n_chunks; ++chunk) {
    const uint32_t step = session.param_step(chunk);  // before the times, which were stored first
    const Session::UpdateTimes times = session.update_times(chunk);
    if (times.end_ns == update_end_ns_[chunk]) continue;
    update_end_ns_[chunk] = times.end_ns;
    writer_->span(TraceRow::kUpdate, "update", static_cast<int64_t>(times.begin_ns),
                  static_cast<int64_t>(times.end_ns), {.step = step, .chunk = chunk});
  }
}

}  // namespace elixir
