#include "planner/profile.h"

#include <algorithm>
#include <numeric>
#include <unordered_set>

#include "base/check.h"

namespace elixir::planner {
namespace {

Status check_params(const ModelProfile& profile) {
  if (profile.params.empty()) return error(Code::kBadInput, "the profile has no params");
  std::unordered_set<std::string> names;
  for (size_t i = 0; i < profile.params.size(); ++i) {
    const ProfiledParameter& param = profile.params[i];
    if (param.name.empty()) return error(Code::kBadInput, "params[{}] has no name", i);
    if (!names.insert(param.name).second) {
      return error(Code::kBadInput, "params[{}]: the name '{}' stands twice", i, param.name);
    }
    if (param.numel == 0 || param.numel > kMaxParameterNumel) {
      return error(Code::kBadInput, "params[{}] ('{}') has {} elements; 1 to {} are possible", i,
                   param.name, param.numel, kMaxParameterNumel);
    }
  }
  return Status();
}

Status check_steps(const ModelProfile& profile) {
  if (profile.steps.empty()) {
    return error(Code::kBadInput, "the profile has no steps: which operator reads which params?");
  }
  for (size_t i = 0; i < profile.steps.size(); ++i) {
    for (const uint32_t param : profile.steps[i]) {
      if (param < profile.params.size()) continue;
      return error(Code::kBadInput,
                   "steps[{}] names parameter {}, which is unknown: there are params 0 to {}", i,
                   param, profile.params.size() - 1);
    }
  }
  return Status();
}

Status check_regions(const ModelProfile& profile) {
  uint32_t next = 0;
  for (size_t i = 0; i < profile.checkpoint_regions.size(); ++i) {
    const OperatorRange& region = profile.checkpoint_regions[i];
    if (region.first > region.last || region.last >= profile.steps.size() || region.first < next) {
      return error(Code::kBadInput,
                   "checkpoint_regions[{}] = [{}, {}]: each is [first, last] with first <= last < "
                   "{} steps, in order and apart",
                   i, region.first, region.last, profile.steps.size());
    }
    next = region.last + 1;
  }
  return Status();
}

Status check_length(const char* what, size_t have, size_t need) {
  if (have == 0 || have == need) return Status();
  return error(Code::kBadInput, "{} has {} entries, it needs {} or none", what, have, need);
}

Status check_amount(const char* what, double amount) {
  if (amount >= 0 && amount < 1e24) return Status();
  return error(Code::kBadInput, "{} holds {}; it must be from 0 to 1e24", what, amount);
}

Status check_work(const OperatorWork& work) {
  constexpr uint64_t kLargest = uint64_t{1} << 40;
  ELIXIR_RETURN_IF_ERROR(check_amount("step_bytes", work.bytes));
  ELIXIR_RETURN_IF_ERROR(check_amount("step_attention_flops", work.attention_flops));
  for (const MatrixProduct& product : work.products) {
    for (const uint64_t size : {product.count, product.rows, product.columns, product.inner}) {
      if (size <= kLargest) continue;
      return error(Code::kBadInput, "step_products holds {}; sizes are at most {}", size, kLargest);
    }
  }
  return Status();
}

// So sums of them do not overflow.
constexpr uint64_t kMostBytes = uint64_t{1} << 45;
constexpr size_t kMostProfiledRegions = size_t{1} << 16;

Status check_bytes(const ProfiledRegion& region, size_t index) {
  uint64_t most = region.boundary_bytes;
  for (const ProfiledRegion::Run* run : {&region.forward, &region.backward}) {
    most = std::max({most, run->begin_bytes, run->after_bytes});
  }
  for (const RegionBytes& bytes : region.bytes) {
    most = std::max({most, bytes.held, bytes.forward_peak, bytes.backward_peak});
  }
  if (most <= kMostBytes) return Status();
  return error(Code::kBadInput, "regions[{}] has {} bytes; at most {} are possible", index, most,
               kMostBytes);
}

// Each run lies in order, and its second run is part of the work of its operators.
Status check_kept_regions(const ModelProfile& profile) {
  if (profile.regions.empty()) return Status();
  const size_t steps = profile.steps.size();
  if (profile.step_work.size() != steps || profile.activation_curve.size() != steps) {
    return error(Code::kBadInput, "regions need step_products, step_bytes and activation_curve");
  }
  if (profile.regions.size() > kMostProfiledRegions) {
    return error(Code::kBadInput, "{} regions; at most {} are possible", profile.regions.size(),
                 kMostProfiledRegions);
  }
  for (const uint64_t bytes : profile.activation_curve) {
    if (bytes > kMostBytes) {
      return error(Code::kBadInput, "activation_curve has {} bytes; at most {} are possible", bytes,
                   kMostBytes);
    }
  }
  std::vector<OperatorWork> left = profile.step_work;
  uint32_t next = 0;
  for (size_t i = 0; i < profile.regions.size(); ++i) {
    const ProfiledRegion& region = profile.regions[i];
    const OperatorRange forward = region.forward.steps, backward = region.backward.steps;
    if (forward.first < next || forward.first > forward.last || backward.first <= forward.last ||
        backward.first > backward.last || backward.last >= steps) {
      return error(Code::kBadInput,
                   "regions[{}] is at [{}, {}] and [{}, {}] of {} steps: forward comes first, and "
                   "regions are in its order and apart",
                   i, forward.first, forward.last, backward.first, backward.last, steps);
    }
    next = forward.last + 1;
    ELIXIR_RETURN_IF_ERROR(check_bytes(region, i));
    for (const SecondRunWork& work : region.second_run) {
      ELIXIR_RETURN_IF_ERROR(check_work(work.products));
      ELIXIR_RETURN_IF_ERROR(check_work(work.others));
      if (work.step >= steps || !left[work.step].remove(work.all())) {
        return error(Code::kBadInput, "regions[{}].second_run does more at step {} than that step",
                     i, work.step);
      }
    }
  }
  return Status();
}

}  // namespace

double MatrixProduct::flops() const {
  return 2.0 * static_cast<double>(count) * static_cast<double>(rows) *
         static_cast<double>(columns) * static_cast<double>(inner);
}

double OperatorWork::flops() const {
  double sum = attention_flops;
  for (const MatrixProduct& product : products) sum += product.flops();
  return sum;
}

void OperatorWork::add(const OperatorWork& other) {
  products.insert(products.end(), other.products.begin(), other.products.end());
  attention_flops += other.attention_flops;
  attention_head = std::max(attention_head, other.attention_head);
  bytes += other.bytes;
  kernels += other.kernels;
}

bool OperatorWork::remove(const OperatorWork& other) {
  for (const MatrixProduct& product : other.products) {
    const auto found = std::find(products.begin(), products.end(), product);
    if (found == products.end()) return false;
    products.erase(found);
  }
  attention_flops -= other.attention_flops;
  bytes -= other.bytes;
  kernels -= std::min(kernels, other.kernels);
  return attention_flops >= 0 && bytes >= 0;
}

OperatorWork SecondRunWork::all() const {
  OperatorWork sum = products;
  sum.add(others);
  return sum;
}

uint64_t ModelProfile::trained_numel() const {
  uint64_t sum = 0;
  for (const ProfiledParameter& param : params) sum += param.frozen ? 0 : param.numel;
  return sum;
}

uint64_t ModelProfile::total_numel() const {
  uint64_t sum = 0;
  for (const ProfiledParameter& param : params) sum += param.numel;
  return sum;
}

bool ModelProfile::leaves_unused() const {
  std::vector<uint8_t> read(params.size(), 0);
  for (const std::vector<uint32_t>& step : steps) {
    for (const uint32_t param : step) read[param] = 1;
  }
  for (size_t i = 0; i < params.size(); ++i) {
    if (read[i] == 0 && !params[i].frozen) return true;
  }
  return false;
}

uint32_t ModelProfile::backward_first() const {
  return backward_begin != 0 ? backward_begin : static_cast<uint32_t>(steps.size() + 1) / 2;
}

ModelProfile in_first_use_order(ModelProfile profile) {
  const Status content = check_profile(profile);
  ELIXIR_CHECK(content.ok(), "{}", content.message());
  const uint32_t n = static_cast<uint32_t>(profile.params.size());
  std::vector<uint32_t> first(n, UINT32_MAX), order(n), place(n);
  for (uint32_t i = 0; i < profile.steps.size(); ++i) {
    for (const uint32_t param : profile.steps[i]) first[param] = std::min(first[param], i);
  }
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    if (first[a] != first[b]) return first[a] < first[b];
    return profile.params[a].name < profile.params[b].name;
  });
  for (uint32_t i = 0; i < n; ++i) place[order[i]] = i;
  const auto reordered = [&](auto values) {
    if (values.empty()) return values;
    auto result = values;
    for (uint32_t i = 0; i < n; ++i) result[i] = values[order[i]];
    return result;
  };
  profile.params = reordered(std::move(profile.params));
  profile.gradient_after = reordered(std::move(profile.gradient_after));
  for (std::vector<uint32_t>& step : profile.steps) {
    for (uint32_t& param : step) param = place[param];
  }
  return profile;
}

