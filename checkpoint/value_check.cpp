#include "checkpoint/value_check.h"

#include <fmt/format.h>

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

Status check_counts(const std::string& folder, const std::string& tensor, const ValueCounts& counts,
                    ComputeType kept_as, size_t others) {
  if (counts.good()) return Status();
  const std::string more =
      others == 0 ? "" : fmt::format("; {} more tensors have such values", others);
  if (counts.not_finite > 0) {
    return error(Code::kBadInput,
                 "{}: '{:.200}' has {} values that are NaN or infinite{}; the training that wrote "
                 "them diverged, or the file is damaged: give an earlier checkpoint, or a new copy "
                 "of the model",
                 folder, tensor, counts.not_finite, more);
  }
  return error(Code::kBadInput,
               "{}: '{:.200}' has {} values beyond {:.6g}, the largest of {}{}; choose a type that "
               "holds them: --dtype bf16 or fp32 (Options::dtype)",
               folder, tensor, counts.too_large, largest_value(kept_as), compute_type_name(kept_as),
               more);
}

ValueFormat ValueCheck::counted_format(const LoadRange& range) const {
  const bool frozen = !wanted_[range.parameter].trained;
  if (frozen && range.dtype->name == dtype_of(kept_as_).name) return ValueFormat::kNone;
  return format_of(*range.dtype);
}

void ValueCheck::take(const LoadRange& range, std::span<const std::byte> bytes) {
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
  const std::string& name = plan.stored_names[first.first];
  return check_counts(folder.path,
                      first.second == StateKind::kParam
                          ? name
                          : fmt::format("state.{}.{}", name, state_name(first.second)),
                      counts, kept_as_, bad_.size() - 1);
}

}  // namespace elixir::checkpoints
