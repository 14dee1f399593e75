#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "checkpoint/safetensors.h"
#include "planner/estimate/stored_model.h"
#include "tests/support/matchers.h"
#include "tests/support/temporary_folder.h"

namespace elixir::planner {
namespace {

using checkpoints::kMaxDimensions;
using checkpoints::kMaxHeaderBytes;
using checkpoints::kMaxNameBytes;

std::string file_of(const std::string& header, uint64_t data_bytes, uint64_t length) {
  std::string text;
  for (int i = 0; i < 8; ++i) text += static_cast<char>(length >> (8 * i) & 0xff);
  return text + header + std::string(data_bytes, 'x');
}
std::string file_of(const std::string& header, uint64_t data_bytes) {
  return file_of(header, data_bytes, header.size());
}

// The names in another order than their bytes; a mask and a rotary table that are no parameters.
constexpr const char* kHeader =
    R"({"__metadata__": {"format": "pt"},
        "b": {"dtype": "F32", "shape": [], "data_offsets": [12, 16]},
        "a.weight": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]},
        "h.0.attn.bias": {"dtype": "F32", "shape": [1, 1, 2, 2], "data_offsets": [16, 32]},
        "rotary_emb.inv_freq": {"dtype": "F32", "shape": [1], "data_offsets": [32, 36]},
        "steps": {"data_offsets": [36, 44], "shape": [1], "dtype": "I64"},
        "h.0.attn.c_attn.bias": {"dtype": "F16", "shape": [4], "data_offsets": [44, 52]}})";
constexpr uint64_t kDataBytes = 52;

std::vector<std::string> names_of(const StoredModel& model) {
  std::vector<std::string> names;
  for (const NamedShape& parameter : model.parameters) names.push_back(parameter.name);
  return names;
}

TEST(SafetensorsHeader, ParametersInTheOrderOfTheirBytes) {
  const TemporaryFolder folder;
  const StoredModel model =
      must(read_stored_model(folder.write("m.safetensors", file_of(kHeader, kDataBytes))));
  EXPECT_THAT(names_of(model), ElementsAre("a.weight", "b", "h.0.attn.c_attn.bias"));
  EXPECT_THAT(model.parameters[0].shape, ElementsAre(2, 3));
  EXPECT_EQ(model.parameters[0].numel(), 6u);
  EXPECT_EQ(model.parameters[1].numel(), 1u);
  EXPECT_EQ(model.buffers, 3u);
  EXPECT_EQ(model.buffer_bytes, 16u + 4 + 8);
}

// Only the header is read: the tensors of this file are a hole of a TiB.
TEST(SafetensorsHeader, TheTensorsAreNotRead) {
  const TemporaryFolder folder;
  const std::string header =
      R"({"w": {"dtype": "BF16", "shape": [549755813888], "data_offsets": [0, 1099511627776]}})";
  const std::string path = folder.write("m.safetensors", file_of(header, 0));
  std::error_code failure;
  std::filesystem::resize_file(path, 8 + header.size() + (uint64_t{1} << 40), failure);
  if (failure) GTEST_SKIP() << "the file system holds no file with a hole of 1 TiB";
  const StoredModel model = must(read_stored_model(path));
  EXPECT_EQ(model.parameters[0].numel(), uint64_t{1} << 39);
}

std::string refusal(const std::string& path) {
  const std::string message = refusal_of(read_stored_model(path).status(), Code::kBadInput);
  EXPECT_THAT(message, HasSubstr(path));
  return message;
}

TEST(SafetensorsHeader, FilesThatAreNone) {
  const TemporaryFolder folder;
  EXPECT_THAT(refusal(folder.path() + "/missing"), HasSubstr("No such file"));
  EXPECT_THAT(refusal(folder.path()), HasSubstr("no model.safetensors"));
  ASSERT_EQ(::mkfifo((folder.path() + "/pipe").c_str(), 0600), 0);
  EXPECT_THAT(refusal(folder.path() + "/pipe"), HasSubstr("not an ordinary file"));
  EXPECT_THAT(refusal(folder.write("empty", "")), HasSubstr("0 bytes are not a safetensors file"));
  EXPECT_THAT(refusal(folder.write("short", "1234567")), HasSubstr("7 bytes"));
  for (uint64_t length : {uint64_t{3}, uint64_t{1} << 40, UINT64_MAX, UINT64_MAX - 7}) {
    EXPECT_THAT(refusal(folder.write("long", file_of("{}", 0, length))), HasSubstr("cut off"));
  }
  // As long as the file, but beyond the limit: refused before it is read.
  const std::string huge = folder.write("huge", file_of("{}", 0, kMaxHeaderBytes + 1));
  std::filesystem::resize_file(huge, 2 * kMaxHeaderBytes);
  EXPECT_THAT(refusal(huge), HasSubstr("are the most"));
  EXPECT_THAT(refusal(folder.write("none", file_of("{}", 0))), HasSubstr("no parameters"));
}

