#pragma once

// A model of two parameters and a mask, a tiny GPT-2, and their Adam states as torch.save() writes
// them.

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/scalar_tensor.h>

#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "models/adam_file.h"
#include "models/convert.h"
#include "models/torch_file.h"
#include "planner/models/config_json.h"
#include "planner/models/transformer_config.h"
#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"

namespace elixir {

using Dict = c10::impl::GenericDict;
using List = c10::impl::GenericList;

inline Dict dict() { return Dict(c10::AnyType::get(), c10::AnyType::get()); }

// Their shapes are [2, 3] and [5], in this order; "mask" is no parameter.
inline const std::vector<std::string> kNames = {"b.weight", "a.bias"};

inline at::Tensor values_of(const std::string& name, float first) {
  const at::Tensor flat = at::arange(name == "b.weight" ? 6 : 5, at::TensorOptions(at::kFloat));
  const at::Tensor values = flat * 0.1f + first;
  return name == "b.weight" ? values.reshape({2, 3}) : values;
}

inline Dict states_of(const std::string& name, float step) {
  Dict entry = dict();
  entry.insert("step", at::scalar_tensor(step, at::TensorOptions(at::kFloat)));
  entry.insert("exp_avg", values_of(name, 1));
  entry.insert("exp_avg_sq", values_of(name, 2));
  return entry;
}

inline Dict group_of(const List& params, double lr) {
  Dict group = dict();
  group.insert("lr", lr);
  group.insert("betas", c10::ivalue::Tuple::create({at::IValue(0.8), at::IValue(0.95)}));
  group.insert("eps", 1e-6);
  group.insert("weight_decay", 0.25);
  group.insert("amsgrad", false);
  group.insert("params", params);
  return group;
}

// Adam's state_dict(); `ids` are the keys of kNames's parameters in it.
inline Dict adam_of_two(const std::vector<at::IValue>& ids, bool two_groups = false) {
  Dict states = dict();
  List groups(c10::AnyType::get()), params(c10::AnyType::get()), others(c10::AnyType::get());
  for (size_t i = 0; i < 2; ++i) {
    states.insert(ids[i], states_of(kNames[i], i == 0 ? 7 : 5));
    (two_groups && i == 1 ? others : params).push_back(ids[i]);
  }
  groups.push_back(group_of(params, 0.5));
  if (two_groups) groups.push_back(group_of(others, 0.125));
  Dict file = dict();
  file.insert("state", states);
  file.insert("param_groups", groups);
  return file;
}

// A dict as get_optimizer_state_dict(flatten_optimizer_state_dict=True) makes it. It has the states
// of the first `n` of kNames and, if `options`, the options of both.
inline Dict flat_adam_of_two(size_t n, bool options = true) {
  Dict flat = dict();
  for (size_t i = 0; i < 2; ++i) {
    if (i < n) {
      for (const auto& field : states_of(kNames[i], i == 0 ? 7 : 5)) {
        flat.insert("state." + kNames[i] + "." + field.key().toStringRef(), field.value());
      }
    }
    if (!options) continue;
    for (const auto& option : group_of(List(c10::AnyType::get()), 0.5)) {
      flat.insert("param_groups." + kNames[i] + "." + option.key().toStringRef(), option.value());
    }
  }
  return flat;
}

inline const std::vector<at::IValue> kNumbers = {at::IValue(int64_t{0}), at::IValue(int64_t{1})};

class ConvertTest : public ::testing::Test {
 protected:
  ConvertTest() {
    std::filesystem::create_directory(folder_.path("model"));
    write_model();
    folder_.write("model/config.json", "{\"model_type\": \"somebody's\"}");
    folder_.write("names", kNames[0] + "\n" + kNames[1] + "\n");
  }

