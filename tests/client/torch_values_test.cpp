// Values and states of single parameters: read by one rank alone, and set many at a time. The rows
// of docs/torch_ways.md name these tests.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>

#include <limits>
#include <map>
#include <string>
#include <vector>

#include "tests/client/small_training.h"
#include "tests/client/torch_ways.h"
#include "tests/support/matchers.h"

namespace elixir::test {
namespace {

using torch::nn::Module;

class TorchValues : public InEveryMode {};
IN_EVERY_MODE(TorchValues);
IN_BF16_ON_TWO_RANKS(TorchValues);

// Some are frozen, and with the shorter chunks some are longer than one.
const Build kSomeFrozen = net_with([](Module& net) {
  for (const char* name : {"0.bias", "1.weight"}) parameter(net, name).requires_grad_(false);
});
constexpr uint64_t kChunkNumels[] = {64, 256};

// Rank 0 asks for all of them while the others are already at the next call of all ranks.
TEST_P(TorchValues, AreReadByOneRankAlone) {
  for (const uint64_t chunk_numel : kChunkNumels) {
    const Settings settings{.build = kSomeFrozen,
                            .options = {.layout = {.chunk_numel = chunk_numel}}};
    elixir_alone(settings, [](Module& net, Trainer& t) {
      plain_steps(0, 3, net, t);
      std::map<std::string, at::Tensor> values;
      std::map<std::string, ParameterState> states;
      for (const auto& item : net.named_parameters()) {
        if (t.ranks[0] != 0) break;
        values[item.key()] = t.elixir()->value(item.value());
        if (item.value().requires_grad()) states[item.key()] = t.elixir()->state(item.value());
      }
      const std::map<std::string, ParameterState> all = t.elixir()->state_dict();
      for (const auto& item : net.named_parameters()) {
        const at::Tensor read = item.value().detach().clone();
        if (t.ranks[0] != 0) continue;
        EXPECT_TRUE(at::equal(values.at(item.key()), read)) << item.key();
        EXPECT_EQ(values.at(item.key()).scalar_type(), t.dtype);
        if (!states.contains(item.key())) continue;
        const ParameterState &one = states.at(item.key()), &of_all = all.at(item.key());
        EXPECT_EQ(one.step, of_all.step);
        EXPECT_TRUE(at::equal(one.master, of_all.master)) << item.key();
        EXPECT_TRUE(at::equal(one.exp_avg, of_all.exp_avg)) << item.key();
        EXPECT_TRUE(at::equal(one.exp_avg_sq, of_all.exp_avg_sq)) << item.key();
      }
      plain_step(net, t, 3);
    });
  }
}

TEST_P(TorchValues, OfNoParameterOrAtAWrongTimeAreRefused) {
  refused({"value() of a tensor [3]", "not a parameter of this optimizer"},
          [](Module&, Trainer& t) { t.elixir()->value(at::zeros({3})); });
  refused({"value() between backward() and step()"}, [](Module& net, Trainer& t) {
    net_loss(net, 0, t).backward();
    t.elixir()->value(parameter(net, "0.weight"));
  });
  refused({"state() of '0.bias'", "frozen"}, {.build = kSomeFrozen},
          [](Module& net, Trainer& t) { t.elixir()->state(parameter(net, "0.bias")); });
}

// Only the collective exchange places states of several ranks on devices.
TEST_P(TorchValues, OnTheDevicesOfSeveralRanksAreRefused) {
  if (!collective()) GTEST_SKIP() << "each rank reads its own device";
  const Settings settings{.options = {.layout = {.chunk_numel = 64, .gpu_state_share = 1}}};
  expect_error(mode(), {"value() of '0.weight'", "--gpu-state-share 0"}, settings,
               [](Module& net, Trainer& t) {
                 plain_step(net, t, 0);
                 t.elixir()->value(parameter(net, "0.weight"));
               });
}

// ---- set ----

void set_all(Trainer& t, Module& net, const std::vector<std::string>& names, int64_t from) {
  std::vector<NamedTensor> values;
  for (const std::string& name : names) {
    values.push_back({name, wave(parameter(net, name).sizes(), from++)});
  }
  if (t.elixir() != nullptr) return t.elixir()->set_parameters(values);
  for (const NamedTensor& each : values) t.set_parameter(parameter(net, each.name), each.tensor);
}

TEST_P(TorchValues, SeveralAreSetAtOnce) {
  for (const uint64_t chunk_numel : kChunkNumels) {
    Settings settings{.build = kSomeFrozen, .options = {.layout = {.chunk_numel = chunk_numel}}};
    like_torch(settings, [](Module& net, Trainer& t) {
      set_all(t, net, {"2.bias", "0.weight"}, 5);
      plain_steps(0, 2, net, t);
      // The frozen ones share a chunk: one of them alone, then both.
      set_all(t, net, {"0.bias", "2.weight"}, 9);
      plain_steps(2, 1, net, t);
      set_all(t, net, {"1.weight", "0.bias", "1.bias", "0.weight"}, 13);
      plain_steps(3, 1, net, t);
    });
  }
}

// As a program does that loads what it has just taken out.
TEST_P(TorchValues, AreSetToOnesThatLieInChunks) {
  elixir_alone({.build = kSomeFrozen}, [](Module& net, Trainer& t) {
    plain_step(net, t, 0);
    const uint64_t before = t.elixir()->weights_xxh64();
    std::vector<NamedTensor> own;
    for (const auto& item : net.named_parameters()) own.push_back({item.key(), item.value()});
    t.elixir()->set_parameters(own);
    if (t.dtype == at::kFloat) {  // masters of another type are rounded
      EXPECT_EQ(t.elixir()->weights_xxh64(), before);
    }
    t.elixir()->set_parameters({});
  });
}

TEST_P(TorchValues, UnknownOnesAndWrongShapesAreRefused) {
  const auto with = [](std::vector<NamedTensor> values) {
    return
        [values = std::move(values)](Module&, Trainer& t) { t.elixir()->set_parameters(values); };
  };
  const at::Tensor bias = at::zeros({4});
  refused({"'3.bias'", "not a parameter"}, with({{"2.bias", bias}, {"3.bias", bias}}));
  refused({"'2.bias'", "twice"}, with({{"2.bias", bias}, {"2.bias", bias}}));
  refused({"set_parameters() of '2.bias'", "[3]", "[4]"}, with({{"2.bias", at::zeros({3})}}));
}

// ---- the limit of the gradients' norm ----

TEST_P(TorchValues, TheLimitOfTheNormChangesFromStepToStep) {
  const Settings settings{.options = {.grad_norm = true}};
  like_torch(settings, [](Module& net, Trainer& t) {
    for (int64_t i = 0; i < 5; ++i) {
      const std::optional<double> limit =
          i % 2 == 0 ? std::optional(0.02 * static_cast<double>(i + 1)) : std::nullopt;
      t.zero_grad();
      if (t.elixir() != nullptr) t.elixir()->set_clip_norm(limit);
      net_loss(net, i, t).backward();
      if (t.elixir() == nullptr && limit) {
        torch::nn::utils::clip_grad_norm_(net.parameters(), *limit);
      }
      t.step();
    }
  });
}

TEST_P(TorchValues, ALimitWithoutNormsIsRefused) {
  refused({"set_clip_norm(1)", "Options::grad_norm"},
          [](Module&, Trainer& t) { t.elixir()->set_clip_norm(1); });
  for (const double limit : {0.0, -1.0, std::numeric_limits<double>::infinity()}) {
    refused({"clip_norm", "greater than 0"}, {.options = {.grad_norm = true}},
            [limit](Module&, Trainer& t) { t.elixir()->set_clip_norm(limit); });
  }
}

// ---- groups ----

// Layer-wise rates have two groups a layer.
TEST_P(TorchValues, SixtyFourGroups) {
  Settings settings;
  settings.build = [] {
    torch::nn::Sequential net;
    for (int i = 0; i < 32; ++i) net->push_back(torch::nn::Linear(8, 8));
    return net.ptr();
  };
  const auto rates = [](Module& net, size_t most) {
    std::vector<ParamGroup> groups;
    for (const auto& item : net.named_parameters()) {
      if (groups.size() == most) break;
      groups.push_back(
          {.parameters = {item.value()}, .lr = 1e-3 * static_cast<double>(groups.size() + 1)});
    }
    return groups;
  };
  settings.groups = [&](Module& net) { return rates(net, 63); };
  like_torch(settings, [](Module& net, Trainer& t) {
    for (int64_t i = 0; i < 2; ++i) {
      t.zero_grad();
      net_output(net, i, t).to(at::kFloat).square().mean().backward();
      t.step();
      t.set_group(63, {.lr = 5e-3});
    }
  });
  settings.build = [build = settings.build] {
    auto net = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(build());
    net->push_back(torch::nn::Linear(8, 8));
    return net;
  };
  settings.groups = [&](Module& net) { return rates(net, 64); };
  refused({"64 groups", "63"}, settings, [](Module&, Trainer&) {});
}

}  // namespace
}  // namespace elixir::test