// What its reader refuses, beside what tests/checkpoint asks it.
TEST(SafetensorsHeader, WhatIsNoneIsRefusedWithItsReason) {
  const auto entry = [](const char* dtype, const std::string& shape, const char* offsets) {
    return fmt::format(R"({{"w": {{"dtype": "{}", "shape": {}, "data_offsets": {}}}}})", dtype,
                       shape, offsets);
  };
  ASSERT_TRUE(parse_safetensors_header(entry("F32", "[1]", "[0, 4]"), 4).ok());
  const std::string deep(1'000'000, '[');
  std::string wide = "[1";
  for (size_t i = 0; i < kMaxDimensions; ++i) wide += ",1";
  const std::pair<std::string, const char*> kHeaders[] = {
      {deep, "not JSON"},
      {"{\"a\":" + deep, "where none belongs"},
      {"null", "not JSON"},
      {std::string("\xff\xfe\x00", 3), "not JSON"},
      {R"({"a": 1})", "a number"},
      {R"({"a": {"dtype": {}}})", "an object"},
      {R"({"a": {"other": [1]}})", "'other'"},
      {R"({"__metadata__": 1})", "a number"},
      {R"({"__metadata__": {"a": [1]}})", "a list"},
      {"{\"" + std::string(kMaxNameBytes + 1, 'a') + "\": {}}", "a name that is too long"},
      {entry("F32", "[-1]", "[0, 4]"), "a negative number"},
      {entry("F32", "[1.5]", "[0, 4]"), "not whole"},
      {entry("F32", "[18446744073709551616]", "[0, 4]"), "too large"},
      {entry("F32", "[[1]]", "[0, 4]"), "a list"},
      {entry("F32", "[\"1\"]", "[0, 4]"), "text"},
      {entry("F32", wide + "]", "[0, 4]"), "dimensions"},
      {entry("F31", "[1]", "[0, 4]"), "dtype"},
      {entry("F32", "[1]", "[4, 0]"), "not within"},
      {entry("F32", "[1]", "[0]"), "two numbers"},
      {entry("F32", "[1]", "[0, 4, 4]"), "two numbers"},
      {R"({"v": {"dtype": "F16", "shape": [1], "data_offsets": [0, 2]},
           "v": {"dtype": "F16", "shape": [1], "data_offsets": [2, 4]}})",
       "listed twice"},
  };
  for (const auto& [header, why] : kHeaders) {
    SCOPED_TRACE(header.substr(0, 100));
    expect_refused(parse_safetensors_header(header, 4).status(), Code::kBadInput, {why});
  }
}

// ---- quantised weights ----

struct StoredTensor {
  const char *name, *dtype;
  std::vector<int64_t> shape;
};

// A header of those tensors, one behind another, and its bytes of tensors.
std::pair<std::string, uint64_t> header_of(const std::vector<StoredTensor>& tensors) {
  std::string text;
  uint64_t end = 0;
  for (const StoredTensor& tensor : tensors) {
    const uint64_t begin = end;
    end += NamedShape{tensor.name, tensor.shape}.numel() *
           checkpoints::find_dtype(tensor.dtype)->bytes;
    text += fmt::format(R"({}"{}": {{"dtype": "{}", "shape": [{}], "data_offsets": [{}, {}]}})",
                        text.empty() ? "" : ", ", tensor.name, tensor.dtype,
                        fmt::join(tensor.shape, ", "), begin, end);
  }
  return {"{" + text + "}", end};
}

struct Quantised {
  const char* type;
  uint64_t params;  // of the weight, [64, 96] or [96, 64]
  std::vector<StoredTensor> tensors;
};

