#include "daemon/step_check.h"

#include <cmath>
#include <cstring>
#include <limits>

namespace elixir::daemon {
namespace {

struct NamedValue {
  const char* name;
  double value;
  bool in_range;  // false for NaN: every comparison with it fails
  const char* range;
};

std::string check_values(const shm::StepRecord& record) {
  const double greatest = std::numeric_limits<double>::max();
  const NamedValue values[] = {
      {"lr", record.lr, record.lr >= 0 && record.lr <= greatest, "at least 0"},
      {"beta1", record.beta1, record.beta1 >= 0 && record.beta1 < 1, "in [0, 1)"},
      {"beta2", record.beta2, record.beta2 >= 0 && record.beta2 < 1, "in [0, 1)"},
      {"eps", record.eps, record.eps > 0 && record.eps <= greatest, "greater than 0"},
      {"weight_decay", record.weight_decay,
       record.weight_decay >= 0 && record.weight_decay <= greatest, "at least 0"},
      {"grad_scale", record.grad_scale, std::abs(record.grad_scale) <= greatest, "finite"},
  };
  for (const NamedValue& value : values) {
    if (!value.in_range) {
      return fmt::format("{} is {}; it must be {}", value.name, value.value, value.range);
    }
  }
  if (record.decoupled > 1) {
    return fmt::format("decoupled is {}; it must be 0 or 1", record.decoupled);
  }
  return "";
}

bool same_bits(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

std::string compare(const shm::StepRecord& mine, const shm::StepRecord& first) {
  const struct {
    const char* name;
    double mine, first;
  } pairs[] = {
      {"lr", mine.lr, first.lr},
      {"beta1", mine.beta1, first.beta1},
      {"beta2", mine.beta2, first.beta2},
      {"eps", mine.eps, first.eps},
      {"weight_decay", mine.weight_decay, first.weight_decay},
      {"grad_scale", mine.grad_scale, first.grad_scale},
      {"decoupled", static_cast<double>(mine.decoupled), static_cast<double>(first.decoupled)},
  };
  for (const auto& pair : pairs) {
    if (!same_bits(pair.mine, pair.first)) {
      return fmt::format("{} is {}, rank 0 has {}: give every rank the same hyperparameters",
                         pair.name, pair.mine, pair.first);
    }
  }
  return "";
}

}  // namespace

StepViolation check_step_records(std::span<const shm::StepRecord> records, uint32_t step) {
  for (uint32_t rank = 0; rank < records.size(); ++rank) {
    const shm::StepRecord& record = records[rank];
    if (record.step != step) {
      return {rank, fmt::format("the record of step {} says step {}", step, record.step)};
    }
    if (std::string text = check_values(record); !text.empty()) {
      return {rank, fmt::format("step {}: {}", step, text)};
    }
    if (std::string text = compare(record, records[0]); !text.empty()) {
      return {rank, fmt::format("step {}: {}", step, text)};
    }
  }
  return {};
}

optim::AdamOptions adam_options(const shm::StepRecord& record) {
  optim::AdamOptions options;
  options.lr = record.lr;
  options.beta1 = record.beta1;
  options.beta2 = record.beta2;
  options.eps = record.eps;
  options.weight_decay = record.weight_decay;
  options.decoupled = record.decoupled != 0;
  return options;
}

double mean_metric(std::span<const shm::StepRecord> records) {
  double sum = 0;
  for (const shm::StepRecord& record : records) sum += record.metric;
  return sum / static_cast<double>(records.size());
}

}  // namespace elixir::daemon
