#include "checkpoint/value_check.h"

#include <fmt/format.h>

#include <cmath>

#include "base/check.h"
#include "base/compute_type_names.h"

namespace elixir::checkpoints {

ValueFormat format_of(const Dtype& dtype) {
  constexpr std::pair<std::string_view, ValueFormat> kFormats[] = {{"BF16", ValueFormat::kBf16},
                                                                   {"F16", ValueFormat::kFp16},
                                                                   {"F32", ValueFormat::kFp32},
                                                                   {"F64", ValueFormat::kFp64}};
  for (const auto& [name, format] : kFormats) {
    if (name == dtype.name) return format;
  }
  return ValueFormat::kNone;
}

namespace {

constexpr float kMostUpdates = 0x1p53f;  // as the manifest's

// "1 value that is", "2 values that are".
std::string values_that_are(uint64_t count) {
  return count == 1 ? "1 value that is" : fmt::format("{} values that are", count);
}

bool is_square(const std::string& tensor) { return tensor.ends_with(".exp_avg_sq"); }

// The type that holds what `kept_as` cannot.
const char* larger_types(ComputeType kept_as) {
  switch (kept_as) {
    case ComputeType::kFp16:
      return "choose a type that holds them: --dtype bf16 or fp32 (Options::dtype)";
    case ComputeType::kBf16:
      return "choose a type that can hold them: --dtype fp32 (Options::dtype)";
    case ComputeType::kFp32:
      break;
  }
  return "no type that trains holds them: give another copy of the model";
}

}  // namespace

ValueFormat format_of(const StoredTensor& tensor) {
  const ValueFormat format = format_of(*tensor.dtype);
  const bool square = format == ValueFormat::kFp32 && is_square(tensor.name);
  return square ? ValueFormat::kFp32Square : format;
}

Status check_update_counts(const StoredFolder& folder) {
  for (const StoredTensor& tensor : folder.optimizer) {
    if (!tensor.name.ends_with(".step")) continue;
    if (tensor.dtype->name != "F32" || !tensor.shape.empty()) {
      return error(Code::kBadInput, "{}: one F32 value is needed", folder.place_of(tensor));
    }
    float count = 0;
    const Status read = read_bytes(folder.files[tensor.file].fd.get(), tensor.offset,
                                   std::as_writable_bytes(std::span(&count, 1)));
    if (!read.ok()) return error(read.code(), "{}: {}", folder.place_of(tensor), read.message());
    if (count >= 0 && count <= kMostUpdates && count == std::floor(count)) continue;
    return error(Code::kBadInput,
                 "{}: it is {:.6g}, but a count of steps is a whole number of 0 or more; the file "
                 "is damaged: give an earlier checkpoint",
                 folder.place_of(tensor), count);
  }
  return Status();
}

Status check_counts(const std::string& folder, const std::string& tensor, const ValueCounts& counts,
                    ComputeType kept_as, size_t others) {
  if (counts.good()) return Status();
  const std::string more = others == 0 ? ""
                                       : fmt::format("; {} more {} such values", others,
                                                     others == 1 ? "tensor has" : "tensors have");
  if (counts.not_finite > 0) {
    return error(Code::kBadInput,
                 "{}: '{:.200}' has {} {}{}; the training that wrote it diverged, or the file is "
                 "damaged: give an earlier checkpoint, or a new copy of the model",
                 folder, tensor, values_that_are(counts.not_finite),
                 is_square(tensor) ? "NaN, infinite or negative" : "NaN or infinite", more);
  }
  return error(Code::kBadInput, "{}: '{:.200}' has {} beyond {:.6g}, the largest of {}{}; {}",
               folder, tensor, values_that_are(counts.too_large), largest_value(kept_as),
               compute_type_name(kept_as), more, larger_types(kept_as));
}

ValueFormat ValueCheck::counted_format(const LoadRange& range) const {
  if (range.kind == StateKind::kExpAvgSq) return ValueFormat::kFp32Square;
  const bool frozen = !wanted_[range.parameter].trained;
  if (frozen && range.dtype->name == dtype_of(kept_as_).name) return ValueFormat::kNone;
  return format_of(*range.dtype);
}

void ValueCheck::take(const LoadRange& range, std::span<const std::byte> bytes) {
  ELIXIR_CHECK(range.parameter < wanted_.size(), "parameter {} of {}", range.parameter,
               wanted_.size());
  const bool moment = range.kind == StateKind::kExpAvg || range.kind == StateKind::kExpAvgSq;
  const ValueCounts counts =
      count_values(counted_format(range), bytes.first(range.numel * range.dtype->bytes),
                   moment ? ComputeType::kFp32 : kept_as_);
  if (!counts.good()) {
    const MutexLock lock(mutex_);
    bad_[{range.parameter, range.kind}] += counts;
  }
  inner_.take(range, bytes);
}

Status ValueCheck::status(const StoredFolder& folder, const LoadPlan& plan) const {
  const MutexLock lock(mutex_);
  if (bad_.empty()) return Status();
  const auto& [first, counts] = *bad_.begin();
  const std::string& stored = plan.stored_names[first.first];
  const std::string& name = stored.empty() ? wanted_[first.first].name : stored;
  return check_counts(folder.path,
                      first.second == StateKind::kParam
                          ? name
                          : fmt::format("state.{}.{}", name, state_name(first.second)),
                      counts, kept_as_, bad_.size() - 1);
}

}  // namespace elixir::checkpoints
