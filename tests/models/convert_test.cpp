// Adam's states between checkpoints and files of torch.save(): every bit out and in, whatever the
// form of the file; hostile files are refused.

#include "models/convert.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/scalar_tensor.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "base/text_file.h"
#include "checkpoint/load_plan.h"
#include "checkpoint/safetensors.h"
#include "models/adam_file.h"
#include "models/torch_file.h"
#include "optim_cpu/formats.h"
#include "tests/support/temporary_folder.h"

namespace elixir {
namespace {

using ::testing::HasSubstr;
using Dict = c10::impl::GenericDict;
using List = c10::impl::GenericList;

Dict dict() { return Dict(c10::AnyType::get(), c10::AnyType::get()); }

// As [2, 3] and [5], in this order; "mask" is no parameter.
const std::vector<std::string> kNames = {"b.weight", "a.bias"};

at::Tensor values_of(const std::string& name, float first) {
  const at::Tensor flat = at::arange(name == "b.weight" ? 6 : 5, at::TensorOptions(at::kFloat));
  const at::Tensor values = flat * 0.1f + first;
  return name == "b.weight" ? values.reshape({2, 3}) : values;
}

Dict states_of(const std::string& name, float step) {
  Dict entry = dict();
  entry.insert("step", at::scalar_tensor(step, at::TensorOptions(at::kFloat)));
  entry.insert("exp_avg", values_of(name, 1));
  entry.insert("exp_avg_sq", values_of(name, 2));
  return entry;
}

Dict group_of(const List& params, double lr) {
  Dict group = dict();
  group.insert("lr", lr);
  group.insert("betas", c10::ivalue::Tuple::create({at::IValue(0.8), at::IValue(0.95)}));
  group.insert("eps", 1e-6);
  group.insert("weight_decay", 0.25);
  group.insert("amsgrad", false);
  group.insert("params", params);
  return group;
}

// Its state_dict(); `ids`: what the parameters of kNames are called in it.
Dict adam_of_two(const std::vector<at::IValue>& ids, bool two_groups = false) {
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

class ConvertTest : public ::testing::Test {
 protected:
  ConvertTest() {
    std::filesystem::create_directory(folder_.path("model"));
    write_model();
    folder_.write("model/config.json", "{\"model_type\": \"somebody's\"}");
    folder_.write("names", kNames[0] + "\n" + kNames[1] + "\n");
  }

  // In the order of the alphabet, as safetensors has them.
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
    const Status written = write_torch_file(folder_.path(name), value);
    EXPECT_TRUE(written.ok()) << written.message();
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
  // The states that the checkpoint came from come out of it.
  void expect_exported(const std::vector<std::string>& order) {
    const std::string path = folder_.path("out.pt");
    std::filesystem::remove(path);
    const Status exported = export_torch({.checkpoint = folder_.path("step-000000007"),
                                          .torch_file = path,
                                          .names_file = folder_.path("names")});
    ASSERT_TRUE(exported.ok()) << exported.message();
    const Result<TorchFile> file = TorchFile::open(path);
    ASSERT_TRUE(file.ok()) << file.status().message();
    const Result<AdamFile> adam = adam_of(*file, {});
    ASSERT_TRUE(adam.ok()) << adam.status().message();
    const pickle::Value* const names =
        file->document().find(file->document().root(), "param_names");
    for (size_t i = 0; i < 2; ++i) EXPECT_EQ(file->document().at(names->items[i]).text, order[i]);
    for (const std::string& name : kNames) {
      const AdamStates& states = adam->parameters.at(name);
      EXPECT_EQ(states.step, name == "b.weight" ? 7u : 5u);
      EXPECT_TRUE(at::equal(*file->read(*states.exp_avg), values_of(name, 1))) << name;
      EXPECT_TRUE(at::equal(*file->read(*states.exp_avg_sq), values_of(name, 2))) << name;
    }
  }

  const TemporaryFolder folder_;
};

TEST_F(ConvertTest, EachFormOfTheFileGivesTheSameCheckpoint) {
  const Dict numbered = adam_of_two({at::IValue(int64_t{0}), at::IValue(int64_t{1})});
  ASSERT_TRUE(import(numbered, /*names=*/true).ok());
  expect_exported(kNames);
  const std::string manifest = *read_text_file(folder_.path("step-000000007/elixir.json"));
  const Dict named = adam_of_two({"module._orig_mod.b.weight", "a.bias"});
  Dict flat = dict(), outer = dict();
  for (size_t i = 0; i < 2; ++i) {
    for (const auto& field : states_of(kNames[i], i == 0 ? 7 : 5)) {
      flat.insert("state." + kNames[i] + "." + field.key().toStringRef(), field.value());
    }
    for (const auto& option : group_of(List(c10::AnyType::get()), 0.5)) {
      flat.insert("param_groups." + kNames[i] + "." + option.key().toStringRef(), option.value());
    }
  }
  outer.insert("optimizer", named);
  Dict self_named = adam_of_two({at::IValue(int64_t{0}), at::IValue(int64_t{1})});
  List names(c10::AnyType::get());
  for (const std::string& name : kNames) names.push_back(name);
  self_named.insert("param_names", names);
  for (const Dict& form : {named, flat, outer, self_named}) {
    const Status imported = import(form);
    ASSERT_TRUE(imported.ok()) << imported.message();
    EXPECT_EQ(*read_text_file(folder_.path("step-000000007/elixir.json")), manifest);
  }
}

TEST_F(ConvertTest, ACheckpointThatVerifiesWithWhatTheModelHadBesides) {
  ASSERT_TRUE(import(adam_of_two({"b.weight", "a.bias"}, /*two_groups=*/true)).ok());
  const auto folder = checkpoints::open_stored_folder(folder_.path("step-000000007"));
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  checkpoints::ReadProgress progress;
  EXPECT_TRUE(checkpoints::verify(*folder, 1, &progress).ok());
  const checkpoints::Manifest& manifest = *folder->manifest;
  EXPECT_EQ(manifest.step, 7u);
  EXPECT_EQ(manifest.updates_of.at("a.bias"), 5u);
  EXPECT_EQ(manifest.group_of.at("a.bias"), 1u);
  ASSERT_EQ(manifest.groups.size(), 2u);
  EXPECT_EQ(manifest.groups[0].lr, 0.5);
  EXPECT_EQ(manifest.groups[1].lr, 0.125);
  EXPECT_EQ(manifest.groups[1].weight_decay, 0.25);
  EXPECT_EQ(manifest.groups[0].hyper, (std::vector<double>{0.8, 0.95, 1e-6}));
  EXPECT_EQ(folder->model.size(), 3u);  // the mask is kept
  EXPECT_EQ(*checkpoints::read_stored_file(*folder, "config.json"),
            "{\"model_type\": \"somebody's\"}");
  expect_exported(kNames);
}

TEST_F(ConvertTest, MastersComeBackFromEveryType) {
  for (const ComputeType type : {ComputeType::kFp32, ComputeType::kBf16, ComputeType::kFp16}) {
    ImportRequest asked = request(write_torch(adam_of_two({"b.weight", "a.bias"})));
    asked.type = type;
    std::filesystem::remove_all(asked.output);
    ASSERT_TRUE(import_torch(asked).ok());
    std::filesystem::remove_all(folder_.path("masters"));
    std::filesystem::create_directories(folder_.path("masters"));
    const Status exported = export_torch(
        {.checkpoint = asked.output, .masters_file = folder_.path("masters/model.safetensors")});
    ASSERT_TRUE(exported.ok()) << exported.message();
    const auto masters = checkpoints::open_stored_folder(folder_.path("masters"));
    ASSERT_TRUE(masters.ok()) << masters.status().message();
    ASSERT_EQ(masters->model.size(), 3u);
    for (const checkpoints::StoredTensor& tensor : masters->model) {
      if (tensor.name == "mask") continue;
      const at::Tensor wanted = values_of(tensor.name, 0.123456f).contiguous();
      at::Tensor found = at::empty_like(wanted);
      ASSERT_TRUE(read_exact(masters->files[0].fd.get(), tensor.offset,
                             {static_cast<std::byte*>(found.data_ptr()), found.nbytes()})
                      .ok());
      EXPECT_TRUE(at::equal(found, wanted)) << tensor.name;
    }
  }
}

TEST_F(ConvertTest, AParameterWithoutStatesHasMadeNoStep) {
  Dict file = adam_of_two({at::IValue(int64_t{0}), at::IValue(int64_t{1})});
  ASSERT_EQ(file.at("state").toGenericDict().erase(at::IValue(int64_t{1})), 1u);
  ASSERT_TRUE(import(file, /*names=*/true).ok());
  const std::string path = folder_.path("out.pt");
  ASSERT_TRUE(
      export_torch({.checkpoint = folder_.path("step-000000007"), .torch_file = path}).ok());
  const Result<TorchFile> out = TorchFile::open(path);
  const Result<AdamFile> adam = adam_of(*out, {});
  EXPECT_EQ(adam->parameters.at("a.bias").step, 0u);
  EXPECT_EQ(out->read(*adam->parameters.at("a.bias").exp_avg)->abs().sum().item<float>(), 0);
}

TEST_F(ConvertTest, StatesThatLieInOneStorageAndNotInOrder) {
  Dict file = adam_of_two({"b.weight", "a.bias"});
  const at::Tensor both = at::arange(20, at::TensorOptions(at::kFloat));
  Dict entry = file.at("state").toGenericDict().at("b.weight").toGenericDict();
  entry.insert_or_assign("exp_avg", both.as_strided({2, 3}, {1, 2}, 4));
  ASSERT_TRUE(import(file).ok());
  const std::string path = folder_.path("out.pt");
  ASSERT_TRUE(
      export_torch({.checkpoint = folder_.path("step-000000007"), .torch_file = path}).ok());
  const Result<TorchFile> out = TorchFile::open(path);
  const Result<AdamFile> adam = adam_of(*out, {});
  EXPECT_TRUE(at::equal(*out->read(*adam->parameters.at("b.weight").exp_avg),
                        both.as_strided({2, 3}, {1, 2}, 4)));
}

TEST_F(ConvertTest, RefusesWithWhatMendsIt) {
  const std::vector<at::IValue> numbers = {at::IValue(int64_t{0}), at::IValue(int64_t{1})};
  const auto refused = [&](const Dict& file, const char* says, bool names = false) {
    const Status status = import(file, names);
    EXPECT_FALSE(status.ok()) << says;
    EXPECT_THAT(status.message(), HasSubstr(says));
    EXPECT_FALSE(std::filesystem::exists(folder_.path("step-000000007")));
  };
  refused(adam_of_two(numbers), "--names FILE");
  refused(adam_of_two({"b.wieght", "a.bias"}), "the nearest name is 'b.weight'");
  refused(adam_of_two({"a.bias", "b.weight"}), "a shape of [2, 3], the parameter");
  Dict file = adam_of_two(numbers);
  file.at("param_groups").toList().get(0).toGenericDict().insert_or_assign("amsgrad", true);
  refused(file, "amsgrad", true);
  file = adam_of_two(numbers);
  file.at("state").toGenericDict().at(numbers[0]).toGenericDict().insert("momentum_buffer", 1);
  refused(file, "momentum_buffer", true);
  file = adam_of_two(numbers);
  ASSERT_EQ(file.at("state").toGenericDict().at(numbers[0]).toGenericDict().erase("exp_avg"), 1u);
  refused(file, "without exp_avg_sq", true);
  file = adam_of_two(numbers);
  file.at("state").toGenericDict().at(numbers[0]).toGenericDict().insert_or_assign("step", -1.0);
  refused(file, "a step is no number", true);
  refused(dict(), "without states of Adam");
  folder_.write("names", "b.weight\n");
  refused(adam_of_two(numbers), "2 parameters, and 1 names", true);
}

TEST_F(ConvertTest, NothingIsOverwritten) {
  const std::string torch_file = write_torch(adam_of_two({"b.weight", "a.bias"}));
  ASSERT_TRUE(import_torch(request(torch_file)).ok());
  const std::string before = *read_text_file(folder_.path("step-000000007/elixir.json"));
  const Status again = import_torch(request(torch_file));
  EXPECT_EQ(again.code(), Code::kInvalidArgument) << again.message();
  EXPECT_EQ(*read_text_file(folder_.path("step-000000007/elixir.json")), before);
  folder_.write("there", "mine");
  for (const bool masters : {false, true}) {
    ExportRequest asked{.checkpoint = folder_.path("step-000000007")};
    (masters ? asked.masters_file : asked.torch_file) = folder_.path("there");
    const Status exported = export_torch(asked);
    EXPECT_EQ(exported.code(), Code::kInvalidArgument);
    EXPECT_THAT(exported.message(), HasSubstr("there exists already"));
    EXPECT_EQ(*read_text_file(folder_.path("there")), "mine");
  }
  const Status both = export_torch({.checkpoint = folder_.path("step-000000007"),
                                    .torch_file = folder_.path("one"),
                                    .masters_file = folder_.path("one")});
  EXPECT_THAT(both.message(), HasSubstr("name two"));
  EXPECT_FALSE(std::filesystem::exists(folder_.path("one")));
  ImportRequest other = request(torch_file);
  other.output = folder_.path("step-000000008");
  EXPECT_THAT(import_torch(other).message(), HasSubstr("call it step-000000007"));
  EXPECT_FALSE(std::filesystem::exists(other.output));
  ImportRequest nowhere = request(torch_file);
  nowhere.output = folder_.path("none/step-000000007");
  EXPECT_EQ(import_torch(nowhere).code(), Code::kBadInput);
}

TEST_F(ConvertTest, ExportRefusesWhatIsDamaged) {
  ASSERT_TRUE(import(adam_of_two({"b.weight", "a.bias"})).ok());
  const std::string path =
      folder_.path("step-000000007/optimizer/optimizer-00001-of-00001.safetensors");
  std::string bytes = *read_text_file(path);
  bytes[bytes.size() - 1] ^= 1;
  folder_.write("step-000000007/optimizer/optimizer-00001-of-00001.safetensors", bytes);
  const Status exported = export_torch(
      {.checkpoint = folder_.path("step-000000007"), .torch_file = folder_.path("out.pt")});
  EXPECT_EQ(exported.code(), Code::kBadInput);
  EXPECT_FALSE(std::filesystem::exists(folder_.path("out.pt")));
  const Status plain =
      export_torch({.checkpoint = folder_.path("model"), .torch_file = folder_.path("out.pt")});
  EXPECT_THAT(plain.message(), HasSubstr("no optimizer states"));
}

// Bits, lengths and whole parts of a real file: an error, or what the file then says.
TEST_F(ConvertTest, HostileFilesAreErrors) {
  const std::string real =
      *read_text_file(write_torch(adam_of_two({"b.weight", "a.bias"}, /*two_groups=*/true)));
  std::mt19937_64 random(1);
  size_t refused = 0;
  const size_t tries = ::getenv("ELIXIR_NIGHTLY") != nullptr ? 20'000 : 1'000;
  for (size_t i = 0; i < tries; ++i) {
    std::string bytes = real;
    if (i % 5 == 0) {
      bytes.resize(random() % real.size());
    } else {
      for (uint64_t n = random() % 8 + 1; n > 0; --n) {
        bytes[random() % bytes.size()] = static_cast<char>(random());
      }
    }
    const Result<TorchFile> file = TorchFile::open(folder_.write("hostile.pt", bytes));
    const Result<AdamFile> adam = file.ok() ? adam_of(*file, {}) : Result<AdamFile>(file.status());
    bool read = adam.ok();
    if (adam.ok()) {
      for (const auto& [name, states] : adam->parameters) {
        for (const pickle::Value* const state : {states.exp_avg, states.exp_avg_sq}) {
          read = read && (state == nullptr || file->read(*state).ok());
        }
      }
    }
    if (!read) ++refused;
  }
  EXPECT_GT(refused, tries / 3);
  EXPECT_LT(refused, tries);  // changes of values, of names
  for (const char* const none : {"", "PK", "not a zip archive at all"}) {
    EXPECT_EQ(TorchFile::open(folder_.write("hostile.pt", none)).status().code(), Code::kBadInput);
  }
  EXPECT_EQ(TorchFile::open(folder_.path()).status().code(), Code::kBadInput);
  EXPECT_EQ(TorchFile::open(folder_.path("absent")).status().code(), Code::kBadInput);
}

}  // namespace
}  // namespace elixir
