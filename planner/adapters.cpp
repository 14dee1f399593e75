#include "planner/adapters.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <regex>
#include <vector>

namespace elixir::planner {
namespace {

constexpr uint32_t kMostRank = 65536;

Result<std::regex> expression(const std::string& names) {
  try {
    return std::regex(names, std::regex::extended);
  } catch (const std::regex_error& wrong) {
    return error(Code::kInvalidArgument, "--adapters: '{}' is not a regular expression: {}", names,
                 wrong.what());
  }
}

// [rows, inner] by a weight of [inner, columns]: the first product of forward with so many rows.
struct WeightUse {
  uint64_t in = 0, out = 0;
};
std::optional<WeightUse> use_of(const OperatorWork& work, uint64_t numel, uint64_t tokens) {
  for (const MatrixProduct& product : work.products) {
    if (product.rows == tokens && product.inner * product.columns == numel) {
      return WeightUse{.in = product.inner, .out = product.columns};
    }
  }
  return {};
}

struct Adapted {
  uint32_t weight = 0, a = 0, b = 0;  // indices into params
  WeightUse use;
};

// y += B (A x), in three operators.
OperatorWork forward_work(const WeightUse& use, uint64_t rank, uint64_t tokens, uint32_t bytes) {
  return {.products = {{.rows = tokens, .columns = rank, .inner = use.in},
                       {.rows = tokens, .columns = use.out, .inner = rank}},
          .bytes = 3.0 * static_cast<double>(tokens * use.out) * bytes,
          .kernels = 3};
}

// Gradients of B, of A x, of A and of x, which is added to that of W.
OperatorWork backward_work(const WeightUse& use, uint64_t rank, uint64_t tokens, uint32_t bytes) {
  return {.products = {{.rows = use.out, .columns = rank, .inner = tokens},
                       {.rows = tokens, .columns = rank, .inner = use.out},
                       {.rows = rank, .columns = use.in, .inner = tokens},
                       {.rows = tokens, .columns = use.in, .inner = rank}},
          .bytes = 3.0 * static_cast<double>(tokens * use.in) * bytes,
          .kernels = 5};
}

bool reads(const std::vector<uint32_t>& step, uint32_t param) {
  return std::find(step.begin(), step.end(), param) != step.end();
}

// A weight's gradient sums over all tokens.
void remove_weight_gradients(uint64_t tokens, OperatorWork* work) {
  const auto removed = std::erase_if(work->products, [&](const MatrixProduct& product) {
    return product.inner == tokens && product.rows != tokens;
  });
  work->kernels -= std::min(work->kernels, static_cast<uint32_t>(removed));
}

// Whether backward's operator repeats forward: with checkpointing, the first of those that read it.
class Repeats {
 public:
  explicit Repeats(const ModelProfile& profile)
      : checkpointed_(!profile.checkpoint_regions.empty()), seen_(profile.params.size(), 0) {}
  bool next(uint32_t param) { return checkpointed_ && seen_[param]++ == 0; }

 private:
  const bool checkpointed_;
  std::vector<uint8_t> seen_;
};

}  // namespace

Result<Adapters> adapters_from_text(const std::string& text) {
  Adapters adapters;
  const size_t comma = text.find(',');
  const std::string rank = text.substr(0, comma);
  const auto [end, failure] =
      std::from_chars(rank.data(), rank.data() + rank.size(), adapters.rank);
  if (failure != std::errc() || end != rank.data() + rank.size() || adapters.rank == 0 ||
      adapters.rank > kMostRank) {
    return error(Code::kInvalidArgument,
                 "--adapters {}: a rank from 1 to {} is needed, or RANK,REGEX", text.substr(0, 40),
                 kMostRank);
  }
  if (comma != std::string::npos) adapters.names = text.substr(comma + 1);
  const Result<std::regex> names = expression(adapters.names);
  if (!names.ok()) return names.status();
  return adapters;
}

Result<ModelProfile> with_adapters(ModelProfile profile, const Adapters& adapters) {
  if (profile.step_work.empty() || profile.tokens == 0) {
    return error(Code::kInvalidArgument,
                 "--adapters: this profile does not describe operators; make it again with "
                 "elixirctl profile");
  }
  const Result<std::regex> names = expression(adapters.names);
  if (!names.ok()) return names.status();
  const uint64_t rank = adapters.rank, tokens = profile.tokens;
  const uint32_t backward = profile.backward_first();
  const auto n_steps = static_cast<uint32_t>(profile.steps.size());
  std::vector<Adapted> adapted;
  const auto n_params = static_cast<uint32_t>(profile.params.size());
  for (uint32_t param = 0; param < n_params; ++param) {
    profile.params[param].frozen = true;
    if (!std::regex_search(profile.params[param].name, *names)) continue;
    std::optional<WeightUse> use;
    for (uint32_t i = 0; i < backward && !use; ++i) {
      if (reads(profile.steps[i], param)) {
        use = use_of(profile.step_work[i], profile.params[param].numel, tokens);
      }
    }
    if (!use) continue;
    const auto first = static_cast<uint32_t>(n_params + 2 * adapted.size());
    adapted.push_back({.weight = param, .a = first, .b = first + 1, .use = *use});
  }
  if (adapted.empty()) {
    return error(Code::kInvalidArgument,
                 "--adapters: no weight has a name in which '{}' is found; give RANK,REGEX",
                 adapters.names);
  }
  Repeats repeats(profile);
  std::vector<uint32_t> last_use(adapted.size(), 0);
  for (uint32_t i = backward; i < n_steps; ++i) {
    remove_weight_gradients(tokens, &profile.step_work[i]);
  }
  for (size_t k = 0; k < adapted.size(); ++k) {
    const Adapted& one = adapted[k];
    const std::string name = profile.params[one.weight].name;  // params grow
    profile.params.push_back({.name = name + ".lora_A", .numel = rank * one.use.in});
    profile.params.push_back({.name = name + ".lora_B", .numel = rank * one.use.out});
    for (uint32_t i = 0; i < n_steps; ++i) {
      if (!reads(profile.steps[i], one.weight)) continue;
      profile.steps[i].push_back(one.a);
      profile.steps[i].push_back(one.b);
      const bool forward = i < backward || repeats.next(one.weight);
      const auto work = forward ? forward_work : backward_work;
      profile.step_work[i].add(work(one.use, rank, tokens, profile.dtype_bytes()));
      last_use[k] = i;
    }
  }
  for (uint32_t i = 0; i < n_steps; ++i) profile.step_flops[i] = profile.step_work[i].flops();
  profile.regions.clear();  // they describe the model without adapters
  if (!profile.gradient_after.empty()) {
    for (const uint32_t last : last_use)
      profile.gradient_after.insert(profile.gradient_after.end(), 2, last);
  }
  return profile;
}

}  // namespace elixir::planner
