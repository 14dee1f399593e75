// Adam's states between checkpoints and files of torch.save(): every bit out and in, whatever the
// form of the file; hostile files are refused.

#include "models/convert.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <fcntl.h>

#include <cstring>
#include <limits>
#include <random>

#include "base/text_file.h"
#include "checkpoint/load_plan.h"
#include "tests/models/convert_fixture.h"
#include "tests/support/every_case.h"
#include "tests/support/outcomes.h"

namespace elixir {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST_F(ConvertTest, EachFormOfTheFileGivesTheSameCheckpoint) {
  const Dict numbered = adam_of_two(kNumbers);
  ASSERT_TRUE(import(numbered, /*names=*/true).ok());
  expect_exported(kNames);
  const std::string manifest = *read_text_file(folder_.path("step-000000007/elixir.json"));
  const Dict named = adam_of_two({"module._orig_mod.b.weight", "a.bias"});
  Dict outer = dict();
  outer.insert("optimizer", named);
  Dict self_named = adam_of_two(kNumbers);
  List names(c10::AnyType::get());
  for (const std::string& name : kNames) names.push_back(name);
  self_named.insert("param_names", names);
  for (const Dict& form : {named, flat_adam_of_two(2), outer, self_named}) {
    must(import(form));
    EXPECT_EQ(*read_text_file(folder_.path("step-000000007/elixir.json")), manifest);
  }
}

TEST_F(ConvertTest, ACheckpointThatVerifiesWithWhatTheModelHadBesides) {
  ASSERT_TRUE(import(adam_of_two({"b.weight", "a.bias"}, /*two_groups=*/true)).ok());
  const auto folder = must(checkpoints::open_stored_folder(folder_.path("step-000000007")));
  checkpoints::ReadProgress progress;
  EXPECT_TRUE(checkpoints::verify(folder, 1, &progress).ok());
  const checkpoints::Manifest& manifest = *folder.manifest;
  EXPECT_EQ(manifest.step, 7u);
  EXPECT_EQ(manifest.updates_of.at("a.bias"), 5u);
  EXPECT_EQ(manifest.group_of.at("a.bias"), 1u);
  ASSERT_EQ(manifest.groups.size(), 2u);
  EXPECT_EQ(manifest.groups[0].lr, 0.5);
  EXPECT_EQ(manifest.groups[1].lr, 0.125);
  EXPECT_EQ(manifest.groups[1].weight_decay, 0.25);
  EXPECT_EQ(manifest.groups[0].hyper, (std::vector<double>{0.8, 0.95, 1e-6}));
  EXPECT_EQ(folder.model.size(), 3u);  // the mask is kept
  EXPECT_THAT(*checkpoints::read_stored_file(folder, "config.json"),
              AllOf(HasSubstr("somebody's"), HasSubstr("\"torch_dtype\": \"float32\"")));
  expect_exported(kNames);
  folder_.write("names", "a.bias\nb.weight\n");
  expect_exported(kNames);  // torch numbers parameters group by group
}

TEST_F(ConvertTest, ValuesThatNobodyCanTrainWithAreRefusedByName) {
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(),
                       std::numeric_limits<float>::infinity()};
  for (const char* const state : {"exp_avg", "exp_avg_sq"}) {
    for (const float value : bad) {
      Dict adam = adam_of_two({"b.weight", "a.bias"});
      adam.at("state").toGenericDict().at("a.bias").toGenericDict().at(state).toTensor()[4] = value;
      expect_refused(
          import(adam), Code::kBadInput,
          {"optimizer.pt", std::string("'a.bias.") + state + "' has 1 value that is NaN"});
      EXPECT_FALSE(std::filesystem::exists(folder_.path("step-000000007")));
    }
  }
  must(import(adam_of_two({"b.weight", "a.bias"})));
  std::filesystem::rename(folder_.path("step-000000007"), folder_.path("good"));
  // The first bytes of a.bias, and of b.weight.
  const std::string model = *read_text_file(folder_.path("model/model.safetensors"));
  const size_t data = model.size() - 48;
  for (const auto& [at, name] : {std::pair(data, "a.bias"), std::pair(data + 20, "b.weight")}) {
    for (const float value : bad) {
      std::string changed = model;
      std::memcpy(changed.data() + at, &value, sizeof value);
      folder_.write("model/model.safetensors", changed);
      expect_refused(import(adam_of_two({"b.weight", "a.bias"})), Code::kBadInput,
                     {std::string("'") + name + "' has 1 value that is NaN or infinite"});
    }
    const float large = 70000;
    std::string changed = model;
    std::memcpy(changed.data() + at, &large, sizeof large);
    folder_.write("model/model.safetensors", changed);
    ImportRequest asked = request(write_torch(adam_of_two({"b.weight", "a.bias"})));
    std::filesystem::remove_all(asked.output);
    EXPECT_TRUE(import_torch(asked).ok());
    std::filesystem::remove_all(asked.output);
    asked.type = ComputeType::kFp16;
    expect_refused(import_torch(asked), Code::kBadInput,
                   {std::string("'") + name + "' has 1 value that is beyond 65504"});
  }
}