  // Writes tensors in alphabetic order, as safetensors has them.
  void write_model() {
    const checkpoints::Dtype* const f32 = checkpoints::find_dtype("F32");
    const std::vector<checkpoints::TensorEntry> entries = {
        {"a.bias", f32, {5}, 0, 20},
        {"b.weight", f32, {2, 3}, 20, 44},
        {"mask", checkpoints::find_dtype("U8"), {4}, 44, 48}};
    std::string bytes = checkpoints::encode_header(entries);
    for (const char* const name : {"a.bias", "b.weight"}) {
      const at::Tensor values = values_of(name, 0.123456f).contiguous();
      bytes.append(static_cast<const char*>(values.data_ptr()), values.nbytes());
    }
    folder_.write("model/model.safetensors", bytes + "\1\2\3\4");
  }

  std::string write_torch(const at::IValue& value, const std::string& name = "optimizer.pt") {
    std::filesystem::remove(folder_.path(name));
    must(write_torch_file(folder_.path(name), value));
    return folder_.path(name);
  }
  ImportRequest request(const std::string& torch_file) const {
    return {.torch_file = torch_file,
            .model = folder_.path("model"),
            .output = folder_.path("step-000000007"),
            .names_file = folder_.path("names")};
  }
  Status import(const at::IValue& value, bool names = false) {
    ImportRequest asked = request(write_torch(value));
    if (!names) asked.names_file.clear();
    std::filesystem::remove_all(asked.output);
    return import_torch(asked);
  }
  // Writes a tiny GPT-2 as changed by `change`. Like published ones, its names have no
  // "transformer.".
  template <typename Change>
  planner::TransformerConfig write_gpt2(const Change& change) {
    planner::TransformerConfig config = *planner::transformer_config("gpt2-nano");
    config.vocabulary = config.context = config.width = 4;
    config.heads = config.kv_heads = config.layers = 1;
    config.mlp_width = 8;
    std::string text = planner::config_json(config, ComputeType::kBf16);
    std::vector<checkpoints::TensorEntry> entries;
    std::string data;
    const auto add = [&](const std::string& name, const std::vector<int64_t>& shape, uint64_t numel,
                         char fill) {
      const uint64_t begin = data.size();
      for (uint64_t i = 0; i < numel; ++i) data += std::string("\0\0", 2) + fill + '\x3c';
      entries.push_back({name, checkpoints::find_dtype("F32"), shape, begin, data.size()});
    };
    for (const planner::NamedShape& parameter : planner::transformer_parameters(config)) {
      add(parameter.name.substr(parameter.name.find('.') + 1), parameter.shape, parameter.numel(),
          static_cast<char>(entries.size()));
    }
    add("lm_head.weight", {4, 4}, 16, 0);
    change(text, data);
    folder_.write("model/config.json", text);
    folder_.write("model/model.safetensors", checkpoints::encode_header(entries) + data);
    return config;
  }
  // The checkpoint's states, exported into a torch file.
  Result<TorchFile> exported(const std::string& names_file = "") {
    const std::string path = folder_.path("out.pt");
    std::filesystem::remove(path);
    const Status status = export_torch({.checkpoint = folder_.path("step-000000007"),
                                        .torch_file = path,
                                        .names_file = names_file});
    if (!status.ok()) return status;
    return TorchFile::open(path);
  }
  // Expects that the exported states are the imported ones.
  void expect_exported(const std::vector<std::string>& order) {
    const TorchFile file = must(exported(folder_.path("names")));
    const AdamFile adam = must(adam_of(file, {}));
    const pickle::Value* const names = file.document().find(file.document().root(), "param_names");
    for (size_t i = 0; i < 2; ++i) EXPECT_EQ(file.document().at(names->items[i]).text, order[i]);
    for (const std::string& name : kNames) {
      const AdamStates& states = adam.parameters.at(name);
      EXPECT_EQ(states.step, name == "b.weight" ? 7u : 5u);
      EXPECT_TRUE(at::equal(*file.read(*states.exp_avg), values_of(name, 1))) << name;
      EXPECT_TRUE(at::equal(*file.read(*states.exp_avg_sq), values_of(name, 2))) << name;
    }
  }

  const TemporaryFolder folder_;
};

}  // namespace elixir
