#include "daemon/step_check.h"

#include <bit>
#include <cmath>
#include <cstddef>
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

// The update computes in floats.
constexpr double kGreatest = std::numeric_limits<float>::max();

std::string check_ranges(std::span<const NamedValue> values) {
  for (const NamedValue& value : values) {
    if (!value.in_range) {
      return fmt::format("{} is {}; it must be {}", value.name, value.value, value.range);
    }
  }
  return "";
}

// Those of Adam and AdamW.
std::string check_group(const shm::ParamGroupRecord& group) {
  const double lr = group.lr, weight_decay = group.weight_decay;
  const double beta1 = group.hyper[kBeta1], beta2 = group.hyper[kBeta2], eps = group.hyper[kEps];
  const NamedValue values[] = {
      {"lr", lr, lr >= 0 && lr <= kGreatest, "at least 0"},
      {"weight_decay", weight_decay, weight_decay >= 0 && weight_decay <= kGreatest, "at least 0"},
      {"beta1", beta1, beta1 >= 0 && beta1 < 1, "in [0, 1)"},
      {"beta2", beta2, beta2 >= 0 && beta2 < 1, "in [0, 1)"},
      // 0 is torch's, too; what a float rounds to 0 would be another number than was asked for.
      {"eps", eps, eps == 0 || (static_cast<float>(eps) > 0 && eps <= kGreatest),
       "0, or at least 1e-45"},
  };
  return check_ranges(values);
}

std::string check_groups(const shm::StepRecord& record) {
  if (record.n_groups == 0 || record.n_groups > shm::kMaxParamGroups) {
    return fmt::format("n_groups is {}; it must be 1 to {}", record.n_groups, shm::kMaxParamGroups);
  }
  const UpdateRuleTraits& traits = traits_of(static_cast<UpdateRule>(record.rule));
  for (uint32_t group = 0; group < record.n_groups; ++group) {
    std::string text = check_group(record.groups[group]);
    for (uint32_t i = traits.n_hyper; i < kMaxHyper && text.empty(); ++i) {
      const double value = record.groups[group].hyper[i];
      if (value == 0) continue;
      text = fmt::format("hyper[{}] is {}; update rule {} has {} values, others are 0", i, value,
                         traits.name, traits.n_hyper);
    }
    if (!text.empty()) return fmt::format("{} (group {})", text, group);
  }
  return "";
}

std::string check_rule(const shm::StepRecord& record, uint32_t n_moments) {
  const auto rule = static_cast<UpdateRule>(record.rule);
  if (!known_rule(rule)) return fmt::format("update rule {} is not known", record.rule);
  const UpdateRuleTraits& traits = traits_of(rule);
  if (traits.n_moments == n_moments) return "";
  return fmt::format("update rule {} has {} moments; the job attached with {}", traits.name,
                     traits.n_moments, n_moments);
}

std::string check_values(const shm::StepRecord& record) {
  const NamedValue values[] = {
      {"grad_scale", record.grad_scale, std::abs(record.grad_scale) <= kGreatest, "finite"},
      {"clip_norm", record.clip_norm, record.clip_norm >= 0 && record.clip_norm <= kGreatest,
       "finite and at least 0"},
  };
  if (std::string text = check_ranges(values); !text.empty()) return text;
  if (record.check_finite > 1) {
    return fmt::format("check_finite is {}; it must be 0 or 1", record.check_finite);
  }
  return "";
}

bool same_bits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

// The first that differs, with both values.
std::string name_difference(const shm::StepRecord& mine, const shm::StepRecord& other) {
  const struct {
    const char* name;
    double mine, other;
  } pairs[] = {
      {"update rule", double(mine.rule), double(other.rule)},
      {"grad_scale", mine.grad_scale, other.grad_scale},
      {"clip_norm", mine.clip_norm, other.clip_norm},
      {"check_finite", double(mine.check_finite), double(other.check_finite)},
      {"n_groups", double(mine.n_groups), double(other.n_groups)},
  };
  for (const auto& pair : pairs) {
    if (!same_bits(pair.mine, pair.other)) {
      return fmt::format("{} is {}, not {}", pair.name, pair.mine, pair.other);
    }
  }
  const UpdateRuleTraits& traits = traits_of(static_cast<UpdateRule>(mine.rule));
  for (uint32_t group = 0; group < shm::kMaxParamGroups; ++group) {
    const shm::ParamGroupRecord &a = mine.groups[group], &b = other.groups[group];
    const auto text = [&](const char* name, double value, double others) {
      return fmt::format("{} of group {} is {}, not {}", name, group, value, others);
    };
    if (!same_bits(a.lr, b.lr)) return text("lr", a.lr, b.lr);
    if (!same_bits(a.weight_decay, b.weight_decay)) {
      return text("weight_decay", a.weight_decay, b.weight_decay);
    }
    for (uint32_t i = 0; i < traits.n_hyper; ++i) {
      if (!same_bits(a.hyper[i], b.hyper[i])) return text(traits.hyper[i], a.hyper[i], b.hyper[i]);
    }
  }
  return "something differs";
}

}  // namespace