TEST_F(ConvertTest, MastersComeBackFromEveryType) {
  for (const ComputeType type : {ComputeType::kFp32, ComputeType::kBf16, ComputeType::kFp16}) {
    ImportRequest asked = request(write_torch(adam_of_two({"b.weight", "a.bias"})));
    asked.type = type;
    std::filesystem::remove_all(asked.output);
    ASSERT_TRUE(import_torch(asked).ok());
    std::filesystem::remove_all(folder_.path("masters"));
    std::filesystem::create_directories(folder_.path("masters"));
    must(export_torch(
        {.checkpoint = asked.output, .masters_file = folder_.path("masters/model.safetensors")}));
    const auto masters = must(checkpoints::open_stored_folder(folder_.path("masters")));
    ASSERT_EQ(masters.model.size(), 3u);
    for (const checkpoints::StoredTensor& tensor : masters.model) {
      if (tensor.name == "mask") continue;
      const at::Tensor wanted = values_of(tensor.name, 0.123456f).contiguous();
      at::Tensor found = at::empty_like(wanted);
      ASSERT_TRUE(read_exact(masters.files[0].fd.get(), tensor.offset,
                             {static_cast<std::byte*>(found.data_ptr()), found.nbytes()})
                      .ok());
      EXPECT_TRUE(at::equal(found, wanted)) << tensor.name;
    }
  }
}

TEST_F(ConvertTest, AParameterWithoutStatesHasMadeNoStep) {
  Dict file = adam_of_two(kNumbers);
  ASSERT_EQ(file.at("state").toGenericDict().erase(kNumbers[1]), 1u);
  ASSERT_TRUE(import(file, /*names=*/true).ok());
  const TorchFile out = must(exported());
  const Result<AdamFile> adam = adam_of(out, {});
  EXPECT_EQ(adam->parameters.at("a.bias").step, 0u);
  EXPECT_EQ(out.read(*adam->parameters.at("a.bias").exp_avg)->abs().sum().item<float>(), 0);
}

TEST_F(ConvertTest, StatesThatLieInOneStorageAndNotInOrder) {
  Dict file = adam_of_two({"b.weight", "a.bias"});
  const at::Tensor both = at::arange(20, at::TensorOptions(at::kFloat));
  Dict entry = file.at("state").toGenericDict().at("b.weight").toGenericDict();
  entry.insert_or_assign("exp_avg", both.as_strided({2, 3}, {1, 2}, 4));
  ASSERT_TRUE(import(file).ok());
  const TorchFile out = must(exported());
  const Result<AdamFile> adam = adam_of(out, {});
  EXPECT_TRUE(at::equal(*out.read(*adam->parameters.at("b.weight").exp_avg),
                        both.as_strided({2, 3}, {1, 2}, 4)));
}

TEST_F(ConvertTest, RefusesWithWhatMendsIt) {
  const auto refused = [&](const Dict& file, const char* says, bool names = false) {
    const Status status = import(file, names);
    EXPECT_FALSE(status.ok()) << says;
    EXPECT_THAT(status.message(), HasSubstr(says));
    EXPECT_FALSE(std::filesystem::exists(folder_.path("step-000000007")));
  };
  refused(adam_of_two(kNumbers), "--names FILE");
  refused(adam_of_two({"b.wieght", "a.bias"}), "the nearest name is 'b.weight'");
  refused(adam_of_two({"a.bias", "b.weight"}), "a shape of [2, 3], the parameter");
  Dict file = adam_of_two(kNumbers);
  file.at("param_groups").toList().get(0).toGenericDict().insert_or_assign("amsgrad", true);
  refused(file, "amsgrad", true);
  file = adam_of_two(kNumbers);
  file.at("state").toGenericDict().at(kNumbers[0]).toGenericDict().insert("momentum_buffer", 1);
  refused(file, "momentum_buffer", true);
  file = adam_of_two(kNumbers);
  ASSERT_EQ(file.at("state").toGenericDict().at(kNumbers[0]).toGenericDict().erase("exp_avg"), 1u);
  refused(file, "without exp_avg_sq", true);
  file = adam_of_two(kNumbers);
  file.at("state").toGenericDict().at(kNumbers[0]).toGenericDict().insert_or_assign("step", -1.0);
  refused(file, "a step is not a number", true);
  refused(dict(), "without states of Adam");
  folder_.write("names", "b.weight\n");
  refused(adam_of_two(kNumbers), "2 parameters, and 1 names", true);
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
    expect_refused(export_torch(asked), Code::kInvalidArgument, {"there exists already"});
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

TEST_F(ConvertTest, StatesAloneAreNoModel) {
  ASSERT_TRUE(import(adam_of_two({"b.weight", "a.bias"})).ok());
  const std::string path = folder_.path("step-000000007");
  checkpoints::Manifest manifest = *must(checkpoints::open_stored_folder(path)).manifest;
  std::erase_if(manifest.files, [](const auto& file) { return file.name.starts_with("model"); });
  manifest.left_out.emplace();
  manifest.states_alone = true;
  folder_.write("step-000000007/elixir.json", checkpoints::encode_manifest(manifest));
  expect_refused(export_torch({.checkpoint = path, .torch_file = folder_.path("out.pt")}),
                 Code::kBadInput, {path, "it holds states alone, without the model"});
  ImportRequest asked = request(write_torch(adam_of_two({"b.weight", "a.bias"})));
  asked.model = path;
  asked.output = folder_.path("again");
  expect_refused(import_torch(asked), Code::kBadInput, {path, "it holds states alone"});
}

// Bits, lengths and whole parts of a real file: an error, or what the file then says.
TEST_F(ConvertTest, HostileFilesAreErrors) {
  const std::string real =
      *read_text_file(write_torch(adam_of_two({"b.weight", "a.bias"}, /*two_groups=*/true)));
  std::mt19937_64 random(1);
  size_t refused = 0;
  const size_t tries = every_case() ? 20'000 : 1'000;
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