Status check_profile(const ModelProfile& profile) {
  ELIXIR_RETURN_IF_ERROR(check_params(profile));
  ELIXIR_RETURN_IF_ERROR(check_steps(profile));
  ELIXIR_RETURN_IF_ERROR(check_regions(profile));
  if (profile.trained_numel() == 0) {
    return error(Code::kBadInput, "all params are frozen: nothing to train");
  }
  const size_t steps = profile.steps.size();
  if (profile.backward_begin > steps) {
    return error(Code::kBadInput, "backward_begin = {} of {} steps", profile.backward_begin, steps);
  }
  ELIXIR_RETURN_IF_ERROR(check_length("step_flops", profile.step_flops.size(), steps));
  ELIXIR_RETURN_IF_ERROR(check_length("activation_curve", profile.activation_curve.size(), steps));
  ELIXIR_RETURN_IF_ERROR(
      check_length("gradient_after", profile.gradient_after.size(), profile.params.size()));
  for (const uint32_t after : profile.gradient_after) {
    if (after < steps) continue;
    return error(Code::kBadInput, "gradient_after names step {} of {}", after, steps);
  }
  for (const double flops : profile.step_flops) {
    ELIXIR_RETURN_IF_ERROR(check_amount("step_flops", flops));
  }
  ELIXIR_RETURN_IF_ERROR(check_length("step_work", profile.step_work.size(), steps));
  for (const OperatorWork& work : profile.step_work) ELIXIR_RETURN_IF_ERROR(check_work(work));
  return check_kept_regions(profile);
}

}  // namespace elixir::planner