// As the quantisers write them, beside a norm of 64 elements.
TEST(Quantised, WeightsCountAsTheParametersThatTheyStandFor) {
  constexpr uint64_t kParams = 64 * 96;
  const Quantised kinds[] = {
      {"int8", kParams, {{"l.weight", "I8", {64, 96}}}},
      {"int8", kParams, {{"w", "I8", {64, 96}}}},
      {"int8",
       kParams,  // bitsandbytes
       {{"l.SCB", "F32", {64}}, {"l.weight", "I8", {64, 96}}, {"l.weight_format", "U8", {}}}},
      {"int8",
       kParams,  // compressed-tensors
       {{"l.weight", "I8", {64, 96}}, {"l.weight_scale", "BF16", {64, 1}}}},
      {"fp8 (F8_E4M3)",
       kParams,
       {{"l.input_scale", "F32", {}},
        {"l.weight", "F8_E4M3", {64, 96}},
        {"l.weight_scale", "F32", {}}}},
      {"fp8 (F8_E5M2)",
       kParams,  // DeepSeek's blocks
       {{"l.weight", "F8_E5M2", {64, 96}}, {"l.weight_scale_inv", "F32", {1, 1}}}},
      {"4-bit (bitsandbytes)",
       kParams,
       {{"l.weight", "U8", {kParams / 2, 1}},
        {"l.weight.absmax", "F32", {96}},
        {"l.weight.quant_map", "F32", {16}},
        {"l.weight.quant_state.bitsandbytes__nf4", "U8", {90}}}},
      {"4-bit (bitsandbytes)",
       kParams,  // quant_storage=bfloat16, nested
       {{"l.weight", "BF16", {kParams / 4, 1}},
        {"l.weight.absmax", "U8", {96}},
        {"l.weight.nested_absmax", "F32", {1}},
        {"l.weight.nested_quant_map", "F32", {256}},
        {"l.weight.quant_map", "F32", {16}},
        {"l.weight.quant_state.bitsandbytes__fp4", "U8", {90}}}},
      {"4-bit (GPTQ)",
       kParams,
       {{"l.g_idx", "I32", {64}},
        {"l.qweight", "I32", {8, 96}},
        {"l.qzeros", "I32", {1, 12}},
        {"l.scales", "F16", {1, 96}}}},
      {"3-bit (GPTQ)",
       kParams,
       {{"l.qweight", "I32", {6, 96}}, {"l.qzeros", "I32", {1, 9}}, {"l.scales", "F16", {1, 96}}}},
      {"8-bit (GPTQ)",
       kParams,
       {{"l.qweight", "I32", {16, 96}},
        {"l.qzeros", "I32", {1, 24}},
        {"l.scales", "F16", {1, 96}}}},
      {"4-bit (AWQ)",
       kParams,
       {{"l.qweight", "I32", {64, 12}},
        {"l.qzeros", "I32", {2, 12}},
        {"l.scales", "F16", {2, 96}}}},
      {"4-bit (compressed-tensors)",
       kParams,
       {{"l.weight_packed", "I32", {64, 12}},
        {"l.weight_scale", "BF16", {64, 1}},
        {"l.weight_shape", "I64", {2}}}},
      {"4-bit (MXFP4)", kParams, {{"l_blocks", "U8", {2, 64, 24}}, {"l_scales", "U8", {2, 64, 3}}}},
  };
  for (const Quantised& kind : kinds) {
    SCOPED_TRACE(kind.type);
    std::vector<StoredTensor> tensors = kind.tensors;
    tensors.push_back({"norm.weight", "BF16", {64}});
    const auto [header, bytes] = header_of(tensors);
    const StoredModel model = must(parse_safetensors_header(header, bytes));
    ASSERT_THAT(model.quantised, SizeIs(1));
    EXPECT_EQ(model.quantised[0].type, kind.type);
    EXPECT_EQ(model.quantised[0].params, kind.params);
    EXPECT_EQ(model.quantised[0].tensors, 1u);
    uint64_t params = 0;
    for (const NamedShape& parameter : model.parameters) params += parameter.numel();
    EXPECT_EQ(params, kind.params + 64) << "scales and zero points are none";
    EXPECT_EQ(model.buffers, tensors.size() - 2);
  }
}

TEST(Quantised, AnOrdinaryModelHasNone) {
  const StoredModel model = must(parse_safetensors_header(kHeader, kDataBytes));
  EXPECT_THAT(model.quantised, IsEmpty());
  // Without a quantised weight these names mean nothing.
  const auto [header, bytes] =
      header_of({{"a.scale", "F32", {4}}, {"b.weight_scale", "BF16", {2}}, {"m", "U8", {3, 3}}});
  EXPECT_THAT(names_of(must(parse_safetensors_header(header, bytes))),
              ElementsAre("a.scale", "b.weight_scale"));
}

