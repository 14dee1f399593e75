#pragma once

// Rejects weights and states with which training cannot begin: values that are not finite, or that
// the compute type cannot hold.

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "base/compute_type.h"
#include "base/finite.h"
#include "base/mutex.h"
#include "base/status.h"
#include "checkpoint/load_plan.h"

namespace elixir::checkpoints {

ValueFormat format_of(const Dtype& dtype);
// Knows exp_avg_sq by its name: it has no negative values.
ValueFormat format_of(const StoredTensor& tensor);

// Reads Adam's count of steps of each parameter, "state.<parameter>.step". kBadInput: one is not a
// whole number of 0 or more. (A resumed run takes the manifest's counts; a wrong count here is a
// sign of damage.)
Status check_update_counts(const StoredFolder& folder);

// kBadInput for counts that are not good(). The message names the tensor, the number of its bad
// values, what is wrong with them, and the remedy. `others`: how many more tensors have such
// values.
Status check_counts(const std::string& folder, const std::string& tensor, const ValueCounts& counts,
                    ComputeType kept_as, size_t others = 0);

// Counts values on their way to another sink. Frozen parameters that are stored in the compute type
// are not counted, because their bits are kept as they are.
class ValueCheck final : public StateSink {
 public:
  // `wanted` and `inner` must outlive it.
  ValueCheck(std::span<const WantedParameter> wanted, ComputeType kept_as, StateSink& inner)
      : wanted_(wanted), kept_as_(kept_as), inner_(inner) {}

  void take(const LoadRange& range, std::span<const std::byte> bytes) override;

  // Calls check_counts() for the first bad one of the wanted parameters. Call it once all is read.
  Status status(const StoredFolder& folder, const LoadPlan& plan) const;

 private:
  ValueFormat counted_format(const LoadRange& range) const;

  const std::span<const WantedParameter> wanted_;
  const ComputeType kept_as_;
  StateSink& inner_;
  mutable Mutex mutex_;
  // By parameter and array; only those that are not good.
  std::map<std::pair<uint32_t, StateKind>, ValueCounts> bad_ ELIXIR_GUARDED_BY(mutex_);
};

}  // namespace elixir::checkpoints
