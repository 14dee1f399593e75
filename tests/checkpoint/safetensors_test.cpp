#include "checkpoint/safetensors.h"

#include <fcntl.h>

#include "base/fd.h"
#include "tests/checkpoint/small_checkpoint.h"
#include "tests/support/matchers.h"

namespace elixir::checkpoints {
namespace {

std::string refusal(std::string_view header, uint64_t data_bytes) {
  return refusal_of(parse_header(header, data_bytes).status(), Code::kBadInput);
}

std::string one(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return fmt::format(R"({{"test":{{"dtype":"{}","shape":{},"data_offsets":{}}}}})", dtype, shape,
                     offsets);
}

TEST(Safetensors, AHeaderReadsAsItWasWritten) {
  const TemporaryFolder folder;
  const auto tensors = small_tensors({{"a \"quoted\" name", "F32", {2, 3}},
                                      {"scalar", "F32", {}},
                                      {"empty", "F64", {4, 0}},
                                      {"b", "I16", {5}}},
                                     1);
  const std::string bytes = small_file(tensors);
  const UniqueFd file(::open(folder.write("m.safetensors", bytes).c_str(), O_RDONLY));
  const Header header = must(read_header(file.get()));
  ASSERT_EQ(header.tensors.size(), tensors.size());
  EXPECT_EQ(header.data_begin % 64, 0u);
  for (const TensorEntry& entry : header.tensors) {
    const auto written = std::find_if(tensors.begin(), tensors.end(), [&](const auto& tensor) {
      return tensor.name == entry.name;
    });
    ASSERT_NE(written, tensors.end()) << entry.name;
    EXPECT_EQ(entry.dtype->name, written->dtype);
    EXPECT_EQ(entry.shape, written->shape);
    EXPECT_EQ(bytes.substr(header.data_begin + entry.begin, entry.end - entry.begin),
              written->bytes);
  }
}

TEST(Safetensors, TensorsComeInTheOrderOfTheirBytes) {
  const auto tensors = must(parse_header(
      R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},"__metadata__":{"k":"v"},
          "a":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}})",
      3));
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_THAT(tensors[0].shape, ElementsAre(1));
  EXPECT_TRUE(tensors[0].dtype->floating);
  EXPECT_EQ(tensors[1].numel(), 1u);
}

// As the format's own reader does: transformers reads such files.
TEST(Safetensors, MetadataOfNullIsNone) {
  for (const char* header :
       {R"({"__metadata__":null,"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
        R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"__metadata__":null})"}) {
    EXPECT_EQ(must(parse_header(header, 1)).size(), 1u) << header;
  }
  for (const char* header :
       {R"({"a":null})", R"({"__metadata__":{"a":null}})", R"({"__metadata__":[]})",
        R"({"__metadata__":null,"a":null})", R"({"a":{"dtype":null}})"}) {
    EXPECT_FALSE(parse_header(header, 0).ok()) << header;
  }
}

// The shapes with which readers of this format were attacked, those of its own tests among them.
TEST(Safetensors, KnownAttacks) {
  // Products that wrap: over elements, over elements times bytes, over two sizes to 0 or to 16.
  for (const char* shape : {"[2,18446744073709551614]", "[2,9223372036854775807]",
                            "[4294967296,4294967296]", "[9223372036854775808,2]",
                            "[4611686018427387908]", "[18446744073709551615,18446744073709551615]",
                            "[9223372036854775807,9223372036854775807,0]"}) {
    EXPECT_THAT(refusal(one("I32", shape, "[0,16]"), 16),
                AllOf(HasSubstr("'test'"), HasSubstr("more elements than can be counted")))
        << shape;
  }
  EXPECT_THAT(refusal(one("I32", "[2,2]", "[0,4]"), 4), HasSubstr("takes 16 bytes"));
  EXPECT_THAT(refusal(one("I32", "[1]", "[18446744073709551615,3]"), 4), HasSubstr("not within"));
  EXPECT_THAT(refusal(one("I32", "[1]", "[0,18446744073709551615]"), 4), HasSubstr("not within"));
  EXPECT_TRUE(parse_header(one("I32", "[2,0]", "[0,0]"), 0).ok());
  // White space before the JSON, a header of another kind, text behind it.
  EXPECT_THAT(refusal("\t\n{}\r ", 0), HasSubstr("not JSON"));
  EXPECT_THAT(refusal("[]", 0), HasSubstr("not JSON"));
  EXPECT_THAT(refusal("{} {}", 0), HasSubstr("not JSON"));
  EXPECT_TRUE(parse_header("{}      ", 0).ok());
  // A few bytes of the file, a thousand times the tensor.
  std::string many = "{";
  for (int i = 0; i < 1000; ++i) {
    many += fmt::format(R"({}"w{}":{{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}})",
                        i == 0 ? "" : ",", i);
  }
  EXPECT_THAT(refusal(many + "}", 16), HasSubstr("another tensor's"));
}

TEST(Safetensors, BytesThatNoTensorHasAreRefused) {
  EXPECT_THAT(refusal(one("U8", "[4]", "[0,4]"), 5),
              AllOf(HasSubstr("'test'"), HasSubstr("behind it 1 bytes belong to no tensor")));
  EXPECT_THAT(refusal(one("U8", "[4]", "[2,6]"), 6), HasSubstr("the 2 bytes before it"));
  EXPECT_THAT(refusal("{}", 3), HasSubstr("3 bytes belong to no tensor"));
}

TEST(Safetensors, ADescriptionThatLacksAPartIsRefusedWhereItEnds) {
  EXPECT_THAT(refusal(R"({"a":{},"b":{)", 0), AllOf(HasSubstr("'a'"), HasSubstr("dtype")));
  EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","data_offsets":[0,0]}})", 0), HasSubstr("no shape"));
  EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","dtype":"I8"}})", 0), HasSubstr("'dtype' of 'a'"));
}

TEST(Safetensors, AnIndexNamesFilesBesideIt) {
  const auto files = must(parse_index(R"({"metadata":{},"weight_map":{"b":"2","a":"1","c":"2"}})"));
  EXPECT_THAT(files.at("2"), ElementsAre("b", "c"));
  EXPECT_THAT(files.at("1"), ElementsAre("a"));
  EXPECT_THAT(parse_index(R"({"weight_map":{"a":"../1"}})").status().message(),
              HasSubstr("a file beside the index for 'a'"));
}

}  // namespace
}  // namespace elixir::checkpoints
