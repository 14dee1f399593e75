#include "checkpoint/file_plan.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "checkpoint/safetensors.h"
#include "tests/support/matchers.h"

namespace elixir::checkpoints {
namespace {

using nlohmann::json;

// Chunks 0 to 2 are trained, 3 is frozen; numbers of elements are odd, and the order of the list is
// not that of the chunks.
std::vector<SavedParameter> parameters() {
  return {{"c", {1}, 1, 0, 1},
          {"a", {3, 5}, 0, 0, 15},
          {"b", {7}, 0, 128, 7},
          {"scalar", {}, 2, 0, 1},
          {"d", {2, 0, 3}, 2, 128, 0},
          {"e", {33}, 2, 256, 33},
          {"frozen", {3, 3}, 3, 0, 9, false}};
}

std::vector<ExtraTensor> extras() {
  return {{"mask", find_dtype("BOOL"), {3}},
          {"seen", find_dtype("I64"), {}},
          {"inv_freq", find_dtype("F32"), {5}},
          {"half", find_dtype("F16"), {3}},
          {"nothing", find_dtype("F32"), {0}}};
}

FilePlan plan_of(const FileChoice& choice) {
  return must(plan_files(parameters(), extras(), choice));
}

std::string_view header_of(const FilePlan::File& file) {
  uint64_t length = 0;
  std::memcpy(&length, file.header.data(), sizeof length);
  EXPECT_EQ(length + sizeof length, file.header.size());
  return std::string_view(file.header).substr(sizeof length);
}

// As a reader takes them: in the order of their bytes, of which each is one tensor's.
Result<std::vector<TensorEntry>> tensors_of(const FilePlan::File& file) {
  return parse_header(header_of(file), file.bytes - file.header.size());
}

using Place = std::tuple<uint32_t, uint64_t, uint64_t>;  // file, begin, end

// Of every array that the plan places, by the name that it has in the file.
std::map<std::string, Place> places_of(const FilePlan& plan) {
  const std::vector<SavedParameter> all = parameters();
  std::map<std::string, Place> places;
  const auto add = [&](const std::string& name, const Place& place) {
    EXPECT_TRUE(places.emplace(name, place).second) << name;
  };
  for (const std::vector<PlannedTensor>& chunk : plan.chunks) {
    for (const PlannedTensor& array : chunk) {
      const std::string& of = all[array.parameter].name;
      const bool param = array.kind == StateKind::kParam;
      add(param ? of : "state." + of + "." + state_name(array.kind),
          {array.file, array.offset, array.offset + array.bytes});
    }
  }
  for (const FilePlan::Scalar& step : plan.steps) {
    add("state." + all[step.parameter].name + ".step", {step.file, step.offset, step.offset + 4});
  }
  for (const PlannedTensor& extra : plan.extras) {
    add(extras()[extra.parameter].name, {extra.file, extra.offset, extra.offset + extra.bytes});
  }
  return places;
}

// What is wrong with the plan, "" for nothing: each byte of a file belongs to its header or to one
// tensor, tensors begin at multiples of their elements' bytes, and lie where the plan has them.
std::string fault_of(const FilePlan& plan) {
  std::map<std::string, Place> places = places_of(plan);
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < plan.files.size(); ++i) {
    const uint64_t begin = plan.files[i].header.size();
    const auto tensors = tensors_of(plan.files[i]);
    if (!tensors.ok()) return tensors.status().message();
    for (const TensorEntry& tensor : *tensors) {
      if ((begin + tensor.begin) % tensor.dtype->bytes != 0) return tensor.name + " is unaligned";
      if (places[tensor.name] != Place(i, begin + tensor.begin, begin + tensor.end)) {
        return tensor.name + " lies elsewhere";
      }
      places.erase(tensor.name);
    }
    bytes += plan.files[i].bytes;
  }
  if (!places.empty()) return places.begin()->first + " is in no file";
  return bytes == plan.bytes ? "" : "the sum is wrong";
}

class Plans : public ::testing::TestWithParam<std::tuple<ComputeType, uint64_t>> {
 protected:
  const ComputeType type_ = std::get<0>(GetParam());
  const FilePlan plan_ = plan_of({.type = type_, .max_file_bytes = std::get<1>(GetParam())});
};

INSTANTIATE_TEST_SUITE_P(
    All, Plans,
    ::testing::Combine(::testing::Values(ComputeType::kBf16, ComputeType::kFp16,
                                         ComputeType::kFp32),
                       ::testing::Values(uint64_t{1}, uint64_t{40}, uint64_t{1} << 40)));

TEST_P(Plans, EveryByteBelongsToOneTensorWhichIsAligned) { EXPECT_EQ(fault_of(plan_), ""); }

TEST_P(Plans, AStateThatIsMovedByAByteIsSeen) {
  FilePlan moved = plan_;
  moved.chunks.at(0).at(0).offset += 1;
  EXPECT_EQ(fault_of(moved), "a lies elsewhere");
  FilePlan longer = plan_;
  longer.files.at(0).bytes += 1;
  EXPECT_THAT(fault_of(longer), HasSubstr("belong to no tensor"));
}

TEST_P(Plans, StatesCompleteTheParameterToItsMaster) {
  const std::map<std::string, Place> places = places_of(plan_);
  EXPECT_EQ(places.contains("state.a.master_low"), type_ == ComputeType::kBf16);
  EXPECT_EQ(places.contains("state.a.master"), type_ == ComputeType::kFp16);
  for (const char* const state : {"exp_avg", "exp_avg_sq", "step"}) {
    EXPECT_TRUE(places.contains(std::string("state.a.") + state));
    EXPECT_FALSE(places.contains(std::string("state.frozen.") + state));
  }
  EXPECT_TRUE(places.contains("frozen"));
  // One for each that is trained.
  EXPECT_EQ(plan_.steps.size(), 6u);
}

TEST_P(Plans, AChunkIsOneRunOfEachFileAndWidth) {
  for (const std::vector<PlannedTensor>& chunk : plan_.chunks) {
    std::map<std::pair<uint32_t, bool>, uint64_t> end;  // by file, and whether it is of 2 bytes
    std::set<bool> model_files;
    std::set<uint32_t> files;
    for (const PlannedTensor& array : chunk) {
      const bool narrow = array.kind == StateKind::kMasterLow;
      const auto [known, first] = end.try_emplace({array.file, narrow}, array.offset);
      EXPECT_EQ(known->second, array.offset) << array.parameter << state_name(array.kind);
      known->second = array.offset + array.bytes;
      files.insert(array.file);
      model_files.insert(array.kind == StateKind::kParam);
    }
    EXPECT_EQ(files.size(), model_files.size());  // one of the model's, one of the optimizer's
    EXPECT_TRUE(std::is_sorted(chunk.begin(), chunk.end(), [](const auto& a, const auto& b) {
      return std::pair(a.file, a.offset) < std::pair(b.file, b.offset);
    }));
  }
}

TEST_P(Plans, AFileHasMoreThanItMayOnlyWithOneChunk) {
  const uint64_t most = std::get<1>(GetParam());
  std::map<uint32_t, std::set<uint64_t>> units;
  for (uint64_t chunk = 0; chunk < plan_.chunks.size(); ++chunk) {
    for (const PlannedTensor& array : plan_.chunks[chunk]) {
      if (array.bytes > 0) units[array.file].insert(chunk);
    }
  }
  for (const PlannedTensor& extra : plan_.extras) {
    if (extra.bytes > 0) units[extra.file].insert(1000 + extra.parameter);
  }
  for (uint32_t i = 0; i < plan_.files.size(); ++i) {
    const uint64_t data = plan_.files[i].bytes - plan_.files[i].header.size();
    EXPECT_TRUE(data <= most || units[i].size() == 1) << plan_.files[i].name << ": " << data;
  }
  EXPECT_EQ(plan_.files.size() == 2, most > 1000);
}

std::vector<std::string> tensor_names_in(const FilePlan::File& file) {
  std::vector<std::string> names;
  for (const TensorEntry& tensor : must(tensors_of(file))) names.push_back(tensor.name);
  return names;
}

TEST(FilePlan, TheWidestTypesComeFirstThenChunksInTheirOrder) {
  const std::vector<SavedParameter> two = {{"b", {3}, 1, 0, 3}, {"a", {5}, 0, 0, 5}};
  const std::vector<ExtraTensor> extras = {{"flag", find_dtype("BOOL"), {1}},
                                           {"scale", find_dtype("F32"), {3}},
                                           {"seen", find_dtype("I64"), {}}};
  const FilePlan plan = must(plan_files(two, extras, {.type = ComputeType::kBf16}));
  ASSERT_EQ(plan.files.size(), 2u);
  EXPECT_EQ(plan.files[0].name, "model-00001-of-00001.safetensors");
  EXPECT_THAT(tensor_names_in(plan.files[0]), ElementsAre("seen", "scale", "a", "b", "flag"));
  EXPECT_EQ(plan.files[1].name, "optimizer/optimizer-00001-of-00001.safetensors");
  EXPECT_THAT(tensor_names_in(plan.files[1]),
              ElementsAre("state.a.step", "state.b.step", "state.a.exp_avg", "state.a.exp_avg_sq",
                          "state.b.exp_avg", "state.b.exp_avg_sq", "state.a.master_low",
                          "state.b.master_low"));
}

TEST(FilePlan, HeadersSayTypesShapesAndWhoseFormatItIs) {
  const FilePlan plan = plan_of({.type = ComputeType::kFp16});
  const json model = json::parse(header_of(plan.files[0]));
  EXPECT_EQ(model["__metadata__"]["format"], "pt");  // without it transformers reads nothing
  EXPECT_EQ(model["a"]["dtype"], "F16");
  EXPECT_EQ(model["a"]["shape"], json({3, 5}));
  EXPECT_EQ(model["scalar"]["shape"], json::array());
  EXPECT_EQ(model["mask"]["dtype"], "BOOL");
  const json states = json::parse(header_of(plan.files[1]));
  EXPECT_EQ(states["state.a.master"]["dtype"], "F32");
  EXPECT_EQ(states["state.a.master"]["shape"], json({3, 5}));
  EXPECT_EQ(states["state.a.step"]["shape"], json::array());
}

TEST(FilePlan, TheIndexNamesTheFileOfEachTensorOfTheModel) {
  for (const uint64_t most : {uint64_t{1}, uint64_t{1} << 40}) {
    const FilePlan plan = plan_of({.type = ComputeType::kBf16, .max_file_bytes = most});
    const json index = json::parse(plan.index);
    std::map<std::string, std::string> found;
    uint64_t bytes = 0;
    for (const FilePlan::File& file : plan.files) {
      if (file.name.starts_with("optimizer/")) continue;
      for (const TensorEntry& tensor : must(tensors_of(file))) {
        found[tensor.name] = file.name;
        bytes += tensor.end - tensor.begin;
      }
    }
    EXPECT_EQ(index["weight_map"], json(found));
    EXPECT_EQ(index["metadata"]["total_size"], bytes);
    EXPECT_EQ(found.size(), parameters().size() + extras().size());
  }
}

TEST(FilePlan, FilesAreNumberedFromOneWithTheirNumber) {
  const FilePlan plan = plan_of({.type = ComputeType::kFp32, .max_file_bytes = 1});
  std::vector<std::string> optimizer;
  for (const FilePlan::File& file : plan.files) {
    if (file.name.starts_with("optimizer/")) optimizer.push_back(file.name);
  }
  EXPECT_THAT(optimizer, ElementsAre("optimizer/optimizer-00001-of-00003.safetensors",
                                     "optimizer/optimizer-00002-of-00003.safetensors",
                                     "optimizer/optimizer-00003-of-00003.safetensors"));
}

TEST(FilePlan, WithoutStatesThereIsTheModelAlone) {
  const FilePlan plan = plan_of({.type = ComputeType::kBf16, .optimizer_states = false});
  ASSERT_EQ(plan.files.size(), 1u);
  EXPECT_EQ(fault_of(plan), "");
  EXPECT_TRUE(plan.steps.empty());
}

TEST(FilePlan, WhatIsNotTrainedMayBeLeftOut) {
  const std::vector<SavedParameter> some = {{"a", {4}, 0, 0, 4, true}, {"b", {8}, 1, 0, 8, false}};
  const FilePlan plan = must(plan_files(some, {}, {.frozen = false}));
  ASSERT_EQ(plan.chunks.size(), 1u);
  for (const PlannedTensor& tensor : plan.chunks[0]) EXPECT_EQ(tensor.parameter, 0u);
  EXPECT_THAT(plan.index, Not(HasSubstr("\"b\"")));
  EXPECT_EQ(must(plan_files(some, {}, {})).chunks.size(), 2u);
}

TEST(FilePlan, StatesAloneAreTheFilesOfTheOptimizer) {
  const std::vector<SavedParameter> some = {{"a", {4}, 0, 0, 4, true}, {"b", {8}, 1, 0, 8, false}};
  const ExtraTensor extra{"table", find_dtype("I64"), {3}};
  const FilePlan plan = must(plan_files(some, {&extra, 1}, {.model = false}));
  ASSERT_EQ(plan.files.size(), 1u);
  EXPECT_EQ(plan.files[0].name, "optimizer/optimizer-00001-of-00001.safetensors");
  EXPECT_EQ(plan.index, "");
  EXPECT_TRUE(plan.extras.empty());
  EXPECT_EQ(plan.steps.size(), 1u);
  for (const PlannedTensor& tensor : plan.chunks[0]) EXPECT_NE(tensor.kind, StateKind::kParam);
  for (const FileChoice& choice :
       {FileChoice{.model = false}, FileChoice{.optimizer_states = false, .model = false}}) {
    const auto of = choice.optimizer_states ? std::span(some).subspan(1) : std::span(some);
    EXPECT_THAT(plan_files(of, {}, choice).status().message(), HasSubstr("there are none"));
  }
}

TEST(FilePlan, AModelOfWhichNothingIsTrainedHasNoStates) {
  const std::vector<SavedParameter> frozen = {{"a", {4}, 0, 0, 4, false}};
  const FilePlan plan = must(plan_files(frozen, {}, {}));
  EXPECT_EQ(plan.files.size(), 1u);
}

std::string plan_refusal(const std::vector<SavedParameter>& parameters,
                         const std::vector<ExtraTensor>& extras = {}) {
  return refusal_of(plan_files(parameters, extras, {}).status(), Code::kBadInput);
}

TEST(FilePlan, WhatNoFileCanHoldIsRefused) {
  EXPECT_THAT(plan_refusal({}), HasSubstr("without a tensor"));
  EXPECT_THAT(plan_refusal({{"a", {3}, 0, 0, 4}}),
              HasSubstr("'a' has 4 elements, and a shape of [3]"));
  EXPECT_THAT(plan_refusal({{"a", {-1, -4}, 0, 0, 4}}), HasSubstr("[-1, -4]"));
  EXPECT_THAT(plan_refusal({{"a", {INT64_MAX, INT64_MAX}, 0, 0, 1}}), HasSubstr("a shape of"));
  EXPECT_THAT(plan_refusal({{"a", std::vector<int64_t>(17, 1), 0, 0, 1}}), HasSubstr("a shape of"));
  EXPECT_THAT(plan_refusal({{"a", {4}, 0, 0, 4}, {"a", {4}, 0, 128, 4}}), HasSubstr("two tensors"));
  EXPECT_THAT(plan_refusal({{"a", {4}, 0, 0, 4}}, {{"a", find_dtype("F32"), {4}}}),
              HasSubstr("two tensors named 'a'"));
  EXPECT_THAT(plan_refusal({{"", {4}, 0, 0, 4}}), HasSubstr("name of 0 bytes"));
  EXPECT_THAT(plan_refusal({{std::string(1025, 'x'), {4}, 0, 0, 4}}), HasSubstr("1025 bytes"));
  EXPECT_THAT(plan_refusal({{"\xff", {4}, 0, 0, 4}}), HasSubstr("cannot have a tensor named"));
  EXPECT_THAT(plan_refusal({{"__metadata__", {4}, 0, 0, 4}}),
              HasSubstr("cannot have a tensor named"));
  EXPECT_THAT(plan_refusal({}, {{"x", find_dtype("F32"), {-1}}}), HasSubstr("'x'"));
  EXPECT_THAT(plan_refusal({}, {{"x", nullptr, {1}}}), HasSubstr("'x'"));
  const int64_t huge = int64_t{1} << 60;
  EXPECT_THAT(
      plan_refusal({}, {{"x", find_dtype("F32"), {huge - 1}}, {"y", find_dtype("F32"), {huge}}}),
      HasSubstr("more bytes than a file system"));
}

// A name as long as the parameter table allows is a tensor's still, with what states add to it.
TEST(FilePlan, TheLongestNameHasStates) {
  const std::vector<SavedParameter> one = {{std::string(1024, 'x'), {4}, 0, 0, 4}};
  const FilePlan plan = must(plan_files(one, {}, {.type = ComputeType::kBf16}));
  for (const TensorEntry& tensor : must(tensors_of(plan.files[1]))) {
    EXPECT_LE(tensor.name.size(), kMaxNameBytes);
  }
}

}  // namespace
}  // namespace elixir::checkpoints