bool same_hyperparameters(const shm::StepRecord& a, const shm::StepRecord& b) {
  const std::span<const std::byte> mine = shm::hyperparameters_of(a);
  return std::memcmp(mine.data(), shm::hyperparameters_of(b).data(), mine.size()) == 0;
}

StepViolation check_step_records(std::span<const shm::StepRecord> records, uint32_t step,
                                 uint32_t n_moments) {
  for (uint32_t rank = 0; rank < records.size(); ++rank) {
    const shm::StepRecord& record = records[rank];
    if (record.step != step) {
      return {rank, fmt::format("the record of step {} says step {}", step, record.step)};
    }
    std::string text = check_rule(record, n_moments);
    if (text.empty()) text = check_values(record);
    if (text.empty()) text = check_groups(record);
    if (!text.empty()) return {rank, fmt::format("step {}: {}", step, text)};
    if (!same_hyperparameters(record, records[0])) {
      return {rank, fmt::format("step {}: {} as on rank 0: give every rank the same "
                                "hyperparameters",
                                step, name_difference(record, records[0]))};
    }
  }
  return {};
}

StepViolation check_immediate(std::span<const shm::StepRecord> records,
                              const shm::StepRecord* open) {
  for (uint32_t rank = 0; rank < records.size(); ++rank) {
    const shm::StepRecord& record = records[rank];
    if (verdict_terms(record).needs_norm()) {
      return {rank, fmt::format("step {}: clip_norm is {}, check_finite {}: with immediate updates "
                                "both must be 0, since either needs the whole gradient; attach "
                                "with early or deferred updates",
                                record.step, record.clip_norm, record.check_finite)};
    }
    if (open != nullptr && !same_hyperparameters(record, *open)) {
      return {rank, fmt::format("step {}: {} as when the step was opened, and chunks have been "
                                "updated since: hyperparameters of immediate updates cannot change "
                                "within a step",
                                record.step, name_difference(record, *open))};
    }
  }
  return {};
}

StepViolation check_equal_norms(std::span<const shm::StepRecord> records) {
  for (uint32_t rank = 1; rank < records.size(); ++rank) {
    const NormSum &mine = records[rank].norm, &first = records[0].norm;
    if (std::memcmp(&mine, &first, sizeof mine) != 0) {
      return {rank, fmt::format("step {}: the squares of all gradients add up to {:.17g} ({} not "
                                "finite), on the node's first rank to {:.17g} ({}): with the "
                                "collective exchange they are the same on all",
                                records[rank].step, to_double(mine), mine.nonfinite,
                                to_double(first), first.nonfinite)};
    }
  }
  return {};
}

optim::AdamOptions adam_options(const shm::StepRecord& record, uint32_t group) {
  ELIXIR_CHECK(group < record.n_groups, "group {} of {}", group, record.n_groups);
  optim::AdamOptions options;
  options.lr = record.groups[group].lr;
  options.beta1 = record.groups[group].hyper[kBeta1];
  options.beta2 = record.groups[group].hyper[kBeta2];
  options.eps = record.groups[group].hyper[kEps];
  options.weight_decay = record.groups[group].weight_decay;
  options.rule = static_cast<UpdateRule>(record.rule);
  return options;
}

optim::VerdictTerms verdict_terms(const shm::StepRecord& record) {
  return {.grad_scale = record.grad_scale,
          .clip_norm = record.clip_norm,
          .check_finite = record.check_finite != 0};
}

double mean_metric(std::span<const shm::StepRecord> records) {
  ELIXIR_CHECK(!records.empty(), "the mean of no rank");
  double sum = 0;
  for (const shm::StepRecord& record : records) sum += record.metric;
  return sum / static_cast<double>(records.size());
}

}  // namespace elixir::daemon