// Sizes that anybody may have written: no figure wraps, and bits are those of a quantiser.
TEST(Quantised, HostileSizesAreNoFigures) {
  constexpr int64_t kLong = int64_t{1} << 40;
  for (const std::vector<StoredTensor>& tensors :
       {std::vector<StoredTensor>{{"l.qweight", "I32", {2, 1}}, {"l.scales", "F16", {1, kLong}}},
        {{"l.qweight", "I32", {2, 1}}, {"l.scales", "F16", {1, 0}}},
        {{"l.qweight", "I32", {2, 1}}, {"l.qzeros", "I32", {1, kLong}}},
        {{"l.qweight", "I32", {kLong, kLong >> 24}}}}) {
    const auto [header, bytes] = header_of(tensors);
    const StoredModel model = must(parse_safetensors_header(header, bytes));
    ASSERT_THAT(model.quantised, SizeIs(1));
    EXPECT_LE(model.quantised[0].params, 4 * model.quantised[0].bytes);
    EXPECT_GT(model.quantised[0].params, 0u);
  }
}

constexpr const char* kShard1 = R"({"a": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}})";
constexpr const char* kShard2 =
    R"({"b": {"dtype": "BF16", "shape": [3], "data_offsets": [0, 6]},
        "extra": {"dtype": "BF16", "shape": [1], "data_offsets": [6, 8]}})";

TEST(SafetensorsIndex, ReadsTheShardsBesideIt) {
  const TemporaryFolder folder;
  folder.write("1.safetensors", file_of(kShard1, 4));
  folder.write("2.safetensors", file_of(kShard2, 8));
  const std::string index = folder.write("model.safetensors.index.json",
                                         R"({"metadata": {"total_size": 10},
                "weight_map": {"b": "2.safetensors", "a": "1.safetensors"}})");
  const StoredModel model = must(read_stored_model(index));
  // "extra" is in the file but not in the index.
  EXPECT_THAT(names_of(model), ElementsAre("a", "b"));
  EXPECT_THAT(names_of(must(read_stored_model(folder.path()))), ElementsAre("a", "b"));
}

// GPTQ's scales may lie in another shard than the weights.
TEST(SafetensorsIndex, QuantisedWeightsAreFoundOverShards) {
  const TemporaryFolder folder;
  const auto write = [&](const char* name, const std::vector<StoredTensor>& tensors) {
    const auto [header, bytes] = header_of(tensors);
    folder.write(name, file_of(header, bytes));
  };
  write("1", {{"l.qweight", "I32", {64, 12}}});
  write("2", {{"l.scales", "F16", {2, 96}}, {"n.weight", "F16", {64}}});
  const StoredModel model = must(read_stored_model(folder.write(
      "index.json", R"({"weight_map": {"l.qweight": "1", "l.scales": "2", "n.weight": "2"}})")));
  ASSERT_THAT(model.quantised, SizeIs(1));
  EXPECT_EQ(model.quantised[0].type, "4-bit (AWQ)");
  EXPECT_EQ(model.quantised[0].params, 64u * 96);
  EXPECT_THAT(names_of(model), ElementsAre("l.qweight", "n.weight"));
}

TEST(SafetensorsIndex, SaysWhatIsWrong) {
  const TemporaryFolder folder;
  folder.write("1.safetensors", file_of(kShard1, 4));
  const auto with_shard = [](const char* shard) {
    return fmt::format(R"({{"weight_map": {{"a": {}}}}})", shard);
  };
  const std::pair<std::string, const char*> kIndices[] = {
      {"", "'weight_map'"},
      {"[]", "'weight_map'"},
      {"{}", "'weight_map'"},
      {R"({"weight_map": []})", "'weight_map'"},
      {"{\"weight_map\":" + std::string(100'000, '{'), "'weight_map'"},
      {with_shard("\"../1.safetensors\""), "a file beside the index"},
      {with_shard("\"/etc/passwd\""), "a file beside the index"},
      {with_shard("\"\""), "a file beside the index"},
      {with_shard("\"..\""), "a file beside the index"},
      {with_shard("3"), "a file beside the index"},
      {with_shard("{\"a\": \"b\"}"), "a file beside the index"},
      {with_shard("\"1.safetensors\\u0000\""), "a file beside the index"},
      {R"({"weight_map": {"a": "1.safetensors", "b": "1.safetensors"}})",
       "the index gives it 2 tensors, it has 1"},
      {with_shard("\"2.safetensors\""), "2.safetensors: No such file"},
  };
  for (const auto& [text, why] : kIndices) {
    SCOPED_TRACE(text.substr(0, 100));
    expect_refused(read_stored_model(folder.write("index.json", text)).status(), Code::kBadInput,
                   {folder.path(), why});
  }
}

}  // namespace
}  // namespace elixir::planner
