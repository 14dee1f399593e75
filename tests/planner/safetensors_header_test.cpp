#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "checkpoint/safetensors.h"
#include "planner/estimate/stored_model.h"
#include "tests/support/temporary_folder.h"

namespace elixir::planner {
namespace {

using checkpoints::kMaxDimensions;
using checkpoints::kMaxHeaderBytes;
using checkpoints::kMaxNameBytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

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
  const Result<StoredModel> model =
      read_stored_model(folder.write("m.safetensors", file_of(kHeader, kDataBytes)));
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_THAT(names_of(*model), ElementsAre("a.weight", "b", "h.0.attn.c_attn.bias"));
  EXPECT_THAT(model->parameters[0].shape, ElementsAre(2, 3));
  EXPECT_EQ(model->parameters[0].numel(), 6u);
  EXPECT_EQ(model->parameters[1].numel(), 1u);
  EXPECT_EQ(model->buffers, 3u);
  EXPECT_EQ(model->buffer_bytes, 16u + 4 + 8);
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
  const Result<StoredModel> model = read_stored_model(path);
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ(model->parameters[0].numel(), uint64_t{1} << 39);
}

std::string refusal(const std::string& path) {
  const Result<StoredModel> model = read_stored_model(path);
  EXPECT_FALSE(model.ok()) << path;
  EXPECT_EQ(model.status().code(), Code::kBadInput) << path;
  EXPECT_THAT(model.status().message(), HasSubstr(path));
  return model.status().message();
}

TEST(SafetensorsHeader, FilesThatAreNone) {
  const TemporaryFolder folder;
  EXPECT_THAT(refusal(folder.path() + "/missing"), HasSubstr("No such file"));
  EXPECT_THAT(refusal(folder.path()), HasSubstr("not an ordinary file"));
  ASSERT_EQ(::mkfifo((folder.path() + "/pipe").c_str(), 0600), 0);
  EXPECT_THAT(refusal(folder.path() + "/pipe"), HasSubstr("not an ordinary file"));
  EXPECT_THAT(refusal(folder.write("empty", "")), HasSubstr("0 bytes are no safetensors file"));
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

std::string header_refusal(const std::string& header, uint64_t data_bytes = 4) {
  const Result<StoredModel> model = parse_safetensors_header(header, data_bytes);
  EXPECT_FALSE(model.ok()) << header;
  return model.status().message();
}

TEST(SafetensorsHeader, JsonThatIsNoHeader) {
  const std::string deep(1'000'000, '[');
  for (const std::string& header :
       {std::string(),
        std::string("{"),
        std::string("[]"),
        std::string("7"),
        std::string("null"),
        std::string("\xff\xfe\x00", 3),
        deep,
        "{\"a\":" + deep,
        std::string(R"({"a": 1})"),
        std::string(R"({"a": {"dtype": {}}})"),
        std::string(R"({"a": {"other": [1]}})"),
        std::string(R"({"a": {"shape": [-1]}})"),
        std::string(R"({"a": {"shape": [1.5]}})"),
        std::string(R"({"a": {"shape": [18446744073709551616]}})"),
        std::string(R"({"a": {"shape": [[1]]}})"),
        std::string(R"({"a": {"shape": ["1"]}})"),
        std::string(R"({"__metadata__": 1})"),
        std::string(R"({"__metadata__": {"a": [1]}})"),
        R"({"a": {"shape": [)" + std::string(2 * kMaxDimensions, '1') + "]}}",
        "{\"" + std::string(kMaxNameBytes + 1, 'a') + "\": {}}"}) {
    header_refusal(header);
  }
  std::string wide = R"({"a": {"dtype": "F32", "shape": [1)";
  for (size_t i = 0; i < kMaxDimensions; ++i) wide += ",1";
  EXPECT_THAT(header_refusal(wide + R"(], "data_offsets": [0, 4]}})"), HasSubstr("dimensions"));
}

TEST(SafetensorsHeader, EntriesThatContradictThemselves) {
  const auto entry = [](const char* dtype, const char* shape, const char* offsets) {
    return fmt::format(R"({{"w": {{"dtype": "{}", "shape": {}, "data_offsets": {}}}}})", dtype,
                       shape, offsets);
  };
  ASSERT_TRUE(parse_safetensors_header(entry("F32", "[1]", "[0, 4]"), 4).ok());
  EXPECT_THAT(header_refusal(entry("F31", "[1]", "[0, 4]")), HasSubstr("dtype"));
  EXPECT_THAT(header_refusal(entry("F32", "[2]", "[0, 4]")), HasSubstr("takes 8 bytes"));
  EXPECT_THAT(header_refusal(entry("F32", "[1]", "[0, 5]")), HasSubstr("not within"));
  EXPECT_THAT(header_refusal(entry("F32", "[1]", "[4, 0]")), HasSubstr("not within"));
  EXPECT_THAT(header_refusal(entry("F32", "[1]", "[18446744073709551612, 0]")),
              HasSubstr("not within"));
  EXPECT_THAT(header_refusal(entry("F32", "[1]", "[0]")), HasSubstr("two numbers"));
  EXPECT_THAT(header_refusal(entry("F32", "[1]", "[0, 4, 4]")), HasSubstr("two numbers"));
  // Products that wrap to what the offsets leave.
  EXPECT_THAT(header_refusal(entry("F32", "[4294967296, 4294967296, 1]", "[0, 0]")),
              HasSubstr("more elements"));
  EXPECT_THAT(header_refusal(entry("F32", "[4611686018427387905]", "[0, 4]")),
              HasSubstr("more elements"));
  EXPECT_THAT(header_refusal(entry("U8", "[9223372036854775808, 2]", "[0, 0]")),
              HasSubstr("more elements"));
  EXPECT_THAT(header_refusal(R"({"w": {"dtype": "F32", "data_offsets": [0, 4]}})"),
              HasSubstr("no shape"));
  EXPECT_THAT(header_refusal(R"({"v": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                                 "w": {"dtype": "F16", "shape": [1], "data_offsets": [2, 4]}})"),
              HasSubstr("another tensor's"));
  EXPECT_THAT(header_refusal(R"({"v": {"dtype": "F16", "shape": [1], "data_offsets": [0, 2]},
                                 "v": {"dtype": "F16", "shape": [1], "data_offsets": [2, 4]}})"),
              HasSubstr("listed twice"));
}

// Every beginning of a good file, and every single byte of it replaced: an answer or a refusal.
TEST(SafetensorsHeader, DamagedFilesEndInAnAnswer) {
  const std::string header = kHeader;
  for (size_t length = 0; length < header.size(); ++length) {
    EXPECT_FALSE(parse_safetensors_header(header.substr(0, length), kDataBytes).ok()) << length;
  }
  int refused = 0;
  for (size_t i = 0; i < header.size(); ++i) {
    for (const char byte : {'\0', '9', '"', '{', ']', '\xff'}) {
      std::string damaged = header;
      damaged[i] = byte;
      const Result<StoredModel> model = parse_safetensors_header(damaged, kDataBytes);
      refused += !model.ok();
      if (model.ok()) {
        EXPECT_LE(model->parameters.size(), 6u);
      }
    }
  }
  EXPECT_GT(refused, 1000);
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
  const Result<StoredModel> model = read_stored_model(index);
  ASSERT_TRUE(model.ok()) << model.status().message();
  // "extra" is in the file but not in the index.
  EXPECT_THAT(names_of(*model), ElementsAre("a", "b"));
}

TEST(SafetensorsIndex, SaysWhatIsWrong) {
  const TemporaryFolder folder;
  folder.write("1.safetensors", file_of(kShard1, 4));
  const auto index = [&](const std::string& text) {
    return refusal(folder.write("index.json", text));
  };
  for (const std::string& text :
       {std::string(), std::string("[]"), std::string("{}"), std::string(R"({"weight_map": []})"),
        std::string(1'000'000, '['), std::string("{\"weight_map\":" + std::string(100'000, '{'))}) {
    EXPECT_THAT(index(text), HasSubstr("'weight_map'"));
  }
  for (const char* shard : {"\"../1.safetensors\"", "\"/etc/passwd\"", "\"\"", "\"..\"", "3",
                            "{\"a\": \"b\"}", "\"1.safetensors\\u0000\""}) {
    EXPECT_THAT(index(fmt::format(R"({{"weight_map": {{"a": {}}}}})", shard)),
                HasSubstr("a file beside the index"))
        << shard;
  }
  const std::string missing = R"({"weight_map": {"a": "1.safetensors", "b": "1.safetensors"}})";
  const Result<StoredModel> short_shard = read_stored_model(folder.write("index.json", missing));
  ASSERT_FALSE(short_shard.ok());
  EXPECT_THAT(short_shard.status().message(), HasSubstr("the index gives it 2 tensors, it has 1"));
  const Result<StoredModel> no_shard =
      read_stored_model(folder.write("index.json", R"({"weight_map": {"a": "2.safetensors"}})"));
  ASSERT_FALSE(no_shard.ok());
  EXPECT_THAT(no_shard.status().message(), HasSubstr("2.safetensors: No such file"));
}

}  // namespace
}  // namespace elixir::planner
